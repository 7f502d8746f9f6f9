"""Topographic models: what is measured and drawn of them, and the rows of their tables."""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, ClassVar

import torch
from matplotlib.figure import Figure
from torch import Tensor

from topocaps.data.mnist_files import SIDE
from topocaps.data.sequences import Batch, Sequences, SequenceSet
from topocaps.data.transforms import MOTIONS, TransformedImages
from topocaps.errors import BadInput
from topocaps.latents.learned import LearnedTopography
from topocaps.latents.topography import Topography
from topocaps.metrics import evaluate, neighbour_agreement, strongest_images
from topocaps.metrics.rolled_traversal import Traversal, TraversalOptions, traversal
from topocaps.metrics.visible_frames import Fill, visible_gains
from topocaps.models.evidence import frame_bound
from topocaps.models.sequence import SequenceModel
from topocaps.study import figures
from topocaps.study.data import SOME, Mnist, MovedMnist, Sprites, StillMnist
from topocaps.study.evaluation.base import (
    EVALUATION_SEED,
    EXAMPLES_SEED,
    Evaluation,
    ExtraMetric,
    evaluates,
)
from topocaps.study.evaluation.digits import (
    PROBED,
    classes_of,
    of_codes,
    probed,
    probes_of_sequences,
)
from topocaps.study.evaluation.shared import (
    MEASURED,
    VISIBLE,
    bounds_by_samples,
    visible_rows,
)
from topocaps.study.finished import Finished
from topocaps.study.quantity import Quantity
from topocaps.study.recipe import BaseRecipe, Recipe

TRAVERSALS = 12  # of a model beside its results
UNNAMED = 4  # sequences that are shown where no factors are known
SHAPE = "shape"  # the factor of sprites that never moves

_GAIN_LEGEND = (
    "gain",
    "traversal gain: how well frames that t₀ has not seen are predicted by rolling it. 1 is "
    "perfect, 0 is the sequence's own mean frame (the best that a code can do which never "
    "changes), below 0 is worse than that. Held: the same t₀, not rolled. Factors that leave "
    "no such frame are not listed.",
)
_CAPCORR_LEGEND = (
    "CapCorr",
    "correlation of the roll seen in the capsules with the factor that moved (Eq. 14). For "
    "factors that loop within a sequence the most favourable start counts. A dash: the roll "
    "never varies, so there is no correlation.",
)
_AXIS_LEGEND = (
    "along its own axis",
    "of capsules of several axes: the share of a factor's sequences in which they moved along "
    "the axis that is the factor's own, and along no other.",
)
_ERROR_LEGEND = (
    "E_eq",
    "equivariance error (Eq. 13), beside what capsules pointing in random directions give. "
    "Both mostly measure the structure that is built in: compare with the untrained column.",
)
_BOUND_LEGEND = (
    "log p(x) ≥",
    "importance-weighted bound with K samples of whole sequences, nats a frame, true for any "
    "window; not comparable with the papers' numbers.",
)
_PAPER_LEGEND = (
    "paper's log p(x)",
    "the released estimator, to stand beside the papers' tables: too high by the log of its "
    "samples, and no bound where frames share variance.",
)

GAIN = Quantity(("traversal_gain",), "gain", 2, _GAIN_LEGEND)
ERROR = Quantity(("equivariance_error",), "E_eq", 0, _ERROR_LEGEND)
_SHARED = (
    ERROR,
    Quantity(("chance_equivariance_error",), "E_eq of chance", 0, _ERROR_LEGEND),
    Quantity(("log_px",), "log p(x) ≥", 1, _BOUND_LEGEND),
    Quantity(("log_px_paper",), "paper's log p(x)", 1, _PAPER_LEGEND),
    Quantity(("elbo",), "ELBO", 1),
)
_MAP = (
    Quantity(("map", "agreement"), "neighbours of one class", 2),
    Quantity(("map", "shuffled"), "when shuffled", 2),
)


def gain_of(factor: str) -> Quantity:
    """The traversal gain of the sequences in which one factor moves."""
    return Quantity(("traversal", "by_factor", factor), f"gain {factor}", 2, _GAIN_LEGEND)


