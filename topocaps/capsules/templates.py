"""Templates of the parts, and the image that they draw (section 2.1, before Eq. 7)."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from topocaps.capsules import poses
from topocaps.capsules.layers import Capsules
from topocaps.data import geometry

_OPAQUE = 1 - 1e-6  # largest alpha, so that log(1 - alpha) is finite


class Templates(nn.Module):
    """One template with an alpha channel per part, drawn over each other on opaque black.

    The first part is the lowest. On a transparent background, the paper's "over" operator would
    divide by the presences and cancel them.

    Args:
        parts: number of parts.
        size: side of a template, in pixels.
        frame_shape: (channels, height, width) of the image.
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
        """Return colours and alpha in [0, 1]: (parts, channels + 1, size, size), alpha last."""
        return torch.cat([self.colour, self.alpha], 1).sigmoid()

    def moved(self, parts: Capsules) -> tuple[Tensor, Tensor]:
        """Return ink (…, parts, *frame) and alpha (…, parts, 1, height, width) in the image.

        Ink is colour times alpha, and presences scale both. Ink is interpolated instead of colour,
        because interpolated colours would fade a second time at the border of a template.
        """
        images = self.images()
        ink = torch.cat([images[:, :-1] * images[:, -1:], images[:, -1:]], 1)
        drawn = geometry.warp(ink, poses.sources(parts.poses, self.grid))
        drawn = drawn * parts.presences[..., None, None, None]
        return drawn[..., :-1, :, :], drawn[..., -1:, :, :]

    def visible_ink(self, parts: Capsules) -> Tensor:
        """Return the ink of each part that no part above covers: (…, parts, *frame)."""
        return _visible_ink(*self.moved(parts))

    def forward(self, parts: Capsules) -> Tensor:
        """Return the mean P of the image (Eq. 7): (…, *frame)."""
        return composite(*self.moved(parts))


def composite(ink: Tensor, alpha: Tensor) -> Tensor:
    r"""Draw layers over each other, on black: :math:`\sum_k c_k a_k \prod_{l > k} (1 - a_l)`.

    The first layer is the lowest.

    Args:
        ink: :math:`c_k a_k`, (…, layers, channels, height, width).
        alpha: :math:`a_k`, (…, layers, 1, height, width).
    """
    return _visible_ink(ink, alpha).sum(-4)


def _visible_ink(ink: Tensor, alpha: Tensor) -> Tensor:
    """Return the ink of each layer that no layer above covers."""
    log_transparency = torch.log1p(-_OPAQUE * alpha)
    of_layers_above = log_transparency.sum(-4, keepdim=True) - log_transparency.cumsum(-4)
    return ink * of_layers_above.exp()
