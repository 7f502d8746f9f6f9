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

BATCH = 64  # sequences; each is decoded under all candidate motions
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

    The bounds are of all frames. ``log_px`` is importance-weighted. Both bounds sum out the motion
    if the model infers it; if the model knows it, they are conditional on it. For the gains, all
    but some contiguous frames are hidden; the key ``visible`` contains what `visible_gains`
    returns. The key ``intervals`` contains the 95 % intervals of the bounds.

    The equivariance error is not measured. It is 0 by construction, as every frame shows the same
    code, rolled.

    Args:
        sequences: frames (sequences, time, *frame), or `Sequences`.
        samples: number of samples of the importance-weighted bound.
        seed: seed of all random numbers.
        batch: number of sequences whose bounds are measured at once.
        most: largest number of sequences, spread over all of them; by default all are measured.
        closed: whether the first frame follows the last. It decides the distance of a hidden frame
            from the nearest visible one. By default it is True if capsules are rings.
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
    bounds = _bounds(model, sequences, **options)
    if not visible_counts(sequences.frames):
        return bounds
    shared = {name: options[name] for name in ("most", "seed") if name in options}
    traversals = gains_by_visible(model.fill, sequences, model.likelihood, **shared)
    gains = {f"gain, {count} visible": part.gain() for count, part in traversals.items()}
    return bounds | {name: gain for name, gain in gains.items() if gain is not None}


def _check_options(model: RollingVAE, options: Iterable[str], known: Sequence[str]) -> None:
    """Raise `BadInput` if there are options that these metrics do not have."""
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
    """Return the terms of the bound and the importance-weighted bound, in nats per frame."""
    terms: dict[str, list[torch.Tensor]] = {name: [] for name in model.recorded}
    with seeded(seed):
        for some in spread(sequences.fixed(), most).split(batch):
            evidence = model(sequences.show(some).x)
            for name, parts in terms.items():
                parts.append(getattr(evidence, name).mean(1).cpu().double())
    means = {name: Mean(torch.cat(parts)) for name, parts in terms.items()}
    return means | {"log_px": bound_of(model.log_px, sequences, samples, most, seed, batch)}
