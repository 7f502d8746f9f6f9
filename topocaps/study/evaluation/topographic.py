"""Evaluation of topographic models and VAEs: metrics, figures and rows of tables."""

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

TRAVERSALS = 12  # number of traversals in the figure beside the results of a model
UNNAMED = 4  # number of sequences that are drawn if factors are unknown
SHAPE = "shape"  # factor of sprites that never moves

_GAIN_LEGEND = (
    "gain",
    "traversal gain: how well a roll of t₀ predicts frames outside its window. 1 is perfect, 0 is "
    "as good as the mean frame of the sequence (the best prediction of a constant code), below 0 "
    "is worse. Held: t₀ is not rolled. Factors without frames outside the window are not listed.",
)
_CAPCORR_LEGEND = (
    "CapCorr",
    "correlation of the roll of the capsules with the factor that moves (Eq. 14). For factors "
    "that loop within a sequence, the most favourable start counts. A dash: the roll is the same "
    "in all sequences, so there is no correlation.",
)
_AXIS_LEGEND = (
    "along its own axis",
    "for capsules with several axes: the share of a factor's sequences in which the latents move "
    "along the axis of this factor and along no other.",
)
_ERROR_LEGEND = (
    "E_eq",
    "equivariance error (Eq. 13), beside that of capsules that point in random directions. Both "
    "depend mostly on the built-in structure: compare them with the untrained column.",
)
_BOUND_LEGEND = (
    "log p(x) ≥",
    "importance-weighted bound with K samples of whole sequences, in nats per frame. It is a lower "
    "bound for every window, and does not compare with the papers' numbers.",
)
_PAPER_LEGEND = (
    "paper's log p(x)",
    "the released estimator, which the papers' tables report. It is too high by the log of the "
    "number of samples, and is not a bound if frames share variances.",
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
    """Return the traversal gain of the sequences in which one factor moves."""
    return Quantity(("traversal", "by_factor", factor), f"gain {factor}", 2, _GAIN_LEGEND)


def capcorr_of(factor: str) -> Quantity:
    """Return CapCorr of one factor."""
    return Quantity(("capcorr", factor), f"CapCorr {factor}", 2, _CAPCORR_LEGEND)


def own_axis_of(factor: str) -> Quantity:
    """Return the share of sequences in which latents move along the axis of their factor."""
    return Quantity(("own_axis", factor), f"{factor} along its own axis", 2, _AXIS_LEGEND)


@evaluates(SequenceModel)
class TopographicEvaluation(Evaluation[SequenceModel]):
    """Bounds, E_eq, CapCorr, traversals and gains on hidden frames; the organisation of maps."""

    captions: ClassVar = {
        "torus": (
            "The test image that excites each site of the flattened torus most (Fig. 3), and the "
            "class of this image. In an organised map, neighbours have the same class."
        ),
        "traversal": (
            "Capsule traversals of held-out sequences. Top row of each block: the input. Frames "
            "outside the window of t₀ are grey. Middle: each frame, reconstructed from its own "
            "latents. Bottom: frames decoded from t₀ (bordered) alone, rolled one site per frame."
        ),
        "by_lag": (
            "The cost of predicting the frame at each lag from rolled t₀, over all factors. "
            "Dashed: the cost of the sequence's mean frame, the best prediction of an invariant "
            "model. Shaded: lags outside the window of t₀, on which the gain is measured."
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
        metrics = evaluate(model, sequences, seed=EVALUATION_SEED, **asdict(options))
        if is_map(model):
            metrics["map"] = _map(model, sequences)
        if sequences.frames > 1:
            held = replace(options, rate=0.0)  # t₀ is not rolled
            metrics["held"] = {"traversal_gain": overall_gain(model, sequences, held)}
            fill = self.fill(model, recipe)
            closed = options.closed is not False
            if fill is not None:
                metrics[VISIBLE] = visible_gains(
                    fill, sequences, model.likelihood, MEASURED, EVALUATION_SEED, closed
                )
        return metrics

    def fill(self, model: SequenceModel, recipe: BaseRecipe) -> Fill | None:
        """Return ``model.fill``; None if capsules have several axes and ``apart`` is False.

        The axis of the motion is unknown in that case.
        """
        if model.topography.axes != (None,) and not model.topography.apart:
            return None
        options = traversal_options(recipe)
        return functools.partial(model.fill, rate=options.rate, closed=options.closed)

    def draw(self, run: Finished[SequenceModel], held_out: SequenceSet) -> dict[str, Figure]:
        model = run.model
        drawings: dict[str, Figure] = {}
        if isinstance(model.topography, LearnedTopography):
            drawings["learned"] = figures.learned(model.topography)
        elif isinstance(model.topography, Topography):
            drawings["topography"] = figures.topography(model.topography, held_out.frames)
        if is_map(model):
            drawings |= self.result_figures(run, held_out)
        else:
            if figures.can_be_drawn(held_out.frame_shape):
                shown = examples(held_out, 1 if held_out.names else UNNAMED)
                drawings["traversal"] = _traversals(run, shown, held_out.names)
            drawings["by_lag"] = figures.by_lag({run.name: run.metrics})
        return drawings

    def extra_metrics(self, run: Finished[SequenceModel], data: Path | None) -> list[ExtraMetric]:
        """Return bounds by the number of samples.

        For MNIST, return accuracies of linear probes and, for models of single motions, gains on
        combined motions as well. For single images, return only the accuracies.
        """
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
            assert model.frame_shape is not None  # models of recipes have one
            untrained = run.recipe.build(model.frame_shape, run.metrics["seed"]).to(device)
            assert isinstance(untrained, SequenceModel)
            gains, control = (
                generalisation(m, run.recipe, trained_on, data) for m in (model, untrained)
            )
            return {"generalisation": gains, "untrained": {"generalisation": control}}

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
        if held_out.frames < 2:  # single images have no traversals
            return {}
        drawings = {"traversals": _several(run, held_out)}
        if isinstance(held_out, TransformedImages) and held_out.motion is MOTIONS["single"]:
            together = TransformedImages(
                held_out.images, MOTIONS["combined"], centre=held_out.centre
            )
            drawings["combined"] = _several(run, together)
        if isinstance(model.topography, LearnedTopography):
            drawings["learned"] = figures.learned(model.topography)
        if isinstance(run.recipe.data, Sprites):
            drawings["filled"] = figures.filled(model, examples(held_out), held_out.names)
        return drawings

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
    """Return a figure of `TRAVERSALS` traversals, equally many of every moving factor."""
    moving_factors = len(sequences.balanced(1, EXAMPLES_SEED))
    each = max(1, TRAVERSALS // moving_factors)
    return _traversals(run, examples(sequences, each), sequences.names)


def _traversals(
    run: Finished[SequenceModel], shown: Batch, names: Sequence[str], window: int | None = None
) -> Figure:
    """Return a figure of traversals, in which frames outside ``window`` are grey.

    By default it is the window of the model.
    """
    options = replace(traversal_options(run.recipe), window=window)
    return figures.traversals(run.model, shown, names, **asdict(options))


def read_posterior(model: SequenceModel, x: Tensor) -> dict[str, Tensor]:
    """Return features of images (images, *frame): means and standard deviations of q(z|x)."""
    q = model.posterior(x[:, None]).z
    return {"posterior": torch.cat([q.mean.flatten(1), q.stddev.flatten(1)], 1)}


def tightest_bound(model: SequenceModel, x: Tensor, samples: int) -> Tensor:
    """Return the importance-weighted bound on log p(x) in nats per frame, (batch,).

    If frames are independent, samples are weighted for each frame, which gives a tighter bound than
    weights of whole sequences.
    """
    if model.frames_are_independent:
        return frame_bound(model, x, samples)
    return model.log_px(x, samples)


def traversal_options(recipe: BaseRecipe) -> TraversalOptions:
    """Return the options of the traversals of a recipe."""
    assert isinstance(recipe, Recipe)
    return recipe.traversal_options


def is_map(model: SequenceModel) -> bool:
    """Return whether the latents of a frame are a single lattice, as in Figure 3."""
    topography = model.topography
    return topography.capsules == topography.window == 1 and len(topography.shape) == 2


def overall_gain(
    model: SequenceModel, sequences: SequenceSet, options: TraversalOptions
) -> float | None:
    """Return the traversal gain over all sequences."""
    settings = asdict(options)
    parts = [
        traversal(model, batch.x, batch.factors, **settings) for batch in sequences.batches(128)
    ]
    return Traversal.join(parts).overall


def generalisation(
    model: SequenceModel, recipe: BaseRecipe, trained_on: Mnist, data: Path | None
) -> dict[str, Any]:
    """Return gains and E_eq on sequences in which rotation and hue move together."""
    moved = Mnist(motion="combined", centre=trained_on.centre, unseen=trained_on.unseen)
    combined = moved.load(data).held_out.balanced(SOME, EVALUATION_SEED)
    window = traversal_options(recipe).window
    metrics = evaluate(model, combined, window=window, seed=EVALUATION_SEED)
    return {name: metrics[name] for name in ("traversal_gain", "traversal", "equivariance_error")}


def _map(model: SequenceModel, sequences: SequenceSet) -> dict[str, Any]:
    """Return how often the strongest images of neighbouring sites have the same class."""
    index, _, classes = strongest(model, sequences)
    same = neighbour_agreement(classes, index)
    return {
        "agreement": same.observed,
        "shuffled": same.shuffled,
        "p_value": same.p_value,
        "excess": same.observed - same.shuffled,
        "images": len(index.unique()),
        "classes": classes.tolist(),
    }


def strongest(model: SequenceModel, sequences: SequenceSet) -> tuple[Tensor, Tensor, Tensor]:
    """Return the indices, frames and classes of the images that excite each site of a map most."""
    index = strongest_images(model, sequences)[0]  # rows columns
    shown = sequences.show(sequences.fixed().cpu()[index.flatten()])
    images = shown.x[:, 0].unflatten(0, index.shape)
    return index, images.cpu(), classes_of(shown).reshape(index.shape).cpu()


def examples(held_out: SequenceSet, each: int = 1) -> Batch:
    """Return ``each`` sequences of every moving factor for figures, always the same ones.

    Sequences of sprites show every shape equally often.
    """
    shown = held_out.balanced(each, EXAMPLES_SEED)
    if isinstance(held_out, Sequences) and SHAPE in held_out.names:
        shown = evenly(held_out, SHAPE, each)
    return next(shown.batches(len(shown)))


def evenly(sequences: Sequences, factor: str, each: int) -> Sequences:
    """Return a fixed set of ``each`` sequences of every moving factor.

    Its sequences take the values of ``factor``, which does not move in any of them, in turn.
    """
    fixed = sequences.balanced(None, EXAMPLES_SEED)
    if fixed.factors is None or fixed.moving is None:
        raise BadInput(
            f"the sequences have no factors, so {factor} is unknown: give sequences with factors"
        )
    values = fixed.factors[fixed.order[:, 0], sequences.names.index(factor)].tolist()
    count = max(values) + 1
    chosen: list[int] = []
    for group in fixed.moving.unique():
        rank: Counter[int] = Counter()  # of a sequence among those with its value in this group
        ranked = []
        for row in (fixed.moving == group).nonzero().flatten().tolist():
            turn = (values[row] - len(chosen)) % count
            ranked.append((rank[values[row]], turn, row))
            rank[values[row]] += 1
        chosen += [row for *_, row in sorted(ranked)[:each]]
    return replace(fixed, order=fixed.order[chosen], moving=fixed.moving[chosen])
