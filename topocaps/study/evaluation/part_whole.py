"""Evaluation of part-whole models: metrics, figures and rows of tables."""

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
KEPT = 500  # number of images on which kept ink is measured
TURNED = (22.5, 45.0, 90.0, 180.0)  # degrees at which kept ink is measured
SHOWN = "90"  # the one of these that the table of a run shows
BLANK = 0.05  # a template is blank if its ink is at most this share of the mean ink
_PROBE_LEGEND = (
    "t⁰, A⁰",
    "test accuracy of a linear probe, fitted on upright training digits. Its features are the "
    "logits of the wholes' presences t⁰, or these and the wholes' poses A⁰, whitened.",
)
_BOUND_LEGEND = (
    "bound",
    "in nats per image, with one sample of q. With Delta poses the entropy of q(A) is missing. The "
    "number is then not a bound on log p(x), and does not compare with a bound.",
)
_PARTS_LEGEND = (
    "largest share, clutter",
    "largest share: the share of one whole in the parts that belong to a whole, for the whole with "
    "most parts. Clutter: the share of present parts that belong to no whole. With more than two "
    "layers, both are the largest values of all layers.",
)
_INK_LEGEND = (
    "ink kept",
    "the share of the ink of turned images that templates draw where the turned parts of the "
    "upright image draw it: the same templates, or any templates.",
)
BOUND = Quantity(("elbo",), "bound", 1, _BOUND_LEGEND)
MSE = Quantity(
    ("mse",), "MSE", 4,
    ("MSE", "mean squared error of a pixel of the image that the most probable parts draw."),
)  # fmt: skip
_ROWS = (
    Quantity(("log_px_given_t",), "log p(x|parts)", 1),
    MSE,
    Quantity(
        ("presence_nats",), "KL of t⁰", 2,
        (
            "KL of t⁰",
            "KL divergence of the presences of wholes from their prior, in nats. It does not show "
            "whether presences differ between images; the logit spread does.",
        ),
    ),
    Quantity(
        ("logit_spread",), "logit spread", 2,
        (
            "logit spread",
            "standard deviation of the logits of t⁰ over images. If it is near 0, the wholes have "
            "collapsed.",
        ),
    ),
    Quantity(("largest_share",), "largest share", 2, _PARTS_LEGEND),
    Quantity(("clutter",), "clutter", 2, _PARTS_LEGEND),
    Quantity(("wholes_on",), "wholes on", 1),
    Quantity(("parts_on",), "parts on", 1),
    Quantity(
        ("templates_drawn",), "templates that draw", 0,
        (
            "templates that draw",
            "the number of templates that leave ink on images. The others are blank or hidden by "
            "other parts.",
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
    """Bounds, reconstruction errors, accuracies of linear probes, and signs of collapse."""

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
        """Return the metrics of a run, as the base class does.

        Bounds are measured on data that moves as in training; probes and kept ink on upright data.
        """

        def fixed(sequences: SequenceSet, each: int | None) -> SequenceSet:
            return sequences.balanced(each, EVALUATION_SEED).to(device)

        probed_on, test = _probed(recipe), fixed(splits.held_out, splits.each)
        upright = fixed(not_moved(splits.held_out), splits.each)
        upright_train = fixed(not_moved(splits.train), probed_on)

        def numbers_of(model: PartWhole) -> dict[str, Any]:
            model.to(device)
            return {
                **bounds(model, test),
                "accuracy": accuracy(model, upright_train, upright),
                "kept": kept(model, upright),
            }

        train = bounds(model.to(device), fixed(splits.train, probed_on))
        return {**numbers_of(model), "untrained": numbers_of(untrained), "train": train}

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
        """Return accuracies on moved digits, free-form inference, a vote, similar templates."""
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
    """Return the number of training images that probes are fitted on; None for all."""
    assert isinstance(recipe, PartWholeRecipe)
    return recipe.probed


def _copies(model: PartWhole) -> dict[str, float]:
    """Return how similar templates are to affine copies of others, beside random strokes."""
    images = model.templates.images().detach()
    ink = (images[:, :-1] * images[:, -1:]).flatten(1).sum(1)
    inked = images[ink > BLANK * ink.mean()]
    numbers: dict[str, float] = {"inked": len(inked)}
    for templates, ending in ((images, ""), (inked, "_of_inked")):
        if len(templates) > 1:
            copies = affine_copies(templates)
            control = strangers(len(templates), templates.shape[-1]).to(templates)
            numbers |= {
                f"nearest{ending}": copies.nearest.median().item(),
                f"nearest_of_strokes{ending}": control.median().item(),
                f"share{ending}": copies.share(control),
            }
    return numbers


@torch.no_grad()
def kept(model: PartWhole, sequences: SequenceSet) -> dict[str, dict[str, float]]:
    """Return how much ink of upright images is kept if they are turned, by degrees.

    ``same`` is the share that the same templates draw, ``any`` the share that any templates draw.
    """
    images = next(sequences.batches(KEPT)).x.flatten(0, 1)
    by_angle = {angle: ink_kept(model, images, math.radians(angle)) for angle in TURNED}
    return {f"{angle:g}": {"same": ink.same, "any": ink.any} for angle, ink in by_angle.items()}


@torch.no_grad()
def bounds(model: PartWhole, sequences: SequenceSet) -> dict[str, Any]:
    """Return means of all terms over images, with one sample each, and the reconstruction error."""
    sums: dict[str, float] = dict.fromkeys((*model.recorded, "mse"), 0.0)
    ink = torch.zeros(model.sizes[-1])
    with seeded(EVALUATION_SEED):
        for batch in sequences.batches(_BATCH):
            evidence = model.evidence(batch.x)
            for name in model.recorded:
                sums[name] += getattr(evidence, name).sum().item()
            by_part = model.templates.visible_ink(
                model.parts_of(batch.x)
            )  # batch time parts *frame
            sums["mse"] += (by_part.sum(2) - batch.x).square().flatten(2).mean(-1).sum().item()
            ink += by_part.sum((0, 1, 3, 4, 5)).cpu()
    means = {name: total / len(sequences) for name, total in sums.items()}
    means["templates_drawn"] = int((ink > BLANK * ink.mean()).sum())
    return {**means, "is_bound": model.is_bound, "sequences": len(sequences)}


def read_off(model: PartWhole, x: Tensor) -> dict[str, Tensor]:
    """Return features of images (images, *frame): those of the wholes that the encoder infers."""
    return read_wholes(model.encode(x, model.infer_rotation(x))[0])


def read_wholes(wholes: LayerPosterior) -> dict[str, Tensor]:
    """Return features of wholes: presences, and presences with poses."""
    return {PRESENCES: presence_logits(wholes), BOTH: presence_and_pose(wholes)}


def not_moved(sequences: SequenceSet) -> SequenceSet:
    """Return the same digits, on the same canvas, without moves. Other sequences stay the same."""
    if not isinstance(sequences, MovedDigits):
        return sequences
    return replace(sequences, moves=Moves(canvas=sequences.moves.canvas), scripts=None)


def accuracy(model: PartWhole, train: SequenceSet, test: SequenceSet) -> dict[str, Any]:
    """Return the accuracies on ``test`` of linear probes on wholes, {features: {"0": accuracy}}."""
    read = functools.partial(read_off, model)
    fitted, tested = labelled(read, train), labelled(read, test)
    return {name: whitened_accuracies(fitted[name], {"0": tested[name]}) for name in fitted}


def _vote(model: PartWhole, data: Path | None, canvas: int, device: torch.device) -> float:
    """Return the accuracy of the class that the whole with the largest presence votes for."""
    test = digit_splits(data)[2]
    upright = moved_digits(test, Moves(canvas=canvas), device)
    presences, classes = labelled(functools.partial(read_off, model), upright)[PRESENCES]
    return majority_vote(presences.argmax(1), classes)


def one_of_each(held_out: SequenceSet, classes: int = 10) -> Tensor:
    """Return an image of every class that some held-out images have, (images, *frame)."""
    fixed = held_out.balanced(200, EVALUATION_SEED)
    batch = next(fixed.batches(len(fixed)))
    class_of = classes_of(batch)
    first = [(class_of == c).nonzero()[0, 0] for c in range(classes) if (class_of == c).any()]
    return batch.x[torch.stack(first), 0]
