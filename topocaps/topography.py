"""Who shares whose variance: the matrix W of the Topographic VAE, and how to apply it."""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from numbers import Real
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.nn.functional import pad

from topocaps.errors import BadInput, whole_number
from topocaps.pooling import NEAR, capsule_matrix, pool_by, sums

KELLER_2021 = """\
@inproceedings{keller2021topographic,
  title = {Topographic {VAEs} learn Equivariant Capsules},
  author = {Keller, T. Anderson and Welling, Max},
  booktitle = {Advances in Neural Information Processing Systems},
  volume = {34},
  year = {2021},
  url = {https://arxiv.org/abs/2109.01394},
}"""

SMALL = 512  # up to this many latents over time in a capsule, W of the capsule is simply multiplied


@dataclass(frozen=True)
class Topography:
    r"""The matrix :math:`W` of Eq. 5, over (time, capsule, \*site), applied without building it.

    The energy of a latent is the sum of the squares it shares (Eq. 8 and 9):

    .. math:: \mathrm{energy}[l, i] = \sum_{\delta} \sum_{k} u^2[l + \delta,\; i + v \delta + k]

    with :math:`\delta` over ``window`` frames (2L of the paper), :math:`k` over ``reach`` sites
    along each axis (K of the paper) and :math:`v` the ``velocity``, in sites a frame along the
    first axis of the capsule: 1 is shifting coherence (TVAE), 0 is stationary (Bubbles), and where
    :math:`v \delta` falls between two sites, their squares are interpolated. Capsules share
    nothing. Odd windows and reaches are centred; an even window has its extra frame in the past,
    an even reach its extra site below.

    ``cyclic``: time and sites are; otherwise capsules have ends (C.2). Beyond them U has sites of
    its own (``u_shape``), and what is before the first frame, or after the last, is that frame.
    ``causal``: the window lies in the past (Eq. 22), and time begins, even where sites are cyclic.

    Capsules of several axes whose latents move (window over 1, velocity not 0) have one energy an
    axis, which ``axis`` asks for. t is made of all of them (Eq. 21), and each of its features may
    take a motion along another axis; or, with ``apart``, of one: a sequence then moves along one
    axis as a whole, and models sum out which one (not the papers').

    Read literally, Eq. 9 with Eq. 18 ties the other diagonal and contradicts the paper's
    cov(T²[l, i], T²[l-1, i-1]) > 0; this is the direction of that statement and of Eq. 13. The
    released code cuts the corners of the band (at the ends of the window its K = 3 has 2 entries);
    here every frame has the full reach, as in Eq. 9, unless ``corners`` is False.

    >>> capsules = Topography(capsules=2, shape=(6,), window=3)
    >>> capsules.degrees_of_freedom, capsules.latents
    (3, 12)
    >>> energy = torch.rand(1, 4, 2, 6)  # batch, time, capsule, site
    >>> dense = capsules.matrix(frames=4) @ energy.flatten()
    >>> torch.allclose(capsules.pool(energy).flatten(), dense)
    True
    """

    capsules: int
    shape: tuple[int, ...]
    reach: tuple[int, ...] = (1,)
    window: int = 1
    velocity: float = 1.0
    corners: bool = True
    cyclic: bool = True
    causal: bool = False
    apart: bool = False

    citations: ClassVar[tuple[str, ...]] = (KELLER_2021,)

    def __post_init__(self) -> None:
        shape = _tuple_of_ints("shape", self.shape)
        reach = _tuple_of_ints("reach", self.reach)
        reach = reach * len(shape) if len(reach) == 1 else reach
        object.__setattr__(self, "shape", shape)
        object.__setattr__(self, "reach", reach)
        for name in ("capsules", "window"):
            object.__setattr__(self, name, whole_number(name, getattr(self, name)))
        for name in ("corners", "cyclic", "causal", "apart"):
            if not isinstance(getattr(self, name), bool):
                raise BadInput(f"{name} must be True or False, not {getattr(self, name)!r}")
        if len(reach) != len(shape):
            raise BadInput(
                f"reach {reach} has {len(reach)} axes but shape {shape} has {len(shape)}"
            )
        for axis, (k, sites) in enumerate(zip(reach, shape, strict=True)):
            if k > sites:
                raise BadInput(f"reach {k} on axis {axis} is more than its {sites} sites")
        velocity = _finite("velocity must be a number of sites a frame", self.velocity)
        object.__setattr__(self, "velocity", velocity)
        if abs(self.velocity) > max(shape):
            raise BadInput(
                f"velocity {self.velocity:g} is more than once round the {max(shape)} sites a frame"
            )
        if not self.cyclic and len(shape) > 1:
            raise BadInput("only capsules of one axis can have open ends (cyclic=False)")
        if self.apart and self.axes == (None,):
            raise BadInput(
                "only axes that capsules move along can be kept apart: several of them, a window "
                "over 1 and a velocity"
            )
        banded = len(shape) == 1 and self.velocity == 1 and self.cyclic and not self.causal
        if not self.corners and (not banded or reach[0] > self.window):
            raise BadInput(
                "only a band has corners to cut: one cyclic axis, velocity 1, a centred window, "
                "reach within it"
            )

    def settings(self) -> dict[str, Any]:
        """As they are recorded: what came later only where it is used, so that records agree."""
        own = asdict(self)
        return own if self.apart else {name: own[name] for name in own if name != "apart"}

    @property
    def rate(self) -> float:
        """Sites a frame that capsules move: the velocity."""
        return self.velocity

    @property
    def latents(self) -> int:
        """Latents in one frame: capsules times sites."""
        return self.capsules * math.prod(self.shape)

    @property
    def u_shape(self) -> tuple[int, ...]:
        """Sites of U in a capsule: those of Z and, where ends are open, those beyond them."""
        before, after = self.beyond
        return (self.shape[0] + before + after, *self.shape[1:])

    @property
    def axes(self) -> tuple[int | None, ...]:
        """What ``axis`` of ``pool`` may be: all axes at once (None), or each by itself."""
        moves = self.window > 1 and self.velocity != 0
        return tuple(range(len(self.shape))) if moves and len(self.shape) > 1 else (None,)

    @property
    def degrees_of_freedom(self) -> int:
        """Nu: how many squares an energy sums; where t has several, the smallest of them.

        A square counts as often as W says: in parts where the velocity is between sites, and more
        than once where time begins and nothing moves.
        """
        return min(self.squares(axis) for axis in self.axes)

    def squares(self, axis: int | None) -> int:
        """How many there are in an energy."""
        return len(self._terms(axis))

    def check(self, frames: int) -> None:
        """Refuse a sequence shorter than the window."""
        if self.window > frames:
            raise BadInput(f"window {self.window} is longer than the sequence of {frames} frames")
        if not (self.corners or self.is_small(frames)):
            raise BadInput(f"corners are cut of small capsules only: up to {SMALL} sites in time")

    def frames_of(self, energy: Tensor) -> int:
        """How many there are; refuse what cannot be pooled."""
        latent = (self.capsules, *self.u_shape)
        if energy.ndim < len(latent) + 1 or tuple(energy.shape[-len(latent) :]) != latent:
            raise BadInput(
                f"pool takes (batch, time, capsules, *shape) with the last axes {latent}, "
                f"not {tuple(energy.shape)}"
            )
        frames = energy.shape[-len(latent) - 1]
        self.check(frames)
        return frames

    @property
    def is_plain(self) -> bool:
        """Whether W is what the settings say: a subclass may pool otherwise."""
        return type(self) is Topography

    def is_small(self, frames: int) -> bool:
        """Whether W of one capsule is simply multiplied, being small."""
        return frames * math.prod(self.shape) <= SMALL

    def pool(self, energy: Tensor, axis: int | None = None) -> Tensor:
        """W applied to u²: (batch, time, capsules, *u_shape) to (batch, time, capsules, *shape).

        Costs the same for every window and reach, at one velocity. Only adds, so non-negative
        energies stay so.
        """
        frames = self.frames_of(energy)
        if self.window == math.prod(self.reach) == 1:
            return energy.clone()
        if self.is_small(frames):
            w = capsule_matrix(replace(self, capsules=1), frames, axis, energy.dtype, energy.device)
            return pool_by(w, energy, self.shape)
        return sums(replace(self, capsules=1), frames, axis, energy.device)(energy)

    def matrix(
        self, frames: int, axis: int | None = None, dtype: torch.dtype = torch.float32
    ) -> Tensor:
        """The same W, dense: rows run over (time, capsule, *site) in that order, columns over
        those of U.

        Written from the definition, term by term: the oracle for ``pool``.
        """
        self.check(frames)
        rows, columns = ((frames, self.capsules, *shape) for shape in (self.shape, self.u_shape))
        time, capsule, *site = torch.meshgrid(*map(torch.arange, rows), indexing="ij")
        w = torch.zeros(rows + columns, dtype=dtype)  # on the host: an oracle, not a hot path
        for delta, offsets, weight in self.shares(axis):
            moved = [i + k for i, k in zip(site, offsets, strict=True)]
            shared = self.frame_at(time + delta, frames), capsule, *self._place(moved)
            w[(time, capsule, *site, *shared)] += weight
        return w.reshape(math.prod(rows), math.prod(columns))

    def roll(
        self,
        t: Tensor,
        steps: float | Tensor,
        axis: int | Sequence[int] | Tensor = 0,
        fill: float = 0.0,
        fourier: bool = False,
    ) -> Tensor:
        """Move every capsule's activation ``steps`` sites on along ``axis`` (Eq. 18).

        Each capsule moves by its own, where ``steps`` is a tensor (capsules,), and along its own,
        where ``axis`` has one for each: (capsules,), or of every sequence too, (…, capsules).
        Between sites it is interpolated (Eq. 19), or moved by the phases of its Fourier transform.
        On an odd number of sites two such rolls are one by their sum; an even number has a wave
        that is its own opposite, of which a part of a step leaves less.
        What comes in over an open end is ``fill``.

        >>> t = torch.tensor([[0.0, 1.0, 0.0, 0.0]])  # one capsule of 4 sites
        >>> Topography(1, (4,)).roll(t, 3)
        tensor([[1., 0., 0., 0.]])
        >>> Topography(1, (4,)).roll(t, 0.5)
        tensor([[0.0000, 0.5000, 0.5000, 0.0000]])
        >>> Topography(1, (4,), cyclic=False).roll(t, 3, fill=9.0)
        tensor([[9., 9., 9., 0.]])
        """
        sites = tuple(t.shape[-len(self.shape) :])
        if sites != self.shape:
            raise BadInput(f"capsules of shape {self.shape} are rolled, not {tuple(t.shape)}")
        own = self.axis_of_each(axis)
        if own.ndim:
            if own.ndim > t.ndim - len(sites) or own.shape[-1] not in (1, self.capsules):
                raise BadInput(
                    f"axes are (…, capsules) where t is (…, capsules, *shape), not "
                    f"{tuple(own.shape)} for {tuple(t.shape)}"
                )
            each = [self.roll(t, steps, n, fill, fourier) for n in range(len(sites))]
            return chosen(each, own, len(sites))
        axis = int(own)
        if isinstance(steps, Tensor) and steps.shape == (self.capsules,):
            capsule = -len(self.shape) - 1
            moves = zip(t.unbind(capsule), steps.tolist(), strict=True)
            rolled = [self.roll(one, n, axis, fill, fourier) for one, n in moves]
            return torch.stack(rolled, capsule)
        steps = _finite("a roll is by a number of sites", steps)
        dim = axis - len(self.shape)
        if self.cyclic:
            return roll(t, steps, dim, fourier)
        if fourier:
            raise BadInput("a capsule with open ends has no Fourier phases to shift")
        room = math.ceil(abs(steps))
        wide = pad(t, (room, room), value=fill)
        return roll(wide, steps, dim).narrow(dim, room, t.shape[dim])

    def axis_of_each(self, axis: int | Sequence[int] | Tensor) -> Tensor:
        """Axes to roll along, counted from the first; refuse what is none."""
        try:
            axes = torch.as_tensor(axis)
        except (TypeError, ValueError, RuntimeError):
            axes = torch.tensor(math.nan)
        for one in axes.unique().tolist():
            if axes.is_floating_point() or one not in range(-len(self.shape), len(self.shape)):
                told = axis if axes.is_floating_point() else one
                raise BadInput(f"axis {told} is not one of the {len(self.shape)} axes of a capsule")
        if self.apart and axes.ndim and (axes != axes[..., :1]).any():
            raise BadInput("where axes are kept apart, all capsules of a sequence take the same")
        return axes % len(self.shape)

    @functools.cached_property
    def beyond(self) -> tuple[int, int]:
        """Sites that U has before the first and after the last one of Z."""
        if self.cyclic:
            return 0, 0
        drifts = [site for d in self.time_offsets for site, _ in _between(self.velocity * d)]
        reach = self.reach_offsets(0)
        return max(0, -min(drifts) - reach[0]), max(0, max(drifts) + reach[-1])

    @property
    def time_offsets(self) -> range:
        """The window: offsets in time."""
        return range(1 - self.window, 1) if self.causal else _centred(self.window)

    def reach_offsets(self, axis: int) -> range:
        """The neighbourhood along an axis: offsets in sites."""
        return _centred(self.reach[axis])

    def shares(self, axis: int | None = None) -> Iterator[tuple[int, tuple[int, ...], float]]:
        """How far, in time and in sites, and how much each square is that an energy sums."""
        along = self.along(axis)
        for delta, *ks in self._terms(axis):
            for step, weight in _between(self.velocity * delta):
                yield delta, tuple(k + step * (n == along) for n, k in enumerate(ks)), weight

    def _terms(self, axis: int | None) -> list[tuple[int, ...]]:
        """The offsets (time, *site), beside the drift, of the squares that an energy sums."""
        axes = range(len(self.shape))
        reaches = [self.reach_offsets(n) if axis in (None, n) else range(1) for n in axes]
        terms = itertools.product(self.time_offsets, *reaches)
        return [(d, *k) for d, *k in terms if self.corners or d + k[0] in self.time_offsets]

    def along(self, axis: int | None) -> int:
        """The axis that energies drift along."""
        if axis is not None and axis not in range(len(self.shape)):
            raise BadInput(f"axis {axis} is not one of the {len(self.shape)} axes of a capsule")
        return axis or 0

    def frame_at(self, time: Tensor, frames: int) -> Tensor:
        """Which frame is there, before the first and after the last one too."""
        begins = self.causal or not self.cyclic
        return time.clamp(0, frames - 1) if begins else time % frames

    def _place(self, sites: list[Tensor]) -> list[Tensor]:
        """Which site of U is there."""
        if self.cyclic:
            return [i % n for i, n in zip(sites, self.shape, strict=True)]
        return [sites[0] + self.beyond[0]]


