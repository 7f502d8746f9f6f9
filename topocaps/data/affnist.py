"""affNIST: MNIST digits under affine maps, read from the published files."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch

from topocaps.data.mnist_files import LECUN_1998, Digits
from topocaps.errors import BadInput, optional
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
    """Read digits (images, 40, 40) from the Matlab files of affNIST (Tieleman).

    Args:
        paths: .mat files, or folders such as ``transformed/test_batches``, whose .mat files are
            read in numerical order.
    """
    parts: list[Digits] = []
    for path in map(Path, paths):
        files = [path] if path.is_file() else _matlab_files(path)
        if not files:
            raise BadInput(
                f"there is no affNIST at {path}: give a .mat file, or a folder of .mat files"
            )
        parts += map(_read_mat, files)
    images, classes = [part.images for part in parts], [part.classes for part in parts]
    return Digits(torch.cat(images), torch.cat(classes), citations=(TIELEMAN_2013, LECUN_1998))


def affnist_files(folder: Path) -> list[Path]:
    """Return the files of affNIST's transformed test digits in a folder of data, or an empty list.

    The search covers the folder, its subfolders with "affnist" in their names, and a folder
    ``transformed`` inside each of these. It stops at the first place that has the batches in
    ``test_batches``, the file ``test.mat``, files with "affnist" in their names or, in subfolders,
    numbered files, in this order. Names with "train", "valid" or "centered" do not count as
    affNIST: they hold digits of the training set, or digits that do not move.
    """
    named = [path for path in sorted(folder.glob("*")) if path.is_dir() and _is_affnist(path)]
    for home in (folder, *named):
        for place in (home, home / "transformed"):
            files, batches = _matlab_files(place), _matlab_files(place / "test_batches")
            whole = [file for file in files if file.name == "test.mat"]
            numbered = [file for file in files if home != folder and file.stem.isdigit()]
            if chosen := batches or whole or list(filter(_is_affnist, files)) or numbered:
                return chosen
    return []


def _is_affnist(path: Path) -> bool:
    name = path.name.lower()
    return "affnist" in name and not any(part in name for part in ("train", "valid", "centered"))


def _matlab_files(folder: Path) -> list[Path]:
    """Return the .mat files of a folder in numerical order: shorter names come first."""
    return sorted(folder.glob("*.mat"), key=lambda file: (len(file.name), file.name))


def _read_mat(path: Path) -> Digits:
    matlab = optional("scipy.io", "the Matlab files of affNIST need the package scipy", "scipy")
    try:
        data = matlab.loadmat(path, simplify_cells=True).get("affNISTdata")
        if not isinstance(data, dict) or not {"image", "label_int"} <= data.keys():
            raise ValueError("it has no affNISTdata with image and label_int")
        pixels = np.asarray(data["image"])
        classes = np.atleast_1d(np.asarray(data["label_int"]))
        if pixels.dtype != np.uint8 or len(pixels) != AFFNIST_SIDE**2:
            raise ValueError(f"its images are {pixels.dtype} {pixels.shape}, not bytes (1600, n)")
        images = pixels.reshape(AFFNIST_SIDE**2, -1).T.reshape(-1, AFFNIST_SIDE, AFFNIST_SIDE)
        if classes.shape != (len(images),):
            raise ValueError(f"{len(images)} images have labels {classes.shape}")
        if not np.isin(classes, range(10)).all():
            raise ValueError("its labels are not all digits from 0 to 9")
    except Exception as error:  # scipy raises errors of many types
        raise BadInput(
            f"{path} cannot be read as a file of affNIST ({error}): give one of the published files"
        ) from error
    return Digits(
        torch.from_numpy(np.ascontiguousarray(images)), torch.from_numpy(classes.astype(np.uint8))
    )
