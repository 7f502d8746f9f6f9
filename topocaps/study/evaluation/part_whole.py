"""Parts and wholes: what is measured and drawn of them, and the rows of their tables."""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

import torch
from matplotlib.figure import Figure
from torch import Tensor

from topocaps.capsules import LayerPosterior, PartWhole
from topocaps.data.mnist_files import digit_splits
from topocaps.data.moved import MovedDigits, Moves
from topocaps.data.sequences import SequenceSet
from topocaps.device import seeded
from topocaps.metrics.capsules import (
    affine_copies,
    ink_kept,
    majority_vote,
    presence_and_pose,
    presence_logits,
    strangers,
)
from topocaps.metrics.probes import whitened_accuracies
from topocaps.study import part_figures
from topocaps.study.data import Splits
from topocaps.study.evaluation.base import EVALUATION_SEED, Evaluation, ExtraMetric, evaluates
from topocaps.study.evaluation.digits import PROBED, classes_of, labelled, moved_digits, probed
from topocaps.study.evaluation.free_form import IMAGES, free_form
from topocaps.study.finished import Finished
from topocaps.study.quantity import Quantity
from topocaps.study.recipe import BaseRecipe, PartWholeRecipe

PRESENCES, BOTH = "presences", "presences and poses"
_BATCH = 500
KEPT = 500  # images
TURNED = (22.5, 45.0, 90.0, 180.0)  # degrees
SHOWN = "90"  # of these, in the table of a run
BLANK = 0.05  # of the mean ink of a template, that is none
_PROBE_LEGEND = (
    "t⁰, A⁰",
    "test accuracy of a linear probe on the logits of the wholes' presences t⁰, and on these "
    "with their poses A⁰, whitened, fitted on upright training digits.",
)
_BOUND_LEGEND = (
    "bound",
    "nats an image, one draw of q. With Delta poses the entropy of q(A) is missing: the "
    "number is then no bound on log p(x), and is not comparable with one that is.",
)
_PARTS_LEGEND = (
    "largest share, clutter",
    "of the parts that wholes take, how many the one with most has, and of all that are "
    "there, how many belong to none; of more than two layers, where it is worst.",
)
_INK_LEGEND = (
    "ink kept",
    "of images that are turned, how much of their ink is drawn where the turned parts would "
    "draw it: by the same templates, and by any.",
)
BOUND = Quantity(("elbo",), "bound", 1, _BOUND_LEGEND)
MSE = Quantity(
    ("mse",), "MSE", 4,
    ("MSE", "mean squared error of a pixel, drawn from parts as they are most to be expected."),
)  # fmt: skip
_ROWS = (
    Quantity(("log_px_given_t",), "log p(x|parts)", 1),
    MSE,
    Quantity(
        ("presence_nats",), "KL of t⁰", 2,
        (
            "KL of t⁰",
            "nats between the presences of wholes and their prior. Whether they differ from image "
            "to image, it does not tell: that is the logit spread.",
        ),
    ),
    Quantity(
        ("logit_spread",), "logit spread", 2,
        ("logit spread", "how far the logits of t⁰ vary over images; near 0 the top is dead."),
    ),
    Quantity(("largest_share",), "largest share", 2, _PARTS_LEGEND),
    Quantity(("clutter",), "clutter", 2, _PARTS_LEGEND),
    Quantity(("wholes_on",), "wholes on", 1),
    Quantity(("parts_on",), "parts on", 1),
    Quantity(
        ("templates_drawn",), "templates that draw", 0,
        (
            "templates that draw",
            "those that leave ink of their own on images; the others are there, and blank or "
            "hidden.",
        ),
    ),
    Quantity(("kept", SHOWN, "same"), f"ink kept at {SHOWN}° by its template", 2, _INK_LEGEND),
    Quantity(("kept", SHOWN, "any"), f"ink kept at {SHOWN}° by any", 2, _INK_LEGEND),
)  # fmt: skip
_READ = tuple(
    Quantity(("accuracy", key, "0"), label, 3, _PROBE_LEGEND)
    for label, key in (("t⁰", PRESENCES), ("t⁰, A⁰", BOTH))
)


