"""The update for any network: gradients from autograd, steps by an optimiser of PyTorch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from topocaps.data.sequences import SequenceSet
from topocaps.training.muon import LayerWeights
from topocaps.training.settings import Precision, Training
from topocaps.training.stack import Stack
from topocaps.training.updates.base import (
    MeanTerms,
    Update,
    bound,
    clip_factor,
    compilable_copy,
    compiled,
    scale_gradient,
)


class AutogradUpdate(Update):
    """Updates a stack with gradients from autograd and an optimiser of PyTorch."""

    def __init__(
        self, stack: Stack, training: Training, clips: Sequence[float | None] | None = None
    ) -> None:
        super().__init__(stack, training, clips)
        groups: dict[float, list[nn.Parameter]] = {}
        for name, parameter in self.parameters.items():
            groups.setdefault(stack.model.lr_scale(name), []).append(parameter)
        cast = training.precision.on(next(stack.model.parameters()).device) is Precision.BF16
        product_type = torch.bfloat16 if cast else torch.float32
        weights = LayerWeights.of(stack.model, len(stack) > 1, product_type)
        self.optimiser = training.optimiser.build(groups.values(), weights)
        self.relative_rates = list(groups)
        self._lr = 0.0
        self.compile(False)

    def compile(self, on: bool = True) -> None:
        model = compilable_copy(self.stack) if on else self.stack.model
        self.means = MeanTerms(model, self.kl_weight)
        self._bound: Any = compiled(bound) if on else bound

    def gradients(
        self, sequences: SequenceSet, uniform: Tensor, noise: Sequence[Tensor]
    ) -> list[Tensor]:
        self._backward(sequences, uniform, noise)
        gradients = [p.grad for p in self.parameters.values() if p.grad is not None]
        self.optimiser.zero_grad()
        return gradients

    def _backward(self, sequences: SequenceSet, uniform: Tensor, noise: Sequence[Tensor]) -> Tensor:
        """Compute the gradient of every parameter, and return the terms."""
        precision, device = self.training.precision, uniform.device
        with precision.products(device):
            terms: Tensor = self._bound(self.means, sequences, uniform, noise)
        self.optimiser.zero_grad()
        with precision.products(device, cast=False):  # the forward pass decided the types
            (-terms[:, -1]).sum().backward()
        return terms

    def step(
        self, sequences: SequenceSet, uniform: Tensor, noise: Sequence[Tensor]
    ) -> tuple[Tensor, Tensor | None]:
        terms = self._backward(sequences, uniform, noise)
        updated = None if self.clips is None else self._clip(self.clips)
        self.optimiser.step()
        self.stack.model.project()
        return terms[:, :-1].detach(), updated

    @torch.no_grad()
    def _clip(self, clips: Tensor) -> Tensor:
        """Clip the gradients in place, and return which members had a finite gradient.

        Gradients that are not finite become zero.
        """
        gradients = []
        for parameter in self.parameters.values():
            if parameter.grad is not None:
                parameter.grad = parameter.grad.contiguous()
                gradients.append(parameter.grad.view(len(self.stack), -1)[self.clipped])
        joined = torch.cat(gradients, 1)
        factor = clip_factor(joined.square().sum(1, keepdim=True), clips[self.clipped])
        parts = scale_gradient(joined, factor).split([g.shape[1] for g in gradients], 1)
        torch._foreach_copy_(gradients, parts)
        updated = torch.ones_like(clips, dtype=torch.bool)
        updated[self.clipped] = factor > 0
        return updated

    def set_lr(self, lr: float) -> None:
        if lr != self._lr:
            self._lr = lr
            groups = zip(self.optimiser.param_groups, self.relative_rates, strict=True)
            for group, relative in groups:
                if isinstance(group["lr"], Tensor):
                    group["lr"].fill_(relative * lr)
                else:
                    group["lr"] = relative * lr

    def moments(self, name: str) -> dict[str, Tensor]:
        return dict(self.optimiser.state.get(self.parameters[name], {}))

    def moment(self, name: str, key: str) -> Tensor:
        parameter = self.parameters[name]
        state = self.optimiser.state[parameter]
        if key not in state:
            shape = () if key == "step" else parameter.shape  # all members share one step count
            state[key] = torch.zeros(shape, dtype=parameter.dtype, device=parameter.device)
        return state[key]

    def reset(self) -> None:
        for moments in self.optimiser.state.values():
            for moment in moments.values():
                if isinstance(moment, Tensor):
                    moment.zero_()

    def refresh(self) -> None:
        """Do nothing: autograd reads the parameters themselves."""
