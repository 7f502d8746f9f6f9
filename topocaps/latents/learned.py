"""Topographies that are learned: the weights of W, or how fast each capsule moves."""

from __future__ import annotations

import math
from collections.abc import Sequence
from enum import StrEnum
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import pad, softplus

from topocaps.arithmetic import seeded
from topocaps.errors import BadInput, one_of
from topocaps.latents.interface import DerivedTopography
from topocaps.latents.pooling import exact_product
from topocaps.latents.student_t import studentize
from topocaps.latents.topography import Topography

ZERO_LOGIT = -12.0  # of what softplus makes a weight: 6e-6, from which it can still grow
SMALL_LOGIT = -8.0  # 3e-4 of every u²: with one square alone, t is too heavy-tailed to learn from
SHARP = 10.0  # times the parameter: a weight grows from nothing within a few hundred steps of Adam


class Learned(StrEnum):
    """What of a topography is learned with the model."""

    NOTHING = "nothing"
    WEIGHTS = "weights"  #: W, from the one that is given
    FROM_IDENTITY = "from-identity"  #: W over the same window, from sharing nothing
    VELOCITY = "velocity"  #: sites a frame, of every capsule, from the one that is given


class LearnedTopography(DerivedTopography, nn.Module):
    """A topography whose kernel is a parameter, of every capsule its own.

    The kernel (capsules, window, offsets) says how much of u² at time δ and so many sites from here
    counts: W is the same everywhere, in time and along the capsule. Offsets are all sites of cyclic
    capsules; of open ones, those that U has room for. Capsules that move along several axes have a
    kernel along each. In all else it is the topography it starts from (``start``), and takes its
    place in a model. A weight is a softplus, so none is below 0; those that are 0 in ``start``
    begin at 6e-6, as what is exactly 0 would stay there, and beside the identity at 3e-4.
    """

    time: Tensor
    near: Tensor

    def __init__(self, start: Topography, learned: Learned | str) -> None:
        super().__init__(start)
        if math.prod(start.shape) < 2:
            raise BadInput("capsules of one site have no W to learn")
        self.learned = Learned(learned)
        if self.learned is Learned.VELOCITY:
            if len(start.shape) > 1 or not start.cyclic:
                raise BadInput("only cyclic capsules of one axis have velocities to learn")
            if not start.corners:
                raise BadInput("a band whose corners are cut has velocity 1, and none to learn")
        # on the device with the parameters: nothing is copied there while a graph is captured
        for name, offsets in (("time", start.time_offsets), ("near", start.reach_offsets(0))):
            self.register_buffer(name, torch.tensor(list(offsets)), persistent=False)
        for axis in start.axes:
            self.register_buffer(f"further{axis or ''}", self._further(axis), persistent=False)
            if self.learned is not Learned.VELOCITY:
                self.register_parameter(f"raw{axis or ''}", nn.Parameter(self._raw(axis)))
        if self.learned is Learned.VELOCITY:
            self.velocities = nn.Parameter(torch.full((start.capsules,), start.velocity))

    @property
    def velocity(self) -> float:
        """Sites a frame: the mean of capsules', where these are learned; else as at the start."""
        if self.learned is Learned.VELOCITY:
            return self.velocities.mean().item()
        return super().velocity

    @property
    def rate(self) -> float | Tensor:
        """Sites a frame that capsules move: of each its own, where these are learned."""
        return self.velocities.detach() if self.learned is Learned.VELOCITY else super().rate

    @property
    def kernel(self) -> Tensor:
        """The weights, none below 0: (capsules, window, offsets); of several axes, the first's."""
        return self.kernel_along(self.start.axes[0])

    def kernel_along(self, axis: int | None) -> Tensor:
        """The weights of an energy."""
        if self.learned is not Learned.VELOCITY:
            return softplus(SHARP * getattr(self, f"raw{axis or ''}"))
        place = self.velocities[:, None, None, None] * self.time[:, None, None]
        sites = self.start.shape[0]
        offset = torch.arange(sites, device=place.device)[:, None] - place - self.near
        apart = (offset + sites / 2).remainder(sites) - sites / 2  # the short way round
        return (1 - apart.abs()).clamp_min(0).sum(-1)

    def pool(self, energy: Tensor, axis: int | None = None) -> Tensor:
        """W applied to u²: (batch, time, capsules, *u_shape) to (batch, time, capsules, *shape)."""
        frames, axis = self.start.frames_of(energy), self._one_of(axis)
        w = self._matrices(frames, axis)  # capsules (time *sites) (time *sites)
        if energy.dtype != w.dtype:
            raise BadInput(f"energies are {energy.dtype}, the weights that pool them {w.dtype}")
        dims = self._span(axis)
        capsule, wide = -len(self.start.shape) - 1, len(dims) + 1
        here = (capsule, capsule - 1, *(dim - len(self.start.shape) for dim in dims))
        there = (0, *range(-wide, 0))
        each = energy.movedim(here, there)  # capsules … time *sites
        pooled = exact_product(each.flatten(-wide).reshape(len(w), -1, w.shape[-1]), w.mT)
        sites = (self.start.shape[dim] for dim in dims)
        return pooled.reshape(*each.shape[:-wide], frames, *sites).movedim(there, here)

    def matrix(self, frames: int, axis: int | None = None) -> Tensor:
        """The same W, dense, over (time, capsule, *site)."""
        self.start.check(frames)
        axis = self._one_of(axis)
        dims = self._span(axis)
        others = [dim for dim in range(len(self.start.shape)) if dim not in dims]
        parts = self._matrices(frames, axis).unflatten(-1, (frames, -1)).unflatten(1, (frames, -1))
        every, beside = (
            torch.eye(n, dtype=parts.dtype, device=parts.device)
            for n in (len(parts), math.prod(self.start.shape[dim] for dim in others))
        )
        whole = torch.einsum("ctsuv,cd,op->tcsoudvp", parts, every, beside)
        order = [*dims, *others]
        rows, columns = (
            (frames, len(parts), *(shape[dim] for dim in order))
            for shape in (self.start.shape, self.start.u_shape)
        )
        back = [0, 1, *(2 + order.index(dim) for dim in range(len(order)))]
        whole = whole.reshape(rows + columns).permute(*back, *(len(rows) + n for n in back))
        return whole.reshape(math.prod(rows), math.prod(columns))

    @torch.no_grad()
    def typical(self, mu: float, draws: int = 256) -> float:
        """The median of t under the prior, from draws that are always the same."""
        with seeded(0):
            start = self.start
            z, u = torch.randn(2, draws, start.window, start.capsules, *start.u_shape)
        z = z[..., : start.shape[-1]]
        axes = start.axes if start.apart else (None,)
        t = torch.stack([studentize(z, u, self, mu, axis) for axis in axes])
        return t.median().item()

    def _one_of(self, axis: int | None) -> int | None:
        """Of the axes along which there is a kernel."""
        if len(self.start.axes) == 1:
            return self.start.axes[0]
        if axis not in self.start.axes:
            raise BadInput(f"axis {axis} is not one of {len(self.start.axes)} that have a W")
        return axis

    def _span(self, axis: int | None) -> tuple[int, ...]:
        """The axes of a capsule that a kernel runs over."""
        return tuple(range(len(self.start.shape))) if axis is None else (axis,)

    def _offsets(self, axis: int | None) -> tuple[int, ...]:
        """How many there are along each of these."""
        start = self.start
        return tuple(
            start.shape[n] if start.cyclic else 1 + sum(start.beyond) for n in self._span(axis)
        )

    def _further(self, axis: int | None) -> Tensor:
        """Which offset every site of U is at, seen from every site of Z; beyond all: one more."""
        sizes, dims = self._offsets(axis), self._span(axis)
        z, u = (
            torch.cartesian_prod(*(torch.arange(shape[dim]) for dim in dims)).view(-1, len(dims))
            for shape in (self.start.shape, self.start.u_shape)
        )
        far = u - z[:, None]  # of Z, of U, dims; the first site of U is as far before as it goes
        far = far % torch.tensor(sizes) if self.start.cyclic else far
        inside = ((far >= 0) & (far < torch.tensor(sizes))).all(-1)
        return torch.where(inside, self._place(far.unbind(-1), sizes), math.prod(sizes))

    @staticmethod
    def _place(offsets: Sequence[Any], sizes: Sequence[int]) -> Any:
        """Of an offset, in the kernel."""
        place = offsets[0]
        for offset, size in zip(offsets[1:], sizes[1:], strict=True):
            place = place * size + offset
        return place

    def _matrices(self, frames: int, axis: int | None) -> Tensor:
        """Every capsule's W, from its kernel."""
        kernel = self.kernel_along(axis)
        time = torch.arange(frames, device=kernel.device)
        seen = self.start.frame_at(time[:, None] + self.time, frames)  # frames window
        counts = (seen[:, None] == time[:, None]).to(kernel.dtype)  # frames frames window
        over = exact_product(counts.flatten(0, 1), kernel).unflatten(1, (frames, frames))
        over = over if self.start.cyclic else pad(over, (0, 1))  # of what is too far, nothing
        further: Tensor = getattr(self, f"further{axis or ''}")
        return over[..., further].transpose(2, 3).flatten(3).flatten(1, 2)

    def _raw(self, axis: int | None) -> Tensor:
        start, sizes = self.start, self._offsets(axis)
        kernel = torch.zeros(start.window, math.prod(sizes))
        nowhere = (0,) * len(start.shape)
        from_identity = self.learned is Learned.FROM_IDENTITY
        for delta, offsets, weight in [(0, nowhere, 1.0)] if from_identity else start.shares(axis):
            far = [offsets[dim] for dim in self._span(axis)]
            far = (
                [n % size for n, size in zip(far, sizes, strict=True)]
                if start.cyclic
                else [far[0] + start.beyond[0]]
            )
            kernel[delta - start.time_offsets[0], self._place(far, sizes)] += weight
        none = SMALL_LOGIT if from_identity else ZERO_LOGIT
        raw = torch.where(kernel > 0, _inverse_softplus(kernel.clamp_min(1e-3)), none)
        return (raw / SHARP).expand(start.capsules, -1, -1).clone()


def _inverse_softplus(value: Tensor) -> Tensor:
    return value + torch.log(-torch.expm1(-value))


def learn(topography: Topography, learned: Learned | str) -> Topography | LearnedTopography:
    """The topography, or one that starts from it."""
    learned = one_of(Learned, "learned", learned)
    return topography if learned is Learned.NOTHING else LearnedTopography(topography, learned)
