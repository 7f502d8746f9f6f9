"""Optimisers and their schedules, as data."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from topocaps.errors import BadInput, whole_number


@dataclass(frozen=True)
class Sgd:
    """The papers' optimiser: momentum, a constant rate."""

    lr: float = 1e-4
    momentum: float = 0.9

    MOMENTS: ClassVar = ("momentum_buffer",)  # as PyTorch names them

    def __post_init__(self) -> None:
        _check_rate(self.lr)
        if not (isinstance(self.momentum, int | float) and 0 <= self.momentum < 1):
            raise BadInput(f"momentum must be a number in [0, 1), not {self.momentum!r}")

    def build(self, groups: Iterable[list[nn.Parameter]]) -> torch.optim.Optimizer:
        """For parameters in groups, each with a rate of its own."""
        return torch.optim.SGD(_with_rates(groups, self.lr), momentum=self.momentum, fused=True)

    def lr_at(self, step: int, steps: int) -> float:
        return self.lr

    def step_size(self, rate: Tensor, count: Tensor) -> tuple[Tensor, Tensor]:
        """What the first moment is multiplied with, and the second, at step number ``count``."""
        return rate, rate


@dataclass(frozen=True)
class Adam:
    """Adam with a linear warm-up and a cosine to zero."""

    lr: float = 1e-3
    betas: tuple[float, float] = (0.9, 0.999)
    warmup: int = 0

    MOMENTS: ClassVar = ("exp_avg", "exp_avg_sq")
    EPSILON: ClassVar = 1e-8

    def __post_init__(self) -> None:
        _check_rate(self.lr)
        betas = tuple(self.betas) if isinstance(self.betas, tuple | list) else ()
        if len(betas) != 2 or not all(isinstance(b, int | float) and 0 <= b < 1 for b in betas):
            raise BadInput(f"betas must be two numbers in [0, 1), not {self.betas!r}")
        object.__setattr__(self, "betas", betas)
        if self.warmup != 0:
            whole_number("warmup", self.warmup)

    def build(self, groups: Iterable[list[nn.Parameter]]) -> torch.optim.Optimizer:
        """For parameters in groups, each with a rate of its own."""
        found = _with_rates(groups, self.lr)
        on_gpu = isinstance(found[0]["lr"], Tensor)
        return torch.optim.Adam(found, betas=self.betas, fused=True, capturable=on_gpu)

    def step_size(self, rate: Tensor, count: Tensor) -> tuple[Tensor, Tensor]:
        """What the first moment is multiplied with, and the second, at step number ``count``."""
        first, second = self.betas
        return rate / (1 - first**count), 1 / (1 - second**count)

    def lr_at(self, step: int, steps: int) -> float:
        warm = min(1.0, (step + 1) / (self.warmup + 1))
        return warm * self.lr * 0.5 * (1 + math.cos(math.pi * step / steps))


def _with_rates(groups: Iterable[list[nn.Parameter]], lr: float) -> list[dict[str, Any]]:
    """On a GPU a rate is a tensor, which a captured step reads anew each time."""
    found = []
    for parameters in groups:
        device = parameters[0].device
        rate = torch.tensor(lr, device=device) if device.type == "cuda" else lr
        found.append({"params": parameters, "lr": rate})
    return found


def _check_rate(lr: float) -> None:
    if not (isinstance(lr, int | float) and 0 < lr < math.inf):
        raise BadInput(f"lr must be a number above 0, not {lr!r}")
