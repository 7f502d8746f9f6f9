"""Who shares whose variance: the matrix W of the Topographic VAE, and how to apply it."""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import pad

from topocaps.errors import BadInput, whole_number

SMALL = 512  # up to this many latents over time in a capsule, W of the capsule is simply multiplied


@dataclass(frozen=True)
class Topography:
    r"""The matrix :math:`W` of Eq. 5, over (time, capsule, \*site), applied without building it.

    The energy of a latent is the sum of the squares it shares (Eq. 8 and 9):

    .. math:: \mathrm{energy}[l, i] = \sum_{\delta} \sum_{k} u^2[l + \delta,\; i + v \delta + k]

    with :math:`\delta` over ``window`` frames (2L of the paper), :math:`k` over ``reach`` sites
    along each axis (K of the paper) and :math:`v` the ``velocity``, in sites a frame along the
    first axis of the capsule: 1 is shifting coherence (TVAE), 0 is stationary (Bubbles). Time and
    sites are cyclic, capsules share nothing. Odd windows and reaches are centred; an even window
    has its extra frame in the past, an even reach its extra site below.

    Read literally, Eq. 9 with Eq. 18 ties the other diagonal and contradicts the paper's
    cov(T²[l, i], T²[l-1, i-1]) > 0; this is the direction of that statement and of Eq. 13. The
    released code cuts the corners of the band (at the ends of the window its K = 3 has 2 entries);
    here every frame has the full reach, as in Eq. 9, unless ``corners`` is False.
    """

    capsules: int
    shape: tuple[int, ...]
    reach: tuple[int, ...] = (1,)
    window: int = 1
    velocity: float = 1.0
    corners: bool = True

    def __post_init__(self) -> None:
        shape = _tuple_of_ints("shape", self.shape)
        reach = _tuple_of_ints("reach", self.reach)
        reach = reach * len(shape) if len(reach) == 1 else reach
        object.__setattr__(self, "shape", shape)
        object.__setattr__(self, "reach", reach)
        for name in ("capsules", "window"):
            object.__setattr__(self, name, whole_number(name, getattr(self, name)))
        if len(reach) != len(shape):
            raise BadInput(
                f"reach {reach} has {len(reach)} axes but shape {shape} has {len(shape)}"
            )
        for axis, (k, sites) in enumerate(zip(reach, shape, strict=True)):
            if k > sites:
                raise BadInput(f"reach {k} on axis {axis} is more than its {sites} sites")
        if not isinstance(self.velocity, int | float) or self.velocity % 1 != 0:
            raise BadInput(f"velocity must be a whole number of sites a frame, not {self.velocity}")
        object.__setattr__(self, "velocity", float(self.velocity))
        if not self.corners and (len(shape) > 1 or self.velocity != 1 or reach[0] > self.window):
            raise BadInput(
                "only a band has corners to cut: one axis, velocity 1, reach within the window"
            )

    @property
    def latents(self) -> int:
        """Latents in one frame: capsules times sites."""
        return self.capsules * math.prod(self.shape)

    @property
    def degrees_of_freedom(self) -> int:
        """Nu: how many squares every energy sums."""
        return self.window * math.prod(self.reach) if self.corners else len(self._terms())

    def check(self, frames: int) -> None:
        """Refuse a sequence shorter than the window."""
        if self.window > frames:
            raise BadInput(f"window {self.window} is longer than the sequence of {frames} frames")
        if not (self.corners or self.is_small(frames)):
            raise BadInput(f"corners are cut of small capsules only: up to {SMALL} sites in time")

    def is_small(self, frames: int) -> bool:
        """Whether W of one capsule is simply multiplied, being small."""
        return frames * math.prod(self.shape) <= SMALL

    def pool(self, energy: Tensor) -> Tensor:
        """W applied to u²: (batch, time, capsules, *shape) to the same shape.

        Costs the same for every window and reach. Only adds, so non-negative energies stay so.
        """
        latent = (self.capsules, *self.shape)
        if energy.ndim < len(latent) + 1 or tuple(energy.shape[-len(latent) :]) != latent:
            raise BadInput(
                f"pool takes (batch, time, capsules, *shape) with the last axes {latent}, "
                f"not {tuple(energy.shape)}"
            )
        self.check(energy.shape[-len(latent) - 1])
        return _Pool.apply(energy, self, False)

    def matrix(self, frames: int) -> Tensor:
        """The same W, dense: rows and columns run over (time, capsule, *site) in that order.

        Written from the definition, term by term: the oracle for ``pool``.
        """
        self.check(frames)
        lattice = (frames, self.capsules, *self.shape)
        time, capsule, *site = torch.meshgrid(*map(torch.arange, lattice), indexing="ij")
        w = torch.zeros(lattice + lattice)  # on the host: an oracle, not a hot path
        for delta, *ks in self._terms():
            drift = [int(self.velocity) * delta] + [0] * (len(site) - 1)
            shared = [
                (i + v + k) % n for i, v, k, n in zip(site, drift, ks, self.shape, strict=True)
            ]
            w[(time, capsule, *site, (time + delta) % frames, capsule, *shared)] += 1
        n = math.prod(lattice)
        return w.reshape(n, n)

    def _terms(self) -> list[tuple[int, ...]]:
        """The offsets (time, *site), beside the drift, of the squares that an energy sums."""
        offsets = [range(-(n // 2), (n + 1) // 2) for n in (self.window, *self.reach)]
        terms = itertools.product(*offsets)
        return [(d, *k) for d, *k in terms if self.corners or d + k[0] in offsets[0]]

    def roll(self, t: Tensor, steps: float, axis: int = 0) -> Tensor:
        """Move every capsule's activation ``steps`` sites on along ``axis`` (Eq. 18)."""
        if not -len(self.shape) <= axis < len(self.shape):
            raise BadInput(f"axis {axis} is not one of the {len(self.shape)} axes of a capsule")
        return roll(t, steps, dim=axis % len(self.shape) - len(self.shape))

    def _pool(self, energy: Tensor, transposed: bool) -> Tensor:
        """W or its transpose applied to ``energy``; no gradient."""
        if self.window == math.prod(self.reach) == 1:
            return energy.clone()
        frames = energy.shape[-len(self.shape) - 2]
        if self.is_small(frames):
            return self._product(energy, frames, transposed)
        return self._running_sums(energy, transposed)

    def _product(self, energy: Tensor, frames: int, transposed: bool) -> Tensor:
        """By one capsule's own W, small enough to be the fastest way."""
        w = _capsule_matrix(replace(self, capsules=1), frames, energy.dtype, energy.device)
        time, capsule = -len(self.shape) - 2, -len(self.shape) - 1
        rows = energy.transpose(time, capsule)  # … capsules time *shape
        pooled = _exact_product(rows.flatten(capsule), w if transposed else w.T)
        return pooled.reshape(rows.shape).transpose(time, capsule)

    def _running_sums(self, energy: Tensor, transposed: bool) -> Tensor:
        """At a cost that is linear in the latents, whatever window and reach."""

        def before(width: int) -> int:
            return (width - 1) // 2 if transposed else width // 2

        for axis, k in enumerate(self.reach):
            if k > 1:
                dim = axis - len(self.shape)
                summed = _window_sum(energy.movedim(dim, -1), k)
                energy = summed.roll(before(k), -1).movedim(-1, dim)
        if self.window == 1:
            return energy
        time, site = -len(self.shape) - 2, -len(self.shape)
        frames, sites, v = energy.shape[time], self.shape[0], int(self.velocity)
        past = before(self.window)
        energy = energy.movedim((site, time), (-2, -1))  # … site time
        # Co-moving coordinates: site j of frame l is j + v l, so that the window stands still.
        j = torch.arange(sites, device=energy.device)[:, None]
        a = torch.arange(frames, device=energy.device)
        comoving = energy.gather(-2, ((j + v * a) % sites).expand(energy.shape))
        summed = _window_sum(comoving, self.window, seam=v * frames % sites)
        energy = summed.gather(-2, ((j - v * (a + past)) % sites).expand(energy.shape))
        return energy.roll(past, -1).movedim((-2, -1), (site, time))


def roll(t: Tensor, steps: float, dim: int) -> Tensor:
    """``torch.roll`` by ``steps``; a fraction of a step interpolates linearly (Eq. 19)."""
    whole = math.floor(steps)
    rolled = t.roll(whole, dim)
    part = steps - whole
    return rolled if part == 0 else (1 - part) * rolled + part * t.roll(whole + 1, dim)


class TopographyStack:
    """The topographies of a stack of models: the same lattice, each model its own W.

    Takes the place of a ``Topography`` in a model whose parameters have an axis in front.
    """

    def __init__(self, topographies: Sequence[Topography], frames: int) -> None:
        first = topographies[0]
        self.capsules, self.shape, self.frames = first.capsules, first.shape, frames
        if any((t.capsules, t.shape) != (self.capsules, self.shape) for t in topographies):
            raise BadInput("models of one stack must have the same capsules and sites")
        alone = [replace(t, capsules=1).matrix(frames) for t in topographies]
        # models 1 (time site) (time site); a single model's tensors have no axis for the models
        self._w = torch.stack(alone)[:, None] if len(alone) > 1 else alone[0]

    def to(self, like: Tensor) -> TopographyStack:
        """With W where ``like`` is, and of its kind."""
        self._w = self._w.to(like.device, like.dtype)
        return self

    def pool(self, energy: Tensor) -> Tensor:
        """W applied to u²: (models, batch, time, capsules, *shape) to the same shape."""
        time, capsule = -len(self.shape) - 2, -len(self.shape) - 1
        rows = energy.transpose(time, capsule)
        pooled = _exact_product(rows.flatten(capsule), self._w.mT)
        return pooled.reshape(rows.shape).transpose(time, capsule)


def _exact_product(energy: Tensor, w: Tensor) -> Tensor:
    """Not cast to a lower precision, whatever layers are: small energies make large latents."""
    kind = energy.device.type
    if kind == "meta" or not torch.is_autocast_enabled(kind):
        return energy @ w
    with torch.autocast(kind, enabled=False):
        return energy @ w


@functools.lru_cache(maxsize=64)
def _capsule_matrix(
    topography: Topography, frames: int, dtype: torch.dtype, device: torch.device
) -> Tensor:
    return topography.matrix(frames).to(device, dtype)


class _Pool(torch.autograd.Function):
    """Multiplication by W; its gradient is multiplication by the transpose, equally structured."""

    @staticmethod
    def forward(ctx: Any, energy: Tensor, topography: Topography, transposed: bool) -> Tensor:
        ctx.topography, ctx.transposed = topography, transposed
        return topography._pool(energy, transposed)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:
        return _Pool.apply(grad, ctx.topography, not ctx.transposed), None, None


def _window_sum(x: Tensor, width: int, seam: int = 0) -> Tensor:
    """out[a] = x[a] + … + x[a + width - 1] along the last, cyclic dimension.

    The line is cut into blocks of ``width``, and what is left over. A window is then the tail of
    one block and the head of the next (and, where it spans the left-over, all of that), so two
    running sums serve any width. Nothing is subtracted: small sums next to large ones keep their
    precision. What lies beyond the end is the start, moved by ``seam`` along dimension -2.
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
    heads = torch.cat([heads[..., width:], heads[..., :width].roll(-seam, -2)], -1)
    out = tails + heads
    if body < length:
        out[..., length - width : body] += parts[1].sum(-1)
    return out


def _tuple_of_ints(name: str, value: Any) -> tuple[int, ...]:
    values = tuple(value) if isinstance(value, Iterable) else (value,)
    if not values:
        raise BadInput(f"{name} must have at least one axis")
    return tuple(whole_number(name, v) for v in values)
