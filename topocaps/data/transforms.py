"""Sequences of images that rotate, change size, shift or change hue."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from numbers import Real
from typing import Any, ClassVar

import torch
from torch import Tensor

from topocaps.data.geometry import in_perspective, turned, warp
from topocaps.data.scripted import ScriptedSet
from topocaps.data.sequences import Batch, bytes_to_unit
from topocaps.errors import BadInput, whole_number

STEPS = 18  #: levels of every factor, and frames of a sequence
ANGLES = torch.arange(STEPS) * (2 * math.pi / STEPS)
#: the scales of the papers' code
SCALES = torch.tensor(
    [.60, .64, .68, .72, .76, .79, .83, .87, .91,
     .95, .99, 1.03, 1.07, 1.11, 1.14, 1.18, 1.22, 1.26]
)  # fmt: skip
TRANSFORMATIONS = ("rotation", "scale", "shift_x", "shift_y", "hue")
REACH = 0.25  #: the largest shift of a picture, as a share of its side
#: the angles of the perspective motion, in degrees, as in the released code (181, not 180)
DEGREES = tuple(181 if degrees == 180 else degrees for degrees in range(0, 360, 360 // STEPS))


@dataclass(frozen=True)
class Motion:
    """The factors of a sequence, and how they move. The last factor is hue."""

    name: str
    factors: tuple[str, ...]
    together: tuple[tuple[int, ...], ...]  #: groups of factors that move; a draw chooses one
    #: from height, width and centre, the places that pixels take their values from, for every
    #: level of the factors other than hue
    views: Callable[[int, int, float | None], Tensor]
    has_centre: bool = True  #: whether the fixed point of the motion can be chosen
    speeds: tuple[int, ...] = (1,)  #: levels per frame; a draw chooses one for each factor


def _rotated_or_scaled(height: int, width: int, centre: float | None) -> Tensor:
    return turned(height, width, ANGLES[:, None], SCALES, centre)


def _rotated(height: int, width: int, centre: float | None) -> Tensor:
    return turned(height, width, ANGLES, torch.ones(()), centre)


def _in_perspective(height: int, width: int, centre: float | None) -> Tensor:
    return torch.stack([in_perspective(height, width, degrees) for degrees in DEGREES])


MOTIONS = {
    motion.name: motion
    for motion in (
        Motion("single", ("rotation", "scale", "hue"), ((0,), (1,), (2,)), _rotated_or_scaled),
        Motion("combined", ("rotation", "hue"), ((0, 1),), _rotated),
        Motion("perspective", ("perspective", "hue"), ((0, 1),), _in_perspective, has_centre=False),
    )
}


def check_centre(centre: Any, motion: Motion, height: int, width: int) -> float | None:
    """Return ``centre`` as a float or None, or raise `BadInput` if the motion cannot have it."""
    if centre is None:
        return None
    if not motion.has_centre:
        raise BadInput(f"the centre of the {motion.name} motion is fixed: leave out centre")
    last = min(height, width) - 1
    is_number = isinstance(centre, Real) and not isinstance(centre, bool)
    if not is_number or not 0 <= centre <= last:
        raise BadInput(
            f"centre must be the index of a pixel, a number from 0 to {last}, or None, not "
            f"{centre!r}"
        )
    return float(centre)


@dataclass(frozen=True, repr=False)
class TransformedImages(ScriptedSet):
    """Grey images that rotate, change size or change hue.

    An image is warped to its pose (bilinear, black outside), then coloured with its hue. Hue 0 is
    red. A script is (…, time, 1 + factors): the index of the image, and the level of every factor.

    Args:
        centre: row and column index of the pixel that rotation and scale leave fixed. None is the
            middle of the image; the released code has 14.
    """

    frames: ClassVar[int] = STEPS
    levels: ClassVar[int] = STEPS

    images: Tensor  # (images, height, width), bytes
    motion: Motion = MOTIONS["single"]
    scripts: Tensor | None = None
    views: Tensor = field(init=False)  # levels … height width 2, from the motion and the centre
    centre: float | None = None

    def __post_init__(self) -> None:
        height, width = self.images.shape[1:]
        centre = check_centre(self.centre, self.motion, height, width)
        object.__setattr__(self, "centre", centre)
        views = self.motion.views(height, width, centre)
        object.__setattr__(self, "views", views.to(self.images.device))

    @property
    def names(self) -> tuple[str, ...]:
        return self.motion.factors

    @property
    def frame_shape(self) -> tuple[int, ...]:
        return 3, *self.images.shape[1:]

    @property
    def groups(self) -> tuple[tuple[int, ...], ...]:
        return self.motion.together

    @property
    def speeds(self) -> tuple[int, ...]:
        return self.motion.speeds

    def show(self, script: Tensor) -> Batch:
        script = script.to(self.images.device)
        image, *pose, hue = script.unbind(-1)
        grey = self.images[image][..., None, :, :].float() / 255
        x = warp(grey, self.views[tuple(pose)])
        return Batch(_rotate_hue(x, hue / STEPS), script[..., 1:])


@dataclass(frozen=True, repr=False)
class MovingImages(ScriptedSet):
    """Pictures in a random pose. One factor of the pose changes with time.

    Every factor has as many levels as a sequence has frames. Rotation and hue make a full turn,
    scales go from 0.60 to 1.26 as in the papers, and shifts from -REACH to REACH of a side.
    Pictures are interpolated bilinearly, with black outside. Hue gives grey pictures a pure colour,
    and rotates the colours of others. A script is (…, time, 1 + factors): the index of the picture,
    and the level of every factor.
    """

    images: Tensor  # (images, channels, height, width), bytes or in [0, 1]
    names: tuple[str, ...] = ()
    frames: int = 1
    scripts: Tensor | None = None
    views: Tensor = field(init=False)  # rotation scale height width 2

    def __post_init__(self) -> None:
        angles = self.frames if "rotation" in self.names else 1
        angle = torch.arange(angles) * (2 * math.pi / self.frames)
        scale = torch.ones(1)
        if "scale" in self.names:
            scale = torch.linspace(SCALES[0].item(), SCALES[-1].item(), self.frames)
        height, width = self.images.shape[-2:]
        views = turned(height, width, angle[:, None], scale)
        object.__setattr__(self, "views", views.to(self.images.device))

    @property
    def frame_shape(self) -> tuple[int, ...]:
        channels = 3 if "hue" in self.names else self.images.shape[1]
        return channels, *self.images.shape[2:]

    @property
    def levels(self) -> int:
        return self.frames

    @property
    def groups(self) -> tuple[tuple[int, ...], ...]:
        return tuple((n,) for n in range(len(self.names)))

    def show(self, script: Tensor) -> Batch:
        script = script.to(self.images.device)
        x = bytes_to_unit(self.images[script[..., 0]])  # … time channels height width
        level = dict.fromkeys(TRANSFORMATIONS, torch.zeros_like(script[..., 0]))
        level |= dict(zip(self.names, script[..., 1:].unbind(-1), strict=True))
        shift = torch.stack([self._shift(n, level[n]) for n in ("shift_x", "shift_y")], -1)
        views = self.views[level["rotation"], level["scale"]]  # … time height width 2
        x = warp(x, views - 2 * shift[..., None, None, :])
        if "hue" in self.names:
            x = _rotate_hue(x, level["hue"] / self.frames)
        return Batch(x, script[..., 1:])

    def _shift(self, name: str, level: Tensor) -> Tensor:
        """Return the shift to the right, or down, as a share of the side."""
        reach = REACH if name in self.names else 0.0
        return level * (2 * reach / max(1, self.frames - 1)) - reach

    def of_images(self, images: Tensor) -> MovingImages:
        """Return sequences of these pictures."""
        return replace(self, images=self.images[images.to(self.images.device)])


def _rotate_hue(x: Tensor, hue: Tensor) -> Tensor:
    """Give grey frames a pure colour, and rotate the colours of others about the grey axis.

    Args:
        x: frames (…, channels, height, width).
        hue: share of a full turn, (…).
    """
    if x.shape[-3] == 1:
        return x * rgb(hue)[..., None, None]
    cos, sin = (2 * math.pi * hue).cos(), (2 * math.pi * hue).sin() / math.sqrt(3)
    same, third = (1 + 2 * cos) / 3, (1 - cos) / 3
    row = torch.stack([same, third - sin, third + sin], -1)  # of red
    turn = torch.stack([row.roll(n, -1) for n in range(3)], -2)
    return (turn @ x.flatten(-2)).unflatten(-1, x.shape[-2:]).clamp(0, 1)


def moving_images(images: Tensor, transformation: str | Sequence[str], frames: int) -> MovingImages:
    """Make sequences of single pictures.

    Args:
        images: pictures (images, channels, height, width): bytes, or values in [0, 1].
        transformation: one or several of ``TRANSFORMATIONS``. Each sequence changes by one of them.
        frames: number of frames of a sequence.
    """
    names = (transformation,) if isinstance(transformation, str) else tuple(transformation)
    if not names or len(set(names)) < len(names) or not set(names) <= set(TRANSFORMATIONS):
        known = ", ".join(TRANSFORMATIONS)
        raise BadInput(f"transformation must be one or several of {known}, not {transformation!r}")
    if images.ndim != 4 or images.shape[1] not in (1, 3):
        raise BadInput(
            "pictures must be (images, channels, height, width) with 1 or 3 channels, not "
            f"{tuple(images.shape)}"
        )
    if images.dtype != torch.uint8 and (images.amin() < 0 or images.amax() > 1):
        raise BadInput(
            "pictures must be in [0, 1], where 0 is black, not from "
            f"{images.amin().item():g} to {images.amax().item():g}: rescale them"
        )
    return MovingImages(images, names, whole_number("frames", frames))


def rgb(hue: Tensor) -> Tensor:
    """Return the pure colour (…, 3) of a hue (…) in [0, 1)."""
    k = (hue[..., None] * 6 + torch.arange(5, 0, -2, device=hue.device)) % 6  # red, green, blue
    return 1 - torch.minimum(k, 4 - k).clamp(0, 1)
