"""The paper's networks: multilayer perceptrons that return distributions."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable
from enum import StrEnum

import torch
from torch import Tensor, nn
from torch.distributions import Bernoulli, Distribution, Independent, Normal
from torch.nn.utils.parametrizations import weight_norm


class Norm(StrEnum):
    """What is done to the rows of every weight matrix (A.8)."""

    NONE = "none"
    WEIGHT = "weight"  #: w = g v / |v|, by reparametrisation (Eq. 15)
    PROJECTED = "projected"  #: rows brought back to length 1 after each step


class Likelihood(StrEnum):
    """What a decoder's outputs mean."""

    BERNOULLI = "bernoulli"  #: logits of values in [0, 1]
    GAUSSIAN = "gaussian"  #: means of values of unit variance


def mlp(widths: Iterable[int], norm: Norm = Norm.NONE) -> nn.Sequential:
    """Linear layers with ReLU between them.

    PyTorch's own initialisation is the paper's, U(-1/√m, 1/√m) with m the inputs (A.2).
    """
    widths = list(widths)
    layers: list[nn.Module] = []
    for inputs, outputs in itertools.pairwise(widths):
        layer = nn.Linear(inputs, outputs)
        layers += [weight_norm(layer) if norm is Norm.WEIGHT else layer, nn.ReLU()]
    network = nn.Sequential(*layers[:-1])
    if norm is Norm.PROJECTED:
        project_rows(network)
    return network


@torch.no_grad()
def project_rows(module: nn.Module) -> None:
    """Bring the rows of every linear layer's weights to length 1 (projected gradient descent)."""
    for layer in module.modules():
        if isinstance(layer, nn.Linear):
            layer.weight.div_(layer.weight.norm(dim=1, keepdim=True))


class GaussianEncoder(nn.Module):
    r"""A diagonal Gaussian a frame: :math:`q(z_l | x_l)` (Eq. 10), :math:`q(u_l | x_l)` (Eq. 11).

    The network gives mean and log-variance (the paper says log standard deviation; its code does
    this).
    """

    def __init__(self, network: nn.Module, latent_shape: tuple[int, ...]) -> None:
        super().__init__()
        self.network, self.latent_shape = network, latent_shape

    def forward(self, x: Tensor) -> Normal:  # batch time *frame -> batch time capsules *shape
        mean, log_variance = self.network(x.flatten(2)).chunk(2, -1)
        return Normal(
            mean.unflatten(-1, self.latent_shape),
            log_variance.mul(0.5).exp().unflatten(-1, self.latent_shape),
            validate_args=False,
        )


class FrameDecoder(nn.Module):
    r""":math:`p(x_l | t_l)`: a distribution over frames, independent over pixels.

    The network sees t less ``centre``. A first layer with a bias can undo that, so the family of
    functions is the same; but with mu = -30 every t is near 8, and about its mean it trains
    several times faster.
    """

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
        self.likelihood, self.centre = likelihood, centre

    def forward(self, t: Tensor) -> Distribution:  # … capsules *shape -> … *frame
        t = t.flatten(-self.latent_axes) - self.centre
        outputs = self.network(t).unflatten(-1, self.frame_shape)
        pixels = (
            Bernoulli(logits=outputs, validate_args=False)
            if self.likelihood is Likelihood.BERNOULLI
            else Normal(outputs, torch.ones_like(outputs), validate_args=False)
        )
        return Independent(pixels, len(self.frame_shape), validate_args=False)


def paper_widths(frame_shape: tuple[int, ...], latents: int) -> tuple[int, int, int]:
    """Pixels, 3n and 2n for n latents: 2352, 972, 648 on MNIST and 4096, 675, 450 on dSprites."""
    return math.prod(frame_shape), 3 * latents, 2 * latents
