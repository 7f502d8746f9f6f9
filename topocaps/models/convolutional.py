"""Convolutional networks beside the paper's multilayer perceptrons, for larger frames."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from typing import Any

from torch import Tensor, nn

from topocaps.errors import BadInput, whole_number
from topocaps.latents.topography import Topography
from topocaps.models.base import FAMILIES, settings_in
from topocaps.models.likelihoods import Likelihood
from topocaps.models.networks import FrameDecoder, GaussianEncoder, Linear, keep_size
from topocaps.models.topographic import VAE, TopographicVAE
from topocaps.models.visible import VisibleFrames

SMALLEST = 4  # pixels: frames are halved until the shorter side is no longer than that
RELU, SILU = "relu", "silu"  # activations: ReLU after a normalisation, or SiLU alone


#: Returns the layers that follow a layer with so many channels.
Between = Callable[[int], list[nn.Module]]


class ConvEncoder(GaussianEncoder):
    """A ``GaussianEncoder`` whose network halves the frame, once for each of ``channels``.

    ``hidden`` is the width of a linear layer before the last one.
    """

    def __init__(
        self,
        frame_shape: tuple[int, ...],
        latent_shape: tuple[int, ...],
        channels: tuple[int, ...] | None = None,
        hidden: int | None = None,
        activation: str = RELU,
    ) -> None:
        sizes, between = _sizes(frame_shape, channels), _BETWEEN[activation]
        layers: list[nn.Module] = [nn.Unflatten(1, sizes[0])]
        for (before, _, _), (after, _, _) in itertools.pairwise(sizes):
            layers += [nn.Conv2d(before, after, 4, 2, 1), *between(after)]
        layers.append(nn.Flatten())
        width = math.prod(sizes[-1])
        if hidden is not None:
            layers += [Linear(width, hidden), nn.SiLU()]
        layers.append(Linear(hidden or width, 2 * math.prod(latent_shape)))
        super().__init__(EachFrame(*layers), len(frame_shape), latent_shape)
        _initialise(self, activation)


class ConvDecoder(FrameDecoder):
    """A ``FrameDecoder`` whose network is a ``ConvEncoder``'s, backwards."""

    def __init__(
        self,
        frame_shape: tuple[int, ...],
        latent_shape: tuple[int, ...],
        channels: tuple[int, ...] | None = None,
        likelihood: Likelihood | str = Likelihood.BERNOULLI,
        centre: float = 0.0,
        hidden: int | None = None,
        activation: str = RELU,
    ) -> None:
        sizes, between = _sizes(frame_shape, channels)[::-1], _BETWEEN[activation]
        inputs = math.prod(latent_shape)
        layers: list[nn.Module] = []
        if hidden is not None:
            layers += [Linear(inputs, hidden), nn.SiLU()]
        layers += [Linear(hidden or inputs, math.prod(sizes[0])), nn.Unflatten(1, sizes[0])]
        for (before, _, _), (after, height, width) in itertools.pairwise(sizes):
            odd = height % 2, width % 2  # pixels that halving has left out
            doubled = nn.ConvTranspose2d(before, after, 4, 2, 1, output_padding=odd)
            layers += [*between(before), doubled]
        network = EachFrame(*layers, nn.Flatten())
        kind = Likelihood.of(likelihood)
        super().__init__(network, tuple(frame_shape), len(latent_shape), kind, centre)
        _initialise(self, activation)


class EachFrame(nn.Sequential):
    """Layers that know one leading axis, applied to (…, inputs): to (…, outputs)."""

    def forward(self, x: Tensor) -> Tensor:
        rows = super().forward(x.reshape(-1, x.shape[-1]))
        return rows.reshape(*x.shape[:-1], rows.shape[-1])


def _initialise(network: nn.Module, activation: str) -> None:
    """Draw hidden layers as He et al. do if no normalisation keeps the size of their values."""
    if activation == SILU:
        keep_size(network)


def halving_channels(
    frame_shape: tuple[int, ...], channels: tuple[int, ...] | None = None
) -> tuple[int, ...]:
    """Return the channels of an encoder, or by default 32 and then 64 until a side is 4 pixels.

    >>> halving_channels((1, 28, 28))
    (32, 64, 64)
    """
    return tuple(size[0] for size in _sizes(frame_shape, channels)[1:])


