"""Digits that turn, grow and change colour: sequences made from single images, on any device."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from numbers import Real
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import grid_sample

from topocaps.data.sequences import Batch, SequenceSet
from topocaps.errors import BadInput

STEPS = 18  #: values of every factor, and frames of a sequence
#: as the papers' code lists them
SCALES = torch.tensor(
    [.60, .64, .68, .72, .76, .79, .83, .87, .91,
     .95, .99, 1.03, 1.07, 1.11, 1.14, 1.18, 1.22, 1.26]
)  # fmt: skip
#: of the perspective motion, as the released code lists them
DEGREES = tuple(181 if degrees == 180 else degrees for degrees in range(0, 360, 360 // STEPS))
OUTSIDE = 4.0  # a place, in halves of the image, where there is no image


def turned(
    height: int, width: int, angle: Tensor, scale: Tensor, centre: float | None = None
) -> Tensor:
    """Where pixels come from when an image is turned counter-clockwise and scaled.

    ``centre`` is the index, row and column alike, of the pixel that stays where it is; None is the
    middle of the image. Places are in halves of the image, x before y: (…, height, width, 2).
    """
    x, y = _pixels(height, width)
    cos, sin = (angle.cos() / scale)[..., None, None], (angle.sin() / scale)[..., None, None]
    if centre is None:
        from_x, from_y = cos * x - sin * y, sin * x + cos * y
    else:
        right, down = centre - (width - 1) / 2, centre - (height - 1) / 2  # of the middle
        x, y = x - right, y - down
        from_x, from_y = cos * x - sin * y + right, sin * x + cos * y + down
    return torch.stack([from_x * (2 / width), from_y * (2 / height)], -1)


def perspective_map(height: int, width: int, degrees: float) -> Tensor:
    """The map of a turn in space by ``degrees``, about the vertical axis and the line of sight.

    It takes homogeneous pixel indices (x, y, 1) of the image to those of the frame: a matrix
    (3, 3) in float64, as in ``rotate_along_axis(phi=degrees, gamma=degrees)`` of the released code.
    """
    if degrees == 0:
        return torch.eye(3, dtype=torch.float64)
    cos, sin = math.cos(math.radians(degrees)), math.sin(math.radians(degrees))
    focal = math.hypot(height, width) / (2 * sin)
    matrices = (
        [[focal, 0, width / 2, 0], [0, focal, height / 2, 0], [0, 0, 1, 0]],  # to the frame
        [[1, 0, 0, 0], [0, 1, 0, 0], [0, 0, 1, focal], [0, 0, 0, 1]],  # away from the eye
        [[cos, 0, -sin, 0], [0, 1, 0, 0], [sin, 0, cos, 0], [0, 0, 0, 1]],  # the vertical axis
        [[cos, -sin, 0, 0], [sin, cos, 0, 0], [0, 0, 1, 0], [0, 0, 0, 1]],  # the line of sight
        [[1, 0, -width / 2], [0, 1, -height / 2], [0, 0, 1], [0, 0, 1]],  # to a plane at z = 1
    )
    return torch.linalg.multi_dot([torch.tensor(m, dtype=torch.float64) for m in matrices])


def in_perspective(height: int, width: int) -> Tensor:
    """Where pixels come from at every angle of perspective: (STEPS, height, width, 2)."""
    maps = torch.stack([perspective_map(height, width, degrees) for degrees in DEGREES])
    x, y = torch.meshgrid(torch.arange(width), torch.arange(height), indexing="xy")
    frame = torch.stack([x, y, torch.ones_like(x)], -1).double()
    image = (torch.linalg.inv(maps)[:, None, None] @ frame[..., None])[..., 0]
    indices = image[..., :2] / image[..., 2:]
    places = (indices + 0.5) * 2 / torch.tensor([width, height]) - 1
    # pixels on the horizon come from infinitely far away, which is outside like any other place
    return places.nan_to_num(OUTSIDE).clamp(-OUTSIDE, OUTSIDE).float()


def _pixels(height: int, width: int) -> tuple[Tensor, Tensor]:
    """Centres of columns, and of rows, from the middle of the image."""
    x = torch.arange(width) + 0.5 - width / 2
    return x, (torch.arange(height) + 0.5 - height / 2)[:, None]


@dataclass(frozen=True)
class Motion:
    """Which factors a sequence has, the last of them hue, and which of them move together."""

    name: str
    factors: tuple[str, ...]
    together: tuple[tuple[int, ...], ...]  #: a draw chooses one of these
    #: where pixels come from, for all values of all but hue, given height, width and centre
    views: Callable[[int, int, float | None], Tensor]
    has_centre: bool = True  #: whether digits turn and scale about a pixel that can be chosen


def _circle() -> Tensor:
    return torch.arange(STEPS) * (2 * math.pi / STEPS)


MOTIONS = {
    motion.name: motion
    for motion in (
        Motion(
            "single",
            ("rotation", "scale", "hue"),
            ((0,), (1,), (2,)),
            lambda height, width, centre: turned(
                height,
                width,
                _circle()[:, None].expand(STEPS, STEPS),
                SCALES.expand(STEPS, STEPS),
                centre,
            ),
        ),
        Motion(
            "combined",
            ("rotation", "hue"),
            ((0, 1),),
            lambda height, width, centre: turned(
                height, width, _circle(), torch.ones(STEPS), centre
            ),
        ),
        Motion(
            "perspective",
            ("perspective", "hue"),
            ((0, 1),),
            lambda height, width, centre: in_perspective(height, width),
            has_centre=False,
        ),
    )
}


def check_centre(centre: Any, motion: Motion, height: int, width: int) -> float | None:
    """``centre`` as a float or None, or a sentence that says why it cannot be used."""
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
class TransformedImages(SequenceSet):
    """Grey images in a random pose, of which some factors run through their values.

    An image is drawn in the red channel, seen as its pose says (bilinear, black outside), then its
    hue is turned. A script is (…, time, 1 + factors): the image and the index of every factor.
    ``centre`` is the index, row and column alike, of the pixel about which images turn and scale:
    None is the middle of the image, 14 is the released code's.
    """

    images: Tensor  # (images, height, width), bytes
    motion: Motion = MOTIONS["single"]
    scripts: Tensor | None = None  # (sequences, time, …): a fixed set; else every image is in one
    views: Tensor = None  # type: ignore[assignment]  # made from the motion and the centre
    centre: float | None = None

    def __post_init__(self) -> None:
        height, width = self.images.shape[1:]
        centre = check_centre(self.centre, self.motion, height, width)
        object.__setattr__(self, "centre", centre)
        if self.views is None:
            views = self.motion.views(height, width, centre)
            object.__setattr__(self, "views", views.to(self.images.device))

    @property
    def names(self) -> tuple[str, ...]:
        return self.motion.factors

    @property
    def frames(self) -> int:
        return STEPS

    @property
    def frame_shape(self) -> tuple[int, ...]:
        return 3, *self.images.shape[1:]

    @property
    def numbers(self) -> int:
        return 2 + len(self.names)

    @property
    def fewest(self) -> int:
        return len(self) // len(self.motion.together)

    def __len__(self) -> int:
        return len(self.images if self.scripts is None else self.scripts)

    def choose(self, uniform: Tensor) -> Tensor:
        if self.scripts is not None:  # a fixed set: one of its sequences
            return self.scripts[(uniform[..., 0].double() * len(self.scripts)).long()]
        image, moving, *starts = uniform.double().unbind(-1)
        image = (image * len(self.images)).long()
        pose = torch.stack([(p * STEPS).long() for p in starts], -1)
        return self._script(image, (moving * len(self.motion.together)).long(), pose)

    def fixed(self) -> Tensor:
        if self.scripts is not None:
            return self.scripts
        return self._one_each(len(self.images), seed=0)

    def balanced(self, each: int | None, seed: int) -> TransformedImages:
        """With None, every image is in the set once, and what moves takes turns."""
        if self.scripts is not None:
            raise BadInput("this set is fixed already: balance the one it was made of")
        groups = len(self.motion.together)
        count = len(self.images) if each is None else min(each * groups, len(self.images))
        return replace(self, scripts=self._one_each(count, seed).to(self.images.device))

    def _one_each(self, count: int, seed: int) -> Tensor:
        """Sequences of ``count`` different images in random poses; sorted by what moves."""
        generator = torch.Generator().manual_seed(seed)
        image = torch.randperm(len(self.images), generator=generator)[:count]
        moving = (torch.arange(count) % len(self.motion.together)).sort().values
        pose = torch.randint(STEPS, (count, len(self.names)), generator=generator)
        return self._script(image, moving, pose)

    def _script(self, image: Tensor, moving: Tensor, pose: Tensor) -> Tensor:
        """Every frame's image and pose."""
        time = torch.arange(STEPS, device=image.device)[:, None]
        moves = torch.stack(
            [
                sum(moving == n for n, group in enumerate(self.motion.together) if column in group)
                + torch.zeros_like(moving)
                for column in range(len(self.names))
            ],
            -1,
        )  # … factor
        pose = (pose[..., None, :] + time * moves[..., None, :]) % STEPS
        return torch.cat([image[..., None, None].expand(*pose.shape[:-1], 1), pose], -1)

    def show(self, script: Tensor) -> Batch:
        script = script.to(self.images.device)
        image, *seen, hue = script.unbind(-1)
        grey = sample(self.images[image].float() / 255, self.views[tuple(seen)])
        colour = rgb(hue / STEPS)
        return Batch(grey[..., None, :, :] * colour[..., None, None], script[..., 1:])


def sample(images: Tensor, places: Tensor) -> Tensor:
    """Images (…, height, width) with every pixel taken from its place (…, height, width, 2)."""
    height, width = images.shape[-2:]
    flat = images.reshape(-1, 1, height, width)
    seen = grid_sample(flat, places.reshape(-1, height, width, 2), align_corners=False)
    return seen.reshape(images.shape)


def rgb(hue: Tensor) -> Tensor:
    """The pure colour of a hue in [0, 1): (…) to (…, 3)."""
    k = (hue[..., None] * 6 + torch.arange(5, 0, -2, device=hue.device)) % 6  # red, green, blue
    return 1 - torch.minimum(k, 4 - k).clamp(0, 1)
