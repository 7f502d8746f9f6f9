"""Measurements of all sequence models: gains on hidden frames, and bounds by samples."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from topocaps.data.sequences import SequenceSet
from topocaps.metrics import evaluation
from topocaps.metrics.evaluation import Bound
from topocaps.metrics.intervals import Mean
from topocaps.study.evaluation.base import EVALUATION_SEED, ExtraMetric
from topocaps.study.quantity import Quantity
from topocaps.study.recipe import BaseRecipe

VISIBLE = "visible"  # key of the gains in metrics
BOUNDS = "bounds"  # key of the bounds in results
MEASURED = 300  # largest number of sequences that are measured
SAMPLES = (1, 10, 100)  # numbers of samples of the bounds

_LEGEND = (
    "gain, n visible",
    "n contiguous frames of a held-out sequence, at a random position, are visible, and the others "
    "are predicted. 1 is perfect, 0 is as good as the mean frame of the sequence (the best "
    "prediction of a constant code), below 0 is worse. Frames that equal a visible one do not "
    "count.",
)
_POSES = {"in_training": "poses in training", "not_in_training": "poses not in training"}


def visible_rows(columns: Sequence[Mapping[str, Any]], by_factor: bool = False) -> list[Quantity]:
    """Return rows of gains for every number of visible frames, and for every speed and pose.

    Args:
        columns: metrics of the columns of a table.
        by_factor: whether there are also rows for every factor.
    """
    rows = []
    by_count: Mapping[str, Any] = next((m[VISIBLE] for m in columns if m.get(VISIBLE)), {})
    for count, gains in by_count.items():
        label = f"gain, {count} of {gains['of']} visible"
        rows.append(Quantity((VISIBLE, count, "gain"), label, 2, _LEGEND))
        factors = [name for name, gain in gains["by_factor"].items() if gain is not None]
        lines: dict[str, tuple[str, ...]] = {
            name: ("by_factor", name) for name in factors if by_factor and len(factors) > 1
        }
        lines |= {f"speed {n}": ("by_speed", n, "gain") for n in gains.get("by_speed", {})}
        lines |= {line: (key, "gain") for key, line in _POSES.items() if key in gains}
        rows += [Quantity((VISIBLE, count, *key), f"– {line}", 2) for line, key in lines.items()]
    return rows


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
        bounds = {str(count): bound_of(log_px, fixed, count) for count in SAMPLES}
        return {
            BOUNDS: {
                count: {"value": bound.value, "interval": bound.interval()}
                for count, bound in bounds.items()
            }
        }

    return ExtraMetric((BOUNDS,), measure)
