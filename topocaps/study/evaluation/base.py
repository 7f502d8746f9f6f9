"""The interface of evaluations: what is measured and drawn of the models of one family."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Generic, TypeVar

import torch
from matplotlib.figure import Figure

from topocaps.data.sequences import SequenceSet
from topocaps.device import seeded
from topocaps.errors import BadInput
from topocaps.metrics.visible_frames import Fill
from topocaps.models.base import GenerativeModel
from topocaps.study import data as study_data
from topocaps.study.drawing import Drawing
from topocaps.study.finished import Finished, Model
from topocaps.study.quantity import Quantity
from topocaps.study.recipe import BaseRecipe

EVALUATION_SEED = 0  # the same sequences and noise for every model that is compared
EXAMPLES_SEED = 1  # of the sequences in figures


@dataclass(frozen=True)
class ExtraMetric:
    """Numbers that only the tables of results have, since they take long to measure."""

    names: tuple[str, ...]  #: keys of the results
    measure: Callable[[], dict[str, Any]]


class Evaluation(Generic[Model]):
    """How models of one family are measured, drawn and put into a table.

    By default these are the terms and monitors of a model, without figures.
    """

    #: Captions by figure, in the order of the report. ``history`` is drawn for every family.
    captions: ClassVar[dict[str, str]] = {
        "history": "The objective and its terms over training, in nats per frame."
    }
    #: Whether `SOME` training sequences of every factor are measured, or as many as held-out ones.
    some_of_train: ClassVar[bool] = False

    def measure(
        self,
        model: Model,
        untrained: Model,
        splits: study_data.Splits,
        recipe: BaseRecipe,
        device: torch.device,
    ) -> dict[str, Any]:
        """Measure held-out data; ``untrained`` and ``train`` hold the numbers of the controls."""

        def on(sequences: SequenceSet, each: int | None, which: Model) -> dict[str, Any]:
            fixed = sequences.balanced(each, EVALUATION_SEED).to(device)
            return self.numbers(which.to(device), fixed, recipe)

        train_each = study_data.SOME if self.some_of_train else splits.each
        return {
            **on(splits.held_out, splits.each, model),
            "untrained": on(splits.held_out, splits.each, untrained),
            "train": on(splits.measured_train, train_each, model),
        }

    def numbers(self, model: Model, sequences: SequenceSet, recipe: BaseRecipe) -> dict[str, Any]:
        """Return the numbers of a model on a fixed set of sequences."""
        return {**mean_terms(model, sequences), "sequences": len(sequences)}

    def draw(self, run: Finished[Model], held_out: SequenceSet) -> Mapping[str, Drawing]:
        """Return the figures of a report, by the names of ``captions``."""
        return {}

    def quantities(self, columns: Sequence[Mapping[str, Any]]) -> list[Quantity]:
        """Return the rows of a table whose columns are these metrics."""
        names = [name for name in columns[0] if isinstance(columns[0][name], float)]
        recorded = [name for name in names if all(name in column for column in columns)]
        return [Quantity((name,), name.replace("_", " "), 2) for name in recorded]

    def fill(self, model: Model, recipe: BaseRecipe) -> Fill | None:
        """Return the function by which the model fills hidden frames in, if it can."""
        return None

    def traversals(self, run: Finished[Model], held_out: SequenceSet, each: int) -> Figure:
        """Return a figure of decoded rolls of ``each`` held-out sequences of every factor.

        A family whose latents do not roll raises `BadInput`.
        """
        raise BadInput(
            f"{run.folder.path} has no capsules that roll: see its {run.folder.report.name} "
            f"(topocaps evaluate {run.folder.path} writes it)"
        )

    def remarks(self, metrics: Mapping[str, Any]) -> list[str]:
        """Return sentences that a reader of these metrics needs to know."""
        return []

    def extra_metrics(self, run: Finished[Model], data: Path | None) -> list[ExtraMetric]:
        """Return what can be measured for the tables of results besides ``measure``."""
        return []

    def result_figures(self, run: Finished[Model], held_out: SequenceSet) -> Mapping[str, Drawing]:
        """Return the figures that stand beside the results of a run."""
        return self.draw(run, held_out)


#: Evaluations by the class of their models. A family joins with the decorator `evaluates`.
EVALUATIONS: dict[type, Evaluation[Any]] = {GenerativeModel: Evaluation()}
Kind = TypeVar("Kind", bound=type[Evaluation[Any]])


def evaluates(model: type) -> Callable[[Kind], Kind]:
    """Add an evaluation for a class of models and its subclasses, as a decorator."""

    def join(evaluation: Kind) -> Kind:
        EVALUATIONS[model] = evaluation()
        return evaluation

    return join


def evaluation_of(model: GenerativeModel) -> Evaluation[Any]:
    """Return the evaluation of the nearest class of a model that has one."""
    return next(EVALUATIONS[kind] for kind in type(model).__mro__ if kind in EVALUATIONS)


@torch.no_grad()
def mean_terms(
    model: GenerativeModel, sequences: SequenceSet, batch: int = 128
) -> dict[str, float]:
    """Return the means of a model's terms and monitors over sequences."""
    totals = dict.fromkeys(model.recorded, 0.0)
    with seeded(EVALUATION_SEED):
        for one in sequences.batches(batch):
            evidence = model(one.x, one.mask)
            for name in totals:
                totals[name] += getattr(evidence, name).mean().item() * len(one.x)
    return {name: total / len(sequences) for name, total in totals.items()}
