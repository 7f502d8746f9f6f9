"""Traversals: frames that a model decodes from rolled latents, beside its input."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Self

import torch
from torch import Tensor

from topocaps.data.sequences import Sequences
from topocaps.device import seeded
from topocaps.latents.paths import NEAR
from topocaps.latents.rolling import roll_each
from topocaps.latents.topography import Topography
from topocaps.metrics.rolled_traversal import TraversalOptions, traversal
from topocaps.models.base import GenerativeModel
from topocaps.models.rolling import RollingVAE
from topocaps.models.sequence import SequenceModel, check_topographic


@dataclass(frozen=True, repr=False)
class DecodedTraversal:
    """Input frames, their reconstructions, and frames decoded from rolled latents.

    All are (batch, time, *frame). Closed sequences begin with the rolled frame. Open sequences keep
    the order of their frames.
    """

    x: Tensor  #: the input
    reconstructed: Tensor  #: each frame decoded from its own t
    rolled: Tensor  #: each frame decoded from t of the rolled frame, rolled by the frame's lag
    lags: list[int]  #: number of frames from the rolled frame to each frame
    unseen: Tensor  #: (batch, time), True outside the window if equal to no frame inside it
    axis: Tensor  #: (batch, capsules), axis of each roll
    rate: float  #: sites rolled a frame; the mean if capsules have different rates

    def __repr__(self) -> str:
        sequences, frames = self.unseen.shape
        return (
            f"{type(self).__name__}({sequences} sequences of {frames} frames, start={self.start})"
        )

    @property
    def start(self) -> int:
        """Index of the rolled frame."""
        return self.lags.index(0)

    @classmethod
    @torch.no_grad()
    def of(
        cls,
        model: SequenceModel,
        x: Any,
        *,
        rate: float | None = None,
        axis: int | Sequence[int] | Tensor | None = None,
        window: int | None = None,
        closed: bool | None = None,
        sample: bool = False,
        seed: int = 0,
    ) -> Self:
        """Encode the window around one frame, roll its t by every lag, and decode.

        Args:
            x: frames (batch, time, *frame), one sequence (time, *frame), or `Sequences`.
            rate: sites rolled a frame; by default the topography's rate, which may differ between
                capsules if velocities are learned.
            axis: axis to roll along: one for all capsules, or (capsules,); by default the axes
                under which the frames of the window are predicted best.
            window, closed: as in `TraversalOptions`.
            sample: draw the latents from the posterior, instead of taking their means.
            seed: seed of the drawn latents.
        """
        check_topographic(model, "traversals of single frames")
        x = frames_of(model, x)
        topography = model.topography
        rates: float | Tensor = topography.rate if rate is None else rate
        rate = topography.velocity if rate is None else rate
        compared = traversal(model, x, None, rate, window, seed, closed)
        plan = TraversalOptions(window, rate, closed).plan(topography, x.shape[1])
        axes = compared.axis if axis is None else model.axes_to_roll(axis, len(x))
        with seeded(seed):
            t = model.select_axis(model.encode_per_axis(x, sample), axes)
        rolled, lags, unseen = plan.roll(model, t, rates, axes), plan.lags, compared.unseen
        unseen = unseen.to(x.device)
        if plan.closed:
            x, t = x.roll(-plan.start, 1), t.roll(-plan.start, 1)
        else:
            rolled, unseen = rolled.roll(plan.start, 1), unseen.roll(plan.start, 1)
            lags = sorted(lags)
        return cls(x, model.decode(t), model.decode(rolled), lags, unseen, axes, rate)


def frames_of(model: GenerativeModel, x: Any) -> Tensor:
    """Return frames (batch, time, *frame) with the data type and device of the model."""
    frame_shape = model.frame_shape
    alone = frame_shape is not None and getattr(x, "ndim", None) == 1 + len(frame_shape)
    sequences = Sequences.of(x[None] if alone else x).whole()
    frames = next(sequences.batches(len(sequences))).x
    parameter = next(model.parameters(), None)
    return frames if parameter is None else frames.to(parameter)


@dataclass(frozen=True, repr=False)
class RingTraversal:
    """The frames of a code that is rolled by 0, 1, 2, … sites along the motion of its sequence.

    These offsets are the rolls of the fastest capsules; the others roll in proportion to their
    velocities. If the velocity of the motion changes, the code rolls along the first velocity that
    is not 0. There are as many offsets as sites.
    """

    x: Tensor  #: the input, (batch, time, *frame)
    visible: Tensor  #: frames that the code has seen, (batch, time)
    rolled: Tensor  #: decoded frames, (batch, offsets, *frame)
    #: index of the first frame of x whose code is rolled by the offset, (batch, offsets); −1 if no
    #: frame is. On rings, rolls that differ by whole turns are equal.
    frame: Tensor

    def __repr__(self) -> str:
        sequences, offsets = self.frame.shape
        return f"{type(self).__name__}({sequences} sequences, {offsets} offsets)"

    @classmethod
    @torch.no_grad()
    def of(cls, model: RollingVAE, x: Any, *, mask: Tensor | None = None) -> Self:
        """Encode the visible frames as one code, roll it along the most likely motion, and decode.

        Args:
            x: frames (batch, time, *frame), one sequence (time, *frame), or `Sequences`.
            mask: booleans (batch, time) or (time,), True where a frame is visible; by default all.
        """
        x = frames_of(model, x)
        visible = torch.ones(x.shape[:2], dtype=torch.bool) if mask is None else mask
        visible = visible.to(x.device).expand(x.shape[:2])
        seen, _ = model.given(x, visible)
        q, motion = model.likeliest(seen, model.posteriors(seen, visible), visible)
        motions, topography = model.motions, model.topography
        sites = zip(topography.shape, motions.paths.moves, strict=True)
        count = max([n for n, moves in sites if moves] or topography.shape)
        offsets, times = (torch.arange(n, device=x.device) for n in (count, x.shape[1]))
        steps = _directions(motions.paths.velocities[motions.path_of[motion]])
        shifts = offsets[:, None, None] * steps[:, None]  # batch offsets capsules axes
        frames = motions.shifts(motion[:, None], times)  # batch time capsules axes
        same = _same_roll(topography, shifts[:, :, None], frames[:, None])  # batch offsets time
        frame = torch.where(same.any(2), same.int().argmax(2), -1)
        rolled = _rolled(topography, q.mean[:, None], shifts)
        return cls(x, visible, model.decode(rolled), frame)


def _directions(velocities: Tensor) -> Tensor:
    """Return the directions of motions, (batch, capsules, axes).

    The largest component of the fastest capsules is 1 or -1.

    Args:
        velocities: sites per frame, (batch, capsules, axes, frames).
    """
    moving = (velocities != 0).flatten(1, 2).any(1)  # batch frames
    first = moving.int().argmax(1)
    velocity = velocities[torch.arange(len(velocities), device=velocities.device), ..., first]
    speed = velocity.abs().amax((1, 2), keepdim=True)
    return velocity / torch.where(speed > 0, speed, 1.0)


def _same_roll(topography: Topography, shifts: Tensor, others: Tensor) -> Tensor:
    """Return whether two shifts (…, capsules, axes) roll all capsules alike: booleans (…)."""
    difference = shifts - others
    if topography.cyclic:
        sites = torch.tensor(topography.shape, dtype=difference.dtype, device=difference.device)
        difference = difference - sites * (difference / sites).round()
    return (difference.abs() < NEAR).flatten(-2).all(-1)


def _rolled(topography: Topography, t: Tensor, shifts: Tensor) -> Tensor:
    """Roll capsules (…, capsules, *shape) by shifts (…, capsules, axes)."""
    axes = len(topography.shape)
    shifts = shifts.reshape(*shifts.shape[:-1], *(1,) * axes, axes)
    t = t.expand(*shifts.shape[: -axes - 1], *topography.shape)
    for axis in range(axes):
        t = roll_each(
            t,
            shifts[..., axis],
            axis - axes,
            fractional=True,
            fourier=topography.cyclic,
            cyclic=topography.cyclic,
        )
    return t
