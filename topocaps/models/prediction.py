"""The distribution of some frames of a sequence, given other frames."""

from __future__ import annotations

import math
import operator
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import torch
from torch import Tensor
from torch.distributions import Categorical, Distribution

from topocaps.errors import BadInput, whole_number
from topocaps.models.evidence import chunks
from topocaps.models.experts import CodePosterior

if TYPE_CHECKING:
    from topocaps.models.rolling import RollingVAE


class PredictedFrames(Distribution):
    """Distribution of the frames at ``lags`` from the first frame of a sequence.

    The batch is that of the sequences. An event is all predicted frames of a sequence,
    (lags, *frame): they share a code and a motion, so they are not independent.

    Args:
        model: the model.
        posterior: q(t|x, v) at frame 0, for every kept candidate motion v.
        motion: posterior over the kept candidates.
        lags: frames to predict; the first frame of a sequence is 0.
        samples: number of samples of t that ``log_prob`` averages over.
    """

    has_rsample = False
    arg_constraints: ClassVar = {}  #: needed by the ``repr`` of `torch.distributions.Distribution`

    def __init__(
        self,
        model: RollingVAE,
        posterior: CodePosterior,
        motion: Categorical,
        lags: Iterable[int],
        samples: int = 100,
    ) -> None:
        self.model, self.posterior, self.motion = model, posterior, motion
        self.lags, self.samples = _lags(lags), whole_number("samples", samples)
        t = model.at(posterior.q.mean, posterior.candidate[..., None], self.lags)
        frames = model.decode(t)  # kept batch lags *frame
        weight = motion.probs.mT.reshape(*frames.shape[:2], *(1,) * (frames.ndim - 2))
        self._mean = (weight * frames).sum(0)
        super().__init__(self._mean.shape[:1], self._mean.shape[1:], validate_args=False)

    @property
    def mean(self) -> Tensor:
        """Frames decoded from the mean of the code, averaged over motions: (batch, lags, *frame).

        It differs from the mean over codes, because a decoder is not linear.
        """
        return self._mean

    @torch.no_grad()
    def sample(self, sample_shape: torch.Size | Sequence[int] = ()) -> Tensor:
        """Draw motions, codes and frames: (*sample_shape, batch, lags, *frame)."""
        shape = torch.Size(sample_shape)
        return self._decoded(shape.numel()).sample().reshape(self._extended_shape(shape))

    @torch.no_grad()
    def sample_mean(self, sample_shape: torch.Size | Sequence[int] = ()) -> Tensor:
        """Draw motions and codes, and return the expected frames of each.

        The result has the shape of ``sample``, without the noise of pixels.
        """
        shape = torch.Size(sample_shape)
        return self._decoded(shape.numel()).mean.reshape(self._extended_shape(shape))

    @torch.no_grad()
    def log_prob(self, value: Tensor) -> Tensor:
        """Return an estimate of log p of all predicted frames together: (batch,).

        It is the logarithm of the mean of p(frames|t) over ``samples`` samples of t, and of the
        motion, from the posterior. Its expectation is at most the log-probability, and approaches
        it as ``samples`` grows.

        Args:
            value: frames (batch, lags, *frame).
        """
        needed = self.batch_shape + self.event_shape
        if not isinstance(value, Tensor) or value.shape != needed:
            given = tuple(value.shape) if isinstance(value, Tensor) else type(value).__name__
            raise BadInput(
                f"log_prob needs all predicted frames, a tensor (batch, lags, *frame) = "
                f"{tuple(needed)}, not {given}"
            )
        self.model.check(value)
        counts = chunks(self.samples, self.batch_shape.numel() * self.event_shape.numel())
        log_px = torch.cat([self._decoded(count).log_prob(value).sum(-1) for count in counts])
        return log_px.logsumexp(0) - math.log(self.samples)

    def _decoded(self, n: int) -> Distribution:
        """Return the decoder's distribution at n samples of the code: (n, batch, lags, *frame)."""
        q, candidate = self.posterior.pick(self.motion.sample(torch.Size((n,))))
        t = q.mean + q.stddev * torch.randn_like(q.mean)
        return self.model.frames_given(self.model.at(t, candidate[..., None], self.lags))


def _lags(lags: Iterable[int]) -> list[int]:
    """Return lags as a list of integers, or raise `BadInput`; they may be an array or a tensor."""
    values: Any = lags.tolist() if isinstance(lags, Tensor | np.ndarray) else lags
    try:
        values = list(values)
        whole_lags = [operator.index(value) for value in values]
        valid = not any(isinstance(value, bool) for value in values)
    except TypeError:
        valid = False
    if not valid:
        raise BadInput(f"lags must be whole numbers of frames such as range(5, 8), not {values!r}")
    if not whole_lags:
        raise BadInput(f"lags must name at least one frame, such as range(5, 8), not {values!r}")
    return whole_lags
