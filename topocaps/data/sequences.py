"""Sets of sequences: random draws for training, and fixed sets for evaluation."""

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
    """Frames of several sequences, with their factors and their mask."""

    x: Tensor  # (batch, time, *frame)
    factors: Tensor | None  # (batch, time, factor); None if they are unknown
    mask: Tensor | None = None  # (batch, time), True for present frames; None if all are present


def bytes_to_unit(x: Tensor) -> Tensor:
    """Convert bytes to float32 in [0, 1]; other values stay as they are."""
    return x.float().div_(255) if x.dtype == torch.uint8 else x


@dataclass(frozen=True)
class SequenceSet(ABC):
    """Sequences of frames, each made from a *script* on the device of the images.

    A script (…, time, …) holds integers that determine each frame. ``choose`` maps random numbers
    to scripts, and ``show`` maps scripts to frames. Both work on any device and with any number of
    leading axes, so that one call makes the sequences of a whole stack of models.
    """

    #: True if the host reads the frames, which excludes CUDA graphs and compiled code
    on_host: ClassVar[bool] = False

    images: Tensor

    #: BibTeX entries of the source of the images, which the digest ignores
    citations: tuple[str, ...] = field(default=(), kw_only=True, compare=False)

    @property
    @abstractmethod
    def names(self) -> tuple[str, ...]:
        """The names of the factors; empty if they are unknown."""

    @property
    @abstractmethod
    def frames(self) -> int:
        """The number of frames of a sequence."""

    @property
    @abstractmethod
    def frame_shape(self) -> tuple[int, ...]:
        """The shape of a frame: (channels, height, width) for pictures."""

    @property
    @abstractmethod
    def numbers(self) -> int:
        """The number of random numbers that choose a sequence."""

    @abstractmethod
    def __len__(self) -> int: ...

    @abstractmethod
    def choose(self, uniform: Tensor) -> Tensor:
        """Return scripts for random numbers (…, numbers) in [0, 1)."""

    @abstractmethod
    def show(self, script: Tensor) -> Batch:
        """Return the frames and factors of scripts."""

    @abstractmethod
    def fixed(self) -> Tensor:
        """Return the scripts of all sequences, in order."""

    @abstractmethod
    def balanced(self, each: int | None, seed: int) -> SequenceSet:
        """Return a fixed set with equally many sequences of every moving factor, for evaluation.

        The set contains the random start of each sequence, so every model is evaluated on the same
        frames.

        Args:
            each: sequences of every factor, at most as many as the rarest factor has; None takes
                as many as possible.
            seed: seed of the random numbers.
        """

    def __repr__(self) -> str:
        moving = f", {', '.join(self.names)}" if self.names else ""
        size = f"{len(self)} of {counted(self.frames, 'frame')} {tuple(self.frame_shape)}"
        return f"{type(self).__name__}({size}{moving})"

    def in_training_of(self, script: Tensor) -> Tensor | None:
        """Return which frames have poses that occur in training, (…, time); None if all do."""
        return None

    def whole(self) -> Self:
        """Return these sequences, or raise `BadInput` if frames are missing."""
        return self

    def draw(self, count: int, generator: torch.Generator) -> Batch:
        """Draw ``count`` random sequences."""
        uniform = torch.rand(count, self.numbers, generator=generator, device=generator.device)
        return self.show(self.choose(uniform))

    def batches(self, size: int) -> Iterator[Batch]:
        """Iterate over all sequences, in order."""
        for script in self.fixed().split(size):
            yield self.show(script)

    def to(self, device: torch.device | str) -> Self:
        """Return the same sequences with all tensors on ``device``."""
        values = {f.name: getattr(self, f.name) for f in fields(self) if f.init}
        moved: dict[str, Any] = {
            name: value.to(device) for name, value in values.items() if isinstance(value, Tensor)
        }
        return replace(self, **moved)

    def digest(self) -> str:
        """Return a fingerprint of the frames and their order. A run refuses data with another."""
        fingerprint = hashlib.blake2b(digest_size=8)
        values = [getattr(self, f.name) for f in fields(self) if f.compare]
        for part in (*(v for v in values if isinstance(v, Tensor)), self.fixed()):
            fingerprint.update(str((part.dtype, tuple(part.shape))).encode())
            fingerprint.update(part.cpu().contiguous().numpy().data)
        settings = [v for v in values if isinstance(v, bool | int | float | str | tuple)]
        fingerprint.update(repr(settings).encode())
        return fingerprint.hexdigest()


