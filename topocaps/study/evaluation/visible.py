"""Gains by the number of visible frames, as rows of tables."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from topocaps.metrics.visible_frames import visible_gains as visible_gains
from topocaps.study.quantity import Quantity

VISIBLE = "visible"  # key of metrics
MEASURED = 300  # largest number of sequences

_LEGEND = (
    "gain, n visible",
    "n contiguous frames of a held-out sequence are shown, from a place that is drawn, and the "
    "others are predicted. 1 is perfect, 0 is the mean frame of the sequence (the best that a code "
    "can do which never changes), below 0 is worse. Frames that equal a visible one do not count.",
)
_POSES = {"in_training": "poses in training", "not_in_training": "poses not in training"}


def visible_rows(columns: Sequence[Mapping[str, Any]], by_factor: bool = False) -> list[Quantity]:
    """Return a row for every number of visible frames and every speed; if wanted, each factor."""
    rows = []
    measured: Mapping[str, Any] = next((m[VISIBLE] for m in columns if m.get(VISIBLE)), {})
    for count, one in measured.items():
        label = f"gain, {count} of {one['of']} visible"
        rows.append(Quantity((VISIBLE, count, "gain"), label, 2, _LEGEND))
        factors = [name for name, gain in one["by_factor"].items() if gain is not None]
        if by_factor and len(factors) > 1:
            rows += [
                Quantity((VISIBLE, count, "by_factor", name), f"– {name}", 2) for name in factors
            ]
        rows += [
            Quantity((VISIBLE, count, "by_speed", speed, "gain"), f"– speed {speed}", 2)
            for speed in one.get("by_speed", {})
        ]
        rows += [
            Quantity((VISIBLE, count, key, "gain"), f"– {label}", 2)
            for key, label in _POSES.items()
            if key in one
        ]
    return rows
