"""How W is applied: a small capsule's is multiplied; a large one's is summed, any window alike."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import pad

if TYPE_CHECKING:
    from topocaps.latents.topography import Topography

NEAR = 1e-9  #: sites: nearer than that is there


def exact_product(energy: Tensor, w: Tensor) -> Tensor:
    """Not cast to a lower precision, whatever layers are: small energies make large latents."""
    kind = energy.device.type
    if kind == "meta" or not torch.is_autocast_enabled(kind):
        return energy @ w
    with torch.autocast(kind, enabled=False):
        return energy @ w


class Sums:
    """W of a large capsule, applied at a cost that does not depend on the window and the reach.

    Time is unrolled as far as the longest window would reach. In co-moving coordinates (site j of
    frame a is j + v a) a window stands still, and two running sums serve all of them. Frames whose
    v a lies equally far between two sites share coordinates: one such phase for whole velocities,
    two for halves, as many as there are frames where no two agree. The cost is linear in the
    latents and in the phases. All that depends on is worked out once, on the host.
    """

    def __init__(
        self, topography: Topography, frames: int, axis: int | None, device: torch.device
    ) -> None:
        self.topography = t = topography
        self.axis = axis
        self.dim = t.along(axis) - len(t.shape)
        sites = t.shape[self.dim]
        # site 0 of Z is at place ``first`` of what the sums over the reach leave
        first = 0 if t.cyclic else t.beyond[0] - t.reach[0] // 2
        self.places = t.u_shape[self.dim] - (0 if t.cyclic else t.reach[0] - 1)
        unrolled = torch.arange(2 * frames - 1) + t.time_offsets[0]
        self.shown = t.frame_at(unrolled, frames).to(device)
        begin = -t.velocity * torch.arange(frames).double()  # of coordinates, in a frame's sites
        begin = torch.where((begin - begin.round()).abs() < NEAR, begin.round(), begin)
        whole = begin.floor()
        groups: dict[int, list[int]] = {}
        for frame, phase in enumerate((begin - whole).tolist()):
            groups.setdefault(round(phase / NEAR), []).append(frame)
        self.phases = [
            self._phase(torch.tensor(mine), begin, whole, unrolled, sites, first, device)
            for mine in groups.values()
        ]
        order = torch.tensor([frame for mine in groups.values() for frame in mine]).argsort()
        self.order = order.to(device)

    def _phase(
        self,
        mine: Tensor,
        begin: Tensor,
        whole: Tensor,
        unrolled: Tensor,
        sites: int,
        first: int,
        device: torch.device,
    ) -> _Phase:
        """For frames whose coordinates lie equally far between sites."""
        t, begins = self.topography, whole[mine].long()
        least = 0 if t.cyclic else int(begins.min())
        wide = sites if t.cyclic else sites + int(begins.max()) - least
        at = (begin - whole)[mine[0]] + t.velocity * unrolled.double()
        at = torch.where((at - at.round()).abs() < NEAR, at.round(), at)
        below = torch.arange(wide)[:, None] + least + first + at.floor().long()
        back = torch.arange(sites)[:, None] + begins - least
        part = at - at.floor()
        return _Phase(
            frames=mine.to(device),
            below=self._inside(below, self.places).to(device),
            above=self._inside(below + 1, self.places).to(device) if part.any() else None,
            part=part.to(device),
            back=self._inside(back, wide).to(device),
        )

    def _inside(self, place: Tensor, places: int) -> Tensor:
        """What an open capsule has not is never asked for in the end."""
        return place % places if self.topography.cyclic else place.clamp(0, places - 1)

    def __call__(self, energy: Tensor) -> Tensor:
        t = self.topography
        for n, k in enumerate(t.reach):
            if k > 1 and self.axis in (None, n):
                energy = self._over_reach(energy, n - len(t.shape), k)
        time = -len(t.shape) - 2
        energy = energy.movedim((self.dim, time), (-2, -1))  # … site time
        shown = energy[..., self.shown]
        parts = []
        for phase in self.phases:
            comoving = _take(shown, phase.below)
            if phase.above is not None:
                part = phase.part.to(energy.dtype)
                comoving = (1 - part) * comoving + part * _take(shown, phase.above)
            summed = _window_sum(comoving, t.window)[..., phase.frames]
            parts.append(_take(summed, phase.back))
        return torch.cat(parts, -1)[..., self.order].movedim((-2, -1), (self.dim, time))

    def _over_reach(self, energy: Tensor, dim: int, k: int) -> Tensor:
        summed = _window_sum(energy.movedim(dim, -1), k)
        if self.topography.cyclic:
            return summed.roll(k // 2, -1).movedim(-1, dim)
        return summed[..., : summed.shape[-1] - k + 1].movedim(-1, dim)


class _Phase(NamedTuple):
    """Frames that share co-moving coordinates, and where these are."""

    frames: Tensor
    below: Tensor  # (coordinates, unrolled time) places
    above: Tensor | None  # the next ones, where coordinates fall between two
    part: Tensor  # of the way there
    back: Tensor  # (sites, frames) coordinates


def _take(energy: Tensor, place: Tensor) -> Tensor:
    """What is at these places of the last axis but one."""
    return energy.gather(-2, place.expand(*energy.shape[:-2], *place.shape))


@functools.lru_cache(maxsize=64)
def sums(topography: Topography, frames: int, axis: int | None, device: torch.device) -> Sums:
    """Worked out once for each topography and length."""
    return Sums(topography, frames, axis, device)


def pool_by(w: Tensor, energy: Tensor, shape: tuple[int, ...]) -> Tensor:
    """A capsule's own W, (…, time · sites, time · sites of U), applied to every capsule."""
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
    """W of a small capsule, written once for each topography and length."""
    return topography.matrix(frames, axis, dtype).to(device)


def _window_sum(x: Tensor, width: int) -> Tensor:
    """out[a] = x[a] + … + x[a + width - 1] along the last, cyclic dimension.

    The line is cut into blocks of ``width``, and what is left over. A window is then the tail of
    one block and the head of the next (and, where it spans the left-over, all of that), so two
    running sums serve any width. Nothing is subtracted: small sums next to large ones keep their
    precision.
    """
    if width == 1:
        return x
    length = x.shape[-1]
    body = length // width * width
    parts = [x[..., :body].unflatten(-1, (-1, width))]
    if body < length:
        parts.append(x[..., None, body:])
    tails = torch.cat([p.flip(-1).cumsum(-1).flip(-1).flatten(-2) for p in parts], -1)
    heads = torch.cat([pad(p[..., :-1].cumsum(-1), (1, 0)).flatten(-2) for p in parts], -1)
    out = tails + heads.roll(-width, -1)
    if body < length:
        over = pad(
            parts[1].sum(-1).expand(*out.shape[:-1], width - length + body),
            (length - width, length - body),
        )
        out = out + over
    return out
