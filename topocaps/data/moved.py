"""Digits under affine maps, drawn anew each time they are seen; and affNIST from its own files."""

from __future__ import annotations

import importlib
import math
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import pad

from topocaps.data.geometry import adjugate, apply, determinant, pixels, rotation, warp
from topocaps.data.mnist_files import LECUN_1998, Digits
from topocaps.data.scripted import ScriptedSet
from topocaps.data.sequences import Batch
from topocaps.errors import BadInput, whole_number
from topocaps.references import cites

TIELEMAN_2013 = """\
@misc{tieleman2013affnist,
  title = {{affNIST}},
  author = {Tieleman, Tijmen},
  year = {2013},
  url = {https://www.cs.toronto.edu/~tijmen/affNIST/},
}"""

STEPS = 2**16  #: between the ends of what a digit may do; the middle is one of them
AFFNIST_SIDE = 40


class Moves(NamedTuple):
    """What digits may do, each uniformly between its ends. A tuple, so that a digest tells it."""

    degrees: float = 0.0  #: turned by as much at most, either way
    canvas: int = 28  #: side of the frame; digits are put in the middle of it
    shift: float | None = 0.0  #: in pixels, either way; None: to wherever all ink is on the canvas
    shear: float = 0.0  #: columns by which a row leans per row, either way
    scale: tuple[float, float] = (1.0, 1.0)  #: least and greatest, of each axis


UPRIGHT = Moves()


def rotated_up_to(degrees: float, canvas: int = 28) -> Moves:
    """Rotated MNIST (Table 1 of Smith et al.): any angle up to this, clockwise or counter-."""
    return Moves(degrees=degrees, canvas=canvas)


@cites(TIELEMAN_2013)
def affnist_style() -> Moves:
    """Much as affNIST's digits were moved, all inside 40 x 40; its own are read by ``affnist``."""
    return Moves(degrees=20.0, canvas=AFFNIST_SIDE, shift=None, shear=0.2, scale=(0.8, 1.2))


@dataclass(frozen=True, repr=False)
class MovedDigits(ScriptedSet):
    """Digits, each in a random pose: sequences of one frame (1, canvas, canvas).

    Digits are scaled, then sheared, turned and shifted, all about the middle; bilinear, black
    outside. A script is (…, 1, 7): the image, and of rotation, shear, both scales (x, y) and both
    shifts how many of ``STEPS`` it is from its lower end.
    """

    images: Tensor  # (images, height, width), bytes
    classes: Tensor  # (images,)
    moves: Moves = UPRIGHT
    scripts: Tensor | None = None

    def __post_init__(self) -> None:
        check_moves(self.moves)
        if self.images.ndim != 3 or self.images.dtype != torch.uint8:
            raise BadInput(
                "digits must be bytes (images, height, width), not "
                f"{self.images.dtype} {tuple(self.images.shape)}"
            )
        if self.classes.shape != self.images.shape[:1]:
            raise BadInput(f"{len(self.images)} digits have classes {tuple(self.classes.shape)}")

    @property
    def names(self) -> tuple[str, ...]:
        return ("class",)

    @property
    def frames(self) -> int:
        return 1

    @property
    def frame_shape(self) -> tuple[int, ...]:
        return 1, self.moves.canvas, self.moves.canvas

    @property
    def levels(self) -> int:
        return STEPS + 1

    @property
    def pose_size(self) -> int:
        return 6

    def show(self, script: Tensor) -> Batch:
        script = script.to(self.images.device)
        image = script[..., 0]
        digits = self.images[image].float() / 255
        angle, shear, x_scale, y_scale, *shares = (script[..., 1:].float() / STEPS).unbind(-1)
        moves = self.moves
        linear = linear_map(
            _between(-math.radians(moves.degrees), math.radians(moves.degrees), angle),
            _between(-moves.shear, moves.shear, shear),
            torch.stack([_between(*moves.scale, x_scale), _between(*moves.scale, y_scale)], -1),
        )
        share = torch.stack(shares, -1)
        if moves.shift is None:
            shift = _between(*room(digits, linear, moves.canvas), share)
        else:
            shift = _between(-moves.shift, moves.shift, share)
        x = placed(digits, linear, shift, moves.canvas)
        return Batch(x[..., None, :, :], self.classes[image].long()[..., None])


def linear_map(angle: Tensor, shear: Tensor, scale: Tensor) -> Tensor:
    """Scaled (…, 2), then sheared along x, then turned counter-clockwise as seen: (…, 2, 2).

    Maps take x before y, and y points down.
    """
    x, y = rotation(angle).unbind(-1)  # where the axes go, (…, 2)
    sheared = x * shear[..., None] + y
    return torch.stack([x * scale[..., :1], sheared * scale[..., 1:]], -1)


