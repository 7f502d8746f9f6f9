"""Encoding of frames that arrive one at a time, by running sums of what each says of the code."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor
from torch.distributions import Categorical, Normal

from topocaps.errors import BadInput, whole_number
from topocaps.models.experts import product_of_experts, rolled_back
from topocaps.models.prediction import PredictedFrames

if TYPE_CHECKING:
    from topocaps.models.rolling import RollingVAE


class RollingStream:
    """Encoder of frames that arrive one at a time.

    ``stream(frame)`` takes (batch, *frame) and returns the t of that frame, (batch, capsules,
    *shape), given all frames so far. ``stream.predict(n)`` returns the distribution of the n frames
    that come next. The stream keeps two running sums for every candidate motion. If there are
    several candidates it also keeps the frames, since each of them has to explain all frames.
    """

    def __init__(self, model: RollingVAE) -> None:
        self.model = model
        self.frames = 0  #: frames so far
        # of rolled precisions, and of these times the means: (candidates, batch, capsules, *shape)
        self._sums: tuple[Tensor, Tensor] | None = None
        self._seen: list[Tensor] = []

    @torch.no_grad()
    def __call__(self, frame: Tensor) -> Tensor:
        model, x = self.model, frame[:, None]
        model.check(x)
        if self._sums is not None and (size := self._sums[0].shape[1]) != len(frame):
            raise BadInput(
                f"a stream must keep its batch size: this one has {size} sequences, the frame "
                f"{len(frame)}"
            )
        candidates = torch.arange(len(model.motions), device=x.device)[:, None]
        expert = model.z_given_x(x[:, 0])
        precision, weighted = rolled_back(expert, model.motions, candidates, self.frames)
        if self._sums is not None:
            precision, weighted = self._sums[0] + precision, self._sums[1] + weighted
        self._sums = precision, weighted
        self.frames += 1
        if len(model.motions) > 1:
            self._seen.append(x)
        q, candidate = self.posteriors(), self.motion().logits.argmax(-1)
        t = q.mean[candidate, torch.arange(len(x), device=x.device)]
        return model.motions.roll(t, candidate, self.frames - 1)

    def posteriors(self) -> Normal:
        """Return q(t|frames so far) at frame 0, for every candidate motion."""
        if self._sums is None:
            raise BadInput("the stream has no frames yet: call it with a frame first")
        return product_of_experts(*self._sums)

    @torch.no_grad()
    def motion(self) -> Categorical:
        """Return the posterior over candidate motions, given the frames so far."""
        q = self.posteriors()
        x = torch.cat(self._seen, 1) if self._seen else q.mean[0, :, None]
        return self.model.motion_of(x, q)

    def predict(self, frames: int = 1) -> PredictedFrames:
        """Return the distribution of the frames that come next."""
        q, frames = self.posteriors(), whole_number("frames", frames)
        lags = range(self.frames, self.frames + frames)
        with torch.no_grad():
            return PredictedFrames(self.model, q, self.motion(), lags)
