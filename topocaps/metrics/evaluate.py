"""Every metric of a model over a set of sequences, as the plain data of ``metrics.json``."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from topocaps.arithmetic import seeded
from topocaps.data.sequences import Sequences, SequenceSet
from topocaps.errors import BadInput
from topocaps.metrics.axes import axis_moved, axis_shares, own_axes
from topocaps.metrics.capcorr import CapCorr, capcorr, observed_rolls
from topocaps.metrics.equivariance import (
    chance_equivariance_error,
    equivariance_errors,
)
from topocaps.metrics.intervals import Mean
from topocaps.metrics.missing import filled_costs
from topocaps.metrics.neighbours import topographic_smoothness
from topocaps.metrics.probes import specialisation
from topocaps.metrics.traversal import Traversal, lags_from, start_of, traversal
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
PAPER_SAMPLES = 10  # of the papers' log p(x)
SOME = 300  # sequences, where a few will do
SHUFFLES = 99  # of sites, beside the correlation of neighbours


@dataclass(frozen=True)
class _Measured:
    """What was found, of every sequence."""

    values: dict[str, Tensor]
    walked: Traversal
    capcorrs: dict[int, CapCorr]
    axes: list[tuple[Tensor, Tensor]]
    names: dict[int, str]  # of factors

    @property
    def means(self) -> dict[str, Mean]:
        return {name: Mean(value) for name, value in self.values.items()}


@cites(*SOURCES)
def per_sequence(model: SequenceModel, sequences: Any, **how: Any) -> dict[str, Mean]:
    """Bounds, equivariance error and gains (mean of factors, and each) of every sequence.

    ``how`` is what ``evaluate`` takes. A mean has its value, what it is of ``each`` sequence, and
    its 95 % ``interval()``. Where a factor leaves no frame unseen, it has no gain.
    """
    found = _measure(model, _where(model, sequences), **how)
    gains = {"traversal_gain": found.walked.gain()}
    gains |= {f"gain {found.names[c]}": found.walked.gain(c) for c in found.walked.by_factor}
    return found.means | {name: gain for name, gain in gains.items() if gain is not None}


@cites(*SOURCES)
def evaluate(
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
    """Bounds, equivariance error, CapCorr and traversal_gain over all of ``sequences``.

    ``window`` decides which frames are unseen for the traversal (the model's own unless given);
    ``closed`` says whether sequences come round (as the topography does unless given). How missing
    frames are filled in, and how capsules specialise, is of some 300 sequences.
    Means come with 95 % intervals over sequences under ``intervals``.
    """
    sequences = _where(model, sequences)
    found = _measure(
        model, sequences, window=window, samples=samples, rate=rate, seed=seed, batch=batch,
        closed=closed,
    )  # fmt: skip
    walked, names = found.walked, found.names
    intervals = {name: mean.interval() for name, mean in found.means.items()}
    return {
        **{name: mean.value for name, mean in found.means.items()},
        "samples": samples,
        "chance_equivariance_error": chance_equivariance_error(
            model.topography, sequences.frames, rate
        ),
        "capcorr": {names[c]: one.correlation for c, one in found.capcorrs.items()},
        "capcorr_agreement": {names[c]: one.agreement for c, one in found.capcorrs.items()},
        "capcorr_dropped": {names[c]: one.dropped for c, one in found.capcorrs.items()},
        "traversal_gain": walked.overall,
        "traversal": {
            "by_factor": {names[c]: gain for c, gain in walked.by_factor.items()},
            "interval": {names[c]: walked.interval(c) for c in walked.by_factor},
            "by_lag": walked.by_lag,
            "orbit_mean_by_lag": walked.orbit_mean.mean(0).tolist(),
            "window": model.topography.window if window is None else window,
            "causal": model.topography.causal,
            "lags": _lags(model, sequences.frames, window, closed),
        },
        **_of_some(model, sequences, seed, closed),
        **(_by_axis(found.axes, names) if found.axes else {}),
        "intervals": {**intervals, "traversal_gain": walked.interval()},
        "sequences": len(sequences),
    }


@torch.no_grad()
def _measure(
    model: SequenceModel,
    sequences: SequenceSet,
    window: int | None = None,
    samples: int = 10,
    rate: float = 1.0,
    seed: int = 0,
    batch: int = 128,
    closed: bool | None = None,
) -> _Measured:
    values: dict[str, list[Tensor]] = {}
    rolls: dict[int, list[CapCorr]] = {}
    parts: list[Traversal] = []
    several_axes, axes = model.topography.axes != (None,), []
    known = False
    with seeded(seed):
        for one in sequences.batches(batch):
            walked = traversal(model, one.x, one.factors, rate, window, None, closed)
            parts.append(walked)
            # of axes that are kept apart, the one that was rolled along
            t = model.select_axis(model.encode_per_axis(one.x, sample=True), walked.axis)
            weights = log_weights(model, one.x, samples)
            found = {
                "log_px": log_mean_exp_over_sequences(weights),
                "log_px_paper": paper_estimate(weights[:PAPER_SAMPLES]),
                "elbo": model.evidence(one.x).elbo.mean(1),
                # where mu is 0 the sign of t is random, and only its square can be organised
                **{
                    name: equivariance_errors(
                        value, rate, model.topography.cyclic, walked.axis if several_axes else None
                    )
                    for name, value in (
                        ("equivariance_error", t),
                        ("equivariance_error_squared", t.square()),
                    )
                },
            }
            if model.topography.window == 1:
                found["log_px_per_frame"] = log_mean_exp_over_frames(weights)
            for name, value in found.items():
                values.setdefault(name, []).append(value.cpu())
            known = one.factors is not None
            if one.factors is not None and several_axes:
                moved = axis_moved(model.encode(one.x), rate)  # what is drawn beside it hides it
                axes.append((moved.cpu(), one.factors.cpu()))
            # an open end has no roll back, of several axes none is the factor's, 0 sites no roll
            if one.factors is not None and model.topography.cyclic and not several_axes and rate:
                for column, found_rolls in observed_rolls(t, one.factors, rate).items():
                    rolls.setdefault(column, []).append(found_rolls)
    walked = Traversal.join(parts)
    columns = range(walked.moving.shape[1])
    names = {c: sequences.names[c] if sequences.names else f"factor {c}" for c in columns}
    return _Measured(
        {name: torch.cat(value).double() for name, value in values.items()},
        walked,
        {column: CapCorr.join(found) for column, found in sorted(rolls.items())},
        axes,
        names if known else {0: "all"},
    )


def _where(model: SequenceModel, sequences: Any) -> SequenceSet:
    """Sequences where the model is."""
    if not isinstance(model, SequenceModel):
        raise BadInput(f"a {type(model).__name__} has no capsules that roll: nothing to evaluate")
    found = Sequences.of(sequences).whole()
    for parameter in model.parameters():
        return found.to(parameter.device)
    return found


def _lags(model: SequenceModel, frames: int, window: int | None, closed: bool | None) -> list[int]:
    """Of the costs by lag."""
    topography = model.topography
    closed = topography.cyclic if closed is None else closed
    start = start_of(topography, window or topography.window, frames, closed)
    return lags_from(start, frames, closed)


@torch.no_grad()
def _of_some(
    model: SequenceModel, sequences: SequenceSet, seed: int, closed: bool | None
) -> dict[str, Any]:
    """Measure on a few sequences, spread over all factors.

    Measured are how well missing frames are filled in, how far capsules specialise on factors, and
    how strongly neighbouring sites correlate, beside sites that were shuffled.
    """
    found: dict[str, Any] = {"missing": {}, "specialisation": None, "smoothness": {}}
    if sequences.frames < 2:
        return found
    scripts = sequences.fixed()
    some = sequences.show(scripts[:: max(1, len(scripts) // SOME)])
    if max(model.topography.shape) > 1:
        t, cyclic = model.encode(some.x), model.topography.cyclic
        for name, value in (("t", t), ("t_squared", t.square())):
            smooth = topographic_smoothness(value, permutations=SHUFFLES, seed=seed, cyclic=cyclic)
            found["smoothness"][name] = smooth.observed
            found["smoothness"][f"{name}_shuffled"] = smooth.shuffled
    if model.topography.axes == (None,) or model.topography.apart:
        found["missing"] = filled_costs(model, some.x, seed=seed, closed=closed)
    if some.factors is not None:
        share = specialisation(model.encode(some.x), some.factors)
        found["specialisation"] = None if math.isnan(share) else share
    return found


def _by_axis(found: list[tuple[Tensor, Tensor]], names: dict[int, str]) -> dict[str, Any]:
    """Of every capsule by itself, and the mean over capsules: none knows of another's axes."""
    moved, factors = (torch.cat(part) for part in zip(*found, strict=True))
    each = [
        {names[c]: of for c, of in axis_shares(one, factors).items()} for one in moved.unbind(1)
    ]
    own = [own_axes(shares) for shares in each]
    return {
        "axes": {name: [shares[name] for shares in each] for name in each[0]},
        "own_axis": {name: sum(one[name] for one in own) / len(own) for name in own[0]},
    }
