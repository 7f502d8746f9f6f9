"""Priors of the code of a sequence."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
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
    the number of axes of a code, 1 + len(shape). These are the last axes of the tensors.

    A subclass defines ``log_prob``, ``kl_bound`` and ``sample``.

    >>> CodePrior.of("student-t")
    StudentT(dof=3.0)
    """

    name: ClassVar[str]  #: name of the prior in recorded settings

    @staticmethod
    def of(prior: CodePrior | str) -> CodePrior:
        """Return a prior: itself, or the one of this name with default settings."""
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
        """Return an unbiased estimate of KL(q || p), given a sample t of q.

        It is log q(t) - log p(t), or the divergence itself if that has a closed form.
        """
        return -self.log_ratio(q, t, axes)


@dataclass(frozen=True)
class StandardNormal(CodePrior):
    """All sites are independent, N(0, 1)."""

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
    r"""The n sites of a capsule share a random scale, so capsules are large or small as wholes.

    .. math::

        p(t_c) = \frac{\Gamma(\frac{\nu + n}{2})}{\Gamma(\frac\nu2) (\pi (\nu - 2))^{n/2}}
        \Big( 1 + \frac{|t_c|^2}{\nu - 2} \Big)^{-\frac{\nu + n}{2}}

    This is the multivariate Student-t distribution of a capsule, with unit variance. It depends
    only on the norm of a capsule, so rolls of a ring do not change the density of a code, not even
    rolls by a fraction of a site. KL(q || p) of a normal q has no closed form.

    Args:
        dof: degrees of freedom, above 2. With fewer of them, the scales of capsules differ more.
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

        By Jensen's inequality, E[log(1 + r)] ≤ log(1 + E[r]), here with r = |t_c|² / (dof - 2). The
        bound is tight if q is narrow.
        """
        return -_entropy(q, axes) - self._of_squares(q.mean.square() + q.variance, axes)

    def sample(self, n: int, shape: tuple[int, ...], like: Tensor) -> Tensor:
        z = torch.randn(n, *shape, dtype=like.dtype, device=like.device)
        half = torch.full((n, shape[0]), self.dof / 2, dtype=like.dtype, device=like.device)
        scale = ((self.dof - 2) / (2 * Gamma(half, 1.0).sample())).sqrt()
        return z * scale.reshape(*scale.shape, *(1,) * (len(shape) - 1))

    def _of_squares(self, squares: Tensor, axes: int) -> Tensor:
        """Return the log-density of codes, given the squares of their values."""
        squares = squares.flatten(1 - axes)  # … capsules sites
        sites = squares.shape[-1]
        power = (self.dof + sites) / 2
        log_scale = 0.5 * sites * math.log(math.pi * (self.dof - 2))
        constant = math.lgamma(power) - math.lgamma(self.dof / 2) - log_scale
        return (constant - power * (squares.sum(-1) / (self.dof - 2)).log1p()).sum(-1)


@dataclass(frozen=True)
class Laplace(CodePrior):
    """All sites are independent and have a Laplace distribution of unit variance.

    Compared with a normal prior, more values are close to 0 or far from it. Rolls by whole sites do
    not change the density of a code, but rolls by fractions do.
    """

    name = "laplace"

    def log_prob(self, t: Tensor, axes: int) -> Tensor:
        return self._of_magnitudes(t.abs(), axes)

    def kl_bound(self, q: Normal, axes: int) -> Tensor:
        """Return KL(q || p) in closed form: under q, |t| has a folded normal distribution."""
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
    """Return the entropy of codes, (…, capsules, *shape) to (…)."""
    return (q.stddev.log() + 0.5 * math.log(2 * math.pi * math.e)).flatten(-axes).sum(-1)


_KINDS: dict[str, type[CodePrior]] = {
    kind.name: kind for kind in (StandardNormal, StudentT, Laplace)
}


def prior_settings(prior: CodePrior) -> dict[str, Any] | None:
    """Return the settings that `prior_from` takes, or None for a prior of another class."""
    if type(prior) not in _KINDS.values():
        return None
    return {"kind": prior.name, **vars(prior)}


def prior_from(settings: Mapping[str, Any]) -> CodePrior:
    """Return the prior of these settings.

    >>> prior_from({"kind": "student-t", "dof": 5})
    StudentT(dof=5.0)
    """
    values = {name: value for name, value in settings.items() if name != "kind"}
    if settings.get("kind") not in _KINDS:
        raise BadInput(
            f"this version knows no prior of kind {settings.get('kind')!r}, only "
            f"{', '.join(_KINDS)}"
        )
    return _KINDS[settings["kind"]](**values)
