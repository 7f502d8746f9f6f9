"""Maps of the plane, and the one place where images are warped by them.

A point is x before y, and y points down. *Pixels* are points in pixels from the middle of an image;
*places* are points in halves of its sides, whose edges are at -1 and 1 whatever their length.

A map is a matrix (…, 2, 2), (…, 2, 3) or (…, 3, 3): linear, affine or projective.
"""

from __future__ import annotations

import math
from typing import Any, Literal

import torch
from torch import Tensor
from torch.nn.functional import grid_sample

Outside = Literal["zeros", "border", "reflection"]  #: what lies outside an image
FAR = 4.0  # a place, where there is no image


def pixels(
    height: int,
    width: int,
    dtype: torch.dtype = torch.float32,
    device: torch.device | None = None,
) -> Tensor:
    """The centres of all pixels, in pixels from the middle: (height, width, 2)."""
    x = torch.arange(width, dtype=dtype, device=device) + 0.5 - width / 2
    y = torch.arange(height, dtype=dtype, device=device) + 0.5 - height / 2
    return torch.stack(torch.meshgrid(x, y, indexing="xy"), -1)


def as_places(points: Tensor, height: int, width: int) -> Tensor:
    """Points in pixels from the middle, (…, 2), as places."""
    x, y = points.unbind(-1)
    return torch.stack([x * (2 / width), y * (2 / height)], -1)


def grid(height: int, width: int, **options: Any) -> Tensor:
    """The places of the centres of all pixels, with options of `pixels`: (height, width, 2)."""
    return as_places(pixels(height, width, **options), height, width)


def apply(maps: Tensor, points: Tensor) -> Tensor:
    """Points (…, height, width, 2) as maps (…, rows, columns) take them: (…, height, width, 2)."""
    x, y = points.unbind(-1)
    taken = []
    for row in maps.unbind(-2):
        by_x, by_y, *shift = (number[..., None, None] for number in row.unbind(-1))
        taken.append(by_x * x + by_y * y if not shift else by_x * x + by_y * y + shift[0])
    if len(taken) == 3:
        taken = [taken[0] / taken[2], taken[1] / taken[2]]
    return torch.stack(taken, -1)


def rotation(angle: Tensor, aspect: float = 1.0) -> Tensor:
    """The turn by an angle in radians, counter-clockwise as seen: (…) to (…, 2, 2).

    ``aspect`` is 1 for pixels; for places it is the width of the image over its height.
    """
    cos, sin = angle.cos(), angle.sin()
    to_x, to_y = torch.stack([cos, sin / aspect], -1), torch.stack([-sin * aspect, cos], -1)
    return torch.stack([to_x, to_y], -2)


def adjugate(linear: Tensor) -> Tensor:
    """The inverse of linear maps, times their determinants."""
    (a, b), (c, d) = (row.unbind(-1) for row in linear.unbind(-2))
    return torch.stack([torch.stack([d, -b], -1), torch.stack([-c, a], -1)], -2)


def determinant(linear: Tensor) -> Tensor:
    """How many times linear maps enlarge areas: (…)."""
    (a, b), (c, d) = (row.unbind(-1) for row in linear.unbind(-2))
    return a * d - b * c


def turned(
    height: int, width: int, angle: Tensor, scale: Tensor, centre: float | None = None
) -> Tensor:
    """The places that pixels come from when an image is turned counter-clockwise and scaled.

    ``centre`` is the index, row and column alike, of the pixel that stays where it is; None is the
    middle of the image. Angles and scales are (…), places (…, height, width, 2).
    """
    back = rotation(angle).mT / scale[..., None, None]
    points = pixels(height, width)
    if centre is None:
        return as_places(apply(back, points), height, width)
    fixed = centre - torch.tensor([(width - 1) / 2, (height - 1) / 2])
    return as_places(apply(back, points - fixed) + fixed, height, width)


def perspective(height: int, width: int, degrees: float) -> Tensor:
    """The map of a turn in space by ``degrees``, about the vertical axis and the line of sight.

    It takes indices of pixels of the image to those of the frame, by a matrix (3, 3) in float64, as
    ``rotate_along_axis(phi=degrees, gamma=degrees)`` of the papers' released code does.
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


def in_perspective(height: int, width: int, degrees: float) -> Tensor:
    """The places that pixels come from when an image is seen in perspective: (height, width, 2)."""
    first = torch.tensor([(width - 1) / 2, (height - 1) / 2])  # from the first pixel to the middle
    indices = pixels(height, width, torch.float64) + first
    points = apply(torch.linalg.inv(perspective(height, width, degrees)), indices) - first
    # pixels on the horizon come from infinitely far away
    return as_places(points, height, width).nan_to_num(FAR).clamp(-FAR, FAR).float()


def warp(images: Tensor, places: Tensor, outside: Outside = "zeros") -> Tensor:
    """Images whose every pixel is taken from its place; bilinear, black outside unless asked for.

    images: (…, channels, height, width), places: (…, rows, columns, 2), to
    (…, channels, rows, columns). Axes in front are broadcast.
    """
    front = torch.broadcast_shapes(images.shape[:-3], places.shape[:-3])
    flat, looked_up = (
        part.expand(*front, *part.shape[-3:]).reshape(-1, *part.shape[-3:])
        for part in (images, places)
    )
    seen = grid_sample(flat, looked_up, padding_mode=outside, align_corners=False)
    return seen.reshape(*front, *seen.shape[1:])
