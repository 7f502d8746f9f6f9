"""Topographic models: what is measured of them, drawn, and put into a table."""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

import torch
from matplotlib.figure import Figure
from torch import Tensor

from topocaps import figures
from topocaps.arithmetic import seeded
from topocaps.data.mnist_files import digits
from topocaps.data.sequences import Batch, Sequences, SequenceSet
from topocaps.data.transforms import MOTIONS, TransformedImages
from topocaps.errors import BadInput
from topocaps.examine.digits import PROBED, probed
from topocaps.examine.examination import EVALUATION_SEED, Examination, Later, Measured, number
from topocaps.latents.learned import LearnedTopography
from topocaps.latents.topography import Topography
from topocaps.metrics import (
    accuracy_by_labels,
    evaluate,
    neighbour_agreement,
    pooled,
    strongest_images,
)
from topocaps.metrics.traversal import Traversal, traversal
from topocaps.models.base import build
from topocaps.models.sequence import SequenceModel
from topocaps.recipes.data import SOME, Mnist, Splits

TRAVERSALS = 12  # of a model beside its results
UNNAMED = 4  # sequences that are shown where no factors are known
EXAMPLES_SEED = 1  # of the sequences in figures
SHAPE = "shape"  # the factor of sprites that never moves

_LEGEND = {
    "gain": (
        "traversal gain: how well frames that t₀ has not seen are predicted by rolling it. 1 is "
        "perfect, 0 is the sequence's own mean frame (the best that a code can do which never "
        "changes), below 0 is worse than that. Held: the same t₀, not rolled. Factors that leave "
        "no such frame are not listed."
    ),
    "CapCorr": (
        "correlation of the roll seen in the capsules with the factor that moved (Eq. 14). For "
        "factors that loop within a sequence the most favourable start counts. A dash: the roll "
        "never varies, so there is no correlation."
    ),
    "along its own axis": (
        "of capsules of several axes: the share of a factor's sequences in which they moved along "
        "the axis that is the factor's own, and along no other."
    ),
    "E_eq": (
        "equivariance error (Eq. 13), beside what capsules pointing in random directions give. "
        "Both mostly measure the structure that is built in: compare with the untrained column."
    ),
    "log p(x) ≥": (
        "importance-weighted bound with K samples of whole sequences, nats a frame, true for any "
        "window; not comparable with the papers' numbers."
    ),
    "paper's log p(x)": (
        "the released estimator, to stand beside the papers' tables: too high by the log of its "
        "samples, and no bound where frames share variance."
    ),
}


