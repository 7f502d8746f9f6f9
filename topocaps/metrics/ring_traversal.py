"""Frames that a rolling VAE decodes from the code of a sequence, rolled once round its capsules."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Self

import torch
from torch import Tensor

from topocaps.latents.paths import NEAR
from topocaps.latents.rolling import roll_each
from topocaps.latents.topography import Topography
from topocaps.metrics.decoded_traversal import frames_of
from topocaps.models.rolling import RollingVAE


@dataclass(frozen=True, repr=False)
class RingTraversal:
    """The frames of a code that is rolled by 0, 1, 2, … sites along the motion of its sequence.

    The fastest capsules roll by so many sites, and the others in proportion. If the velocity of the
    motion changes, the code rolls along the first velocity that is not 0. There are as many offsets
    as sites.
    """

    x: Tensor  #: the input, (batch, time, *frame)
    visible: Tensor  #: frames that the code has seen, (batch, time)
    rolled: Tensor  #: decoded frames, (batch, offsets, *frame)
    #: index of the first frame of x whose code is rolled by the offset, (batch, offsets); −1 if
    #: there is none. On rings, a whole turn is no roll.
    frame: Tensor

    def __repr__(self) -> str:
        sequences, offsets = self.frame.shape
        return f"{type(self).__name__}({sequences} sequences, {offsets} offsets)"

    @classmethod
    @torch.no_grad()
    def of(cls, model: RollingVAE, x: Any, *, mask: Tensor | None = None) -> Self:
        """Encode the visible frames as one code, roll it along the likeliest motion, and decode.

        Args:
            x: frames (batch, time, *frame), one sequence (time, *frame), or `Sequences`.
            mask: booleans (batch, time) or (time,), True where a frame is visible; by default all.
        """
        x = frames_of(model, x)
        visible = torch.ones(x.shape[:2], dtype=torch.bool) if mask is None else mask
        visible = visible.to(x.device).expand(x.shape[:2])
        seen, _ = model.given(x, visible)
        q, motion = model.likeliest(seen, model.posteriors(seen, visible), visible)
        motions, topography = model.motions, model.topography
        sites = zip(topography.shape, motions.paths.moves, strict=True)
        count = max([n for n, moves in sites if moves] or topography.shape)
        offsets, times = (torch.arange(n, device=x.device) for n in (count, x.shape[1]))
        steps = _directions(motions.paths.velocities[motions.path_of[motion]])
        shifts = offsets[:, None, None] * steps[:, None]  # batch offsets capsules axes
        frames = motions.shifts(motion[:, None], times)  # batch time capsules axes
        same = _same_roll(topography, shifts[:, :, None], frames[:, None])  # batch offsets time
        frame = torch.where(same.any(2), same.int().argmax(2), -1)
        rolled = _rolled(topography, q.mean[:, None], shifts)
        return cls(x, visible, model.decode(rolled), frame)


def _directions(velocities: Tensor) -> Tensor:
    """Return the directions of motions, (batch, capsules, axes): of the fastest capsules, 1.

    Args:
        velocities: sites a frame, (batch, capsules, axes, frames).
    """
    moving = (velocities != 0).flatten(1, 2).any(1)  # batch frames
    first = moving.int().argmax(1)
    velocity = velocities[torch.arange(len(velocities), device=velocities.device), ..., first]
    speed = velocity.abs().amax((1, 2), keepdim=True)
    return velocity / torch.where(speed > 0, speed, 1.0)


def _same_roll(topography: Topography, shifts: Tensor, others: Tensor) -> Tensor:
    """Return whether capsules are rolled alike by two shifts, each (…, capsules, axes)."""
    apart = shifts - others
    if topography.cyclic:
        sites = torch.tensor(topography.shape, dtype=apart.dtype, device=apart.device)
        apart = apart - sites * (apart / sites).round()
    return (apart.abs() < NEAR).flatten(-2).all(-1)


def _rolled(topography: Topography, t: Tensor, shifts: Tensor) -> Tensor:
    """Roll capsules (…, capsules, *shape) by shifts (…, capsules, axes)."""
    axes = len(topography.shape)
    shifts = shifts.reshape(*shifts.shape[:-1], *(1,) * axes, axes)
    t = t.expand(*shifts.shape[: -axes - 1], *topography.shape)
    for axis in range(axes):
        t = roll_each(
            t,
            shifts[..., axis],
            axis - axes,
            fractional=True,
            fourier=topography.cyclic,
            cyclic=topography.cyclic,
        )
    return t
