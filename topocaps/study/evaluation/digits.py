"""Linear probes of the class of digits: of upright and moved images, and of moving sequences.

The protocol for images follows Table 1 of Smith et al. (2020). Features are the parameters of q,
without samples. They are whitened on the training images. This was chosen on validation images: if
features are only standardised, the penalty of the probe holds back correlated ones. The probe is
fitted on upright training images, all 48,000 or as many as a recipe states. It is tested on the
10,000 test images. Each of them is moved once, the same for every model: it is turned by up to the
stated angle in either direction. A *refitted* probe is fitted on training images that are moved in
the same manner. The paper does not state which of the two probes it used.

Probes of sequences learn the class from few and from many labels.
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
SEED = 0  # chooses how digits are moved
_BATCH = 500
LABELLED = 10_000  # number of sequences that probes learn from, and of those they are tested on

Read = Callable[[Tensor], dict[str, Tensor]]  #: features of images (images, *frame), by name


def moves_by_name(canvas: int) -> dict[str, Moves]:
    """Return how test digits are moved, by name: rotations or, on affNIST's canvas, its moves."""
    if canvas == AFFNIST_SIDE:
        return {"0": Moves(canvas=canvas), "affnist-style": affnist_style()}
    return {str(angle): rotated_up_to(angle, canvas) for angle in ANGLES}


@torch.no_grad()
def labelled(read: Read, sequences: SequenceSet) -> dict[str, Labelled]:
    """Return the features of all images with their classes, by the name of the features."""
    features, classes = [], []
    for batch in sequences.batches(_BATCH):
        features.append(read(batch.x[:, 0]))
        classes.append(classes_of(batch))
    return with_classes(features, classes)


def classes_of(batch: Batch) -> Tensor:
    """Return the class of every image: the first factor of the first frame."""
    assert batch.factors is not None
    return batch.factors[:, 0, 0]


def with_classes(
    parts: Sequence[Mapping[str, Tensor]], classes: Sequence[Tensor]
) -> dict[str, Labelled]:
    """Return the features and classes of all batches as one set, by the name of the features."""
    labels = torch.cat(list(classes))
    return {name: (torch.cat([part[name] for part in parts]), labels) for name in parts[0]}


def moved_digits(
    part: Digits, moves: Moves, device: torch.device, count: int | None = None
) -> MovedDigits:
    """Return ``count`` digits [all], each moved once, in the same way for every model."""
    return MovedDigits(part.images, part.classes, moves).balanced(count, SEED).to(device)


PROBED = ("accuracy", "refitted")  #: keys of the result of `probed`


def probed(
    read: Read,
    canvas: int,
    device: torch.device,
    data: Path | None = None,
    count: int | None = None,
) -> dict[str, Any]:
    """Return accuracies: {"accuracy" or "refitted": {features: {moves: accuracy}}}.

    Args:
        read: returns features of images, by name.
        canvas: width and height of the images in pixels.
        device: device of the images.
        data: folder of MNIST's files and, if present, affNIST's.
        count: number of training images that probes are fitted on [all].
    """
    train, _, test = digit_splits(data)
    fitted, tested = {}, {}
    for name, moves in moves_by_name(canvas).items():
        fitted[name] = labelled(read, moved_digits(train, moves, device, count))
        tested[name] = labelled(read, moved_digits(test, moves, device))
    if canvas == AFFNIST_SIDE and (real := _affnist(data)) is not None:
        tested["affnist"] = labelled(read, moved_digits(real, Moves(canvas=canvas), device))
    accuracy, refitted = {}, {}
    for features in tested["0"]:
        trains = {name: sets[features] for name, sets in fitted.items()}
        tests = {name: sets[features] for name, sets in tested.items()}
        accuracy[features] = whitened_accuracies(trains["0"], tests)
        both = {name: test_set for name, test_set in tests.items() if name in trains}
        refitted[features] = refitted_accuracies(trains, both)
    return {"accuracy": accuracy, "refitted": refitted}


def _affnist(data: Path | None) -> Digits | None:
    """Return the digits of affNIST if its files are beside those of MNIST, or None."""
    files = affnist_files(data_folder(data))
    return affnist(*files) if files else None


def of_codes(t: Tensor) -> dict[str, Tensor]:
    """Return features of codes (batch, capsules, *shape), by name.

    - ``t``: the codes themselves.
    - ``pooled``: statistics of every capsule, which no roll changes.
    - ``power``: the power of every frequency along the sites of a capsule, which no roll changes.
    """
    frames = t[:, None]
    return {"t": t.flatten(1), "pooled": pooled(frames).flatten(1), "power": power(frames)[:, 0]}


@torch.no_grad()
def probe_digits(
    read: Read, device: torch.device, folder: Path | None, centre: float | None = None
) -> dict[str, dict[str, float]]:
    """Return the accuracies of probes on test digits, {features: {number of labels: accuracy}}.

    Digits have any pose and colour. In each sequence, one factor moves.

    Args:
        read: returns features of sequences (batch, time, *frame), by name.
        device: device of the sequences.
        folder: folder of MNIST's files.
        centre: pixel about which digits turn and scale.
    """
    sets: dict[str, list[Labelled]] = {}
    for part in digits(folder):
        moving = TransformedImages(part.images, centre=centre)
        fixed = moving.balanced(-(-LABELLED // len(moving.motion.together)), EVALUATION_SEED)
        features = [
            {**read(batch.x), "pixels": batch.x[:, 0].flatten(1)}
            for batch in fixed.to(device).batches(128)
        ]
        classes = part.classes[fixed.fixed()[:, 0, 0].cpu()].long().to(device)
        for name, labelled_set in with_classes(features, [classes]).items():
            sets.setdefault(name, []).append(labelled_set)
    with torch.enable_grad():
        return {
            name: {str(n): share for n, share in accuracy_by_labels(train, test).items()}
            for name, (train, test) in sets.items()
        }


def probes_of_sequences(
    read: Read, trained_on: Mnist, device: torch.device, data: Path | None
) -> ExtraMetric:
    """Return the accuracies of `probe_digits`. Digits turn about the same pixel as in training."""
    return ExtraMetric(
        ("probes",), lambda: {"probes": probe_digits(read, device, data, trained_on.centre)}
    )
