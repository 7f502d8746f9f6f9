"""Encoding of frames that arrive one at a time, and prediction of the next frames."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor
from torch.distributions import Categorical

from topocaps.errors import BadInput, whole_number
from topocaps.models.experts import CodePosterior, PathSums
from topocaps.models.prediction import PredictedFrames

if TYPE_CHECKING:
    from topocaps.models.rolling import RollingVAE
    from topocaps.models.sequence import SequenceModel


class Stream:
    """Encoder of frames that arrive one at a time, for models with a causal topography.

    ``stream(frame)`` takes (batch, *frame) and returns t, (batch, capsules, *shape): the same as
    ``model.encode`` returns for the whole sequence. ``stream.predict(n)`` returns the next n
    frames. The stream keeps u² of the last window.
    """

    def __init__(self, model: SequenceModel) -> None:
        topography = model.topography
        if model.couples_frames and topography.window > 1 and not topography.causal:
            raise BadInput(
                "a stream needs a model with a causal topography: set causal=True, or window=1"
            )
        self.model = model
        self.t: Tensor | None = None  #: of the last frame
        self._squares: list[Tensor] = []
        self._t_per_axis: list[Tensor] = []  # t of the last frame for every axis to move along
        self._log_px: Tensor | None = None  # of all frames so far, for every axis

    @torch.no_grad()
    def __call__(self, frame: Tensor) -> Tensor:
        model, window = self.model, self.model.topography.window
        x = frame[:, None]
        model.check(x, whole=False)
        if self.t is not None:
            _check_batch(len(self.t), frame)
        q = model.posterior(x)
        u = None
        if q.u is not None:
            squares = q.u.mean.square() + q.u.variance
            # the first frame takes the place of the frames before it, as in a causal topography
            past = self._squares or [squares] * (window - 1)
            self._squares = [*past, squares][-window:]
            u = torch.cat(self._squares, 1).sqrt()
        z = q.z.mean.expand(-1, window if u is not None else 1, *q.z.mean.shape[2:])
        self._t_per_axis = [t[:, -1:] for t in model.t_per_axis(z, u)]
        if model.topography.apart:
            log_px = torch.stack([model.x_given_t(t).log_prob(x) for t in self._t_per_axis])[..., 0]
            self._log_px = log_px if self._log_px is None else self._log_px + log_px
        axis = self._inferred_axis()
        per_axis = self._t_per_axis
        self.t = (per_axis[0] if axis is None else model.select_axis(per_axis, axis))[:, 0]
        return self.t

    def _inferred_axis(self) -> Tensor | None:
        """Return the likeliest axis so far, (batch, 1), or None if axes are not kept apart."""
        return None if self._log_px is None else self._log_px.argmax(0)[:, None]

    @torch.no_grad()
    def predict(
        self,
        frames: int = 1,
        rate: float | None = None,
        axis: int | Sequence[int] | Tensor | None = None,
    ) -> Tensor:
        """Return the next frames, (batch, frames, *frame), decoded from the last t, rolled.

        Args:
            frames: number of frames to predict.
            rate: sites per frame; by default ``rate`` of the model, which is 0 for a VAE.
            axis: axis to roll along: one for all, (capsules,) or (batch, capsules). It is required
                if capsules move along several axes, unless the topography keeps axes apart: then
                it is inferred from the frames so far.
        """
        if self.t is None:
            raise BadInput("the stream has no frames yet: call it with a frame before predict")
        frames = whole_number("frames", frames)
        sites_per_frame = self.model.rate if rate is None else rate
        axis = self._inferred_axis() if axis is None else axis
        axes = self.model.axes_to_roll(axis, len(self.t))
        t = self.model.select_axis(self._t_per_axis, axes)[:, 0]
        ahead = [self.model.roll(t, sites_per_frame * (n + 1), axes) for n in range(frames)]
        return self.model.decode(torch.stack(ahead, 1))


class RollingStream:
    """Encoder of frames that arrive one at a time, for a `RollingVAE`.

    ``stream(frame)`` takes (batch, *frame) and returns the t of that frame, (batch, capsules,
    *shape), given all frames so far. ``stream.predict(n)`` returns the distribution of the next n
    frames. The stream keeps running sums for every path of a capsule. If the model decodes several
    candidate motions, the stream also keeps all frames, because a new frame changes the code, and
    so the likelihood of earlier frames under every candidate.
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
        if self._sums is not None:
            _check_batch(self._sums.precision.shape[1], frame)
        lag = torch.tensor([self.frames], device=x.device)
        visible = torch.ones(len(x), 1, dtype=torch.bool, device=x.device)
        sums = PathSums.of(model.expert(x), model.motions.paths, lag, visible)
        self._sums = sums if self._sums is None else self._sums + sums
        self.frames += 1
        self._seen = [*self._seen, x] if model.kept > 1 else [x]
        posterior, motion = self._so_far()
        q, candidate = posterior.pick(motion.logits.argmax(-1))
        return model.motions.roll(q.mean, candidate, self.frames - 1)

    def posteriors(self) -> CodePosterior:
        """Return q(t|frames so far, v) at frame 0, for the candidate motions v that are kept."""
        if self._sums is None:
            raise BadInput("the stream has no frames yet: call it with a frame first")
        model = self.model
        return self._sums.posterior(model.motions, model.kept, model.correction)

    @torch.no_grad()
    def motion(self) -> Categorical:
        """Return the posterior over candidate motions, given the frames so far."""
        posterior, motion = self._so_far()
        return posterior.among_all(motion, len(self.model.motions))

    @torch.no_grad()
    def predict(self, frames: int = 1) -> PredictedFrames:
        """Return the distribution of the next ``frames`` frames."""
        posterior, motion = self._so_far()
        lags = range(self.frames, self.frames + whole_number("frames", frames))
        return PredictedFrames(self.model, posterior, motion, lags)

    def _so_far(self) -> tuple[CodePosterior, Categorical]:
        """Return the posteriors of the code and of the kept candidates, given all frames so far."""
        if self.model.kept > 1 and len(self._seen) < self.frames:
            raise BadInput(
                "keep of the model was raised above 1, and this stream has not kept all frames: "
                "begin a new stream"
            )
        posterior = self.posteriors()
        return posterior, self.model.motion_of(torch.cat(self._seen, 1), posterior)


def _check_batch(size: int, frame: Tensor) -> None:
    """Raise `BadInput` unless a frame has the batch size of the earlier frames."""
    if len(frame) != size:
        raise BadInput(
            f"a stream must keep its batch size: this one has {size} sequences, and the frame has "
            f"{len(frame)}"
        )
