"""Gradients that are never written: weights move inside the product that makes their gradient."""

from __future__ import annotations

import functools
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from topocaps.data.sequences import SequenceSet
from topocaps.models.networks import Linear, Norm
from topocaps.models.sequence import SequenceModel
from topocaps.training.descent import (
    Descent,
    Means,
    bound,
    compiled,
    readable,
    shorten,
    shorter_by,
    side_by_side,
)
from topocaps.training.layers import FactoredLinear, factor, layers_are_called_once
from topocaps.training.optimisers import Adam, Sgd
from topocaps.training.precision import Precision
from topocaps.training.settings import Training
from topocaps.training.stack import Stack

CACHED = 2**19  # numbers of a weight that a CPU moves at once
LEAST = 64  # rows of it: fewer make slow products
NORMS = (Norm.NONE, Norm.WEIGHT)  # rows that are projected must be known whole


class Factored(Descent):
    """The gradient of a weight is kept as its two factors, what came into a layer and what came
    back; they are multiplied in the one pass over weights and moments.

    Layers multiply in bf16, by copies of the weights that the same pass writes. What is not a
    weight (biases, mu) is small, and lies side by side in one tensor.
    """

    def __init__(
        self, stack: Stack, training: Training, clips: Sequence[float | None] | None = None
    ) -> None:
        super().__init__(stack, training, clips)
        self.rule = training.optimiser
        self.means = Means(readable(stack))
        self.layers = factor(self.means.model, len(stack))
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
        self.streams = (
            [torch.cuda.Stream(device) for _ in range(4)] if device.type == "cuda" else []
        )
        self.compile(False)

    @staticmethod
    def suits(stack: Stack, training: Training) -> bool:
        """Whether it can be trained so: in bf16, all layers linear, each used once.

        All parameters are to be learned, at one rate, none is shared, and nothing of the model's
        own follows a step.
        """
        model = stack.model
        device = next(model.parameters()).device
        layers = [
            module
            for module in model.modules()
            if module is not model and any(True for _ in module.parameters(recurse=False))
        ]
        named = list(model.named_parameters(remove_duplicate=False))
        return (
            training.precision.on(device) is Precision.BF16
            and all(type(one) is Linear and one.norm in NORMS for one in layers)
            and len({id(one) for _, one in named}) == len(named)
            and all(one.requires_grad and model.lr_scale(name) == 1 for name, one in named)
            and type(model).project is SequenceModel.project
            and layers_are_called_once(stack.members[0], stack.frames)
        )

    def _as(self, parameter: Tensor, part: Tensor) -> Tensor:
        """A piece (members, numbers) of the flat tensor, shaped as a parameter."""
        return part.view(parameter.shape) if len(self.stack) == 1 else (
            part.unflatten(1, parameter.shape[1:]) if parameter.ndim > 1 else part[:, 0]
        )  # fmt: skip

    def compile(self, on: bool = True) -> None:
        self._bound: Any = compiled(_factored_bound) if on else _factored_bound
        self._move: Any = compiled(move) if on else move
        self._square: Any = compiled(square) if on else square
        self._along: Any = compiled(along) if on else along

    def gradients(
        self, sequences: SequenceSet, uniform: Tensor, noise: Sequence[Tensor]
    ) -> list[Tensor]:
        _, found = self._back(sequences, uniform, noise)
        by = [turn.by for turn in found.turns if turn is not None]
        whole = (*found.inputs, *found.back, *by)
        return [*(part for one in whole for part in one.split(len(self.stack))), *found.rest]

    def _back(
        self, sequences: SequenceSet, uniform: Tensor, noise: Sequence[Tensor]
    ) -> tuple[Tensor, Gradients]:
        """The terms, and the way back."""
        frames = noise[0].shape[: -len(self.stack.model.noise_shapes[0])].numel()
        for layer in self.layers:
            layer.expect(frames // len(self.stack))
        with Precision.TF32.products(uniform.device):
            terms, inputs = self._bound(self.means, self.layers, sequences, uniform, noise)
            loss = -terms[:, -1].sum()
            slots = [layer.slot for layer in self.layers]
            turning = [layer.turn for layer in self.layers if layer.lengths]
            wanted = [*slots, *turning, *self.rest.values()]
            down = torch.autograd.grad(loss, wanted, materialize_grads=True)  # 0 of what is unused
        back, others = down[: len(slots)], iter(down[len(slots) :])
        turns = [
            Turn(next(others), layer.squares) if layer.lengths else None for layer in self.layers
        ]
        return terms, Gradients(inputs, back, turns, list(others))

    def step(
        self, sequences: SequenceSet, uniform: Tensor, noise: Sequence[Tensor]
    ) -> tuple[Tensor, Tensor | None]:
        terms, gradients = self._back(sequences, uniform, noise)
        shorter = None if self.clips is None else self._shorter(self.clips, gradients)
        self._descend(gradients, shorter)
        return terms[:, :-1].detach(), None if shorter is None else shorter > 0

    @torch.no_grad()
    def _descend(self, gradients: Gradients, shorter: Tensor | None) -> None:
        """All layers at the same time: those of a small model do not fill a GPU one by one."""
        if isinstance(self.rule, Adam):
            self.count += 1
        size, spread = self.rule.step_size(self.rates, self.count)
        twice = None if shorter is None else shorter.repeat(2)
        updates = [
            functools.partial(
                descend, self.rule, x, dy, layer.matrix, layer.held, layer.coarse,
                size, spread, twice, turn,
            )
            for x, dy, turn, layer in zip(*gradients[:3], self.layers, strict=True)
        ]  # fmt: skip

        def the_rest() -> None:
            gradient = torch.cat([g.reshape(len(self.stack), -1) for g in gradients.rest], 1)
            if shorter is not None:
                gradient = shorten(gradient, shorter)
            weights, *moments = self._flat
            self._move(self.rule, weights, gradient, moments, size[: len(self.stack)], spread)

        side_by_side([*updates, the_rest], self.streams)

    @torch.no_grad()
    def _shorter(self, clips: Tensor, gradients: Gradients) -> Tensor:
        """The factor of each member's gradient; only those that have a clip are measured."""
        members, some = len(self.stack), self.clipped
        inputs, back, turns, others = gradients
        found = [clips] * (len(inputs) + 1)

        def of_layer(n: int) -> None:
            parts = zip(inputs[n].split(members), back[n].split(members), strict=True)
            squares = torch.stack([self._square(x[some], dy[some]) for x, dy in parts])  # no copies
            if (turn := turns[n]) is not None:  # what goes along a direction is taken off
                squares = squares - self._along(*turn).view(-1, members)[:, some]
            found[n] = squares.sum(0).clamp_min(0)

        def of_the_rest() -> None:
            rest = torch.cat([g.reshape(members, -1)[some] for g in others], 1)
            found[-1] = rest.square().sum(1)

        layers = [functools.partial(of_layer, n) for n in range(len(inputs))]
        side_by_side([*layers, of_the_rest], self.streams)
        factors = torch.ones_like(clips)
        factors[some] = shorter_by(torch.stack(found, 1), clips[some])
        return factors

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


def _factored_bound(
    means: Means,
    layers: Sequence[FactoredLinear],
    sequences: SequenceSet,
    uniform: Tensor,
    noise: Sequence[Tensor],
) -> tuple[Tensor, list[Tensor]]:
    """The terms, and what came into each layer."""
    terms = bound(means, sequences, uniform, noise)
    return terms, [layer.came for layer in layers]


class Gradients(NamedTuple):
    """What the way back of a step gives: of weights, the factors of their gradients."""

    inputs: Sequence[Tensor]  #: that came into layers
    back: Sequence[Tensor]  #: what came back to them
    turns: Sequence[Turn | None]  #: of their directions
    rest: Sequence[Tensor]  #: gradients of what is no weight


class Turn(NamedTuple):
    """What a gradient is for directions of weights (Eq. 15): less ``by`` times the direction.

    Where directions move, the squares of their parts are noted: (models, parts, outputs).
    """

    by: Tensor  #: models outputs
    squares: Tensor


def square(x: Tensor, dy: Tensor) -> Tensor:
    """|dyᵀ x|² of every model, which is the sum of (x xᵀ)(dy dyᵀ) entry by entry: two small
    products."""
    return ((x @ x.mT).float() * (dy @ dy.mT).float()).sum((1, 2))


def along(by: Tensor, squares: Tensor) -> Tensor:
    """What a turn takes off |dyᵀ x|² of every model: |by v|²."""
    return (by.square() * squares.sum(1)).sum(1)


@torch.no_grad()
def descend(
    rule: Sgd | Adam, x: Tensor, dy: Tensor, weight: Tensor, moments: Sequence[Tensor],
    coarse: Tensor, size: Tensor, spread: Tensor, shorter: Tensor | None = None,
    turn: Turn | None = None,
) -> None:  # fmt: skip
    """A step from the two factors of a gradient, dyᵀ x: on a GPU, one kernel.

    A CPU goes band by band, which a cache holds, and rounds the gradient to what its factors are
    in: bf16, as autocast does; the kernel does not.
    """
    if weight.device.type == "cuda":
        from topocaps.training import kernels  # needs a GPU and Triton

        by, squares = (None, None) if turn is None else (turn.by, turn.squares)
        kernels.descend(rule, x, dy, weight, moments, coarse, size, spread, shorter, by, squares)
        return
    models, outputs, inputs = weight.shape
    shorter = None if shorter is None else shorter[:models]
    for some in _bands(outputs, models * inputs):
        down = torch.bmm(dy[..., some].mT, x)[..., :inputs].float()
        moved = weight[:, some]
        if turn is not None:
            down = down - turn.by[:, some, None] * moved
        down = down if shorter is None else shorten(down, shorter)
        move(rule, moved, down, [moment[:, some] for moment in moments], size, spread)
        coarse[:, some, :inputs] = moved
        if turn is not None:
            turn.squares[:, 0, some] = moved.square().sum(-1)


def _bands(outputs: int, width: int) -> Iterator[slice]:
    """Rows that a cache holds at once, with their moments and gradients."""
    high = max(LEAST, CACHED // width)
    return (slice(begin, min(begin + high, outputs)) for begin in range(0, outputs, high))


def move(
    rule: Sgd | Adam, weight: Tensor, gradient: Tensor, moments: Sequence[Tensor],
    size: Tensor, spread: Tensor,
) -> None:  # fmt: skip
    """The rule of the optimiser, in place; ``size`` is of each member."""
    size = size[: len(weight)].reshape(-1, *(1,) * (weight.ndim - 1))
    if isinstance(rule, Sgd):
        (velocity,) = moments
        velocity.mul_(rule.momentum).add_(gradient)
        weight.addcmul_(velocity, size, value=-1)
    else:
        first, second = moments
        first.lerp_(gradient, 1 - rule.betas[0])
        second.lerp_(gradient.square(), 1 - rule.betas[1])
        weight.sub_(size * first / ((spread * second).sqrt() + rule.EPSILON))
