"""What the lowest capsules look like: templates with alpha, moved by poses, drawn over another."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from topocaps.capsules import poses
from topocaps.capsules.layers import Capsules
from topocaps.data import geometry

_OPAQUE = 1 - 1e-6  # nothing hides all, so that logs are finite


class Templates(nn.Module):
    """Draws an image from parts (the text before Eq. 7): the first lies lowest, on black.

    The ground is opaque: on a transparent one, "over" divides presences out again.
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
        """Colours and, last, alpha: (parts, channels + 1, size, size), in [0, 1]."""
        return torch.cat([self.colour, self.alpha], 1).sigmoid()

    def moved(self, parts: Capsules) -> tuple[Tensor, Tensor]:
        """Of parts where they are: ink, that is colour times alpha (…, parts, *frame), and alpha
        (…, parts, 1, height, width), both times presences.

        Ink and not colour is interpolated: colour fades at the rim of a template as alpha does, and
        would count twice.
        """
        images = self.images()
        ink = torch.cat([images[:, :-1] * images[:, -1:], images[:, -1:]], 1)
        drawn = geometry.warp(ink, poses.sources(parts.poses, self.grid))
        drawn = drawn * parts.presences[..., None, None, None]
        return drawn[..., :-1, :, :], drawn[..., -1:, :, :]

    def seen(self, parts: Capsules) -> Tensor:
        """The ink of every part that those over it leave to be seen: (…, parts, *frame)."""
        return _seen(*self.moved(parts))

    def forward(self, parts: Capsules) -> Tensor:
        """The mean of the image: (…, *frame)."""
        return composite(*self.moved(parts))


def composite(ink: Tensor, alpha: Tensor) -> Tensor:
    """Layers (…, layers, channels, height, width), the first lowest, over black; all at once.

    A layer is seen through what lies over it: :math:`c_k a_k prod_{l > k} (1 - a_l)`, of which
    :math:`c_k a_k` is its ink.
    """
    return _seen(ink, alpha).sum(-4)


def _seen(ink: Tensor, alpha: Tensor) -> Tensor:
    """Of every layer, what the layers over it let through."""
    through = torch.log1p(-_OPAQUE * alpha)
    over = through.sum(-4, keepdim=True) - through.cumsum(-4)
    return ink * over.exp()
