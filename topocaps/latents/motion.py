"""Motions of a code from frame to frame: candidate motions, and their prior."""

from __future__ import annotations

import itertools
import math
import operator
from abc import ABC, abstractmethod
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from topocaps.errors import BadInput, finite_number, whole_number


class Motion(ABC):
    """A finite set of candidate motions, and their prior.

    A candidate gives every capsule a velocity along each of its axes, in sites per frame. `Known`
    has one candidate and `Unknown` several. Candidates of `Changing` may change their velocity.
    `Grouped` combines the candidates of groups of capsules. Models sum the candidates out.
    """

    @abstractmethod
    def candidates(self, capsules: int, axes: int) -> Tensor:
        """Return the velocities of every candidate: (candidates, capsules, axes), in float64.

        Velocities that change from frame to frame are (candidates, capsules, axes, frames): the
        n-th one leads from frame n to frame n + 1, and the last one also to all later frames.

        Args:
            capsules: number of capsules that move.
            axes: number of axes of a capsule.
        """

    @abstractmethod
    def log_prior(self) -> Tensor:
        """Return the log-probability of every candidate: (candidates,), in float64."""


@dataclass(frozen=True)
class Known(Motion):
    """All capsules move by ``velocity`` sites per frame along ``axis``.

    With a velocity of 0 they stand still.

    >>> Known(0.5).candidates(capsules=2, axes=1)
    tensor([[[0.5000],
             [0.5000]]], dtype=torch.float64)
    """

    velocity: float = 1.0
    axis: int = 0

    def __post_init__(self) -> None:
        object.__setattr__(self, "velocity", finite_number("velocity", self.velocity))
        object.__setattr__(self, "axis", _checked_axis(self.axis))

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
    such as ``np.linspace(-2, 2, 41)``: a model with ``keep`` decodes only the most probable ones.

    Args:
        velocities: sites per frame, such as (-1, 1).
        axes: axes of the capsules.

    >>> Unknown((-1, 1), axes=(0, 1)).candidates(capsules=1, axes=2)[:, 0].tolist()
    [[-1.0, 0.0], [1.0, 0.0], [0.0, -1.0], [0.0, 1.0]]
    """

    velocities: tuple[float, ...] = (-1.0, 1.0)
    axes: tuple[int, ...] = (0,)

    def __post_init__(self) -> None:
        velocities = tuple(finite_number("a velocity", v) for v in _as_tuple(self.velocities))
        axes = tuple(_checked_axis(axis) for axis in _as_tuple(self.axes))
        object.__setattr__(self, "velocities", velocities)
        object.__setattr__(self, "axes", axes)
        if not velocities or not axes:
            raise BadInput(
                f"an unknown motion needs at least one velocity and one axis, not "
                f"velocities={velocities} and axes={axes}"
            )

    def candidates(self, capsules: int, axes: int) -> Tensor:
        _check_axes(self.axes, axes)
        pairs = itertools.product(self.axes, self.velocities)
        return torch.cat([Known(v, axis).candidates(capsules, axes) for axis, v in pairs])

    def log_prior(self) -> Tensor:
        count = len(self.velocities) * len(self.axes)
        return torch.full((count,), -math.log(count), dtype=torch.float64)


@dataclass(frozen=True)
class Changing(Motion):
    """All capsules move alike, and their velocity may change once.

    A candidate has one velocity for all frames, or one velocity up to a frame of ``frames`` and a
    different one from there on. The candidates are all such choices, and the prior is uniform.

    Args:
        velocities: sites per frame, at least two.
        frames: frames at which the velocity may change. Frame 0 is the first one.
        axis: axis of the capsules.

    >>> from topocaps.latents.capsule_motion import CapsuleMotion
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
        velocities = tuple(finite_number("a velocity", v) for v in _as_tuple(self.velocities))
        frames = tuple(whole_number("a frame of a change", n) for n in _as_tuple(self.frames))
        object.__setattr__(self, "velocities", velocities)
        object.__setattr__(self, "frames", frames)
        object.__setattr__(self, "axis", _checked_axis(self.axis))
        if len(velocities) < 2 or not frames:
            raise BadInput(
                f"a changing motion needs at least two velocities and one frame, not "
                f"velocities={velocities} and frames={frames}"
            )

    def candidates(self, capsules: int, axes: int) -> Tensor:
        _check_axes((self.axis,), axes)
        count = max(self.frames) + 1
        by_frame = [[v] * count for v in self.velocities]
        for frame in self.frames:
            for before, after in itertools.permutations(self.velocities, 2):
                by_frame.append([before] * frame + [after] * (count - frame))
        velocities = torch.zeros(len(by_frame), capsules, axes, count, dtype=torch.float64)
        velocities[:, :, self.axis] = torch.tensor(by_frame, dtype=torch.float64)[:, None]
        return velocities

    def log_prior(self) -> Tensor:
        count = len(self.velocities)
        count += count * (count - 1) * len(self.frames)
        return torch.full((count,), -math.log(count), dtype=torch.float64)


