"""MNIST from its own files, and the sequences the papers make of it."""

from __future__ import annotations

import gzip
import hashlib
import math
import os
import struct
import zlib
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from topocaps.data.download import NotDownloaded, download
from topocaps.data.transforms import TransformedImages
from topocaps.errors import BadInput
from topocaps.files import cache_folder

VALIDATION = 12_000  # of the 60,000 training images, the last
MIRRORS = (
    "https://ossci-datasets.s3.amazonaws.com/mnist/",
    "https://storage.googleapis.com/cvdf-datasets/mnist/",
)
_FILES = {"train": 60_000, "t10k": 10_000}
_KINDS = {"images": 3, "labels": 1}  # axes
#: how the SHA-256 of the unpacked files begin
_SUMS = {
    "train-images-idx3-ubyte": "ba891046e6505d7a",
    "train-labels-idx1-ubyte": "65a50cbbf4e906d7",
    "t10k-images-idx3-ubyte": "0fa7898d509279e4",
    "t10k-labels-idx1-ubyte": "ff7bcfd416de3373",
}


@dataclass(frozen=True)
class Digits:
    """Images (images, 28, 28) as bytes and their classes."""

    images: Tensor
    classes: Tensor


def data_folder(folder: str | Path | None) -> Path:
    """The folder that was given, or $TOPOCAPS_DATA, or the cache, filled from the network."""
    if found := folder or os.environ.get("TOPOCAPS_DATA"):
        return Path(found)
    cached = cache_folder() / "mnist"
    try:
        for plain in _SUMS:
            if not (cached / f"{plain}.gz").exists():
                _check(download(MIRRORS, f"{plain}.gz", cached), plain)
    except NotDownloaded as error:
        raise BadInput(
            "MNIST is needed and cannot be downloaded: give the folder of its files with --data, "
            f"or in $TOPOCAPS_DATA ({', '.join(_SUMS)}, as .gz or unpacked). {error}"
        ) from error
    return cached


def _check(path: Path, plain: str) -> None:
    """Keep a download only if it is what it should be."""
    try:
        found = hashlib.sha256(gzip.decompress(path.read_bytes())).hexdigest()
    except (OSError, EOFError, zlib.error) as error:
        found = str(error)
    if not found.startswith(_SUMS[plain]):
        path.unlink()
        raise BadInput(f"{path.name} as downloaded is not MNIST's (its sum is wrong): try again")


def digits(folder: str | Path | None = None) -> tuple[Digits, Digits]:
    """(training, test) images as they are published: 60,000 and 10,000."""
    where = data_folder(folder)
    read = {which: Digits(_read(where, which, "images"), _read(where, which, "labels"))
            for which in _FILES}  # fmt: skip
    for which, count in _FILES.items():
        if not len(read[which].images) == len(read[which].classes) == count:
            raise BadInput(f"{where} is not MNIST: {which} should have {count} images and labels")
    return read["train"], read["t10k"]


def digit_splits(folder: str | Path | None = None) -> tuple[Digits, Digits, Digits]:
    """(training, validation, test) images: 48,000, 12,000 and 10,000."""
    train, test = digits(folder)
    at = len(train.images) - VALIDATION
    first, second = (
        Digits(train.images[some], train.classes[some]) for some in (slice(at), slice(at, None))
    )
    return first, second, test


def mnist(
    folder: str | Path | None = None,
) -> tuple[TransformedImages, TransformedImages, TransformedImages]:
    """(training, validation, test) sequences: 48,000, 12,000 and 10,000 images."""
    parts = digit_splits(folder)
    return tuple(TransformedImages(part.images) for part in parts)  # type: ignore[return-value]


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
    except (OSError, EOFError, ValueError, struct.error, zlib.error) as error:
        raise BadInput(f"{path} cannot be read: {error}") from error
    return torch.from_numpy(
        np.frombuffer(data, np.uint8, offset=4 * (axes + 1)).reshape(sizes).copy()
    )
