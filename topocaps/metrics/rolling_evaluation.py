"""All metrics of a rolling VAE on a set of sequences: bounds, and gains on hidden frames."""

from __future__ import annotations

from typing import Any

import torch

from topocaps.data.sequences import SequenceSet
from topocaps.device import seeded
from topocaps.errors import BadInput
from topocaps.metrics.evaluation import evaluate, on_device_of, per_sequence
from topocaps.metrics.intervals import Mean
from topocaps.metrics.rolled_traversal import Traversal
from topocaps.metrics.visible_frames import gains_by_visible, spread, visible_counts
from topocaps.models.rolling import RollingVAE

BATCH = 64  # sequences, each under all candidate motions
OPTIONS = "samples, seed, batch and most"


@evaluate.register
def evaluate_rolling(
    model: RollingVAE,
    sequences: Any,
    *,
    samples: int = 10,
    seed: int = 0,
    batch: int = BATCH,
    most: int | None = None,
    **others: Any,
) -> dict[str, Any]:
    """Return the bounds of a `RollingVAE`, and its gains by the number of visible frames.

    The bounds see all frames. ``log_px`` is importance-weighted; a motion that the model does not
    know is summed out in both bounds, and a known one is given. The gains hide all but some
    contiguous frames, as in `gains_by_visible`. The key ``intervals`` holds 95 % intervals.

    The equivariance error is not measured: as every frame shows the same code, rolled, it is 0 by
    construction.

    Args:
        sequences: frames (sequences, time, *frame), or `Sequences`.
        samples: number of samples of the importance-weighted bound.
        seed: seed of all random numbers.
        batch: number of sequences whose bounds are measured at once.
        most: about how many sequences are measured, spread over all; by default all.
    """
    sequences = on_device_of(model, sequences)
    bounds = _bounds(model, sequences, seed, most, samples=samples, batch=batch, **others)
    return {
        **{name: bound.value for name, bound in bounds.items()},
        "samples": samples,
        "visible": {
            str(count): _numbers(gains, sequences)
            for count, gains in _gains(model, sequences, seed, most).items()
        },
        "intervals": {name: bound.interval() for name, bound in bounds.items()},
        "sequences": len(spread(sequences.fixed(), most)),
    }


@per_sequence.register
def _rolling_per_sequence(
    model: RollingVAE, sequences: Any, *, seed: int = 0, most: int | None = None, **options: Any
) -> dict[str, Mean]:
    sequences = on_device_of(model, sequences)
    found = _bounds(model, sequences, seed, most, **options)
    gains = _gains(model, sequences, seed, most)
    named = {f"gain, {count} visible": one.gain() for count, one in gains.items()}
    return found | {name: gain for name, gain in named.items() if gain is not None}


def _gains(
    model: RollingVAE, sequences: SequenceSet, seed: int, most: int | None
) -> dict[int, Traversal]:
    """Return the gains by the number of visible frames; none of too short sequences."""
    if not visible_counts(sequences.frames):
        return {}
    return gains_by_visible(model.fill, sequences, model.likelihood, most=most, seed=seed)


def _numbers(gains: Traversal, sequences: SequenceSet) -> dict[str, Any]:
    """Return the gain, its interval and the gains by factor."""
    names = sequences.names
    return {
        "gain": gains.overall,
        "interval": gains.interval(),
        "by_factor": {names[c] if names else "all": g for c, g in gains.by_factor.items()},
        "of": sequences.frames,
    }


@torch.no_grad()
def _bounds(
    model: RollingVAE,
    sequences: SequenceSet,
    seed: int,
    most: int | None,
    samples: int = 10,
    batch: int = BATCH,
    **others: Any,
) -> dict[str, Mean]:
    """Return the terms of the bound and the importance-weighted bound, nats a frame."""
    if others:
        raise BadInput(
            f"the metrics of a {type(model).__name__} have the options {OPTIONS}, not "
            f"{', '.join(others)}"
        )
    found: dict[str, list[torch.Tensor]] = {}
    with seeded(seed):
        for some in spread(sequences.fixed(), most).split(batch):
            x = sequences.show(some).x
            evidence = model(x)
            terms = {name: getattr(evidence, name).mean(1) for name in model.recorded}
            for name, value in {**terms, "log_px": model.log_px(x, samples)}.items():
                found.setdefault(name, []).append(value.double().cpu())
    return {name: Mean(torch.cat(parts)) for name, parts in found.items()}
