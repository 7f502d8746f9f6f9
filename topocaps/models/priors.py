"""Priors of the code of a sequence: which codes a model expects before it sees a frame."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.distributions import Gamma, Normal
from torch.distributions import Laplace as LaplaceDistribution

from topocaps.errors import BadInput, finite_number
from topocaps.models.evidence import kl_to_standard_normal, log_ratio_to_standard_normal


class CodePrior(ABC):
    """Distribution of the code of a sequence, (capsules, *shape).

    Capsules are independent, and every site has mean 0 and variance 1. In the methods, ``axes`` is
    the number of axes of a code, 1 + len(shape); they are the last axes of the tensors.

    A prior of your own needs ``log_prob``, ``kl_bound`` and ``sample``.

    >>> CodePrior.of("student-t")
    StudentT(dof=3.0)
    """

    name: ClassVar[str]  #: that settings record

    @staticmethod
    def of(prior: CodePrior | str) -> CodePrior:
        """Return a prior, or the library's prior of this name, with its default settings."""
        if isinstance(prior, CodePrior):
            return prior
        if not isinstance(prior, str) or prior not in _KINDS:
            known = ", ".join(_KINDS)
            raise BadInput(f"prior must be one of {known}, or a CodePrior, not {prior!r}")
        return _KINDS[prior]()

    @abstractmethod
    def log_prob(self, t: Tensor, axes: int) -> Tensor:
        """Return log p(t) of codes, (…, capsules, *shape) to (…)."""

    @abstractmethod
    def kl_bound(self, q: Normal, axes: int) -> Tensor:
        """Return KL(q || p), or an upper bound on it, without samples."""

    @abstractmethod
    def sample(self, n: int, shape: tuple[int, ...], like: Tensor) -> Tensor:
        """Draw n codes of this shape, with the type and on the device of ``like``."""

    def log_ratio(self, q: Normal, t: Tensor, axes: int) -> Tensor:
        """Return log p(t) - log q(t)."""
        return self.log_prob(t, axes) - q.log_prob(t).flatten(-axes).sum(-1)

    def kl(self, q: Normal, t: Tensor, axes: int) -> Tensor:
        """Return an unbiased estimate of KL(q || p), from a sample t of q.

        It is log q(t) - log p(t), or the divergence itself where that has a closed form.
        """
        return -self.log_ratio(q, t, axes)


@dataclass(frozen=True)
class StandardNormal(CodePrior):
    """Independent sites, N(0, 1)."""

    name = "normal"

    def log_prob(self, t: Tensor, axes: int) -> Tensor:
        return -0.5 * (t.square() + math.log(2 * math.pi)).flatten(-axes).sum(-1)

    def log_ratio(self, q: Normal, t: Tensor, axes: int) -> Tensor:
        return log_ratio_to_standard_normal(q, t, axes)

    def kl_bound(self, q: Normal, axes: int) -> Tensor:
        return kl_to_standard_normal(q, axes)

    def kl(self, q: Normal, t: Tensor, axes: int) -> Tensor:
        return kl_to_standard_normal(q, axes)

    def sample(self, n: int, shape: tuple[int, ...], like: Tensor) -> Tensor:
        return torch.randn(n, *shape, dtype=like.dtype, device=like.device)


