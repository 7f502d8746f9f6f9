"""The matrix W of the Topographic VAE: which latents share their variance."""

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
from topocaps.latents.pooling import NEAR, capsule_matrix, pool_by, sums
from topocaps.latents.rolling import chosen, roll

KELLER_2021 = """\
@inproceedings{keller2021topographic,
  title = {Topographic {VAEs} learn Equivariant Capsules},
  author = {Keller, T. Anderson and Welling, Max},
  booktitle = {Advances in Neural Information Processing Systems},
  volume = {34},
  year = {2021},
  url = {https://arxiv.org/abs/2109.01394},
}"""

SMALL = 512  # largest size, sites times frames, of a capsule whose W is applied as a dense matrix


@dataclass(frozen=True)
class Topography:
    r"""The matrix :math:`W` of Eq. 5, over (time, capsule, \*site).

    The energy of a latent sums the squares that share its variance (Eq. 8 and 9):

    .. math:: \mathrm{energy}[l, i] = \sum_{\delta} \sum_{k} u^2[l + \delta,\; i + v \delta + k]

    Different capsules share no squares.

    Args:
        capsules: number of capsules in a frame.
        shape: sites of a capsule along each of its axes.
        reach: number of sites :math:`k` along each axis (K of the paper). An odd reach is centred;
            an even one has its extra site below.
        window: number of frames :math:`\delta` (2L of the paper). An odd window is centred; an even
            one has its extra frame in the past.
        velocity: sites per frame :math:`v`, along the first axis. 1 is shifting coherence (TVAE),
            and 0 is stationary coherence (Bubbles). At fractions, neighbouring squares are
            interpolated.
        corners: whether every frame of the window has the full reach, as in Eq. 9. The released
            code drops the corners of the band: at the ends of the window, a reach of 3 has 2 sites.
        cyclic: whether time and sites are cyclic. Otherwise capsules have open ends (C.2), U has
            sites beyond them (``u_shape``), and the first and the last frame repeat outside the
            sequence.
        causal: whether the window ends at the present frame (Eq. 22). Time is then not cyclic.
        apart: whether a sequence moves along one axis as a whole, and models sum out which one (not
            in the papers).

    Capsules that have several axes, a window above 1 and a velocity other than 0 have one energy
    per axis, selected by ``axis``. By default t uses all energies (Eq. 21), so that each feature of
    t may move along its own axis. With ``apart`` it uses one of them.

    Read literally, Eq. 9 with Eq. 18 couples the opposite diagonal, which contradicts the paper's
    cov(T²[l, i], T²[l-1, i-1]) > 0. This class follows that statement and Eq. 13.

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
        velocity = _finite("velocity must be a number of sites per frame", self.velocity)
        object.__setattr__(self, "velocity", velocity)
        if abs(self.velocity) > max(shape):
            raise BadInput(
                f"velocity must be at most {max(shape)} sites per frame, once around a capsule, "
                f"not {self.velocity:g}"
            )
        if not self.cyclic and len(shape) > 1:
            raise BadInput(f"cyclic=False needs capsules of one axis, not of shape {shape}")
        if self.apart and self.axes == (None,):
            raise BadInput("apart=True needs at least 2 axes, window > 1 and velocity ≠ 0")
        banded = len(shape) == 1 and self.velocity == 1 and self.cyclic and not self.causal
        if not self.corners and (not banded or reach[0] > self.window):
            raise BadInput(
                "corners=False needs one cyclic axis, velocity 1, a centred window and a reach "
                "of at most the window"
            )

    def settings(self) -> dict[str, Any]:
        """Return the settings as run folders record them.

        ``apart`` is left out if it is False, as in folders older than this setting.
        """
        recorded = asdict(self)
        if not self.apart:
            del recorded["apart"]
        return recorded

    @property
    def rate(self) -> float:
        """Sites by which t is expected to move per frame: the velocity."""
        return self.velocity

    @property
    def latents(self) -> int:
        """Number of latents in one frame: capsules times sites."""
        return self.capsules * math.prod(self.shape)

    @property
    def u_shape(self) -> tuple[int, ...]:
        """Sites of a capsule along each axis, for u: those of z and those beyond open ends."""
        before, after = self.beyond
        return (self.shape[0] + before + after, *self.shape[1:])

    @property
    def axes(self) -> tuple[int | None, ...]:
        """Values that the argument ``axis`` of ``pool`` takes; (None,) if there is one energy."""
        moves = self.window > 1 and self.velocity != 0
        return tuple(range(len(self.shape))) if moves and len(self.shape) > 1 else (None,)

    @property
    def degrees_of_freedom(self) -> int:
        """Nu: the number of squares that an energy sums; the smallest of several energies.

        An interpolated square counts once. A frame that repeats outside the sequence counts at each
        of its offsets.
        """
        return min(self.squares(axis) for axis in self.axes)

    def squares(self, axis: int | None) -> int:
        """Return the number of squares that an energy sums."""
        return len(self._offsets(axis))

    def check(self, frames: int) -> None:
        """Raise `BadInput` if a sequence of this many frames cannot be pooled."""
        if self.window > frames:
            raise BadInput(f"window {self.window} is longer than the sequence of {frames} frames")
        if not (self.corners or self.is_small(frames)):
            raise BadInput(f"corners=False needs capsules of at most {SMALL} sites times frames")

    def frames_of(self, energy: Tensor) -> int:
        """Return the number of frames of u², or raise `BadInput` if it cannot be pooled."""
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
        """Whether the settings determine W. False in subclasses, which may override ``pool``."""
        return type(self) is Topography

    def is_small(self, frames: int) -> bool:
        """Whether W of one capsule is applied as a dense matrix."""
        return frames * math.prod(self.shape) <= SMALL

    def pool(self, energy: Tensor, axis: int | None = None) -> Tensor:
        """Apply W to u²: (batch, time, capsules, *u_shape) to (batch, time, capsules, *shape).

        At a given velocity, the cost does not depend on the window and the reach. Terms are only
        added, so a non-negative u² gives non-negative energies.

        Args:
            energy: u², (batch, time, capsules, *u_shape).
            axis: the axis whose energies are returned, if capsules have one energy per axis.
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
        """Return W as a dense matrix, built term by term from the definition.

        Rows are (time, capsule, *site) of z in that order, columns the same of u. The tests compare
        ``pool`` with it.
        """
        self.check(frames)
        rows, columns = ((frames, self.capsules, *shape) for shape in (self.shape, self.u_shape))
        time, capsule, *site = torch.meshgrid(*map(torch.arange, rows), indexing="ij")
        w = torch.zeros(rows + columns, dtype=dtype)  # on the CPU: speed does not matter here
        before, _ = self.beyond
        for delta, offsets, weight in self.terms(axis):
            moved = zip(site, offsets, self.u_shape, strict=True)
            place = [(i + k + before) % sites for i, k, sites in moved]
            shared = self.frame_at(time + delta, frames), capsule, *place
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
        """Move the activity of every capsule by ``steps`` sites along ``axis`` (Eq. 18).

        Args:
            steps: one number for all capsules, or a tensor (capsules,). Fractions of a step
                interpolate linearly (Eq. 19).
            axis: one axis for all capsules, or one for each: (capsules,) or (…, capsules).
            fill: value of the sites that enter over an open end.
            fourier: shift the phases of the Fourier transform instead of interpolating. On an odd
                number of sites, two such rolls equal one roll by the sum of their steps. On an even
                number, a fraction of a step shrinks the wave of the highest frequency.

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
            raise BadInput(
                f"roll takes (…, capsules, *shape) with shape {self.shape}, not {tuple(t.shape)}"
            )
        axes = self.axis_of_each(axis)
        if axes.ndim:
            if axes.ndim > t.ndim - len(sites) or axes.shape[-1] not in (1, self.capsules):
                raise BadInput(
                    f"axis must be (…, capsules) for t (…, capsules, *shape), not "
                    f"{tuple(axes.shape)} for {tuple(t.shape)}"
                )
            by_axis = [self.roll(t, steps, n, fill, fourier) for n in range(len(sites))]
            return chosen(by_axis, axes, len(sites))
        axis = int(axes)
        if isinstance(steps, Tensor) and steps.shape == (self.capsules,):
            capsule = -len(self.shape) - 1
            moves = zip(t.unbind(capsule), steps.tolist(), strict=True)
            rolled = [self.roll(values, n, axis, fill, fourier) for values, n in moves]
            return torch.stack(rolled, capsule)
        steps = _finite("steps must be a finite number of sites", steps)
        dim = axis - len(self.shape)
        if self.cyclic:
            return roll(t, steps, dim, fourier)
        if fourier:
            raise BadInput("fourier=True needs cyclic capsules")
        room = math.ceil(abs(steps))
        wide = pad(t, (room, room), value=fill)
        return roll(wide, steps, dim).narrow(dim, room, t.shape[dim])

    def axis_of_each(self, axis: int | Sequence[int] | Tensor) -> Tensor:
        """Return the axes to roll along as a tensor of indices from 0.

        Raise `BadInput` if a capsule does not have such an axis.
        """
        try:
            axes = torch.as_tensor(axis)
        except (TypeError, ValueError, RuntimeError):
            axes = torch.tensor(math.nan)
        for n in axes.unique().tolist():
            if axes.is_floating_point() or n not in range(-len(self.shape), len(self.shape)):
                given = axis if axes.is_floating_point() else n
                raise BadInput(
                    f"axis {given} is not one of the {len(self.shape)} axes of a capsule"
                )
        if self.apart and axes.ndim and (axes != axes[..., :1]).any():
            raise BadInput("with apart=True, all capsules of a sequence must have the same axis")
        return axes % len(self.shape)

    @functools.cached_property
    def beyond(self) -> tuple[int, int]:
        """Number of sites that u has before the first and after the last site of z."""
        if self.cyclic:
            return 0, 0
        drifts = [site for d in self.time_offsets for site, _ in _between(self.velocity * d)]
        reach = self.reach_offsets(0)
        return max(0, -min(drifts) - reach[0]), max(0, max(drifts) + reach[-1])

    @property
    def time_offsets(self) -> range:
        """Offsets in time of the frames of a window."""
        return range(1 - self.window, 1) if self.causal else _centred(self.window)

    def reach_offsets(self, axis: int) -> range:
        """Return the offsets of the sites within reach along an axis."""
        return _centred(self.reach[axis])

    def terms(self, axis: int | None = None) -> Iterator[tuple[int, tuple[int, ...], float]]:
        """Yield the offset in time, the offsets in sites, and the weight of each term of W."""
        along = self.along(axis)
        for delta, *ks in self._offsets(axis):
            for step, weight in _between(self.velocity * delta):
                yield delta, tuple(k + step * (n == along) for n, k in enumerate(ks)), weight

    def _offsets(self, axis: int | None) -> list[tuple[int, ...]]:
        """Return the offsets (time, *site) of the squares of an energy, without the velocity."""
        axes = range(len(self.shape))
        reaches = [self.reach_offsets(n) if axis in (None, n) else range(1) for n in axes]
        terms = itertools.product(self.time_offsets, *reaches)
        return [(d, *k) for d, *k in terms if self.corners or d + k[0] in self.time_offsets]

    def along(self, axis: int | None) -> int:
        """Return the axis along which energies move: the first, unless ``axis`` is given."""
        if axis is not None and axis not in range(len(self.shape)):
            raise BadInput(f"axis {axis} is not one of the {len(self.shape)} axes of a capsule")
        return axis or 0

    def frame_at(self, time: Tensor, frames: int) -> Tensor:
        """Return the index of the frame at each time, which may lie outside the sequence."""
        open_time = self.causal or not self.cyclic
        return time.clamp(0, frames - 1) if open_time else time % frames


def _finite(requirement: str, value: Any) -> float:
    """Return ``value`` as a finite number, or raise `BadInput` that begins with a requirement."""
    number = math.nan
    if isinstance(value, Real) and not isinstance(value, bool):
        number = float(value)
    elif isinstance(value, Tensor) and value.ndim == 0:
        number = value.item()
    if not math.isfinite(number):
        raise BadInput(f"{requirement}, not {value!r}")
    return number


def _between(place: float) -> list[tuple[int, float]]:
    """Return the sites next to a place, with the weights that interpolate between them."""
    place = round(place) if abs(place - round(place)) < NEAR else place
    below = math.floor(place)
    part = place - below
    return [(n, weight) for n, weight in ((below, 1 - part), (below + 1, part)) if weight > 0]


def _centred(width: int) -> range:
    """Return ``width`` centred offsets; an even width has its extra offset below 0."""
    return range(-(width // 2), (width + 1) // 2)


def _tuple_of_ints(name: str, value: Any) -> tuple[int, ...]:
    """Return one whole number per axis, or raise `BadInput` about ``name``."""
    values = tuple(value) if isinstance(value, Iterable) else (value,)
    if not values:
        raise BadInput(f"{name} must have at least one axis")
    return tuple(whole_number(name, v) for v in values)
