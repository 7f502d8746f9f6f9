"""Every metric of a model over a set of sequences, as the plain data of ``metrics.json``."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from topocaps.arithmetic import seeded
from topocaps.data.sequences import Sequences, SequenceSet
from topocaps.evidence import (
    log_mean_exp_over_frames,
    log_mean_exp_over_sequences,
    log_weights,
    paper_estimate,
)
from topocaps.metrics.axes import axis_moved, axis_shares
from topocaps.metrics.capcorr import CapCorr, observed_rolls
from topocaps.metrics.equivariance import (
    SITE_AXIS,
    chance_equivariance_error,
    equivariance_errors,
)
from topocaps.metrics.missing import filled_costs
from topocaps.metrics.probes import specialisation
from topocaps.metrics.traversal import Traversal, lags_from, start_of, traversal
from topocaps.models import SequenceModel

PAPER_SAMPLES = 10  # of the papers' log p(x)
SOME = 300  # sequences, where a few will do


@torch.no_grad()
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
    sequences = Sequences.of(sequences)
    for parameter in model.parameters():
        sequences = sequences.to(parameter.device)
        break
    values: dict[str, list[Tensor]] = {}
    rolls: dict[int, list[CapCorr]] = {}
    parts: list[Traversal] = []
    several_axes, axes = model.topography.axes != (None,), []
    with seeded(seed):
        for one in sequences.batches(batch):
            walked = traversal(model, one.x, one.factors, rate, window, None, closed)
            parts.append(walked)
            t = model.encode(one.x, sample=True)
            weights = log_weights(model, one.x, samples)
            found = {
                "log_px": log_mean_exp_over_sequences(weights),
                "log_px_paper": paper_estimate(weights[:PAPER_SAMPLES]),
                "elbo": model.evidence(one.x).elbo.mean(1),
                "equivariance_error": _equivariance_errors(t, rate, model, walked.axis),
            }
            if model.topography.window == 1:
                found["log_px_per_frame"] = log_mean_exp_over_frames(weights)
            for name, value in found.items():
                values.setdefault(name, []).append(value.cpu())
            known = one.factors is not None
            if one.factors is not None and several_axes:
                axes.append((axis_moved(t, rate).cpu(), one.factors.cpu()))
            # an open end has no roll back, and of several axes none is the factor's
            if one.factors is not None and model.topography.cyclic and not several_axes:
                for column, found_rolls in observed_rolls(t, one.factors, rate).items():
                    rolls.setdefault(column, []).append(found_rolls)
    joined = {name: torch.cat(value).double() for name, value in values.items()}
    walked = Traversal.join(parts)
    capcorrs = {column: CapCorr.join(found) for column, found in sorted(rolls.items())}
    columns = range(walked.moving.shape[1])
    names = {c: sequences.names[c] if sequences.names else f"factor {c}" for c in columns}
    names = names if known else {0: "all"}
    return {
        **{name: value.mean().item() for name, value in joined.items()},
        "samples": samples,
        "chance_equivariance_error": chance_equivariance_error(
            model.topography, sequences.frames, rate
        ),
        "capcorr": {names[c]: found.correlation for c, found in capcorrs.items()},
        "capcorr_agreement": {names[c]: found.agreement for c, found in capcorrs.items()},
        "capcorr_dropped": {names[c]: found.dropped for c, found in capcorrs.items()},
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
        **_of_some(model, sequences, seed),
        **({"axes": _by_axis(axes, names)} if axes else {}),
        "intervals": {name: _interval(value) for name, value in joined.items()},
        "sequences": len(sequences),
    }


def _lags(model: SequenceModel, frames: int, window: int | None, closed: bool | None) -> list[int]:
    """Of the costs by lag."""
    topography = model.topography
    closed = topography.cyclic if closed is None else closed
    start = start_of(topography, window or topography.window, frames, closed)
    return lags_from(start, frames, closed)


def _equivariance_errors(t: Tensor, rate: float, model: SequenceModel, axis: Tensor) -> Tensor:
    """Along the axis that each sequence was rolled along."""
    errors = t.new_zeros(len(t))
    for one in axis.unique().tolist():
        rows = (axis == one).to(t.device)
        turned = t[rows].movedim(SITE_AXIS + one, SITE_AXIS)
        errors[rows] = equivariance_errors(turned, rate, model.topography.cyclic)
    return errors


def _of_some(model: SequenceModel, sequences: SequenceSet, seed: int) -> dict[str, Any]:
    """What is told by a few sequences, spread over all factors: how well missing frames are filled
    in, and how far capsules specialise on factors."""
    found: dict[str, Any] = {"missing": {}, "specialisation": None}
    if sequences.frames < 2:
        return found
    scripts = sequences.fixed()
    some = sequences.show(scripts[:: max(1, len(scripts) // SOME)])
    if model.topography.axes == (None,):
        found["missing"] = filled_costs(model, some.x, seed=seed)
    if some.factors is not None:
        share = specialisation(model.encode(some.x), some.factors)
        found["specialisation"] = None if math.isnan(share) else share
    return found


def _by_axis(
    found: list[tuple[Tensor, Tensor]], names: dict[int, str]
) -> dict[str, dict[str, float]]:
    moved, factors = (torch.cat(part) for part in zip(*found, strict=True))
    return {
        names[c]: {str(axis): share for axis, share in enumerate(shares)}
        for c, shares in axis_shares(moved, factors).items()
    }


def _interval(values: Tensor) -> tuple[float, float]:
    """Mean -+ 1.96 standard errors."""
    mean = values.mean().item()
    error = values.std().item() / math.sqrt(len(values)) if len(values) > 1 else math.nan
    return mean - 1.96 * error, mean + 1.96 * error