def capcorr_of(factor: str) -> Quantity:
    """CapCorr of one factor."""
    return Quantity(("capcorr", factor), f"CapCorr {factor}", 2, _CAPCORR_LEGEND)


def own_axis_of(factor: str) -> Quantity:
    """How often the latents move along the factor's own axis."""
    return Quantity(("own_axis", factor), f"{factor} along its own axis", 2, _AXIS_LEGEND)


@evaluates(SequenceModel)
class TopographicEvaluation(Evaluation[SequenceModel]):
    """Bounds, E_eq, CapCorr, traversals; of a map, how it is organised."""

    captions: ClassVar = {
        "torus": (
            "The test image that excites each site of the flattened torus most (Fig. 3), and the "
            "class of this image. In an organised map, neighbours have the same class."
        ),
        "traversal": (
            "Capsule traversals on held-out sequences. Top row of each block: the input; frames "
            "that t₀ has not seen are grey. Middle: each frame, reconstructed from its own "
            "latents. Bottom: frames decoded from t₀ (bordered) alone, rolled one site per frame."
        ),
        "by_lag": (
            "The cost of predicting the frame at each lag from rolled t₀, over all factors. "
            "Dashed: the cost of the sequence's mean frame, which is the best that an invariant "
            "model can do. Shaded: lags that t₀ has not seen, on which the gain is measured."
        ),
        "topography": (
            "Variance shared in one capsule. Left: the squares u² that the energy of the bordered "
            "latent sums. Right: the number of these squares that the energy of every other latent "
            "also sums."
        ),
        "learned": (
            "Learned W: the weight of u² in a latent's energy, by its distance in frames and "
            "sites. Shown are the initial weights, the mean over capsules, and some capsules."
        ),
        **Evaluation.captions,
    }
    some_of_train: ClassVar = True

    def numbers(
        self, model: SequenceModel, sequences: SequenceSet, recipe: BaseRecipe
    ) -> dict[str, Any]:
        options = traversal_options(recipe)
        found = evaluate(model, sequences, seed=EVALUATION_SEED, **asdict(options))
        if is_map(model):
            found["map"] = _map(model, sequences)
        if sequences.frames > 1:  # of t as it is, where an invariant model needs no roll
            still = replace(options, rate=0.0)
            found["held"] = {"traversal_gain": overall_gain(model, sequences, still)}
            fill = self.fill(model, recipe)
            closed = options.closed is not False
            if fill is not None:
                found[VISIBLE] = visible_gains(
                    fill, sequences, model.likelihood, MEASURED, EVALUATION_SEED, closed
                )
        return found

    def fill(self, model: SequenceModel, recipe: BaseRecipe) -> Fill | None:
        """Return the model's own ``fill``, unless its capsules move along one of several axes."""
        if model.topography.axes != (None,) and not model.topography.apart:
            return None
        options = traversal_options(recipe)
        return functools.partial(model.fill, rate=options.rate, closed=options.closed)

    def draw(self, run: Finished[SequenceModel], held_out: SequenceSet) -> dict[str, Figure]:
        model = run.model
        drawn: dict[str, Figure] = {}
        if isinstance(model.topography, LearnedTopography):
            drawn["learned"] = figures.learned(model.topography)
        elif isinstance(model.topography, Topography):
            drawn["topography"] = figures.topography(model.topography, held_out.frames)
        if is_map(model):
            drawn |= self.result_figures(run, held_out)
        else:
            if figures.can_be_drawn(held_out.frame_shape):
                shown = examples(held_out, 1 if held_out.names else UNNAMED)
                drawn["traversal"] = _traversals(run, shown, held_out.names)
            drawn["by_lag"] = figures.by_lag({run.name: run.metrics})
        return drawn

    def extra_metrics(self, run: Finished[SequenceModel], data: Path | None) -> list[ExtraMetric]:
        """Bounds by the number of samples; of digits, what probes read, and combined motions."""
        model, trained_on = run.model, run.recipe.data
        device = next(model.parameters()).device
        if isinstance(trained_on, StillMnist | MovedMnist) and not is_map(model):
            canvas = trained_on.canvas if isinstance(trained_on, MovedMnist) else SIDE
            of_images = functools.partial(read_posterior, model)
            return [ExtraMetric(PROBED, lambda: probed(of_images, canvas, device, data))]
        bounds = bounds_by_samples(
            functools.partial(tightest_bound, model), run.recipe, device, data
        )
        if not isinstance(trained_on, Mnist) or trained_on.motion != "single":
            return [bounds]

        def generalised() -> dict[str, Any]:
            assert model.frame_shape is not None  # as a recipe built it
            untrained = run.recipe.build(model.frame_shape, run.metrics["seed"]).to(device)
            assert isinstance(untrained, SequenceModel)
            found, control = (
                generalisation(which, run.recipe, trained_on, data) for which in (model, untrained)
            )
            return {"generalisation": found, "untrained": {"generalisation": control}}

        def read(x: Tensor) -> dict[str, Tensor]:
            return of_codes(model.encode(x)[:, 0])

        probes = probes_of_sequences(read, trained_on, device, data)
        return [bounds, ExtraMetric(("generalisation",), generalised), probes]

    def result_figures(
        self, run: Finished[SequenceModel], held_out: SequenceSet
    ) -> dict[str, Figure]:
        model = run.model
        if is_map(model):
            _, images, classes = strongest(model, held_out)
            return {"torus": figures.torus(images, classes)}
        if held_out.frames < 2:  # what stands still has nothing to traverse
            return {}
        found = {"traversals": _several(run, held_out)}
        if isinstance(held_out, TransformedImages) and held_out.motion is MOTIONS["single"]:
            together = TransformedImages(
                held_out.images, MOTIONS["combined"], centre=held_out.centre
            )
            found["combined"] = _several(run, together)
        if isinstance(model.topography, LearnedTopography):
            found["learned"] = figures.learned(model.topography)
        if isinstance(run.recipe.data, Sprites):
            found["filled"] = figures.filled(model, examples(held_out), held_out.names)
        return found

    def traversals(self, run: Finished[SequenceModel], held_out: SequenceSet, each: int) -> Figure:
        window = traversal_options(run.recipe).window
        return _traversals(run, examples(held_out, each), held_out.names, window)

    def quantities(self, columns: Sequence[Mapping[str, Any]]) -> list[Quantity]:
        def known(quantity: Quantity) -> bool:
            return any(quantity.of(metrics) is not None for metrics in columns)

        first = columns[0]
        gains = [gain_of(factor) for factor in first["traversal"]["by_factor"]]
        moving = [quantity for quantity in gains if known(quantity)]
        rows = [quantity for quantity in moving if quantity != gain_of("all")]
        if moving:
            label = "gain, mean" if rows else "gain"
            held = replace(GAIN, key=("held", *GAIN.key), label=f"{label}, t₀ held")
            rows += [replace(GAIN, label=label), *[held] * known(held)]
        rows += visible_rows(columns)
        rows += [capcorr_of(factor) for factor in first["capcorr"]]
        rows += [own_axis_of(factor) for factor in first.get("own_axis", {})]
        for quantity in _SHARED:
            if quantity.key == ("log_px",):
                quantity = replace(quantity, label=f"log p(x) ≥ (K = {first['samples']})")
            if any(quantity.of(m) for m in columns):  # single frames have no errors over time
                rows.append(quantity)
        return rows + [quantity for quantity in _MAP if "map" in first]


