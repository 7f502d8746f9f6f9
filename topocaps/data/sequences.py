"""Sequences held as images and the order in which to show them."""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from topocaps.errors import BadInput


@dataclass(frozen=True)
class Batch:
    """Frames x: (batch, time, *frame) and, where known, factors: (batch, time, factor)."""

    x: Tensor
    factors: Tensor | None


@dataclass(frozen=True)
class Sequences:
    """Rows of ``order`` are sequences: indices of the images they show.

    ``moving`` says for each sequence which factor runs through its values; a draw first chooses
    the factor, so that each is seen equally often, then a sequence, then, where sequences are
    ``cyclic``, the frame it starts at.
    """

    images: Tensor  # (images, *frame), floating point or bytes (255 is 1)
    order: Tensor  # (sequences, time)
    factors: Tensor | None = None  # (images, factor)
    names: tuple[str, ...] = ()
    moving: Tensor | None = None  # (sequences,), sorted
    cyclic: bool = False

    def __post_init__(self) -> None:
        if self.moving is not None and (self.moving.diff() < 0).any():
            raise BadInput("sequences must be sorted by the factor that moves")

    @classmethod
    def of(cls, frames: Any) -> Sequences:
        """Your own array or tensor: (sequences, time, *frame), or Sequences as they are."""
        if isinstance(frames, Sequences):
            return frames
        try:
            x = torch.as_tensor(frames)
        except (TypeError, ValueError, RuntimeError) as error:
            raise BadInput(f"frames must be an array or a tensor: {error}") from error
        if x.ndim < 3:
            raise BadInput(f"frames must be (sequences, time, *frame), not {tuple(x.shape)}")
        if x.numel() == 0:
            raise BadInput(f"there are no frames in an array of shape {tuple(x.shape)}")
        if x.dtype not in (torch.uint8, torch.bool) and not x.is_floating_point():
            raise BadInput(f"frames must be floating point, bytes (0-255) or bool, not {x.dtype}")
        if x.dtype == torch.uint8 and x.max() <= 1:
            raise BadInput("bytes mean 0-255, and these are all 0 or 1: pass them as bool or float")
        x = x if x.dtype == torch.uint8 else x.float()
        return cls(x.flatten(0, 1), torch.arange(len(x) * x.shape[1]).reshape(x.shape[:2]))

    def __len__(self) -> int:
        return len(self.order)

    @property
    def frames(self) -> int:
        return self.order.shape[1]

    @property
    def frame_shape(self) -> tuple[int, ...]:
        return tuple(self.images.shape[1:])

    @property
    def fewest(self) -> int:
        """Sequences of the rarest moving factor."""
        return int(self._counts.min())

    def digest(self) -> str:
        """A fingerprint of what is shown and in which order, so that data are not mixed up."""
        found = hashlib.blake2b(digest_size=8)
        for part in (self.images, self.order):
            found.update(str((part.dtype, tuple(part.shape))).encode())
            found.update(part.cpu().contiguous().numpy().data)
        return found.hexdigest()

    def to(self, device: torch.device | str) -> Sequences:
        """The same sequences with everything on ``device``."""
        return replace(
            self,
            images=self.images.to(device),
            order=self.order.to(device),
            factors=None if self.factors is None else self.factors.to(device),
            moving=None if self.moving is None else self.moving.to(device),
        )

    def draw(self, count: int, generator: torch.Generator) -> Batch:
        """``count`` random sequences."""
        uniform = torch.rand(count, 3, generator=generator, device=generator.device)
        return self.show(self.choose(uniform))

    def choose(self, uniform: Tensor) -> Tensor:
        """Random sequences from random numbers, (…, 3) in [0, 1): image indices (…, time)."""
        group, row, start = uniform.double().unbind(-1)
        counts = self._counts.to(uniform.device)
        chosen = (group * len(counts)).long()
        rows = (counts.cumsum(0) - counts)[chosen] + (row * counts[chosen]).long()
        return self._order_from(rows, (start * self.frames).long())

    def _order_from(self, rows: Tensor, start: Tensor) -> Tensor:
        """Image indices of these sequences, from these frames on where they are cyclic."""
        time = torch.arange(self.frames, device=rows.device)
        if self.cyclic:
            time = (time + start[..., None]) % self.frames
        return self.order.to(rows.device)[rows[..., None], time]

    def balanced(self, each: int | None, seed: int) -> Sequences:
        """A fixed set: ``each`` sequences of every moving factor (as many as the rarest has).

        Started at random frames that are then part of the set, so that everyone measures the same.
        """
        generator = torch.Generator().manual_seed(seed)
        counts = self._counts
        each = min(self.fewest, each or len(self))
        rows, first = [], 0
        for n in counts.tolist():
            rows.append(first + torch.randperm(n, generator=generator)[:each])
            first += n
        chosen = torch.cat(rows)  # on the host, like the generator
        moving = None if self.moving is None else self.moving[chosen]
        start = torch.randint(self.frames, (len(chosen),), generator=generator)
        order = self._order_from(chosen, start)
        return replace(self, order=order, moving=moving, cyclic=False)

    def batches(self, size: int) -> Iterator[Batch]:
        """All sequences, in order."""
        for order in self.order.split(size):
            yield self.show(order)

    def show(self, order: Tensor) -> Batch:
        """The frames and factors of image indices (batch, time)."""
        order = order.to(self.images.device)
        x = self.images[order]
        x = x.float().div_(255) if x.dtype == torch.uint8 else x
        return Batch(x, None if self.factors is None else self.factors[order])

    @functools.cached_property
    def _counts(self) -> Tensor:
        """Sequences of every moving factor."""
        if self.moving is None:
            return torch.tensor([len(self)], device=self.order.device)
        return torch.unique(self.moving, return_counts=True)[1]
