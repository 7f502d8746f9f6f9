"""Optimisers: their settings, and their learning rates from step to step."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from topocaps.errors import BadInput, positive, whole_number
from topocaps.training.muon import LayerWeights, MuonOptimizer


@dataclass(frozen=True)
class Optimiser(ABC):
    """Settings of an optimiser of PyTorch, and its learning rate at every step."""

    #: upper estimate of the memory of moments and of the update, in copies of the weights
    COPIES: ClassVar[int]

    lr: float

    @abstractmethod
    def build(
        self, groups: Iterable[list[nn.Parameter]], weights: LayerWeights
    ) -> torch.optim.Optimizer:
        """Return the optimiser of groups of parameters, each with its own learning rate.

        Args:
            weights: which of the parameters are weights of layers. Only `Muon` makes a difference.
        """

    @abstractmethod
    def lr_at(self, step: int, steps: int) -> float:
        """Return the learning rate of a step, of which there are ``steps``."""


@dataclass(frozen=True)
class Sgd(Optimiser):
    """The papers' optimiser: momentum and a constant learning rate."""

    lr: float = 1e-4
    momentum: float = 0.9

    MOMENTS: ClassVar = ("momentum_buffer",)  #: PyTorch's names of its moments
    COPIES = 1

    def __post_init__(self) -> None:
        positive("lr", self.lr)
        _decay("momentum", self.momentum)

    def build(
        self, groups: Iterable[list[nn.Parameter]], weights: LayerWeights
    ) -> torch.optim.Optimizer:
        return torch.optim.SGD(_with_lr(groups, self.lr), momentum=self.momentum, fused=True)

    def lr_at(self, step: int, steps: int) -> float:
        return self.lr

    def step_size(self, rate: Tensor, count: Tensor) -> tuple[Tensor, Tensor]:
        """Return the factors of the first and the second moment in step number ``count``."""
        return rate, rate


@dataclass(frozen=True)
class Adam(Optimiser):
    """Adam with a linear warm-up of the learning rate, and a cosine schedule to zero."""

    lr: float = 1e-3
    betas: tuple[float, float] = (0.9, 0.999)
    warmup: int = 0

    MOMENTS: ClassVar = ("exp_avg", "exp_avg_sq")  #: PyTorch's names of its moments
    COPIES = 2
    EPSILON: ClassVar = 1e-8

    def __post_init__(self) -> None:
        _check_schedule(self)

    def build(
        self, groups: Iterable[list[nn.Parameter]], weights: LayerWeights
    ) -> torch.optim.Optimizer:
        options = _with_lr(groups, self.lr)
        return torch.optim.Adam(options, betas=self.betas, **_fused(options))

    def lr_at(self, step: int, steps: int) -> float:
        return _cosine(self, step, steps)

    def step_size(self, rate: Tensor, count: Tensor) -> tuple[Tensor, Tensor]:
        """Return the factors of the first and the second moment in step number ``count``."""
        first, second = self.betas
        return rate / (1 - first**count), 1 / (1 - second**count)


@dataclass(frozen=True)
class Muon(Optimiser):
    """Muon for weights of layers and Adam for other parameters, with one learning rate.

    The momentum of every weight is orthogonalised (Jordan et al., 2024). Updates are scaled as Liu
    et al. (2025) propose, so that learning rates are about those of Adam. The warm-up and the
    schedule are those of `Adam`.

    Args:
        lr: learning rate.
        momentum: decay of the momentum of weights.
        betas: decay rates of Adam's moments.
        warmup: steps of the warm-up.
    """

    lr: float = 5e-3
    momentum: float = 0.95
    betas: tuple[float, float] = (0.9, 0.99)
    warmup: int = 0

    COPIES = 9  # a product of matrices in fp32 needs seven beside the momentum

    def __post_init__(self) -> None:
        _check_schedule(self)
        _decay("momentum", self.momentum)

    def build(
        self, groups: Iterable[list[nn.Parameter]], weights: LayerWeights
    ) -> torch.optim.Optimizer:
        options = _with_lr(groups, self.lr)
        adam = {"betas": self.betas, **_fused(options)}
        return MuonOptimizer(options, weights, self.momentum, **adam)

    def lr_at(self, step: int, steps: int) -> float:
        return _cosine(self, step, steps)


#: Optimisers by name.
OPTIMISERS: dict[str, type[Sgd | Adam | Muon]] = {"sgd": Sgd, "adam": Adam, "muon": Muon}


def _decay(name: str, value: Any) -> None:
    """Raise `BadInput` unless ``value`` is a decay rate."""
    if not (isinstance(value, int | float) and 0 <= value < 1):
        raise BadInput(f"{name} must be a number in [0, 1), not {value!r}")


def _check_schedule(rule: Adam | Muon) -> None:
    """Check ``lr``, ``betas`` and ``warmup``; a list of betas becomes a tuple."""
    positive("lr", rule.lr)
    betas = tuple(rule.betas) if isinstance(rule.betas, tuple | list) else ()
    if len(betas) != 2 or not all(isinstance(b, int | float) and 0 <= b < 1 for b in betas):
        raise BadInput(f"betas must be two numbers in [0, 1), not {rule.betas!r}")
    object.__setattr__(rule, "betas", betas)
    if rule.warmup != 0:
        object.__setattr__(rule, "warmup", whole_number("warmup", rule.warmup))


def _cosine(rule: Adam | Muon, step: int, steps: int) -> float:
    """Return the learning rate after a linear warm-up, on a cosine that ends at zero."""
    warm = min(1.0, (step + 1) / (rule.warmup + 1))
    return warm * rule.lr * 0.5 * (1 + math.cos(math.pi * step / steps))


def _with_lr(groups: Iterable[list[nn.Parameter]], lr: float) -> list[dict[str, Any]]:
    """Return the options of each group; on a GPU, a captured step reads ``lr`` from a tensor."""
    options = []
    for parameters in groups:
        device = parameters[0].device
        value = torch.tensor(lr, device=device) if device.type == "cuda" else lr
        options.append({"params": parameters, "lr": value})
    return options


def _fused(options: list[dict[str, Any]]) -> dict[str, bool]:
    """Return the arguments of an Adam that runs as one kernel, inside a CUDA graph too."""
    return {"fused": True, "capturable": isinstance(options[0]["lr"], Tensor)}
