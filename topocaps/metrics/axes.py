"""Capsules of several axes: along which one did they move?"""

from __future__ import annotations

import torch
from torch import Tensor

from topocaps.metrics.equivariance import SITE_AXIS, check_latents
from topocaps.topography import roll

STILL = -1


def axis_moved(t: Tensor, rate: float = 1.0) -> Tensor:
    """The axis along which each sequence moved, (batch,), or ``STILL``.

    t: (batch, time, capsules, *shape). An axis is the one along which a roll by ``rate`` sites
    brings capsules nearest to the next frame's (by the cosine, averaged over frames and capsules);
    where every roll is farther from it than no roll at all, nothing moved.
    """
    check_latents(t)
    sites = tuple(range(SITE_AXIS, t.ndim))
    t = t - t.mean(
        sites, keepdim=True
    )  # all t are near their prior's mean; what is beside it moves
    now, coming = t[:, :-1], t[:, 1:]

    def match(moved: Tensor) -> Tensor:
        lengths = moved.norm(dim=sites) * coming.norm(dim=sites)
        return ((moved * coming).sum(sites) / lengths.clamp_min(1e-30)).mean((1, 2))

    found = [match(now), *(match(roll(now, rate, dim)) for dim in sites)]
    return torch.stack(found).argmax(0) - 1


def axis_shares(moved: Tensor, factors: Tensor) -> dict[int, list[float]]:
    """{factor column: share of its sequences that moved along each axis}; the rest stood still."""
    moves = (factors != factors[:, :1]).any(1)
    axes = range(max(2, int(moved.max()) + 1))
    return {
        column: [(moved[moves[:, column]] == axis).float().mean().item() for axis in axes]
        for column in moves.any(0).nonzero().flatten().tolist()
    }
