"""Templates of the parts, and the image that they draw (section 2.1, before Eq. 7)."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from topocaps.capsules import poses
from topocaps.capsules.layers import Capsules
from topocaps.data import geometry

_OPAQUE = 1 - 1e-6  # the largest alpha, so that log(1 - alpha) is finite


class Templates(nn.Module):
    """One template with an alpha channel per part; draws images on opaque black.

    The first part is the lowest. On a transparent background, the paper's "over" would divide by
    the presences and cancel them.
    """

    grid: Tensor

    def __init__(self, parts: int, size: int, frame_shape: tuple[int, ...]) -> None:
        super().__init__()
        self.frame_shape = tuple(frame_shape)
        channels, height, width = self.frame_shape
        self.colour = nn.Parameter(1 + 0.1 * torch.randn(parts, channels, size, size))  # logits
        self.alpha = nn.Parameter(0.5 * torch.randn(parts, 1, size, size))  # logits
        self.register_buffer("grid", geometry.grid(height, width), persistent=False)

    def images(self) -> Tensor:
        """Colours and, as the last channel, alpha: (parts, channels + 1, size, size), in [0, 1]."""
        return torch.cat([self.colour, self.alpha], 1).sigmoid()

    def moved(self, parts: Capsules) -> tuple[Tensor, Tensor]:
        """Ink (…, parts, *frame) and alpha (…, parts, 1, height, width) at the poses of the parts.

        Ink is colour times alpha; presences scale both. Ink is interpolated, because interpolated
        colour would fade a second time at the border of a template.
        """
        images = self.images()
        ink = torch.cat([images[:, :-1] * images[:, -1:], images[:, -1:]], 1)
        drawn = geometry.warp(ink, poses.sources(parts.poses, self.grid))
        drawn = drawn * parts.presences[..., None, None, None]
        return drawn[..., :-1, :, :], drawn[..., -1:, :, :]

    def visible_ink(self, parts: Capsules) -> Tensor:
        """Ink of each part that the parts above it do not cover: (…, parts, *frame)."""
        return _visible_ink(*self.moved(parts))

    def forward(self, parts: Capsules) -> Tensor:
        """Mean P of the image (Eq. 7): (…, *frame)."""
        return composite(*self.moved(parts))


def composite(ink: Tensor, alpha: Tensor) -> Tensor:
    r"""Draw layers over each other, on black: :math:`\sum_k c_k a_k \prod_{l > k} (1 - a_l)`.

    Ink :math:`c_k a_k` is (…, layers, channels, height, width), and alpha :math:`a_k`
    (…, layers, 1, height, width). The first layer is the lowest.
    """
    return _visible_ink(ink, alpha).sum(-4)


def _visible_ink(ink: Tensor, alpha: Tensor) -> Tensor:
    through = torch.log1p(-_OPAQUE * alpha)
    over = through.sum(-4, keepdim=True) - through.cumsum(-4)
    return ink * over.exp()
