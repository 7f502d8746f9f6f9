"""Layers that keep the gradients of their weights as two factors, for ``factored``."""

from __future__ import annotations

import copy
from collections import Counter
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

PART = 64  # inputs: the least that a kernel moves of a row at once


def factor(model: GenerativeModel, members: int) -> list[FactoredLinear]:
    """Put factored layers in the place of the linear ones."""
    if isinstance(model, TopographicVAE) and _asks_both(model):
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
            for n, (one, after) in enumerate(pairwise(network)):
                if isinstance(one, nn.ReLU) and isinstance(after, FactoredLinear):
                    network[n] = Rectified(after.wide_inputs)
    return [module for module in model.modules() if isinstance(module, FactoredLinear)]


def _asks_both(model: TopographicVAE) -> bool:
    """Whether encoders are asked as a Topographic VAE does, both at once, and nowhere else."""
    asked = ("posterior", "_posterior", "evidence")
    return all(getattr(type(model), one, None) is getattr(TopographicVAE, one) for one in asked)


def layers_are_called_once(model: GenerativeModel, frames: int) -> bool:
    """Whether each linear layer has one input and one output in a step, found without computing.

    The factors of a layer that is called twice, or never, are not those of its gradient.
    """
    if model.frame_shape is None:
        return False
    called: Counter[nn.Module] = Counter()
    shadow = copy.deepcopy(model).to("meta")
    layers = [module for module in shadow.modules() if isinstance(module, Linear)]
    for layer in layers:
        layer.register_forward_hook(lambda module, *_: called.update([module]))
    try:
        shadow.evidence(torch.empty(1, frames, *model.frame_shape, device="meta"))
    except (RuntimeError, NotImplementedError, TypeError):  # networks that need values
        return False
    return all(called[layer] == 1 for layer in layers)


