"""Gradients that are never written: weights move inside the product that makes their gradient."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import pad

from topocaps.data.sequences import SequenceSet
from topocaps.evidence import Posterior
from topocaps.models import SequenceModel
from topocaps.networks import GaussianEncoder, Linear, Norm
from topocaps.training.descent import (
    Descent,
    bound,
    compiled,
    readable,
    shorten,
    shorter_by,
    side_by_side,
)
from topocaps.training.optimisers import Adam, Sgd
from topocaps.training.precision import Precision
from topocaps.training.settings import Training
from topocaps.training.stack import Stack
from topocaps.training.watching import TERMS


class Factored(Descent):
    """The gradient of a weight is kept as its two factors, what came into a layer and what came
    back; the GPU multiplies them in its one pass over weights and moments.

    Layers multiply in bf16, by copies of the weights that the same pass writes. What is not a
    weight (biases, mu) is small, and lies side by side in one tensor.
    """

    def __init__(self, stack: Stack, training: Training) -> None:
        super().__init__(stack, training)
        self.rule = training.optimiser
        self.model = readable(stack)
        self.layers = _factor(self.model, len(stack))
        for layer in self.layers:
            layer.keep(self.rule.MOMENTS)
        self._moments = {name: m for layer in self.layers for name, m in layer.moments().items()}
        self.rest = {n: p for n, p in self.parameters.items() if n not in self._moments}
        sizes = [p.numel() // len(stack) for p in self.rest.values()]
        device = next(stack.model.parameters()).device
        self._flat = torch.zeros(1 + len(self.rule.MOMENTS), len(stack), sum(sizes), device=device)
        for (name, parameter), *parts in zip(
            self.rest.items(), *(flat.split(sizes, 1) for flat in self._flat), strict=True
        ):
            views = [self._as(parameter, part) for part in parts]
            parameter.data = views[0].copy_(parameter.data)
            self._moments[name] = dict(zip(self.rule.MOMENTS, views[1:], strict=True))
        # of every member, and once more for its second encoder in a layer of two
        self.rates, self._rate = torch.zeros(2 * len(stack), device=device), 0.0
        #: members may have rates of their own: a search over them is one stack
        self.relative_rates = torch.ones(2, len(stack), device=device)
        self.count = torch.zeros((), device=device)
        self.streams = [torch.cuda.Stream() for _ in range(4)] if device.type == "cuda" else []
        self._bound: Any = _factored_bound
        self._move: Any = move

    @staticmethod
    def suits(stack: Stack, training: Training) -> bool:
        """Whether a stack can be trained so: in bf16 on a GPU, all layers plain, each used once."""
        names = [n for n, _ in stack.model.named_modules(remove_duplicate=False)]
        if len(names) > len(list(stack.model.modules())):
            return False
        layers = [
            module
            for module in stack.model.modules()
            if module is not stack.model and any(True for _ in module.parameters(recurse=False))
        ]
        return training.precision.on(
            next(stack.model.parameters()).device
        ) is Precision.BF16 and all(
            isinstance(one, Linear) and one.norm is Norm.NONE for one in layers
        )

    def _as(self, parameter: Tensor, part: Tensor) -> Tensor:
        """A piece (members, numbers) of the flat tensor, shaped as a parameter."""
        return part.view(parameter.shape) if len(self.stack) == 1 else (
            part.unflatten(1, parameter.shape[1:]) if parameter.ndim > 1 else part[:, 0]
        )  # fmt: skip

    def compile(self) -> None:
        self._bound = compiled(_factored_bound)
        self._move = compiled(move)

    def step(
        self, sequences: SequenceSet, uniform: Tensor, noise: Sequence[Tensor]
    ) -> tuple[Tensor, Tensor | None]:
        frames = noise[0].shape[: -1 - len(self.model.topography.shape)].numel()
        for layer in self.layers:
            layer.expect(frames // len(self.stack))
        with Precision.TF32.products(uniform.device):
            terms, inputs = self._bound(self.model, self.layers, sequences, uniform, noise)
            loss = -terms[:, TERMS.index("elbo")].sum()
            wanted = [*(layer.slot for layer in self.layers), *self.rest.values()]
            down = torch.autograd.grad(loss, wanted)
        back, gradients = down[: len(self.layers)], down[len(self.layers) :]
        shorter = None
        if self.training.clip is not None:
            shorter = shorter_by(self._squares(inputs, back, gradients), self.training.clip)
        self._descend(inputs, back, gradients, shorter)
        return terms.detach(), None if shorter is None else shorter > 0

    @torch.no_grad()
    def _descend(
        self,
        inputs: Sequence[Tensor],
        back: Sequence[Tensor],
        gradients: Sequence[Tensor],
        shorter: Tensor | None,
    ) -> None:
        """All layers at the same time: those of a small model do not fill a GPU one by one."""
        if isinstance(self.rule, Adam):
            self.count += 1
        size, spread = self.rule.step_size(self.rates, self.count)
        twice = None if shorter is None else shorter.repeat(2)
        updates = [
            functools.partial(
                descend, self.rule, x, dy, layer.matrix, layer.held, layer.coarse,
                size, spread, twice,
            )
            for x, dy, layer in zip(inputs, back, self.layers, strict=True)
        ]  # fmt: skip

        def the_rest() -> None:
            gradient = torch.cat([g.reshape(len(self.stack), -1) for g in gradients], 1)
            if shorter is not None:
                gradient = shorten(gradient, shorter)
            weights, *moments = self._flat
            self._move(self.rule, weights, gradient, moments, size[: len(self.stack)], spread)

        side_by_side([*updates, the_rest], self.streams)

    def _squares(
        self, inputs: Sequence[Tensor], back: Sequence[Tensor], others: Sequence[Tensor]
    ) -> Tensor:
        """|dyᵀ x|² is the sum of (x xᵀ)(dy dyᵀ), entry by entry: two small products."""
        layers = [
            part
            for x, dy in zip(inputs, back, strict=True)
            for part in ((x @ x.mT).float() * (dy @ dy.mT).float())
            .sum((1, 2))
            .clamp_min(0)
            .split(len(self.stack))
        ]
        rest = [g.reshape(len(self.stack), -1).square().sum(1) for g in others]
        return torch.stack([*layers, *rest], 1)

    def set_rate(self, rate: float) -> None:
        if rate != self._rate:  # a constant one costs nothing
            torch.mul(self.relative_rates.flatten(), rate, out=self.rates)
            self._rate = rate

    def moments(self, name: str) -> dict[str, Tensor]:
        counted = {"step": self.count} if isinstance(self.rule, Adam) else {}
        return {**self._moments[name], **counted}

    def moment(self, name: str, key: str) -> Tensor:
        return self.moments(name)[key]

    def forget(self) -> None:
        self.count.zero_()
        for moments in self._moments.values():
            for moment in moments.values():
                moment.zero_()
        self.refresh()

    def refresh(self) -> None:
        for layer in self.layers:
            layer.refresh()


class FactoredLinear(nn.Module):
    """Linear layers, of all members and of one or two networks, as one product.

    It multiplies by a bf16 copy of the weights, and tells what came in. Inputs and outputs are
    widened with zeros inside, to the multiples of 16 that tensor cores and wide loads want. The
    layers' own parameters become views of its matrix.
    """

    coarse: Tensor

    def __init__(self, linears: Mapping[str, Linear], members: int) -> None:
        super().__init__()
        self.linears = nn.ModuleDict({n.replace(".", "/"): one for n, one in linears.items()})
        self.biases = [one.bias for one in linears.values()]
        self.members, self.models = members, members * len(linears)
        matrices = [_stacked(one.matrix.data, 3) for one in linears.values()]
        self.outputs, self.inputs = matrices[0].shape[1:]
        self.matrix = aligned(torch.cat(matrices))
        for one, part in zip(linears.values(), self.matrix.split(members), strict=True):
            one.matrix.data = part if one.matrix.ndim == 3 else part[0]
        self.wide_outputs, self.wide_inputs = _wide(self.outputs), _wide(self.inputs)
        self.slot = torch.empty(0, 0)
        self.held: list[Tensor] = []
        self.refresh()

    def keep(self, keys: Sequence[str]) -> None:
        """Make room for moments."""
        self.keys = keys
        self.held = [aligned(torch.zeros_like(self.matrix)) for _ in keys]

    def moments(self) -> dict[str, dict[str, Tensor]]:
        """Of every layer's matrix, by its name in the model."""
        found = {}
        for n, (name, one) in enumerate(self.linears.items()):
            parts = [held.split(self.members)[n] for held in self.held]
            parts = parts if one.matrix.ndim == 3 else [part[0] for part in parts]
            found[f"{name.replace('/', '.')}.matrix"] = dict(zip(self.keys, parts, strict=True))
        return found

    @torch.no_grad()
    def refresh(self) -> None:
        """Copy the weights anew."""
        missing = (0, self.wide_inputs - self.inputs, 0, self.wide_outputs - self.outputs)
        coarse = pad(self.matrix, missing).bfloat16()
        if hasattr(self, "coarse"):
            self.coarse.copy_(coarse)
        else:
            self.register_buffer("coarse", coarse, persistent=False)

    def expect(self, rows: int) -> None:
        """Make the slot: a tensor that holds nothing, of which the outputs' gradient is asked."""
        if self.slot.shape[1] != rows:
            nothing = torch.empty(1, dtype=torch.bfloat16, device=self.coarse.device)
            wanted = nothing.expand(self.models, rows, self.wide_outputs)
            self.slot = wanted.requires_grad_()

    def forward(self, x: Tensor) -> Tensor:
        rows = x.reshape(self.models, -1, self.inputs).bfloat16()
        self.came = pad(rows, (0, self.wide_inputs - self.inputs))
        y = _Product.apply(self.came, self.coarse, self.slot)[..., : self.outputs]
        bias = torch.cat([_stacked(bias, 2) for bias in self.biases])
        return (y + bias[:, None]).reshape(*x.shape[:-1], self.outputs)


