"""The base class of every model: what training, run folders and bounds ask of one."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from topocaps.errors import BadInput
from topocaps.networks import Likelihood

#: A function that returns standard normal numbers in the shape of its argument.
Noise = Callable[[Tensor], Tensor]


class GenerativeModel(nn.Module, ABC):
    """Base of models of frames x, (batch, time, *frame), that training fits by a bound."""

    #: Names of the terms of ``evidence`` that training records: first the bound, then log p(x|t).
    terms: ClassVar[tuple[str, ...]]
    citations: ClassVar[tuple[str, ...]]  #: BibTeX entries of the source of the model
    config: dict[str, Any] | None = None  #: settings that rebuild the model; None for own networks
    likelihood: Likelihood
    #: Whether ``torch.func.vmap`` supports ``evidence``, which then draws from ``noise`` alone, so
    #: that many models train as one program. A subclass does not inherit the value: it sets it.
    maps: ClassVar[bool] = False

    @property
    def is_bound(self) -> bool:
        """Whether `elbo` lower-bounds log p(x)."""
        return True

    @property
    @abstractmethod
    def noise_shapes(self) -> list[tuple[int, ...]]:
        """Shapes of the standard normal numbers that ``evidence`` needs for one frame."""

    @abstractmethod
    def evidence(self, x: Tensor, noise: Noise = torch.randn_like) -> Any:
        """Return an object with every term and ``objective``, which training maximises.

        Each is (batch, time), in nats.

        Args:
            noise: function that returns standard normal numbers in the shape of its argument.
        """

    def forward(self, x: Tensor) -> Any:
        """Check the frames, then return their ``evidence``."""
        self.check(x)
        return self.evidence(x)

    @abstractmethod
    def check(self, x: Tensor) -> None:
        """Raise `BadInput` if this model cannot take these frames."""

    def project(self) -> None:
        """Project parameters onto their constraints, after each optimiser step."""

    def rate_of(self, name: str) -> float:
        """Return the factor that scales the learning rate of a parameter."""
        return 1.0

    def complaint(self, means: Mapping[str, float]) -> str | None:
        """Return what is wrong with a model whose terms have these means, or None.

        The means are finite; terms that are not finite are found without this method.
        """
        return None


def check_values(x: Tensor, likelihood: Likelihood = Likelihood.BERNOULLI) -> None:
    """Raise `BadInput` for frames that are not finite or, with Bernoulli, not in [0, 1]."""
    if not x.is_floating_point():
        raise BadInput(f"frames must be floating point, not {x.dtype}")
    if x.numel() == 0:
        raise BadInput(f"there are no frames in an array of shape {tuple(x.shape)}")
    low, high = (v.item() for v in x.aminmax())
    if not (x.sum().isfinite() or x.isfinite().all()):
        raise BadInput("frames hold NaN or infinite values")
    if likelihood is Likelihood.BERNOULLI and (low < 0 or high > 1):
        raise BadInput(f"frames must lie in [0, 1], not in [{low:.9g}, {high:.9g}]")


def check_place(x: Tensor, model: nn.Module) -> None:
    """Raise `BadInput` for frames of another type, or on another device, than the model."""
    for parameter in model.parameters():
        if (x.dtype, x.device) != (parameter.dtype, parameter.device):
            raise BadInput(
                f"frames are {x.dtype} on {x.device}, the model is {parameter.dtype} on "
                f"{parameter.device}: move one to the other with .to(…)"
            )
        break
