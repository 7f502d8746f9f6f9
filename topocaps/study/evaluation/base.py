"""`Evaluation`, the base of the metrics, figures and table rows of one family of models."""

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

EVALUATION_SEED = 0  # gives all models the same sequences and noise
EXAMPLES_SEED = 1  # chooses the sequences in figures


@dataclass(frozen=True)
class ExtraMetric:
    """Numbers that only ``topocaps reproduce`` measures, since they take long."""

    names: tuple[str, ...]  #: keys of the results that ``measure`` returns
    measure: Callable[[], dict[str, Any]]


class Evaluation(Generic[Model]):
    """Metrics, figures and rows of tables of one family of models.

    The base class measures the terms and monitors of a model, and draws no figures.
    """

    #: Captions by figure, in the order of the report. ``history`` is drawn for every family.
    captions: ClassVar[dict[str, str]] = {
        "history": "The objective and its terms over training, in nats per frame."
    }
    #: Whether `SOME` training sequences of every factor are measured instead of ``splits.each``.
    some_of_train: ClassVar[bool] = False

    def measure(
        self,
        model: Model,
        untrained: Model,
        splits: study_data.Splits,
        recipe: BaseRecipe,
        device: torch.device,
    ) -> dict[str, Any]:
        """Return the metrics of a run.

        These are the numbers of the model on held-out sequences, those of the untrained model under
        ``untrained``, and those of the model on training sequences under ``train``.
        """

        def measure_on(sequences: SequenceSet, each: int | None, model: Model) -> dict[str, Any]:
            fixed = sequences.balanced(each, EVALUATION_SEED).to(device)
            return self.numbers(model.to(device), fixed, recipe)

        train_each = study_data.SOME if self.some_of_train else splits.each
        return {
            **measure_on(splits.held_out, splits.each, model),
            "untrained": measure_on(splits.held_out, splits.each, untrained),
            "train": measure_on(splits.measured_train, train_each, model),
        }

    def numbers(self, model: Model, sequences: SequenceSet, recipe: BaseRecipe) -> dict[str, Any]:
        """Return the numbers of a model on a fixed set of sequences."""
        return {**mean_terms(model, sequences), "sequences": len(sequences)}

    def draw(self, run: Finished[Model], held_out: SequenceSet) -> Mapping[str, Drawing]:
        """Return the figures of a report, by the names of ``captions``."""
        return {}

    def quantities(self, columns: Sequence[Mapping[str, Any]]) -> list[Quantity]:
        """Return the quantities of a table that has a column for each of these metrics."""
        names = [name for name in columns[0] if isinstance(columns[0][name], float)]
        recorded = [name for name in names if all(name in column for column in columns)]
        return [Quantity((name,), name.replace("_", " "), 2) for name in recorded]

    def fill(self, model: Model, recipe: BaseRecipe) -> Fill | None:
        """Return the function with which the model fills in hidden frames, or None."""
        return None

    def traversals(self, run: Finished[Model], held_out: SequenceSet, each: int) -> Figure:
        """Return a figure of decoded rolls of ``each`` held-out sequences of every factor.

        A family whose latents do not roll raises `BadInput`.
        """
        raise BadInput(
            f"{run.folder.path} has no capsules that roll: see {run.folder.report.name}, which "
            f"topocaps evaluate {run.folder.path} writes"
        )

    def remarks(self, metrics: Mapping[str, Any]) -> list[str]:
        """Return sentences that explain these metrics in a report."""
        return []

    def extra_metrics(self, run: Finished[Model], data: Path | None) -> list[ExtraMetric]:
        """Return the metrics that only ``topocaps reproduce`` measures."""
        return []

    def result_figures(self, run: Finished[Model], held_out: SequenceSet) -> Mapping[str, Drawing]:
        """Return the figures that ``topocaps reproduce`` stores beside the results of a run."""
        return self.draw(run, held_out)


#: Evaluations by the class of their models. The decorator `evaluates` adds to it.
EVALUATIONS: dict[type, Evaluation[Any]] = {GenerativeModel: Evaluation()}
Kind = TypeVar("Kind", bound=type[Evaluation[Any]])


def evaluates(model: type) -> Callable[[Kind], Kind]:
    """Return a decorator that registers the evaluation of a class of models and its subclasses."""

    def join(evaluation: Kind) -> Kind:
        EVALUATIONS[model] = evaluation()
        return evaluation

    return join


def evaluation_of(model: GenerativeModel) -> Evaluation[Any]:
    """Return the evaluation of the class of a model, or of its nearest base class that has one."""
    return next(EVALUATIONS[base] for base in type(model).__mro__ if base in EVALUATIONS)


@torch.no_grad()
def mean_terms(
    model: GenerativeModel, sequences: SequenceSet, batch: int = 128
) -> dict[str, float]:
    """Return the means of a model's terms and monitors over sequences."""
    totals = dict.fromkeys(model.recorded, 0.0)
    with seeded(EVALUATION_SEED):
        for part in sequences.batches(batch):
            evidence = model(part.x, part.mask)
            for name in totals:
                totals[name] += getattr(evidence, name).mean().item() * len(part.x)
    return {name: total / len(sequences) for name, total in totals.items()}
