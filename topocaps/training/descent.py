"""How the parameters of a stack go up the bound: by PyTorch's optimisers, or with the update of
each weight inside the product that makes its gradient."""

from __future__ import annotations

import copy
import functools
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import pad

from topocaps.data.sequences import SequenceSet
from topocaps.models import SequenceModel
from topocaps.networks import Linear, Norm, lead
from topocaps.topography import Topography, TopographyStack
from topocaps.training.optimisers import Sgd
from topocaps.training.precision import Precision
from topocaps.training.settings import Training
from topocaps.training.stack import Stack
from topocaps.training.watching import TERMS


def bound(
    model: SequenceModel, sequences: SequenceSet, uniform: Tensor, noise: Sequence[Tensor]
) -> Tensor:
    """The terms of Eq. 12, averaged over frames: (members, terms).

    ``uniform`` numbers choose the sequences, ``noise`` the latents.
    """
    drawn = iter(noise)
    x = sequences.show(sequences.choose(uniform)).x
    evidence = model.evidence(x, lambda like: next(drawn))
    means = [getattr(evidence, name).flatten(-2).mean(-1).reshape(-1) for name in TERMS]
    return torch.stack(means, 1)


class Descent(ABC):
    """Moves the parameters of a stack, one step at a time."""

    def __init__(self, stack: Stack, training: Training) -> None:
        self.stack, self.training = stack, training
        self.parameters = dict(stack.model.named_parameters())
        self.optimiser = training.optimiser.build(self._for_optimiser())

    @abstractmethod
    def _for_optimiser(self) -> list[nn.Parameter]:
        """The parameters that PyTorch's optimiser moves."""

    @abstractmethod
    def step(
        self, sequences: SequenceSet, uniform: Tensor, noise: Sequence[Tensor]
    ) -> tuple[Tensor, Tensor | None]:
        """One step; the terms (member, term), and squared norms of gradients where they are known:
        (member, parameter)."""

    @abstractmethod
    def compile(self) -> None:
        """From now on, run bound and gradient as compiled code."""

    @property
    def watched(self) -> list[str]:
        """The parameters whose gradients ``step`` tells the squares of, in that order."""
        return list(self.parameters)

    def set_rate(self, rate: float) -> None:
        for group in self.optimiser.param_groups:
            if isinstance(group["lr"], Tensor):
                group["lr"].fill_(rate)
            else:
                group["lr"] = rate

    def moments(self, name: str) -> dict[str, Tensor]:
        """What the optimiser keeps for a parameter."""
        return dict(self.optimiser.state.get(self.parameters[name], {}))

    def moment(self, name: str, key: str) -> Tensor:
        """One of them, zero where it has not been needed yet."""
        parameter = self.parameters[name]
        held = self.optimiser.state[parameter]
        if key not in held:
            shape = () if key == "step" else parameter.shape  # steps are counted once for all
            held[key] = torch.zeros(shape, dtype=parameter.dtype, device=parameter.device)
        return held[key]

    def forget(self) -> None:
        """As if no step had been made: moments are zero, in place."""
        for moments in self.optimiser.state.values():
            for moment in moments.values():
                if isinstance(moment, Tensor):
                    moment.zero_()

    def refresh(self) -> None:  # noqa: B027 (most have nothing to do)
        """Parameters were changed from outside."""


