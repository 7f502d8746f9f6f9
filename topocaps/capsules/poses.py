"""Poses: affine maps of the plane as six numbers, the first two rows of a 3 × 3 matrix.

A pose maps the square [-1, 1]² of a template to the image, which is [-1, 1]², too. Coordinates are
(x, y). An affine map G of the image changes the pose A of a part to G A.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import pad

from topocaps.data.geometry import apply, rotation

NUMBERS = 6  #: numbers of a pose
_SMALLEST = 1e-4  # smallest magnitude of a determinant in ``inverse``


def scaled(scale: float) -> Tensor:
    """Return the pose (6,) of a centred template, ``scale`` times as large as the image."""
    return torch.tensor([scale, 0.0, 0.0, 0.0, scale, 0.0])


def rotated(angle: float, aspect: float = 1.0) -> Tensor:
    """Return the counter-clockwise rotation (6,) about the centre, by an angle in radians.

    ``aspect`` is the width of the image over its height.
    """
    linear = rotation(torch.tensor(angle, dtype=torch.float64), aspect)
    return pad(linear, (0, 1)).flatten().float()


def as_matrix(pose: Tensor) -> Tensor:
    """Reshape poses (…, 6) to (…, 2, 3)."""
    return pose.unflatten(-1, (2, 3))


def expected(parents: Tensor, offsets: Tensor) -> Tensor:
    """Return the predicted poses :math:`(I + A_i) M_{ij}` of children (Eq. 5).

    A (…, parents, 6) and M (parents, children, 6) give (…, parents, children, 6).
    """
    A, M = as_matrix(parents), as_matrix(offsets)
    linear = torch.einsum("...pxy,pcyz->...pcxz", A[..., :2], M)
    shift = pad(A[..., None, :, 2:], (2, 0))  # in the last column
    return (M + linear + shift).flatten(-2)


def compose(first: Tensor, then: Tensor) -> Tensor:
    """Return the map (…, 6) that applies the map ``first``, and then the map ``then``."""
    a, b = as_matrix(then), as_matrix(first)
    shift = pad(a[..., 2:], (2, 0))
    return (a[..., :2] @ b + shift).flatten(-2)


def inverse(pose: Tensor) -> Tensor:
    """Return the inverse maps (…, 6); the magnitude of a determinant counts as at least 1e-4."""
    a, b, c, d, e, f = pose.unbind(-1)
    area = a * e - b * d
    smallest = torch.where(area < 0, -_SMALLEST, _SMALLEST).to(area)
    area = torch.where(area.abs() < _SMALLEST, smallest, area)
    a, b, d, e = e / area, -b / area, -d / area, a / area
    return torch.stack([a, b, -(a * c + b * f), d, e, -(d * c + e * f)], -1)


def sources(pose: Tensor, places: Tensor) -> Tensor:
    """Return where the values at ``places`` come from: (…, height, width, 2).

    Args:
        pose: poses (…, 6) that map a template to the image.
        places: places (height, width, 2) in the image.
    """
    return apply(as_matrix(inverse(pose)), places)
