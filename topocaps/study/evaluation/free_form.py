"""What free-form inference adds to a trained part-whole model (section 2.4, Figure 3)."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from topocaps.capsules import LayerPosterior, PartWhole
from topocaps.capsules.free_form import optimise
from topocaps.data.mnist_files import Digits, digit_splits
from topocaps.data.moved import MovedDigits, Moves, rotated_up_to
from topocaps.device import seeded
from topocaps.metrics.probes import Labelled, whitened_accuracies
from topocaps.study.evaluation.base import EVALUATION_SEED
from topocaps.study.evaluation.digits import classes_of, joined

STEPS = 100
IMAGES = 3000
TURNED = 90  # degrees, at most
_BATCH = 3000

Read = Callable[[LayerPosterior], dict[str, Tensor]]  #: features of wholes, by name


@dataclass(frozen=True)
class Optimised:
    """Digits before and after their q was optimised."""

    before: dict[str, Tensor]
    after: dict[str, Tensor]
    classes: Tensor
    numbers: dict[str, float]  #: bounds, errors of pixels, seconds

    def labelled(self, which: str, name: str) -> Labelled:
        return getattr(self, which)[name], self.classes


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

    def accuracy(fit_on: str, test_on: str) -> dict[str, float]:
        return {
            name: whitened_accuracies(
                fitted.labelled(fit_on, name), {"0": tested.labelled(test_on, name)}
            )["0"]
            for name in fitted.before
        }

    return {
        "steps": STEPS,
        "images": count,
        "upright": tested.numbers,
        "turned": moved.numbers,
        "amortised": accuracy("before", "before"),
        "optimised, same probe": accuracy("before", "after"),
        "optimised, refitted": accuracy("after", "after"),
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
    return Optimised(joined(before), joined(after), torch.cat(classes), numbers)
