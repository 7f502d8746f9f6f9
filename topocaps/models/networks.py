"""Encoders and decoders that return distributions, and the paper's multilayer perceptrons."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable
from enum import StrEnum
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributions import Distribution, Independent, Normal
from torch.nn.functional import linear

from topocaps.errors import one_of, whole_number
from topocaps.latents.topography import Topography
from topocaps.models.likelihoods import Likelihood

#: Convolutions over one, two and three axes.
CONVOLUTIONS = (nn.Conv1d, nn.Conv2d, nn.Conv3d)


class Norm(StrEnum):
    """Normalisation of the rows of every weight matrix (A.8)."""

    NONE = "none"
    WEIGHT = "weight"  #: w = g v / |v|, by reparametrisation (Eq. 15)
    PROJECTED = "projected"  #: rows are scaled to length 1 after each step


class Fan(StrEnum):
    """Number that bounds the initial weights and biases of a layer: U(-1/√fan, 1/√fan)."""

    IN = "in"  #: the number of inputs (A.2)
    OUT = "out"  #: the number of outputs, as PyTorch initialises ``ConvTranspose2d``


@torch.no_grad()
def keep_size(network: nn.Module) -> None:
    """Draw the initial weights of hidden layers so that values keep their size from layer to layer.

    A weight is uniform with variance 2 / n, where n is the number of inputs of an output, as He et
    al. (2015) propose. PyTorch's default variance is a sixth of this: with it, a rolling VAE of
    letters with two or more hidden layers learns nothing in its first thousand steps. The last
    layer and the biases are not changed.
    """
    kinds = (Linear, *CONVOLUTIONS, nn.ConvTranspose2d)
    *hidden, _ = (layer for layer in network.modules() if isinstance(layer, kinds))
    for layer in hidden:
        if isinstance(layer, nn.ConvTranspose2d):
            inputs = layer.weight[:, 0].numel() / math.prod(layer.stride)
        else:
            inputs = layer.weight[0].numel()
        bound = math.sqrt(6 / inputs)
        layer.weight.uniform_(-bound, bound)


class Linear(nn.Module):
    """x Wᵀ + b, with initial weights and biases drawn from U(-1/√m, 1/√m).

    In a stack of models, every parameter has an axis for the models in front, and so has x.

    Args:
        inputs: number of inputs.
        outputs: number of outputs.
        norm: normalisation of the rows of W.
        fan: whether m is the number of inputs (A.2) or of outputs. The released code builds its
            decoder from ``ConvTranspose2d`` layers, so there m is the number of outputs.
    """

    def __init__(
        self, inputs: int, outputs: int, norm: Norm = Norm.NONE, fan: Fan = Fan.IN
    ) -> None:
        super().__init__()
        bound = 1 / math.sqrt(inputs if fan is Fan.IN else outputs)
        weight = torch.empty(outputs, inputs).uniform_(-bound, bound)
        self.norm = norm
        self.bias = nn.Parameter(torch.empty(outputs).uniform_(-bound, bound))
        if norm is Norm.WEIGHT:
            self.direction = nn.Parameter(weight)
            self.length = nn.Parameter(_lengths(weight))
        else:
            self.matrix = nn.Parameter(weight)
            self.project()

    @property
    def weight(self) -> Tensor:
        """W, (outputs, inputs); with ``Norm.WEIGHT`` computed from lengths and directions."""
        if self.norm is Norm.WEIGHT:
            return self.length * self.direction / _lengths(self.direction)
        return self.matrix

    def extra_repr(self) -> str:
        matrix = self.direction if self.norm is Norm.WEIGHT else self.matrix
        norm = "" if self.norm is Norm.NONE else f", norm={self.norm.value}"
        return f"{matrix.shape[-1]}, {matrix.shape[-2]}{norm}"

    @torch.no_grad()
    def project(self) -> None:
        """Scale rows to length 1 if ``norm`` is PROJECTED (projected gradient descent)."""
        if self.norm is Norm.PROJECTED:
            self.matrix.div_(_lengths(self.matrix))

    def forward(self, x: Tensor) -> Tensor:  # … inputs -> … outputs
        weight: Tensor = self.weight
        bias: Tensor = self.bias
        if weight.ndim == 2:
            return linear(x, weight, bias)
        if torch.is_autocast_enabled(x.device.type):
            dtype = torch.get_autocast_dtype(x.device.type)
            x, weight, bias = x.to(dtype), weight.to(dtype), bias.to(dtype)
        rows = x.flatten(1, -2)  # models rows inputs
        return _StackedLinear.apply(rows, weight, bias).unflatten(1, x.shape[1:-1])


class _StackedLinear(torch.autograd.Function):
    """x Wᵀ + b for every model of a stack.

    The weight gradient has the memory layout of the weights. That of autograd is transposed, and
    copying it takes a third of a step on a GPU.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        ctx.save_for_backward(x, weight)
        return torch.baddbmm(bias[:, None], x, weight.mT)

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor | None, Tensor, Tensor]:
        x, weight = ctx.saved_tensors
        dx = torch.bmm(dy, weight) if ctx.needs_input_grad[0] else None
        return dx, torch.bmm(dy.mT, x), dy.sum(1)


