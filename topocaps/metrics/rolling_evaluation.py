"""All metrics of a rolling VAE on a set of sequences: bounds, and gains on hidden frames."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import torch

from topocaps.data.sequences import SequenceSet
from topocaps.device import seeded
from topocaps.errors import BadInput
from topocaps.metrics.evaluation import bound_of, evaluate, on_device_of, per_sequence
from topocaps.metrics.intervals import Mean
from topocaps.metrics.visible_frames import (
    gains_by_visible,
    spread,
    visible_counts,
    visible_gains,
)
from topocaps.models.rolling import RollingVAE

BATCH = 64  # sequences, each under all candidate motions
OPTIONS = ("samples", "seed", "batch", "most")


@evaluate.register
def evaluate_rolling(
    model: RollingVAE,
    sequences: Any,
    *,
    samples: int = 10,
    seed: int = 0,
    batch: int = BATCH,
    most: int | None = None,
    closed: bool | None = None,
    **others: Any,
) -> dict[str, Any]:
    """Return the bounds of a `RollingVAE`, and its gains by the number of visible frames.

    The bounds see all frames. ``log_px`` is importance-weighted; a motion that the model does not
    know is summed out in both bounds, and a known one is given. The gains hide all but some
    contiguous frames: ``visible`` holds what `visible_gains` returns. The key ``intervals`` holds
    95 % intervals of the bounds.

    The equivariance error is not measured: as every frame shows the same code, rolled, it is 0 by
    construction.

    Args:
        sequences: frames (sequences, time, *frame), or `Sequences`.
        samples: number of samples of the importance-weighted bound.
        seed: seed of all random numbers.
        batch: number of sequences whose bounds are measured at once.
        most: largest number of sequences, which are spread over all; by default all are measured.
        closed: whether the last frame is followed by the first, which decides the distance of a
            hidden frame from the nearest visible one; by default whether capsules are rings.
    """
    _check_options(model, others, (*OPTIONS, "closed"))
    sequences = on_device_of(model, sequences)
    closed = model.topography.cyclic if closed is None else closed
    bounds = _bounds(model, sequences, samples, seed, batch, most)
    return {
        **{name: bound.value for name, bound in bounds.items()},
        "samples": samples,
        "visible": visible_gains(model.fill, sequences, model.likelihood, most, seed, closed),
        "intervals": {name: bound.interval() for name, bound in bounds.items()},
        "sequences": len(spread(sequences.fixed(), most)),
    }


@per_sequence.register
def _rolling_per_sequence(model: RollingVAE, sequences: Any, **options: Any) -> dict[str, Mean]:
    _check_options(model, options, OPTIONS)
    sequences = on_device_of(model, sequences)
    found = _bounds(model, sequences, **options)
    if not visible_counts(sequences.frames):
        return found
    shared = {name: options[name] for name in ("most", "seed") if name in options}
    gains = gains_by_visible(model.fill, sequences, model.likelihood, **shared)
    named = {f"gain, {count} visible": one.gain() for count, one in gains.items()}
    return found | {name: gain for name, gain in named.items() if gain is not None}


def _check_options(model: RollingVAE, options: Iterable[str], known: Sequence[str]) -> None:
    if others := [name for name in options if name not in known]:
        raise BadInput(
            f"these metrics of a {type(model).__name__} have the options {', '.join(known)}, not "
            f"{', '.join(others)}"
        )


@torch.no_grad()
def _bounds(
    model: RollingVAE,
    sequences: SequenceSet,
    samples: int = 10,
    seed: int = 0,
    batch: int = BATCH,
    most: int | None = None,
) -> dict[str, Mean]:
    """Return the terms of the bound and the importance-weighted bound, nats a frame."""
    terms: dict[str, list[torch.Tensor]] = {name: [] for name in model.recorded}
    with seeded(seed):
        for some in spread(sequences.fixed(), most).split(batch):
            evidence = model(sequences.show(some).x)
            for name, parts in terms.items():
                parts.append(getattr(evidence, name).mean(1).cpu().double())
    found = {name: Mean(torch.cat(parts)) for name, parts in terms.items()}
    return found | {"log_px": bound_of(model.log_px, sequences, samples, most, seed, batch)}
