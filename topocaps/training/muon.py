"""Orthogonalised momentum for the weights of layers: Muon (Jordan et al., 2024)."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

import torch
from torch import Tensor, nn

from topocaps.models.networks import CONVOLUTIONS, Linear

ITERATIONS = 5
COEFFICIENTS = 3.4445, -4.7750, 2.0315  # of the quintic iteration, by Jordan et al.
RMS = 0.2  # of an update at a learning rate of 1, by Liu et al. (2025): about that of Adam

#: The axis of a layer's outputs in its weight.
_OUTPUT_AXIS: dict[type[nn.Module], int] = {
    Linear: 0, nn.Linear: 0, **dict.fromkeys(CONVOLUTIONS, 0), nn.ConvTranspose2d: 1,
}  # fmt: skip


@dataclass(frozen=True, eq=False)
class LayerWeights:
    """The weights of linear layers and convolutions, which are matrices: outputs by inputs.

    The inputs of a convolution are those of one output pixel.
    """

    output_axis: Mapping[nn.Parameter, int]  #: axis of the outputs in each weight
    stacked: bool  #: whether weights have an axis for the members of a stack in front
    product_type: torch.dtype  #: type of the numbers in products of matrices

    @classmethod
    def of(cls, model: nn.Module, stacked: bool, product_type: torch.dtype) -> Self:
        """Find the weights in a model.

        Weights that are normalised (Eq. 15), and those of convolutions with groups, are left out:
        they are no single matrix.
        """
        axes = {
            parameter: axis
            for layer in model.modules()
            for kind, axis in _OUTPUT_AXIS.items()
            if isinstance(layer, kind) and getattr(layer, "groups", 1) == 1
            for name, parameter in layer.named_parameters(recurse=False)
            if name in ("weight", "matrix")
        }
        return cls(axes, stacked, product_type)

    def orthogonalise(self, weight: nn.Parameter, values: Tensor) -> Tensor:
        """Return values of the shape of a weight as matrices of root mean square `RMS`.

        Their singular values are almost equal.
        """
        first = int(self.stacked)
        outputs = first + self.output_axis[weight]
        moved = values.movedim(outputs, first)
        matrices = orthogonalise(moved.flatten(first + 1).to(self.product_type))
        scale = RMS * math.sqrt(max(matrices.shape[-2:]))
        return scale * matrices.reshape(moved.shape).movedim(first, outputs)


def orthogonalise(matrices: Tensor) -> Tensor:
    """Return matrices (…, rows, columns) whose singular values are close to 1.

    The singular vectors stay the same. Five Newton-Schulz iterations map singular values to values
    between 0.6 and 1.3, except those that are far smaller than the largest one of their matrix.

    >>> matrix = torch.tensor([[4.0, 0.0, 0.0], [0.0, 0.1, 0.0]])
    >>> [round(value, 1) for value in torch.linalg.svdvals(orthogonalise(matrix)).tolist()]
    [0.9, 0.7]
    """
    a, b, c = COEFFICIENTS
    is_tall = matrices.shape[-2] > matrices.shape[-1]
    x = matrices.mT if is_tall else matrices
    x = x / x.norm(dim=(-2, -1), keepdim=True).clamp_min(1e-7)
    for _ in range(ITERATIONS):
        gram = x @ x.mT
        x = a * x + (b * gram + c * gram @ gram) @ x
    return x.mT if is_tall else x


class MuonOptimizer(torch.optim.Adam):
    """Updates weights of layers by orthogonalised momentum, and other parameters by Adam.

    PyTorch's own Muon takes matrices alone. This one also takes convolutions and stacks, and a CUDA
    graph can capture its step.

    Args:
        groups: groups of parameters, each with its learning rate ``lr``.
        weights: weights of layers among the parameters.
        momentum: decay of their momentum.
        adam: arguments of ``torch.optim.Adam``.
    """

    def __init__(
        self, groups: list[dict[str, Any]], weights: LayerWeights, momentum: float, **adam: Any
    ) -> None:
        super().__init__(groups, **adam)
        self.weights, self.momentum = weights, momentum

    def __getstate__(self) -> dict[str, Any]:
        return {**super().__getstate__(), "weights": self.weights, "momentum": self.momentum}

    def __setstate__(self, state: dict[str, Any]) -> None:
        torch.optim.Optimizer.__setstate__(self, state)  # Adam's expects moments of all parameters

    @torch.no_grad()
    def step(self, closure: Any = None) -> Any:
        """Update all parameters. The gradients of weights are dropped, so that Adam skips them."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group in self.param_groups:
            for weight in group["params"]:
                if weight in self.weights.output_axis and weight.grad is not None:
                    ahead = self._accelerated(weight, weight.grad)
                    weight.sub_(self.weights.orthogonalise(weight, ahead) * group["lr"])
                    weight.grad = None
        super().step()
        return loss

    def _accelerated(self, weight: Tensor, gradient: Tensor) -> Tensor:
        """Return Nesterov's momentum after this gradient."""
        state = self.state[weight]
        if "momentum_buffer" not in state:
            state["momentum_buffer"] = torch.zeros_like(weight)
        momentum = state["momentum_buffer"].lerp_(gradient, 1 - self.momentum)
        return gradient.lerp(momentum, self.momentum)