class Convolutions:
    """Makes convolutional encoders and decoders of one size, as `Perceptrons` makes others."""

    def __init__(
        self,
        frame_shape: tuple[int, ...],
        topography: Topography,
        channels: tuple[int, ...] | None = None,
        hidden: int | None = None,
        likelihood: Likelihood | str = Likelihood.BERNOULLI,
        activation: str = RELU,
    ) -> None:
        if activation not in _BETWEEN:
            raise BadInput(f"activation must be {' or '.join(_BETWEEN)}, not {activation!r}")
        self.frame_shape, self.topography = tuple(frame_shape), topography
        self.channels = halving_channels(frame_shape, channels)
        self.hidden = None if hidden is None else whole_number("hidden", hidden)
        self.likelihood, self.activation = Likelihood.of(likelihood), activation

    def encoder(self, shape: tuple[int, ...] | None = None) -> GaussianEncoder:
        latent = (self.topography.capsules, *(shape or self.topography.shape))
        return ConvEncoder(self.frame_shape, latent, self.channels, self.hidden, self.activation)

    def decoder(self, centre: float = 0.0) -> FrameDecoder:
        latent = (self.topography.capsules, *self.topography.shape)
        settings = self.channels, self.likelihood, centre, self.hidden, self.activation
        return ConvDecoder(self.frame_shape, latent, *settings)

    def config(self) -> dict[str, Any]:
        return {
            "networks": "convolutional",
            "frame_shape": list(self.frame_shape),
            "topography": self.topography.settings(),
            "channels": list(self.channels),
            "likelihood": self.likelihood.value,
            **({} if self.activation == RELU else {"activation": self.activation}),
            **({} if self.hidden is None else {"hidden": self.hidden}),
        }


def convolutional(
    frame_shape: tuple[int, ...],
    topography: Topography,
    kind: type[TopographicVAE] | type[VAE] = TopographicVAE,
    channels: tuple[int, ...] | None = None,
    likelihood: Likelihood | str = Likelihood.BERNOULLI,
    mu: float = -30.0,
    centred: bool = False,
    epsilon: float = 0.0,
    hidden: int | None = None,
    activation: str = RELU,
    visible: VisibleFrames | None = None,
) -> TopographicVAE | VAE:
    """A model of frames (colours, height, width) with convolutional networks.

    ``channels`` are an encoder's, one number for each halving of the frame; a decoder has them
    reversed. Unless given, 32 and then 64 of them until the shorter side is at most 4 pixels.
    ``mu``, ``centred``, ``epsilon`` and ``visible`` are as in ``TopographicVAE.mlp``; a VAE has
    none of them.
    ``hidden`` is the width of a linear layer between convolutions and latents. ``activation`` is
    "relu", which follows a normalisation, or "silu", without one, as in ``RollingVAE``. With "relu"
    all layers are initialised as PyTorch does it. With "silu" the weights of hidden layers are
    drawn as He et al. (2015) propose (``keep_size``).

    >>> model = convolutional((3, 16, 16), Topography(capsules=2, shape=(5,), window=3))
    >>> model.sample(2, frames=5).shape
    torch.Size([2, 5, 3, 16, 16])
    """
    networks = Convolutions(frame_shape, topography, channels, hidden, likelihood, activation)
    if issubclass(kind, TopographicVAE):
        return kind.of_networks(networks, mu, centred, epsilon=epsilon, visible=visible)
    if centred:
        raise BadInput("only a TopographicVAE can be centred: t of a VAE has mean 0")
    if epsilon:
        raise BadInput("a VAE has no energies to add epsilon to")
    if visible is not None:
        raise BadInput("a VAE decodes each frame from that frame alone: it cannot predict others")
    return kind.of_networks(networks)


def from_config(config: dict[str, Any]) -> TopographicVAE | VAE:
    """A fresh model from the settings that ``convolutional`` recorded."""
    settings = {name: v for name, v in settings_in(config).items() if name != "networks"}
    kinds: dict[str, type[TopographicVAE] | type[VAE]]
    kinds = {"TopographicVAE": TopographicVAE, "VAE": VAE}
    return convolutional(**settings | {"kind": kinds[config["kind"]]})


FAMILIES["convolutional"] = from_config


def _sizes(
    frame_shape: tuple[int, ...], channels: tuple[int, ...] | None
) -> list[tuple[int, int, int]]:
    """(channels, height, width) of the frame and of what follows it, each half as large."""
    if len(frame_shape) != 3:
        raise BadInput(
            f"convolutions are of frames (colours, height, width), not {tuple(frame_shape)}"
        )
    colours, height, width = (whole_number("a side of a frame", side) for side in frame_shape)
    if channels is None:
        halvings = max(1, math.ceil(math.log2(min(height, width) / (SMALLEST + 0.99))))
        channels = (32, *[64] * (halvings - 1))
    if not channels or min(height, width) < 2 ** len(channels):
        raise BadInput(
            f"frames of {height} by {width} pixels cannot be halved {len(channels)} times, as "
            f"channels {tuple(channels)} ask for"
        )
    sizes = [(colours, height, width)]
    for count in channels:
        height, width = height // 2, width // 2
        sizes.append((whole_number("channels", count), height, width))
    return sizes


def _normalised(channels: int) -> list[nn.Module]:
    """All channels of a frame are normalised together, and those of no two frames."""
    return [nn.GroupNorm(1, channels), nn.ReLU()]


def _silu(channels: int) -> list[nn.Module]:
    return [nn.SiLU()]


_BETWEEN: dict[str, Between] = {RELU: _normalised, SILU: _silu}
