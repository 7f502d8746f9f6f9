"""What free-form inference adds to a trained part-whole model (section 2.4, Figure 3)."""

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
TURNED = 90  # degrees, at most
_BATCH = 3000

Read = Callable[[LayerPosterior], dict[str, Tensor]]  #: features of wholes, by name


class Optimised(NamedTuple):
    """What is read of digits before and after their q was optimised, by name."""

    before: dict[str, Labelled]
    after: dict[str, Labelled]
    numbers: dict[str, float]  #: bounds, errors of pixels, seconds


def free_form(
    model: PartWhole, read: Read, data: Path | None, count: int | None = None
) -> dict[str, Any]:
    """Bounds and errors of upright and of turned test digits; accuracies of probes.

    A probe is fitted on amortised latents of training digits and tested on amortised ones of test
    digits; on amortised ones and tested on optimised ones; fitted and tested on optimised ones.
    """
    where = next(model.parameters()).device
    canvas, count = model.frame_shape[-1], count or IMAGES
    train, _, test = digit_splits(data)
    upright, turned = Moves(canvas=canvas), rotated_up_to(TURNED, canvas)
    fitted = _optimised(model, read, train, upright, count, where)
    tested = _optimised(model, read, test, upright, count, where)
    moved = _optimised(model, read, test, turned, count, where)

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
    model: PartWhole, read: Read, part: Digits, moves: Moves, count: int, where: torch.device
) -> Optimised:
    fixed = MovedDigits(part.images, part.classes, moves).balanced(count, EVALUATION_SEED).to(where)
    before, after, classes = [], [], []
    sums = dict.fromkeys(("bound", "bound, optimised", "mse", "mse, optimised", "seconds"), 0.0)
    for batch in fixed.batches(_BATCH):
        began = time.perf_counter()
        with seeded(EVALUATION_SEED):
            found = optimise(model, batch.x, steps=STEPS)
        sums["bound"] += found.bounds[0].sum().item()
        sums["bound, optimised"] += found.bounds[-1].sum().item()
        sums["seconds"] += time.perf_counter() - began
        with torch.no_grad():
            first = model.encode(batch.x, model.infer_rotation(batch.x))[0]
            drawn = {"mse": model.reconstruct(batch.x)}
            drawn["mse, optimised"] = model.templates(found.parts(model))
        for name, picture in drawn.items():
            sums[name] += (picture - batch.x).square().mean((2, 3, 4)).sum().item()
        before.append(read(first))
        after.append(read(found.posteriors[0]))
        classes.append(classes_of(batch))
    numbers = {name: total if name == "seconds" else total / count for name, total in sums.items()}
    return Optimised(with_classes(before, classes), with_classes(after, classes), numbers)
