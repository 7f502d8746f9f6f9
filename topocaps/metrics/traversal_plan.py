"""Which frame of a sequence a traversal rolls, by how much, and which frames are unseen."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from topocaps.errors import BadInput
from topocaps.latents.interface import TopographyLike
from topocaps.models.sequence import SequenceModel


@dataclass(frozen=True)
class TraversalOptions:
    """Settings of a traversal that depend on the data rather than on the model.

    Args:
        window: number of frames around the rolled frame that do not count as unseen; by default the
            window of the model. Models that are compared must have the same.
        rate: sites a frame by which the data ask capsules to move.
        closed: whether the last frame is followed by the first; by default whether the topography
            is cyclic.
    """

    window: int | None = None
    rate: float = 1.0
    closed: bool | None = None

    def plan(self, topography: TopographyLike, frames: int) -> TraversalPlan:
        """Return the plan for sequences of this many frames, or raise `BadInput`."""
        window = topography.window if self.window is None else self.window
        if not topography.window <= window <= frames:
            raise BadInput(
                f"window must lie between the model's {topography.window} and the "
                f"{frames} frames, not {window}"
            )
        closed = topography.cyclic if self.closed is None else self.closed
        return TraversalPlan(frames, window, closed, topography.causal)


@dataclass(frozen=True)
class TraversalPlan:
    """The rolled frame of a sequence, and the lags of all others from it.

    Lags and frames are listed from the rolled frame on, round the end of the sequence.
    """

    frames: int
    window: int
    closed: bool
    causal: bool

    @property
    def start(self) -> int:
        """Index of the rolled frame; the sequence contains all frames of its window.

        It is the first frame of closed sequences and the middle of open ones. For causal
        topographies it is the last frame of the first window.
        """
        if self.causal:
            return self.window - 1
        return 0 if self.closed else self.frames // 2

    @property
    def lags(self) -> list[int]:
        """Frames from the rolled frame to every frame; past frames of open time are negative."""
        return [
            lag if self.closed or self.start + lag < self.frames else lag - self.frames
            for lag in range(self.frames)
        ]

    @property
    def outside(self) -> range:
        """Positions of the frames outside the window of the rolled frame."""
        return unseen_lags(self.window, self.frames, self.causal)

    @property
    def inside(self) -> list[int]:
        """Positions of the frames inside the window of the rolled frame."""
        outside = self.outside
        return [lag % self.frames for lag in range(outside.stop - self.frames, outside.start)]

    def unseen(self, x: Tensor) -> Tensor:
        """Return which frames are outside the window and differ from all inside: (batch, time).

        ``x`` begins with the rolled frame.
        """
        unseen = torch.zeros(x.shape[:2], dtype=torch.bool, device=x.device)
        seen = x[:, self.inside]
        for position in self.outside:
            same = (x[:, position, None] == seen).flatten(2).all(2)
            unseen[:, position] = ~same.any(1)
        return unseen

    def roll(
        self, model: SequenceModel, t: Tensor, rate: float | Tensor, axis: int | Tensor
    ) -> Tensor:
        """Return t of the rolled frame, rolled by every lag: (batch, time, capsules, *shape)."""
        start = t[:, self.start]
        return torch.stack([model.roll(start, rate * lag, axis) for lag in self.lags], 1)


def unseen_lags(window: int, frames: int, causal: bool = False) -> range:
    """Return the lags from a frame to the frames outside its window, round the sequence.

    >>> list(unseen_lags(window=13, frames=15))
    [7, 8]
    >>> list(unseen_lags(window=13, frames=15, causal=True))
    [1, 2]
    """
    if causal:
        return range(1, frames - window + 1)
    return range((window - 1) // 2 + 1, frames - window // 2)
