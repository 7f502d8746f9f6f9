"""Application of W: as a matrix product for small capsules, as running sums for large ones."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import pad

if TYPE_CHECKING:
    from topocaps.latents.topography import Topography

NEAR = 1e-9  #: distance, in sites, below which two places count as the same


def exact_product(energy: Tensor, w: Tensor) -> Tensor:
    """Return ``energy @ w`` in full precision, also under autocast.

    Small energies make large latents, so energies need a high relative precision.
    """
    device = energy.device.type
    if device == "meta" or not torch.is_autocast_enabled(device):
        return energy @ w
    with torch.autocast(device, enabled=False):
        return energy @ w


class Sums:
    """Application of W to large capsules, at a cost independent of the window and the reach.

    Time is unrolled to cover the windows of all frames. In co-moving coordinates, site j of frame a
    is at j + v a. There a window does not move, so two running sums serve all windows. Frames whose
    v a has the same fractional part, or phase, share coordinates. Whole velocities have one phase,
    halves have two, and there are at most as many phases as frames. The cost is linear in the
    number of latents and in the number of phases. The indices are computed once, on the host.

    Args:
        topography: settings of W, with one capsule.
        frames: number of frames of a sequence.
        axis: as in ``Topography.pool``.
        device: device of the energies.
    """

    def __init__(
        self, topography: Topography, frames: int, axis: int | None, device: torch.device
    ) -> None:
        self.topography = t = topography
        self.axis = axis
        self.dim = t.along(axis) - len(t.shape)
        #: number of places along the axis, after the sum over the reach
        self.places = t.u_shape[self.dim] - (0 if t.cyclic else t.reach[0] - 1)
        unrolled = torch.arange(2 * frames - 1) + t.time_offsets[0]
        self.frame_index = t.frame_at(unrolled, frames).to(device)  # of every unrolled time
        # the site of each frame at which its coordinates begin
        begin = _rounded_if_near(-t.velocity * torch.arange(frames).double())
        groups: dict[int, list[int]] = {}
        for frame, phase in enumerate((begin - begin.floor()).tolist()):
            groups.setdefault(round(phase / NEAR), []).append(frame)
        self.phases = [
            self._phase(torch.tensor(group), begin, unrolled, device) for group in groups.values()
        ]
        order = torch.tensor([frame for group in groups.values() for frame in group]).argsort()
        self.order = order.to(device)

    def _phase(
        self, frames: Tensor, begin: Tensor, unrolled: Tensor, device: torch.device
    ) -> _Phase:
        """Return the indices of frames whose coordinates have the same fractional part."""
        t, whole = self.topography, begin.floor()
        sites, begins = t.shape[self.dim], whole[frames].long()
        # site 0 of Z is at place ``first`` after the sum over the reach
        first = 0 if t.cyclic else t.beyond[0] - t.reach[0] // 2
        least = 0 if t.cyclic else int(begins.min())
        wide = sites if t.cyclic else sites + int(begins.max()) - least
        at = _rounded_if_near((begin - whole)[frames[0]] + t.velocity * unrolled.double())
        below = torch.arange(wide)[:, None] + least + first + at.floor().long()
        back = torch.arange(sites)[:, None] + begins - least
        part = at - at.floor()
        return _Phase(
            frames=frames.to(device),
            below=self._inside(below, self.places).to(device),
            above=self._inside(below + 1, self.places).to(device) if part.any() else None,
            part=part.to(device),
            back=self._inside(back, wide).to(device),
        )

    def _inside(self, place: Tensor, places: int) -> Tensor:
        """Bring indices within range; the values at clamped indices are not used."""
        return place % places if self.topography.cyclic else place.clamp(0, places - 1)

    def __call__(self, energy: Tensor) -> Tensor:
        t = self.topography
        for n, k in enumerate(t.reach):
            if k > 1 and self.axis in (None, n):
                energy = self._over_reach(energy, n - len(t.shape), k)
        time = -len(t.shape) - 2
        energy = energy.movedim((self.dim, time), (-2, -1))  # … site time
        unrolled = energy[..., self.frame_index]
        parts = []
        for phase in self.phases:
            comoving = _take(unrolled, phase.below)
            if phase.above is not None:
                part = phase.part.to(energy.dtype)
                comoving = (1 - part) * comoving + part * _take(unrolled, phase.above)
            summed = _window_sum(comoving, t.window)[..., phase.frames]
            parts.append(_take(summed, phase.back))
        return torch.cat(parts, -1)[..., self.order].movedim((-2, -1), (self.dim, time))

    def _over_reach(self, energy: Tensor, dim: int, k: int) -> Tensor:
        """Sum ``k`` neighbouring sites along an axis."""
        summed = _window_sum(energy.movedim(dim, -1), k)
        if self.topography.cyclic:
            return summed.roll(k // 2, -1).movedim(-1, dim)
        return summed[..., : summed.shape[-1] - k + 1].movedim(-1, dim)


class _Phase(NamedTuple):
    """Frames that share co-moving coordinates, and the indices of these coordinates."""

    frames: Tensor
    below: Tensor  # (coordinates, unrolled time): index of the place at or below a coordinate
    above: Tensor | None  # index of the next place; None if all coordinates are whole
    part: Tensor  # distance from ``below`` to a coordinate, in [0, 1)
    back: Tensor  # (sites, frames): index of the coordinate of every site


def _rounded_if_near(places: Tensor) -> Tensor:
    """Round the places that are nearly whole."""
    return torch.where((places - places.round()).abs() < NEAR, places.round(), places)


def _take(energy: Tensor, place: Tensor) -> Tensor:
    """Gather along the second to last axis at these indices."""
    return energy.gather(-2, place.expand(*energy.shape[:-2], *place.shape))


#: returns `Sums`, cached by their arguments
sums = functools.lru_cache(maxsize=64)(Sums)


def pool_by(w: Tensor, energy: Tensor, shape: tuple[int, ...]) -> Tensor:
    """Apply the W of one capsule, (…, time * sites, time * sites of U), to every capsule."""
    time, capsule = -len(shape) - 2, -len(shape) - 1
    rows = energy.transpose(time, capsule).flatten(capsule)  # … capsules (time *u_shape)
    pooled = exact_product(rows, w.mT)
    frames = energy.shape[time]
    return pooled.unflatten(-1, (frames, *shape)).transpose(time, capsule)


@functools.lru_cache(maxsize=64)
def capsule_matrix(
    topography: Topography,
    frames: int,
    axis: int | None,
    dtype: torch.dtype,
    device: torch.device,
) -> Tensor:
    """Return the dense W of a small capsule, cached by the arguments."""
    return topography.matrix(frames, axis, dtype).to(device)


def _window_sum(x: Tensor, width: int) -> Tensor:
    """Return out[a] = x[a] + … + x[a + width - 1] along the last, cyclic dimension.

    The dimension is cut into blocks of ``width`` and a remainder. A window is the tail of one block
    and the head of the next, plus the remainder if the window spans it. So two running sums serve
    any width. Nothing is subtracted, so small sums next to large ones keep their precision.
    """
    if width == 1:
        return x
    length = x.shape[-1]
    body = length // width * width  # without the remainder
    parts = [x[..., :body].unflatten(-1, (-1, width))]
    if body < length:
        parts.append(x[..., None, body:])
    tails = torch.cat([p.flip(-1).cumsum(-1).flip(-1).flatten(-2) for p in parts], -1)
    heads = torch.cat([pad(p[..., :-1].cumsum(-1), (1, 0)).flatten(-2) for p in parts], -1)
    out = tails + heads.roll(-width, -1)
    if body < length:
        remainder = parts[1].sum(-1).expand(*out.shape[:-1], width - length + body)
        out = out + pad(remainder, (length - width, length - body))
    return out
