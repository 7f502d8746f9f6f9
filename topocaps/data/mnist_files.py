"""The files of MNIST, and the sequences that the papers make of its digits."""

from __future__ import annotations

import gzip
import hashlib
import math
import os
import struct
import zlib
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from topocaps.data.download import NotDownloaded, download
from topocaps.data.transforms import TransformedImages
from topocaps.errors import BadInput
from topocaps.io import cache_folder
from topocaps.references import cites

LECUN_1998 = """\
@article{lecun1998gradient,
  title = {Gradient-Based Learning Applied to Document Recognition},
  author = {LeCun, Yann and Bottou, L{\\'e}on and Bengio, Yoshua and Haffner, Patrick},
  journal = {Proceedings of the IEEE},
  volume = {86},
  number = {11},
  pages = {2278--2324},
  year = {1998},
}"""

SIDE = 28  # pixels
VALIDATION = 12_000  # the last of the 60,000 training images
MIRRORS = (
    "https://ossci-datasets.s3.amazonaws.com/mnist/",
    "https://storage.googleapis.com/cvdf-datasets/mnist/",
)
MNIST, ALIKE = "MNIST", "files laid out as MNIST's, which are not MNIST"
_FILES = {"train": 60_000, "t10k": 10_000}
_AXES = {"images-idx3-ubyte": 3, "labels-idx1-ubyte": 1}
#: first digits of the SHA-256 of the unpacked files
_SUMS = {
    "train-images-idx3-ubyte": "ba891046e6505d7a",
    "train-labels-idx1-ubyte": "65a50cbbf4e906d7",
    "t10k-images-idx3-ubyte": "0fa7898d509279e4",
    "t10k-labels-idx1-ubyte": "ff7bcfd416de3373",
}


@dataclass(frozen=True)
class Digits:
    """Images (images, 28, 28) as bytes, and their classes."""

    images: Tensor
    classes: Tensor
    source: str = MNIST  #: the name of the images in tables
    citations: tuple[str, ...] = (LECUN_1998,)  #: BibTeX entries

    def some(self, rows: Tensor | slice) -> Digits:
        """Return the images of these rows: booleans, indices or a slice."""
        return replace(self, images=self.images[rows], classes=self.classes[rows])


def data_folder(folder: str | Path | None) -> Path:
    """Return the folder of MNIST's files: ``folder``, $TOPOCAPS_DATA or the cache.

    If neither of the first two is given, missing files are downloaded to the cache.
    """
    if given := folder or os.environ.get("TOPOCAPS_DATA"):
        return Path(given)
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
    """Remove a downloaded file and raise `BadInput` if it is not a file of MNIST."""
    try:
        published = _is_published(plain, _unpacked(path))
    except BadInput:
        published = False
    if not published:
        path.unlink()
        raise BadInput(
            f"{path.name} as downloaded is not MNIST's (its SHA-256 is wrong): try again"
        )


@cites(LECUN_1998)
def digits(folder: str | Path | None = None) -> tuple[Digits, Digits]:
    """Return the 60,000 training and 10,000 test images of MNIST.

    Args:
        folder: folder of the files, as in `data_folder`.
    """
    data = data_folder(folder)
    if not data.is_dir():
        raise BadInput(f"there is no folder {data}: give the folder of MNIST's files")
    names = [f"{split}-{part}" for split in _FILES for part in _AXES]
    files = {name: path for name in names if (path := _find(data, name)) is not None}
    if missing := [name for name in names if name not in files]:
        raise BadInput(f"there is no {', no '.join(missing)} (or .gz) in {data}: put it there")
    contents = {name: _unpacked(path) for name, path in files.items()}
    genuine = all(_is_published(name, content) for name, content in contents.items())
    source = (MNIST, (LECUN_1998,)) if genuine else (ALIKE, ())
    splits = []
    for split, count in _FILES.items():
        images, classes = (
            _tensor(files[f"{split}-{part}"], contents[f"{split}-{part}"], axes)
            for part, axes in _AXES.items()
        )
        if images.shape != (count, SIDE, SIDE) or classes.shape != (count,) or classes.max() > 9:
            raise BadInput(
                f"{data} is not MNIST: {split} should have {count} images of 28 x 28 and as many "
                "labels, 0 to 9"
            )
        splits.append(Digits(images, classes, *source))
    return splits[0], splits[1]


@cites(LECUN_1998)
def digit_splits(folder: str | Path | None = None) -> tuple[Digits, Digits, Digits]:
    """Return 48,000 training, 12,000 validation and 10,000 test images.

    Args:
        folder: folder of the files, as in `data_folder`.
    """
    train, test = digits(folder)
    cut = len(train.images) - VALIDATION
    return train.some(slice(cut)), train.some(slice(cut, None)), test


@cites(LECUN_1998)
def mnist(
    folder: str | Path | None = None,
) -> tuple[TransformedImages, TransformedImages, TransformedImages]:
    """Return sequences of 48,000 training, 12,000 validation and 10,000 test images.

    Args:
        folder: folder of the files, as in `data_folder`.
    """
    train, validation, test = (
        TransformedImages(part.images, citations=part.citations) for part in digit_splits(folder)
    )
    return train, validation, test


def _find(folder: Path, name: str) -> Path | None:
    return next((path for end in ("", ".gz") if (path := folder / f"{name}{end}").is_file()), None)


def _unpacked(path: Path) -> bytes:
    try:
        return gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
    except (OSError, EOFError, zlib.error) as error:
        raise BadInput(f"{path} cannot be read ({error}): download it anew") from error


def _is_published(plain: str, content: bytes) -> bool:
    return hashlib.sha256(content).hexdigest().startswith(_SUMS[plain])


def _tensor(path: Path, data: bytes, axes: int) -> Tensor:
    """Decode an idx file: a magic number, the sizes of the axes, and the values as bytes."""
    try:
        magic, *sizes = struct.unpack_from(f">{axes + 1}I", data)
        if magic != 0x0800 + axes or len(data) != 4 * (axes + 1) + math.prod(sizes):
            raise ValueError("it is no idx file of bytes, or cut short")
    except (ValueError, struct.error) as error:
        raise BadInput(f"{path} cannot be read ({error}): download it anew") from error
    return torch.tensor(np.frombuffer(data, np.uint8, offset=4 * (axes + 1)).reshape(sizes))