def _lengths(rows: Tensor) -> Tensor:
    return rows.norm(dim=-1, keepdim=True)


def mlp(
    widths: Iterable[int],
    norm: Norm = Norm.NONE,
    fan: Fan = Fan.IN,
    activation: type[nn.Module] = nn.ReLU,
) -> nn.Sequential:
    """Return linear layers with an activation between them.

    Args:
        widths: number of inputs, and the number of outputs of every layer.
        norm: as in `Linear`.
        fan: as in `Linear`.
        activation: class of the activation.
    """
    layers: list[nn.Module] = []
    for inputs, outputs in itertools.pairwise(widths):
        layers += [Linear(inputs, outputs, norm, fan), activation()]
    return nn.Sequential(*layers[:-1])


class GaussianEncoder(nn.Module):
    r"""A diagonal Gaussian per frame: :math:`q(z_l | x_l)` (Eq. 10), :math:`q(u_l | x_l)` (Eq. 11).

    The network returns means and log-variances, as in the released code. The paper states log
    standard deviations.

    Args:
        network: maps flattened frames to twice the number of latents.
        frame_axes: number of tensor axes of a frame.
        latent_shape: (capsules, *shape).
    """

    def __init__(self, network: nn.Module, frame_axes: int, latent_shape: tuple[int, ...]) -> None:
        super().__init__()
        self.network, self.frame_axes, self.latent_shape = network, frame_axes, latent_shape

    def forward(self, x: Tensor) -> Normal:  # … *frame -> … capsules *shape
        # under autocast the network may return a lower precision; distributions keep that of x
        return self.distribution(self.network(x.flatten(-self.frame_axes)).to(x.dtype))

    def distribution(self, outputs: Tensor) -> Normal:
        """Return the distribution that the outputs of the network parametrise."""
        mean, log_variance = outputs.chunk(2, -1)
        return Normal(
            mean.unflatten(-1, self.latent_shape),
            log_variance.mul(0.5).exp().unflatten(-1, self.latent_shape),
            validate_args=False,
        )


class FrameDecoder(nn.Module):
    r""":math:`p(x_l | t_l)`: a distribution over frames, independent over pixels.

    The network is applied to t - ``centre``. The bias of the first layer can undo the difference,
    so the family of functions is the same. But with mu = -30 every t is near 8, and a model that
    subtracts the mean trains several times faster.

    Args:
        network: maps flattened latents to the outputs of all values of a frame.
        frame_shape: shape of one frame.
        latent_axes: number of tensor axes of the latents of a frame, 1 + len(shape).
        likelihood: distribution of a value, given the output of the network.
        centre: number that is subtracted from t.
    """

    centre: Tensor

    def __init__(
        self,
        network: nn.Module,
        frame_shape: tuple[int, ...],
        latent_axes: int,
        likelihood: Likelihood = Likelihood.BERNOULLI,
        centre: float = 0.0,
    ) -> None:
        super().__init__()
        self.network, self.frame_shape, self.latent_axes = network, frame_shape, latent_axes
        self.likelihood = likelihood
        self.register_buffer("centre", torch.tensor(centre), persistent=False)

    def forward(self, t: Tensor) -> Distribution:  # … capsules *shape -> … *frame
        t = t.flatten(-self.latent_axes)
        t = t - lead(self.centre, t)
        outputs = self.network(t).to(t.dtype).unflatten(-1, self.frame_shape)
        pixels = self.likelihood.distribution(outputs)
        return Independent(pixels, len(self.frame_shape), validate_args=False)


