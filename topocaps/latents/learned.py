"""Topographies with parameters: the weights of W, or the velocity of every capsule."""

from __future__ import annotations

import math
from enum import StrEnum

import torch
from torch import Tensor, nn
from torch.nn.functional import pad, softplus

from topocaps.device import seeded
from topocaps.errors import BadInput, one_of
from topocaps.latents.interface import DerivedTopography
from topocaps.latents.pooling import exact_product
from topocaps.latents.student_t import studentize_per_axis
from topocaps.latents.topography import Topography

#: Initial logit of the weights that are 0 in ``start``: softplus makes it 6e-6, which can grow.
ZERO_LOGIT = -12.0
#: Initial logit of the weights that are 0 in the identity: softplus makes it 3e-4. With smaller
#: weights an energy is nearly one square, and the tails of t are too heavy to learn from.
SMALL_LOGIT = -8.0
#: Factor from the parameter to the logit: a weight of 0 can grow within a few hundred Adam steps.
SHARP = 10.0


class Learned(StrEnum):
    """Which part of a topography is learned with the model."""

    NOTHING = "nothing"
    WEIGHTS = "weights"  #: the weights of W, starting from those of the topography
    FROM_IDENTITY = "from-identity"  #: the weights of W, starting from the identity
    VELOCITY = "velocity"  #: the velocity of every capsule, starting from that of the topography


