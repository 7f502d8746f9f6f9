"""Parts and wholes: what is measured of them, drawn, and put into a table."""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

import torch
from matplotlib.figure import Figure
from torch import Tensor

from topocaps import figures, part_figures
from topocaps.arithmetic import seeded
from topocaps.capsules import Belief, PartWhole
from topocaps.data.mnist_files import digit_splits
from topocaps.data.moved import MovedDigits, Moves
from topocaps.data.sequences import SequenceSet
from topocaps.examine.digits import PROBED, labelled, moved_digits, probed
from topocaps.examine.examination import EVALUATION_SEED, Examination, Later, Measured, number
from topocaps.examine.optimised import IMAGES, free_form
from topocaps.metrics.capsules import (
    affine_copies,
    ink_kept,
    majority_vote,
    presence_and_pose,
    presence_logits,
    strangers,
)
from topocaps.metrics.probes import whitened_accuracies
from topocaps.recipes.data import Splits

PRESENCES, BOTH = "presences", "presences and poses"
_BATCH = 500
KEPT = 500  # images
TURNED = (22.5, 45.0, 90.0, 180.0)  # degrees
SHOWN = "90"  # of these, in the table of a run
BLANK = 0.05  # of the mean ink of a template, that is none
_LEGEND = {
    "bound": (
        "nats an image, one draw of q. With Delta poses the entropy of q(A) is missing: the "
        "number is then no bound on log p(x), and is not comparable with one that is."
    ),
    "MSE": "mean squared error of a pixel, drawn from parts as they are most to be expected.",
    "t⁰, A⁰": (
        "test accuracy of a linear probe on the logits of the wholes' presences t⁰, and on these "
        "with their poses A⁰, whitened, fitted on upright training digits."
    ),
    "KL of t⁰": (
        "nats between the presences of wholes and their prior. Whether they differ from image to "
        "image, it does not tell: that is the logit spread."
    ),
    "logit spread": "how far the logits of t⁰ vary over images; near 0 the top is dead.",
    "largest share, clutter": (
        "of the parts that wholes take, how many the one with most has, and of all that are "
        "there, how many belong to none; of more than two layers, where it is worst."
    ),
    "templates that draw": (
        "those that leave ink of their own on images; the others are there, and blank or hidden."
    ),
    "ink kept": (
        "of images that are turned, how much of their ink is drawn where the turned parts would "
        "draw it: by the same templates, and by any."
    ),
}


class PartWholeExamination(Examination[PartWhole]):
    """Bound, reconstruction, what linear probes read off wholes, signs of life."""

    captions: ClassVar = {
        "parts": part_figures.PARTS_CAPTION,
        "templates": part_figures.TEMPLATES_CAPTION,
        "turned": part_figures.TURNED_CAPTION,
        "samples": part_figures.SAMPLES_CAPTION,
        "history": figures.HISTORY_CAPTION,
    }
    legend: ClassVar = _LEGEND

    def measure(
        self,
        model: PartWhole,
        untrained: PartWhole,
        splits: Splits,
        settings: dict[str, Any],
        where: torch.device,
    ) -> dict[str, Any]:
        def chosen(train: SequenceSet, test: SequenceSet) -> tuple[SequenceSet, SequenceSet]:
            fitted = train.balanced(settings.get("probed"), EVALUATION_SEED)
            return fitted.to(where), test.balanced(splits.each, EVALUATION_SEED).to(where)

        train, test = chosen(splits.train, splits.held_out)
        upright = chosen(not_moved(splits.train), not_moved(splits.held_out))

        def on(which: PartWhole) -> dict[str, Any]:
            which.to(where)
            return {
                **bounds(which, test),
                "accuracy": accuracy(which, *upright),
                "kept": kept(which, upright[1]),
            }

        return {**on(model), "untrained": on(untrained), "train": bounds(model, train)}

    def draw(self, run: Measured[PartWhole]) -> dict[str, Figure]:
        model, shown = run.model, one_of_each(run.held_out)
        with seeded(EVALUATION_SEED):
            return {
                "templates": part_figures.templates(model),
                "parts": part_figures.parts(model, shown),
                "turned": part_figures.turned(model, shown[2 % len(shown)], range(0, 181, 30)),
                "samples": part_figures.samples(model),
            }

    def more(self, model: PartWhole, settings: dict[str, Any], data: Path | None) -> list[Later]:
        """Probes on moved digits, what free-form inference adds, how alike templates are."""
        where = next(model.parameters()).device
        canvas, count = model.frame_shape[-1], settings.get("probed")

        read = functools.partial(read_off, model)

        def optimised() -> dict[str, Any]:
            return free_form(model, read_wholes, data, count and min(count, IMAGES))

        return [
            Later(PROBED, lambda: probed(read, canvas, where, data, count)),
            Later(("free_form",), lambda: {"free_form": optimised()}),
            Later(("vote",), lambda: {"vote": _vote(model, data, canvas, where)}),
            Later(("copies",), lambda: {"copies": _copies(model)}),
        ]

    def table(self, columns: Mapping[str, Mapping[str, Any]]) -> list[list[str]]:
        metrics = list(columns.values())
        bound = "bound" if metrics[0]["is_bound"] else "value (Delta poses: no bound)"
        rows = [
            (bound, "elbo", 1),
            ("log p(x|parts)", "log_px_given_t", 1),
            ("MSE", "mse", 4),
            ("KL of t⁰", "presence_nats", 2),
            ("logit spread", "logit_spread", 2),
            ("largest share", "largest_share", 2),
            ("clutter", "clutter", 2),
            ("wholes on", "wholes_on", 1),
            ("parts on", "parts_on", 1),
            ("templates that draw", "templates_drawn", 0),
        ]
        probes = [m.get("accuracy", {PRESENCES: {}, BOTH: {}}) for m in metrics]
        read = [
            [label, *(number(one[key].get("0"), 3) for one in probes)]
            for label, key in (("t⁰", PRESENCES), ("t⁰, A⁰", BOTH))
        ]
        turned = [m.get("kept", {}).get(SHOWN, {}) for m in metrics]
        kept_rows = [
            [f"ink kept at {SHOWN}° by {whose}", *(number(one.get(key), 2) for one in turned)]
            for whose, key in (("its template", "same"), ("any", "any"))
        ]
        told = [
            [label, *(number(m.get(key), places) for m in metrics)] for label, key, places in rows
        ]
        return [["", *columns], *read, *told, *kept_rows]


