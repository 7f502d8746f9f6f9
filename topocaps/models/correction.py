"""A network that corrects the posterior of a code where frames disagree about it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributions import Normal

from topocaps.errors import BadInput, whole_number
from topocaps.models.networks import CONVOLUTIONS, keep_size

WIDEST = 17, 5, 5  # most sites that a kernel covers along each of one, two or three axes
LARGEST = 8.0  # largest magnitude of the correction of a log-precision
SMOOTHING = 1e-3  # added to the variance of experts, so that its square root has a gradient


class PosteriorCorrection(nn.Module):
    """Corrects a product of experts by how much the experts disagree.

    Several codes may explain a single frame: it does not show which factor moves. The product of
    experts adds the precisions of the frames, whether their means agree or not. This network reads
    the product and the variance of the means at every site, and corrects mean and precision. It
    starts as the identity.

    Its layers are convolutions over sites, with capsules as channels. On rings they wrap around, so
    the correction of a code that is rolled by whole sites is the rolled correction. Groups of
    capsules that do not always move together have separate networks.

    Args:
        shape: sites of a capsule along each axis.
        groups: indices of the capsules of each group.
        channels: number of channels of the hidden layers.
        cyclic: whether capsules are rings. Otherwise convolutions read zeros beyond the ends.
    """

    by_group: Tensor  #: indices of all capsules, sorted by group
    by_capsule: Tensor  #: the inverse of ``by_group``

    def __init__(
        self, shape: tuple[int, ...], groups: Sequence[Tensor], channels: int, cyclic: bool = True
    ) -> None:
        super().__init__()
        if len(shape) > len(CONVOLUTIONS):
            raise BadInput(
                f"correction needs capsules of at most {len(CONVOLUTIONS)} axes, not {len(shape)}"
            )
        self.axes = len(shape)
        self.sizes = [len(group) for group in groups]
        sorted_by_group = torch.cat([*groups])
        self.register_buffer("by_group", sorted_by_group, persistent=False)
        self.register_buffer("by_capsule", sorted_by_group.argsort(), persistent=False)
        self.networks = nn.ModuleList(
            _network(size, whole_number("correction", channels), shape, cyclic)
            for size in self.sizes
        )

    def forward(self, product: Normal, weighted_square: Tensor) -> Normal:
        """Return the corrected distribution of codes, (…, capsules, *shape).

        Args:
            product: the product of the experts and the prior, (…, capsules, *shape).
            weighted_square: sum over the experts of their precision times their squared mean.
        """
        mean, precision = product.mean, product.variance.reciprocal()
        variance = (weighted_square / precision - mean.square()).clamp_min(0)
        features = mean, precision.log(), (variance + SMOOTHING).sqrt()
        changes = self._changes([self._sorted(one, self.by_group) for one in features])
        mean_change, log_change = (self._sorted(one, self.by_capsule) for one in changes)
        factor = log_change.clamp(-LARGEST, LARGEST).mul(-0.5).exp()
        return Normal(mean + mean_change, product.stddev * factor, validate_args=False)

    def _sorted(self, values: Tensor, order: Tensor) -> Tensor:
        return values if len(self.sizes) == 1 else values.index_select(-1 - self.axes, order)

    def _changes(self, features: Sequence[Tensor]) -> list[Tensor]:
        """Return the changes of means and of log-precisions, with capsules sorted by group."""
        capsules = -1 - self.axes
        parts = zip(*(one.split(self.sizes, capsules) for one in features), strict=True)
        outputs = []
        for network, part in zip(self.networks, parts, strict=True):
            channels = torch.cat(part, capsules)
            output = network(channels.flatten(0, capsules - 1)).to(channels.dtype)
            outputs.append(output.reshape(*channels.shape[:capsules], *output.shape[capsules:]))
        halves = (one.chunk(2, capsules) for one in outputs)
        return [torch.cat(one, capsules) for one in zip(*halves, strict=True)]


def _network(capsules: int, channels: int, shape: tuple[int, ...], cyclic: bool) -> nn.Sequential:
    """Return a network from three features of each capsule to two changes, all 0 at first."""
    kind = CONVOLUTIONS[len(shape) - 1]
    widest = WIDEST[len(shape) - 1]
    kernel: Any = tuple((min(sites, widest) - 1) // 2 * 2 + 1 for sites in shape)  # odd
    around: dict[str, Any] = {"padding": "same", "padding_mode": "circular" if cyclic else "zeros"}
    last = kind(channels, 2 * capsules, kernel, **around)
    network = nn.Sequential(
        kind(3 * capsules, channels, kernel, **around), nn.SiLU(),
        kind(channels, channels, 1), nn.SiLU(),
        last,
    )  # fmt: skip
    keep_size(network)
    for parameter in last.parameters():
        nn.init.zeros_(parameter)
    return network
