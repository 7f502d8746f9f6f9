"""The matrices W of a stack of models, applied in one operation."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from topocaps.errors import BadInput
from topocaps.latents.interface import DerivedTopography, TopographyLike
from topocaps.latents.pooling import pool_by
from topocaps.latents.topography import Topography


class TopographyStack(DerivedTopography):
    """The topographies of a stack of models, which may differ in W.

    It takes the place of the topography in a model whose parameters have an axis for the models in
    front. The members must have the same capsules, sites and axes. Every other setting except W is
    that of the first member.

    Args:
        topographies: the topography of each model.
        frames: number of frames of the sequences.
    """

    def __init__(self, topographies: Sequence[TopographyLike], frames: int) -> None:
        self.topographies = [w for w in topographies if isinstance(w, Topography)]
        if len(self.topographies) < len(topographies):
            raise BadInput("models with a learned topography cannot share a stack")
        if len({lattice(topography) for topography in topographies}) > 1:
            raise BadInput("models of one stack must have the same capsules, sites and axes")
        super().__init__(self.topographies[0])
        self._w: dict[int | None, Tensor] = {}
        if self.start.is_small(frames):
            single = [replace(topography, capsules=1) for topography in self.topographies]
            for axis in self.axes:
                w = torch.stack([capsule.matrix(frames, axis) for capsule in single])
                # (models, 1, rows, columns); the tensors of a single model have no axis for models
                self._w[axis] = w[:, None] if len(w) > 1 else w[0]

    def to(self, like: Tensor) -> TopographyStack:
        """Move W to the device and the type of ``like``, and return the stack."""
        self._w = {axis: w.to(like.device, like.dtype) for axis, w in self._w.items()}
        return self

    def pool(self, energy: Tensor, axis: int | None = None) -> Tensor:
        """Apply W to u²: (models, batch, time, capsules, *u_shape) to (…, *shape)."""
        if self._w:
            return pool_by(self._w[axis], energy, self.shape)
        first, *others = self.topographies
        if all(other == first for other in others):
            return first.pool(energy, axis)
        pairs = zip(self.topographies, energy, strict=True)
        return torch.stack([topography.pool(u2, axis) for topography, u2 in pairs])


def lattice(topography: TopographyLike) -> tuple[object, ...]:
    """Return the settings that the topographies of one stack must share."""
    t = topography
    return t.capsules, t.shape, t.u_shape, t.axes, t.apart
