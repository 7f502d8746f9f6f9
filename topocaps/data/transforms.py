"""Sequences of MNIST digits that rotate, change size or change hue."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from numbers import Real
from typing import Any, ClassVar

import torch
from torch import Tensor

from topocaps.data.geometry import in_perspective, turned, warp
from topocaps.data.scripted import ScriptedSet
from topocaps.data.sequences import Batch
from topocaps.errors import BadInput

STEPS = 18  #: levels of every factor, and frames of a sequence
ANGLES = torch.arange(STEPS) * (2 * math.pi / STEPS)
#: the scales of the papers' code
SCALES = torch.tensor(
    [.60, .64, .68, .72, .76, .79, .83, .87, .91,
     .95, .99, 1.03, 1.07, 1.11, 1.14, 1.18, 1.22, 1.26]
)  # fmt: skip
#: the angles of the perspective motion in the released code
DEGREES = tuple(181 if degrees == 180 else degrees for degrees in range(0, 360, 360 // STEPS))


@dataclass(frozen=True)
class Motion:
    """The factors of a sequence, of which hue is the last, and those that move together."""

    name: str
    factors: tuple[str, ...]
    together: tuple[tuple[int, ...], ...]  #: groups, of which a draw chooses one
    #: from height, width and centre, the places that pixels come from, for all levels but hue's
    views: Callable[[int, int, float | None], Tensor]
    has_centre: bool = True  #: whether the fixed point of the motion can be chosen
    speeds: tuple[int, ...] = (1,)  #: levels a frame; a draw chooses one for each factor


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
    """Return ``centre`` as a float or None, or raise an error that says why it is refused."""
    if centre is None:
        return None
    if not motion.has_centre:
        raise BadInput(f"the {motion.name} motion has a centre of its own: leave out centre")
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

    An image is warped to its pose (bilinear, black outside), then coloured with its hue, of which
    level 0 is red. A script is (…, time, 1 + factors): the image, and the level of every factor.
    ``centre`` is the index, row and column alike, of the pixel that rotation and scale leave fixed.
    None is the middle of the image; the released code has 14.
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
        image, *seen, hue = script.unbind(-1)
        grey = self.images[image][..., None, :, :].float() / 255
        grey = warp(grey, self.views[tuple(seen)])
        return Batch(grey * rgb(hue / STEPS)[..., None, None], script[..., 1:])


def rgb(hue: Tensor) -> Tensor:
    """Return the pure colour (…, 3) of a hue (…) in [0, 1)."""
    k = (hue[..., None] * 6 + torch.arange(5, 0, -2, device=hue.device)) % 6  # red, green, blue
    return 1 - torch.minimum(k, 4 - k).clamp(0, 1)
