"""All metrics of a model on a set of sequences, as ``metrics.json`` stores them.

`evaluate` and `per_sequence` choose the metrics by the class of the model. A family of models adds
its metrics with ``evaluate.register`` and ``per_sequence.register``.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor

from topocaps.data.sequences import Sequences, SequenceSet
from topocaps.device import seeded
from topocaps.errors import BadInput
from topocaps.metrics.axes import axis_moved, axis_shares, own_axes
from topocaps.metrics.capsule_correlation import CapCorr, capcorr, observed_rolls
from topocaps.metrics.equivariance import chance_equivariance_error, equivariance_errors
from topocaps.metrics.intervals import Mean
from topocaps.metrics.neighbours import topographic_smoothness
from topocaps.metrics.probes import specialisation
from topocaps.metrics.rolled_traversal import (
    Traversal,
    TraversalOptions,
    TraversalPlan,
    traversal,
)
from topocaps.metrics.visible_frames import filled_costs, spread
from topocaps.models.base import GenerativeModel
from topocaps.models.evidence import (
    log_mean_exp_over_frames,
    log_mean_exp_over_sequences,
    log_px,
    log_px_paper,
    log_weights,
    paper_estimate,
)
from topocaps.models.sequence import SequenceModel
from topocaps.references import cites, references

SOURCES = references(capcorr, log_px, log_px_paper)
PAPER_SAMPLES = 10  #: samples of the papers' log p(x)
SUBSET = 300  #: largest number of sequences that ``_on_subset`` measures
SHUFFLES = 99  #: permutations of sites for the correlation of shuffled neighbours

#: Takes frames (batch, time, *frame) and a number of samples, and returns the bound on log p(x) of
#: every sequence in nats per frame, (batch,).
Bound = Callable[[Tensor, int], Tensor]


@dataclass(frozen=True)
class _Measurements:
    """Measurements of every sequence."""

    means: dict[str, Mean]  # by metric
    traversal: Traversal
    plan: TraversalPlan
    capcorrs: dict[str, CapCorr]  # by factor
    axes: list[tuple[Tensor, Tensor]]  # axes of motion and factors, by batch
    names: dict[int, str]  # names of factors, by column


@cites(*SOURCES)
@functools.singledispatch
def per_sequence(model: GenerativeModel, sequences: Any, **options: Any) -> dict[str, Mean]:
    """Return bounds, equivariance errors and gains of every sequence, each as a `Mean`.

    A `Mean` has the ``value`` over all sequences, the value of ``each`` sequence and the 95 %
    ``interval()``. A factor that leaves no frame unseen has no gain. A `RollingVAE` has gains by
    the number of visible frames, which do not depend on ``closed``, and no equivariance error.

    Args:
        sequences: frames (sequences, time, *frame), or `Sequences`.
        options: keyword arguments of `evaluate`.
    """
    raise BadInput(f"{type(model).__name__} does not support these metrics")


@cites(*SOURCES)
@functools.singledispatch
def evaluate(model: GenerativeModel, sequences: Any, **options: Any) -> dict[str, Any]:
    """Return the metrics of a model over all sequences.

    They are those of `evaluate_topographic` for a `TopographicVAE` or a `VAE`, and those of
    `evaluate_rolling` for a `RollingVAE`.

    Args:
        sequences: frames (sequences, time, *frame), or `Sequences`.
        options: keyword arguments of these functions, such as ``samples``, ``seed`` and ``batch``.
    """
    raise BadInput(f"{type(model).__name__} does not support these metrics")


@per_sequence.register
def _topographic_per_sequence(
    model: SequenceModel, sequences: Any, **options: Any
) -> dict[str, Mean]:
    measured = _measure(model, on_device_of(model, sequences), **options)
    rolled, names = measured.traversal, measured.names
    gains = {"traversal_gain": rolled.gain()}
    gains |= {f"gain {names[column]}": rolled.gain(column) for column in rolled.by_factor}
    return measured.means | {name: gain for name, gain in gains.items() if gain is not None}


@evaluate.register
def evaluate_topographic(
    model: SequenceModel,
    sequences: Any,
    *,
    window: int | None = None,
    samples: int = 10,
    rate: float = 1.0,
    seed: int = 0,
    batch: int = 128,
    closed: bool | None = None,
) -> dict[str, Any]:
    """Return bounds, equivariance errors, CapCorr and the traversal gain over all sequences.

    The key ``intervals`` contains the 95 % intervals of means over sequences. The costs of
    filled-in frames, the specialisation and the smoothness of capsules are measured on at most 300
    sequences.

    Args:
        sequences: frames (sequences, time, *frame), or `Sequences`.
        window, rate, closed: as in `TraversalOptions`.
        samples: number of samples of the bounds.
        seed: seed of all random numbers.
        batch: number of sequences that are measured at once.
    """
    sequences = on_device_of(model, sequences)
    traversed = {"window": window, "rate": rate, "closed": closed}
    measured = _measure(model, sequences, samples, seed, batch, **traversed)
    gains, names, plan = measured.traversal, measured.names, measured.plan
    return {
        **{name: mean.value for name, mean in measured.means.items()},
        "samples": samples,
        "chance_equivariance_error": chance_equivariance_error(
            model.topography, sequences.frames, rate
        ),
        "capcorr": {name: rolls.correlation for name, rolls in measured.capcorrs.items()},
        "capcorr_agreement": {name: rolls.agreement for name, rolls in measured.capcorrs.items()},
        "capcorr_dropped": {name: rolls.dropped for name, rolls in measured.capcorrs.items()},
        "traversal_gain": gains.overall,
        "traversal": {
            "by_factor": {names[c]: gain for c, gain in gains.by_factor.items()},
            "interval": {names[c]: gains.interval(c) for c in gains.by_factor},
            "by_lag": gains.by_lag,
            "orbit_mean_by_lag": gains.orbit_mean.mean(0).tolist(),
            "window": plan.window,
            "causal": plan.causal,
            "lags": plan.lags,
        },
        **_on_subset(model, sequences, seed, closed),
        **(_by_axis(measured.axes, names) if measured.axes else {}),
        "intervals": {
            **{name: mean.interval() for name, mean in measured.means.items()},
            "traversal_gain": gains.interval(),
        },
        "sequences": len(sequences),
    }


@torch.no_grad()
def _measure(
    model: SequenceModel,
    sequences: SequenceSet,
    samples: int = 10,
    seed: int = 0,
    batch: int = 128,
    **traversed: Any,
) -> _Measurements:
    """Measure every sequence; ``traversed`` are `TraversalOptions`."""
    topography, options = model.topography, TraversalOptions(**traversed)
    rate, cyclic = options.rate, topography.cyclic
    values: list[dict[str, Tensor]] = []
    capcorrs: dict[int, list[CapCorr]] = {}
    traversals: list[Traversal] = []
    several_axes, axes = topography.axes != (None,), []
    names = {0: "all"}
    with seeded(seed):
        for some in sequences.batches(batch):
            x, factors = some.x, some.factors
            rolled = traversal(model, x, factors, seed=None, **asdict(options))
            traversals.append(rolled)
            # with apart=True, there is a t for each axis
            t = model.select_axis(model.encode_per_axis(x, sample=True), rolled.axis)
            axis = rolled.axis if several_axes else None
            # if mu is 0, the sign of t is random, and only its square can be organised
            errors = {
                "equivariance_error": equivariance_errors(t, rate, cyclic, axis),
                "equivariance_error_squared": equivariance_errors(t.square(), rate, cyclic, axis),
            }
            values.append(_bounds(model, x, samples) | errors)
            if factors is None:
                continue
            columns = range(factors.shape[2])
            names = {c: sequences.names[c] if sequences.names else f"factor {c}" for c in columns}
            if several_axes:
                # the noise of samples would hide the motion
                moved = axis_moved(model.encode(x), rate)
                axes.append((moved.cpu(), factors.cpu()))
            # CapCorr needs rolls that can be undone, along the only axis, by more than 0 sites
            elif cyclic and rate:
                for column, rolls in observed_rolls(t, factors, rate).items():
                    capcorrs.setdefault(column, []).append(rolls)
    return _Measurements(
        {
            name: Mean(torch.cat([batch_values[name] for batch_values in values]).cpu().double())
            for name in values[0]
        },
        Traversal.join(traversals),
        options.plan(topography, sequences.frames),
        {names[column]: CapCorr.join(parts) for column, parts in sorted(capcorrs.items())},
        axes,
        names,
    )


def _bounds(model: SequenceModel, x: Tensor, samples: int) -> dict[str, Tensor]:
    """Return the bounds on log p(x) of every sequence, nats per frame, each (batch,)."""
    weights = log_weights(model, x, samples)
    bounds = {
        "log_px": log_mean_exp_over_sequences(weights),
        "log_px_paper": paper_estimate(weights[:PAPER_SAMPLES]),
        "elbo": model(x).elbo.mean(1),
    }
    if model.topography.window == 1:
        bounds["log_px_per_frame"] = log_mean_exp_over_frames(weights)
    return bounds


@torch.no_grad()
def bound_of(
    bound: Bound,
    sequences: SequenceSet,
    samples: int,
    most: int | None = None,
    seed: int = 0,
    batch: int = 64,
) -> Mean:
    """Return the mean of a bound on log p(x) over sequences, in nats per frame.

    Args:
        bound: function that returns the bound of every sequence, such as ``model.log_px``.
        sequences: sequences on the device of the model.
        samples: number of samples.
        most: largest number of sequences, spread over all of them; by default all are measured.
        seed: seed of the samples.
        batch: number of sequences that are measured at once.
    """
    scripts = spread(sequences.fixed(), most)
    with seeded(seed):
        values = [bound(sequences.show(some).x, samples) for some in scripts.split(batch)]
    return Mean(torch.cat(values).cpu().double())


def on_device_of(model: GenerativeModel, sequences: Any) -> SequenceSet:
    """Return whole sequences on the device of the model."""
    whole = Sequences.of(sequences).whole()
    parameter = next(model.parameters(), None)
    return whole if parameter is None else whole.to(parameter.device)


@torch.no_grad()
def _on_subset(
    model: SequenceModel, sequences: SequenceSet, seed: int, closed: bool | None
) -> dict[str, Any]:
    """Return the metrics that are measured on at most ``SUBSET`` sequences, spread over all.

    They are the costs of filled-in frames, the specialisation of capsules on factors, and the
    correlation of neighbouring sites beside that of shuffled sites.
    """
    metrics: dict[str, Any] = {"missing": {}, "specialisation": None, "smoothness": {}}
    if sequences.frames < 2:
        return metrics
    topography = model.topography
    subset = sequences.show(spread(sequences.fixed(), SUBSET))
    t = model.encode(subset.x)
    if max(topography.shape) > 1:
        for name, value in (("t", t), ("t_squared", t.square())):
            smooth = topographic_smoothness(value, SHUFFLES, seed, topography.cyclic)
            metrics["smoothness"][name] = smooth.observed
            metrics["smoothness"][f"{name}_shuffled"] = smooth.shuffled
    if topography.axes == (None,) or topography.apart:
        metrics["missing"] = filled_costs(model, subset.x, seed=seed, closed=closed)
    if subset.factors is not None:
        share = specialisation(t, subset.factors)
        metrics["specialisation"] = None if math.isnan(share) else share
    return metrics


def _by_axis(batches: list[tuple[Tensor, Tensor]], names: dict[int, str]) -> dict[str, Any]:
    """Return the `axis_shares` of every capsule, and the mean of their `own_axes` over capsules.

    Capsules share nothing, so each has its own assignment of axes to factors.
    """
    moved, factors = (torch.cat(part) for part in zip(*batches, strict=True))
    by_capsule = [
        {names[column]: shares for column, shares in axis_shares(capsule, factors).items()}
        for capsule in moved.unbind(1)
    ]
    own = [own_axes(shares) for shares in by_capsule]
    return {
        "axes": {name: [shares[name] for shares in by_capsule] for name in by_capsule[0]},
        "own_axis": {name: sum(shares[name] for shares in own) / len(own) for name in own[0]},
    }
