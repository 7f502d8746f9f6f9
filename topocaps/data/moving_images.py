"""Single pictures that are made into sequences: turned, scaled, shifted, coloured."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from topocaps.data.geometry import turned, warp
from topocaps.data.scripted import ScriptedSet
from topocaps.data.sequences import Batch
from topocaps.data.transforms import SCALES, rgb
from topocaps.errors import BadInput, whole_number

TRANSFORMATIONS = ("rotation", "scale", "shift_x", "shift_y", "hue")
REACH = 0.25  #: of a side, by which pictures are shifted at most, either way


@dataclass(frozen=True, repr=False)
class MovingImages(ScriptedSet):
    """Pictures in a random pose, of which one factor runs through its values, coming round.

    Each of the chosen factors has ``frames`` values: rotation and hue go round once, scales are
    those of the papers (0.60 to 1.26), shifts go from -REACH to REACH of a side; bilinear, black
    outside. Grey pictures take a pure colour, those in colour have theirs turned. A script is
    (…, time, 1 + factors): the picture, and the index of every factor.
    """

    images: Tensor  # (images, channels, height, width), bytes or in [0, 1]
    moving: tuple[str, ...]
    steps: int
    scripts: Tensor | None = None
    views: Tensor = field(init=False)  # rotation scale height width 2

    def __post_init__(self) -> None:
        angle = torch.arange(self._values("rotation")) * (2 * math.pi / self.steps)
        scale = torch.ones(1)
        if "scale" in self.moving:
            scale = torch.linspace(SCALES[0].item(), SCALES[-1].item(), self.steps)
        pose = torch.broadcast_tensors(angle[:, None], scale)
        views = turned(*self.images.shape[-2:], *pose)
        object.__setattr__(self, "views", views.to(self.images.device))

    def _values(self, name: str) -> int:
        return self.steps if name in self.moving else 1

    @property
    def names(self) -> tuple[str, ...]:
        return self.moving

    @property
    def frames(self) -> int:
        return self.steps

    @property
    def frame_shape(self) -> tuple[int, ...]:
        channels = 3 if "hue" in self.moving else self.images.shape[1]
        return channels, *self.images.shape[2:]

    @property
    def levels(self) -> int:
        return self.steps

    @property
    def groups(self) -> tuple[tuple[int, ...], ...]:
        return tuple((n,) for n in range(len(self.moving)))

    def show(self, script: Tensor) -> Batch:
        script = script.to(self.images.device)
        x = self.images[script[..., 0]]  # … time channels height width
        x = x.float() / 255 if x.dtype == torch.uint8 else x
        zero = torch.zeros_like(script[..., 0])
        place = {name: zero for name in TRANSFORMATIONS}
        place |= dict(zip(self.moving, script[..., 1:].unbind(-1), strict=True))
        shift = torch.stack([self._shift(n, place[n]) for n in ("shift_x", "shift_y")], -1)
        views = self.views[place["rotation"], place["scale"]]  # … time height width 2
        views = views - 2 * shift[..., None, None, :]
        x = warp(x, views)
        if "hue" in self.moving:
            x = _hued(x, place["hue"] / self.steps)
        return Batch(x, script[..., 1:])

    def _shift(self, name: str, place: Tensor) -> Tensor:
        """To the right, or down, as a share of the side."""
        if name not in self.moving:
            return place.float()
        return place * (2 * REACH / max(1, self.steps - 1)) - REACH

    def of_images(self, images: Tensor) -> MovingImages:
        """Sequences of these pictures."""
        return replace(self, images=self.images[images.to(self.images.device)])


def _hued(x: Tensor, hue: Tensor) -> Tensor:
    """Grey becomes a pure colour; colours are turned about the axis of greys."""
    if x.shape[-3] == 1:
        return x * rgb(hue)[..., None, None]
    cos, sin = (2 * math.pi * hue).cos(), (2 * math.pi * hue).sin() / math.sqrt(3)
    same, third = (1 + 2 * cos) / 3, (1 - cos) / 3
    row = torch.stack([same, third - sin, third + sin], -1)  # of red; the others follow in turn
    turn = torch.stack([row.roll(n, -1) for n in range(3)], -2)
    return (turn @ x.flatten(-2)).unflatten(-1, x.shape[-2:]).clamp(0, 1)


def moving_images(images: Tensor, transformation: str | Sequence[str], frames: int) -> MovingImages:
    """Pictures (images, channels, height, width) that turn, grow, shift or change colour."""
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
