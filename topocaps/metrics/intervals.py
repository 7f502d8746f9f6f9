"""Numbers over sequences, and how far other sequences would have taken them."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

Interval = tuple[float, float]

_NORMAL = 1.96  # standard errors, 95 %
_ENDS = (0.025, 0.975)
_AT_ONCE = 100  # draws, of a bootstrap


@dataclass(frozen=True)
class Mean:
    """A number over sequences: the mean of ``values`` (sequences,).

    With ``weights`` it is a ratio of sums, such as what was gained over what could be; where there
    are several of them, (sequences, parts), it is the mean of the parts'.
    """

    values: Tensor
    weights: Tensor | None = None

    @property
    def each(self) -> Tensor:
        """Of every sequence, (sequences,); NaN where it has no weight."""
        if self.weights is None:
            return self.values
        values, weights = (v.reshape(len(v), -1).sum(1) for v in (self.values, self.weights))
        return values / weights

    @property
    def value(self) -> float:
        return self._of(torch.ones(1, len(self.values), dtype=torch.float64)).item()

    def interval(self, draws: int = 1000, seed: int = 0) -> Interval:
        """95 %, over sequences: 1.96 standard errors either way or, of a ratio, by bootstrap."""
        n = len(self.values)
        if self.weights is None:
            error = self.values.double().std().item() / math.sqrt(n) if n > 1 else math.nan
            return self.value - _NORMAL * error, self.value + _NORMAL * error
        generator = torch.Generator().manual_seed(seed)
        counts = (
            _counts(min(_AT_ONCE, draws - k), n, generator) for k in range(0, draws, _AT_ONCE)
        )
        found = torch.cat([self._of(count) for count in counts])
        low, high = found.nanquantile(torch.tensor(_ENDS, dtype=torch.float64)).tolist()
        return low, high

    def _of(self, counts: Tensor) -> Tensor:
        """Where sequences count so often, (draws, sequences): (draws,)."""
        values = counts @ self.values.double().reshape(len(self.values), -1)
        if self.weights is None:
            return values[:, 0] / counts.sum(1)
        weights = counts @ self.weights.double().reshape(len(self.weights), -1)
        return (values / weights).nanmean(1)


def _counts(draws: int, n: int, generator: torch.Generator) -> Tensor:
    """How often each of n is drawn when n are, with replacement: (draws, n)."""
    drawn = torch.randint(n, (draws, n), generator=generator) + n * torch.arange(draws)[:, None]
    return drawn.flatten().bincount(minlength=draws * n).view(draws, n).double()


def at_the_ends(metrics: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Metrics with the lower, and with the upper end of intervals in place of numbers; None in
    place of those that have no interval."""

    def at(end: int) -> dict[str, Any]:
        def those(intervals: Mapping[str, Interval | None]) -> dict[str, float]:
            return {name: ends[end] for name, ends in intervals.items() if ends is not None}

        numbers = {k: None for k, v in metrics.items() if isinstance(v, int | float | None)}
        return {
            **numbers,
            **{name: dict.fromkeys(v) for name, v in metrics.items() if isinstance(v, dict)},
            "traversal": {"by_factor": those(metrics["traversal"]["interval"])},
            **those(metrics["intervals"]),
        }

    return at(0), at(1)