class Plain(Descent):
    """Autograd makes gradients, PyTorch's optimiser uses them: for any network."""

    def __init__(self, stack: Stack, training: Training) -> None:
        super().__init__(stack, training)
        self.model, self._bound = stack.model, bound
        on_cpu = next(stack.model.parameters()).device.type == "cpu"
        self._watch = on_cpu or training.clip is not None

    def _for_optimiser(self) -> list[nn.Parameter]:
        return list(self.parameters.values())

    def compile(self) -> None:
        self.model = _readable(self.stack)
        self._bound = torch.compile(bound, dynamic=False)

    def step(
        self, sequences: SequenceSet, uniform: Tensor, noise: Sequence[Tensor]
    ) -> tuple[Tensor, Tensor | None]:
        with self.training.precision.products(uniform.device):
            terms = self._bound(self.model, sequences, uniform, noise)
            self.optimiser.zero_grad()
            (-terms[:, TERMS.index("elbo")]).sum().backward()
        squares = self._squares() if self._watch else None
        if self.training.clip is not None and squares is not None:
            factor = shorter_by(squares, self.training.clip)
            for parameter in self.parameters.values():
                if parameter.grad is not None:
                    parameter.grad = shorten(parameter.grad, factor)
        self.optimiser.step()
        self.stack.model.project()
        return terms.detach(), squares

    @torch.no_grad()
    def _squares(self) -> Tensor:
        found = [
            torch.zeros(len(self.stack), device=p.device) if p.grad is None
            else p.grad.reshape(len(self.stack), -1).square().sum(1)
            for p in self.parameters.values()
        ]  # fmt: skip
        return torch.stack(found, 1)