class PairedEncoder(nn.Module):
    """The encoders of z and of u as one: they see the same frames, and half as many kernels run."""

    def __init__(self, z: GaussianEncoder, u: GaussianEncoder, members: int) -> None:
        super().__init__()
        self.z, self.u, self.members = z, u, members
        layers: list[nn.Module] = []
        for n, (one, other) in enumerate(zip(_network(z), _network(u), strict=True)):
            if isinstance(one, Linear) and isinstance(other, Linear):
                both = {f"z_given_x.network.{n}": one, f"u_given_x.network.{n}": other}
                layers.append(FactoredLinear(both, members))
            else:
                layers.append(one)
        self.network = nn.Sequential(*layers)

    @staticmethod
    def suits(z: nn.Module, u: nn.Module) -> bool:
        """Whether two encoders are alike, layer by layer."""
        kinds = [
            [(type(one), [p.shape for p in one.parameters()]) for one in encoder.network]
            if isinstance(encoder, GaussianEncoder) and isinstance(encoder.network, nn.Sequential)
            else None
            for encoder in (z, u)
        ]
        shared = set(z.parameters()) & set(u.parameters())
        return kinds[0] is not None and kinds[0] == kinds[1] and not shared

    def forward(self, x: Tensor) -> Posterior:
        frames = x.flatten(-self.z.frame_axes)
        rows = frames.reshape(self.members, -1, frames.shape[-1])
        outputs = self.network(torch.cat([rows, rows])).to(x.dtype)  # 2·members rows outputs
        z, u = (part.reshape(*frames.shape[:-1], -1) for part in outputs.chunk(2))
        return Posterior(self.z.distribution(z), self.u.distribution(u))


