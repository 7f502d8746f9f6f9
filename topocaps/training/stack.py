"""Many models as one: parameters with an axis in front, random numbers from each one's own seed."""

from __future__ import annotations

import copy
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from topocaps.errors import BadInput
from topocaps.models import SequenceModel
from topocaps.topography import TopographyStack


class Stack:
    """Models of one architecture as one ``model``; they may differ in topography and mu.

    A single model is its own stack: no axis is added, so that networks of any kind will do.
    """

    def __init__(self, members: Sequence[SequenceModel], frames: int) -> None:
        self.members = list(members)
        self.model = self.members[0]
        if len(self.members) == 1:
            return
        shapes = [[(n, p.shape) for n, p in m.named_parameters()] for m in self.members]
        if any(other != shapes[0] for other in shapes):
            raise BadInput("models of one stack must have the same networks")
        self.model = copy.deepcopy(self.members[0])
        topographies = [m.topography for m in self.members]
        self.model.topography = TopographyStack(topographies, frames)  # type: ignore[assignment]
        for name, _ in self.members[0].named_parameters():
            together = torch.stack([m.get_parameter(name).detach() for m in self.members])
            _set(self.model, name, nn.Parameter(together))
        for name, _ in self.members[0].named_buffers():
            _set(self.model, name, torch.stack([m.get_buffer(name) for m in self.members]))

    def __len__(self) -> int:
        return len(self.members)

    def of_member(self, tensor: Tensor, member: int) -> Tensor:
        """One model's part of a parameter, or of something kept for it."""
        return tensor[member] if len(self) > 1 and tensor.ndim else tensor

    @torch.no_grad()
    def write_back(self) -> None:
        """Give the members the parameters that the stack has learned."""
        if len(self) > 1:
            for name, parameter in self.model.named_parameters():
                for member, value in zip(self.members, parameter, strict=True):
                    member.get_parameter(name).copy_(value)


class Randomness:
    """Random numbers for a stack: each member's from its own seed, whoever else is there."""

    def __init__(self, seeds: Sequence[int], device: torch.device) -> None:
        self.generators = [torch.Generator(device).manual_seed(seed) for seed in seeds]

    def uniform(self, *shape: int) -> Tensor:
        """In [0, 1): of this shape, with the models in front where there are several."""
        return self._join(
            [torch.rand(shape, generator=g, device=g.device) for g in self.generators]
        )

    def normal(self, like: Tensor) -> Tensor:
        """Standard normal, shaped like ``like``."""
        shape = like.shape if len(self.generators) == 1 else like.shape[1:]
        return self._join(
            [torch.randn(shape, generator=g, device=g.device) for g in self.generators]
        )

    def state(self, member: int) -> Tensor:
        return self.generators[member].get_state()

    def restore(self, member: int, state: Tensor) -> None:
        self.generators[member].set_state(state)

    @staticmethod
    def _join(parts: list[Tensor]) -> Tensor:
        return parts[0] if len(parts) == 1 else torch.stack(parts)


def _set(module: nn.Module, name: str, value: Tensor) -> None:
    path, _, leaf = name.rpartition(".")
    setattr(module.get_submodule(path), leaf, value)
