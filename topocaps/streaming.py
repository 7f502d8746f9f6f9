"""Frames that come one at a time, for causal topographies: a state, and what comes next."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from topocaps.errors import BadInput, whole_number

if TYPE_CHECKING:
    from topocaps.sequence_model import SequenceModel


class Stream:
    """Latents of frames as they come, the same as those of the whole sequence at once.

    Keeps the squares u² of the last window. ``stream(frame)`` takes (batch, *frame) and gives
    t: (batch, capsules, *shape); ``stream.predict(n)`` rolls the last t ahead and decodes it.
    """

    def __init__(self, model: SequenceModel) -> None:
        topography = model.topography
        if model.shares and topography.window > 1 and not topography.causal:
            raise BadInput(
                "only a causal model can take frames one at a time: its topography needs "
                "causal=True (or window=1)"
            )
        self.model = model
        self.t: Tensor | None = None
        self._squares: list[Tensor] = []
        self._ways: list[Tensor] = []  # t for every way that frames may go
        self._log_px: Tensor | None = None  # of all frames so far, for every way

    @torch.no_grad()
    def __call__(self, frame: Tensor) -> Tensor:
        model, window = self.model, self.model.topography.window
        x = frame[:, None]
        model.check(x, whole=False)
        if self.t is not None and len(self.t) != len(frame):
            raise BadInput(f"this stream is of {len(self.t)} sequences, not of {len(frame)}")
        q = model.posterior(x)
        u = None
        if q.u is not None:
            squares = q.u.mean.square() + q.u.variance
            # time begins with its first frame, as often as the window asks for
            past = self._squares or [squares] * (window - 1)
            self._squares = [*past, squares][-window:]
            u = torch.cat(self._squares, 1).sqrt()
        z = q.z.mean.expand(-1, window if u is not None else 1, *q.z.mean.shape[2:])
        self._ways = [t[:, -1:] for t in model.ways(z, u)]
        if model.topography.apart:
            now = torch.stack([model.x_given_t(t).log_prob(x) for t in self._ways])[..., 0]
            self._log_px = now if self._log_px is None else self._log_px + now
        went = self._went()
        self.t = (self._ways[0] if went is None else model.way(self._ways, went))[:, 0]
        return self.t

    def _went(self) -> Tensor | None:
        """The axis that frames went along so far, (batch, 1), where axes are kept apart."""
        return None if self._log_px is None else self._log_px.argmax(0)[:, None]

    @torch.no_grad()
    def predict(
        self,
        frames: int = 1,
        rate: float | None = None,
        axis: int | Sequence[int] | Tensor | None = None,
    ) -> Tensor:
        """The coming frames, (batch, frames, *frame): the last t, rolled ``rate`` sites a frame.

        ``rate`` is the model's own unless given: the topography's velocity, none for a VAE.
        Capsules that move along several axes have to be told which ``axis`` to roll along, all
        the same or each its own: (capsules,), or (batch, capsules); unless they are kept apart,
        where what was seen tells.
        """
        if self.t is None:
            raise BadInput("nothing has been seen yet: give the stream a frame first")
        frames = whole_number("frames", frames)
        own = self.model.rate if rate is None else rate
        axes = self.model.axes_to_roll(self._went() if axis is None else axis, len(self.t))
        t = self.model.way(self._ways, axes)[:, 0]
        ahead = [self.model.roll(t, own * (n + 1), axes) for n in range(frames)]
        return self.model.decode(torch.stack(ahead, 1))
