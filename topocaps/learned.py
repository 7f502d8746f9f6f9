"""Topographies that are learned: the weights of W, or how fast each capsule moves."""

from __future__ import annotations

from dataclasses import replace
from enum import StrEnum
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import softplus

from topocaps.arithmetic import seeded
from topocaps.errors import BadInput
from topocaps.pooling import exact_product
from topocaps.topography import Topography

NOTHING = -12.0  # of what softplus makes a weight: 6e-6, from which it can still grow
A_TRIFLE = -8.0  # 3e-4 of every u²: with one square alone, t is too heavy-tailed to learn from
SHARP = 10.0  # times the parameter: a weight grows from nothing within a few hundred steps of Adam
#: what is not learned, and is as where it starts
_AS_AT_THE_START = (
    "capsules", "shape", "u_shape", "axes", "reach", "window", "cyclic", "causal", "corners",
    "latents", "beyond", "check", "frames_of", "roll", "is_small", "degrees_of_freedom",
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
    starts from (``start``), and takes its place in a model. A weight is a softplus, so none is
    below 0; those that are 0 in ``start`` begin at 6e-6, as what is exactly 0 would stay there, and
    beside the identity at 3e-4.
    """

    time: Tensor
    near: Tensor

    def __init__(self, start: Topography, learned: Learned | str) -> None:
        super().__init__()
        if len(start.shape) > 1 or start.shape[0] < 2 or not start.cyclic:
            raise BadInput("only cyclic capsules of one axis have a W to learn")
        self.start, self.learned = start, Learned(learned)
        if self.learned is Learned.VELOCITY and not start.corners:
            raise BadInput("a band whose corners are cut has velocity 1, and none to learn")
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
    def rate(self) -> float | Tensor:
        """Sites a frame that capsules move: of each its own, where these are learned."""
        return self.velocities.detach() if self.learned is Learned.VELOCITY else self.start.velocity

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
        frames = self.start.frames_of(energy)
        w = self._matrices(frames)  # capsules (time site) (time site)
        if energy.dtype != w.dtype:
            raise BadInput(f"energies are {energy.dtype}, the weights that pool them {w.dtype}")
        each = energy.movedim(-2, 0)  # capsules … time site
        pooled = exact_product(each.reshape(len(w), -1, w.shape[-1]), w.mT)
        return pooled.reshape(each.shape).movedim(0, -2)

    def matrix(self, frames: int, axis: int | None = None) -> Tensor:
        """The same W, dense, over (time, capsule, site)."""
        self.start.check(frames)
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
        site, time = (torch.arange(n, device=kernel.device) for n in (sites, frames))
        seen = self.start.frame_at(time[:, None] + self.time, frames)  # frames window
        counts = (seen[:, None] == time[:, None]).to(kernel.dtype)  # frames frames window
        over = exact_product(counts.flatten(0, 1), kernel).unflatten(1, (frames, frames))
        further = (site - site[:, None]) % sites
        return over[..., further].transpose(2, 3).flatten(3).flatten(1, 2)

    def _raw(self) -> Tensor:
        start = self.start
        if self.learned is Learned.FROM_IDENTITY:
            kernel = torch.zeros(start.window, start.shape[0])
            kernel[list(start.time_offsets).index(0), 0] = 1
        else:
            here = start.window - 1 if start.causal else 0  # a frame whose whole window is there
            w = replace(start, capsules=1).matrix(start.window)
            row = w[here * start.shape[0]].reshape(start.window, start.shape[0])
            kernel = row[[(here + d) % start.window for d in start.time_offsets]]
        none = A_TRIFLE if self.learned is Learned.FROM_IDENTITY else NOTHING
        raw = torch.where(kernel > 0, _inverse_softplus(kernel.clamp_min(1e-3)), none)
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