class FactoredLinear(nn.Module):
    """Linear layers, of all members and of one or two networks, as one product.

    Two networks are as twice the members or, where they see the same inputs (``beside``), as layers
    of twice the outputs. It multiplies by a bf16 copy of the weights, and tells what came in.
    Inputs and outputs are widened with zeros inside, to the multiples of 16 that tensor cores and
    wide loads want. The layers' own parameters become views of its matrix.

    Where weights are normalised (Eq. 15) the matrix is that of directions, and outputs are scaled
    by g / |v|: so a weight's row need not be known as a whole where it moves.
    """

    coarse: Tensor
    squares: Tensor

    def __init__(self, linears: Mapping[str, Linear], members: int, beside: bool = False) -> None:
        super().__init__()
        self.linears = nn.ModuleDict({n.replace(".", "/"): one for n, one in linears.items()})
        self.biases = [one.bias for one in linears.values()]
        self.axis = 1 if beside else 0  # of members, of outputs
        held = [_matrix(one)[1] for one in linears.values()]
        self.matrix = aligned(self._join([_stacked(matrix.data, 3) for matrix in held]))
        self.models, self.outputs, self.inputs = self.matrix.shape
        for matrix, part in zip(held, self._parts(self.matrix), strict=True):
            matrix.data = part if matrix.ndim == 3 else part[0]
        self.lengths = [one.length for one in linears.values() if one.norm is Norm.WEIGHT]
        self.wide_outputs, self.wide_inputs = _wide(self.outputs), _wide(self.inputs)
        self.slot = self.turn = torch.empty(0, 0)
        self.held: list[Tensor] = []
        if self.lengths:  # of parts of rows, as they are moved
            parts = torch.zeros(self.models, -(-self.inputs // PART), self.outputs)
            self.register_buffer("squares", parts.to(self.matrix.device), persistent=False)
        self.refresh()

    def keep(self, keys: Sequence[str]) -> None:
        """Make room for moments."""
        self.keys = keys
        self.held = [aligned(torch.zeros_like(self.matrix)) for _ in keys]

    def moments(self) -> dict[str, dict[str, Tensor]]:
        """Of every layer's matrix, by its name in the model."""
        found = {}
        for n, (name, one) in enumerate(self.linears.items()):
            assert isinstance(one, Linear)
            leaf, matrix = _matrix(one)
            parts = [self._parts(held)[n] for held in self.held]
            parts = parts if matrix.ndim == 3 else [part[0] for part in parts]
            found[f"{name.replace('/', '.')}.{leaf}"] = dict(zip(self.keys, parts, strict=True))
        return found

    @torch.no_grad()
    def refresh(self) -> None:
        """Copy the weights anew."""
        missing = (0, self.wide_inputs - self.inputs, 0, self.wide_outputs - self.outputs)
        coarse = pad(self.matrix, missing).bfloat16()
        if self.lengths:
            self.squares.zero_()[:, 0] = self.matrix.square().sum(-1)
        if hasattr(self, "coarse"):
            self.coarse.copy_(coarse)
        else:
            self.register_buffer("coarse", coarse, persistent=False)

    def expect(self, rows: int) -> None:
        """Make the slots: tensors that hold nothing, for which gradients are asked that are of no
        parameter: what comes back to the product and, of directions, their ``turn``."""
        if self.slot.shape[1] != rows:
            nothing = torch.empty(1, device=self.coarse.device)
            wanted = nothing.bfloat16().expand(self.models, rows, self.wide_outputs)
            self.slot = wanted.requires_grad_()
            self.turn = nothing.expand(self.models, self.outputs).requires_grad_()

    def forward(self, x: Tensor) -> Tensor:
        rows = x.reshape(self.models, -1, x.shape[-1]).bfloat16()
        wide = pad(rows, (0, self.wide_inputs - x.shape[-1]))
        self.came = wide.detach()
        bias = self._join([_stacked(bias, 2) for bias in self.biases])
        if self.lengths:  # g / |v|
            squares = self.squares.sum(1)
            scale = self._join([_rows(length) for length in self.lengths]) / squares.sqrt()
            normalised: tuple[Tensor | None, ...] = (scale, squares, self.turn)
        else:
            normalised = (None, None, None)
        y: Tensor = _Product.apply(wide, self.coarse, bias, self.slot, *normalised)
        return y.reshape(*x.shape[:-1], self.outputs)

    def _join(self, parts: Sequence[Tensor]) -> Tensor:
        """What each network has of something, (members, outputs, …), as one."""
        return torch.cat(list(parts), self.axis)

    def _parts(self, whole: Tensor) -> tuple[Tensor, ...]:
        return whole.chunk(len(self.linears), self.axis)


class PairedEncoder(nn.Module):
    """The encoders of z and of u as one: half as many kernels run, and the frames, which both see,
    are read once."""

    def __init__(self, z: GaussianEncoder, u: GaussianEncoder, members: int) -> None:
        super().__init__()
        self.z, self.u, self.members = z, u, members
        layers: list[nn.Module] = []
        for n, (one, other) in enumerate(zip(_network(z), _network(u), strict=True)):
            if isinstance(one, Linear) and isinstance(other, Linear):
                both = {f"z_given_x.network.{n}": one, f"u_given_x.network.{n}": other}
                first = not n
                layers.append(FactoredLinear(both, members, beside=first))
                layers.extend([Apart()] if first else [])
            else:
                layers.append(one)
        self.network = nn.Sequential(*layers)

    @staticmethod
    def suits(z: GaussianEncoder, u: GaussianEncoder) -> bool:
        """Whether two encoders are alike, layer by layer: linear ones, and others that hold
        nothing."""
        if not (type(z) is GaussianEncoder and type(u) is GaussianEncoder):
            return False
        if not (isinstance(z.network, nn.Sequential) and isinstance(u.network, nn.Sequential)):
            return False
        kinds = [
            [(repr(one), [p.shape for p in one.parameters()]) for one in network]
            for network in (z.network, u.network)
        ]
        starts = type(next(iter(z.network), None)) is Linear
        return (
            starts
            and kinds[0] == kinds[1]
            and all(
                type(one) is Linear or not (list(one.children()) or one.state_dict())
                for one in (*z.network, *u.network)
            )
        )

    def forward(self, x: Tensor) -> Posterior:
        frames = x.flatten(-self.z.frame_axes)
        rows = frames.reshape(self.members, -1, frames.shape[-1])
        outputs = self.network(rows).to(x.dtype)  # 2·members rows outputs
        z, u = (part.reshape(*frames.shape[:-1], -1) for part in outputs.chunk(2))
        return Posterior(self.z.distribution(z), self.u.distribution(u))


class Apart(nn.Module):
    """Two networks that lie beside each other, as twice the members."""

    def forward(self, y: Tensor) -> Tensor:
        return torch.cat(y.chunk(2, -1))


def _network(encoder: GaussianEncoder) -> nn.Sequential:
    assert isinstance(encoder.network, nn.Sequential)
    return encoder.network


class _Product(torch.autograd.Function):
    """x Wᵀ, scaled, and the bias; its gradient with respect to the slot is what came back to the
    product. Of directions v it is dv = (g / |v|) dw - turn v, and the gradient with respect to
    ``turn`` is that number: dscale g / |v|³."""

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, coarse: Tensor, bias: Tensor, slot: Tensor,
        scale: Tensor | None, squares: Tensor | None, turn: Tensor | None,
    ) -> Tensor:  # fmt: skip
        y = torch.bmm(x, coarse.mT)[..., : bias.shape[-1]]
        if scale is None or squares is None:
            ctx.save_for_backward(coarse)
        else:
            ctx.save_for_backward(coarse, y, scale, squares)
            y = y * scale[:, None]
        return y + bias[:, None]

    @staticmethod
    def backward(ctx: Any, back: Tensor) -> tuple[Tensor | None, ...]:
        coarse, *normalised = ctx.saved_tensors
        dy = back.bfloat16()
        dbias = dy.sum(1, dtype=torch.float32)
        dscale = turn = None
        if normalised:
            y, scale, squares = normalised
            dscale = (dy * y.float()).sum(1)
            turn = dscale * scale / squares
            dy = (dy * scale[:, None]).bfloat16()
        dy = pad(dy, (0, coarse.shape[1] - dy.shape[-1]))
        dx = torch.bmm(dy, coarse) if ctx.needs_input_grad[0] else None
        return dx, None, dbias, dy, dscale, None, turn


class Rectified(nn.Module):
    """ReLU as the next layer wants it, in bf16 and ``wide``. What it gives is what a step keeps of
    it: its own mask."""

    def __init__(self, wide: int) -> None:
        super().__init__()
        self.wide = wide

    def forward(self, x: Tensor) -> Tensor:
        rectified: Tensor = _Rectify.apply(x, self.wide)
        return rectified


class _Rectify(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, wide: int) -> Tensor:
        y = pad(x.relu().bfloat16(), (0, wide - x.shape[-1]))
        ctx.save_for_backward(y)
        ctx.width = x.shape[-1]
        return y

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor, None]:
        (y,) = ctx.saved_tensors
        dx = torch.ops.aten.threshold_backward(dy, y, 0)[..., : ctx.width]
        return dx.float(), None


def aligned(matrix: Tensor) -> Tensor:
    """The same values with rows that begin at multiples of 64 bytes, for wide loads, and zeros
    between them, which stay."""
    wide = matrix.new_zeros(*matrix.shape[:-1], _wide(matrix.shape[-1]))[..., : matrix.shape[-1]]
    return wide.copy_(matrix)


def _stacked(value: Tensor, axes: int) -> Tensor:
    """With the models in front, also where there is one."""
    return value if value.ndim == axes else value[None]


def _rows(length: Tensor) -> Tensor:
    """Lengths of rows, (…, outputs, 1), with the models in front: (models, outputs)."""
    return _stacked(length[..., 0], 2)


def _matrix(linear: Linear) -> tuple[str, Tensor]:
    """The large parameter of a layer, and its name there."""
    name = "direction" if linear.norm is Norm.WEIGHT else "matrix"
    return name, getattr(linear, name)


def _wide(width: int) -> int:
    return -(-width // 16) * 16
