"""What is measured of a trained model, drawn of it and put into tables, for each family."""

from typing import Any

from topocaps.capsules import PartWhole
from topocaps.models.base import GenerativeModel
from topocaps.study.evaluation.base import EVALUATION_SEED, Evaluation, ExtraMetric
from topocaps.study.evaluation.part_whole import PartWholeEvaluation
from topocaps.study.evaluation.topographic import TopographicEvaluation


def evaluation_of(model: GenerativeModel) -> Evaluation[Any]:
    """Return the evaluation for the family of a model."""
    return PartWholeEvaluation() if isinstance(model, PartWhole) else TopographicEvaluation()


__all__ = ["EVALUATION_SEED", "Evaluation", "ExtraMetric", "evaluation_of"]
