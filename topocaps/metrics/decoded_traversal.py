"""Frames that a model decodes from the rolled latents of one frame, beside its input."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Self

import torch
from torch import Tensor

from topocaps.data.sequences import Sequences
from topocaps.device import seeded
from topocaps.metrics.rolled_traversal import traversal
from topocaps.metrics.traversal_plan import TraversalOptions
from topocaps.models.base import GenerativeModel
from topocaps.models.sequence import SequenceModel, check_topographic


@dataclass(frozen=True, repr=False)
class DecodedTraversal:
    """Input frames beside the frames that are decoded for them, each (batch, time, *frame).

    Closed sequences begin with the rolled frame. Open sequences keep the order of their frames.
    """

    x: Tensor  #: the input
    reconstructed: Tensor  #: each frame decoded from its own t
    rolled: Tensor  #: each frame decoded from t of the rolled frame, rolled by the frame's lag
    lags: list[int]  #: number of frames from the rolled frame to each frame
    unseen: Tensor  #: (batch, time) outside the window, and equal to no frame inside it
    axis: Tensor  #: (batch, capsules) axis of each roll
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
            window: number of frames around the rolled frame that do not count as unseen; by
                default the window of the model.
            closed: whether the last frame is followed by the first; by default whether the
                topography is cyclic. The rolled frame is the first of closed sequences and the
                middle of open ones; for causal topographies, the last of the first window.
            sample: draw the latents from the posterior, instead of taking their means.
            seed: seed of the drawn latents.
        """
        check_topographic(model, "traversals of single frames")
        x = frames_of(model, x)
        model.check(x)
        topography = model.topography
        rates: float | Tensor = topography.rate if rate is None else rate
        rate = topography.velocity if rate is None else rate
        plan = TraversalOptions(window, rate, closed).plan(topography, x.shape[1])
        compared = traversal(model, x, None, rate, window, seed, closed)
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
