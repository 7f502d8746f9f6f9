"""The axis along which capsules with several axes moved."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import combinations, permutations
from typing import TypeVar

import torch
from torch import Tensor
from torch.linalg import vector_norm

from topocaps.latents.rolling import roll
from topocaps.metrics.equivariance import SITE_AXIS, as_latents

STILL = -1  #: index of capsules that moved along no single axis
MARGIN = 0.8  #: largest ratio of the best roll's distance to that of the second best

Factor = TypeVar("Factor")


def axis_moved(t: Tensor, rate: float = 1.0) -> Tensor:
    """Return the axis along which each capsule moved, or ``STILL``: (batch, capsules).

    The distance of a roll is 1 minus the cosine between the rolled capsule and the capsule of the
    next frame, averaged over frames. A capsule moved along an axis if the distance of the roll
    along this axis is less than ``MARGIN`` times every other distance: that of no roll, of rolls
    along other axes, and of rolls along several axes at once.

    Args:
        t: latents (batch, time, capsules, *shape).
        rate: sites per frame.
    """
    t = as_latents(t)
    sites = tuple(range(SITE_AXIS, t.ndim))
    t = t - t.mean(sites, keepdim=True)  # the mean does not move
    earlier, later = t[:, :-1], t[:, 1:]

    def distance(axes: tuple[int, ...]) -> Tensor:
        rolled = earlier
        for dim in axes:
            rolled = roll(rolled, rate, dim)
        norms = vector_norm(rolled, dim=sites) * vector_norm(later, dim=sites)
        return 1 - ((rolled * later).sum(sites) / norms.clamp_min(1e-30)).mean(1)

    single = torch.stack([distance((dim,)) for dim in sites])  # axes batch capsules
    none_or_several = [
        axes for n in range(len(sites) + 1) if n != 1 for axes in combinations(sites, n)
    ]
    least, best = single.min(0)
    others = single.scatter(0, best[None], torch.inf)
    others = torch.cat([others, torch.stack([distance(axes) for axes in none_or_several])]).amin(0)
    return torch.where(least < MARGIN * others, best, STILL)


def axis_shares(moved: Tensor, factors: Tensor) -> dict[int, list[float]]:
    """Return {factor column: share of its sequences in which a capsule moved along each axis}.

    Args:
        moved: axes of one capsule from `axis_moved`, (batch,).
        factors: factors of the frames, (batch, time, factor).
    """
    moves = (factors != factors[:, :1]).any(1)
    axes = range(max(2, int(moved.max()) + 1))
    return {
        column: [(moved[moves[:, column]] == axis).float().mean().item() for axis in axes]
        for column in moves.any(0).nonzero().flatten().tolist()
    }


def own_axes(shares: Mapping[Factor, Sequence[float]]) -> dict[Factor, float]:
    """Return {factor: share of its sequences in which a capsule moved along the factor's own axis}.

    Each factor gets a different axis, by the assignment with the greatest sum of shares. If there
    are more factors than axes, the remaining factors get none and a share of 0.

    >>> own_axes({"x": [0.1, 0.9], "y": [0.8, 0.0]})
    {'x': 0.9, 'y': 0.8}
    """
    factors = list(shares)
    axes: list[int | None] = list(range(len(shares[factors[0]]))) if factors else []
    axes += [None] * (len(factors) - len(axes))

    def assigned(order: Sequence[int | None]) -> list[float]:
        pairs = zip(factors, order, strict=False)
        return [0.0 if axis is None else shares[factor][axis] for factor, axis in pairs]

    best = max((assigned(order) for order in permutations(axes)), key=sum)
    return dict(zip(factors, best, strict=False))
