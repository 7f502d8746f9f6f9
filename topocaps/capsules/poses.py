"""Poses: affine maps of the plane as six numbers, the two rows of a matrix that ends in (0, 0, 1).

A pose takes the square [-1, 1]² of a template to where it is drawn in the image, which is [-1, 1]²
too, x before y. So a map G of the image takes a part's pose A to G A.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import pad

from topocaps.data.geometry import apply, rotation

NUMBERS = 6  #: of a pose
_SMALLEST = 1e-4  # area that a template may shrink to before its map cannot be inverted


def scaled(scale: float) -> Tensor:
    """The pose of a template that is drawn ``scale`` times the image's size, in the middle."""
    return torch.tensor([scale, 0.0, 0.0, 0.0, scale, 0.0])


def rotated(angle: float, aspect: float = 1.0) -> Tensor:
    """A turn about the middle, counter-clockwise as seen (y points down); in radians.

    ``aspect`` is the width of the image over its height, both of which are 2 here.
    """
    linear = rotation(torch.tensor(angle, dtype=torch.float64), aspect)
    return pad(linear, (0, 1)).flatten().float()


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


def sources(pose: Tensor, places: Tensor) -> Tensor:
    """The places that these come from once an image is moved by poses: (…, height, width, 2)."""
    return apply(rows(inverse(pose)), places)
