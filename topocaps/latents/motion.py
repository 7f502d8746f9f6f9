"""How a code moves from frame to frame: candidate motions, their prior, and the rolls."""

from __future__ import annotations

import itertools
import math
import operator
from abc import ABC, abstractmethod
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor, nn

from topocaps.errors import BadInput, finite_number, whole_number
from topocaps.latents.paths import Paths

NORMALISED = 1e-4  # magnitude of the log of a sum of probabilities that counts as 1


class Motion(ABC):
    """A finite set of candidate motions, and their prior.

    A candidate gives every capsule a velocity along each of its axes, in sites a frame. `Known` has
    one candidate, `Unknown` several, those of `Changing` change their velocity, and `Grouped`
    combines the candidates of groups of capsules. Models sum candidates out.
    """

    @abstractmethod
    def candidates(self, capsules: int, axes: int) -> Tensor:
        """Return the velocities of every candidate: (candidates, capsules, axes), in float64.

        If they change from frame to frame, they are (candidates, capsules, axes, frames): the n-th
        leads from frame n to frame n + 1, and the last one also to all later frames.

        Args:
            capsules: number of capsules that move.
            axes: number of axes that each of them has.
        """

    @abstractmethod
    def log_prior(self) -> Tensor:
        """Return the log-probability of every candidate: (candidates,), in float64."""


@dataclass(frozen=True)
class Known(Motion):
    """All capsules move by ``velocity`` sites a frame along ``axis``; a velocity of 0 is rest.

    >>> Known(0.5).candidates(capsules=2, axes=1)
    tensor([[[0.5000],
             [0.5000]]], dtype=torch.float64)
    """

    velocity: float = 1.0
    axis: int = 0

    def __post_init__(self) -> None:
        object.__setattr__(self, "velocity", finite_number("velocity", self.velocity))
        object.__setattr__(self, "axis", _axis(self.axis))

    def candidates(self, capsules: int, axes: int) -> Tensor:
        _check_axes((self.axis,), axes)
        velocities = torch.zeros(1, capsules, axes, dtype=torch.float64)
        velocities[..., self.axis] = self.velocity
        return velocities

    def log_prior(self) -> Tensor:
        return torch.zeros(1, dtype=torch.float64)


@dataclass(frozen=True)
class Unknown(Motion):
    """All capsules move alike, with one of ``velocities`` along one of ``axes``.

    The prior is uniform over all pairs of a velocity and an axis. Velocities may be a fine grid,
    such as ``np.linspace(-2, 2, 41)``: with ``keep``, models decode only the probable ones.

    >>> Unknown((-1, 1), axes=(0, 1)).candidates(capsules=1, axes=2)[:, 0].tolist()
    [[-1.0, 0.0], [1.0, 0.0], [0.0, -1.0], [0.0, 1.0]]
    """

    velocities: tuple[float, ...] = (-1.0, 1.0)
    axes: tuple[int, ...] = (0,)

    def __post_init__(self) -> None:
        velocities = tuple(finite_number("a velocity", v) for v in _several(self.velocities))
        object.__setattr__(self, "velocities", velocities)
        object.__setattr__(self, "axes", tuple(_axis(axis) for axis in _several(self.axes)))
        if not self.velocities or not self.axes:
            raise BadInput("an unknown motion needs at least one velocity and one axis")

    def candidates(self, capsules: int, axes: int) -> Tensor:
        _check_axes(self.axes, axes)
        each = itertools.product(self.axes, self.velocities)
        return torch.cat([Known(v, axis).candidates(capsules, axes) for axis, v in each])

    def log_prior(self) -> Tensor:
        count = len(self.velocities) * len(self.axes)
        return torch.full((count,), -math.log(count), dtype=torch.float64)


@dataclass(frozen=True)
class Changing(Motion):
    """All capsules move alike, and their velocity may change at one of some frames.

    The candidates are: each of the velocities for all frames, and each pair of different velocities
    with each frame of the change. The prior is uniform over them.

    Args:
        velocities: sites a frame.
        frames: frames at which it may change, counted from the first frame, which is 0.
        axis: axis of the capsules.

    >>> turns = CapsuleMotion(Changing((-1, 1), frames=3), capsules=1, shape=(9,))
    >>> for candidate in range(len(turns)):
    ...     print(turns.shifts(candidate, torch.arange(6)).flatten().int().tolist())
    [0, -1, -2, -3, -4, -5]
    [0, 1, 2, 3, 4, 5]
    [0, -1, -2, -3, -2, -1]
    [0, 1, 2, 3, 2, 1]
    """

    velocities: tuple[float, ...]
    frames: tuple[int, ...]
    axis: int = 0

    def __post_init__(self) -> None:
        velocities = tuple(finite_number("a velocity", v) for v in _several(self.velocities))
        frames = tuple(whole_number("a frame of a change", n) for n in _several(self.frames))
        object.__setattr__(self, "velocities", velocities)
        object.__setattr__(self, "frames", frames)
        object.__setattr__(self, "axis", _axis(self.axis))
        if len(velocities) < 2 or not frames:
            raise BadInput("a changing motion needs at least two velocities and one frame")

    def candidates(self, capsules: int, axes: int) -> Tensor:
        _check_axes((self.axis,), axes)
        count = max(self.frames) + 1
        each = [[v] * count for v in self.velocities]
        for frame in self.frames:
            for before, after in itertools.permutations(self.velocities, 2):
                each.append([before] * frame + [after] * (count - frame))
        velocities = torch.zeros(len(each), capsules, axes, count, dtype=torch.float64)
        velocities[:, :, self.axis] = torch.tensor(each, dtype=torch.float64)[:, None]
        return velocities

    def log_prior(self) -> Tensor:
        count = len(self.velocities)
        count += count * (count - 1) * len(self.frames)
        return torch.full((count,), -math.log(count), dtype=torch.float64)


