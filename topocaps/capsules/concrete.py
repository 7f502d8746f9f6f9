r"""Binary Concrete distribution of relaxed presences, in terms of their logits.

A relaxed presence is :math:`t = \sigma(\ell)` with :math:`\ell = (\text{logits} + L) / \tau`.
L is logistic (Maddison et al. 2016). All densities are those of :math:`\ell`: the Jacobian from
:math:`\ell` to t is the same in p and q, so it cancels in the bound.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.nn.functional import logsigmoid, softplus

_SERIES = 0.02  # for smaller differences, the KL is computed by its Taylor series


def draw(logits: Tensor, normal: Tensor, temperature: float) -> Tensor:
    r"""Transform standard normal noise into a draw of :math:`\ell`."""
    below, above = (torch.erfc(sign * normal / math.sqrt(2)) for sign in (-1, 1))
    logistic = below.log() - above.log()
    return (logits + logistic) / temperature


def sample(logits: Tensor, temperature: float, relaxed: bool) -> Tensor:
    r"""Draw :math:`\ell`, or without ``relaxed`` :math:`\pm\infty`, for presences of 1 and 0."""
    value = draw(logits, torch.randn_like(logits), temperature)
    if relaxed:
        return value
    present = torch.rand_like(logits) < logits.sigmoid()
    return torch.where(present, torch.inf, -torch.inf).to(logits)


def log_density(value: Tensor, logits: Tensor, temperature: float) -> Tensor:
    r"""Return the log-density of :math:`\ell` at ``value``."""
    difference = logits - temperature * value
    return math.log(temperature) + difference - 2 * softplus(difference)


def log_prob(value: Tensor, logits: Tensor, temperature: float) -> Tensor:
    r"""Return the log-density of finite values, and the log-probability of :math:`\pm\infty`.

    Infinite values are the logits of presences of 1 and 0.
    """
    certain = value.isinf()
    relaxed = log_density(value.masked_fill(certain, 0.0), logits, temperature)
    return torch.where(certain, logsigmoid(logits.where(value > 0, -logits)), relaxed)


def kl(logits: Tensor, prior_logits: Tensor | float) -> Tensor:
    r"""Return the KL divergence at equal temperatures: :math:`\delta \coth(\delta/2) - 2`.

    :math:`\delta` is the difference of the logits. The temperature cancels.
    """
    difference = logits - prior_logits
    small = difference.abs() < _SERIES
    safe = torch.where(small, 1.0, difference)
    return torch.where(small, difference.square() / 6, safe / (safe / 2).tanh() - 2)
