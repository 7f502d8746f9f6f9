"""Maps of the plane, and the warping of images by them.

A point is (x, y), and y points down. *Pixels* are points in pixels from the middle of an image.
*Places* are points in halves of the sides of an image, so its edges are at -1 and 1.

A map is a matrix (…, 2, 2), (…, 2, 3) or (…, 3, 3): linear, affine or projective.
"""

from __future__ import annotations

import math
from typing import Any, Literal

import torch
from torch import Tensor
from torch.nn.functional import grid_sample

Outside = Literal["zeros", "border", "reflection"]  #: the values outside an image
FAR = 4.0  # the coordinate of a place far outside the image


def pixels(
    height: int,
    width: int,
    dtype: torch.dtype = torch.float32,
    device: torch.device | None = None,
) -> Tensor:
    """Return the centres of all pixels, in pixels from the middle: (height, width, 2)."""
    x = torch.arange(width, dtype=dtype, device=device) + 0.5 - width / 2
    y = torch.arange(height, dtype=dtype, device=device) + 0.5 - height / 2
    return torch.stack(torch.meshgrid(x, y, indexing="xy"), -1)


def as_places(points: Tensor, height: int, width: int) -> Tensor:
    """Convert points (…, 2) in pixels from the middle to places."""
    x, y = points.unbind(-1)
    return torch.stack([x * (2 / width), y * (2 / height)], -1)


def grid(height: int, width: int, **options: Any) -> Tensor:
    """Return the places of the centres of all pixels: (height, width, 2).

    Args:
        options: ``dtype`` and ``device``, as in `pixels`.
    """
    return as_places(pixels(height, width, **options), height, width)


def apply(maps: Tensor, points: Tensor) -> Tensor:
    """Map points (…, height, width, 2) by maps (…, rows, columns): (…, height, width, 2)."""
    x, y = points.unbind(-1)
    mapped = []
    for row in maps.unbind(-2):
        by_x, by_y, *shift = (number[..., None, None] for number in row.unbind(-1))
        mapped.append(by_x * x + by_y * y if not shift else by_x * x + by_y * y + shift[0])
    if len(mapped) == 3:
        mapped = [mapped[0] / mapped[2], mapped[1] / mapped[2]]
    return torch.stack(mapped, -1)


def rotation(angle: Tensor, aspect: float = 1.0) -> Tensor:
    """Return counter-clockwise rotations (…, 2, 2).

    Args:
        angle: angles in radians, (…).
        aspect: the width of the image over its height if the map applies to places; 1 for pixels.
    """
    cos, sin = angle.cos(), angle.sin()
    to_x, to_y = torch.stack([cos, sin / aspect], -1), torch.stack([-sin * aspect, cos], -1)
    return torch.stack([to_x, to_y], -2)


def adjugate(linear: Tensor) -> Tensor:
    """Return the inverses of linear maps times their determinants, (…, 2, 2)."""
    (a, b), (c, d) = (row.unbind(-1) for row in linear.unbind(-2))
    return torch.stack([torch.stack([d, -b], -1), torch.stack([-c, a], -1)], -2)


def determinant(linear: Tensor) -> Tensor:
    """Return the determinants of linear maps, (…): the factors by which they enlarge areas."""
    (a, b), (c, d) = (row.unbind(-1) for row in linear.unbind(-2))
    return a * d - b * c


def turned(
    height: int, width: int, angle: Tensor, scale: Tensor, centre: float | None = None
) -> Tensor:
    """Return the places whose values the pixels of a rotated and scaled image take.

    The places are (…, height, width, 2).

    Args:
        height, width: size of the image.
        angle: angles of counter-clockwise rotations in radians, (…).
        scale: factors of enlargement, (…).
        centre: row and column index of the pixel that stays in its place; None is the middle of
            the image.
    """
    back = rotation(angle).mT / scale[..., None, None]
    points = pixels(height, width)
    if centre is None:
        return as_places(apply(back, points), height, width)
    fixed = centre - torch.tensor([(width - 1) / 2, (height - 1) / 2])
    return as_places(apply(back, points - fixed) + fixed, height, width)


def perspective(height: int, width: int, degrees: float) -> Tensor:
    """Return the map (3, 3) of a rotation in space, in float64.

    The image rotates by ``degrees`` about the vertical axis and about the line of sight. The map
    takes pixel indices of the image to those of the frame, as
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
    """Return the places whose values the pixels of an image in perspective take.

    The image is rotated by `perspective`. The places are (height, width, 2).
    """
    first = torch.tensor([(width - 1) / 2, (height - 1) / 2])  # from the first pixel to the middle
    indices = pixels(height, width, torch.float64) + first
    points = apply(torch.linalg.inv(perspective(height, width, degrees)), indices) - first
    # pixels on the horizon have places at infinity
    return as_places(points, height, width).nan_to_num(FAR).clamp(-FAR, FAR).float()


def warp(images: Tensor, places: Tensor, outside: Outside = "zeros") -> Tensor:
    """Return images (…, channels, rows, columns) with the values of ``images`` at ``places``.

    Values between pixels are interpolated bilinearly. Leading axes are broadcast.

    Args:
        images: images (…, channels, height, width).
        places: the place that each pixel is read from, (…, rows, columns, 2).
        outside: values outside the image: black, those of the edge, or those of the mirrored image.
    """
    front = torch.broadcast_shapes(images.shape[:-3], places.shape[:-3])
    flat_images, flat_places = (
        part.expand(*front, *part.shape[-3:]).reshape(-1, *part.shape[-3:])
        for part in (images, places)
    )
    warped = grid_sample(flat_images, flat_places, padding_mode=outside, align_corners=False)
    return warped.reshape(*front, *warped.shape[1:])
