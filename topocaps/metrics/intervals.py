"""Means over sequences, and their 95 % intervals."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

Interval = tuple[float, float]

_NORMAL = 1.96  # standard errors on either side of a mean
_QUANTILES = (0.025, 0.975)  # ends of bootstrap intervals
_CHUNK = 100  # bootstrap draws that are computed at once


@dataclass(frozen=True)
class Mean:
    """A mean over sequences, or a ratio of sums over sequences.

    Without weights, the value is the mean of ``values``. With weights, it is the ratio of the sums
    of values and weights, such as nats gained over nats that could be gained. If sequences have
    several parts, it is the mean of their ratios.

    Args:
        values: values (sequences,) or, with weights, numerators (sequences, parts).
        weights: denominators, of the shape of ``values``.
    """

    values: Tensor
    weights: Tensor | None = None

    @property
    def each(self) -> Tensor:
        """The value of every sequence, (sequences,); NaN if its weight is 0."""
        if self.weights is None:
            return self.values
        values, weights = (v.reshape(len(v), -1).sum(1) for v in (self.values, self.weights))
        return values / weights

    @property
    def value(self) -> float:
        """The value over all sequences."""
        return self._of(torch.ones(1, len(self.values), dtype=torch.float64)).item()

    def interval(self, draws: int = 1000, seed: int = 0) -> Interval:
        """Return a 95 % interval of the value.

        The interval of a mean is 1.96 standard errors on either side. That of a ratio is a
        bootstrap over sequences.

        Args:
            draws: number of bootstrap draws.
            seed: seed of the bootstrap.
        """
        n = len(self.values)
        if self.weights is None:
            error = self.values.double().std().item() / math.sqrt(n) if n > 1 else math.nan
            return self.value - _NORMAL * error, self.value + _NORMAL * error
        generator = torch.Generator().manual_seed(seed)
        counts = (_counts(min(_CHUNK, draws - k), n, generator) for k in range(0, draws, _CHUNK))
        values = torch.cat([self._of(count) for count in counts])
        low, high = values.nanquantile(torch.tensor(_QUANTILES, dtype=torch.float64)).tolist()
        return low, high

    def _of(self, counts: Tensor) -> Tensor:
        """Return the values of bootstrap draws, (draws,).

        Args:
            counts: how often each draw contains each sequence, (draws, sequences).
        """
        values = counts @ self.values.double().reshape(len(self.values), -1)
        if self.weights is None:
            return values[:, 0] / counts.sum(1)
        weights = counts @ self.weights.double().reshape(len(self.weights), -1)
        return (values / weights).nanmean(1)


def _counts(draws: int, n: int, generator: torch.Generator) -> Tensor:
    """Return how often each of n items is drawn in n draws with replacement: (draws, n)."""
    drawn = torch.randint(n, (draws, n), generator=generator) + n * torch.arange(draws)[:, None]
    return drawn.flatten().bincount(minlength=draws * n).view(draws, n).double()


def at_the_ends(metrics: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the lower and the upper ends of the intervals in place of the metrics.

    Metrics without an interval become None.

    Args:
        metrics: metrics from `evaluate`, with their intervals.
    """

    def at(end: int) -> dict[str, Any]:
        def ends_of(intervals: Mapping[str, Interval | None]) -> dict[str, float]:
            return {name: ends[end] for name, ends in intervals.items() if ends is not None}

        numbers = {k: None for k, v in metrics.items() if isinstance(v, int | float | None)}
        by_factor = metrics.get("traversal", {}).get("interval", {})
        visible = {
            count: {
                **gains,
                "gain": gains["interval"] and gains["interval"][end],
                "by_factor": ends_of(gains.get("intervals", {})),
            }
            for count, gains in metrics.get("visible", {}).items()
        }
        return {
            **numbers,
            **{name: dict.fromkeys(v) for name, v in metrics.items() if isinstance(v, dict)},
            "traversal": {"by_factor": ends_of(by_factor)},
            "visible": visible,
            **ends_of(metrics["intervals"]),
        }

    return at(0), at(1)
