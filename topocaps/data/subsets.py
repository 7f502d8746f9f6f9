"""Parts of data sets: some digits, letters or orientations, and sequences at other speeds."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from topocaps.data.letter_images import FRAMES, orientations
from topocaps.data.mnist_files import Digits
from topocaps.data.sequences import Sequences
from topocaps.errors import BadInput


def split_by_digit(
    parts: tuple[Digits, Digits, Digits], held_out: Sequence[int]
) -> tuple[Digits, Digits, Digits]:
    """Return training and validation images without the held-out digits, and test images of these.

    Args:
        parts: training, validation and test images.
        held_out: the classes that are held out.
    """
    train, validation, test = parts
    held = torch.tensor(held_out, dtype=train.classes.dtype)
    return (
        train.some(~torch.isin(train.classes, held)),
        validation.some(~torch.isin(validation.classes, held)),
        test.some(torch.isin(test.classes, held)),
    )


def some_images(digits: Digits, count: int) -> Digits:
    """Return ``count`` images, equally many of every class, and of each class the first ones.

    A smaller selection is part of a larger one.

    >>> digits = Digits(torch.arange(6)[:, None, None].byte(), torch.tensor([0, 0, 0, 1, 1, 1]))
    >>> some_images(digits, 4).images.flatten().tolist()
    [0, 3, 1, 4]
    """
    total = len(digits.images)
    if count > total:
        raise BadInput(f"there are {total:,} training images, so images cannot be {count:,}")
    chosen = (ranks(digits.classes) * 256 + digits.classes).argsort(stable=True)[:count]
    return digits.some(chosen)


def ranks(classes: Tensor) -> Tensor:
    """Return the index of every item among the items of its class, (items,).

    >>> ranks(torch.tensor([7, 7, 2, 7]))
    tensor([0, 1, 0, 2])
    """
    rank = torch.empty_like(classes, dtype=torch.int64)
    for value in classes.unique():
        same = classes == value
        rank[same] = torch.arange(int(same.sum()), device=classes.device)
    return rank


def some_glyphs(train: Sequences, share: float) -> Sequences:
    """Return the sequences of a random share of the glyphs.

    A glyph is a letter in one face. A smaller selection is part of a larger one.
    """
    assert train.factors is not None and train.moving is not None
    glyph = train.factors[train.order[:, 0], :2].unique(dim=0, return_inverse=True)[1]
    count = int(glyph.max()) + 1
    order = torch.randperm(count, generator=torch.Generator().manual_seed(0))
    kept = torch.zeros(count, dtype=torch.bool)
    kept[order[: max(1, round(share * count))]] = True
    rows = kept[glyph]
    return replace(train, order=train.order[rows], moving=train.moving[rows])


def at_speeds(sequences: Sequences, speeds: Sequence[int]) -> Sequences:
    """Return cyclic sequences at other speeds.

    Args:
        sequences: cyclic sequences.
        speeds: steps per frame. The sequences take them in turn, row by row.

    >>> rows = torch.arange(10).reshape(2, 5)
    >>> at_speeds(Sequences(torch.zeros(10, 1, 2, 2), rows, cyclic=True), (-1, 2)).order
    tensor([[0, 4, 3, 2, 1],
            [5, 7, 9, 6, 8]])
    """
    speed = torch.tensor(speeds)[torch.arange(len(sequences.order)) % len(speeds)]
    frame = torch.arange(sequences.frames) * speed[:, None] % sequences.frames
    return replace(sequences, order=sequences.order.gather(1, frame))


def in_slice(letters: Sequences, arc: int) -> Tensor:
    """Return which images have orientations in a slice of the circle: booleans (images,).

    The slice is centred on upright letters. It contains ``arc`` frames of every sequence.

    Args:
        letters: sequences from `topocaps.data.letters`.
        arc: width of the slice, in frames of 24 degrees.
    """
    return (orientations(letters) + arc / 2) % FRAMES < arc


def without_others(letters: Sequences, kept: Tensor) -> Sequences:
    """Return sequences in which only the images that are ``kept`` (images,) are present.

    The pixels of the other images are 0, so nothing can be learned from them.
    """
    images = letters.images * kept.reshape(-1, 1, 1, 1)
    return replace(letters, images=images, present=kept)


def from_slice(letters: Sequences, inside: Tensor) -> Sequences:
    """Return whole sequences that start at their first frame in a slice of the circle.

    The slice is the one of training, so the visible frames of gains are drawn from it alone.

    Args:
        letters: sequences whose frames in the slice are contiguous.
        inside: which images are in the slice, (images,).
    """
    first = inside[letters.order] & ~inside[letters.order.roll(1, 1)]
    start = first.to(torch.uint8).argmax(1, keepdim=True)
    time = (start + torch.arange(letters.frames)) % letters.frames
    return replace(letters, order=letters.order.gather(1, time), cyclic=False, in_training=inside)
