"""Encoding of frames that arrive one at a time, and prediction of the next ones."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from topocaps.errors import BadInput, whole_number

if TYPE_CHECKING:
    from topocaps.models.sequence import SequenceModel


class Stream:
    """Encoder of frames that arrive one at a time, for models with a causal topography.

    ``stream(frame)`` takes (batch, *frame) and returns t, (batch, capsules, *shape): the same as
    ``model.encode`` gives for the whole sequence. ``stream.predict(n)`` returns the n frames that
    come next. The stream keeps u² of the last window.
    """

    def __init__(self, model: SequenceModel) -> None:
        topography = model.topography
        if model.couples_frames and topography.window > 1 and not topography.causal:
            raise BadInput(
                "only a causal model can take frames one at a time: its topography needs "
                "causal=True (or window=1)"
            )
        self.model = model
        self.t: Tensor | None = None  #: of the last frame
        self._squares: list[Tensor] = []
        self._t_per_axis: list[Tensor] = []  # of the last frame, for every axis to move along
        self._log_px: Tensor | None = None  # of all frames so far, for every axis

    @torch.no_grad()
    def __call__(self, frame: Tensor) -> Tensor:
        model, window = self.model, self.model.topography.window
        x = frame[:, None]
        model.check(x, whole=False)
        if self.t is not None and len(self.t) != len(frame):
            raise BadInput(
                f"a stream must keep its batch size: this one has {len(self.t)} sequences, the "
                f"frame {len(frame)}"
            )
        q = model.posterior(x)
        u = None
        if q.u is not None:
            squares = q.u.mean.square() + q.u.variance
            # the first frame stands for the frames of the window before it
            past = self._squares or [squares] * (window - 1)
            self._squares = [*past, squares][-window:]
            u = torch.cat(self._squares, 1).sqrt()
        z = q.z.mean.expand(-1, window if u is not None else 1, *q.z.mean.shape[2:])
        self._t_per_axis = [t[:, -1:] for t in model.t_per_axis(z, u)]
        if model.topography.apart:
            now = torch.stack([model.x_given_t(t).log_prob(x) for t in self._t_per_axis])[..., 0]
            self._log_px = now if self._log_px is None else self._log_px + now
        axis = self._inferred_axis()
        per_axis = self._t_per_axis
        self.t = (per_axis[0] if axis is None else model.select_axis(per_axis, axis))[:, 0]
        return self.t

    def _inferred_axis(self) -> Tensor | None:
        """Return the likeliest axis so far, (batch, 1), or None unless axes are kept apart."""
        return None if self._log_px is None else self._log_px.argmax(0)[:, None]

    @torch.no_grad()
    def predict(
        self,
        frames: int = 1,
        rate: float | None = None,
        axis: int | Sequence[int] | Tensor | None = None,
    ) -> Tensor:
        """Return the frames that come next, (batch, frames, *frame), from the last t, rolled.

        Args:
            frames: how many frames to predict.
            rate: sites a frame; by default the model's own ``rate``, which is 0 for a VAE.
            axis: axis to roll along: one for all, (capsules,) or (batch, capsules). It is required
                if capsules move along several axes, unless the topography keeps axes apart: then
                it is inferred from the frames so far.
        """
        if self.t is None:
            raise BadInput("the stream has no frames yet: call it with a frame before predict")
        frames = whole_number("frames", frames)
        sites_a_frame = self.model.rate if rate is None else rate
        axis = self._inferred_axis() if axis is None else axis
        axes = self.model.axes_to_roll(axis, len(self.t))
        t = self.model.select_axis(self._t_per_axis, axes)[:, 0]
        ahead = [self.model.roll(t, sites_a_frame * (n + 1), axes) for n in range(frames)]
        return self.model.decode(torch.stack(ahead, 1))
