"""Importance-weighted bounds by the number of samples, for the tables of results."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from topocaps.data.sequences import SequenceSet
from topocaps.device import seeded
from topocaps.metrics.intervals import Mean
from topocaps.study.evaluation.base import EVALUATION_SEED, ExtraMetric
from topocaps.study.evaluation.visible import MEASURED
from topocaps.study.recipe import BaseRecipe

BOUNDS = "bounds"  # key of results
SAMPLES = (1, 10, 100)
_BATCH = 64

#: Returns the bound on log p(x) of sequences, nats a frame, (batch,), with so many samples.
Bound = Callable[[Tensor, int], Tensor]


@torch.no_grad()
def bound_of(log_px: Bound, sequences: SequenceSet, samples: int) -> Mean:
    """Return the bound of about ``MEASURED`` sequences, spread over all of them."""
    scripts = sequences.fixed()
    scripts = scripts[:: max(1, len(scripts) // MEASURED)]
    with seeded(EVALUATION_SEED):
        found = [log_px(sequences.show(some).x, samples) for some in scripts.split(_BATCH)]
    return Mean(torch.cat(found).double().cpu())


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