def _several(run: Finished[SequenceModel], sequences: SequenceSet) -> Figure:
    """So many as the papers show, of all that moves."""
    kinds = len(sequences.balanced(1, EXAMPLES_SEED))  # factors that move, together or one by one
    return _traversals(run, examples(sequences, max(1, TRAVERSALS // kinds)), sequences.names)


def _traversals(
    run: Finished[SequenceModel], shown: Batch, names: Sequence[str], window: int | None = None
) -> Figure:
    """Return traversals in which frames outside a window are unseen; by default the model's own."""
    options = replace(traversal_options(run.recipe), window=window)
    return figures.traversals(run.model, shown, names, **asdict(options))


def read_posterior(model: SequenceModel, x: Tensor) -> dict[str, Tensor]:
    """What probes see of images (images, *frame): means and standard deviations of q(z|x)."""
    q = model.posterior(x[:, None]).z
    return {"posterior": torch.cat([q.mean.flatten(1), q.stddev.flatten(1)], 1)}


def tightest_bound(model: SequenceModel, x: Tensor, samples: int) -> Tensor:
    """Return the importance-weighted bound on log p(x), nats a frame: (batch,).

    Samples of independent frames are weighted frame by frame, others by whole sequences.
    """
    if model.frames_are_independent:
        return frame_bound(model, x, samples)
    return model.log_px(x, samples)


def traversal_options(recipe: BaseRecipe) -> TraversalOptions:
    """Return the options of the traversals of a recipe."""
    assert isinstance(recipe, Recipe)
    return recipe.traversal_options


def is_map(model: SequenceModel) -> bool:
    """Whether it is one lattice of still images, as in Figure 3."""
    topography = model.topography
    return topography.capsules == topography.window == 1 and len(topography.shape) == 2


def overall_gain(
    model: SequenceModel, sequences: SequenceSet, options: TraversalOptions
) -> float | None:
    """Return the traversal gain alone."""
    how = asdict(options)
    parts = [traversal(model, one.x, one.factors, **how) for one in sequences.batches(128)]
    return Traversal.join(parts).overall


def generalisation(
    model: SequenceModel, recipe: BaseRecipe, trained_on: Mnist, data: Path | None
) -> dict[str, Any]:
    """Measure a model of single motions on rotation and hue together."""
    moved = Mnist(motion="combined", centre=trained_on.centre, unseen=trained_on.unseen)
    combined = moved.load(data).held_out.balanced(SOME, EVALUATION_SEED)
    window = traversal_options(recipe).window
    found = evaluate(model, combined, window=window, seed=EVALUATION_SEED)
    return {name: found[name] for name in ("traversal_gain", "traversal", "equivariance_error")}


def _map(model: SequenceModel, sequences: SequenceSet) -> dict[str, Any]:
    """Whether neighbours of a map like images of the same class."""
    which, _, classes = strongest(model, sequences)
    found = neighbour_agreement(classes, which)
    shares = {"agreement": found.observed, "shuffled": found.shuffled, "p_value": found.p_value}
    shares["excess"] = found.observed - found.shuffled
    return {**shares, "images": len(which.unique()), "classes": classes.tolist()}


def strongest(model: SequenceModel, sequences: SequenceSet) -> tuple[Tensor, Tensor, Tensor]:
    """The images that excite the sites of a map most: their indices, frames and classes."""
    which = strongest_images(model, sequences)[0]  # rows columns
    shown = sequences.show(sequences.fixed().cpu()[which.flatten()])
    images = shown.x[:, 0].unflatten(0, which.shape)
    return which, images.cpu(), classes_of(shown).reshape(which.shape).cpu()


def examples(held_out: SequenceSet, each: int = 1) -> Batch:
    """The sequences that figures show: ``each`` of every moving factor, always the same.

    Sequences of sprites show every shape equally often.
    """
    shown = held_out.balanced(each, EXAMPLES_SEED)
    if isinstance(held_out, Sequences) and SHAPE in held_out.names:
        shown = evenly(held_out, SHAPE, each)
    return next(shown.batches(len(shown)))


def evenly(sequences: Sequences, factor: str, each: int) -> Sequences:
    """A fixed set: ``each`` sequences of every moving factor, the values of ``factor`` in turn.

    ``factor`` stands still in every sequence.
    """
    fixed = sequences.balanced(None, EXAMPLES_SEED)
    if fixed.factors is None or fixed.moving is None:
        raise BadInput(f"the sequences have no factors, and so no {factor}")
    values = fixed.factors[fixed.order[:, 0], sequences.names.index(factor)].tolist()
    count = max(values) + 1
    chosen: list[int] = []
    for group in fixed.moving.unique():
        before: Counter[int] = Counter()  # sequences of the same value in this group
        ranked = []
        for row in (fixed.moving == group).nonzero().flatten().tolist():
            turn = (values[row] - len(chosen)) % count
            ranked.append((before[values[row]], turn, row))
            before[values[row]] += 1
        chosen += [row for *_, row in sorted(ranked)[:each]]
    return replace(fixed, order=fixed.order[chosen], moving=fixed.moving[chosen])
