"""Sequences to learn from: how they are drawn, shown, and kept as a fixed set to measure on."""

from __future__ import annotations

import functools
import hashlib
from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass, field, fields, replace
from typing import Any, ClassVar, Self

import torch
from torch import Tensor

from topocaps.errors import BadInput, counted
from topocaps.latents.masking import zero_missing


@dataclass(frozen=True)
class Batch:
    """Frames x: (batch, time, *frame) and, where known, factors: (batch, time, factor).

    Where frames are missing, the mask (batch, time) is True for those that are present.
    """

    x: Tensor
    factors: Tensor | None
    mask: Tensor | None = None


@dataclass(frozen=True)
class SequenceSet(ABC):
    """Sequences of frames that are made, where their images are, from a short *script*.

    A script says for every frame what it shows, in whole numbers: (…, time, …). Random numbers
    choose scripts, ``show`` turns them into frames; both work on any device and for any number of
    axes in front, so that the sequences of a whole stack of models are one call.
    """

    #: frames are gathered by the host: not in a CUDA graph, and not by compiled code
    on_host: ClassVar[bool] = False

    images: Tensor

    #: BibTeX entries of the source of the images; no part of the fingerprint
    citations: tuple[str, ...] = field(default=(), kw_only=True, compare=False)

    @property
    @abstractmethod
    def names(self) -> tuple[str, ...]:
        """Of the factors."""

    @property
    @abstractmethod
    def frames(self) -> int:
        """In a sequence."""

    @property
    @abstractmethod
    def frame_shape(self) -> tuple[int, ...]: ...

    @property
    @abstractmethod
    def fewest(self) -> int:
        """Sequences of the rarest moving factor."""

    @property
    @abstractmethod
    def numbers(self) -> int:
        """Random numbers that choose one sequence."""

    @abstractmethod
    def __len__(self) -> int: ...

    @abstractmethod
    def choose(self, uniform: Tensor) -> Tensor:
        """Random scripts from random numbers, (…, numbers) in [0, 1)."""

    @abstractmethod
    def show(self, script: Tensor) -> Batch:
        """The frames and factors of scripts."""

    @abstractmethod
    def fixed(self) -> Tensor:
        """The scripts of all sequences, in order."""

    @abstractmethod
    def balanced(self, each: int | None, seed: int) -> SequenceSet:
        """A fixed set: ``each`` sequences of every moving factor (as many as the rarest has).

        Started at random frames that are then part of the set, so that everyone measures the same.
        """

    def __repr__(self) -> str:
        moving = f", {', '.join(self.names)}" if self.names else ""
        size = f"{len(self)} of {counted(self.frames, 'frame')} {tuple(self.frame_shape)}"
        return f"{type(self).__name__}({size}{moving})"

    @property
    def has_gaps(self) -> bool:
        """Whether frames are missing."""
        return False

    def whole(self) -> Self:
        """These, where none is missing; else they are refused."""
        if self.has_gaps:
            raise BadInput("measures are of whole sequences, and frames are missing in these")
        return self

    def draw(self, count: int, generator: torch.Generator) -> Batch:
        """``count`` random sequences."""
        uniform = torch.rand(count, self.numbers, generator=generator, device=generator.device)
        return self.show(self.choose(uniform))

    def batches(self, size: int) -> Iterator[Batch]:
        """All sequences, in order."""
        for script in self.fixed().split(size):
            yield self.show(script)

    def to(self, device: torch.device | str) -> Self:
        """The same sequences with everything on ``device``."""
        values = {f.name: getattr(self, f.name) for f in fields(self) if f.init}
        moved: dict[str, Any] = {
            name: value.to(device) for name, value in values.items() if isinstance(value, Tensor)
        }
        return replace(self, **moved)

    def digest(self) -> str:
        """A fingerprint of what is shown and in which order, so that data are not mixed up."""
        found = hashlib.blake2b(digest_size=8)
        values = [getattr(self, f.name) for f in fields(self) if f.compare]
        for part in (*(v for v in values if isinstance(v, Tensor)), self.fixed()):
            found.update(str((part.dtype, tuple(part.shape))).encode())
            found.update(part.cpu().contiguous().numpy().data)
        kinds = (bool, int, float, str, tuple)
        found.update(repr([v for v in values if isinstance(v, kinds)]).encode())
        return found.hexdigest()