def _network(encoder: GaussianEncoder) -> nn.Sequential:
    assert isinstance(encoder.network, nn.Sequential)
    return encoder.network


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


def _factor(model: SequenceModel, members: int) -> list[FactoredLinear]:
    """Put factored layers in the place of the linear ones."""
    z, u = getattr(model, "z_given_x", None), getattr(model, "u_given_x", None)
    if z is not None and u is not None and PairedEncoder.suits(z, u):
        del model.z_given_x, model.u_given_x
        model.encoders = PairedEncoder(z, u, members)
        vars(model)["posterior"] = model.encoders  # in place of the method
    for name, module in list(model.named_modules()):
        if isinstance(module, Linear) and not name.startswith("encoders."):
            path, _, leaf = name.rpartition(".")
            factored = FactoredLinear({name: module}, members)
            setattr(model.get_submodule(path), leaf, factored)
    return [module for module in model.modules() if isinstance(module, FactoredLinear)]


@torch.no_grad()
def descend(
    rule: Sgd | Adam, x: Tensor, dy: Tensor, weight: Tensor, moments: Sequence[Tensor],
    coarse: Tensor, size: Tensor, spread: Tensor, shorter: Tensor | None = None,
) -> None:  # fmt: skip
    """A step from the two factors of a gradient, dyᵀ x: on a GPU, one kernel."""
    if weight.device.type == "cuda":
        from topocaps.training import kernels  # needs a GPU and Triton

        kernels.descend(rule, x, dy, weight, moments, coarse, size, spread, shorter)
        return
    outputs, inputs = weight.shape[1:]
    gradient = torch.bmm(dy.mT.float(), x.float())[:, :outputs, :inputs]
    gradient = gradient if shorter is None else shorten(gradient, shorter[: len(weight)])
    move(rule, weight, gradient, moments, size, spread)
    coarse[:, :outputs, :inputs] = weight


def move(
    rule: Sgd | Adam, weight: Tensor, gradient: Tensor, moments: Sequence[Tensor],
    size: Tensor, spread: Tensor,
) -> None:  # fmt: skip
    """The rule of the optimiser, in place; ``size`` is of each member."""
    size = size[: len(weight)].reshape(-1, *(1,) * (weight.ndim - 1))
    if isinstance(rule, Sgd):
        (velocity,) = moments
        velocity.mul_(rule.momentum).add_(gradient)
        weight.sub_(size * velocity)
    else:
        first, second = moments
        first.lerp_(gradient, 1 - rule.betas[0])
        second.lerp_(gradient.square(), 1 - rule.betas[1])
        weight.sub_(size * first / ((spread * second).sqrt() + rule.EPSILON))


def aligned(matrix: Tensor) -> Tensor:
    """The same values with rows that begin at multiples of 64 bytes, for wide loads."""
    wide = matrix.new_empty(*matrix.shape[:-1], _wide(matrix.shape[-1]))[..., : matrix.shape[-1]]
    return wide.copy_(matrix)


def _stacked(value: Tensor, axes: int) -> Tensor:
    """With the models in front, also where there is one."""
    return value if value.ndim == axes else value[None]


def _wide(width: int) -> int:
    return -(-width // 16) * 16