class TopographicExamination(Examination[SequenceModel]):
    """Bounds, E_eq, CapCorr, traversals; of a map, how it is organised."""

    captions: ClassVar = {
        "torus": figures.TORUS_CAPTION,
        "traversal": figures.TRAVERSAL_CAPTION,
        "by_lag": figures.BY_LAG_CAPTION,
        "topography": figures.TOPOGRAPHY_CAPTION,
        "learned": figures.LEARNED_CAPTION,
        "history": figures.HISTORY_CAPTION,
    }

    def measure(
        self,
        model: SequenceModel,
        untrained: SequenceModel,
        splits: Splits,
        settings: dict[str, Any],
        where: torch.device,
    ) -> dict[str, Any]:
        def on(sequences: SequenceSet, each: int | None, which: SequenceModel) -> dict[str, Any]:
            fixed = sequences.balanced(each, EVALUATION_SEED).to(where)
            walk = how_to_walk(settings)
            found = evaluate(which.to(where), fixed, seed=EVALUATION_SEED, **walk)
            if is_map(which):
                found["map"] = _map(which, fixed)
            if fixed.frames > 1:  # of t as it is, where an invariant model needs no roll
                still = walk | {"rate": 0.0}
                found["held"] = {"traversal_gain": walked_gain(which, fixed, still)}
            return found

        return {
            **on(splits.held_out, splits.each, model),
            "untrained": on(splits.held_out, splits.each, untrained),
            "train": on(splits.train, SOME, model),
        }

    def draw(self, run: Measured[SequenceModel]) -> dict[str, Figure]:
        model, held_out, drawn = run.model, run.held_out, {}
        if isinstance(model.topography, LearnedTopography):
            drawn["learned"] = figures.learned(model.topography)
        elif isinstance(model.topography, Topography):
            drawn["topography"] = figures.topography(model.topography, held_out.frames)
        if is_map(model):
            drawn["torus"] = figures.torus(*strongest(model, held_out))
        else:
            if figures.can_be_drawn(held_out.frame_shape):
                shown = examples(held_out, 1 if held_out.names else UNNAMED)
                drawn["traversal"] = _walked(run, shown, held_out.names)
            drawn["by_lag"] = figures.by_lag({run.settings["name"]: run.metrics})
        return drawn

    def more(
        self, model: SequenceModel, settings: dict[str, Any], data: Path | None
    ) -> list[Later]:
        """On rotation and hue together for a model that saw them singly; what probes read off."""
        recorded = settings["data"]
        where = next(model.parameters()).device
        if recorded["kind"] in ("StillMnist", "MovedMnist") and not is_map(model):
            canvas = recorded.get("canvas", 28)
            read = functools.partial(read_posterior, model)
            return [Later(PROBED, lambda: probed(read, canvas, where, data))]
        if recorded["kind"] != "Mnist" or recorded["motion"] != "single":
            return []

        def generalised() -> dict[str, Any]:
            with seeded(settings["seed"]):
                untrained = build(settings["model"]).to(where)
            assert isinstance(untrained, SequenceModel)
            found, control = (elsewhere(one, settings, data) for one in (model, untrained))
            return {"generalisation": found, "untrained": {"generalisation": control}}

        return [
            Later(("generalisation",), generalised),
            Later(
                ("probes",),
                lambda: {"probes": probe_digits(model, data, recorded.get("centre"))},
            ),
        ]

    def keepsakes(self, run: Measured[SequenceModel]) -> dict[str, Figure]:
        model, held_out = run.model, run.held_out
        if is_map(model):
            return {"torus": figures.torus(*strongest(model, held_out))}
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
        if run.settings["data"]["kind"] == "Sprites":
            found["filled"] = figures.filled(model, examples(held_out), held_out.names)
        return found

    legend: ClassVar = _LEGEND

    def table(self, columns: Mapping[str, Mapping[str, Any]]) -> list[list[str]]:
        """Metrics as text: a header of names, then a row for each number."""
        metrics = list(columns.values())

        def row(label: str, values: Iterable[float | None], digits: int) -> list[str]:
            return [label, *(number(value, digits) for value in values)]

        gains = [m["traversal"]["by_factor"] for m in metrics]
        moving = [f for f in gains[0] if any(gain.get(f) is not None for gain in gains)]
        rows = [row(f"gain {f}", [gain.get(f) for gain in gains], 2) for f in moving if f != "all"]
        if moving:
            label = "gain, mean" if rows else "gain"
            rows += [row(label, [m["traversal_gain"] for m in metrics], 2)]
            held = [m.get("held", {}).get("traversal_gain") for m in metrics]
            rows += [row(f"{label}, t₀ held", held, 2)] * any(one is not None for one in held)
        rows += [
            row(f"CapCorr {f}", [m["capcorr"].get(f) for m in metrics], 2)
            for f in metrics[0]["capcorr"]
        ]
        rows += [
            row(f"{f} along its own axis", [m.get("own_axis", {}).get(f) for m in metrics], 2)
            for f in metrics[0].get("own_axis", {})
        ]
        rows += [
            row(label, [m[key] for m in metrics], digits)
            for label, key, digits in (
                ("E_eq", "equivariance_error", 0),
                ("E_eq of chance", "chance_equivariance_error", 0),
                (f"log p(x) ≥ (K = {metrics[0]['samples']})", "log_px", 1),
                ("paper's log p(x)", "log_px_paper", 1),
                ("ELBO", "elbo", 1),
            )
            if any(m[key] for m in metrics)  # single frames have no errors over time
        ]
        if "map" in metrics[0]:
            labels = {"agreement": "neighbours of one class", "shuffled": "when shuffled"}
            rows += [row(text, [m["map"][key] for m in metrics], 2) for key, text in labels.items()]
        return [["", *columns], *rows]