@evaluates(PartWhole)
class PartWholeEvaluation(Evaluation[PartWhole]):
    """Bound, reconstruction, what linear probes read off wholes, signs of life."""

    captions: ClassVar = {
        "parts": (
            "Held-out digits: the input, its reconstruction from the encoder's parts, and the same "
            "with each part in its own colour (Fig. 7)."
        ),
        "templates": (
            "Templates of the parts (Fig. 6): brightness times opacity, each scaled to its square."
        ),
        "turned": (
            "One digit at several rotations: the input, its reconstruction from the encoder's "
            "parts and after free-form inference (Fig. 3), and both with each part in its own "
            "colour (Fig. 5)."
        ),
        "samples": (
            "Images sampled from the generative model (Eq. 1-7), and the parts that draw them."
        ),
        **Evaluation.captions,
    }

    def measure(
        self,
        model: PartWhole,
        untrained: PartWhole,
        splits: Splits,
        recipe: BaseRecipe,
        device: torch.device,
    ) -> dict[str, Any]:
        """Measure held-out data as it is, and what is read and kept of it upright."""

        def fixed(sequences: SequenceSet, each: int | None) -> SequenceSet:
            return sequences.balanced(each, EVALUATION_SEED).to(device)

        probed_on, test = _probed(recipe), fixed(splits.held_out, splits.each)
        upright = fixed(not_moved(splits.held_out), splits.each)
        upright_train = fixed(not_moved(splits.train), probed_on)

        def on(which: PartWhole) -> dict[str, Any]:
            which.to(device)
            return {
                **bounds(which, test),
                "accuracy": accuracy(which, upright_train, upright),
                "kept": kept(which, upright),
            }

        train = bounds(model.to(device), fixed(splits.train, probed_on))
        return {**on(model), "untrained": on(untrained), "train": train}

    def draw(self, run: Finished[PartWhole], held_out: SequenceSet) -> dict[str, Figure]:
        model, shown = run.model, one_of_each(held_out)
        with seeded(EVALUATION_SEED):
            return {
                "templates": part_figures.templates(model),
                "parts": part_figures.parts(model, shown),
                "turned": part_figures.turned(model, shown[2 % len(shown)], range(0, 181, 30)),
                "samples": part_figures.samples(model),
            }

    def extra_metrics(self, run: Finished[PartWhole], data: Path | None) -> list[ExtraMetric]:
        """Probes on moved digits, what free-form inference adds, how alike templates are."""
        model, count = run.model, _probed(run.recipe)
        device = next(model.parameters()).device
        canvas = model.frame_shape[-1]
        read = functools.partial(read_off, model)
        images = None if count is None else min(count, IMAGES)
        return [
            ExtraMetric(PROBED, lambda: probed(read, canvas, device, data, count)),
            ExtraMetric(
                ("free_form",), lambda: {"free_form": free_form(model, read_wholes, data, images)}
            ),
            ExtraMetric(("vote",), lambda: {"vote": _vote(model, data, canvas, device)}),
            ExtraMetric(("copies",), lambda: {"copies": _copies(model)}),
        ]

    def quantities(self, columns: Sequence[Mapping[str, Any]]) -> list[Quantity]:
        is_bound = columns[0]["is_bound"]
        value = BOUND if is_bound else replace(BOUND, label="value (Delta poses: no bound)")
        return [*_READ, value, *_ROWS]


def _probed(recipe: BaseRecipe) -> int | None:
    """Return how many training images probes are fitted on; None: all of them."""
    assert isinstance(recipe, PartWholeRecipe)
    return recipe.probed


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
            seen = model.templates.visible_ink(model.parts_of(batch.x))  # batch time parts *frame
            sums["mse"] += (seen.sum(2) - batch.x).square().flatten(2).mean(-1).sum().item()
            ink += seen.sum((0, 1, 3, 4, 5)).cpu()
    means = {name: total / len(sequences) for name, total in sums.items()}
    means["templates_drawn"] = int((ink > BLANK * ink.mean()).sum())
    return {**means, "is_bound": model.is_bound, "sequences": len(sequences)}


def read_off(model: PartWhole, x: Tensor) -> dict[str, Tensor]:
    """What probes see of images (images, *frame): the wholes' presences, and poses too."""
    return read_wholes(model.encode(x, model.infer_rotation(x))[0])


def read_wholes(wholes: LayerPosterior) -> dict[str, Tensor]:
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
    which = classes_of(batch)
    first = [(which == c).nonzero()[0, 0] for c in range(classes) if (which == c).any()]
    return batch.x[torch.stack(first), 0]
