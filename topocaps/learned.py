"""Topographies that are learned: the weights of W, or how fast each capsule moves."""

from __future__ import annotations

from enum import StrEnum
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import softplus

from topocaps.arithmetic import seeded
from topocaps.errors import BadInput
from topocaps.pooling import exact_product
from topocaps.topography import Topography

NOTHING = -8.0  # of what softplus makes a weight: 0.0003, from which it can still grow
SHARP = 10.0  # times the parameter: a weight grows from nothing within a few hundred steps of Adam
#: what is not learned, and is as where it starts
_AS_AT_THE_START = (
    "capsules", "shape", "u_shape", "axes", "reach", "window", "cyclic", "causal", "corners",
    "latents", "beyond", "check", "roll", "is_small", "degrees_of_freedom",
)  # fmt: skip


class Learned(StrEnum):
    """What of a topography is learned with the model."""

    NOTHING = "nothing"
    WEIGHTS = "weights"  #: W, from the one that is given
    FROM_IDENTITY = "from-identity"  #: W over the same window, from sharing nothing
    VELOCITY = "velocity"  #: sites a frame, of every capsule, from the one that is given


class LearnedTopography(nn.Module):
    """A topography whose kernel is a parameter, of every capsule its own.

    The kernel (capsules, window, sites) says how much of u² at time δ and site o from here counts:
    W is the same everywhere, in time and along the capsule. In all else it is the topography it
    starts from (``start``), and takes its place in a model.
    """

    time: Tensor
    near: Tensor

    def __init__(self, start: Topography, learned: Learned | str) -> None:
        super().__init__()
        plain = start.cyclic and not start.causal and start.corners
        if len(start.shape) > 1 or start.shape[0] < 2 or not plain:
            raise BadInput(
                "only cyclic capsules of one axis with a centred window have a W to learn"
            )
        self.start, self.learned = start, Learned(learned)
        # on the device with the parameters: nothing is copied there while a graph is captured
        for name, offsets in (("time", start.time_offsets), ("near", start.reach_offsets(0))):
            self.register_buffer(name, torch.tensor(list(offsets)), persistent=False)
        if self.learned is Learned.VELOCITY:
            self.velocities = nn.Parameter(torch.full((start.capsules,), start.velocity))
        else:
            self.raw = nn.Parameter(self._raw())

    def __getattr__(self, name: str) -> Any:
        try:
            return super().__getattr__(name)
        except AttributeError:
            if name not in _AS_AT_THE_START:
                raise
            return getattr(self.start, name)

    @property
    def velocity(self) -> float:
        """Sites a frame: the mean of capsules', where these are learned; else as at the start."""
        if self.learned is Learned.VELOCITY:
            return self.velocities.mean().item()
        return self.start.velocity

    @property
    def kernel(self) -> Tensor:
        """The weights, none below 0: (capsules, window, sites)."""
        if self.learned is not Learned.VELOCITY:
            return softplus(SHARP * self.raw)
        place = self.velocities[:, None, None, None] * self.time[:, None, None]
        sites = self.start.shape[0]
        offset = torch.arange(sites, device=place.device)[:, None] - place - self.near
        apart = (offset + sites / 2).remainder(sites) - sites / 2  # the short way round
        return (1 - apart.abs()).clamp_min(0).sum(-1)

    def pool(self, energy: Tensor, axis: int | None = None) -> Tensor:
        """W applied to u²: (batch, time, capsules, sites) to the same shape."""
        frames = energy.shape[-3]
        self.start.check(frames)
        w = self._matrices(frames)  # capsules (time site) (time site)
        rows = energy.transpose(-3, -2).flatten(-2)  # … capsules (time site)
        pooled = exact_product(rows[..., None, :], w.mT)[..., 0, :]
        return pooled.unflatten(-1, (frames, -1)).transpose(-3, -2)

    def matrix(self, frames: int, axis: int | None = None) -> Tensor:
        """The same W, dense, over (time, capsule, site)."""
        parts = self._matrices(frames).unflatten(-1, (frames, -1)).unflatten(1, (frames, -1))
        every = torch.eye(len(parts), dtype=parts.dtype, device=parts.device)
        whole = torch.einsum("ctsuv,cd->tcsudv", parts, every)
        return whole.flatten(3).flatten(0, 2)

    @torch.no_grad()
    def typical(self, mu: float, draws: int = 256) -> float:
        """The median of t under the prior, from draws that are always the same."""
        with seeded(0):
            shape = (draws, self.start.window, self.start.capsules, *self.start.shape)
            z, u = torch.randn(2, *shape)
        return ((z - mu) * self.pool(u.square()).clamp_min(1e-12).rsqrt()).median().item()

    def _matrices(self, frames: int) -> Tensor:
        """Every capsule's W, from its kernel."""
        kernel, sites = self.kernel, self.start.shape[0]
        place = torch.arange(frames * sites, device=kernel.device)
        time, site = place // sites, place % sites
        later = (time - time[:, None]) % frames  # from row to column
        further = (site - site[:, None]) % sites
        full = kernel.new_zeros(len(kernel), frames, sites)
        full = full.index_copy(1, self.time % frames, kernel)
        return full[:, later, further]

    def _raw(self) -> Tensor:
        start = self.start
        if self.learned is Learned.FROM_IDENTITY:
            kernel = torch.zeros(start.window, start.shape[0])
            kernel[list(start.time_offsets).index(0), 0] = 1
        else:
            one = Topography(1, start.shape, start.reach, start.window, start.velocity)
            row = one.matrix(start.window)[0].reshape(start.window, start.shape[0])  # of frame 0
            kernel = row[[d % start.window for d in start.time_offsets]]
        raw = torch.where(kernel > 0, _inverse_softplus(kernel.clamp_min(1e-3)), NOTHING)
        return (raw / SHARP).expand(start.capsules, -1, -1).clone()


def _inverse_softplus(value: Tensor) -> Tensor:
    return value + torch.log(-torch.expm1(-value))


def learn(topography: Topography, learned: Learned | str) -> Topography | LearnedTopography:
    """The topography, or one that starts from it."""
    try:
        learned = Learned(learned)
    except ValueError:
        known = ", ".join(Learned)
        raise BadInput(f"learned must be one of {known}, not {learned!r}") from None
    return topography if learned is Learned.NOTHING else LearnedTopography(topography, learned)