class Factored(Descent):
    """SGD whose gradients of weights are never written: the GPU multiplies their two factors,
    what came into a layer and what came back, in the pass over weights and momentum.

    Layers multiply in bf16, by copies of the weights that the same pass writes.
    """

    def __init__(self, stack: Stack, training: Training) -> None:
        assert isinstance(training.optimiser, Sgd)
        self.momentum = training.optimiser.momentum
        self.model = _readable(stack)
        self.layers = dict(_factor(self.model, len(stack)))
        super().__init__(stack, training)
        self.velocity = {
            f"{name}.matrix": aligned(torch.zeros_like(layer.matrix, requires_grad=False))
            for name, layer in self.layers.items()
        }
        on_gpu = next(stack.model.parameters()).device.type == "cuda"
        self.streams = [torch.cuda.Stream() for _ in range(4)] if on_gpu else []
        self._bound: Any = _factored_bound

    @staticmethod
    def suits(stack: Stack, training: Training) -> bool:
        """Whether this stack can be trained so: SGD in bf16 on a GPU, all layers plain."""
        layers = [
            module
            for module in stack.model.modules()
            if module is not stack.model and any(True for _ in module.parameters(recurse=False))
        ]
        return (
            training.precision is Precision.BF16
            and isinstance(training.optimiser, Sgd)
            and next(stack.model.parameters()).device.type == "cuda"
            and all(isinstance(one, Linear) and one.norm is Norm.NONE for one in layers)
        )

    def _for_optimiser(self) -> list[nn.Parameter]:
        weights = {id(layer.matrix) for layer in self.layers.values()}
        return [p for p in self.parameters.values() if id(p) not in weights]

    @property
    def watched(self) -> list[str]:
        others = {id(p) for p in self._for_optimiser()}
        return [*self.velocity, *(n for n, p in self.parameters.items() if id(p) in others)]

    def compile(self) -> None:
        self._bound = torch.compile(_factored_bound, dynamic=False)

    def step(
        self, sequences: SequenceSet, uniform: Tensor, noise: Sequence[Tensor]
    ) -> tuple[Tensor, Tensor | None]:
        layers = list(self.layers.values())
        frames = noise[0].shape[: -1 - len(self.model.topography.shape)].numel()
        for layer in layers:
            layer.expect(frames // len(self.stack))
        others = self._for_optimiser()
        with Precision.TF32.products(uniform.device):
            terms, inputs = self._bound(self.model, layers, sequences, uniform, noise)
            loss = -terms[:, TERMS.index("elbo")].sum()
            down = torch.autograd.grad(loss, [*(layer.slot for layer in layers), *others])
        back, gradients = down[: len(layers)], down[len(layers) :]
        squares, shorter = None, None
        if self.training.clip is not None:
            squares = self._squares(inputs, back, gradients)
            shorter = shorter_by(squares, self.training.clip)
        for parameter, gradient in zip(others, gradients, strict=True):
            parameter.grad = gradient if shorter is None else shorten(gradient, shorter)
        self._descend(inputs, back, shorter)
        self.optimiser.step()
        return terms.detach(), squares

    def _descend(
        self, inputs: Sequence[Tensor], back: Sequence[Tensor], shorter: Tensor | None
    ) -> None:
        rate = self.optimiser.param_groups[0]["lr"]
        updates = [
            functools.partial(
                descend, x, dy, layer.stacked(layer.matrix.detach()), layer.stacked(velocity),
                layer.coarse, rate, self.momentum, shorter,
            )
            for x, dy, layer, velocity in zip(
                inputs, back, self.layers.values(), self.velocity.values(), strict=True
            )
        ]  # fmt: skip
        side_by_side(updates, self.streams)

    def _squares(
        self, inputs: Sequence[Tensor], back: Sequence[Tensor], others: Sequence[Tensor]
    ) -> Tensor:
        """|dyᵀ x|² is the sum of (x xᵀ)(dy dyᵀ), entry by entry: two small products."""
        layers = [
            ((x @ x.mT).float() * (dy @ dy.mT).float()).sum((1, 2)).clamp_min(0)
            for x, dy in zip(inputs, back, strict=True)
        ]
        rest = [g.reshape(len(self.stack), -1).square().sum(1) for g in others]
        return torch.stack([*layers, *rest], 1)

    def moments(self, name: str) -> dict[str, Tensor]:
        held = self.velocity.get(name)
        return super().moments(name) if held is None else {"momentum_buffer": held}

    def moment(self, name: str, key: str) -> Tensor:
        held = self.velocity.get(name)
        return super().moment(name, key) if held is None else held

    def forget(self) -> None:
        super().forget()
        for velocity in self.velocity.values():
            velocity.zero_()
        self.refresh()

    def refresh(self) -> None:
        for layer in self.layers.values():
            layer.refresh()


class FactoredLinear(nn.Module):
    """A ``Linear`` that multiplies by a bf16 copy of its weights, and tells what came in.

    Inputs and outputs are widened with zeros inside, to the multiples of 16 that tensor cores and
    wide loads want.
    """

    coarse: Tensor

    def __init__(self, linear: Linear, members: int) -> None:
        super().__init__()
        self.matrix, self.bias, self.members = linear.matrix, linear.bias, members
        self.outputs, self.inputs = linear.matrix.shape[-2:]
        self.matrix.data = aligned(self.matrix.data)
        self.wide_outputs, self.wide_inputs = _wide(self.outputs), _wide(self.inputs)
        self.slot = torch.empty(0, 0)
        self.refresh()

    @torch.no_grad()
    def refresh(self) -> None:
        """Copy the weights anew."""
        missing = (0, self.wide_inputs - self.inputs, 0, self.wide_outputs - self.outputs)
        coarse = pad(self.stacked(self.matrix), missing).bfloat16()
        if hasattr(self, "coarse"):
            self.coarse.copy_(coarse)
        else:
            self.register_buffer("coarse", coarse, persistent=False)

    def stacked(self, matrix: Tensor) -> Tensor:
        """With the models in front, also where there is one."""
        return matrix if matrix.ndim == 3 else matrix[None]

    def expect(self, rows: int) -> None:
        """Make the slot: a tensor that holds nothing, of which the outputs' gradient is asked."""
        if self.slot.shape[1] != rows:
            nothing = torch.empty(1, dtype=torch.bfloat16, device=self.coarse.device)
            wanted = nothing.expand(self.members, rows, self.wide_outputs)
            self.slot = wanted.requires_grad_()

    def forward(self, x: Tensor) -> Tensor:
        rows = x.reshape(self.members, -1, self.inputs).bfloat16()
        self.came = pad(rows, (0, self.wide_inputs - self.inputs))
        y = _Product.apply(self.came, self.coarse, self.slot)[..., : self.outputs]
        bias = self.bias.reshape(self.members, 1, self.outputs)
        return (y + bias).reshape(*x.shape[:-1], self.outputs)


class _Product(torch.autograd.Function):
    """x Wᵀ, whose gradient with respect to the slot is what came back."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, coarse: Tensor, slot: Tensor) -> Tensor:
        ctx.save_for_backward(coarse)
        return torch.bmm(x, coarse.mT)

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor | None, None, Tensor]:
        (coarse,) = ctx.saved_tensors
        return (torch.bmm(dy, coarse) if ctx.needs_input_grad[0] else None), None, dy


def _factored_bound(
    model: SequenceModel,
    layers: Sequence[FactoredLinear],
    sequences: SequenceSet,
    uniform: Tensor,
    noise: Sequence[Tensor],
) -> tuple[Tensor, list[Tensor]]:
    """The terms, and what came into each layer."""
    terms = bound(model, sequences, uniform, noise)
    return terms, [layer.came.detach() for layer in layers]


def _readable(stack: Stack) -> SequenceModel:
    """A copy that shares the stack's parameters, with W as a tensor: compilers read it as it is."""
    shared: dict[int, Any] = {id(p): p for p in stack.model.parameters()}
    model = copy.deepcopy(stack.model, shared)
    if isinstance(model.topography, Topography) and model.topography.is_small(stack.frames):
        parameter = next(stack.model.parameters())
        together = TopographyStack([model.topography], stack.frames)
        model.topography = together.to(parameter)  # type: ignore[assignment]
    return model


def _factor(model: nn.Module, members: int) -> Iterator[tuple[str, FactoredLinear]]:
    """Put a factored layer in the place of every linear one."""
    for name, module in list(model.named_modules()):
        if isinstance(module, Linear):
            path, _, leaf = name.rpartition(".")
            factored = FactoredLinear(module, members)
            setattr(model.get_submodule(path), leaf, factored)
            yield name, factored


@torch.no_grad()
def descend(
    x: Tensor, dy: Tensor, weight: Tensor, velocity: Tensor, coarse: Tensor,
    rate: Tensor, momentum: float, shorter: Tensor | None = None,
) -> None:  # fmt: skip
    """A step of SGD from the two factors of a gradient: on a GPU, one kernel."""
    if weight.device.type == "cuda":
        from topocaps.training import kernels  # needs a GPU and Triton

        kernels.descend(x, dy, weight, velocity, coarse, rate, momentum, shorter)
        return
    outputs, inputs = weight.shape[1:]
    gradient = torch.bmm(dy.mT.float(), x.float())[:, :outputs, :inputs]
    velocity.mul_(momentum).add_(gradient if shorter is None else shorten(gradient, shorter))
    weight.sub_(rate * velocity)
    coarse[:, :outputs, :inputs] = weight


def side_by_side(work: Sequence[Callable[[], None]], streams: Sequence[torch.cuda.Stream]) -> None:
    """Do all of it, on a GPU at the same time: what is small does not fill it alone."""
    if not streams:
        for one in work:
            one()
        return
    here = torch.cuda.current_stream()
    for stream in streams:
        stream.wait_stream(here)
    for n, one in enumerate(work):
        with torch.cuda.stream(streams[n % len(streams)]):
            one()
    for stream in streams:
        here.wait_stream(stream)


def shorter_by(squares: Tensor, clip: float) -> Tensor:
    """Factors that bring gradients to the longest allowed: (members,); 0 if not finite."""
    length = squares.sum(1).sqrt()
    return torch.where(length.isfinite(), (clip / length).clamp(max=1), 0.0)


def shorten(gradient: Tensor, factor: Tensor) -> Tensor:
    """Times each member's factor; where that is 0, 0 whatever the gradient."""
    factor = lead(factor if len(factor) > 1 else factor[0], gradient)
    return torch.where(factor > 0, factor * gradient, 0.0)


def aligned(matrix: Tensor) -> Tensor:
    """The same values with rows that begin at multiples of 64 bytes, for wide loads."""
    wide = matrix.new_empty(*matrix.shape[:-1], _wide(matrix.shape[-1]))[..., : matrix.shape[-1]]
    return wide.copy_(matrix)


def _wide(width: int) -> int:
    return -(-width // 16) * 16
