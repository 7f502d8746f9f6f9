"""Capsules of several axes: along which one did they move?"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import permutations
from typing import TypeVar

import torch
from torch import Tensor

from topocaps.metrics.equivariance import SITE_AXIS, check_latents
from topocaps.topography import roll

STILL = -1

Factor = TypeVar("Factor")


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


def own_axes(shares: Mapping[Factor, Sequence[float]]) -> dict[Factor, float]:
    """{factor: share of its sequences that moved along its own axis}.

    Which axis is whose is learned: of all ways to give each factor another one, the best. Where
    there are more factors than axes, those that are left have none.

    >>> own_axes({"x": [0.1, 0.9], "y": [0.8, 0.0]})
    {'x': 0.9, 'y': 0.8}
    """
    factors = list(shares)
    axes: list[int | None] = list(range(len(shares[factors[0]]))) if factors else []
    axes += [None] * (len(factors) - len(axes))

    def found(own: Sequence[int | None]) -> list[float]:
        taken = zip(factors, own, strict=False)
        return [0.0 if axis is None else shares[factor][axis] for factor, axis in taken]

    best = max((found(own) for own in permutations(axes)), key=sum)
    return dict(zip(factors, best, strict=False))
