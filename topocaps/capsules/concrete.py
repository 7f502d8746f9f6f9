r"""Presences that are relaxed: the binary Concrete distribution, by its logit.

:math:`t = \sigma(\ell)`, :math:`\ell = (\text{logits} + L) / \tau` with L logistic (Maddison et
al. 2016). Densities are those of :math:`\ell`: the change from t to it is the same in every density
of a bound, and leaves it.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.nn.functional import logsigmoid, softplus

_SMALL = 0.02


def draw(logits: Tensor, normal: Tensor, temperature: float) -> Tensor:
    r""":math:`\ell` from standard normal numbers, made logistic by their distribution function."""
    below, above = (torch.erfc(sign * normal / math.sqrt(2)) for sign in (-1, 1))
    logistic = below.log() - above.log()
    return (logits + logistic) / temperature


def log_density(value: Tensor, logits: Tensor, temperature: float) -> Tensor:
    r"""Of :math:`\ell` = ``value``."""
    apart = logits - temperature * value
    return math.log(temperature) + apart - 2 * softplus(apart)


def log_chance(value: Tensor, logits: Tensor, temperature: float) -> Tensor:
    r"""As ``log_density``; of a certain presence, :math:`\pm\infty`, the log of its probability."""
    certain = value.isinf()
    relaxed = log_density(value.masked_fill(certain, 0.0), logits, temperature)
    return torch.where(certain, logsigmoid(logits.where(value > 0, -logits)), relaxed)


def kl(logits: Tensor, prior_logits: Tensor) -> Tensor:
    r""":math:`\delta \coth(\delta/2) - 2` at equal temperatures, :math:`\delta` between logits.

    The temperature scales both alike and drops out.
    """
    apart = logits - prior_logits
    near = apart.abs() < _SMALL
    safe = torch.where(near, 1.0, apart)
    return torch.where(near, apart.square() / 6, safe / (safe / 2).tanh() - 2)
