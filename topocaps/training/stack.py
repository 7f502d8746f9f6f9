"""Stacks: several models as one, with stacked parameters, and the random numbers of each."""

from __future__ import annotations

import copy
from collections.abc import Hashable, Sequence
from importlib.util import find_spec

import torch
from torch import Tensor, nn

from topocaps.errors import BadInput
from topocaps.models.base import GenerativeModel
from topocaps.models.likelihoods import Likelihood
from topocaps.models.networks import Linear


class Stack:
    """Models of one architecture as one ``model``; they may differ in topography and mu.

    A single model is its own stack. It gets no extra axis, so its networks may be of any kind.
    """

    def __init__(self, members: Sequence[GenerativeModel], frames: int) -> None:
        self.members, self.frames = list(members), frames
        self.model = self.members[0]
        if len(self.members) == 1:
            return
        if len(by_architecture(members)) > 1:
            raise BadInput("models of one stack must have the same networks")
        self.model = copy.deepcopy(self.members[0])
        self.model.join(self.members, frames)
        for name, _ in self.members[0].named_parameters():
            parameters = [m.get_parameter(name) for m in self.members]
            together = torch.stack([parameter.detach() for parameter in parameters])
            _set(self.model, name, nn.Parameter(together, parameters[0].requires_grad))
        for name, _ in self.members[0].named_buffers(remove_duplicate=False):
            _set(self.model, name, torch.stack([m.get_buffer(name) for m in self.members]))

    def __len__(self) -> int:
        return len(self.members)

    def tensors(self) -> dict[str, Tensor]:
        """Return parameters and buffers by name."""
        return self.model.state_dict(keep_vars=True)

    def of_member(self, tensor: Tensor, member: int) -> Tensor:
        """Return one member's part of a parameter, of a buffer or of an optimiser's moment."""
        return tensor[member] if len(self) > 1 and tensor.ndim else tensor

    @torch.no_grad()
    def write_back(self) -> None:
        """Copy the parameters of the stack to its members."""
        if len(self) == 1:
            for parameter in self.model.parameters():
                # a copy, because an update may keep several parameters in one tensor
                parameter.data = parameter.data.clone(memory_format=torch.contiguous_format)
            return
        for name, together in self.tensors().items():
            for member, value in zip(self.members, together, strict=True):
                member.state_dict(keep_vars=True)[name].copy_(value)


def by_architecture(
    models: Sequence[GenerativeModel],
    trainings: Sequence[Hashable] | None = None,
    mapping: bool = True,
) -> list[list[int]]:
    """Return the indices of the models of every stack.

    Models of one stack have the same networks, capsules, sites and training.

    Args:
        trainings: settings of each model that must agree inside a stack.
        mapping: whether models that need ``torch.func.vmap`` may form stacks. Without it, each of
            them is a stack of its own.
    """
    groups: dict[object, list[int]] = {}
    for place, model in enumerate(models):
        layers = tuple((type(module), _settings(module)) for module in model.modules())
        shapes = tuple(
            (n, p.shape, p.requires_grad, model.lr_scale(n)) for n, p in model.named_parameters()
        )
        key = model.stack_key()
        training = None if trainings is None else trainings[place]
        stackable = mapping if model.supports_vmap else _is_stackable(model)
        alone = place if key is None or not stackable or _ties_parameters(model) else None
        groups.setdefault((layers, shapes, key, training, alone), []).append(place)
    return list(groups.values())


def _ties_parameters(model: GenerativeModel) -> bool:
    """Return whether a parameter of the model has two names."""
    return len(list(model.parameters())) < len(list(model.named_parameters(remove_duplicate=False)))


def _is_stackable(model: GenerativeModel) -> bool:
    """Return whether the model and all layers with parameters accept the axis of the models."""
    return all(
        module is model
        or isinstance(module, Linear)
        or not any(True for _ in module.parameters(recurse=False))
        for module in model.modules()
    )


def _settings(module: nn.Module) -> tuple[tuple[str, object], ...]:
    """Return the attributes of a module that are settings; functions compare by identity."""
    return tuple(
        (name, value)
        for name, value in vars(module).items()
        if isinstance(value, str | int | float | bool | tuple | Likelihood)
        or (callable(value) and not isinstance(value, nn.Module))
    )


class HostRandomness:
    """Random numbers from two generators for each member of a stack: for sequences and for noise.

    The numbers of a member depend on its seed alone. Models of one seed see the same sequences,
    whatever amount of noise each of them draws.
    """

    def __init__(self, seeds: Sequence[int], device: torch.device) -> None:
        self.sequences = [torch.Generator(device).manual_seed(seed) for seed in seeds]
        # the two seeds differ in their lower 32 bits, as generators of the CPU use no others
        self.noise = [torch.Generator(device).manual_seed(seed ^ 0x9E3779B9) for seed in seeds]

    def draw(
        self, step: Tensor, uniform: Sequence[int], normal: Sequence[Sequence[int]]
    ) -> tuple[Tensor, list[Tensor]]:
        """Return the random numbers of a step, stacked if there are several members.

        Args:
            uniform: shape of the uniform numbers in [0, 1), which choose sequences.
            normal: shapes of the standard normal numbers, which are noise.
        """
        chosen = [torch.rand(*uniform, generator=g, device=g.device) for g in self.sequences]
        noise = [
            [torch.randn(*shape, generator=g, device=g.device) for g in self.noise]
            for shape in normal
        ]
        return self._join(chosen), [self._join(parts) for parts in noise]

    def state(self, member: int) -> Tensor:
        """Return the state from which a member's numbers continue."""
        return torch.stack([self.sequences[member].get_state(), self.noise[member].get_state()])

    def restore(self, member: int, state: Tensor) -> None:
        """Continue a member's numbers from a state."""
        # clones, because set_state reads the storage of a view from its start
        self.sequences[member].set_state(state[0].clone())
        self.noise[member].set_state(state[1].clone())

    @staticmethod
    def _join(parts: list[Tensor]) -> Tensor:
        return parts[0] if len(parts) == 1 else torch.stack(parts)


class DeviceRandomness:
    """Random numbers on a GPU that are functions of seed, step and position.

    They have no state, so a CUDA graph can draw them. The methods are those of `HostRandomness`.
    """

    def __init__(self, seeds: Sequence[int], device: torch.device) -> None:
        self.seeds = torch.tensor(list(seeds), dtype=torch.int64, device=device)

    def draw(
        self, step: Tensor, uniform: Sequence[int], normal: Sequence[Sequence[int]]
    ) -> tuple[Tensor, list[Tensor]]:
        from topocaps.training import kernels  # needs a GPU and Triton

        members, drawn = len(self.seeds), []
        for stream, shape in enumerate((uniform, *normal)):
            value = kernels.random((members, *shape), self.seeds, step, stream, normal=stream > 0)
            drawn.append(value if members > 1 else value[0])
        return drawn[0], drawn[1:]

    def state(self, member: int) -> Tensor:
        return self.seeds[member]

    def restore(self, member: int, state: Tensor) -> None:
        self.seeds[member] = state


Randomness = HostRandomness | DeviceRandomness


def randomness(seeds: Sequence[int], device: torch.device) -> Randomness:
    """Return `DeviceRandomness` on a GPU with Triton, else `HostRandomness`."""
    on_gpu = device.type == "cuda" and find_spec("triton") is not None
    return DeviceRandomness(seeds, device) if on_gpu else HostRandomness(seeds, device)


def _set(module: nn.Module, name: str, value: Tensor) -> None:
    path, _, leaf = name.rpartition(".")
    setattr(module.get_submodule(path), leaf, value)
