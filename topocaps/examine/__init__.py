"""Finished runs: measured, drawn, put into tables."""

from typing import Any

from topocaps.capsules import PartWhole
from topocaps.examine.examination import EVALUATION_SEED, Examination, Measured
from topocaps.examine.part_whole import PartWholeExamination
from topocaps.examine.topographic import TopographicExamination
from topocaps.models.base import GenerativeModel


def examination_of(model: GenerativeModel) -> Examination[Any]:
    """The one for models of this kind."""
    return PartWholeExamination() if isinstance(model, PartWhole) else TopographicExamination()


__all__ = ["EVALUATION_SEED", "Examination", "Measured", "examination_of"]