def placed(images: Tensor, linear: Tensor, shift: Tensor, canvas: int) -> Tensor:
    """Images (…, height, width) mapped about their middle, then shifted: (…, canvas, canvas).

    Where all pixels move alike and by whole numbers, they keep their values to the bit.
    """
    height, width = images.shape[-2:]
    points = pixels(canvas, canvas, device=images.device) - shift[..., None, None, :]
    area = determinant(linear)[..., None, None]
    x, y = (apply(adjugate(linear), points) / area[..., None]).unbind(-1)
    # in a square of a power of two, the halves that places count in are exact
    side = 2 ** math.ceil(math.log2(max(height, width)))
    square = pad(images, (0, side - width, 0, side - height))
    places = torch.stack([x + width / 2, y + height / 2], -1) * (2 / side) - 1
    return warp(square[..., None, :, :], places)[..., 0, :, :]


def room(images: Tensor, linear: Tensor, canvas: int) -> tuple[Tensor, Tensor]:
    """The least and the greatest shift (…, 2) that leave all ink of mapped images on the canvas.

    Ink is taken to surround the middle of its image, as that of digits does.
    """
    height, width = images.shape[-2:]
    mapped = apply(linear, pixels(height, width, device=images.device))
    reach = linear.abs().sum(-1)  # of a pixel around its centre, bilinear: (…, 2)
    edge = canvas / 2 + 0.5  # the first pixel that is not on it
    ink = (images > 0)[..., None] * mapped
    return reach - edge - ink.amin((-3, -2)), edge - reach - ink.amax((-3, -2))


def _between(low: float | Tensor, high: float | Tensor, share: Tensor) -> Tensor:
    return low + (high - low) * share


def check_moves(moves: Moves) -> None:
    whole_number("canvas", moves.canvas)
    low, high = moves.scale
    if not 0 < low <= high:
        raise BadInput(f"scale must be the least and the greatest, above 0, not {moves.scale!r}")
    for name in ("degrees", "shear", "shift"):
        value = getattr(moves, name)
        if value is not None and not 0 <= value < math.inf:
            raise BadInput(f"{name} must be how far digits may go, 0 or more, not {value!r}")


# affNIST's files ----------------------------------------------------------------------------------


@cites(TIELEMAN_2013, LECUN_1998)
def affnist(*paths: str | Path) -> Digits:
    """Transformed digits (images, 40, 40) of affNIST (Tieleman), as published: files of Matlab's.

    A folder is read as all its .mat in order (``transformed/test_batches``: 1.mat to 32.mat).
    """
    files = [file for path in paths for file in _matlab_files(Path(path))]
    parts = [_read_mat(file) for file in files]
    images, classes = [part.images for part in parts], [part.classes for part in parts]
    return Digits(torch.cat(images), torch.cat(classes), citations=(TIELEMAN_2013, LECUN_1998))


def affnist_files(folder: Path) -> list[Path]:
    """affNIST's transformed test digits in a folder of data, by the names of its files.

    There, in folders that are called affNIST (in any case, with more in the name) and in a
    ``transformed`` of each: the batches of ``test_batches``; or ``test.mat``, which is all of them;
    or what is called affNIST, and the numbered .mat of folders that are. What names training,
    validation or just centred digits is not read: models were trained on these, or nothing moves.
    """
    named = [path for path in sorted(folder.glob("*")) if path.is_dir() and _is_affnist(path)]
    for home in (folder, *named):
        for place in (home, home / "transformed"):
            files = sorted(place.glob("*.mat"), key=_in_order)
            batches = sorted((place / "test_batches").glob("*.mat"), key=_in_order)
            whole = [file for file in files if file.name == "test.mat"]
            numbered = [file for file in files if home != folder and file.stem.isdigit()]
            if found := batches or whole or list(filter(_is_affnist, files)) or numbered:
                return found
    return []


def _is_affnist(path: Path) -> bool:
    name = path.name.lower()
    return "affnist" in name and not any(part in name for part in ("train", "valid", "centered"))


def _in_order(file: Path) -> tuple[int, str]:
    return len(file.name), file.name


def _matlab_files(path: Path) -> list[Path]:
    files = [path] if path.is_file() else sorted(path.glob("*.mat"), key=_in_order)
    if not files:
        raise BadInput(f"there is no affNIST at {path}: give one of its .mat files, or a folder")
    return files


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
    except Exception as error:  # scipy's reader raises whatever it stumbles over
        raise BadInput(f"{path} cannot be read as affNIST's: {error}") from error
    return Digits(
        torch.from_numpy(np.ascontiguousarray(images)), torch.from_numpy(classes.astype(np.uint8))
    )
