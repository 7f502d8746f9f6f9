"""Layers that keep the gradients of their weights as two factors, for ``FusedUpdate``."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import pad

from topocaps.models import TopographicVAE
from topocaps.models.base import GenerativeModel
from topocaps.models.evidence import Posterior
from topocaps.models.networks import GaussianEncoder, Linear, Norm

PART = 64  # fewest inputs of a row that a program of the kernel updates


def replace_linear_layers(model: GenerativeModel, members: int) -> list[FactoredLinear]:
    """Replace the linear layers of a model by factored ones, and return the factored ones."""
    if isinstance(model, TopographicVAE) and _calls_both_encoders(model):
        z, u = model.z_given_x, model.u_given_x
        if (
            isinstance(z, GaussianEncoder)
            and isinstance(u, GaussianEncoder)
            and PairedEncoder.suits(z, u)
        ):
            del model.z_given_x, model.u_given_x
            model.encoders = PairedEncoder(z, u, members)
    for name, module in list(model.named_modules()):
        if isinstance(module, Linear) and not name.startswith("encoders."):
            path, _, leaf = name.rpartition(".")
            factored = FactoredLinear({name: module}, members)
            setattr(model.get_submodule(path), leaf, factored)
    for network in model.modules():
        if isinstance(network, nn.Sequential):
            for n, (layer, following) in enumerate(pairwise(network)):
                if isinstance(layer, nn.ReLU) and isinstance(following, FactoredLinear):
                    network[n] = PaddedReLU(following.padded_inputs)
    return [module for module in model.modules() if isinstance(module, FactoredLinear)]


def _calls_both_encoders(model: TopographicVAE) -> bool:
    """Return whether the model calls both encoders together and nowhere else.

    `TopographicVAE` does so; a subclass may override the methods that call them.
    """
    methods = ("posterior", "_posterior", "evidence")
    return all(getattr(type(model), m, None) is getattr(TopographicVAE, m) for m in methods)


def rows_of_layers(model: GenerativeModel, batch: int, frames: int) -> dict[str, int] | None:
    """Return the number of rows that each linear layer multiplies in a step, by the layer's name.

    The step runs with tensors that hold no values. Return None unless it calls each layer once: a
    layer that is called twice, or never, has no single pair of factors.
    """
    if model.frame_shape is None:
        return None
    calls: dict[str, list[int]] = {}
    shadow = copy.deepcopy(model).to("meta")
    for name, module in shadow.named_modules():
        if isinstance(module, Linear):
            rows = calls[name] = []
            module.register_forward_pre_hook(
                lambda _, inputs, rows=rows: rows.append(inputs[0].shape[:-1].numel())
            )
    try:
        shadow.evidence(torch.empty(batch, frames, *model.frame_shape, device="meta"))
    except (RuntimeError, NotImplementedError, TypeError):  # the networks need values
        return None
    if any(len(rows) != 1 for rows in calls.values()):
        return None
    return {name: rows for name, (rows,) in calls.items()}


class FactoredLinear(nn.Module):
    """Linear layers of all members, and of one or two networks, as one matrix product.

    The layer multiplies with a bf16 copy of the weights, and keeps its input. The copy and the
    input are padded with zeros to multiples of 16, which tensor cores and wide loads need. The
    parameters of the original layers become views of ``matrix``. If weights are normalised
    (Eq. 15), ``matrix`` holds the directions v, and the outputs are scaled by g / |v|. An update of
    a part of a row then does not need the rest of the row.

    Args:
        linears: one or two layers, by name. Two layers are two models for each member.
        beside: whether two layers with the same inputs are joined along their outputs instead.
    """

    weight_bf16: Tensor
    squares: Tensor  #: squared norms of the parts of each row: models parts outputs

    def __init__(self, linears: Mapping[str, Linear], members: int, beside: bool = False) -> None:
        super().__init__()
        self.linears = dict(linears)
        self.axis = 1 if beside else 0  # axis of outputs, or of models
        matrices = [_matrix(linear)[1] for linear in linears.values()]
        self.matrix = aligned(self._join([_with_models(m.data, 3) for m in matrices]))
        self.models, self.outputs, self.inputs = self.matrix.shape
        for matrix, part in zip(matrices, self._parts(self.matrix), strict=True):
            matrix.data = part
        self.biases = [linear.bias for linear in linears.values()]
        self.lengths = [lin.length for lin in linears.values() if lin.norm is Norm.WEIGHT]
        self.padded_outputs, self.padded_inputs = padded(self.outputs), padded(self.inputs)
        self.output_probe = self.radial_probe = torch.empty(0, 0)
        empty = self.matrix.new_empty(self.models, self.padded_outputs, self.padded_inputs)
        self.register_buffer("weight_bf16", empty.bfloat16(), persistent=False)
        if self.lengths:
            squares = self.matrix.new_empty(self.models, -(-self.inputs // PART), self.outputs)
            self.register_buffer("squares", squares, persistent=False)
        self.refresh()

    def make_moments(self, keys: Sequence[str]) -> dict[str, dict[str, Tensor]]:
        """Allocate the optimiser's moments, and return them by the name of each layer's weight."""
        self.moments = [aligned(torch.zeros_like(self.matrix)) for _ in keys]
        parts = zip(*(self._parts(moment) for moment in self.moments), strict=True)
        return {
            f"{name}.{_matrix(linear)[0]}": dict(zip(keys, part, strict=True))
            for (name, linear), part in zip(self.linears.items(), parts, strict=True)
        }

    @torch.no_grad()
    def refresh(self) -> None:
        """Copy the weights to bf16, and compute the squared norms of their rows."""
        padding = (0, self.padded_inputs - self.inputs, 0, self.padded_outputs - self.outputs)
        self.weight_bf16.copy_(pad(self.matrix, padding))
        if self.lengths:
            self.squares.zero_()[:, 0] = self.matrix.square().sum(-1)

    def expect(self, rows: int) -> None:
        """Allocate the probes of a step with this many rows of inputs.

        Probes hold no values. Their gradients are those of the outputs of the product and, for
        directions, the coefficients of the radial correction.
        """
        empty = torch.empty(1, device=self.weight_bf16.device)
        probe = empty.bfloat16().expand(self.models, rows, self.padded_outputs)
        self.output_probe = probe.requires_grad_()
        self.radial_probe = empty.expand(self.models, self.outputs).requires_grad_()

    def forward(self, x: Tensor) -> Tensor:
        rows = x.reshape(self.models, -1, x.shape[-1]).bfloat16()
        wide = pad(rows, (0, self.padded_inputs - x.shape[-1]))
        self.input = wide.detach()
        bias = self._join([_with_models(bias, 2) for bias in self.biases])
        normalised: tuple[Tensor | None, ...] = (None, None, None)
        if self.lengths:  # the outputs are scaled by g / |v|
            squares = self.squares.sum(1)
            lengths = self._join([_with_models(length[..., 0], 2) for length in self.lengths])
            normalised = (lengths / squares.sqrt(), squares, self.radial_probe)
        y: Tensor = _Product.apply(wide, self.weight_bf16, bias, self.output_probe, *normalised)
        return y.reshape(*x.shape[:-1], self.outputs)

    def _join(self, parts: Sequence[Tensor]) -> Tensor:
        """Join a tensor (models, outputs, …) of each layer into one."""
        return torch.cat(list(parts), self.axis)

    def _parts(self, joined: Tensor) -> list[Tensor]:
        """Split a tensor like ``matrix`` into a view for each layer, in the layer's shape."""
        return [part.squeeze(0) for part in joined.chunk(len(self.linears), self.axis)]


