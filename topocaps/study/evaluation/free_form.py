"""Measurements of free-form inference with a trained part-whole model (section 2.4, Figure 3)."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from topocaps.capsules import LayerPosterior, PartWhole
from topocaps.capsules.free_form import optimise
from topocaps.data.mnist_files import Digits, digit_splits
from topocaps.data.moved import MovedDigits, Moves, rotated_up_to
from topocaps.device import seeded
from topocaps.metrics.probes import Labelled, whitened_accuracies
from topocaps.study.evaluation.base import EVALUATION_SEED
from topocaps.study.evaluation.digits import classes_of, with_classes

STEPS = 100
IMAGES = 3000
TURNED = 90  # largest rotation in degrees
_BATCH = 3000

Read = Callable[[LayerPosterior], dict[str, Tensor]]  #: features of wholes, by name


class Optimised(NamedTuple):
    """Features of digits, by name, before and after q is optimised for each of them."""

    before: dict[str, Labelled]
    after: dict[str, Labelled]
    numbers: dict[str, float]  #: bounds, squared errors of pixels, seconds


def free_form(
    model: PartWhole, read: Read, data: Path | None, count: int | None = None
) -> dict[str, Any]:
    """Return bounds and errors of upright and of turned test digits, and accuracies of probes.

    Probes are fitted on training digits and tested on upright test digits. *amortised*: both have
    amortised latents. *optimised, same probe*: test digits have optimised latents. *optimised,
    refitted*: both have optimised latents.

    Args:
        read: returns features of wholes, by name.
        data: folder of MNIST's files.
        count: number of digits of each set [`IMAGES`].
    """
    device = next(model.parameters()).device
    canvas, count = model.frame_shape[-1], count or IMAGES
    train, _, test = digit_splits(data)
    upright, turned = Moves(canvas=canvas), rotated_up_to(TURNED, canvas)
    fitted = _optimised(model, read, train, upright, count, device)
    tested = _optimised(model, read, test, upright, count, device)
    moved = _optimised(model, read, test, turned, count, device)

    def accuracy(fit_on: Mapping[str, Labelled], test_on: Mapping[str, Labelled]) -> Any:
        return {
            name: whitened_accuracies(labelled, {"0": test_on[name]})["0"]
            for name, labelled in fit_on.items()
        }

    return {
        "steps": STEPS,
        "images": count,
        "upright": tested.numbers,
        "turned": moved.numbers,
        "amortised": accuracy(fitted.before, tested.before),
        "optimised, same probe": accuracy(fitted.before, tested.after),
        "optimised, refitted": accuracy(fitted.after, tested.after),
    }


def _optimised(
    model: PartWhole, read: Read, part: Digits, moves: Moves, count: int, device: torch.device
) -> Optimised:
    """Optimise q for ``count`` digits of a part of MNIST, each moved at random."""
    moved = MovedDigits(part.images, part.classes, moves)
    fixed = moved.balanced(count, EVALUATION_SEED).to(device)
    before, after, classes = [], [], []
    sums = dict.fromkeys(("bound", "bound, optimised", "mse", "mse, optimised", "seconds"), 0.0)
    for batch in fixed.batches(_BATCH):
        began = time.perf_counter()
        with seeded(EVALUATION_SEED):
            optimised = optimise(model, batch.x, steps=STEPS)
        sums["bound"] += optimised.bounds[0].sum().item()
        sums["bound, optimised"] += optimised.bounds[-1].sum().item()
        sums["seconds"] += time.perf_counter() - began
        with torch.no_grad():
            wholes = model.encode(batch.x, model.infer_rotation(batch.x))[0]
            reconstructed = {
                "mse": model.reconstruct(batch.x),
                "mse, optimised": model.templates(optimised.parts(model)),
            }
        for name, picture in reconstructed.items():
            sums[name] += (picture - batch.x).square().mean((2, 3, 4)).sum().item()
        before.append(read(wholes))
        after.append(read(optimised.posteriors[0]))
        classes.append(classes_of(batch))
    numbers = {name: total if name == "seconds" else total / count for name, total in sums.items()}
    return Optimised(with_classes(before, classes), with_classes(after, classes), numbers)
