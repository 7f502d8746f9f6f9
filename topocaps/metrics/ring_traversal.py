"""Frames that a rolling VAE decodes from the code of a sequence, rolled once round its capsules."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Self

import torch
from torch import Tensor

from topocaps.metrics.decoded_traversal import frames_of
from topocaps.models.rolling import RollingVAE

_NEAR = 1e-4  # sites: frames closer than this to a site lie on it


@dataclass(frozen=True, repr=False)
class RingTraversal:
    """The frames of a code that is rolled by 0, 1, 2, … sites along the motion of its sequence.

    The fastest capsules roll by so many sites, and the others in proportion. There are as many
    offsets as sites.
    """

    x: Tensor  #: the input, (batch, time, *frame)
    visible: Tensor  #: frames that the code has seen, (batch, time)
    rolled: Tensor  #: decoded frames, (batch, offsets, *frame)
    frame: Tensor  #: index of the frame of x at each offset, (batch, offsets); −1 if there is none

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
        t = model.posterior(x, visible).mean
        velocities = model.motions.velocities[model.motion(x, visible).probs.argmax(-1)]
        speed = velocities.abs().amax((1, 2))  # sites a frame, of the fastest capsules
        steps = velocities / torch.where(speed > 0, speed, 1.0)[:, None, None]
        ever = (model.motions.velocities != 0).flatten(0, 1).any(0).tolist()
        sites = [n for n, moves in zip(model.topography.shape, ever, strict=True) if moves]
        offsets = range(max(sites or model.topography.shape))
        rolled = torch.stack([_rolled(model, t, offset * steps) for offset in offsets], 1)
        place = speed[:, None] * torch.arange(x.shape[1], device=x.device)  # batch time
        near = (place[:, None] - torch.tensor(offsets, device=x.device)[:, None]).abs() < _NEAR
        frame = torch.where(near.any(2), near.int().argmax(2), -1)
        return cls(x, visible, model.decode(rolled), frame)


def _rolled(model: RollingVAE, t: Tensor, steps: Tensor) -> Tensor:
    """Roll the capsules of every sequence by its own steps, (batch, capsules, axes)."""
    topography = model.topography
    for axis in range(len(topography.shape)):
        pairs = zip(t, steps[..., axis], strict=True)
        each = [topography.roll(one, by, axis, fourier=topography.cyclic) for one, by in pairs]
        t = torch.stack(each)
    return t
