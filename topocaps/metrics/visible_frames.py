"""Gains and costs of the prediction of hidden frames."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from topocaps.data.sequences import SequenceSet
from topocaps.device import seeded
from topocaps.errors import BadInput, whole_number
from topocaps.metrics.rolled_traversal import EDGE, Traversal, equal_frames, is_new, prediction
from topocaps.models.likelihoods import Likelihood
from topocaps.models.sequence import SequenceModel, check_topographic
from topocaps.models.visible import Stretch

COUNTS = (3, 5, 9, 13)  #: numbers of visible frames
SHARES = (0.1, 0.3, 0.5)  #: shares of missing frames
_EDGE = 1e-6  # smallest distance from 0 and 1 of probabilities that `filled_costs` compares

#: Takes frames (batch, time, *frame) and a mask (batch, time), True for visible frames, and returns
#: all frames, with predictions of the hidden ones. ``RollingVAE.fill`` is such a function.
Fill = Callable[[Tensor, Tensor], Tensor]


def visible_counts(frames: int) -> tuple[int, ...]:
    """Return the numbers of visible frames that are measured for sequences of ``frames``.

    They are 3, 5, 9, 13 and all but two. Numbers that hide fewer than two frames are left out.

    >>> visible_counts(15), visible_counts(12), visible_counts(4)
    ((3, 5, 9, 13), (3, 5, 9, 10), (2,))
    """
    hidden_two = frames - 2
    return tuple(sorted({n for n in (*COUNTS, hidden_two) if 0 < n <= hidden_two}))


def stretches(sequences: int, frames: int, count: int, seed: int = 0) -> Tensor:
    """Return which frames are visible: booleans (sequences, frames).

    In every sequence, these are ``count`` contiguous frames at a random place.

    >>> stretches(2, 6, 3).int()
    tensor([[1, 1, 1, 0, 0, 0],
            [0, 0, 0, 1, 1, 1]], dtype=torch.int32)
    """
    generator = torch.Generator().manual_seed(seed)
    first = torch.randint(frames - count + 1, (sequences, 1), generator=generator)
    frame = torch.arange(frames)
    return (frame >= first) & (frame < first + count)


def spread(scripts: Tensor, most: int | None) -> Tensor:
    """Return at most ``most`` scripts, spread evenly from the first to the last. None returns all.

    >>> spread(torch.arange(9), 4)
    tensor([0, 2, 5, 8])
    """
    total = len(scripts)
    count = total if most is None else min(whole_number("most", most), total)
    index = torch.arange(count, device=scripts.device) * (total - 1) // max(1, count - 1)
    return scripts[index]


def distances(visible: Tensor, closed: bool = True) -> Tensor:
    """Return the number of frames from each frame to the nearest visible one: (batch, time).

    Args:
        visible: booleans (batch, time).
        closed: whether the first frame follows the last.

    >>> distances(torch.tensor([[False, False, False, True, False, False]]), closed=False)
    tensor([[3, 2, 1, 0, 1, 2]])
    """
    frames = visible.shape[1]
    frame = torch.arange(frames, device=visible.device)
    distance = (frame[:, None] - frame).abs()  # time time
    if closed:
        distance = torch.minimum(distance, frames - distance)
    return distance.where(visible[:, None], frames).amin(2)


def gain_by_distance(
    found: Traversal, visible: Tensor, closed: bool = True
) -> dict[int, float | None]:
    """Return the gain of all frames that count, by their distance from the nearest visible frame.

    A gain is None if the mean frame predicts perfectly.

    Args:
        found: costs of the predicted frames.
        visible: booleans (batch, time).
        closed: whether the first frame follows the last.
    """
    distance = distances(visible, closed)
    gains: dict[int, float | None] = {}
    for n in distance[found.unseen].unique().tolist():
        here = found.unseen & (distance == n)
        possible = (found.orbit_mean - found.perfect)[here].double().sum().item()
        gained = (found.orbit_mean - found.rolled)[here].double().sum().item()
        gains[n] = gained / possible if possible > 0 else None
    return gains


def visible_masks(
    sequences: SequenceSet, scripts: Tensor, counts: Sequence[int] | None = None, seed: int = 0
) -> dict[int, Tensor]:
    """Return which frames are visible, {number of visible frames: booleans (sequences, time)}.

    Visible frames are contiguous. If some poses do not occur in training, only frames in the other
    poses are visible.

    Args:
        sequences: the sequences.
        scripts: scripts of the sequences that are measured.
        counts: numbers of visible frames; by default those of `visible_counts` for which there are
            enough frames.
        seed: seed of the places of the visible frames.
    """
    frames = sequences.frames
    in_training = sequences.in_training_of(scripts)
    most = frames - 1 if in_training is None else int(in_training.sum(1).min())
    if counts is None:
        counts = [count for count in visible_counts(frames) if count <= most]
    if not counts or not all(0 < count <= most for count in counts):
        raise BadInput(
            f"the number of visible frames must be from 1 to {most}, not "
            f"{', '.join(map(str, counts)) or 'none'}"
        )
    if in_training is None:
        return {count: stretches(len(scripts), frames, count, seed) for count in counts}
    generator = torch.Generator().manual_seed(seed)
    uniform = torch.rand(len(scripts), frames, 2, generator=generator)
    shown = in_training.cpu()
    return {count: Stretch(count, count).choose(uniform, shown) for count in counts}


@torch.no_grad()
def gains_by_visible(
    fill: Fill,
    sequences: SequenceSet,
    likelihood: Likelihood,
    counts: Sequence[int] | None = None,
    *,
    most: int | None = None,
    seed: int = 0,
    batch: int = 128,
) -> dict[int, Traversal]:
    """Show a model some contiguous frames of every sequence, and measure how it predicts the rest.

    The place of the visible frames is random, and the same for every model with the same ``seed``.
    A hidden frame that equals a visible one does not count.

    Args:
        fill: function that predicts hidden frames.
        sequences: whole sequences, on the device of the model.
        likelihood: likelihood whose cost of predicted frames is measured.
        counts: numbers of visible frames; by default `visible_counts`.
        most: largest number of sequences, spread over all of them; by default all are measured.
        seed: seed of the places of the visible frames.
        batch: number of sequences that are measured at once.

    Returns:
        {number of visible frames: costs of the predicted frames}.
    """
    sequences = sequences.whole()
    scripts = spread(sequences.fixed(), most)
    masks = visible_masks(sequences, scripts, counts, seed)
    by_count: dict[int, list[Traversal]] = {count: [] for count in masks}
    for rows in torch.arange(len(scripts)).split(batch):
        shown = sequences.show(scripts[rows.to(scripts.device)])
        x, equal = shown.x, equal_frames(shown.x)
        for count, parts in by_count.items():
            visible = masks[count][rows].to(x.device)
            unseen = is_new(equal, visible)
            parts.append(prediction(x, fill(x, visible), unseen, shown.factors, likelihood))
    return {count: Traversal.join(parts) for count, parts in by_count.items()}


def visible_gains(
    fill: Fill,
    sequences: SequenceSet,
    likelihood: Likelihood,
    most: int | None = None,
    seed: int = 0,
    closed: bool = True,
) -> dict[str, Any]:
    """Return `gains_by_visible` as data: {number of visible frames: gains and intervals}.

    The keys of a number of visible frames are:

    - ``gain`` and its 95 % ``interval``;
    - ``by_factor`` and ``intervals``: the same for the sequences in which each factor moves;
    - ``of``: the number of frames of a sequence;
    - ``all_frames``: the same gains if hidden frames that equal a visible one count, too;
    - ``by_distance``: the gain by the number of frames to the nearest visible one;
    - ``by_speed``: the gains and intervals by the speed of the moving factor, in levels per frame
      without sign, if sequences have different speeds;
    - ``in_training`` and ``not_in_training``: the gains and intervals of hidden frames in poses
      that occur in training, and in poses that do not, if there are such poses.

    The result is empty if sequences are too short to hide two frames.

    Args:
        fill, sequences, likelihood, most, seed: as in `gains_by_visible`.
        closed: whether the first frame follows the last.
    """
    frames, names = sequences.frames, sequences.names
    if not visible_counts(frames):
        return {}
    gains = gains_by_visible(fill, sequences, likelihood, most=most, seed=seed)
    scripts = spread(sequences.fixed(), most)
    masks = visible_masks(sequences, scripts, seed=seed)
    by_speed = moving_by_speed(sequences, scripts)
    in_training = sequences.in_training_of(scripts)
    by_count = {}
    for count, part in gains.items():
        by_distance = gain_by_distance(part, masks[count], closed)
        numbers = {
            **_with_all_frames(part, masks[count], names),
            "of": frames,
            "by_distance": {str(n): gain for n, gain in by_distance.items()},
        }
        if by_speed:
            numbers["by_speed"] = {
                str(speed): _with_all_frames(replace(part, moving=moving), masks[count], names)
                for speed, moving in by_speed.items()
            }
        if in_training is not None:
            known = in_training.cpu()
            for name, poses in (("in_training", known), ("not_in_training", ~known)):
                numbers[name] = _numbers(replace(part, unseen=part.unseen & poses), names)
        by_count[str(count)] = numbers
    return by_count


def _with_all_frames(gains: Traversal, visible: Tensor, names: Sequence[str]) -> dict[str, Any]:
    """Return the gains, and the gains if hidden frames that equal a visible one count, too."""
    all_hidden = replace(gains, unseen=~visible)
    return {**_numbers(gains, names), "all_frames": _numbers(all_hidden, names)}


def _numbers(gains: Traversal, names: Sequence[str]) -> dict[str, Any]:
    """Return the gain and its interval, overall and for every factor that moves."""
    by_factor = gains.by_factor
    return {
        "gain": gains.overall,
        "interval": gains.interval(),
        "by_factor": {names[c] if names else "all": gain for c, gain in by_factor.items()},
        "intervals": {names[c] if names else "all": gains.interval(c) for c in by_factor},
    }


def speeds(factors: Tensor) -> Tensor:
    """Return the speeds of factors, in levels per frame without sign: (sequences, factor).

    The speed is the median over frames, as the step of a factor that returns to its first level is
    larger.

    Args:
        factors: levels (sequences, time, factor).

    >>> speeds(torch.tensor([[4, 2, 0, 7, 5, 3, 1, 8]])[..., None])  # 9 levels, by -2
    tensor([[2]])
    """
    return factors.diff(dim=1).abs().median(1).values


def moving_by_speed(sequences: SequenceSet, scripts: Tensor) -> dict[int, Tensor]:
    """Return which factors move at each speed, {speed: booleans (sequences, factor)}.

    The result is empty if factors are unknown or not integers, or if each factor has the same speed
    in all sequences in which it moves.
    """
    factors = [sequences.show(some).factors for some in scripts.split(128)]
    known = [part.cpu() for part in factors if part is not None and not part.is_floating_point()]
    if len(known) < len(factors):
        return {}
    levels = torch.cat(known)
    moving, speed = (levels != levels[:, :1]).any(1), speeds(levels)
    columns = zip(moving.unbind(1), speed.unbind(1), strict=True)
    if all(len(column[moves].unique()) < 2 for moves, column in columns):
        return {}
    return {value: moving & (speed == value) for value in speed[moving].unique().tolist()}


def some_missing(x: Tensor, share: float, seed: int = 0) -> Tensor:
    """Return a mask (batch, time) in which a random share of the frames is missing (False).

    Every sequence keeps at least one frame.
    """
    with seeded(seed):
        draw = torch.rand(x.shape[:2])
    return ((draw >= share) | (draw == draw.amax(1, keepdim=True))).to(x.device)


@torch.no_grad()
def filled_costs(
    model: SequenceModel,
    x: Tensor,
    shares: Sequence[float] = SHARES,
    rate: float | None = None,
    seed: int = 0,
    closed: bool | None = None,
) -> dict[str, dict[str, float]]:
    """Return the mean costs of a missing frame: {share missing: {method: cost}}.

    Costs are nats, or squared errors if the decoder is Gaussian. Frames are removed at random. A
    missing frame that equals a present one does not count. The methods decode:

    - ``filled``: t of the nearest present frame, rolled, as in `SequenceModel.fill`;
    - ``held``: t of the nearest present frame, not rolled.

    The method ``mean`` predicts the mean of the present frames. Its probabilities are clamped to
    [0.001, 0.999]; those of the other methods to [0.000001, 0.999999].

    Args:
        model: a topographic model.
        x: frames (batch, time, *frame).
        shares: shares of frames that are missing.
        rate: sites rolled per frame; by default the model's rate.
        seed: seed of the masks.
        closed: as in `SequenceModel.fill`.
    """
    check_topographic(model, "filled_costs: gains_by_visible measures predictions of any model")
    costs_by_share: dict[str, dict[str, float]] = {}
    equal = equal_frames(x)
    for share in shares:
        mask = some_missing(x, share, seed)
        counts = is_new(equal, mask)
        present = mask.reshape(*mask.shape, *(1,) * (x.ndim - 2))
        mean = (x * present).sum(1, keepdim=True) / present.sum(1, keepdim=True)
        predictions = {
            "filled": model.fill(x, mask, rate, closed=closed),
            "held": model.fill(x, mask, 0.0, closed=closed),
            "mean": mean.expand_as(x),
        }
        costs = {}
        for name, predicted in predictions.items():
            cost = model.likelihood.cost(predicted, x, EDGE if name == "mean" else _EDGE)
            costs[name] = cost[counts].mean().item() if counts.any() else math.nan
        costs_by_share[f"{share:g}"] = costs
    return costs_by_share
