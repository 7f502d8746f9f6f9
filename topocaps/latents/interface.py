"""The interface of a matrix W, and the base class of topographies with a different W."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from torch import Tensor

from topocaps.latents.topography import Topography


class TopographyLike(Protocol):
    """Interface of a matrix W: all that models, priors, metrics and training use of it.

    `Topography`, `LearnedTopography` and `TopographyStack` implement it.
    """

    @property
    def capsules(self) -> int:
        """Number of capsules in a frame."""

    @property
    def shape(self) -> tuple[int, ...]:
        """Sites of a capsule along each of its axes, for z and t."""

    @property
    def u_shape(self) -> tuple[int, ...]:
        """Sites of a capsule along each of its axes, for u; open ends need more than ``shape``."""

    @property
    def axes(self) -> tuple[int | None, ...]:
        """Values that the argument ``axis`` of ``pool`` takes; (None,) if there is one energy."""

    @property
    def apart(self) -> bool:
        """Whether each sequence moves along one of several axes, and models sum out which one."""

    @property
    def window(self) -> int:
        """Number of frames over which an energy sums squares."""

    @property
    def cyclic(self) -> bool:
        """Whether the sites of a capsule form a circle, instead of having two open ends."""

    @property
    def causal(self) -> bool:
        """Whether an energy sums squares of the present and past frames only."""

    @property
    def velocity(self) -> float:
        """Sites by which activity moves per frame, as one number for all capsules."""

    @property
    def rate(self) -> float | Tensor:
        """Sites by which t is expected to move per frame; learned velocities are (capsules,)."""

    def squares(self, axis: int | None) -> int:
        """Return the number of squares that an energy sums."""

    def check(self, frames: int) -> None:
        """Raise `BadInput` if a sequence of this many frames cannot be pooled."""

    def axis_of_each(self, axis: int | Sequence[int] | Tensor) -> Tensor:
        """Return the axes to roll along as a tensor of indices from 0.

        Raise `BadInput` if a capsule does not have such an axis.
        """

    def pool(self, energy: Tensor, axis: int | None = None) -> Tensor:
        """Apply W to u²: (batch, time, capsules, *u_shape) to (batch, time, capsules, *shape)."""

    def roll(
        self,
        t: Tensor,
        steps: float | Tensor,
        axis: int | Sequence[int] | Tensor = 0,
        fill: float = 0.0,
    ) -> Tensor:
        """Move the activity of every capsule by ``steps`` sites along ``axis`` (Eq. 18).

        Args:
            steps: one number for all capsules, or a tensor (capsules,).
            axis: one axis for all capsules, or one for each: (capsules,) or (…, capsules).
            fill: value of the sites that enter over an open end.
        """


class DerivedTopography:
    """Base of topographies that differ from a `Topography` only in W.

    A subclass defines ``pool``. Everything else is taken from ``start``.
    """

    def __init__(self, start: Topography) -> None:
        super().__init__()
        self.start = start
        self.capsules, self.shape, self.u_shape = start.capsules, start.shape, start.u_shape
        self.axes, self.apart = start.axes, start.apart
        self.window, self.cyclic, self.causal = start.window, start.cyclic, start.causal
        self.squares, self.check = start.squares, start.check
        self.axis_of_each, self.roll = start.axis_of_each, start.roll

    @property
    def velocity(self) -> float:
        """Sites by which activity moves per frame: the velocity of ``start``."""
        return self.start.velocity

    @property
    def rate(self) -> float | Tensor:
        """Sites by which t is expected to move per frame: the velocity of ``start``."""
        return self.start.velocity