@dataclass(frozen=True)
class Grouped(Motion):
    """Groups of capsules that move independently: the first ``sizes[0]`` capsules by
    ``motions[0]``, the next ``sizes[1]`` by ``motions[1]``, and so on.

    The candidates are all combinations of the groups' candidates. A group stands still with
    ``Known(0)``.

    >>> two = Grouped((1, 2), (Known(0), Unknown((-1, 1))))
    >>> two.candidates(capsules=3, axes=1)[..., 0].tolist()
    [[0.0, -1.0, -1.0], [0.0, 1.0, 1.0]]
    """

    sizes: tuple[int, ...]
    motions: tuple[Motion, ...]

    def __post_init__(self) -> None:
        sizes = tuple(whole_number("a group's size", size) for size in _several(self.sizes))
        object.__setattr__(self, "sizes", sizes)
        object.__setattr__(self, "motions", _several(self.motions))
        for motion in self.motions:
            _check_motion(motion)
        if not self.sizes or len(self.sizes) != len(self.motions):
            raise BadInput(
                f"each group needs a size and a motion, not {len(self.sizes)} sizes and "
                f"{len(self.motions)} motions"
            )

    def candidates(self, capsules: int, axes: int) -> Tensor:
        if sum(self.sizes) != capsules:
            raise BadInput(
                f"groups of {', '.join(map(str, self.sizes))} capsules make {sum(self.sizes)}, "
                f"and there are {capsules}"
            )
        groups = zip(self.sizes, self.motions, strict=True)
        each = _equally_long([motion.candidates(size, axes) for size, motion in groups])
        return torch.stack([torch.cat(one) for one in itertools.product(*each)])

    def log_prior(self) -> Tensor:
        each = itertools.product(*(motion.log_prior() for motion in self.motions))
        return torch.stack([torch.stack(one).sum() for one in each])


class CapsuleMotion(nn.Module):
    """A `Motion` of capsules of one shape, which rolls codes and precisions as `Paths` do.

    Every candidate gives each capsule one of the paths. Different candidates share paths: with two
    groups of capsules and n velocities of each, there are n² candidates and n paths.

    >>> moves = CapsuleMotion(Known(1), capsules=1, shape=(5,))
    >>> code = torch.tensor([[1.0, 0.0, 0.0, 0.0, 0.0]])
    >>> moves.roll(code, candidate=0, steps=2)
    tensor([[0., 0., 1., 0., 0.]])
    """

    path_of: Tensor  #: index of the path of every capsule, (candidates, capsules)
    log_prior: Tensor  #: (candidates,)

    def __init__(
        self, motion: Motion, capsules: int, shape: tuple[int, ...], cyclic: bool = True
    ) -> None:
        super().__init__()
        _check_motion(motion)
        each, log_prior = motion.candidates(capsules, len(shape)), motion.log_prior()
        _check_candidates(each, capsules, len(shape))
        _check_prior(log_prior, len(each))
        velocities, path_of = each.flatten(0, 1).unique(dim=0, return_inverse=True)
        self.paths = Paths(velocities, shape, cyclic)
        path_of = path_of.unflatten(0, each.shape[:2])
        _check_different(self.paths.first_alike()[path_of], tuple(shape), cyclic)
        self.register_buffer("path_of", path_of, persistent=False)
        self.register_buffer("log_prior", log_prior.to(torch.get_default_dtype()), persistent=False)

    def __len__(self) -> int:
        return self.log_prior.shape[-1]

    @property
    def velocities(self) -> Tensor:
        """Velocities of every candidate, in sites a frame: (candidates, capsules, axes).

        If they change from frame to frame, they are (candidates, capsules, axes, frames).
        """
        each = self.paths.velocities[self.path_of]
        return each.squeeze(-1) if each.shape[-1] == 1 else each

    def shifts(self, candidate: int | Tensor, steps: int | Tensor) -> Tensor:
        """Return how far capsules have rolled ``steps`` frames later: (…, capsules, axes).

        Args:
            candidate: index of a candidate, or a tensor of them that broadcasts with ``steps``.
            steps: a whole number of frames, or an integer tensor of them; negative is earlier.
        """
        steps = torch.as_tensor(steps, device=self.path_of.device)
        return self.paths.shifts(self.path_of[candidate], steps[..., None])

    def roll(self, code: Tensor, candidate: int | Tensor, steps: int | Tensor) -> Tensor:
        """Return codes as they are ``steps`` frames later: (…, capsules, *shape).

        Args:
            code: (…, capsules, *shape).
            candidate: index of a candidate, or a tensor of them that broadcasts with ``steps`` and
                with the first axes of ``code``.
            steps: a whole number of frames, or an integer tensor of them; negative is earlier.
        """
        return self.paths.roll(code, self.shifts(candidate, steps))