def _copies(model: PartWhole) -> dict[str, float]:
    """How near templates are to affine copies of others, beside random strokes."""
    images = model.templates.images().detach()
    ink = (images[:, :-1] * images[:, -1:]).flatten(1).sum(1)
    inked = images[ink > BLANK * ink.mean()]  # the others are blank
    found: dict[str, float] = {"inked": len(inked)}
    for some, ending in ((images, ""), (inked, "_of_inked")):
        if len(some) > 1:
            copies, control = affine_copies(some), strangers(len(some), some.shape[-1]).to(some)
            found |= {
                f"nearest{ending}": copies.nearest.median().item(),
                f"nearest_of_strokes{ending}": control.median().item(),
                f"share{ending}": copies.share(control),
            }
    return found


@torch.no_grad()
def kept(model: PartWhole, sequences: SequenceSet) -> dict[str, dict[str, float]]:
    """Of upright images that are turned: {degrees: how much of their ink is kept, by whom}."""
    some = next(sequences.batches(KEPT)).x.flatten(0, 1)
    found = {angle: ink_kept(model, some, math.radians(angle)) for angle in TURNED}
    return {f"{angle:g}": {"same": one.same, "any": one.any} for angle, one in found.items()}


@torch.no_grad()
def bounds(model: PartWhole, sequences: SequenceSet) -> dict[str, Any]:
    """Means of all terms over images, one draw each, and how well parts draw them."""
    sums: dict[str, float] = dict.fromkeys((*model.recorded, "mse"), 0.0)
    ink = torch.zeros(model.sizes[-1])
    with seeded(EVALUATION_SEED):
        for batch in sequences.batches(_BATCH):
            evidence = model.evidence(batch.x)
            for name in model.recorded:
                sums[name] += getattr(evidence, name).sum().item()
            seen = model.templates.seen(model.parts_of(batch.x))  # batch time parts *frame
            sums["mse"] += (seen.sum(2) - batch.x).square().flatten(2).mean(-1).sum().item()
            ink += seen.sum((0, 1, 3, 4, 5)).cpu()
    means = {name: total / len(sequences) for name, total in sums.items()}
    means["templates_drawn"] = int((ink > BLANK * ink.mean()).sum())
    return {**means, "is_bound": model.is_bound, "sequences": len(sequences)}


def read_off(model: PartWhole, x: Tensor) -> dict[str, Tensor]:
    """What probes see of images (images, *frame): the wholes' presences, and poses too."""
    return read_wholes(model.believe(x, model.upright(x))[0])


def read_wholes(wholes: Belief) -> dict[str, Tensor]:
    return {PRESENCES: presence_logits(wholes), BOTH: presence_and_pose(wholes)}


def not_moved(sequences: SequenceSet) -> SequenceSet:
    """Digits as they are, on the same canvas; what cannot be moved is as it is."""
    if not isinstance(sequences, MovedDigits):
        return sequences
    return replace(sequences, moves=Moves(canvas=sequences.moves.canvas), scripts=None)


def accuracy(model: PartWhole, train: SequenceSet, test: SequenceSet) -> dict[str, Any]:
    """Of linear probes on the wholes, fitted on ``train``: {what is read: {"0": accuracy}}."""
    read = functools.partial(read_off, model)
    fitted, tested = labelled(read, train), labelled(read, test)
    return {name: whitened_accuracies(fitted[name], {"0": tested[name]}) for name in fitted}


def _vote(model: PartWhole, data: Path | None, canvas: int, where: torch.device) -> float:
    """Accuracy where the whole that is most surely there votes for a class."""
    test = digit_splits(data)[2]
    upright = moved_digits(test, Moves(canvas=canvas), where)
    presences, classes = labelled(functools.partial(read_off, model), upright)[PRESENCES]
    return majority_vote(presences.argmax(1), classes)


def one_of_each(held_out: SequenceSet, classes: int = 10) -> Tensor:
    """The first image of every class: (images, *frame)."""
    fixed = held_out.balanced(200, EVALUATION_SEED)
    batch = next(fixed.batches(len(fixed)))
    assert batch.factors is not None
    which = batch.factors[:, 0, 0]
    first = [(which == c).nonzero()[0, 0] for c in range(classes) if (which == c).any()]
    return batch.x[torch.stack(first), 0]
