"""The bound of models that have one code for a sequence, with motions summed out."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

import torch
from torch import Tensor


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
        """Divide the KL of sequences, (batch,), among their present frames.

        Args:
            log_px: log p(x|t) of every frame, (batch, time).
            kl: (batch,).
            mask: booleans (batch, time), True where a frame is present.
        """
        share = torch.ones_like(log_px) if mask is None else mask.to(log_px.dtype)
        share = share / share.sum(-1, keepdim=True).clamp_min(1)
        return cls(log_px, kl[..., None] * share)

    @classmethod
    def of_motions(cls, log_px: Tensor, log_weights: Tensor, mask: Tensor | None) -> Self:
        """Sum out candidate motions: the bound is the log of the summed weights.

        ``log_px_given_t`` is the mean under the weights of the candidates, and ``kl`` the rest.

        Args:
            log_px: log p(x|t) of every frame for every candidate, (candidates, batch, time).
            log_weights: log p(v) p(x, t|v) / q(t|v), (candidates, batch).
            mask: booleans (batch, time), True where a frame is present.

        >>> log_px = torch.tensor([[[-1.0, -2.0]], [[-1.0, -2.0]]])  # the candidates are alike
        >>> log_weights = torch.tensor([[0.5], [0.5]]).log() + log_px.sum(-1)
        >>> RollingEvidence.of_motions(log_px, log_weights, None).elbo
        tensor([[-1., -2.]])
        """
        p_motion = log_weights.softmax(0).detach()[..., None]
        expected = torch.where(p_motion > 0, p_motion * log_px, 0.0).sum(0)
        return cls.of_sequence(expected, expected.sum(-1) - log_weights.logsumexp(0), mask)

    @property
    def elbo(self) -> Tensor:
        """log p(x|t) - KL for every frame."""
        return self.log_px_given_t - self.kl

    @property
    def objective(self) -> Tensor:
        """Quantity that training maximises: ``elbo``."""
        return self.elbo
