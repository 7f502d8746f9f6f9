"""What linear probes read of digits: of upright and moved images, and of sequences that move.

The protocol of images (Table 1 of Smith et al. 2020): features are q's parameters, without drawing,
whitened on the training images (chosen on validation images: merely standardised, correlated
features are held back by the penalty). The probe is fitted on the upright training images (all
48,000, or as many as a recipe says) and tested on the 10,000 test images, each moved once, the same
for every model: turned by an angle up to so many degrees either way. *Refitted*, it is fitted on
training images moved in the same manner. The paper does not say which of the two it did.

Probes of sequences learn the class from few labels and from many.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from topocaps.data.affnist import AFFNIST_SIDE, affnist, affnist_files
from topocaps.data.mnist_files import Digits, data_folder, digit_splits, digits
from topocaps.data.moved import MovedDigits, Moves, affnist_style, rotated_up_to
from topocaps.data.sequences import Batch, SequenceSet
from topocaps.data.transforms import TransformedImages
from topocaps.metrics.probes import (
    Labelled,
    accuracy_by_labels,
    pooled,
    power,
    refitted_accuracies,
    whitened_accuracies,
)
from topocaps.study.data import Mnist
from topocaps.study.evaluation.base import EVALUATION_SEED, ExtraMetric

ANGLES = (0, 45, 90, 135, 180)
SEED = 0  # of how test digits are moved
_BATCH = 500
LABELLED = 10_000  # sequences that probes learn from, and as many to test on

Read = Callable[[Tensor], dict[str, Tensor]]  #: features of images (images, *frame), by name


def ways(canvas: int) -> dict[str, Moves]:
    """How test digits are moved, by name: turned, and on affNIST's canvas as its digits are."""
    if canvas == AFFNIST_SIDE:
        return {"0": Moves(canvas=canvas), "affnist-style": affnist_style()}
    return {str(angle): rotated_up_to(angle, canvas) for angle in ANGLES}


@torch.no_grad()
def labelled(read: Read, sequences: SequenceSet) -> dict[str, Labelled]:
    """What is read of every image, with its class, by name."""
    found, classes = [], []
    for batch in sequences.batches(_BATCH):
        found.append(read(batch.x[:, 0]))
        classes.append(classes_of(batch))
    return with_classes(found, classes)


def classes_of(batch: Batch) -> Tensor:
    """Return the class of every image: the first factor of the first frame."""
    assert batch.factors is not None
    return batch.factors[:, 0, 0]


def with_classes(
    parts: Sequence[Mapping[str, Tensor]], classes: Sequence[Tensor]
) -> dict[str, Labelled]:
    """Return the features of batches and their classes as one set, by name."""
    whose = torch.cat(list(classes))
    return {name: (torch.cat([part[name] for part in parts]), whose) for name in parts[0]}


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
    accuracy, refitted = {}, {}
    for name in tested["0"]:
        trains = {way: sets[name] for way, sets in fitted.items()}
        tests = {way: sets[name] for way, sets in tested.items()}
        accuracy[name] = whitened_accuracies(trains["0"], tests)
        same = {way: test for way, test in tests.items() if way in trains}
        refitted[name] = refitted_accuracies(trains, same)
    return {"accuracy": accuracy, "refitted": refitted}


def _affnist(data: Path | None) -> Digits | None:
    """The real one, where its files lie beside MNIST's."""
    files = affnist_files(data_folder(data))
    return affnist(*files) if files else None


def of_codes(t: Tensor) -> dict[str, Tensor]:
    """Return what probes see of codes (batch, capsules, *shape).

    These are the codes themselves and what of them no roll changes: statistics of every capsule
    (``pooled``), and the power of every frequency along its sites (``power``).
    """
    frames = t[:, None]
    return {"t": t.flatten(1), "pooled": pooled(frames).flatten(1), "power": power(frames)[:, 0]}


@torch.no_grad()
def probe_digits(
    read: Read, where: torch.device, folder: Path | None, centre: float | None = None
) -> dict[str, dict[str, float]]:
    """Return the accuracies of probes on test digits, {features: {number of labels: accuracy}}.

    Digits are in any pose and colour, and one factor of each moves.

    Args:
        read: returns features of sequences (batch, time, *frame), by name.
        where: device of the sequences.
        folder: folder of MNIST's files.
        centre: pixel about which digits turn and scale.
    """
    sets: dict[str, list[Labelled]] = {}
    for part in digits(folder):
        moving = TransformedImages(part.images, centre=centre)
        fixed = moving.balanced(-(-LABELLED // len(moving.motion.together)), EVALUATION_SEED)
        found = [
            {**read(one.x), "pixels": one.x[:, 0].flatten(1)}
            for one in fixed.to(where).batches(128)
        ]
        classes = part.classes[fixed.fixed()[:, 0, 0].cpu()].long().to(where)
        for name, labelled_set in with_classes(found, [classes]).items():
            sets.setdefault(name, []).append(labelled_set)
    with torch.enable_grad():
        return {
            name: {str(n): share for n, share in accuracy_by_labels(train, test).items()}
            for name, (train, test) in sets.items()
        }


def probes_of_sequences(
    read: Read, trained_on: Mnist, where: torch.device, data: Path | None
) -> ExtraMetric:
    """Return the accuracies of ``probe_digits`` on digits that move as those of training."""
    return ExtraMetric(
        ("probes",), lambda: {"probes": probe_digits(read, where, data, trained_on.centre)}
    )