class LearnedTopography(DerivedTopography, nn.Module):
    """A topography with a learned kernel for every capsule.

    The kernel (capsules, window, offsets) holds the weight of u² at each offset in time and in
    sites, so W is stationary in time and along the capsule. A cyclic capsule has as many offsets as
    sites. An open one has those that lie within U. Capsules that move along several axes have one
    kernel per axis.

    Learned weights are positive, because they are values of softplus. A weight that is 0 in
    ``start`` begins at 6e-6: at exactly 0 it would have no gradient. Starting from the identity, it
    begins at 3e-4.

    Args:
        start: the initial topography. It also supplies everything but W.
        learned: which part is a parameter: the weights of W, or the velocities of capsules.
    """

    time: Tensor
    near: Tensor

    def __init__(self, start: Topography, learned: Learned | str) -> None:
        super().__init__(start)
        if math.prod(start.shape) < 2:
            raise BadInput(
                f"a learned topography needs capsules of at least 2 sites, not of shape "
                f"{start.shape}"
            )
        self.learned = Learned(learned)
        if self.learned is Learned.VELOCITY:
            if len(start.shape) > 1 or not start.cyclic:
                raise BadInput(
                    f"learned=velocity needs cyclic capsules of one axis, not cyclic={start.cyclic}"
                    f" and shape {start.shape}"
                )
            if not start.corners:
                raise BadInput("learned=velocity needs a topography with corners=True")
        # Buffers move to the device with the model. Copying the offsets to it at each step would
        # break the capture of a CUDA graph.
        for name, offsets in (("time", start.time_offsets), ("near", start.reach_offsets(0))):
            self.register_buffer(name, torch.tensor(list(offsets)), persistent=False)
        for axis in start.axes:
            self.register_buffer(
                f"offset_index{axis or ''}", self._offset_index(axis), persistent=False
            )
            if self.learned is not Learned.VELOCITY:
                self.register_parameter(f"raw{axis or ''}", nn.Parameter(self._initial_raw(axis)))
        if self.learned is Learned.VELOCITY:
            self.velocities = nn.Parameter(torch.full((start.capsules,), start.velocity))

    @property
    def velocity(self) -> float:
        """Sites by which activity moves per frame: the mean over capsules, if it is learned."""
        if self.learned is Learned.VELOCITY:
            return self.velocities.mean().item()
        return super().velocity

    @property
    def rate(self) -> float | Tensor:
        """Sites by which t is expected to move per frame; learned velocities are (capsules,)."""
        return self.velocities.detach() if self.learned is Learned.VELOCITY else super().rate

    def kernel_along(self, axis: int | None) -> Tensor:
        """Return the kernel along an axis: non-negative weights (capsules, window, offsets)."""
        if self.learned is not Learned.VELOCITY:
            return softplus(SHARP * getattr(self, f"raw{axis or ''}"))
        place = self.velocities[:, None, None, None] * self.time[:, None, None]
        sites = self.start.shape[0]
        offset = torch.arange(sites, device=place.device)[:, None] - place - self.near
        distance = (offset + sites / 2).remainder(
            sites
        ) - sites / 2  # the shorter way around the ring
        return (1 - distance.abs()).clamp_min(0).sum(-1)

    def pool(self, energy: Tensor, axis: int | None = None) -> Tensor:
        """Apply W to u²: (batch, time, capsules, *u_shape) to (batch, time, capsules, *shape)."""
        frames, axis = self.start.frames_of(energy), self._kernel_axis(axis)
        w = self._capsule_matrices(frames, axis)  # capsules (time *sites) (time *sites)
        if energy.dtype != w.dtype:
            raise BadInput(
                f"pool needs u² of the dtype of its weights, {w.dtype}, not {energy.dtype}"
            )
        dims = self._axes_of_kernel(axis)
        capsule, wide = -len(self.start.shape) - 1, len(dims) + 1
        before = (capsule, capsule - 1, *(dim - len(self.start.shape) for dim in dims))
        after = (0, *range(-wide, 0))
        moved = energy.movedim(before, after)  # capsules … time *sites
        pooled = exact_product(moved.flatten(-wide).reshape(len(w), -1, w.shape[-1]), w.mT)
        sites = (self.start.shape[dim] for dim in dims)
        return pooled.reshape(*moved.shape[:-wide], frames, *sites).movedim(after, before)

    @torch.no_grad()
    def typical(self, mu: float, draws: int = 256) -> float:
        """Return the median of t under the prior, estimated from draws with a fixed seed."""
        with seeded(0):
            start = self.start
            z, u = torch.randn(2, draws, start.window, start.capsules, *start.u_shape)
        z = z[..., : start.shape[-1]]
        return torch.stack(studentize_per_axis(z, u, self, mu)).median().item()

    def _kernel_axis(self, axis: int | None) -> int | None:
        """Return the axis of the kernel, or raise `BadInput` if no kernel extends along it."""
        if len(self.start.axes) == 1:
            return self.start.axes[0]
        if axis not in self.start.axes:
            raise BadInput(f"axis must be one of {self.start.axes}, not {axis}")
        return axis

    def _axes_of_kernel(self, axis: int | None) -> tuple[int, ...]:
        """Return the axes of a capsule along which a kernel extends."""
        return tuple(range(len(self.start.shape))) if axis is None else (axis,)

    def _shape_of_kernel(self, axis: int | None) -> tuple[int, ...]:
        """Return the number of offsets of a kernel along each of its axes."""
        start = self.start
        return tuple(
            start.shape[n] if start.cyclic else 1 + sum(start.beyond)
            for n in self._axes_of_kernel(axis)
        )

    def _offset_index(self, axis: int | None) -> Tensor:
        """Return the index of the offset from every site of Z to every site of U.

        Sites of U beyond all offsets have the index after the last.
        """
        sizes, dims = self._shape_of_kernel(axis), self._axes_of_kernel(axis)
        z, u = (
            torch.cartesian_prod(*(torch.arange(shape[dim]) for dim in dims)).view(-1, len(dims))
            for shape in (self.start.shape, self.start.u_shape)
        )
        # (sites of Z, sites of U, dims). U of an open capsule begins ``beyond[0]`` sites before Z,
        # so 0 is the lowest offset of a kernel.
        offset = u - z[:, None]
        wrapped = offset % torch.tensor(sizes)
        index = torch.arange(math.prod(sizes)).reshape(sizes)[wrapped.unbind(-1)]
        inside = (offset == wrapped).all(-1) | self.start.cyclic
        return torch.where(inside, index, math.prod(sizes))

    def _capsule_matrices(self, frames: int, axis: int | None) -> Tensor:
        """Return W of every capsule, (capsules, time * sites, time * sites of U)."""
        kernel = self.kernel_along(axis)
        time = torch.arange(frames, device=kernel.device)
        summed = self.start.frame_at(time[:, None] + self.time, frames)  # frames window
        counts = (summed[:, None] == time[:, None]).to(kernel.dtype)  # frames frames window
        weights = exact_product(counts.flatten(0, 1), kernel).unflatten(1, (frames, frames))
        if not self.start.cyclic:
            weights = pad(weights, (0, 1))  # the weight 0 of sites beyond all offsets
        index: Tensor = getattr(self, f"offset_index{axis or ''}")
        return weights[..., index].transpose(2, 3).flatten(3).flatten(1, 2)

    def _initial_raw(self, axis: int | None) -> Tensor:
        """Return the parameter whose kernel is that of ``start``, or that of the identity."""
        start, sizes = self.start, self._shape_of_kernel(axis)
        kernel = torch.zeros(start.window, *sizes)
        from_identity = self.learned is Learned.FROM_IDENTITY
        identity = [(0, (0,) * len(start.shape), 1.0)]
        for delta, offsets, weight in identity if from_identity else start.terms(axis):
            along = [offsets[dim] + start.beyond[0] for dim in self._axes_of_kernel(axis)]
            place = [n % size for n, size in zip(along, sizes, strict=True)]
            kernel[(delta - start.time_offsets[0], *place)] += weight
        kernel = kernel.flatten(1)
        zero = SMALL_LOGIT if from_identity else ZERO_LOGIT
        raw = torch.where(kernel > 0, _inverse_softplus(kernel.clamp_min(1e-3)), zero)
        return (raw / SHARP).expand(start.capsules, -1, -1).clone()


def _inverse_softplus(value: Tensor) -> Tensor:
    return value + torch.log(-torch.expm1(-value))


def learn(topography: Topography, learned: Learned | str) -> Topography | LearnedTopography:
    """Return a `LearnedTopography` that starts from this one, or itself to learn nothing."""
    learned = one_of(Learned, "learned", learned)
    return topography if learned is Learned.NOTHING else LearnedTopography(topography, learned)
