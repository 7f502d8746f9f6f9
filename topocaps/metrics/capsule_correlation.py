"""CapCorr (Eq. 14, 16, 17): the correlation of observed rolls with the factor that moved."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.linalg import vector_norm

from topocaps.errors import BadInput
from topocaps.latents.rolling import roll
from topocaps.latents.topography import KELLER_2021
from topocaps.metrics.equivariance import SITE_AXIS, as_latents
from topocaps.references import cites


@dataclass(frozen=True)
class CapCorr:
    """CapCorr of one factor, and the values that it comes from."""

    observed: Tensor  #: (sequences,) observed rolls, in frames
    true: Tensor  #: (sequences,) index of the factor at frame 0
    agreements: Tensor  #: (sequences,) share of capsules whose roll is the mode
    dropped: int  #: number of other sequences, in which the factor never has index 0

    @classmethod
    def join(cls, parts: Sequence[CapCorr]) -> CapCorr:
        """Concatenate the values of several batches."""
        return cls(
            observed=torch.cat([part.observed for part in parts]),
            true=torch.cat([part.true for part in parts]),
            agreements=torch.cat([part.agreements for part in parts]),
            dropped=sum(part.dropped for part in parts),
        )

    @property
    def agreement(self) -> float:
        """Mean share of capsules whose roll is the mode."""
        return self.agreements.mean().item()

    @property
    def correlation(self) -> float:
        """Pearson's correlation; NaN if the observed or the true rolls do not vary."""
        if len(self.true) < 2:
            return math.nan
        a, b = (v.double() - v.double().mean() for v in (self.observed, self.true))
        scale = (a.square().sum() * b.square().sum()).sqrt()
        return ((a * b).sum() / scale).item() if scale > 0 else math.nan


@cites(KELLER_2021)
def capcorr(t: Any, factors: Any, rate: float = 1.0) -> dict[int, float]:
    """Return {factor column: correlation} for the factors that move.

    Args:
        t: latents (batch, time, capsules, *shape).
        factors: integer indices (batch, time, factor).
        rate: sites by which capsules should move while a factor moves by one index a frame.

    >>> y = (torch.arange(5) + torch.arange(5)[:, None]) % 5  # five sequences with different starts
    >>> t = torch.eye(5)[y][:, :, None]  # the active site is the index of the factor
    >>> capcorr(t, y[..., None])
    {0: 1.0}
    """
    rolls_by_factor = observed_rolls(t, factors, rate)
    return {column: rolls.correlation for column, rolls in rolls_by_factor.items()}


@cites(KELLER_2021)
def observed_rolls(t: Any, factors: Any, rate: float = 1.0) -> dict[int, CapCorr]:
    r"""Return the rolls of Eq. 16 for every factor that moves.

    Let :math:`\Omega` be a frame where the factor has index 0. The roll of a capsule is
    :math:`\arg\max_n \langle Roll_n t_\Omega, t_0 \rangle`, and the roll of a sequence is the mode
    over its capsules (the smallest of ties). If a sequence has several :math:`\Omega`, the one
    whose roll is closest to the truth counts. This follows the paper and is optimistic.

    Rolls are counted in indices of the factor. If it moves by one index a frame, one of them is a
    roll by ``rate`` sites. A fraction of a site is a partial roll (Eq. 20).

    Args:
        t: latents (batch, time, capsules, *shape).
        factors: integer indices (batch, time, factor).
        rate: sites by which capsules should move in a frame.

    Returns:
        {factor column: rolls}.
    """
    t = as_latents(t)
    factors = torch.as_tensor(factors)
    if factors.ndim != 3 or factors.shape[:2] != t.shape[:2]:
        raise BadInput(
            f"factors must be (batch, time, factor) with {tuple(t.shape[:2])} first, "
            f"not {tuple(factors.shape)}"
        )
    if factors.is_floating_point():
        raise BadInput("factors must be integer indices, not floats")
    if rate == 0:
        raise BadInput("CapCorr needs a rate other than 0 sites per frame")
    factors = factors.to(t.device)
    moves = (factors != factors[:, :1]).any(1)  # batch factor
    by_factor = {}
    for column in moves.any(0).nonzero().flatten().tolist():
        rows = moves[:, column]
        y = factors[rows][:, :, column]
        rolls, agreement = _rolls_to_start(t[rows], rate / _step(y), int(y.max()) + 1)  # batch time
        true, at_zero = y[:, 0], y == 0
        has_omega = at_zero.any(1)
        distance = (rolls - true[:, None]).abs().masked_fill(~at_zero, torch.inf)
        omega = distance.argmin(1, keepdim=True)
        by_factor[column] = CapCorr(
            observed=rolls.gather(1, omega)[has_omega, 0].cpu(),
            true=true[has_omega].cpu(),
            agreements=agreement.gather(1, omega)[has_omega, 0].cpu(),
            dropped=int((~has_omega).sum()),
        )
    return by_factor


def _step(y: Tensor) -> int:
    """Return the most frequent step of a factor, in indices a frame.

    Other steps occur where the factor starts again.
    """
    steps = y.diff(dim=1).abs()
    sizes, counts = steps[steps > 0].unique(return_counts=True)
    return int(sizes[counts.argmax()])


def _rolls_to_start(t: Tensor, size: float, values: int) -> tuple[Tensor, Tensor]:
    """Return the mode of the capsules' rolls from every frame to frame 0, and its share.

    The candidates are multiples of ``size`` sites. They go at least once round the capsule, and
    are at least as many as the factor has values.
    """
    steps = max(math.ceil(t.shape[SITE_AXIS] / abs(size)), values)
    sites = tuple(range(SITE_AXIS, t.ndim))
    match = []
    for n in range(steps):
        rolled = roll(t, size * n, SITE_AXIS)
        # a partial roll averages neighbours, which reduces the norm
        length = vector_norm(rolled, dim=sites).clamp_min(1e-30)
        match.append((rolled * t[:, :1]).sum(sites) / length)
    rolls = torch.stack(match, -1).argmax(-1)  # batch time capsules
    votes = torch.nn.functional.one_hot(rolls, steps).sum(2)  # batch time steps
    most, mode = votes.max(-1)  # the first of equal votes, which is the smallest roll
    return mode.float(), most / t.shape[2]