@dataclass(frozen=True)
class StudentT(CodePrior):
    r"""All n sites of a capsule share one random scale, so capsules are large or small as wholes.

    .. math::

        p(t_c) = \frac{\Gamma(\frac{\nu + n}{2})}{\Gamma(\frac\nu2) (\pi (\nu - 2))^{n/2}}
        \Big( 1 + \frac{|t_c|^2}{\nu - 2} \Big)^{-\frac{\nu + n}{2}}

    It is the multivariate Student-t distribution of a capsule, with unit variance. It depends on
    the norm of a capsule alone, so no roll of a ring changes the density of a code, not even one by
    a fraction of a site. Its KL divergence from a normal distribution has no closed form.

    Args:
        dof: degrees of freedom, above 2. The fewer there are, the more the scales of capsules
            differ.
    """

    name = "student-t"
    dof: float = 3.0

    def __post_init__(self) -> None:
        dof = finite_number("dof", self.dof)
        if dof <= 2:
            raise BadInput(f"dof must be above 2, so that codes have a variance, not {self.dof!r}")
        object.__setattr__(self, "dof", dof)

    def log_prob(self, t: Tensor, axes: int) -> Tensor:
        return self._of_squares(t.square(), axes)

    def kl_bound(self, q: Normal, axes: int) -> Tensor:
        """Return an upper bound on KL(q || p), without samples.

        By Jensen's inequality, the mean of log(1 + r) is at most the logarithm of 1 + the mean of
        r, here with r = |t_c|² / (dof - 2). The bound is close where q is narrow.
        """
        return -_entropy(q, axes) - self._of_squares(q.mean.square() + q.variance, axes)

    def sample(self, n: int, shape: tuple[int, ...], like: Tensor) -> Tensor:
        z = torch.randn(n, *shape, dtype=like.dtype, device=like.device)
        half = torch.full((n, shape[0]), self.dof / 2, dtype=like.dtype, device=like.device)
        scale = ((self.dof - 2) / (2 * Gamma(half, 1.0).sample())).sqrt()
        return z * scale.reshape(*scale.shape, *(1,) * (len(shape) - 1))

    def _of_squares(self, squares: Tensor, axes: int) -> Tensor:
        """Return the log-density of codes, given the squares of their values."""
        each = squares.flatten(1 - axes)  # … capsules sites
        power = (self.dof + each.shape[-1]) / 2
        log_scale = 0.5 * each.shape[-1] * math.log(math.pi * (self.dof - 2))
        constant = math.lgamma(power) - math.lgamma(self.dof / 2) - log_scale
        return (constant - power * (each.sum(-1) / (self.dof - 2)).log1p()).sum(-1)


@dataclass(frozen=True)
class Laplace(CodePrior):
    """Independent sites of unit variance, more of them near 0 or far from it than normal ones.

    Rolls by whole sites do not change the density of a code; those by fractions do.
    """

    name = "laplace"

    def log_prob(self, t: Tensor, axes: int) -> Tensor:
        return self._of_magnitudes(t.abs(), axes)

    def kl_bound(self, q: Normal, axes: int) -> Tensor:
        """Return KL(q || p), which has a closed form: |t| has a folded normal distribution."""
        ratio = q.mean / q.stddev
        at_zero = math.sqrt(2 / math.pi) * (-0.5 * ratio.square()).exp()
        magnitude = q.stddev * (at_zero + ratio * torch.erf(ratio / math.sqrt(2)))
        return -_entropy(q, axes) - self._of_magnitudes(magnitude, axes)

    def kl(self, q: Normal, t: Tensor, axes: int) -> Tensor:
        return self.kl_bound(q, axes)

    def sample(self, n: int, shape: tuple[int, ...], like: Tensor) -> Tensor:
        zero = torch.zeros((), dtype=like.dtype, device=like.device)
        return LaplaceDistribution(zero, math.sqrt(0.5)).sample(torch.Size((n, *shape)))

    def _of_magnitudes(self, magnitudes: Tensor, axes: int) -> Tensor:
        """Return the log-density of codes, given the magnitudes of their values."""
        return -(math.sqrt(2) * magnitudes + 0.5 * math.log(2)).flatten(-axes).sum(-1)


def _entropy(q: Normal, axes: int) -> Tensor:
    return (q.stddev.log() + 0.5 * math.log(2 * math.pi * math.e)).flatten(-axes).sum(-1)


_KINDS: dict[str, type[CodePrior]] = {
    kind.name: kind for kind in (StandardNormal, StudentT, Laplace)
}


def prior_settings(prior: CodePrior) -> dict[str, Any] | None:
    """Return the settings that `prior_from` takes, or None for a prior of your own."""
    if type(prior) not in _KINDS.values():
        return None
    return {"kind": prior.name, **asdict(prior)}  # type: ignore[call-overload]


def prior_from(settings: Mapping[str, Any]) -> CodePrior:
    """Return the prior of these settings.

    >>> prior_from({"kind": "student-t", "dof": 5})
    StudentT(dof=5.0)
    """
    values = {name: value for name, value in settings.items() if name != "kind"}
    if settings.get("kind") not in _KINDS:
        raise BadInput(f"this version knows no prior of kind {settings.get('kind')!r}")
    return _KINDS[settings["kind"]](**values)
