"""Importance-weighted bounds by the number of samples, for the tables of results."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from topocaps.data.sequences import SequenceSet
from topocaps.metrics import evaluation
from topocaps.metrics.evaluation import Bound
from topocaps.metrics.intervals import Mean
from topocaps.study.evaluation.base import EVALUATION_SEED, ExtraMetric
from topocaps.study.evaluation.visible import MEASURED
from topocaps.study.recipe import BaseRecipe

BOUNDS = "bounds"  # key of results
SAMPLES = (1, 10, 100)


def bound_of(log_px: Bound, sequences: SequenceSet, samples: int) -> Mean:
    """Return the bound of at most ``MEASURED`` sequences, spread over all of them."""
    return evaluation.bound_of(log_px, sequences, samples, MEASURED, EVALUATION_SEED)


def bounds_by_samples(
    log_px: Bound, recipe: BaseRecipe, device: torch.device, data: Path | None
) -> ExtraMetric:
    """Return the bounds on held-out sequences and their intervals, by the number of samples."""

    def measure() -> dict[str, Any]:
        splits = recipe.data.load(data)
        fixed = splits.held_out.balanced(splits.each, EVALUATION_SEED).to(device)
        found = {str(count): bound_of(log_px, fixed, count) for count in SAMPLES}
        return {
            BOUNDS: {
                count: {"value": bound.value, "interval": bound.interval()}
                for count, bound in found.items()
            }
        }

    return ExtraMetric((BOUNDS,), measure)