@dataclass(frozen=True, repr=False)
class Sequences(SequenceSet):
    """Sequences held as images and the order to show them in: rows of ``order`` are indices.

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
    present: Tensor | None = None  # (images,), False for missing frames

    def __post_init__(self) -> None:
        if self.moving is not None and (self.moving.diff() < 0).any():
            raise BadInput("sequences must be sorted by the factor that moves")

    @staticmethod
    def of(frames: Any, mask: Any = None) -> SequenceSet:
        """Your own array or tensor: (sequences, time, *frame); sequences as they are.

        ``mask`` (sequences, time) is True where a frame is present. Missing frames may hold
        anything, NaN included.

        >>> own = Sequences.of(torch.rand(4, 10, 1, 8, 8))
        >>> len(own), own.frames, own.frame_shape
        (4, 10, (1, 8, 8))
        """
        frames = getattr(frames, "sequences", frames)  # what was read, with what is known of it
        if isinstance(frames, SequenceSet):
            if mask is not None:
                raise BadInput("a mask is given with an array of frames, not with sequences")
            return frames
        try:
            x = torch.as_tensor(frames)
            mask = None if mask is None else torch.as_tensor(mask).clone()
        except (TypeError, ValueError, RuntimeError) as error:
            raise BadInput(f"frames must be an array or a tensor: {error}") from error
        if x.ndim < 3:
            raise BadInput(f"frames must be (sequences, time, *frame), not {tuple(x.shape)}")
        if x.numel() == 0:
            raise BadInput(f"there are no frames in an array of shape {tuple(x.shape)}")
        x = zero_missing(x, mask)
        if mask is not None and not mask.any(1).all():
            raise BadInput("every sequence needs at least one frame that is present")
        if x.dtype not in (torch.uint8, torch.bool) and not x.is_floating_point():
            raise BadInput(f"frames must be floating point, bytes (0-255) or bool, not {x.dtype}")
        if x.dtype == torch.uint8 and x.max() <= 1:
            raise BadInput("bytes mean 0-255, and these are all 0 or 1: pass them as bool or float")
        x = x if x.dtype == torch.uint8 else x.float()
        order = torch.arange(len(x) * x.shape[1]).reshape(x.shape[:2])
        gaps = mask is not None and not mask.all()
        return Sequences(x.flatten(0, 1), order, present=mask.flatten() if gaps else None)

    @property
    def has_gaps(self) -> bool:
        return self.present is not None

    def __len__(self) -> int:
        return len(self.order)

    @property
    def numbers(self) -> int:
        return 3

    @property
    def frames(self) -> int:
        return self.order.shape[1]

    @property
    def frame_shape(self) -> tuple[int, ...]:
        return tuple(self.images.shape[1:])

    @property
    def fewest(self) -> int:
        return int(self._counts.min())

    def choose(self, uniform: Tensor) -> Tensor:  # … 3 -> … time
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

    def fixed(self) -> Tensor:
        return self.order

    def balanced(self, each: int | None, seed: int) -> Sequences:
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

    def show(self, script: Tensor) -> Batch:
        script = script.to(self.images.device)
        x = self.images[script]
        x = x.float().div_(255) if x.dtype == torch.uint8 else x
        factors, mask = (None if of is None else of[script] for of in (self.factors, self.present))
        return Batch(x, factors, mask)

    @functools.cached_property
    def _counts(self) -> Tensor:
        """Sequences of every moving factor."""
        if self.moving is None:
            return torch.tensor([len(self)], device=self.order.device)
        return torch.unique(self.moving, return_counts=True)[1]