@dataclass(frozen=True)
class Grouped(Motion):
    """Groups of capsules move independently of each other.

    The first ``sizes[0]`` capsules move by ``motions[0]``, the next ``sizes[1]`` by ``motions[1]``,
    and so on. The candidates are all combinations of the groups' candidates. A group with the
    motion ``Known(0)`` stands still.

    Args:
        sizes: number of capsules of each group.
        motions: motion of each group.

    >>> two = Grouped((1, 2), (Known(0), Unknown((-1, 1))))
    >>> two.candidates(capsules=3, axes=1)[..., 0].tolist()
    [[0.0, -1.0, -1.0], [0.0, 1.0, 1.0]]
    """

    sizes: tuple[int, ...]
    motions: tuple[Motion, ...]

    def __post_init__(self) -> None:
        sizes = tuple(whole_number("a group's size", size) for size in _as_tuple(self.sizes))
        object.__setattr__(self, "sizes", sizes)
        object.__setattr__(self, "motions", _as_tuple(self.motions))
        for motion in self.motions:
            check_motion(motion)
        if not self.sizes or len(self.sizes) != len(self.motions):
            raise BadInput(
                f"each group needs a size and a motion, not {len(self.sizes)} sizes and "
                f"{len(self.motions)} motions"
            )

    def candidates(self, capsules: int, axes: int) -> Tensor:
        if sum(self.sizes) != capsules:
            raise BadInput(
                f"the sizes of the groups must sum to the {capsules} capsules, but the sum of "
                f"{self.sizes} is {sum(self.sizes)}"
            )
        groups = zip(self.sizes, self.motions, strict=True)
        by_group = _equally_long([motion.candidates(size, axes) for size, motion in groups])
        return torch.stack([torch.cat(choice) for choice in itertools.product(*by_group)])

    def log_prior(self) -> Tensor:
        choices = itertools.product(*(motion.log_prior() for motion in self.motions))
        return torch.stack([torch.stack(choice).sum() for choice in choices])


_KINDS: tuple[type[Motion], ...] = (Known, Unknown, Changing, Grouped)


def motion_settings(motion: Motion) -> dict[str, Any] | None:
    """Return the settings that `motion_from` takes, or None for a motion of another class."""
    if type(motion) not in _KINDS:
        return None
    settings = {"kind": type(motion).__name__, **vars(motion)}
    if isinstance(motion, Grouped):
        settings["motions"] = [motion_settings(group) for group in motion.motions]
        if None in settings["motions"]:
            return None
    return {name: list(v) if isinstance(v, tuple) else v for name, v in settings.items()}


def motion_from(settings: dict[str, Any]) -> Motion:
    """Return the motion of these settings.

    >>> motion_from(motion_settings(Unknown((-2, 2))))
    Unknown(velocities=(-2.0, 2.0), axes=(0,))
    """
    kinds: dict[str, type[Motion]] = {kind.__name__: kind for kind in _KINDS}
    values = {name: value for name, value in settings.items() if name != "kind"}
    if settings.get("kind") not in kinds:
        raise BadInput(
            f"this version knows no motion of kind {settings.get('kind')!r}, only "
            f"{', '.join(kinds)}"
        )
    if "motions" in values:
        values["motions"] = tuple(motion_from(group) for group in values["motions"])
    return kinds[settings["kind"]](**values)


def _as_tuple(values: Any) -> tuple[Any, ...]:
    """Return values as a tuple, also a single value."""
    return tuple(values) if isinstance(values, Iterable) else (values,)


def _equally_long(velocities: list[Tensor]) -> list[Tensor]:
    """Give the velocities of all groups the same number of frames, by repeating the last ones."""
    if all(group.ndim == 3 for group in velocities):
        return velocities
    by_frame = [group.reshape(*group.shape[:3], -1) for group in velocities]
    frame = torch.arange(max(group.shape[3] for group in by_frame))
    return [group[..., frame.clamp(max=group.shape[3] - 1)] for group in by_frame]


def _checked_axis(axis: Any) -> int:
    """Return an axis as an integer of at least 0, or raise `BadInput`."""
    try:
        number = operator.index(axis)
    except TypeError:
        number = -1
    if number < 0 or isinstance(axis, bool):
        raise BadInput(f"an axis must be a whole number of at least 0, not {axis!r}")
    return number


def check_motion(motion: Motion) -> None:
    if not isinstance(motion, Motion):
        raise BadInput(f"a motion must be a Motion such as Known(1), not {motion!r}")


def _check_axes(needed: tuple[int, ...], axes: int) -> None:
    """Raise `BadInput` unless capsules of this many axes have the needed ones."""
    if max(needed) >= axes:
        raise BadInput(
            f"a motion along axis {max(needed)} needs capsules of at least {max(needed) + 1} axes, "
            f"and these have {axes}"
        )