_KINDS: tuple[type[Motion], ...] = (Known, Unknown, Changing, Grouped)


def motion_settings(motion: Motion) -> dict[str, Any] | None:
    """Return the settings that `motion_from` takes, or None for a motion of your own."""
    if type(motion) not in _KINDS:
        return None
    settings = {"kind": type(motion).__name__, **asdict(motion)}  # type: ignore[call-overload]
    if isinstance(motion, Grouped):
        groups = [motion_settings(one) for one in motion.motions]
        if None in groups:
            return None
        settings["motions"] = groups
    return {name: list(v) if isinstance(v, tuple) else v for name, v in settings.items()}


def motion_from(settings: dict[str, Any]) -> Motion:
    """Return the motion of these settings.

    >>> motion_from(motion_settings(Unknown((-2, 2))))
    Unknown(velocities=(-2.0, 2.0), axes=(0,))
    """
    kinds: dict[str, type[Motion]] = {one.__name__: one for one in _KINDS}
    values = {name: value for name, value in settings.items() if name != "kind"}
    if settings.get("kind") not in kinds:
        raise BadInput(f"this version knows no motion of kind {settings.get('kind')!r}")
    if "motions" in values:
        values["motions"] = tuple(motion_from(one) for one in values["motions"])
    return kinds[settings["kind"]](**values)


def _several(values: Any) -> tuple[Any, ...]:
    return tuple(values) if isinstance(values, Iterable) else (values,)


def _equally_long(velocities: list[Tensor]) -> list[Tensor]:
    """Repeat the last velocities of groups if those of another group change for longer."""
    frames = [one.shape[3] if one.ndim == 4 else 1 for one in velocities]
    longest = max(frames)
    if longest == 1:
        return velocities
    each = [one.reshape(*one.shape[:3], n) for one, n in zip(velocities, frames, strict=True)]
    return [
        torch.cat([one, one[..., -1:].expand(*one.shape[:3], longest - n)], -1)
        for one, n in zip(each, frames, strict=True)
    ]


def _axis(axis: Any) -> int:
    try:
        number = operator.index(axis)
    except TypeError:
        number = -1
    if number < 0 or isinstance(axis, bool):
        raise BadInput(f"an axis must be a whole number of at least 0, not {axis!r}")
    return number


def _check_motion(motion: Motion) -> None:
    if not isinstance(motion, Motion):
        raise BadInput(f"a motion must be a Motion such as Known(1), not {motion!r}")


def _check_candidates(each: Tensor, capsules: int, axes: int) -> None:
    if each.ndim not in (3, 4) or each.shape[1:3] != (capsules, axes) or not each.numel():
        raise BadInput(
            f"candidates must have the shape (candidates, capsules, axes) = (…, {capsules}, "
            f"{axes}), or frames after these, not {tuple(each.shape)}"
        )
    if not each.isfinite().all():
        raise BadInput("candidate motions have velocities that are not finite")


def _check_prior(log_prior: Tensor, candidates: int) -> None:
    """Raise `BadInput` unless these are the log-probabilities of a distribution over candidates.

    Models would otherwise return bounds that are none.
    """
    if log_prior.shape != (candidates,):
        raise BadInput(
            f"log_prior must have the shape (candidates,) = ({candidates},), not "
            f"{tuple(log_prior.shape)}"
        )
    log_sum = log_prior.double().logsumexp(0).item()
    if not abs(log_sum) < NORMALISED:
        raise BadInput(
            f"the probabilities of candidate motions must sum to 1: the log of their sum is "
            f"{log_sum:.3g}, so subtract log_prior.logsumexp(0) from log_prior"
        )


def _check_axes(asked: tuple[int, ...], axes: int) -> None:
    if max(asked) >= axes:
        has = "1 axis, axis 0" if axes == 1 else f"{axes} axes, the last is axis {axes - 1}"
        raise BadInput(f"a motion along axis {max(asked)} needs capsules with it: these have {has}")


def _check_different(path_of: Tensor, shape: tuple[int, ...], cyclic: bool) -> None:
    """Raise `BadInput` if two candidates have the same path for every capsule.

    Args:
        path_of: indices of paths that differ, (candidates, capsules).
        shape: sites of a capsule.
        cyclic: whether capsules are rings.
    """
    first: dict[tuple[int, ...], int] = {}
    for candidate, paths in enumerate(map(tuple, path_of.tolist())):
        same = first.setdefault(paths, candidate)
        if same != candidate:
            where = f"rings of {shape} sites" if cyclic else f"capsules of {shape} sites"
            raise BadInput(
                f"candidate motions {same} and {candidate} are the same on {where}: give each "
                "motion once"
            )
