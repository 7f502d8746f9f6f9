"""The distribution of frames that a model has not seen, given frames that it has."""

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
from topocaps.models.candidates import CodePosterior

if TYPE_CHECKING:
    from topocaps.models.rolling import RollingVAE

AT_ONCE = 16_000_000  # values of decoded frames


class PredictedFrames(Distribution):
    """Distribution of the frames at ``lags`` from the first frame of a sequence.

    The batch is that of the sequences, and an event is all predicted frames of one of them,
    (lags, *frame): they share their code and their motion, so they are not independent.
    """

    has_rsample = False
    arg_constraints: ClassVar = {}  #: PyTorch's ``repr`` reads them

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
        each = model.decode(t)  # kept batch lags *frame
        weight = motion.probs.mT.reshape(*each.shape[:2], *(1,) * (each.ndim - 2))
        self._mean = (weight * each).sum(0)
        super().__init__(self._mean.shape[:1], self._mean.shape[1:], validate_args=False)

    @property
    def mean(self) -> Tensor:
        """Frames decoded from the mean of the code, averaged over motions: (batch, lags, *frame).

        This is not the mean over codes: a decoder is not linear.
        """
        return self._mean

    @torch.no_grad()
    def sample(self, sample_shape: torch.Size | Sequence[int] = ()) -> Tensor:
        """Draw motions, codes and frames: (*sample_shape, batch, lags, *frame)."""
        shape = torch.Size(sample_shape)
        frames = self._decoded(shape.numel()).sample()
        return frames.reshape(*shape, *self.batch_shape, *self.event_shape)

    @torch.no_grad()
    def sample_mean(self, sample_shape: torch.Size | Sequence[int] = ()) -> Tensor:
        """Draw motions and codes, and return the frames expected under each, as in ``sample``."""
        shape = torch.Size(sample_shape)
        frames = self._decoded(shape.numel()).mean
        return frames.reshape(*shape, *self.batch_shape, *self.event_shape)

    @torch.no_grad()
    def log_prob(self, value: Tensor) -> Tensor:
        """Return a bound on log p of all frames together, integrated over codes: (batch,).

        It is the logarithm of the mean of p(frames|t) over samples of t (and of the motion) from
        the posterior. Its expectation is at most the log-probability, and approaches it as
        ``samples`` grows.
        """
        wanted = self.batch_shape + self.event_shape
        if not isinstance(value, Tensor) or value.shape != wanted:
            given = tuple(value.shape) if isinstance(value, Tensor) else type(value).__name__
            raise BadInput(
                f"log_prob needs all predicted frames, a tensor (batch, lags, *frame) = "
                f"{tuple(wanted)}, not {given}"
            )
        self.model.check(value)
        parts = chunks(self.samples, self.batch_shape.numel() * self.event_shape.numel())
        drawn = torch.cat([self._decoded(count).log_prob(value).sum(-1) for count in parts])
        return drawn.logsumexp(0) - math.log(self.samples)

    def _decoded(self, n: int) -> Distribution:
        """Return the decoder's distribution at n samples of the code: (n, batch, lags, *frame)."""
        q, candidate = self.posterior.pick(self.motion.sample(torch.Size((n,))))
        t = q.mean + q.stddev * torch.randn_like(q.mean)
        found: Distribution = self.model.x_given_t(
            self.model.at(t, candidate[..., None], self.lags)
        )
        return found


def _lags(lags: Iterable[int]) -> list[int]:
    """Check lags, and return them as a list; they may be an array or a tensor."""
    values: Any = lags.tolist() if isinstance(lags, Tensor | np.ndarray) else lags
    try:
        values = list(values)
        found = [operator.index(value) for value in values]
        whole = not any(isinstance(value, bool) for value in values)
    except TypeError:
        whole = False
    if not whole:
        raise BadInput(f"lags must be whole numbers of frames such as range(5, 8), not {values!r}")
    if not found:
        raise BadInput("lags must name at least one frame")
    return found


def chunks(samples: int, size: int) -> list[int]:
    """Divide samples, of ``size`` values each, into numbers that are decoded at once.

    >>> chunks(5, AT_ONCE // 2)
    [2, 2, 1]
    """
    at_once = max(1, AT_ONCE // size)
    return [min(at_once, samples - done) for done in range(0, samples, at_once)]
