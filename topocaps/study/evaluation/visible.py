"""Gains by the number of visible frames, as numbers of a run and as rows of tables."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from topocaps.data.sequences import SequenceSet
from topocaps.metrics.rolled_traversal import Traversal
from topocaps.metrics.visible_frames import (
    Fill,
    gain_by_distance,
    gains_by_visible,
    stretches,
    visible_counts,
)
from topocaps.models.likelihoods import Likelihood
from topocaps.study.quantity import Quantity

VISIBLE = "visible"  # key of metrics
MEASURED = 300  # sequences

_LEGEND = (
    "gain, n visible",
    "n contiguous frames of a held-out sequence are shown, from a place that is drawn, and the "
    "others are predicted. 1 is perfect, 0 is the mean frame of the sequence (the best that a code "
    "can do which never changes), below 0 is worse. Frames that equal a visible one do not count.",
)


def visible_gains(
    fill: Fill,
    sequences: SequenceSet,
    likelihood: Likelihood,
    most: int | None = None,
    seed: int = 0,
    closed: bool = True,
) -> dict[str, Any]:
    """Return gains and intervals, overall and by factor, by the number of visible frames.

    ``all_frames`` holds the same gains when hidden frames that equal a visible one count, too, and
    ``by_distance`` the gain by the distance from the nearest visible frame.

    Args:
        closed: whether the last frame is followed by the first.
    """
    frames = sequences.frames
    if not visible_counts(frames):
        return {}
    gains = gains_by_visible(fill, sequences, likelihood, most=most, seed=seed)
    found = {}
    for count, one in gains.items():
        visible = stretches(len(one.rolled), frames, count, seed)
        distance = gain_by_distance(one, visible, closed)
        found[str(count)] = {
            **_numbers(one, sequences.names),
            "of": frames,
            "all_frames": _numbers(replace(one, unseen=~visible), sequences.names),
            "by_distance": {str(n): gain for n, gain in distance.items()},
        }
    return found


def _numbers(found: Traversal, names: Sequence[str]) -> dict[str, Any]:
    """Return the gain and its interval, and those of every factor that moves."""
    columns = {names[c] if names else "all": c for c in found.by_factor}
    return {
        "gain": found.overall,
        "interval": found.interval(None),
        "by_factor": {name: found.by_factor[c] for name, c in columns.items()},
        "intervals": {name: found.interval(c) for name, c in columns.items()},
    }


def visible_rows(columns: Sequence[Mapping[str, Any]], by_factor: bool = False) -> list[Quantity]:
    """Return a row for every number of visible frames, and if wanted for each factor."""
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
    return rows
