"""What a model expects of a whole sequence, seen from one of its frames alone."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from topocaps.arithmetic import seeded
from topocaps.data.sequences import Sequences
from topocaps.errors import BadInput
from topocaps.metrics.traversal import lags_from, start_of, traversal
from topocaps.models.sequence import SequenceModel

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@dataclass(frozen=True, repr=False)
class Walk:
    """Frames beside what is decoded of them, each (batch, time, *frame).

    Closed sequences begin with the frame that is rolled; those that have ends are in their order.
    """

    x: Tensor  #: the input
    reconstructed: Tensor  #: each frame from its own t
    rolled: Tensor  #: each frame from the t of one frame, rolled as far as it is away
    lags: list[int]  #: how far that is, in frames
    unseen: Tensor  #: (batch, time) not in the window around that frame, nor shown there
    axis: Tensor  #: (batch, capsules) that was rolled along
    rate: float  #: sites that were rolled a frame; the mean of capsules' own, where they have them

    def __repr__(self) -> str:
        sequences, frames = self.unseen.shape
        return f"Walk({sequences} sequences of {frames} frames, start={self.start})"

    @property
    def start(self) -> int:
        """The frame that was rolled."""
        return self.lags.index(0)

    def figure(self) -> Figure:
        """Input, reconstruction and rolled frames of every sequence."""
        from topocaps.figures import walk  # which stand on this

        return walk(self)


@torch.no_grad()
def traverse(
    model: SequenceModel,
    x: Any,
    *,
    rate: float | None = None,
    axis: int | Sequence[int] | Tensor | None = None,
    window: int | None = None,
    closed: bool | None = None,
    sample: bool = False,
    seed: int = 0,
) -> Walk:
    """Encode the window around a frame, roll its t by every lag, decode.

    x: (batch, time, *frame), or one sequence (time, *frame); ``Sequences`` too. The frame is the
    first, where sequences are ``closed`` (as the topography is cyclic, unless given); in the
    middle, where they have ends; the last of the first window, where only the past is seen.

    ``rate`` is the sites a frame that is rolled: the topography's velocity unless given, of each
    capsule its own where these are learned. Capsules of several axes are rolled along ``axis``, all
    the same or each its own, (capsules,), or else along those that show best what was seen.
    ``window`` decides which frames are unseen (the model's own unless given). Latents are the
    posterior's means or, with ``sample``, drawn from ``seed``.
    """
    if not isinstance(model, SequenceModel):
        raise BadInput(f"a {type(model).__name__} has no capsules that roll")
    x = _frames(model, x)
    model.check(x)
    topography, frames = model.topography, x.shape[1]
    own: float | Tensor = topography.rate if rate is None else rate
    rate = topography.velocity if rate is None else rate
    closed = topography.cyclic if closed is None else closed
    walked = traversal(model, x, None, rate, window, seed, closed)
    axes = walked.axis if axis is None else model.axes_to_roll(axis, len(x))
    with seeded(seed):
        t = model.select_axis(model.encode_per_axis(x, sample), axes)
    start = start_of(topography, window or topography.window, frames, closed)
    lags = lags_from(start, frames, closed)
    rolled = torch.stack([model.roll(t[:, start], own * lag, axes) for lag in lags], 1)
    unseen = walked.unseen.to(x.device)
    if closed:  # as it is rolled; time that does not close is shown as it passes
        x, t = x.roll(-start, 1), t.roll(-start, 1)
    else:
        rolled, unseen = rolled.roll(start, 1), unseen.roll(start, 1)
        lags = list(range(-start, frames - start))
    return Walk(x, model.decode(t), model.decode(rolled), lags, unseen, axes, rate)


def _frames(model: SequenceModel, x: Any) -> Tensor:
    """(batch, time, *frame), where and as the model takes them."""
    frame_shape = model.frame_shape
    alone = frame_shape is not None and getattr(x, "ndim", None) == 1 + len(frame_shape)
    sequences = Sequences.of(x[None] if alone else x).whole()
    frames = next(sequences.batches(len(sequences))).x
    for parameter in model.parameters():
        frames = frames.to(parameter)
        break
    return frames
