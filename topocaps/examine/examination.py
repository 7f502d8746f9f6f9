"""What is asked of a finished run, whatever its model."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Generic, TypeVar

import torch
from matplotlib.figure import Figure

from topocaps.data.sequences import SequenceSet
from topocaps.models.base import GenerativeModel
from topocaps.recipes.data import Splits
from topocaps.report import NONE

EVALUATION_SEED = 0  # the same sequences and noise for every model that is compared

Model = TypeVar("Model", bound=GenerativeModel)


@dataclass(frozen=True)
class Measured(Generic[Model]):
    """A run that was measured, and is to be shown."""

    model: Model
    held_out: SequenceSet
    settings: dict[str, Any]
    metrics: dict[str, Any]


@dataclass(frozen=True)
class Later:
    """Numbers that take longer: their names, and how to get them."""

    names: tuple[str, ...]
    measure: Callable[[], dict[str, Any]]


class Examination(ABC, Generic[Model]):
    """How models of one kind are measured, drawn and put into a table."""

    captions: ClassVar[
        dict[str, str]
    ]  #: of its figures, in the order they are shown; ``history`` is drawn
    legend: ClassVar[Mapping[str, str]]  #: what the rows of its table mean

    @abstractmethod
    def measure(
        self,
        model: Model,
        untrained: Model,
        splits: Splits,
        settings: dict[str, Any],
        where: torch.device,
    ) -> dict[str, Any]:
        """Numbers on what was held out, with those of the ``untrained`` model and on ``train``."""

    @abstractmethod
    def draw(self, run: Measured[Model]) -> dict[str, Figure]:
        """Everything there is to see, by the names of ``captions``."""

    def more(self, model: Model, settings: dict[str, Any], data: Path | None) -> list[Later]:
        """Numbers for the pages of results only, which take longer."""
        return []

    def keepsakes(self, run: Measured[Model]) -> dict[str, Figure]:
        """Pictures that stand beside results."""
        return self.draw(run)

    @abstractmethod
    def table(self, columns: Mapping[str, Mapping[str, Any]]) -> list[list[str]]:
        """Metrics as text: a header of names, then a row for each number."""


def number(value: float | None, digits: int) -> str:
    """As tables have it: thousands apart, a real minus, a dash where there is none."""
    return NONE if value is None else f"{value:,.{digits}f}".replace("-", "−")