def _finite(what: str, value: Any) -> float:
    """``value`` as a finite number, or a sentence that begins with ``what``."""
    number = math.nan
    if isinstance(value, Real) and not isinstance(value, bool):
        number = float(value)
    elif isinstance(value, Tensor) and value.ndim == 0:
        number = value.item()
    if not math.isfinite(number):
        raise BadInput(f"{what}, not {value!r}")
    return number


def _between(place: float) -> list[tuple[int, float]]:
    """The sites beside a place, and their shares of it."""
    place = round(place) if abs(place - round(place)) < NEAR else place
    below = math.floor(place)
    part = place - below
    return [(n, share) for n, share in ((below, 1 - part), (below + 1, part)) if share > 0]


def _centred(width: int) -> range:
    """As many offsets, centred; the extra one of an even number is below."""
    return range(-(width // 2), (width + 1) // 2)


def roll(t: Tensor, steps: float, dim: int, fourier: bool = False) -> Tensor:
    """``torch.roll`` by ``steps``; a fraction of a step interpolates linearly (Eq. 19), or is a
    shift of the phases of the Fourier transform (whose rolls add up on an odd number of sites).

    >>> roll(torch.tensor([1.0, 0.0, 0.0, 0.0]), 1.5, dim=0)
    tensor([0.0000, 0.5000, 0.5000, 0.0000])
    """
    whole = math.floor(steps)
    rolled, part = t.roll(whole, dim), steps - whole
    if part == 0:
        return rolled
    if not fourier:
        return (1 - part) * rolled + part * t.roll(whole + 1, dim)
    waves = torch.fft.rfftfreq(t.shape[dim], device=t.device, dtype=t.dtype)
    turned = torch.polar(torch.ones_like(waves), -2 * math.pi * steps * waves)
    turned = torch.fft.rfft(t, dim=dim).movedim(dim, -1) * turned
    return torch.fft.irfft(turned, n=t.shape[dim]).movedim(-1, dim)


def chosen(by_axis: Sequence[Tensor], axis: Tensor, sites: int) -> Tensor:
    """Of capsules (…, capsules, *shape), as they are for each axis, those for their own ``axis``
    (…, capsules); ``sites`` is how many axes the shape has."""
    found = by_axis[0]
    own = axis.to(found.device).reshape(*axis.shape, *(1,) * sites)
    for n, other in enumerate(by_axis[1:], 1):
        found = torch.where(own == n, other, found)
    return found


def _tuple_of_ints(name: str, value: Any) -> tuple[int, ...]:
    values = tuple(value) if isinstance(value, Iterable) else (value,)
    if not values:
        raise BadInput(f"{name} must have at least one axis")
    return tuple(whole_number(name, v) for v in values)
