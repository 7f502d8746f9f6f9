"""Likelihoods: the meaning of decoder outputs, the cost of errors, the valid values of frames."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import ClassVar

import torch
from torch import Tensor
from torch.distributions import Bernoulli as BernoulliDistribution
from torch.distributions import Distribution, Independent, Normal
from torch.special import xlogy

from topocaps.errors import BadInput


class Likelihood(ABC):
    """Meaning of the outputs of a decoder, one for each value of a frame.

    >>> Likelihood.of("gaussian") == Likelihood.GAUSSIAN
    True
    """

    BERNOULLI: ClassVar[Likelihood]
    GAUSSIAN: ClassVar[Likelihood]
    value: ClassVar[str]  #: name that settings record

    @staticmethod
    def of(likelihood: Likelihood | str) -> Likelihood:
        """Return a likelihood, or the library's likelihood of this name."""
        if isinstance(likelihood, Likelihood):
            return likelihood
        known: dict[str, Likelihood] = {kind.value: kind() for kind in (Bernoulli, Gaussian)}
        if likelihood not in known:
            raise BadInput(f"likelihood must be one of {', '.join(known)}, not {likelihood!r}")
        return known[likelihood]

    @abstractmethod
    def distribution(self, outputs: Tensor) -> Distribution:
        """Return the distribution of every value of a frame, given the outputs of a decoder."""

    @abstractmethod
    def cost(self, expected: Tensor, x: Tensor, margin: float = 0.0) -> Tensor:
        """Return the cost of frames x given the expected frames: (batch, time).

        Args:
            expected: expected frames, (batch, time, *frame).
            x: frames, (batch, time, *frame).
            margin: probabilities are clamped to [margin, 1 - margin].
        """

    def decoded_cost(self, decoded: Distribution, x: Tensor) -> Tensor:
        """Return the cost of frames x given the distribution that a decoder returned."""
        return self.cost(decoded.mean, x)

    def check_domain(self, low: float, high: float) -> None:
        """Raise `BadInput` if values from ``low`` to ``high`` are not in the domain.

        By default all numbers are valid.
        """
        return

    def __eq__(self, other: object) -> bool:
        return type(self) is type(other)

    def __hash__(self) -> int:
        return hash(type(self))

    def __str__(self) -> str:
        return self.value

    def __repr__(self) -> str:
        return f"{type(self).__name__}()"


class Bernoulli(Likelihood):
    """Outputs are logits of values in [0, 1]; costs are in nats."""

    value = "bernoulli"

    def distribution(self, outputs: Tensor) -> Distribution:
        return BernoulliDistribution(logits=outputs, validate_args=False)

    def check_domain(self, low: float, high: float) -> None:
        if low < 0 or high > 1:
            raise BadInput(f"frames must lie in [0, 1], not in [{low:.9g}, {high:.9g}]")

    def cost(self, expected: Tensor, x: Tensor, margin: float = 0.0) -> Tensor:
        p = expected.clamp(margin, 1 - margin)
        return -(xlogy(x, p) + xlogy(1 - x, 1 - p)).flatten(2).sum(2)

    def decoded_cost(self, decoded: Distribution, x: Tensor) -> Tensor:
        single = decoded
        while isinstance(single, Independent):
            single = single.base_dist
        if not isinstance(single, BernoulliDistribution):
            raise BadInput(
                f"the decoder returns a {type(single).__name__}, but its likelihood is Bernoulli: "
                "set likelihood = Likelihood.GAUSSIAN to measure squared errors"
            )
        return -decoded.log_prob(x)  # from logits, so exact also where p is near 0 or 1


class Gaussian(Likelihood):
    """Outputs are means of values of unit variance; costs are squared errors."""

    value = "gaussian"

    def distribution(self, outputs: Tensor) -> Distribution:
        return Normal(outputs, torch.ones_like(outputs), validate_args=False)

    def cost(self, expected: Tensor, x: Tensor, margin: float = 0.0) -> Tensor:
        return (expected - x).square().flatten(2).sum(2)


Likelihood.BERNOULLI, Likelihood.GAUSSIAN = Bernoulli(), Gaussian()
