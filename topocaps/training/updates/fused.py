"""The update that computes the gradient of a weight and applies it in one pass."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from topocaps.data.sequences import SequenceSet
from topocaps.models.base import GenerativeModel
from topocaps.models.networks import Linear, Norm
from topocaps.training.optimisers import Adam, Sgd
from topocaps.training.settings import Precision, Training
from topocaps.training.stack import Stack
from topocaps.training.updates.base import (
    MeanTerms,
    Update,
    bound,
    clip_factor,
    compilable_copy,
    compiled,
    run_concurrently,
    scale_gradient,
)
from topocaps.training.updates.layers import (
    FactoredLinear,
    replace_linear_layers,
    rows_of_layers,
)

CACHED = 2**19  # most entries of a weight that a CPU updates at once
MIN_ROWS = 64  # fewest rows of a weight that a CPU updates at once: fewer make slow products
NORMS = (Norm.NONE, Norm.WEIGHT)  # supported norms: a projection needs the whole gradient of a row


class FusedUpdate(Update):
    """Updates weights inside the product of the two factors of their gradient.

    The gradient of a weight is dyᵀ x, where x is the input of its layer and dy the gradient of the
    layer's output. One pass over weights and moments computes this product and uses it. Layers
    multiply in bf16, with copies of the weights that the same pass writes. All other parameters
    (biases, mu) are small, and are views of one tensor.
    """

    def __init__(
        self, stack: Stack, training: Training, clips: Sequence[float | None] | None = None
    ) -> None:
        super().__init__(stack, training, clips)
        assert isinstance(training.optimiser, Sgd | Adam)
        self.rule = training.optimiser
        self.means = MeanTerms(compilable_copy(stack), self.kl_weight)
        self.layers = replace_linear_layers(self.means.model, len(stack))
        self._moments: dict[str, dict[str, Tensor]] = {}
        rows = rows_of_layers(stack.members[0], training.batch, stack.frames)
        assert rows is not None  # `suits` has checked it
        for layer in self.layers:
            self._moments |= layer.make_moments(self.rule.MOMENTS)
            layer.expect(rows[next(iter(layer.linears))])
        self.rest = {n: p for n, p in self.parameters.items() if n not in self._moments}
        sizes = [p.numel() // len(stack) for p in self.rest.values()]
        device = next(stack.model.parameters()).device
        self._flat = torch.zeros(1 + len(self.rule.MOMENTS), len(stack), sum(sizes), device=device)
        for (name, parameter), *parts in zip(
            self.rest.items(), *(flat.split(sizes, 1) for flat in self._flat), strict=True
        ):
            values, *moments = (part.view(parameter.shape) for part in parts)
            parameter.data = values.copy_(parameter.data)
            self._moments[name] = dict(zip(self.rule.MOMENTS, moments, strict=True))
        # twice the members, because a layer of two encoders has two models for each member
        self.rates, self._lr = torch.zeros(2 * len(stack), device=device), 0.0
        #: factor of each member's learning rate, so that one stack can search over rates
        self.relative_rates = torch.ones(2, len(stack), device=device)
        self.count = torch.zeros((), device=device)
        self.streams = (
            [torch.cuda.Stream(device) for _ in range(4)] if device.type == "cuda" else []
        )
        self.compile(False)

    @staticmethod
    def suits(stack: Stack, training: Training) -> bool:
        """Return whether this update can train the stack.

        Matrix products must be in bf16, and all layers linear and called once. All parameters must
        be trained, at one learning rate, and none shared. The model must have no projection of its
        own, and its layers must accept the axis of several members. The optimiser must be `Sgd` or
        `Adam`; on a CPU `Sgd`, because PyTorch's Adam is faster there.
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
            and isinstance(training.optimiser, Sgd if device.type == "cpu" else Sgd | Adam)
            and all(type(layer) is Linear and layer.norm in NORMS for layer in layers)
            and len({id(parameter) for _, parameter in named}) == len(named)
            and all(p.requires_grad and model.lr_scale(name) == 1 for name, p in named)
            and type(model).project is GenerativeModel.project
            and not (model.supports_vmap and len(stack) > 1)
            and rows_of_layers(stack.members[0], training.batch, stack.frames) is not None
        )

    def compile(self, on: bool = True) -> None:
        wrap: Any = compiled if on else lambda function: function
        self._bound = wrap(_bound_and_inputs)
        self._apply = wrap(apply_update)
        self._square = wrap(squared_norm)
        self._radial_square = wrap(radial_squared_norm)

    def gradients(
        self, sequences: SequenceSet, uniform: Tensor, noise: Sequence[Tensor]
    ) -> list[Tensor]:
        _, gradients = self._backward(sequences, uniform, noise)
        radial = [c.coefficient for c in gradients.corrections if c is not None]
        factors = (*gradients.inputs, *gradients.outputs, *radial)
        parts = [part for factor in factors for part in factor.split(len(self.stack))]
        return [*parts, *gradients.rest]

    def _backward(
        self, sequences: SequenceSet, uniform: Tensor, noise: Sequence[Tensor]
    ) -> tuple[Tensor, Gradients]:
        """Return the terms, and the result of the backward pass."""
        with Precision.TF32.products(uniform.device):
            terms, inputs = self._bound(self.means, self.layers, sequences, uniform, noise)
            loss = -terms[:, -1].sum()
            probes = [layer.output_probe for layer in self.layers]
            radial_probes = [layer.radial_probe for layer in self.layers if layer.lengths]
            inputs_of_loss = [*probes, *radial_probes, *self.rest.values()]
            # materialize_grads: the gradient of an unused parameter is 0
            gradients = torch.autograd.grad(loss, inputs_of_loss, materialize_grads=True)
        outputs, others = gradients[: len(probes)], iter(gradients[len(probes) :])
        corrections = [
            RadialCorrection(next(others), layer.squares) if layer.lengths else None
            for layer in self.layers
        ]
        return terms, Gradients(inputs, outputs, corrections, list(others))

    def step(
        self, sequences: SequenceSet, uniform: Tensor, noise: Sequence[Tensor]
    ) -> tuple[Tensor, Tensor | None]:
        terms, gradients = self._backward(sequences, uniform, noise)
        factors = None if self.clips is None else self._clip_factors(self.clips, gradients)
        self._update(gradients, factors)
        return terms[:, :-1].detach(), None if factors is None else factors > 0

    @torch.no_grad()
    def _update(self, gradients: Gradients, factors: Tensor | None) -> None:
        """Update all layers concurrently, and all other parameters as one tensor."""
        if isinstance(self.rule, Adam):
            self.count += 1
        size, spread = self.rule.step_size(self.rates, self.count)
        twice = None if factors is None else factors.repeat(2)
        updates = [
            functools.partial(
                update_weight, self.rule, x, dy, layer.matrix, layer.moments, layer.weight_bf16,
                size, spread, twice, correction,
            )
            for x, dy, correction, layer in zip(*gradients[:3], self.layers, strict=True)
        ]  # fmt: skip

        def update_rest() -> None:
            gradient = torch.cat([g.reshape(len(self.stack), -1) for g in gradients.rest], 1)
            if factors is not None:
                gradient = scale_gradient(gradient, factors)
            values, *moments = self._flat
            self._apply(self.rule, values, gradient, moments, size[: len(self.stack)], spread)

        run_concurrently([*updates, update_rest], self.streams)

    @torch.no_grad()
    def _clip_factors(self, clips: Tensor, gradients: Gradients) -> Tensor:
        """Return the factor of each member's gradient, which is 1 for members without a clip."""
        members, clipped = len(self.stack), self.clipped
        squares = [clips] * (len(self.layers) + 1)

        def measure_layer(n: int) -> None:
            factors = (gradients.inputs[n].split(members), gradients.outputs[n].split(members))
            parts = [self._square(x[clipped], dy[clipped]) for x, dy in zip(*factors, strict=True)]
            square = torch.stack(parts)
            if (correction := gradients.corrections[n]) is not None:
                square = square - self._radial_square(*correction).view(-1, members)[:, clipped]
            squares[n] = square.sum(0).clamp_min(0)

        def measure_rest() -> None:
            rest = torch.cat([g.reshape(members, -1)[clipped] for g in gradients.rest], 1)
            squares[-1] = rest.square().sum(1)

        layers = [functools.partial(measure_layer, n) for n in range(len(self.layers))]
        run_concurrently([*layers, measure_rest], self.streams)
        factors = torch.ones_like(clips)
        factors[clipped] = clip_factor(torch.stack(squares, 1), clips[clipped])
        return factors

    def set_lr(self, lr: float) -> None:
        if lr != self._lr:
            torch.mul(self.relative_rates.flatten(), lr, out=self.rates)
            self._lr = lr

    def moments(self, name: str) -> dict[str, Tensor]:
        count = {"step": self.count} if isinstance(self.rule, Adam) else {}
        return {**self._moments[name], **count}

    def reset(self) -> None:
        self.count.zero_()
        for moments in self._moments.values():
            for moment in moments.values():
                moment.zero_()
        self.refresh()

    def refresh(self) -> None:
        for layer in self.layers:
            layer.refresh()


