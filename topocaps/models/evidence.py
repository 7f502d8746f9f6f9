"""What the data are worth under a model: the ELBO, importance-weighted bounds, the paper's number.

Models return these nouns, and the estimators see a model only through ``posterior`` and
``log_weights``.
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

VALUES_IN_MEMORY = 16_000_000  # of decoded frames


@dataclass(frozen=True)
class Evidence:
    """The terms of Eq. 12 in nats, each (batch, time)."""

    log_px_given_t: Tensor
    kl_z: Tensor
    kl_u: Tensor
    penalty: Tensor | None = None  #: no part of the bound

    @property
    def objective(self) -> Tensor:
        """What training raises: the bound, less a penalty where there is one."""
        return self.elbo if self.penalty is None else self.elbo - self.penalty

    @property
    def elbo(self) -> Tensor:
        """log p(x|t) - KL(q_z) - KL(q_u) for every frame (Eq. 12)."""
        return self.log_px_given_t - self.kl_z - self.kl_u


@dataclass(frozen=True)
class RollingEvidence:
    """Terms of the bound on log p(x_1..S) in nats, each (batch, time).

    ``kl`` is that of the code of the sequence (and of its motion, if that is unknown), divided
    equally among the present frames. So the sum of ``elbo`` over time is the sequence's bound.
    ``kl`` is an estimate from one sample of the code if it has no closed form.
    """

    log_px_given_t: Tensor
    kl: Tensor

    @classmethod
    def of_sequence(cls, log_px: Tensor, kl: Tensor, mask: Tensor | None) -> Self:
        """Divide the KL of sequences, (batch,), among their present frames, (batch, time)."""
        return cls(log_px, kl[..., None] * _share(log_px, mask))

    @classmethod
    def of_motions(cls, log_px: Tensor, log_weights: Tensor, mask: Tensor | None) -> Self:
        """Sum out candidate motions: the bound is the log of the summed weights.

        ``log_px_given_t`` is the mean under the weights of the candidates, and ``kl`` the rest.

        Args:
            log_px: log p(x|t) of every frame for every candidate, (candidates, batch, time).
            log_weights: log p(v) p(x, t|v) / q(t|v), (candidates, batch).
            mask: as in ``summed_out``.

        >>> log_px = torch.tensor([[[-1.0, -2.0]], [[-1.0, -2.0]]])  # the candidates are alike
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
    """q(z|x) and q(u|x) (Eq. 10, 11), independent over frames; a plain VAE has no u."""

    z: Normal
    u: Normal | None = None

    def where(self, mask: Tensor | None) -> Posterior:
        """Replace the posterior of missing frames by the prior; ``mask`` is (batch, time)."""
        if mask is None:
            return self
        return Posterior(_or_prior(self.z, mask), self.u and _or_prior(self.u, mask))


def _or_prior(q: Normal, mask: Tensor) -> Normal:
    present = mask.reshape(mask.shape + (1,) * (q.mean.ndim - mask.ndim))
    mean, spread = torch.where(present, q.mean, 0.0), torch.where(present, q.stddev, 1.0)
    return Normal(mean, spread, validate_args=False)