def _several(run: Measured[SequenceModel], sequences: SequenceSet) -> Figure:
    """So many as the papers show, of all that moves."""
    kinds = len(sequences.balanced(1, EXAMPLES_SEED))  # factors that move, together or one by one
    return _walked(run, examples(sequences, max(1, TRAVERSALS // kinds)), sequences.names)


def _walked(run: Measured[SequenceModel], shown: Batch, names: Sequence[str]) -> Figure:
    """Traversals, where frames are unseen that this model's t has not seen."""
    how = how_to_walk(run.settings) | {"window": None}
    return figures.traversals(run.model, shown, names, **how)


def read_posterior(model: SequenceModel, x: Tensor) -> dict[str, Tensor]:
    """What probes see of images (images, *frame): means and standard deviations of q(z|x)."""
    q = model.posterior(x[:, None]).z
    return {"posterior": torch.cat([q.mean.flatten(1), q.stddev.flatten(1)], 1)}


def how_to_walk(settings: dict[str, Any]) -> dict[str, Any]:
    """What a recipe says of traversals: frames that count as unseen, speed, whether time closes."""
    walk = {"window": settings["unseen_window"], "rate": settings.get("rate", 1.0)}
    return walk | {"closed": settings.get("closed")}


LABELLED = 10_000  # sequences that probes learn from, and as many to test on


@torch.no_grad()
def probe_digits(
    model: SequenceModel, folder: Path | None, centre: float | None = None
) -> dict[str, Any]:
    """{what is read: {labels: accuracy}}: digits from the t of one moving, turned, coloured frame,
    and from what of it no roll changes."""
    where = next(model.parameters()).device
    sets: dict[str, list[tuple[Tensor, Tensor]]] = {"t": [], "pooled": []}
    for part in digits(folder):
        moving = TransformedImages(part.images, centre=centre)
        fixed = moving.balanced(-(-LABELLED // len(moving.motion.together)), EVALUATION_SEED)
        read = [model.encode(one.x)[:, :1] for one in fixed.to(where).batches(128)]
        t = torch.cat(read)
        classes = part.classes[fixed.fixed()[:, 0, 0].cpu()].long().to(where)
        sets["t"].append((t.flatten(1), classes))
        sets["pooled"].append((pooled(t).flatten(1), classes))
    with torch.enable_grad():
        return {
            name: {str(n): share for n, share in accuracy_by_labels(train, test).items()}
            for name, (train, test) in sets.items()
        }


def is_map(model: SequenceModel) -> bool:
    """Whether it is one lattice of still images, as in Figure 3."""
    topography = model.topography
    return topography.capsules == topography.window == 1 and len(topography.shape) == 2


def walked_gain(
    model: SequenceModel, sequences: SequenceSet, how: Mapping[str, Any]
) -> float | None:
    """The traversal gain alone."""
    walks = (traversal(model, one.x, one.factors, **how) for one in sequences.batches(128))
    return Traversal.join(list(walks)).overall


def elsewhere(model: SequenceModel, settings: dict[str, Any], data: Path | None) -> dict[str, Any]:
    """What a model of single motions makes of rotation and hue together."""
    moved = Mnist(motion="combined", centre=settings["data"].get("centre"))
    combined = moved.load(data).held_out.balanced(SOME, EVALUATION_SEED)
    found = evaluate(model, combined, window=settings["unseen_window"], seed=EVALUATION_SEED)
    return {name: found[name] for name in ("traversal_gain", "traversal", "equivariance_error")}


def _map(model: SequenceModel, sequences: SequenceSet) -> dict[str, Any]:
    """Whether neighbours of a map like images of the same class."""
    which = strongest_images(model, sequences)[0]  # rows columns
    _, classes = shown_at(which, sequences)
    found = neighbour_agreement(classes, which)
    shares = {"agreement": found.observed, "shuffled": found.shuffled, "p_value": found.p_value}
    shares["excess"] = found.observed - found.shuffled
    return {**shares, "images": len(which.unique()), "classes": classes.tolist()}


def strongest(model: SequenceModel, sequences: SequenceSet) -> tuple[Tensor, Tensor]:
    """The images that excite the sites of a map most, and their classes."""
    return shown_at(strongest_images(model, sequences)[0], sequences)


def shown_at(which: Tensor, sequences: SequenceSet) -> tuple[Tensor, Tensor]:
    """The first frames of sequences (rows, columns), and their classes."""
    shown = sequences.show(sequences.fixed().cpu()[which.flatten()])
    assert shown.factors is not None
    images = shown.x[:, 0].unflatten(0, which.shape)
    return images.cpu(), shown.factors[:, 0, 0].reshape(which.shape).cpu()


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