class PairedEncoder(nn.Module):
    """The encoders of z and u as one module, with half the kernels and one read of the frames."""

    def __init__(self, z: GaussianEncoder, u: GaussianEncoder, members: int) -> None:
        super().__init__()
        self.z, self.u, self.members = z, u, members
        layers: list[nn.Module] = []
        for n, (of_z, of_u) in enumerate(zip(_network(z), _network(u), strict=True)):
            if isinstance(of_z, Linear) and isinstance(of_u, Linear):
                pair = {f"z_given_x.network.{n}": of_z, f"u_given_x.network.{n}": of_u}
                layers.append(FactoredLinear(pair, members, beside=n == 0))
                layers.extend([SplitNetworks()] if n == 0 else [])
            else:
                layers.append(of_z)
        self.network = nn.Sequential(*layers)

    @staticmethod
    def suits(z: nn.Module | None, u: nn.Module | None) -> bool:
        """Return whether both encoders have the same layers, and only linear ones have a state."""
        layers = []
        for encoder in (z, u):
            if type(encoder) is not GaussianEncoder:
                return False
            if not isinstance(encoder.network, nn.Sequential):
                return False
            layers.append(list(encoder.network))
        of_z, of_u = ([(repr(m), [p.shape for p in m.parameters()]) for m in ms] for ms in layers)
        starts_linear = bool(layers[0]) and type(layers[0][0]) is Linear
        return (
            starts_linear
            and of_z == of_u
            and all(
                type(module) is Linear or not (list(module.children()) or module.state_dict())
                for module in (*layers[0], *layers[1])
            )
        )

    def forward(self, x: Tensor) -> Posterior:
        frames = x.flatten(-self.z.frame_axes)
        rows = frames.reshape(self.members, -1, frames.shape[-1])
        outputs = self.network(rows).to(x.dtype)  # 2·members rows outputs
        z, u = (part.reshape(*frames.shape[:-1], -1) for part in outputs.chunk(2))
        return Posterior(self.z.distribution(z), self.u.distribution(u))