def lead(value: Tensor, like: Tensor) -> Tensor:
    """Return a scalar, or one per model, with axes appended so that it broadcasts with ``like``."""
    return value.reshape(value.shape + (1,) * (like.ndim - value.ndim))


def paper_widths(frame_shape: tuple[int, ...], latents: int) -> tuple[int, int, int]:
    """Return the number of pixels and the paper's hidden widths: 3n and 2n for n latents.

    They are 2352, 972 and 648 on MNIST, and 4096, 675 and 450 on dSprites.
    """
    return math.prod(frame_shape), 3 * latents, 2 * latents


class Perceptrons:
    """Builder of encoders and decoders with the paper's multilayer perceptrons (A.3), of one size.

    The arguments are those of ``TopographicVAE.mlp``; ``activation`` is the class of the layers
    between linear ones.
    """

    def __init__(
        self,
        frame_shape: tuple[int, ...],
        topography: Topography,
        hidden: int | Iterable[int] | None = None,
        norm: Norm | str = Norm.NONE,
        likelihood: Likelihood | str = Likelihood.BERNOULLI,
        encoder_fan: Fan | str = Fan.IN,
        decoder_fan: Fan | str = Fan.IN,
        activation: type[nn.Module] = nn.ReLU,
    ) -> None:
        self.frame_shape, self.topography = tuple(frame_shape), topography
        self.pixels, *widths = paper_widths(self.frame_shape, topography.latents)
        if hidden is not None:
            widths = list(hidden) if isinstance(hidden, Iterable) else [hidden]
        self.widths = [whole_number("hidden", width) for width in widths]
        self.norm = one_of(Norm, "norm", norm)
        self.likelihood = Likelihood.of(likelihood)
        self.encoder_fan = one_of(Fan, "encoder_fan", encoder_fan)
        self.decoder_fan = one_of(Fan, "decoder_fan", decoder_fan)
        self.activation = activation

    def encoder(self, shape: tuple[int, ...] | None = None) -> GaussianEncoder:
        """Return a new encoder for capsules of this shape, by default that of the topography."""
        latent = (self.topography.capsules, *(shape or self.topography.shape))
        widths = [self.pixels, *self.widths, 2 * math.prod(latent)]
        network = mlp(widths, self.norm, self.encoder_fan, self.activation)
        return GaussianEncoder(network, len(self.frame_shape), latent)

    def decoder(self, centre: float = 0.0) -> FrameDecoder:
        """Return a new decoder, whose network is applied to t - ``centre``."""
        widths = [self.topography.latents, *reversed(self.widths), self.pixels]
        network = mlp(widths, self.norm, self.decoder_fan, self.activation)
        axes = 1 + len(self.topography.shape)
        return FrameDecoder(network, self.frame_shape, axes, self.likelihood, centre)

    def config(self) -> dict[str, Any]:
        """Return the settings that rebuild the networks.

        Settings that were added later are recorded only if they differ from their default.
        """
        fans = {"encoder_fan": self.encoder_fan, "decoder_fan": self.decoder_fan}
        return {
            "frame_shape": list(self.frame_shape),
            "topography": self.topography.settings(),
            "hidden": self.widths,
            "norm": self.norm.value,
            "likelihood": self.likelihood.value,
            **{name: fan.value for name, fan in fans.items() if fan is not Fan.IN},
        }
