"""Poses: affine maps of the plane as six numbers, the two rows of a matrix that ends in (0, 0, 1).

A pose takes the square [-1, 1]² of a template to where it is drawn in the image, which is [-1, 1]²
too, x before y. So a map G of the image takes a part's pose A to G A.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.nn.functional import grid_sample, pad

NUMBERS = 6  #: of a pose
_SMALLEST = 1e-4  # area that a template may shrink to before its map cannot be inverted


def scaled(scale: float) -> Tensor:
    """The pose of a template that is drawn ``scale`` times the image's size, in the middle."""
    return torch.tensor([scale, 0.0, 0.0, 0.0, scale, 0.0])


def rotated(angle: float, aspect: float = 1.0) -> Tensor:
    """A turn about the middle, counter-clockwise as seen (y points down); in radians.

    ``aspect`` is the width of the image over its height, both of which are 2 here.
    """
    cos, sin = math.cos(angle), math.sin(angle)
    return torch.tensor([cos, sin / aspect, 0.0, -sin * aspect, cos, 0.0])


def rows(pose: Tensor) -> Tensor:
    """(…, 6) as (…, 2, 3)."""
    return pose.unflatten(-1, (2, 3))


def expected(parents: Tensor, offsets: Tensor) -> Tensor:
    """:math:`(I + A_i) M_{ij}` (Eq. 5): where parents expect their children.

    parents: (…, parents, 6), offsets: (parents, children, 6) to (…, parents, children, 6).
    """
    whole = rows(parents)
    turned = torch.einsum("...pxy,pcyz->...pcxz", whole[..., :2], rows(offsets))
    moved = pad(whole[..., None, :, 2:], (2, 0))  # to the last column
    return (rows(offsets) + turned + moved).flatten(-2)


def after(first: Tensor, then: Tensor) -> Tensor:
    """The map that does ``first`` and ``then`` what is given: (…, 6) of (…, 6) and (…, 6)."""
    a, b = rows(then), rows(first)
    moved = pad(a[..., 2:], (2, 0))
    return (a[..., :2] @ b + moved).flatten(-2)


def inverse(pose: Tensor) -> Tensor:
    """The map back; of one that leaves no area, nearly so."""
    a, b, c, d, e, f = pose.unbind(-1)
    area = a * e - b * d
    smallest = torch.where(area < 0, -_SMALLEST, _SMALLEST).to(area)
    area = torch.where(area.abs() < _SMALLEST, smallest, area)
    a, b, d, e = e / area, -b / area, -d / area, a / area
    return torch.stack([a, b, -(a * c + b * f), d, e, -(d * c + e * f)], -1)


def grid(height: int, width: int) -> Tensor:
    """Centres of pixels in [-1, 1]²: (height, width, 2), x before y."""
    x = (torch.arange(width) + 0.5) * (2 / width) - 1
    y = (torch.arange(height) + 0.5) * (2 / height) - 1
    return torch.stack(torch.meshgrid(x, y, indexing="xy"), -1)


def warp(x: Tensor, maps: Tensor, pixels: Tensor) -> Tensor:
    """Images (…, *frame), each moved by its map (…, 6); bilinear, black outside.

    ``pixels`` is the ``grid`` of the frame.
    """
    points = apply(inverse(maps), pixels).flatten(0, -4)
    moved = grid_sample(x.flatten(0, -4), points, align_corners=False)
    return moved.reshape(x.shape)


def apply(pose: Tensor, points: Tensor) -> Tensor:
    """Points (height, width, 2) as (…, 6) maps take them: (…, height, width, 2)."""
    a, b, c, d, e, f = (number[..., None, None] for number in pose.unbind(-1))
    x, y = points.unbind(-1)
    return torch.stack([a * x + b * y + c, d * x + e * y + f], -1)
