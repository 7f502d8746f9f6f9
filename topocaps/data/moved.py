"""Digits under random affine maps."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import pad

from topocaps.data.affnist import AFFNIST_SIDE, TIELEMAN_2013
from topocaps.data.geometry import adjugate, apply, determinant, pixels, rotation, warp
from topocaps.data.scripted import ScriptedSet
from topocaps.data.sequences import Batch
from topocaps.errors import BadInput, non_negative, whole_number
from topocaps.references import cites

STEPS = 2**16  #: steps from the lower to the upper end of each range; even, for its middle


class Moves(NamedTuple):
    """The ranges of uniform random affine maps. It is a tuple so that digests contain it."""

    degrees: float = 0.0  #: the largest rotation, in either direction
    canvas: int = 28  #: the side of the square frame, in which digits are centred
    shift: float | None = 0.0  #: the largest in pixels; None is any that keeps all ink in the frame
    shear: float = 0.0  #: the largest, in columns per row
    scale: tuple[float, float] = (1.0, 1.0)  #: the smallest and the largest, for each axis


UPRIGHT = Moves()


def rotated_up_to(degrees: float, canvas: int = 28) -> Moves:
    """Return the ranges of rotated MNIST (Table 1 of Smith et al.).

    Args:
        degrees: the largest rotation, in either direction.
        canvas: the side of the frame.
    """
    return Moves(degrees=degrees, canvas=canvas)


@cites(TIELEMAN_2013)
def affnist_style() -> Moves:
    """Return ranges similar to those of affNIST. Its published images are read by `affnist`."""
    return Moves(degrees=20.0, canvas=AFFNIST_SIDE, shift=None, shear=0.2, scale=(0.8, 1.2))


@dataclass(frozen=True, repr=False)
class MovedDigits(ScriptedSet):
    """Digits in random poses: sequences of one frame (1, canvas, canvas).

    Digits are scaled, sheared and rotated about the middle and then shifted. They are interpolated
    bilinearly, with black outside. A script is (…, 1, 7): the index of the image, then rotation,
    shear, x scale, y scale, x shift and y shift, each in units of 1 / ``STEPS`` of its range.
    """

    names: ClassVar[tuple[str, ...]] = ("class",)
    frames: ClassVar[int] = 1
    levels: ClassVar[int] = STEPS + 1
    pose_size: ClassVar[int] = 6

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
    def frame_shape(self) -> tuple[int, ...]:
        return 1, self.moves.canvas, self.moves.canvas

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
    """Return maps (…, 2, 2) of points (x, y), where y points down.

    They scale, then shear along x, then rotate counter-clockwise.

    Args:
        angle: angles in radians, (…).
        shear: columns per row, (…).
        scale: scales of x and y, (…, 2).
    """
    x, y = rotation(angle).unbind(-1)  # the images of the axes, (…, 2)
    sheared = x * shear[..., None] + y
    return torch.stack([x * scale[..., :1], sheared * scale[..., 1:]], -1)


def placed(images: Tensor, linear: Tensor, shift: Tensor, canvas: int) -> Tensor:
    """Map images about their middle, then shift them: (…, canvas, canvas).

    Shifts by whole pixels, without a linear map, keep all values exactly.

    Args:
        images: images (…, height, width).
        linear: maps (…, 2, 2).
        shift: shifts along x and y in pixels, (…, 2).
        canvas: the side of the result.
    """
    height, width = images.shape[-2:]
    points = pixels(canvas, canvas, device=images.device) - shift[..., None, None, :]
    area = determinant(linear)[..., None, None]
    x, y = (apply(adjugate(linear), points) / area[..., None]).unbind(-1)
    # places are exact fractions if the side is a power of two
    side = 2 ** math.ceil(math.log2(max(height, width)))
    square = pad(images, (0, side - width, 0, side - height))
    places = torch.stack([x + width / 2, y + height / 2], -1) * (2 / side) - 1
    return warp(square[..., None, :, :], places)[..., 0, :, :]


def room(images: Tensor, linear: Tensor, canvas: int) -> tuple[Tensor, Tensor]:
    """Return the smallest and largest shift (…, 2) that leave all ink of an image on the canvas.

    The ink is assumed to surround the middle of the image.
    """
    height, width = images.shape[-2:]
    mapped = apply(linear, pixels(height, width, device=images.device))
    reach = linear.abs().sum(-1)  # distance that a pixel's ink reaches from its centre, (…, 2)
    edge = canvas / 2 + 0.5  # the first pixel outside
    ink = (images > 0)[..., None] * mapped
    return reach - edge - ink.amin((-3, -2)), edge - reach - ink.amax((-3, -2))


def _between(low: float | Tensor, high: float | Tensor, share: Tensor) -> Tensor:
    return low + (high - low) * share


def check_moves(moves: Moves) -> None:
    """Raise `BadInput` if a range is negative or infinite, or a scale is 0."""
    whole_number("canvas", moves.canvas)
    low, high = moves.scale
    if not 0 < low <= high:
        raise BadInput(
            f"scale must be the smallest and the largest scale, both above 0, not {moves.scale!r}"
        )
    for name in ("degrees", "shear", "shift"):
        value = getattr(moves, name)
        if value is not None:
            non_negative(name, value)
