"""CapCorr (Eq. 14, 16, 17): does the roll seen in the capsules follow the factor that moved?"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from topocaps.errors import BadInput
from topocaps.metrics.equivariance import SITE_AXIS, check_latents
from topocaps.topography import roll


@dataclass(frozen=True)
class CapCorr:
    """CapCorr of one factor, and the values behind it."""

    observed: Tensor  # (sequences,) rolls seen, in frames
    true: Tensor  # (sequences,) index of the factor at frame 0
    agreements: Tensor  # (sequences,) share of capsules whose own roll is the mode of all
    dropped: int  # sequences in which the factor never has index 0

    @classmethod
    def join(cls, parts: Sequence[CapCorr]) -> CapCorr:
        """One of several batches."""
        return cls(
            observed=torch.cat([part.observed for part in parts]),
            true=torch.cat([part.true for part in parts]),
            agreements=torch.cat([part.agreements for part in parts]),
            dropped=sum(part.dropped for part in parts),
        )

    @property
    def agreement(self) -> float:
        """Mean share of capsules whose own roll is the mode of all."""
        return self.agreements.mean().item()

    @property
    def correlation(self) -> float:
        """Pearson's; NaN where either does not vary."""
        if len(self.true) < 2:
            return math.nan
        a, b = (v.double() - v.double().mean() for v in (self.observed, self.true))
        scale = (a.square().sum() * b.square().sum()).sqrt()
        return ((a * b).sum() / scale).item() if scale > 0 else math.nan


def capcorr(t: Tensor, factors: Tensor, rate: float = 1.0) -> dict[int, float]:
    """{factor column: correlation}, for the factors that move.

    t: (batch, time, capsules, *shape), factors: (batch, time, factor), integer indices.

    >>> y = (torch.arange(5) + torch.arange(5)[:, None]) % 5  # five sequences, each from elsewhere
    >>> t = torch.eye(5)[y][:, :, None]  # active where the factor is
    >>> capcorr(t, y[..., None])
    {0: 1.0}
    """
    return {column: found.correlation for column, found in observed_rolls(t, factors, rate).items()}


def observed_rolls(t: Tensor, factors: Tensor, rate: float = 1.0) -> dict[int, CapCorr]:
    r"""The rolls of Eq. 16 for every factor that moves.

    For each sequence, :math:`\Omega` is a frame where the factor has index 0; the roll is
    :math:`\arg\max_n \langle Roll_n t_\Omega, t_0 \rangle` in each capsule, then the mode over
    capsules (the smallest of ties). Where a sequence has several :math:`\Omega` the one whose roll
    is closest to the truth counts, as in the paper: optimistic. Rolls are counted in frames of
    ``rate`` sites.
    """
    check_latents(t)
    if factors.ndim != 3 or factors.shape[:2] != t.shape[:2]:
        raise BadInput(
            f"factors must be (batch, time, factor) with {tuple(t.shape[:2])} first, "
            f"not {tuple(factors.shape)}"
        )
    if rate <= 0:
        raise BadInput(f"rate must be more than 0 sites a frame, not {rate}")
    factors = factors.to(t.device)
    moves = (factors != factors[:, :1]).any(1)  # batch factor
    rolls, agreement = _rolls_to_start(t, rate)  # batch time
    found = {}
    for column in moves.any(0).nonzero().flatten().tolist():
        rows = moves[:, column]
        y = factors[rows][:, :, column]
        at_zero = y == 0
        # frames since the factor was 0; its own index, where it was so several times
        since = -at_zero.float().argmax(1) % y.shape[1]
        true = torch.where(at_zero.sum(1) == 1, since, y[:, 0])
        has_omega = at_zero.any(1)
        distance = (rolls[rows] - true[:, None]).abs().masked_fill(~at_zero, torch.inf)
        omega = distance.argmin(1, keepdim=True)
        found[column] = CapCorr(
            observed=rolls[rows].gather(1, omega)[has_omega, 0].cpu(),
            true=true[has_omega].cpu(),
            agreements=agreement[rows].gather(1, omega)[has_omega, 0].cpu(),
            dropped=int((~has_omega).sum()),
        )
    return found


def _rolls_to_start(t: Tensor, rate: float) -> tuple[Tensor, Tensor]:
    """From every frame to frame 0: the mode of the capsules' rolls, and their agreement on it."""
    # once round; of faster motion, all places that its frames come to
    steps = math.ceil(t.shape[SITE_AXIS] / rate) if rate <= 1 else t.shape[1]
    sites = tuple(range(SITE_AXIS, t.ndim))
    match = []
    for n in range(steps):
        rolled = roll(t, rate * n, SITE_AXIS)
        # a partial roll is an average, hence shorter; a whole one is as long as t
        length = rolled.norm(dim=sites).clamp_min(1e-30)
        match.append((rolled * t[:, :1]).sum(sites) / length)
    rolls = torch.stack(match, -1).argmax(-1)  # batch time capsules
    votes = torch.nn.functional.one_hot(rolls, steps).sum(2)  # batch time steps
    most, mode = votes.max(-1)
    # max() returns any of several equal entries; the smallest roll is wanted
    mode = torch.where(votes == most[..., None], torch.arange(steps, device=t.device), steps).amin(
        -1
    )
    return mode.float(), most / t.shape[2]