def summed_out(log_px: Tensor, mask: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """Sum out the axis that each sequence moved along, under a uniform prior over axes.

    Return log p(x) of every frame, (…, time), and the posterior over axes, (axes, …). Over time,
    log p(x) sums to the log of the mean over axes of the sequence's likelihood. A frame contributes
    its expectation under that posterior; the present frames share the rest equally.

    Args:
        log_px: log-likelihood of every frame for every axis, (axes, …, time).
        mask: booleans (…, time), True where a frame is present.

    >>> frames, p_axis = summed_out(torch.tensor([[[-1.0, -3.0]], [[-3.0, -1.0]]]))
    >>> frames.sum(-1), p_axis[:, 0]  # the sequence has -4 nats along either axis
    (tensor([-4.]), tensor([0.5000, 0.5000]))
    """
    if len(log_px) == 1:
        return log_px[0], torch.ones_like(log_px[..., 0])
    whole = log_px.sum(-1)
    given, p_axis = _expected(log_px, whole)
    left = whole.logsumexp(0) - math.log(len(log_px)) - given.sum(-1)
    return given + left[..., None] * _share(given, mask), p_axis


def _expected(log_px: Tensor, log_weights: Tensor) -> tuple[Tensor, Tensor]:
    """Return log p(x|t) of every frame, expected under weighted candidates, and their posterior."""
    posterior = log_weights.softmax(0).detach()
    weight = posterior[..., None]
    return torch.where(weight > 0, weight * log_px, 0.0).sum(0), posterior


def _share(log_px: Tensor, mask: Tensor | None) -> Tensor:
    """Return equal shares of the present frames of a sequence, (…, time), which sum to 1."""
    share = torch.ones_like(log_px) if mask is None else mask.to(log_px.dtype)
    return share / share.sum(-1, keepdim=True).clamp_min(1)


@runtime_checkable
class LatentModel(Protocol):
    """What the estimators ask of a model."""

    def check(self, x: Tensor, mask: Tensor | None = None) -> None: ...
    def posterior(self, x: Tensor) -> Posterior: ...
    def log_weights(
        self, x: Tensor, posterior: Posterior, samples: int, mask: Tensor | None = None
    ) -> Tensor: ...


def kl_to_standard_normal(q: Normal, axes: int) -> Tensor:
    """KL(q || N(0, 1)), summed over the last ``axes``: those of a frame's latents."""
    kl = 0.5 * (q.mean.square() + q.variance - 1) - q.stddev.log()
    return kl.flatten(-axes).sum(-1)


def log_ratio_to_standard_normal(q: Normal, value: Tensor, axes: int) -> Tensor:
    """log N(value; 0, 1) - log q(value), summed over the last ``axes``."""
    log_ratio = 0.5 * (((value - q.mean) / q.stddev).square() - value.square()) + q.stddev.log()
    return log_ratio.flatten(-axes).sum(-1)


def log_mean_exp_over_sequences(log_weights: Tensor) -> Tensor:
    r""":math:`\frac1S \log \frac1K \sum_k \exp \sum_l w_{kl}`, from (K, batch, time) to (batch,).

    The weight of a sample is that of its whole sequence, since :math:`t_l` depends on every u of
    its window; so this bounds :math:`\log p(x_{1..S}) / S` for any topography.

    >>> log_mean_exp_over_sequences(torch.tensor([[[-1.0, -3.0]], [[-3.0, -1.0]]]))
    tensor([-2.])
    """
    samples, _, frames = log_weights.shape
    return (log_weights.sum(-1).logsumexp(0) - math.log(samples)) / frames


def log_mean_exp_over_frames(log_weights: Tensor) -> Tensor:
    """Every frame weighed by itself, (K, batch, time) to (batch,): a bound for window 1 only.

    >>> log_mean_exp_over_frames(torch.tensor([[[-1.0, -3.0]], [[-3.0, -1.0]]]))
    tensor([-1.5662])
    """
    return (log_weights.logsumexp(0) - math.log(log_weights.shape[0])).mean(-1)


def paper_estimate(log_weights: Tensor) -> Tensor:
    """The released estimator, from (K, batch, time) to (batch,): no -log K, so log K too high.

    Each frame is weighed by its own z and u alone, so it is no bound where the window is over 1.

    >>> paper_estimate(torch.full((10, 1, 5), -100.0))  # ten samples that all say -100
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
    """(samples, batch, time) importance weights of frames, in nats.

    Draws as many samples at once as keep the decoded frames under ``values_in_memory`` numbers.
    Frames that are missing, where ``mask`` (batch, time) is False, weigh nothing.
    """
    samples = whole_number("samples", samples)
    if not isinstance(model, LatentModel):
        raise BadInput(
            f"a {type(model).__name__} has no importance weights of frames: a TopographicVAE and a "
            "VAE have them"
        )
    x = zero_missing(x, mask)
    model.check(x)
    posterior = model.posterior(x).where(mask)
    counts = chunks(samples, x.numel(), values_in_memory)
    weights = torch.cat([model.log_weights(x, posterior, n, mask) for n in counts])
    return weights if mask is None else torch.where(mask, weights, 0.0)


def chunks(samples: int, size: int, values_in_memory: int = VALUES_IN_MEMORY) -> list[int]:
    """Divide samples, of ``size`` values each, into numbers that are decoded at once.

    >>> chunks(5, size=10, values_in_memory=20)
    [2, 2, 1]
    """
    at_once = max(1, values_in_memory // size)
    return [min(at_once, samples - done) for done in range(0, samples, at_once)]


@cites(BURDA_2016)
def log_px(
    model: GenerativeModel, x: Tensor, samples: int = 10, mask: Tensor | None = None
) -> Tensor:
    """The joint importance-weighted bound on log p(x_1..S) / S, nats a frame, (batch,).

    True for any window; looser at equal ``samples`` than a frame's own bound, and not comparable
    with the papers' numbers. With a ``mask`` (batch, time), True where a frame is there, it is of
    those frames, and for each of them. A motion that a `RollingVAE` does not know is summed out.
    """
    return model.log_px(x, samples, mask)


def joint_bound(model: LatentModel, x: Tensor, samples: int, mask: Tensor | None = None) -> Tensor:
    """Return `log_px` of a model that has importance weights of frames: (batch,)."""
    weights = log_weights(model, x, samples, mask=mask)
    return _of_present(log_mean_exp_over_sequences(weights), mask)


def frame_bound(model: LatentModel, x: Tensor, samples: int, mask: Tensor | None = None) -> Tensor:
    """Return the importance-weighted bound of frames that are weighted one by one: (batch,).

    If frames are independent under the prior and the posterior, it is a lower bound on
    log p(x_1..S) / S, nats a frame, and tighter than `joint_bound` with as many samples. Otherwise
    it is no bound.
    """
    weights = log_weights(model, x, samples, mask=mask)
    return _of_present(log_mean_exp_over_frames(weights), mask)


def _of_present(bound: Tensor, mask: Tensor | None) -> Tensor:
    """Turn a mean over all frames, to which missing ones add 0, into one over present frames."""
    return bound if mask is None else bound * mask.shape[1] / mask.sum(1).clamp_min(1)


@cites(KELLER_2021)
def log_px_paper(model: LatentModel, x: Tensor, samples: int = 10) -> Tensor:
    """The papers' log p(x), nats a frame, (batch,): to stand beside their tables, and no bound."""
    return paper_estimate(log_weights(model, x, samples))
