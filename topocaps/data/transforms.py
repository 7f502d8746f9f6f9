"""Digits that turn, grow and change colour: sequences made from single images, on any device."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import torch
from torch import Tensor
from torch.nn.functional import grid_sample

from topocaps.data.sequences import Batch, SequenceSet

NAMES = ("rotation", "scale", "hue")
STEPS = 18  #: values of every factor, and frames of a sequence
#: as the papers' code lists them
SCALES = torch.tensor(
    [.60, .64, .68, .72, .76, .79, .83, .87, .91,
     .95, .99, 1.03, 1.07, 1.11, 1.14, 1.18, 1.22, 1.26]
)  # fmt: skip


@dataclass(frozen=True)
class TransformedImages(SequenceSet):
    """Grey images in a random pose (angle, scale, hue); one factor runs through its values.

    An image is drawn in the red channel, turned and scaled about its centre (bilinear, black
    outside), then its hue is turned. A script is (…, time, 4): the image and the three indices.
    """

    images: Tensor  # (images, height, width), bytes
    scripts: Tensor | None = None  # (sequences, time, 4): a fixed set; else every image is in one
    scales: Tensor = SCALES

    NUMBERS = 5

    @property
    def names(self) -> tuple[str, ...]:
        return NAMES

    @property
    def frames(self) -> int:
        return STEPS

    @property
    def frame_shape(self) -> tuple[int, ...]:
        return 3, *self.images.shape[1:]

    @property
    def fewest(self) -> int:
        return len(self) // len(NAMES)

    def __len__(self) -> int:
        return len(self.images if self.scripts is None else self.scripts)

    def choose(self, uniform: Tensor) -> Tensor:
        image, moving, *starts = uniform.double().unbind(-1)
        image = (image * len(self.images)).long()
        pose = torch.stack([(p * STEPS).long() for p in starts], -1)
        return _script(image, (moving * len(NAMES)).long(), pose)

    def fixed(self) -> Tensor:
        if self.scripts is not None:
            return self.scripts
        return self._one_each(len(self.images), seed=0)

    def balanced(self, each: int | None, seed: int) -> TransformedImages:
        """With None, every image is in the set once, and the factors take turns."""
        if self.scripts is not None:
            raise NotImplementedError("a set that is fixed already cannot be balanced anew")
        count = len(self.images) if each is None else min(each * len(NAMES), len(self.images))
        return replace(self, scripts=self._one_each(count, seed).to(self.images.device))

    def _one_each(self, count: int, seed: int) -> Tensor:
        """Sequences of ``count`` different images in random poses; sorted by what moves."""
        generator = torch.Generator().manual_seed(seed)
        image = torch.randperm(len(self.images), generator=generator)[:count]
        moving = (torch.arange(count) % len(NAMES)).sort().values
        return _script(image, moving, torch.randint(STEPS, (count, 3), generator=generator))

    def show(self, script: Tensor) -> Batch:
        script = script.to(self.images.device)
        image, rotation, scale, hue = script.unbind(-1)
        angle = rotation * (2 * math.pi / STEPS)
        grey = turn(self.images[image].float() / 255, angle, self.scales[scale])
        colour = rgb(hue / STEPS)
        return Batch(grey[..., None, :, :] * colour[..., None, None], script[..., 1:])


def _script(image: Tensor, moving: Tensor, pose: Tensor) -> Tensor:
    """Every frame's image and pose: (…, time, 4)."""
    time = torch.arange(STEPS, device=image.device)[:, None]
    moves = moving[..., None, None] == torch.arange(len(NAMES), device=image.device)
    pose = (pose[..., None, :] + time * moves) % STEPS
    return torch.cat([image[..., None, None].expand(*pose.shape[:-1], 1), pose], -1)


def turn(images: Tensor, angle: Tensor, scale: Tensor) -> Tensor:
    """Images turned counter-clockwise and scaled about their centre: (…, height, width).

    Bilinear; black comes in from outside.
    """
    height, width = images.shape[-2:]
    y = (torch.arange(height, device=images.device) + 0.5 - height / 2)[:, None]
    x = torch.arange(width, device=images.device) + 0.5 - width / 2
    cos = (angle.cos() / scale)[..., None, None]
    sin = (angle.sin() / scale)[..., None, None]
    # where a pixel's value comes from, in halves of the image
    places = [(cos * x - sin * y) * (2 / width), (sin * x + cos * y) * (2 / height)]
    grid = torch.stack(places, -1).reshape(-1, height, width, 2)
    turned = grid_sample(images.reshape(-1, 1, height, width), grid, align_corners=False)
    return turned.reshape(images.shape)


def rgb(hue: Tensor) -> Tensor:
    """The pure colour of a hue in [0, 1): (…) to (…, 3)."""
    k = (hue[..., None] * 6 + torch.arange(5, 0, -2, device=hue.device)) % 6  # red, green, blue
    return 1 - torch.minimum(k, 4 - k).clamp(0, 1)
