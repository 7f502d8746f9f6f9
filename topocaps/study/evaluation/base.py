"""The interface of evaluations: what is measured and drawn of the models of one family."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Generic

import torch
from matplotlib.figure import Figure

from topocaps.data.sequences import SequenceSet
from topocaps.study.data import Splits
from topocaps.study.finished import Finished, Model
from topocaps.study.quantity import Quantity
from topocaps.study.recipe import BaseRecipe

EVALUATION_SEED = 0  # the same sequences and noise for every model that is compared


@dataclass(frozen=True)
class ExtraMetric:
    """Numbers that only the tables of results have, since they take long to measure."""

    names: tuple[str, ...]  #: keys of the results
    measure: Callable[[], dict[str, Any]]


class Evaluation(ABC, Generic[Model]):
    """How models of one family are measured, drawn and put into a table."""

    #: Captions by figure, in the order of the report. ``history`` is drawn for every family.
    captions: ClassVar[dict[str, str]]

    @abstractmethod
    def measure(
        self,
        model: Model,
        untrained: Model,
        splits: Splits,
        recipe: BaseRecipe,
        device: torch.device,
    ) -> dict[str, Any]:
        """Measure held-out data; ``untrained`` and ``train`` hold the numbers of the controls."""

    @abstractmethod
    def draw(self, run: Finished[Model], held_out: SequenceSet) -> dict[str, Figure]:
        """Return the figures of a report, by the names of ``captions``."""

    @abstractmethod
    def quantities(self, columns: Sequence[Mapping[str, Any]]) -> list[Quantity]:
        """Return the rows of a table whose columns are these metrics."""

    def extra_metrics(self, run: Finished[Model], data: Path | None) -> list[ExtraMetric]:
        """Return what can be measured for the tables of results besides ``measure``."""
        return []

    def result_figures(self, run: Finished[Model], held_out: SequenceSet) -> dict[str, Figure]:
        """Return the figures that stand beside the results of a run."""
        return self.draw(run, held_out)
