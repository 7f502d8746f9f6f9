"""affNIST: MNIST digits under affine maps, from the files that were published."""

from __future__ import annotations

import importlib
from pathlib import Path

import numpy as np
import torch

from topocaps.data.mnist_files import LECUN_1998, Digits
from topocaps.errors import BadInput
from topocaps.references import cites

TIELEMAN_2013 = """\
@misc{tieleman2013affnist,
  title = {{affNIST}},
  author = {Tieleman, Tijmen},
  year = {2013},
  url = {https://www.cs.toronto.edu/~tijmen/affNIST/},
}"""

AFFNIST_SIDE = 40


@cites(TIELEMAN_2013, LECUN_1998)
def affnist(*paths: str | Path) -> Digits:
    """Read digits (images, 40, 40) from Matlab files of affNIST (Tieleman).

    Of a folder, such as ``transformed/test_batches``, all .mat files are read in numerical order.
    """
    parts: list[Digits] = []
    for path in map(Path, paths):
        files = [path] if path.is_file() else _matlab_files(path)
        if not files:
            raise BadInput(
                f"there is no affNIST at {path}: give one of its .mat files, or a folder"
            )
        parts += map(_read_mat, files)
    images, classes = [part.images for part in parts], [part.classes for part in parts]
    return Digits(torch.cat(images), torch.cat(classes), citations=(TIELEMAN_2013, LECUN_1998))


def affnist_files(folder: Path) -> list[Path]:
    """Find the files of affNIST's transformed test digits in a folder of data.

    The folder, its subfolders with "affnist" in their names, and a ``transformed`` in each of them
    are searched for the batches in ``test_batches``, then ``test.mat``, then files with "affnist"
    in their names, then, in subfolders, numbered files. Names with "train", "valid" or "centered"
    are ignored: they hold digits of the training set, or digits that do not move.
    """
    named = [path for path in sorted(folder.glob("*")) if path.is_dir() and _is_affnist(path)]
    for home in (folder, *named):
        for place in (home, home / "transformed"):
            files, batches = _matlab_files(place), _matlab_files(place / "test_batches")
            whole = [file for file in files if file.name == "test.mat"]
            numbered = [file for file in files if home != folder and file.stem.isdigit()]
            if found := batches or whole or list(filter(_is_affnist, files)) or numbered:
                return found
    return []


def _is_affnist(path: Path) -> bool:
    name = path.name.lower()
    return "affnist" in name and not any(part in name for part in ("train", "valid", "centered"))


def _matlab_files(folder: Path) -> list[Path]:
    """Return the files of a folder in numerical order: shorter names stand first."""
    return sorted(folder.glob("*.mat"), key=lambda file: (len(file.name), file.name))


def _read_mat(path: Path) -> Digits:
    try:
        matlab = importlib.import_module("scipy.io")
    except ImportError as error:
        raise BadInput("affNIST's files are Matlab's, which scipy reads: install scipy") from error
    try:
        found = matlab.loadmat(path, simplify_cells=True).get("affNISTdata")
        if not isinstance(found, dict) or not {"image", "label_int"} <= found.keys():
            raise ValueError("it has no affNISTdata with image and label_int")
        pixels = np.asarray(found["image"])
        classes = np.atleast_1d(np.asarray(found["label_int"]))
        if pixels.dtype != np.uint8 or len(pixels) != AFFNIST_SIDE**2:
            raise ValueError(f"its images are {pixels.dtype} {pixels.shape}, not bytes (1600, n)")
        images = pixels.reshape(AFFNIST_SIDE**2, -1).T.reshape(-1, AFFNIST_SIDE, AFFNIST_SIDE)
        if classes.shape != (len(images),):
            raise ValueError(f"{len(images)} images have labels {classes.shape}")
        if not np.isin(classes, range(10)).all():
            raise ValueError("its labels are not all digits from 0 to 9")
    except Exception as error:  # scipy raises errors of many types
        raise BadInput(f"{path} cannot be read as affNIST's: {error}") from error
    return Digits(
        torch.from_numpy(np.ascontiguousarray(images)), torch.from_numpy(classes.astype(np.uint8))
    )
