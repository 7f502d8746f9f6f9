"""Sequences made from single pictures that rotate, change size, shift or change hue."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from topocaps.data.geometry import turned, warp
from topocaps.data.scripted import ScriptedSet
from topocaps.data.sequences import Batch, bytes_to_unit
from topocaps.data.transforms import SCALES, rgb
from topocaps.errors import BadInput, whole_number

TRANSFORMATIONS = ("rotation", "scale", "shift_x", "shift_y", "hue")
REACH = 0.25  #: the largest shift, as a share of the side


@dataclass(frozen=True, repr=False)
class MovingImages(ScriptedSet):
    """Pictures in a random pose, of which one factor changes with time.

    Every factor has as many levels as a sequence has frames. Rotation and hue turn once, scales go
    from 0.60 to 1.26 as in the papers, shifts go from -REACH to REACH of a side. Pictures are
    interpolated bilinearly, with black outside. Hue gives grey pictures a pure colour, and rotates
    the colours of others. A script is (…, time, 1 + factors): the picture, and the level of every
    factor.
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
        if name not in self.names:
            return level.float()
        return level * (2 * REACH / max(1, self.frames - 1)) - REACH

    def of_images(self, images: Tensor) -> MovingImages:
        """Return sequences of these pictures."""
        return replace(self, images=self.images[images.to(self.images.device)])


def _rotate_hue(x: Tensor, hue: Tensor) -> Tensor:
    """Give grey frames a pure colour; rotate the colours of others about the grey axis."""
    if x.shape[-3] == 1:
        return x * rgb(hue)[..., None, None]
    cos, sin = (2 * math.pi * hue).cos(), (2 * math.pi * hue).sin() / math.sqrt(3)
    same, third = (1 + 2 * cos) / 3, (1 - cos) / 3
    row = torch.stack([same, third - sin, third + sin], -1)  # of red
    turn = torch.stack([row.roll(n, -1) for n in range(3)], -2)
    return (turn @ x.flatten(-2)).unflatten(-1, x.shape[-2:]).clamp(0, 1)


def moving_images(images: Tensor, transformation: str | Sequence[str], frames: int) -> MovingImages:
    """Make sequences of pictures (images, channels, height, width)."""
    names = (transformation,) if isinstance(transformation, str) else tuple(transformation)
    if not names or len(set(names)) < len(names) or not set(names) <= set(TRANSFORMATIONS):
        known = ", ".join(TRANSFORMATIONS)
        raise BadInput(f"a transformation is one or some of {known}, not {transformation!r}")
    if images.ndim != 4 or images.shape[1] not in (1, 3):
        raise BadInput(
            "pictures that move must be (images, channels, height, width), grey or in colour, not "
            f"{tuple(images.shape)}"
        )
    if images.dtype != torch.uint8 and (images.amin() < 0 or images.amax() > 1):
        raise BadInput("pictures that move must lie in [0, 1], as black is 0")
    return MovingImages(images, names, whole_number("frames", frames))
