"""Capsules of several axes: along which one did they move?"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import combinations, permutations
from typing import TypeVar

import torch
from torch import Tensor
from torch.linalg import vector_norm

from topocaps.latents.rolling import roll
from topocaps.metrics.equivariance import SITE_AXIS, as_latents

STILL = -1
CLEARLY = 0.8  #: of what other rolls leave: that much, or less, is clearly nearer

Factor = TypeVar("Factor")


def axis_moved(t: Tensor, rate: float = 1.0) -> Tensor:
    """The one axis along which each capsule moved, (batch, capsules), or ``STILL``.

    t: (batch, time, capsules, *shape). A roll along an axis by ``rate`` sites brings a capsule near
    to the next frame's: by 1 less the cosine, averaged over frames. It has to leave less than
    ``CLEARLY`` of what is left by no roll at all, by that along any other axis, and by those along
    several at once; else nothing moved, or not along one axis alone.

    Capsules share nothing, so one may take x along its first axis, and another y.
    """
    t = as_latents(t)
    sites = tuple(range(SITE_AXIS, t.ndim))
    t = t - t.mean(sites, keepdim=True)  # all are near their prior's mean; what is beside it moves
    now, coming = t[:, :-1], t[:, 1:]

    def left(axes: tuple[int, ...]) -> Tensor:
        moved = now
        for dim in axes:
            moved = roll(moved, rate, dim)
        lengths = vector_norm(moved, dim=sites) * vector_norm(coming, dim=sites)
        return 1 - ((moved * coming).sum(sites) / lengths.clamp_min(1e-30)).mean(1)

    others = [axes for n in range(len(sites) + 1) if n != 1 for axes in combinations(sites, n)]
    alone = torch.stack([left((dim,)) for dim in sites])  # axes batch capsules
    least, best = alone.min(0)
    rest = alone.scatter(0, best[None], torch.inf)
    rest = torch.cat([rest, torch.stack([left(axes) for axes in others])]).amin(0)
    return torch.where(least < CLEARLY * rest, best, STILL)


def axis_shares(moved: Tensor, factors: Tensor) -> dict[int, list[float]]:
    """{factor column: share of its sequences in which a capsule moved along each axis}; in the rest
    it stood still, or moved along several. ``moved``: (batch,), of one capsule."""
    moves = (factors != factors[:, :1]).any(1)
    axes = range(max(2, int(moved.max()) + 1))
    return {
        column: [(moved[moves[:, column]] == axis).float().mean().item() for axis in axes]
        for column in moves.any(0).nonzero().flatten().tolist()
    }


def own_axes(shares: Mapping[Factor, Sequence[float]]) -> dict[Factor, float]:
    """{factor: share of its sequences in which a capsule moved along the factor's own axis}.

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
