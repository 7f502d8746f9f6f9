"""Quantities: the key, the label and the format of a number.

Reports, tables of results and claims use the same quantities and write them alike.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

ABSENT = "–"
PLUS_MINUS = "\u00a0±\u00a0"  # no line break inside, however narrow a table is
MINUS = "−"


@dataclass(frozen=True)
class Quantity:
    """A number that is recorded under ``key``, the path to it in metrics, results and claims."""

    key: tuple[str, ...]
    label: str
    digits: int  #: after the decimal point
    legend: tuple[str, str] | None = None  #: a term, and what it means
    group: str = ""  #: label of the line, if a table has several lines for each model
    largest: bool = False  #: whether a table shows the largest value over seeds, not the mean
    spread_like: tuple[str, ...] = ()  #: key of a number with a similar spread over seeds
    interval: tuple[str, ...] = ()  #: key of its 95 % interval, shown if there is a single seed
    control: bool = True  #: whether a table also shows the value of the untrained model

    def of(self, metrics: Any) -> Any:
        """Return the value that is recorded under the key, or None."""
        for name in self.key:
            metrics = metrics.get(name) if isinstance(metrics, Mapping) else None
        return metrics

    def values(self, results: Iterable[Mapping[str, Any]]) -> list[float]:
        """Return the numbers of the results that record one."""
        values = map(self.of, results)
        return [float(value) for value in values if isinstance(value, int | float)]

    def write(self, value: float | None, spread: float | None = None) -> str:
        """Return the number as text, with its ``spread`` if one is given.

        >>> Quantity(("elbo",), "ELBO", 1).write(-1234.56)
        '−1,234.6'
        """
        if value is None:
            return ABSENT
        text = f"{value:,.{self.digits}f}".replace("-", MINUS)
        return text if spread is None else f"{text}{PLUS_MINUS}{spread:,.{self.digits}f}"

    def interval_of(self, metrics: Any) -> tuple[float, float] | None:
        """Return the 95 % interval of the number, if it is recorded."""
        ends = replace(self, key=self.interval).of(metrics) if self.interval else None
        return None if ends is None else (ends[0], ends[1])

    @property
    def untrained(self) -> Quantity:
        """The same quantity of the model before its first step."""
        return replace(self, key=("untrained", *self.key))


def table(
    quantities: Sequence[Quantity], columns: Mapping[str, Mapping[str, Any]]
) -> list[list[str]]:
    """Return metrics as text: a header of names, then a row for each quantity."""
    rows = [
        [q.label, *(q.write(q.of(metrics)) for metrics in columns.values())] for q in quantities
    ]
    return [["", *columns], *rows]
