"""Sequences that stay in their file: only what a batch shows is read."""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from topocaps.data.own.frames import Look, held
from topocaps.data.own.gather import none_to_hold_out
from topocaps.data.own.pages import Pages
from topocaps.data.sequences import Batch, SequenceSet

SAMPLE = 256  #: frames that stand for all of them
_SAMPLE_BYTES = 2**26


@dataclass(frozen=True, repr=False)
class MappedSequences(SequenceSet):
    """Windows of ``window`` frames, every ``stride``, of clips in a memory-mapped array.

    The array stays on the host and in its file, wherever ``images`` (a sample of the frames, evenly
    spaced) goes; frames shown go there. A script is (…, 2): a clip, and the frame to start at.
    """

    images: Tensor
    stored: NDArray[Any]  # (clips, time, *frame)
    window: int
    stride: int
    look: Look = Look()  # noqa: RUF009 (frozen)
    scripts: Tensor | None = None  # (sequences, 2): a fixed set, else all windows

    on_host: ClassVar[bool] = True  #: frames are gathered by the host: not in a CUDA graph
    names: ClassVar[tuple[str, ...]] = ()

    @staticmethod
    def over(
        stored: NDArray[Any],
        window: int | None = None,
        stride: int | None = None,
        look: Look = Look(),  # noqa: B008 (frozen)
    ) -> MappedSequences:
        """All windows (whole clips unless given) of an array (clips, time, *frame)."""
        stored = np.asarray(stored)  # not its subclass, which is slow to index
        Pages(stored)  # from now on, it is read in no order
        window = stored.shape[1] if window is None else window
        images = look.wanted(held(stored[_places(stored)], "the array"))
        return MappedSequences(images, stored, window, stride or window, look)

    def __len__(self) -> int:
        return self.clips * self._each if self.scripts is None else len(self.scripts)

    @property
    def clips(self) -> int:
        return self.stored.shape[0]

    @property
    def _each(self) -> int:
        """Windows of a clip."""
        return (self.stored.shape[1] - self.window) // self.stride + 1

    @functools.cached_property
    def _pages(self) -> Pages:
        return Pages(self.stored)

    @property
    def frames(self) -> int:
        return self.window

    @property
    def frame_shape(self) -> tuple[int, ...]:
        return tuple(self.images.shape[1:])

    @property
    def fewest(self) -> int:
        return len(self)

    @property
    def numbers(self) -> int:
        return 2

    def choose(self, uniform: Tensor) -> Tensor:  # … 2 -> … 2
        clip, window = uniform.double().unbind(-1)
        if self.scripts is not None:  # a fixed set: one of its sequences
            return self.scripts.to(uniform.device)[(clip * len(self.scripts)).long()]
        start = (window * self._each).long() * self.stride
        return torch.stack([(clip * self.clips).long(), start], -1)

    def show(self, script: Tensor) -> Batch:
        clip, start = script.cpu().unbind(-1)
        for row, first in zip(clip.flatten().tolist(), start.flatten().tolist(), strict=True):
            self._pages.expect(self.stored[row, first : first + self.window])
        time = start[..., None] + torch.arange(self.window)
        frames = self.stored[clip[..., None].numpy(), time.numpy()]
        x = self.look.wanted(held(frames, "the array").to(self.images.device))
        return Batch(x.float().div_(255) if x.dtype == torch.uint8 else x, None)

    def fixed(self) -> Tensor:
        return self._at(torch.arange(len(self)))

    def batches(self, size: int) -> Iterator[Batch]:
        for first in range(0, len(self), size):
            yield self.show(self._at(torch.arange(first, min(first + size, len(self)))))

    def _at(self, place: Tensor) -> Tensor:
        """The scripts at these places of the whole order."""
        if self.scripts is not None:
            return self.scripts[place.to(self.scripts.device)]
        return torch.stack([place // self._each, place % self._each * self.stride], -1)

    def balanced(self, each: int | None, seed: int) -> MappedSequences:
        if each is None or each >= len(self):
            return self
        generator = torch.Generator().manual_seed(seed)
        places = torch.randperm(len(self), generator=generator)[:each]
        return replace(self, scripts=self._at(places).to(self.images.device))

    def of_clips(self, clips: Tensor) -> MappedSequences:
        """All windows of these clips."""
        start = torch.arange(self._each) * self.stride
        pairs = torch.broadcast_tensors(clips[:, None], start)
        scripts = torch.stack(pairs, -1).flatten(0, 1)
        return replace(self, scripts=scripts.to(self.images.device))

    def in_time(self, share: float) -> tuple[MappedSequences, MappedSequences]:
        """What comes before, and the last ``share`` of the windows; they share no frame."""
        cut = (self._each - max(1, round(share * self._each))) * self.stride
        if cut < self.window:
            raise none_to_hold_out(self.stored.shape[1])
        return (
            replace(self, stored=self.stored[:, :cut]),
            replace(self, stored=self.stored[:, cut:]),
        )

    def not_finite(self) -> int | None:
        """A clip in which the sample meets NaN or an infinite value."""
        if not self.images.is_floating_point():
            return None
        bad = ~self.images.flatten(1).isfinite().all(1).cpu().numpy()
        return int(_places(self.stored)[0][bad][0]) if bad.any() else None

    def digest(self) -> str:
        """Of sizes and of a sample of the frames: not all of them are read."""
        sample = np.ascontiguousarray(self.stored[_places(self.stored)])
        told = (self.stored.shape, sample.dtype.str, self.window, self.stride, self.look)
        found = hashlib.blake2b(repr(told).encode(), digest_size=8)
        found.update(sample.data)
        if self.scripts is not None:
            found.update(self.scripts.cpu().contiguous().numpy().data)
        return found.hexdigest()


def _places(stored: NDArray[Any]) -> tuple[NDArray[Any], NDArray[Any]]:
    """Clips and times of frames that are evenly spaced over the whole array."""
    clips, length = stored.shape[:2]
    count = max(2, min(SAMPLE, _SAMPLE_BYTES // max(1, stored[0, 0].nbytes)))
    places = np.unique(np.linspace(0, clips * length - 1, count).round().astype(np.int64))
    return places // length, places % length
