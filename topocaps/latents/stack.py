"""The matrices W of a stack of models, applied as one operation."""

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
    """The topographies of a stack of models, each with a W of its own.

    It replaces the topography of a model whose parameters have an axis for the models in front.
    The members must have the same capsules, sites and axes; everything else but W is that of the
    first member.
    """

    def __init__(self, topographies: Sequence[TopographyLike], frames: int) -> None:
        self.topographies = [one for one in topographies if isinstance(one, Topography)]
        if len(self.topographies) < len(topographies):
            raise BadInput("models with a learned topography cannot share a stack")
        if len({lattice(one) for one in topographies}) > 1:
            raise BadInput("models of one stack must have the same capsules and sites")
        super().__init__(self.topographies[0])
        self._w: dict[int | None, Tensor] = {}
        if self.start.is_small(frames):
            single = [replace(one, capsules=1) for one in self.topographies]
            for axis in self.axes:
                w = torch.stack([one.matrix(frames, axis) for one in single])
                # models 1 rows columns; a single model's tensors have no axis for the models
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
        each = zip(self.topographies, energy, strict=True)
        return torch.stack([topography.pool(one, axis) for topography, one in each])


def lattice(topography: TopographyLike) -> tuple[object, ...]:
    """Return what the topographies of one stack must have in common."""
    moves = topography.axes, topography.apart
    return topography.capsules, topography.shape, topography.u_shape, *moves
