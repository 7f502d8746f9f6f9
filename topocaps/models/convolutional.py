"""Convolutional encoders and decoders, for larger frames (not in the papers)."""

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

SMALLEST = 4  # pixels: frames are halved until the shorter side is at most this long
RELU, SILU = "relu", "silu"  # activations: ReLU after a normalisation, or SiLU alone


#: Function from the number of channels of a layer to the layers that follow it.
Between = Callable[[int], list[nn.Module]]


class ConvEncoder(GaussianEncoder):
    """A `GaussianEncoder` whose convolutions halve the frame, once for each of ``channels``.

    The arguments are those of `convolutional`; ``latent_shape`` is (capsules, *shape).
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
    """A `FrameDecoder` with the layers of a `ConvEncoder` in reverse order."""

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
            odd = height % 2, width % 2  # the pixels that halving drops
            doubled = nn.ConvTranspose2d(before, after, 4, 2, 1, output_padding=odd)
            layers += [*between(before), doubled]
        network = EachFrame(*layers, nn.Flatten())
        kind = Likelihood.of(likelihood)
        super().__init__(network, tuple(frame_shape), len(latent_shape), kind, centre)
        _initialise(self, activation)


class EachFrame(nn.Sequential):
    """Layers that take one leading axis, applied to any number of them: (…, inputs)."""

    def forward(self, x: Tensor) -> Tensor:
        rows = super().forward(x.reshape(-1, x.shape[-1]))
        return rows.reshape(*x.shape[:-1], rows.shape[-1])


def _initialise(network: nn.Module, activation: str) -> None:
    """Initialise hidden layers as He et al. (2015) do, if no normalisation follows them."""
    if activation == SILU:
        keep_size(network)


def halving_channels(
    frame_shape: tuple[int, ...], channels: tuple[int, ...] | None = None
) -> tuple[int, ...]:
    """Return the numbers of channels of an encoder, one for each halving of the frame.

    By default they are 32 and then 64, until the shorter side has at most 4 pixels.

    >>> halving_channels((1, 28, 28))
    (32, 64, 64)
    """
    return tuple(size[0] for size in _sizes(frame_shape, channels)[1:])


class Convolutions:
    """Builder of convolutional encoders and decoders of one size.

    The arguments are those of `convolutional`.
    """

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
        """Return a new encoder for capsules of this shape, by default that of the topography."""
        latent = (self.topography.capsules, *(shape or self.topography.shape))
        return ConvEncoder(self.frame_shape, latent, self.channels, self.hidden, self.activation)

    def decoder(self, centre: float = 0.0) -> FrameDecoder:
        """Return a new decoder, whose network is applied to t - ``centre``."""
        latent = (self.topography.capsules, *self.topography.shape)
        settings = self.channels, self.likelihood, centre, self.hidden, self.activation
        return ConvDecoder(self.frame_shape, latent, *settings)

    def config(self) -> dict[str, Any]:
        """Return the settings that rebuild the networks.

        Settings that were added later are recorded only if they differ from their default.
        """
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
    """Build a `TopographicVAE` or a `VAE` with convolutional networks.

    A VAE has no ``centred``, ``epsilon`` and ``visible``, and ignores ``mu``.

    Args:
        frame_shape: shape of one frame, (colours, height, width).
        topography: W of Eq. 5.
        kind: class of the model.
        channels: numbers of channels of an encoder, one for each halving of the frame. The decoder
            has them in reverse order. By default they are 32 and then 64, until the shorter side
            has at most 4 pixels.
        likelihood, mu, centred, epsilon, visible: as in ``TopographicVAE.mlp``.
        hidden: width of a linear layer between convolutions and latents; none by default.
        activation: "relu", after a normalisation, with PyTorch's initial weights; or "silu",
            without a normalisation, with the initial weights of He et al. (2015) in hidden layers
            (``keep_size``), as in `RollingVAE`.

    >>> model = convolutional((3, 16, 16), Topography(capsules=2, shape=(5,), window=3))
    >>> model.sample(2, frames=5).shape
    torch.Size([2, 5, 3, 16, 16])
    """
    networks = Convolutions(frame_shape, topography, channels, hidden, likelihood, activation)
    if issubclass(kind, TopographicVAE):
        return kind.of_networks(networks, mu, centred, epsilon=epsilon, visible=visible)
    if centred:
        raise BadInput("centred=True needs a TopographicVAE: t of a VAE has mean 0")
    if epsilon:
        raise BadInput(f"epsilon={epsilon} needs a TopographicVAE: a VAE has no energies")
    if visible is not None:
        raise BadInput(
            "visible needs a TopographicVAE: a VAE decodes a frame from that frame alone, so it "
            "cannot predict others"
        )
    return kind.of_networks(networks)


def from_config(config: dict[str, Any]) -> TopographicVAE | VAE:
    """Return a new model with the settings that `convolutional` recorded."""
    settings = {name: v for name, v in settings_in(config).items() if name != "networks"}
    kinds: dict[str, type[TopographicVAE] | type[VAE]]
    kinds = {"TopographicVAE": TopographicVAE, "VAE": VAE}
    return convolutional(**settings | {"kind": kinds[config["kind"]]})


FAMILIES["convolutional"] = from_config


def _sizes(
    frame_shape: tuple[int, ...], channels: tuple[int, ...] | None
) -> list[tuple[int, int, int]]:
    """Return (channels, height, width) of the frame and after every halving."""
    if len(frame_shape) != 3:
        raise BadInput(
            "convolutional networks need a frame shape (colours, height, width), not "
            f"{tuple(frame_shape)}"
        )
    colours, height, width = (whole_number("a side of a frame", side) for side in frame_shape)
    if channels is None:
        halvings = max(1, math.ceil(math.log2(min(height, width) / (SMALLEST + 0.99))))
        channels = (32, *[64] * (halvings - 1))
    if not channels or min(height, width) < 2 ** len(channels):
        most = min(height, width).bit_length() - 1
        raise BadInput(
            f"channels must be one number for each halving, and frames of {height} by {width} "
            f"pixels can be halved 1 to {most} times, not {len(channels)}"
        )
    sizes = [(colours, height, width)]
    for count in channels:
        height, width = height // 2, width // 2
        sizes.append((whole_number("channels", count), height, width))
    return sizes


def _normalised(channels: int) -> list[nn.Module]:
    """Return a normalisation over all channels of each frame, and a ReLU."""
    return [nn.GroupNorm(1, channels), nn.ReLU()]


def _silu(channels: int) -> list[nn.Module]:
    return [nn.SiLU()]


_BETWEEN: dict[str, Between] = {RELU: _normalised, SILU: _silu}