@dataclass(frozen=True, repr=False)
class Sequences(SequenceSet):
    """Sequences as indices into images.

    A draw chooses a moving factor, then a sequence in which it moves, then the first frame if
    sequences are ``cyclic``. All factors are therefore equally frequent.
    """

    numbers: ClassVar[int] = 3

    images: Tensor  # (images, *frame), floating point or bytes (255 is 1)
    order: Tensor  # (sequences, time), indices of images
    factors: Tensor | None = None  # (images, factor)
    names: tuple[str, ...] = ()
    moving: Tensor | None = None  # (sequences,), the factor that changes; sorted
    cyclic: bool = False  #: whether the first frame follows the last
    present: Tensor | None = None  # (images,), False for missing frames
    in_training: Tensor | None = None  # (images,), False for poses that do not occur in training

    def __post_init__(self) -> None:
        if self.moving is not None and (self.moving.diff() < 0).any():
            raise BadInput("moving must be sorted: sort the rows of order and of moving by it")

    @staticmethod
    def of(frames: Any, mask: Any = None) -> SequenceSet:
        """Make sequences from an array or a tensor.

        Args:
            frames: frames (sequences, time, *frame): floating point, bytes (0-255) or booleans. A
                `SequenceSet`, or what `read` returned, gives its own sequences.
            mask: booleans (sequences, time), True where a frame is present; by default all are.
                Missing frames may hold any value, including NaN.

        >>> sequences = Sequences.of(torch.rand(4, 10, 1, 8, 8))
        >>> len(sequences), sequences.frames, sequences.frame_shape
        (4, 10, (1, 8, 8))
        """
        frames = getattr(frames, "sequences", frames)  # `read` returns an `Imported`
        if isinstance(frames, SequenceSet):
            if mask is not None:
                raise BadInput(
                    "a mask needs an array of frames, not sequences: pass the array with its mask"
                )
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
            raise BadInput(
                "bytes must be 0-255, but these are all 0 or 1: pass them as bool or float"
            )
        x = x if x.dtype == torch.uint8 else x.float()
        order = torch.arange(len(x) * x.shape[1]).reshape(x.shape[:2])
        gaps = mask is not None and not mask.all()
        return Sequences(x.flatten(0, 1), order, present=mask.flatten() if gaps else None)

    def in_training_of(self, script: Tensor) -> Tensor | None:
        return None if self.in_training is None else self.in_training[script]

    def whole(self) -> Self:
        if self.present is not None:
            raise BadInput(
                "metrics need whole sequences, but some frames are missing: pass sequences without "
                "a mask"
            )
        return self

    def __len__(self) -> int:
        return len(self.order)

    @property
    def frames(self) -> int:
        return self.order.shape[1]

    @property
    def frame_shape(self) -> tuple[int, ...]:
        return tuple(self.images.shape[1:])

    def choose(self, uniform: Tensor) -> Tensor:  # … 3 -> … time
        group, row, start = uniform.double().unbind(-1)
        counts = self._counts.to(uniform.device)
        chosen = (group * len(counts)).long()
        rows = (counts.cumsum(0) - counts)[chosen] + (row * counts[chosen]).long()
        return self._order_from(rows, (start * self.frames).long())

    def _order_from(self, rows: Tensor, start: Tensor) -> Tensor:
        """Return the image indices of these rows; cyclic sequences begin at ``start``."""
        time = torch.arange(self.frames, device=rows.device)
        if self.cyclic:
            time = (time + start[..., None]) % self.frames
        return self.order.to(rows.device)[rows[..., None], time]

    def fixed(self) -> Tensor:
        return self.order

    def balanced(self, each: int | None, seed: int) -> Sequences:
        generator = torch.Generator().manual_seed(seed)
        counts = self._counts.tolist()
        each = min(*counts, each or len(self))
        parts = torch.arange(len(self)).split(counts)  # on the CPU, like the generator
        chosen = torch.cat([p[torch.randperm(len(p), generator=generator)[:each]] for p in parts])
        moving = None if self.moving is None else self.moving[chosen]
        start = torch.randint(self.frames, (len(chosen),), generator=generator)
        order = self._order_from(chosen, start)
        return replace(self, order=order, moving=moving, cyclic=False)

    def show(self, script: Tensor) -> Batch:
        script = script.to(self.images.device)
        factors = None if self.factors is None else self.factors[script]
        mask = None if self.present is None else self.present[script]
        return Batch(bytes_to_unit(self.images[script]), factors, mask)

    @functools.cached_property
    def _counts(self) -> Tensor:
        """The number of sequences of every moving factor."""
        if self.moving is None:
            return torch.tensor([len(self)], device=self.order.device)
        return torch.unique(self.moving, return_counts=True)[1]