def _bound_and_inputs(
    means: MeanTerms,
    layers: Sequence[FactoredLinear],
    sequences: SequenceSet,
    uniform: Tensor,
    noise: Sequence[Tensor],
) -> tuple[Tensor, list[Tensor]]:
    """Return the terms, and the input of each layer."""
    terms = bound(means, sequences, uniform, noise)
    return terms, [layer.input for layer in layers]


class Gradients(NamedTuple):
    """Result of the backward pass; weight gradients as factors."""

    inputs: Sequence[Tensor]  #: inputs of the layers
    outputs: Sequence[Tensor]  #: gradients of the layers' outputs
    corrections: Sequence[RadialCorrection | None]  #: of the layers' directions
    rest: Sequence[Tensor]  #: gradients of all other parameters


class RadialCorrection(NamedTuple):
    """Correction of the gradient of directions v (Eq. 15): subtract ``coefficient`` times v.

    An update of the directions also writes ``squares``.
    """

    coefficient: Tensor  #: models outputs
    squares: Tensor  #: squared norms of the parts of each row of v: models parts outputs


def squared_norm(x: Tensor, dy: Tensor) -> Tensor:
    """Return |dyᵀ x|² of every model: the sum over entries of (x xᵀ)(dy dyᵀ)."""
    return ((x @ x.mT).float() * (dy @ dy.mT).float()).sum((1, 2))


