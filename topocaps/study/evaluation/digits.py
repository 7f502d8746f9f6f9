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

from topocaps.data.affnist import AFFNIST_SIDE, affnist, affnist_files
from topocaps.data.mnist_files import Digits, data_folder, digit_splits
from topocaps.data.moved import MovedDigits, Moves, affnist_style, rotated_up_to
from topocaps.data.sequences import SequenceSet
from topocaps.metrics.probes import Labelled, refitted_accuracies, whitened_accuracies

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
def labelled(read: Read, sequences: SequenceSet) -> dict[str, Labelled]:
    """What is read of every image, with its class, by name."""
    found: dict[str, list[Tensor]] = {}
    classes = []
    for batch in sequences.batches(_BATCH):
        for name, values in read(batch.x[:, 0]).items():
            found.setdefault(name, []).append(values)
        assert batch.factors is not None
        classes.append(batch.factors[:, 0, 0])
    return {name: (torch.cat(values), torch.cat(classes)) for name, values in found.items()}


def moved_digits(
    part: Digits, moves: Moves, where: torch.device, count: int | None = None
) -> MovedDigits:
    """``count`` digits, each moved once, the same for every model; all of them with None."""
    return MovedDigits(part.images, part.classes, moves).balanced(count, SEED).to(where)


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
    fitted, tested = {}, {}
    for way, moves in ways(canvas).items():
        fitted[way] = labelled(read, moved_digits(train, moves, where, count))
        tested[way] = labelled(read, moved_digits(test, moves, where))
    if canvas == AFFNIST_SIDE and (real := _affnist(data)) is not None:
        tested["affnist"] = labelled(read, moved_digits(real, Moves(canvas=canvas), where))
    found: dict[str, Any] = {"accuracy": {}, "refitted": {}}
    for name in tested["0"]:
        trains = {way: sets[name] for way, sets in fitted.items()}
        tests = {way: sets[name] for way, sets in tested.items()}
        found["accuracy"][name] = whitened_accuracies(trains["0"], tests)
        same = {way: test for way, test in tests.items() if way in trains}
        found["refitted"][name] = refitted_accuracies(trains, same)
    return found


def _affnist(data: Path | None) -> Digits | None:
    """The real one, where its files lie beside MNIST's."""
    files = affnist_files(data_folder(data))
    return affnist(*files) if files else None
