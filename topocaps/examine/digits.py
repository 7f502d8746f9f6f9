"""What linear probes read of digits, upright and moved (Table 1 of Smith et al. 2020).

The protocol: features are q's parameters, without drawing, whitened on the training images (chosen
on validation images: merely standardised, correlated features are held back by the penalty). The
probe is fitted on the upright training images (all 48,000, or as many as a recipe says) and tested
on the 10,000 test images, each moved once, the same for every model: turned by an angle up to so
many degrees either way. *Refitted*, it is fitted on training images moved in the same manner. The
paper does not say which of the two it did.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from topocaps.data.mnist_files import Digits, data_folder, digit_splits
from topocaps.data.moved import (
    AFFNIST_SIDE,
    MovedDigits,
    Moves,
    affnist,
    affnist_files,
    affnist_style,
    rotated_up_to,
)
from topocaps.metrics.capsules import Labelled, classification, refitted

ANGLES = (0, 45, 90, 135, 180)
SEED = 0  # of how test digits are moved
_BATCH = 500

Read = Callable[[Tensor], dict[str, Tensor]]  #: features of images (images, *frame), by name


def ways(canvas: int) -> dict[str, Moves]:
    """How test digits are moved, by name: turned, and on affNIST's canvas as its digits are."""
    if canvas == AFFNIST_SIDE:
        return {"0": Moves(canvas=canvas), "affnist-style": affnist_style()}
    return {str(angle): rotated_up_to(angle, canvas) for angle in ANGLES}


@torch.no_grad()
def features(
    read: Read, part: Digits, moves: Moves, where: torch.device, count: int | None = None
) -> tuple[dict[str, Tensor], Tensor]:
    """What is read of digits moved, and their classes."""
    moved = MovedDigits(part.images, part.classes, moves).balanced(count, SEED).to(where)
    found: dict[str, list[Tensor]] = {}
    classes = []
    for batch in moved.batches(_BATCH):
        for name, values in read(batch.x[:, 0]).items():
            found.setdefault(name, []).append(values)
        assert batch.factors is not None
        classes.append(batch.factors[:, 0, 0])
    return {name: torch.cat(values) for name, values in found.items()}, torch.cat(classes)


PROBED = ("accuracy", "refitted")  #: what is found


def probed(
    read: Read,
    canvas: int,
    where: torch.device,
    data: Path | None = None,
    count: int | None = None,
) -> dict[str, Any]:
    """{"accuracy" and "refitted": {what is read: {how digits were moved: accuracy}}}."""
    train, _, test = digit_splits(data)
    moved = ways(canvas)
    fitted = {name: features(read, train, moves, where, count) for name, moves in moved.items()}
    tested = {name: features(read, test, moves, where) for name, moves in moved.items()}
    if canvas == AFFNIST_SIDE and (real := _affnist(data)) is not None:
        tested["affnist"] = features(read, real, Moves(canvas=canvas), where)
    names = list(tested["0"][0])

    def of(sets: dict[str, tuple[dict[str, Tensor], Tensor]], name: str) -> dict[str, Labelled]:
        return {way: (found[name], classes) for way, (found, classes) in sets.items()}

    return {
        "accuracy": {n: _one_probe(of(fitted, n)["0"], of(tested, n)) for n in names},
        "refitted": {
            n: refitted(of(fitted, n), {w: t for w, t in of(tested, n).items() if w in fitted})
            for n in names
        },
    }


def _one_probe(train: Labelled, tests: dict[str, Labelled]) -> dict[str, float]:
    return classification(train[0], train[1], tests)


def _affnist(data: Path | None) -> Digits | None:
    """The real one, where its files lie beside MNIST's."""
    files = affnist_files(data_folder(data))
    return affnist(*files) if files else None