class SplitNetworks(nn.Module):
    """Moves the outputs of two networks from halves of the last axis to halves of the models."""

    def forward(self, y: Tensor) -> Tensor:
        return torch.cat(y.chunk(2, -1))


def _network(encoder: GaussianEncoder) -> nn.Sequential:
    assert isinstance(encoder.network, nn.Sequential)
    return encoder.network


class _Product(torch.autograd.Function):
    """x Wᵀ, scaled, plus the bias.

    The gradient of the output probe is that of the product's output. For directions v,
    dv = (g / |v|) dw - c v, and the gradient of the radial probe is c = dscale g / |v|³.
    """

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, weight: Tensor, bias: Tensor, output_probe: Tensor,
        scale: Tensor | None, squares: Tensor | None, radial_probe: Tensor | None,
    ) -> Tensor:  # fmt: skip
        y = torch.bmm(x, weight.mT)[..., : bias.shape[-1]]
        if scale is None or squares is None:
            ctx.save_for_backward(weight)
        else:
            ctx.save_for_backward(weight, y, scale, squares)
            y = y * scale[:, None]
        return y + bias[:, None]

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        weight, *normalised = ctx.saved_tensors
        dy = gradient.bfloat16()
        dbias = dy.sum(1, dtype=torch.float32)
        dscale = coefficient = None
        if normalised:
            y, scale, squares = normalised
            dscale = (dy * y.float()).sum(1)
            coefficient = dscale * scale / squares
            dy = (dy * scale[:, None]).bfloat16()
        dy = pad(dy, (0, weight.shape[1] - dy.shape[-1]))
        dx = torch.bmm(dy, weight) if ctx.needs_input_grad[0] else None
        return dx, None, dbias, dy, dscale, None, coefficient


class PaddedReLU(nn.Module):
    """ReLU in bf16, padded to the width of the next layer.

    The backward pass reads the mask from the output, so nothing else is saved.
    """

    def __init__(self, width: int) -> None:
        super().__init__()
        self.width = width

    def forward(self, x: Tensor) -> Tensor:
        rectified: Tensor = _PaddedReLU.apply(x, self.width)
        return rectified


class _PaddedReLU(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, width: int) -> Tensor:
        y = pad(x.relu().bfloat16(), (0, width - x.shape[-1]))
        ctx.save_for_backward(y)
        ctx.width = x.shape[-1]
        return y

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor, None]:
        (y,) = ctx.saved_tensors
        dx = torch.ops.aten.threshold_backward(dy, y, 0)[..., : ctx.width]
        return dx.float(), None


def aligned(matrix: Tensor) -> Tensor:
    """Return a copy whose rows begin at multiples of 64 bytes, padded with zeros."""
    width = matrix.shape[-1]
    return matrix.new_zeros(*matrix.shape[:-1], padded(width))[..., :width].copy_(matrix)


def _with_models(value: Tensor, axes: int) -> Tensor:
    """Return the value with an axis of models in front, which a single model does not have."""
    return value if value.ndim == axes else value[None]


def _matrix(linear: Linear) -> tuple[str, Tensor]:
    """Return the name and the value of the layer's matrix."""
    name = "direction" if linear.norm is Norm.WEIGHT else "matrix"
    return name, getattr(linear, name)


def padded(width: int) -> int:
    """Return the width rounded up to a multiple of 16."""
    return -(-width // 16) * 16