def radial_squared_norm(coefficient: Tensor, squares: Tensor) -> Tensor:
    """Return what a radial correction subtracts from the squared norm |dyᵀ x|² of every model."""
    return (coefficient.square() * squares.sum(1)).sum(1)


@torch.no_grad()
def update_weight(
    rule: Sgd | Adam, x: Tensor, dy: Tensor, weight: Tensor, moments: Sequence[Tensor],
    weight_bf16: Tensor, size: Tensor, spread: Tensor, factors: Tensor | None = None,
    correction: RadialCorrection | None = None,
) -> None:  # fmt: skip
    """Update a weight from the two factors of its gradient dyᵀ x, in place.

    A GPU runs one kernel, which does not round the gradient. A CPU updates as many rows at a time
    as its cache holds, and rounds the gradient to the type of its factors, bf16, as autocast does.

    Args:
        size, spread: step sizes, as ``Sgd.step_size`` returns them.
        factors: factor that clips each model's gradient.
        correction: correction of the gradient of normalised weights.
    """
    if weight.device.type == "cuda":
        from topocaps.training import kernels  # needs a GPU and Triton

        kernels.update_weight(
            rule, x, dy, weight, moments, weight_bf16, size, spread, factors, *(correction or ())
        )
        return
    models, outputs, inputs = weight.shape
    factors = None if factors is None else factors[:models]
    height = max(MIN_ROWS, CACHED // (models * inputs))
    for begin in range(0, outputs, height):
        rows = slice(begin, min(begin + height, outputs))
        gradient = torch.bmm(dy[..., rows].mT, x)[..., :inputs].float()
        band = weight[:, rows]
        if correction is not None:
            gradient = gradient - correction.coefficient[:, rows, None] * band
        gradient = gradient if factors is None else scale_gradient(gradient, factors)
        apply_update(rule, band, gradient, [moment[:, rows] for moment in moments], size, spread)
        weight_bf16[:, rows, :inputs] = band
        if correction is not None:
            correction.squares[:, 0, rows] = band.square().sum(-1)


def apply_update(
    rule: Sgd | Adam, weight: Tensor, gradient: Tensor, moments: Sequence[Tensor],
    size: Tensor, spread: Tensor,
) -> None:  # fmt: skip
    """Apply the optimiser's rule in place; ``size`` holds a step size for each model."""
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
