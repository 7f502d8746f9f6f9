"""Encoding of frames that arrive one at a time, by running sums of what each says of the code."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor
from torch.distributions import Categorical

from topocaps.errors import BadInput, whole_number
from topocaps.models.candidates import CodePosterior, PathSums
from topocaps.models.prediction import PredictedFrames

if TYPE_CHECKING:
    from topocaps.models.rolling import RollingVAE


class RollingStream:
    """Encoder of frames that arrive one at a time.

    ``stream(frame)`` takes (batch, *frame) and returns the t of that frame, (batch, capsules,
    *shape), given all frames so far. ``stream.predict(n)`` returns the distribution of the n frames
    that come next. The stream keeps running sums for every velocity of a capsule. If it decodes
    several candidates it also keeps the frames, since each of them has to explain all frames.
    """

    def __init__(self, model: RollingVAE) -> None:
        self.model = model
        self.frames = 0  #: frames so far
        self._sums: PathSums | None = None
        self._seen: list[Tensor] = []  # all frames so far, or the last one

    @torch.no_grad()
    def __call__(self, frame: Tensor) -> Tensor:
        model, x = self.model, frame[:, None]
        model.check(x)
        if self._sums is not None and (size := self._sums.precision.shape[1]) != len(frame):
            raise BadInput(
                f"a stream must keep its batch size: this one has {size} sequences, the frame "
                f"{len(frame)}"
            )
        lag = torch.tensor([self.frames], device=x.device)
        visible = torch.ones(len(x), 1, dtype=torch.bool, device=x.device)
        said = PathSums.of(model.expert(x), model.motions.paths, lag, visible)
        self._sums = said if self._sums is None else self._sums + said
        self.frames += 1
        self._seen = [*self._seen, x] if model.kept > 1 else [x]
        found, motion = self._so_far()
        q, candidate = found.pick(motion.logits.argmax(-1))
        return model.motions.roll(q.mean, candidate, self.frames - 1)

    def posteriors(self) -> CodePosterior:
        """Return q(t|frames so far, v) at frame 0, for the candidate motions v that are kept."""
        if self._sums is None:
            raise BadInput("the stream has no frames yet: call it with a frame first")
        model = self.model
        candidate = model.all_candidates
        if model.kept < len(model.motions):
            candidate = self._sums.likeliest(model.motions, model.kept)
        return self._sums.posterior(model.motions, candidate)

    @torch.no_grad()
    def motion(self) -> Categorical:
        """Return the posterior over candidate motions, given the frames so far."""
        found, motion = self._so_far()
        return found.among_all(motion, len(self.model.motions))

    @torch.no_grad()
    def predict(self, frames: int = 1) -> PredictedFrames:
        """Return the distribution of the frames that come next."""
        found, motion = self._so_far()
        lags = range(self.frames, self.frames + whole_number("frames", frames))
        return PredictedFrames(self.model, found, motion, lags)

    def _so_far(self) -> tuple[CodePosterior, Categorical]:
        """Return the posteriors of the code and of the kept candidates, given all frames so far."""
        if self.model.kept > 1 and len(self._seen) < self.frames:
            raise BadInput("begin a new stream: with keep=1, this one has not kept all frames")
        found = self.posteriors()
        return found, self.model.motion_of(torch.cat(self._seen, 1), found)
