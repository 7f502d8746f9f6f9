"""What the engine, run folders and bounds ask of any model."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from topocaps.errors import BadInput
from topocaps.networks import Likelihood

#: gives standard normal numbers shaped like what it is shown
Noise = Callable[[Tensor], Tensor]


class GenerativeModel(nn.Module, ABC):
    """A model of frames x: (batch, time, *frame), trained by raising a bound on their evidence."""

    #: names of what ``evidence`` returns and training records: the bound, what is decoded, the rest
    terms: ClassVar[tuple[str, ...]]
    citations: ClassVar[tuple[str, ...]]  #: BibTeX entries of the source of the model
    config: dict[str, Any] | None = None  #: what rebuilds it; None for networks of your own
    likelihood: Likelihood
    #: whether ``torch.func.vmap`` can map ``evidence`` over models, which draws by ``noise`` alone:
    #: many are then one program. A subclass has to say so itself.
    maps: ClassVar[bool] = False

    @property
    def is_bound(self) -> bool:
        """Whether what is raised is a bound on log p(x); else it is said so where it is shown."""
        return True

    @property
    @abstractmethod
    def drawn(self) -> list[tuple[int, ...]]:
        """Shapes of the standard normal numbers that ``evidence`` asks for, of one frame."""

    @abstractmethod
    def evidence(self, x: Tensor, noise: Noise = torch.randn_like) -> Any:
        """An object with every term, and ``objective``, which is raised: each (batch, time)."""

    def forward(self, x: Tensor) -> Any:
        """``evidence`` of frames that are checked first."""
        self.check(x)
        return self.evidence(x)

    @abstractmethod
    def check(self, x: Tensor) -> None:
        """Refuse frames this model cannot take, with a sentence."""

    def project(self) -> None:
        """What follows each step of the optimiser."""

    def rate_of(self, name: str) -> float:
        """The learning rate of a parameter, over that of the others."""
        return 1.0

    def complaint(self, means: Mapping[str, float]) -> str | None:
        """What is wrong with a model whose terms have these means, though they are finite."""
        return None


def check_values(x: Tensor, likelihood: Likelihood = Likelihood.BERNOULLI) -> None:
    """Refuse frames that are not finite or, for a Bernoulli decoder, outside [0, 1]."""
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
    """Refuse frames of another type, or on another device, than the model."""
    for parameter in model.parameters():
        if (x.dtype, x.device) != (parameter.dtype, parameter.device):
            raise BadInput(
                f"frames are {x.dtype} on {x.device}, the model is {parameter.dtype} on "
                f"{parameter.device}: move one to the other with .to(…)"
            )
        break
