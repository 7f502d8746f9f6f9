"""Evaluation of trained models: metrics, figures and rows of tables for each family."""

from topocaps.study.evaluation.base import Evaluation, evaluation_of
from topocaps.study.evaluation.part_whole import PartWholeEvaluation
from topocaps.study.evaluation.rolling import RollingEvaluation
from topocaps.study.evaluation.topographic import TopographicEvaluation

__all__ = [
    "Evaluation",
    "PartWholeEvaluation",
    "RollingEvaluation",
    "TopographicEvaluation",
    "evaluation_of",
]
