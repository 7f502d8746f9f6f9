"""Digits that turn, grow and change colour: sequences made from single images, on any device."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

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
TILT = math.radians(50)  # how far a digit leans at most
DISTANCE = 2.0  # of the eye from a leaning digit, in halves of its width


def turned(height: int, width: int, angle: Tensor, scale: Tensor) -> Tensor:
    """Where pixels come from when an image is turned counter-clockwise and scaled about its centre.

    In halves of the image, x before y: (…, height, width, 2).
    """
    x, y = _pixels(height, width)
    cos, sin = (angle.cos() / scale)[..., None, None], (angle.sin() / scale)[..., None, None]
    return torch.stack([(cos * x - sin * y) * (2 / width), (sin * x + cos * y) * (2 / height)], -1)


def tilted(height: int, width: int, phase: Tensor) -> Tensor:
    """Where pixels come from when an image leans, turned about two axes in space, seen near by.

    It leans about the horizontal axis by TILT sin(phase) and about the vertical one by
    TILT cos(phase), so that its upright goes round once.
    """
    about_x, about_y = TILT * phase.sin(), TILT * phase.cos()
    zero, one = torch.zeros_like(phase), torch.ones_like(phase)
    cx, sx, cy, sy = about_x.cos(), about_x.sin(), about_y.cos(), about_y.sin()
    lean_x = torch.stack([one, zero, zero, zero, cx, -sx, zero, sx, cx], -1).unflatten(-1, (3, 3))
    lean_y = torch.stack([cy, zero, sy, zero, one, zero, -sy, zero, cy], -1).unflatten(-1, (3, 3))
    rotation = lean_y @ lean_x
    # a point (X, Y, 0) goes to R (X, Y, 0) and is seen from the distance: a map of the plane
    seen = torch.stack([rotation[..., 0], rotation[..., 1], torch.zeros_like(rotation[..., 0])], -1)
    projection = torch.diag(torch.tensor([DISTANCE, DISTANCE, 1.0])) @ seen
    projection[..., 2, 2] = DISTANCE
    x, y = _pixels(height, width)
    places = torch.stack(
        [x * (2 / width) + 0 * y, y * (2 / height) + 0 * x, torch.ones(height, width)]
    )
    back = torch.linalg.inv(projection)[..., None, None, :, :] @ places.permute(1, 2, 0)[..., None]
    return (back[..., :2, 0] / back[..., 2:, 0]).float()


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
    views: Callable[[int, int], Tensor]  #: where pixels come from, for all values of all but hue


def _circle() -> Tensor:
    return torch.arange(STEPS) * (2 * math.pi / STEPS)


MOTIONS = {
    motion.name: motion
    for motion in (
        Motion(
            "single",
            ("rotation", "scale", "hue"),
            ((0,), (1,), (2,)),
            lambda height, width: turned(
                height, width, _circle()[:, None].expand(STEPS, STEPS), SCALES.expand(STEPS, STEPS)
            ),
        ),
        Motion(
            "combined",
            ("rotation", "hue"),
            ((0, 1),),
            lambda height, width: turned(height, width, _circle(), torch.ones(STEPS)),
        ),
        Motion(
            "perspective",
            ("tilt", "hue"),
            ((0, 1),),
            lambda height, width: tilted(height, width, _circle()),
        ),
    )
}


@dataclass(frozen=True, repr=False)
class TransformedImages(SequenceSet):
    """Grey images in a random pose, of which some factors run through their values.

    An image is drawn in the red channel, seen as its pose says (bilinear, black outside), then its
    hue is turned. A script is (…, time, 1 + factors): the image and the index of every factor.
    """

    images: Tensor  # (images, height, width), bytes
    motion: Motion = MOTIONS["single"]
    scripts: Tensor | None = None  # (sequences, time, …): a fixed set; else every image is in one
    views: Tensor = None  # type: ignore[assignment]  # made from the motion

    def __post_init__(self) -> None:
        if self.views is None:
            views = self.motion.views(*self.images.shape[1:])
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
