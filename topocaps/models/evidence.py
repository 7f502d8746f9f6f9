"""Bounds on log p(x): the ELBO, importance-weighted bounds, and the papers' estimator.

Models return the evidence classes. The estimators use only ``check``, ``posterior`` and
``log_weights`` of a model.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Protocol, Self, runtime_checkable

import torch
from torch import Tensor
from torch.distributions import Normal

from topocaps.errors import BadInput, whole_number
from topocaps.latents.masking import zero_missing
from topocaps.latents.topography import KELLER_2021
from topocaps.models.base import GenerativeModel
from topocaps.references import cites

BURDA_2016 = """\
@inproceedings{burda2016importance,
  title = {Importance Weighted Autoencoders},
  author = {Burda, Yuri and Grosse, Roger and Salakhutdinov, Ruslan},
  booktitle = {International Conference on Learning Representations},
  year = {2016},
  url = {https://arxiv.org/abs/1509.00519},
}"""

VALUES_IN_MEMORY = 16_000_000  # largest number of values of frames that are decoded at once


@dataclass(frozen=True)
class Evidence:
    """The terms of Eq. 12 in nats, each (batch, time)."""

    log_px_given_t: Tensor
    kl_z: Tensor
    kl_u: Tensor
    penalty: Tensor | None = None  #: subtracted in training; no part of the bound

    @property
    def objective(self) -> Tensor:
        """Quantity that training maximises: ``elbo``, minus the penalty if there is one."""
        return self.elbo if self.penalty is None else self.elbo - self.penalty

    @property
    def elbo(self) -> Tensor:
        """log p(x|t) - KL(q_z) - KL(q_u) for every frame (Eq. 12)."""
        return self.log_px_given_t - self.kl_z - self.kl_u


@dataclass(frozen=True)
class RollingEvidence:
    """Terms of the bound on log p(x_1..S) in nats, each (batch, time).

    ``kl`` is the KL divergence of the code of the sequence, and of its motion if that is unknown,
    divided equally among the present frames. So the sum of ``elbo`` over time is the bound of the
    sequence. If the divergence has no closed form, ``kl`` is an estimate from one sample.
    """

    log_px_given_t: Tensor
    kl: Tensor

    @classmethod
    def of_sequence(cls, log_px: Tensor, kl: Tensor, mask: Tensor | None) -> Self:
        """Divide the KL of each sequence equally among its present frames.

        Args:
            log_px: log p(x|t) of every frame, (batch, time).
            kl: KL of every sequence, (batch,).
            mask: as in `summed_out`.
        """
        return cls(log_px, kl[..., None] * _share(log_px, mask))

    @classmethod
    def of_motions(cls, log_px: Tensor, log_weights: Tensor, mask: Tensor | None) -> Self:
        """Sum out candidate motions: the bound is the log of the summed weights.

        ``log_px_given_t`` is the mean under the weights of the candidates, and ``kl`` is the
        difference between it and the bound.

        Args:
            log_px: log p(x|t) of every frame for every candidate, (candidates, batch, time).
            log_weights: log p(v) p(x, t|v) / q(t|v), (candidates, batch).
            mask: as in `summed_out`.

        >>> log_px = torch.tensor([[[-1.0, -2.0]], [[-1.0, -2.0]]])  # two equal candidates
        >>> log_weights = torch.tensor([[0.5], [0.5]]).log() + log_px.sum(-1)
        >>> RollingEvidence.of_motions(log_px, log_weights, None).elbo
        tensor([[-1., -2.]])
        """
        expected, _ = _expected(log_px, log_weights)
        return cls.of_sequence(expected, expected.sum(-1) - log_weights.logsumexp(0), mask)

    @property
    def elbo(self) -> Tensor:
        """log p(x|t) - KL for every frame."""
        return self.log_px_given_t - self.kl

    @property
    def objective(self) -> Tensor:
        """Quantity that training maximises: ``elbo``."""
        return self.elbo


@dataclass(frozen=True)
class Posterior:
    """q(z|x) and q(u|x) (Eq. 10, 11), independent over frames. A plain VAE has no u."""

    z: Normal
    u: Normal | None = None

    def where(self, mask: Tensor | None) -> Posterior:
        """Return the posterior, with the prior in place of that of missing frames.

        Args:
            mask: booleans (batch, time), True where a frame is present.
        """
        if mask is None:
            return self
        return Posterior(_or_prior(self.z, mask), self.u and _or_prior(self.u, mask))


def _or_prior(q: Normal, mask: Tensor) -> Normal:
    """Replace q by N(0, 1) where ``mask`` is False."""
    present = mask.reshape(mask.shape + (1,) * (q.mean.ndim - mask.ndim))
    mean, spread = torch.where(present, q.mean, 0.0), torch.where(present, q.stddev, 1.0)
    return Normal(mean, spread, validate_args=False)


def summed_out(log_px: Tensor, mask: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """Sum out the axis that each sequence moved along, under a uniform prior over axes.

    Return log p(x) of every frame, (…, time), and the posterior over axes, (axes, …). The sum of
    log p(x) over time is the logarithm of the sequence's likelihood, averaged over axes. The value
    of a frame is its expectation under the posterior over axes, plus an equal share of the
    difference for every present frame.

    Args:
        log_px: log-likelihood of every frame for every axis, (axes, …, time).
        mask: booleans (…, time), True where a frame is present.

    >>> frames, p_axis = summed_out(torch.tensor([[[-1.0, -3.0]], [[-3.0, -1.0]]]))
    >>> frames.sum(-1), p_axis[:, 0]  # log p(x) of the sequence is -4 along either axis
    (tensor([-4.]), tensor([0.5000, 0.5000]))
    """
    if len(log_px) == 1:
        return log_px[0], torch.ones_like(log_px[..., 0])
    of_sequence = log_px.sum(-1)
    expected, p_axis = _expected(log_px, of_sequence)
    difference = of_sequence.logsumexp(0) - math.log(len(log_px)) - expected.sum(-1)
    return expected + difference[..., None] * _share(expected, mask), p_axis


def _expected(log_px: Tensor, log_weights: Tensor) -> tuple[Tensor, Tensor]:
    """Return the mean of log p(x|t) of every frame under weighted candidates, and the weights."""
    posterior = log_weights.softmax(0).detach()
    weight = posterior[..., None]
    return torch.where(weight > 0, weight * log_px, 0.0).sum(0), posterior


def _share(log_px: Tensor, mask: Tensor | None) -> Tensor:
    """Return 1 / the number of present frames of a sequence, and 0 for missing ones: (…, time)."""
    share = torch.ones_like(log_px) if mask is None else mask.to(log_px.dtype)
    return share / share.sum(-1, keepdim=True).clamp_min(1)


@runtime_checkable
class LatentModel(Protocol):
    """Interface of models that have importance weights of frames."""

    def check(self, x: Tensor, mask: Tensor | None = None) -> None: ...
    def posterior(self, x: Tensor) -> Posterior: ...
    def log_weights(
        self, x: Tensor, posterior: Posterior, samples: int, mask: Tensor | None = None
    ) -> Tensor: ...


def kl_to_standard_normal(q: Normal, axes: int) -> Tensor:
    """Return KL(q || N(0, 1)), summed over the last ``axes`` axes, those of a frame's latents."""
    kl = 0.5 * (q.mean.square() + q.variance - 1) - q.stddev.log()
    return kl.flatten(-axes).sum(-1)


def log_ratio_to_standard_normal(q: Normal, value: Tensor, axes: int) -> Tensor:
    """Return log N(value; 0, 1) - log q(value), summed over the last ``axes`` axes."""
    log_ratio = 0.5 * (((value - q.mean) / q.stddev).square() - value.square()) + q.stddev.log()
    return log_ratio.flatten(-axes).sum(-1)


def log_mean_exp_over_sequences(log_weights: Tensor) -> Tensor:
    r""":math:`\frac1S \log \frac1K \sum_k \exp \sum_l w_{kl}`, from (K, batch, time) to (batch,).

    The weight of a sample is that of its whole sequence, because :math:`t_l` depends on every u of
    its window. So this bounds :math:`\log p(x_{1..S}) / S` for any topography.

    >>> log_mean_exp_over_sequences(torch.tensor([[[-1.0, -3.0]], [[-3.0, -1.0]]]))
    tensor([-2.])
    """
    samples, _, frames = log_weights.shape
    return (log_weights.sum(-1).logsumexp(0) - math.log(samples)) / frames


def log_mean_exp_over_frames(log_weights: Tensor) -> Tensor:
    """Return the mean bound of frames that are weighted one by one: (K, batch, time) to (batch,).

    It is a bound only for windows of 1.

    >>> log_mean_exp_over_frames(torch.tensor([[[-1.0, -3.0]], [[-3.0, -1.0]]]))
    tensor([-1.5662])
    """
    return (log_weights.logsumexp(0) - math.log(log_weights.shape[0])).mean(-1)


def paper_estimate(log_weights: Tensor) -> Tensor:
    """Return the estimate of the released code: (K, batch, time) to (batch,).

    It omits -log K, so it is too high by log K. It weights each frame by its own z and u alone, so
    it is no bound if the window is above 1.

    >>> paper_estimate(torch.full((10, 1, 5), -100.0))  # ten samples of log-weight -100
    tensor([-97.6974])
    """
    return log_weights.logsumexp(0).mean(-1)


@torch.no_grad()
def log_weights(
    model: LatentModel,
    x: Tensor,
    samples: int,
    values_in_memory: int = VALUES_IN_MEMORY,
    mask: Tensor | None = None,
) -> Tensor:
    """Return the logarithms of importance weights of frames, in nats: (samples, batch, time).

    Args:
        samples: number of samples of the posterior.
        values_in_memory: largest number of values of frames that are decoded at once.
        mask: booleans (batch, time), True where a frame is present. Missing frames have a
            log-weight of 0.
    """
    samples = whole_number("samples", samples)
    if not isinstance(model, LatentModel):
        raise BadInput(
            f"a {type(model).__name__} has no importance weights of frames, only a TopographicVAE "
            "or a VAE has them"
        )
    x = zero_missing(x, mask)
    model.check(x)
    posterior = model.posterior(x).where(mask)
    counts = chunks(samples, x.numel(), values_in_memory)
    weights = torch.cat([model.log_weights(x, posterior, n, mask) for n in counts])
    return weights if mask is None else torch.where(mask, weights, 0.0)


def chunks(samples: int, size: int, values_in_memory: int = VALUES_IN_MEMORY) -> list[int]:
    """Return how many samples to decode at once, in steps that add up to ``samples``.

    Args:
        samples: number of samples.
        size: number of values of one sample.
        values_in_memory: largest number of values that are decoded at once.

    >>> chunks(5, size=10, values_in_memory=20)
    [2, 2, 1]
    """
    at_once = max(1, values_in_memory // size)
    return [min(at_once, samples - done) for done in range(0, samples, at_once)]


@cites(BURDA_2016)
def log_px(
    model: GenerativeModel, x: Tensor, samples: int = 10, mask: Tensor | None = None
) -> Tensor:
    """Return the importance-weighted bound on log p(x_1..S) / S, in nats per frame: (batch,).

    It weights whole sequences, so it is a bound for any window. With equal ``samples`` it is looser
    than a bound of single frames, and it is not comparable with the papers' numbers. A motion that
    a `RollingVAE` does not know is summed out.

    Args:
        samples: number of samples of the posterior.
        mask: booleans (batch, time), True where a frame is present. The bound is then that of the
            present frames, divided by their number.
    """
    return model.log_px(x, samples, mask)


def joint_bound(model: LatentModel, x: Tensor, samples: int, mask: Tensor | None = None) -> Tensor:
    """Return `log_px` of a model with importance weights of frames: (batch,)."""
    weights = log_weights(model, x, samples, mask=mask)
    return _of_present(log_mean_exp_over_sequences(weights), mask)


def frame_bound(model: LatentModel, x: Tensor, samples: int, mask: Tensor | None = None) -> Tensor:
    """Return the importance-weighted bound of frames that are weighted one by one: (batch,).

    If frames are independent under the prior and the posterior, it is a lower bound on
    log p(x_1..S) / S, in nats per frame, and tighter than `joint_bound` with as many samples.
    Otherwise it is no bound.
    """
    weights = log_weights(model, x, samples, mask=mask)
    return _of_present(log_mean_exp_over_frames(weights), mask)


def _of_present(bound: Tensor, mask: Tensor | None) -> Tensor:
    """Turn a mean over all frames, with 0 for missing ones, into a mean over present frames."""
    return bound if mask is None else bound * mask.shape[1] / mask.sum(1).clamp_min(1)


@cites(KELLER_2021)
def log_px_paper(model: LatentModel, x: Tensor, samples: int = 10) -> Tensor:
    """Return log p(x) as the papers estimate it, in nats per frame: (batch,).

    It is comparable with the papers' tables, but it is no bound.
    """
    return paper_estimate(log_weights(model, x, samples))
