"""What is measured and drawn of a trained model, for each family."""

from topocaps.study.evaluation.base import (
    EVALUATION_SEED,
    Evaluation,
    ExtraMetric,
    evaluates,
    evaluation_of,
)
from topocaps.study.evaluation.part_whole import PartWholeEvaluation
from topocaps.study.evaluation.rolling import RollingEvaluation
from topocaps.study.evaluation.topographic import TopographicEvaluation

__all__ = [
    "EVALUATION_SEED",
    "Evaluation",
    "ExtraMetric",
    "PartWholeEvaluation",
    "RollingEvaluation",
    "TopographicEvaluation",
    "evaluates",
    "evaluation_of",
]
