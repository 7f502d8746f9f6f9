"""What single frames say of the code of their sequence, and how it adds up."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence

from torch import Tensor, nn
from torch.distributions import Normal

from topocaps.latents.paths import Paths
from topocaps.models.convolutional import decoding_layers, encoding_layers, silu
from topocaps.models.likelihoods import Likelihood
from topocaps.models.networks import FrameDecoder, GaussianEncoder, Linear, keep_size

LARGEST = 8.0  # magnitude of the log-precision of a frame


class ExpertEncoder(GaussianEncoder):
    """What one frame says of the code that it shows: a mean and a precision for every site.

    The network gives the mean and the log-precision, which is kept within -8 and 8.
    """

    def distribution(self, outputs: Tensor) -> Normal:
        mean, log_precision = outputs.chunk(2, -1)
        return Normal(
            mean.unflatten(-1, self.latent_shape),
            log_precision.clamp(-LARGEST, LARGEST).mul(-0.5).exp().unflatten(-1, self.latent_shape),
            validate_args=False,
        )


def perceptrons(
    frame_shape: tuple[int, ...],
    latent_shape: tuple[int, ...],
    hidden: Sequence[int],
    likelihood: Likelihood,
) -> tuple[ExpertEncoder, FrameDecoder]:
    """Return an encoder and a decoder with SiLU between their layers.

    Args:
        frame_shape: shape of one frame.
        latent_shape: shape of a code, (capsules, *shape).
        hidden: widths of the encoder's hidden layers; the decoder has them in reverse order.
        likelihood: what the decoder's outputs mean.
    """
    pixels, latents = math.prod(frame_shape), math.prod(latent_shape)
    encoder = _silu_mlp([pixels, *hidden, 2 * latents])
    decoder = _silu_mlp([latents, *reversed(hidden), pixels])
    for network in (encoder, decoder):
        keep_size(network)
    return (
        ExpertEncoder(encoder, len(frame_shape), latent_shape),
        FrameDecoder(decoder, frame_shape, len(latent_shape), likelihood),
    )


def convolutions(
    frame_shape: tuple[int, ...],
    latent_shape: tuple[int, ...],
    channels: tuple[int, ...],
    hidden: int | None,
    likelihood: Likelihood,
) -> tuple[ExpertEncoder, FrameDecoder]:
    """Return a convolutional encoder and its mirror image, with SiLU between their layers.

    Args:
        frame_shape: shape of one frame, (colours, height, width).
        latent_shape: shape of a code, (capsules, *shape).
        channels: channels of the encoder, one for each halving of the frame.
        hidden: width of a linear layer between convolutions and code, or None.
        likelihood: what the decoder's outputs mean.
    """
    latents = math.prod(latent_shape)
    encoder = encoding_layers(frame_shape, channels, hidden, 2 * latents, silu)
    decoder = decoding_layers(frame_shape, channels, hidden, latents, silu)
    return (
        ExpertEncoder(encoder, len(frame_shape), latent_shape),
        FrameDecoder(decoder, frame_shape, len(latent_shape), likelihood),
    )


def _silu_mlp(widths: Sequence[int]) -> nn.Sequential:
    layers: list[nn.Module] = []
    for inputs, outputs in itertools.pairwise(widths):
        layers += [Linear(inputs, outputs), nn.SiLU()]
    return nn.Sequential(*layers[:-1])


def rolled_back(expert: Normal, paths: Paths, shifts: Tensor) -> tuple[Tensor, Tensor]:
    """Return what frames say of the code of frame 0, if it is rolled by ``shifts`` in them.

    The result is their precisions, and the products of precisions and means. Both add up over
    frames.

    Args:
        expert: what the frames say of the codes that they show, (…, capsules, *shape).
        paths: the rolls.
        shifts: sites, (…, capsules, axes), which broadcasts with the first axes of ``expert``.
    """
    precision = paths.roll_precision(expert.variance.reciprocal(), -shifts)
    return precision, precision * paths.roll(expert.mean, -shifts)


def product_of_experts(precision: Tensor, weighted_mean: Tensor) -> Normal:
    """Return the product of N(0, 1) and of experts whose precisions (and so on) sum to these.

    >>> import torch
    >>> q = product_of_experts(torch.tensor([3.0]), torch.tensor([8.0]))
    >>> q.mean, q.stddev
    (tensor([2.]), tensor([0.5000]))
    """
    total = 1 + precision
    return Normal(weighted_mean / total, total.rsqrt(), validate_args=False)
