"""MNIST from its own files, and the sequences the papers make of it."""

from __future__ import annotations

import gzip
import math
import os
import struct
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from topocaps.data.transforms import TransformedImages
from topocaps.errors import BadInput

VALIDATION = (
    12_000  # of the 60,000 training images: the last, as in the released code's 80/20 split
)
_FILES = {"train": 60_000, "t10k": 10_000}


@dataclass(frozen=True)
class Digits:
    """Images (images, 28, 28) as bytes and their classes."""

    images: Tensor
    classes: Tensor


def data_folder(folder: str | Path | None) -> Path:
    """The folder that was given, or $TOPOCAPS_DATA."""
    found = folder or os.environ.get("TOPOCAPS_DATA")
    if not found:
        raise BadInput(
            "MNIST is needed: give the folder of its files with --data, or in $TOPOCAPS_DATA "
            f"({', '.join(_names(which, what)[0] for which in _FILES for what in _KINDS)}, "
            "as .gz or unpacked)"
        )
    return Path(found)


def digits(folder: str | Path | None = None) -> tuple[Digits, Digits]:
    """(training, test) images as they are published: 60,000 and 10,000."""
    where = data_folder(folder)
    read = {which: Digits(_read(where, which, "images"), _read(where, which, "labels"))
            for which in _FILES}  # fmt: skip
    for which, count in _FILES.items():
        if not len(read[which].images) == len(read[which].classes) == count:
            raise BadInput(f"{where} is not MNIST: {which} should have {count} images and labels")
    return read["train"], read["t10k"]


def mnist(
    folder: str | Path | None = None,
) -> tuple[TransformedImages, TransformedImages, TransformedImages]:
    """(training, validation, test) sequences: 48,000, 12,000 and 10,000 images."""
    train, test = digits(folder)
    split = len(train.images) - VALIDATION
    parts = train.images[:split], train.images[split:], test.images
    return tuple(map(TransformedImages, parts))  # type: ignore[return-value]


_KINDS = {"images": 3, "labels": 1}  # axes


def _names(which: str, what: str) -> tuple[str, str]:
    plain = f"{which}-{what}-idx{_KINDS[what]}-ubyte"
    return plain, f"{plain}.gz"


def _read(folder: Path, which: str, what: str) -> Tensor:
    """One idx file: a magic number, the sizes of the axes, bytes."""
    found = [path for name in _names(which, what) if (path := folder / name).is_file()]
    if not found:
        raise BadInput(f"there is no {_names(which, what)[0]} (or .gz) in {folder}")
    path = found[0]
    try:
        data = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
        axes = _KINDS[what]
        magic, *sizes = struct.unpack_from(f">{axes + 1}I", data)
        if magic != 0x0800 + axes or len(data) != 4 * (axes + 1) + math.prod(sizes):
            raise ValueError("not an idx file of bytes, or cut short")
    except (OSError, EOFError, ValueError, struct.error) as error:
        raise BadInput(f"{path} cannot be read: {error}") from error
    return torch.from_numpy(
        np.frombuffer(data, np.uint8, offset=4 * (axes + 1)).reshape(sizes).copy()
    )
