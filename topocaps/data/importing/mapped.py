"""Sequences in a memory-mapped file. Only the frames of a batch are read."""

from __future__ import annotations

import functools
import hashlib
import mmap
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from topocaps.data.importing.frames import Look, to_tensor
from topocaps.data.sequences import Batch, SequenceSet, bytes_to_unit

SAMPLE = 256  #: largest number of frames of the sample
_SAMPLE_BYTES = 2**26


@dataclass(frozen=True, repr=False)
class MappedSequences(SequenceSet):
    """Windows of clips in a memory-mapped array (clips, time, *frame).

    The array stays in its file. A batch is read to the host, then copied to the device of
    ``images``. A script is (…, 2): the indices of the clip and of the first frame of the window.
    """

    images: Tensor  # a sample of evenly spaced frames
    stored: NDArray[Any]  # (clips, time, *frame)
    window: int  #: number of frames of a sequence
    stride: int  #: number of frames from the start of one window to the next
    look: Look = Look()  # noqa: RUF009 (frozen)
    scripts: Tensor | None = None  # (sequences, 2) of a fixed set; None means all windows

    on_host: ClassVar[bool] = True
    names: ClassVar[tuple[str, ...]] = ()
    numbers: ClassVar[int] = 2

    @staticmethod
    def over(
        stored: NDArray[Any],
        window: int | None = None,
        stride: int | None = None,
        look: Look = Look(),  # noqa: B008 (frozen)
    ) -> MappedSequences:
        """Return all windows of an array.

        Args:
            stored: array (clips, time, *frame).
            window: number of frames of a window; by default windows are whole clips.
            stride: number of frames from the start of one window to the next; by default
                ``window``.
            look: the conversion of frames.
        """
        stored = np.asarray(stored)  # indexing an np.memmap is slow
        _Pages(stored)  # tells the system that reads are random
        window = stored.shape[1] if window is None else window
        images = look.convert(to_tensor(stored[_sample(stored)], "the array"))
        return MappedSequences(images, stored, window, stride or window, look)

    def __len__(self) -> int:
        return self.clips * self.windows_per_clip if self.scripts is None else len(self.scripts)

    @property
    def clips(self) -> int:
        return self.stored.shape[0]

    @property
    def windows_per_clip(self) -> int:
        return (self.stored.shape[1] - self.window) // self.stride + 1

    @functools.cached_property
    def _pages(self) -> _Pages:
        return _Pages(self.stored)

    @property
    def frames(self) -> int:
        return self.window

    @property
    def frame_shape(self) -> tuple[int, ...]:
        return tuple(self.images.shape[1:])

    def choose(self, uniform: Tensor) -> Tensor:  # … 2 -> … 2
        clip, window = uniform.double().unbind(-1)
        if self.scripts is not None:
            return self.scripts.to(uniform.device)[(clip * len(self.scripts)).long()]
        start = (window * self.windows_per_clip).long() * self.stride
        return torch.stack([(clip * self.clips).long(), start], -1)

    def show(self, script: Tensor) -> Batch:
        clip, start = script.cpu().unbind(-1)
        for row, first in zip(clip.flatten().tolist(), start.flatten().tolist(), strict=True):
            self._pages.prefetch(self.stored[row, first : first + self.window])
        time = start[..., None] + torch.arange(self.window)
        frames = self.stored[clip[..., None].numpy(), time.numpy()]
        x = self.look.convert(to_tensor(frames, "the array").to(self.images.device))
        return Batch(bytes_to_unit(x), None)

    def fixed(self) -> Tensor:
        if self.scripts is not None:
            return self.scripts
        start = torch.arange(self.windows_per_clip) * self.stride
        return torch.cartesian_prod(torch.arange(self.clips), start)

    def balanced(self, each: int | None, seed: int) -> MappedSequences:
        if each is None or each >= len(self):
            return self
        generator = torch.Generator().manual_seed(seed)
        chosen = torch.randperm(len(self), generator=generator)[:each]
        return replace(self, scripts=self.fixed()[chosen].to(self.images.device))

    def of_clips(self, clips: Tensor) -> MappedSequences:
        """Return all windows of these clips."""
        scripts = self.fixed().unflatten(0, (self.clips, -1))[clips].flatten(0, 1)
        return replace(self, scripts=scripts.to(self.images.device))

    def nonfinite_clip(self) -> int | None:
        """Return the index of a clip with NaN or infinite values in the sample, or None."""
        if not self.images.is_floating_point():
            return None
        bad = ~self.images.flatten(1).isfinite().all(1).cpu().numpy()
        return int(_sample(self.stored)[0][bad][0]) if bad.any() else None

    def digest(self) -> str:
        """Return a fingerprint of the settings and of the sample, not of every frame."""
        sample = np.ascontiguousarray(self.stored[_sample(self.stored)])
        settings = (self.stored.shape, sample.dtype.str, self.window, self.stride, self.look)
        fingerprint = hashlib.blake2b(repr(settings).encode(), digest_size=8)
        fingerprint.update(sample.data)
        if self.scripts is not None:
            fingerprint.update(self.scripts.cpu().contiguous().numpy().data)
        return fingerprint.hexdigest()


def _sample(stored: NDArray[Any]) -> tuple[NDArray[Any], NDArray[Any]]:
    """Return clip and time indices of frames that are evenly spaced over the array."""
    clips, length = stored.shape[:2]
    count = max(2, min(SAMPLE, _SAMPLE_BYTES // max(1, stored[0, 0].nbytes)))
    index = np.unique(np.linspace(0, clips * length - 1, count).round().astype(np.int64))
    return index // length, index % length


class _Pages:
    """The memory pages of a mapped array, for advice to the operating system.

    Without advice, the system reads pages one by one, and megabytes around each. The advice is that
    access is random, and which pages come next, so it reads these alone and all at once. 640 random
    sequences of 48 kB from 30 GB then take 0.12 s instead of 12 s with a read-ahead of 8 MB. Arrays
    in memory need no advice.
    """

    def __init__(self, stored: NDArray[Any]) -> None:
        base: Any = stored
        while isinstance(base, np.ndarray):
            base = base.base
        self._map = base if isinstance(base, mmap.mmap) and hasattr(base, "madvise") else None
        if self._map is not None:
            self._first = np.frombuffer(self._map, np.uint8).ctypes.data
            self._map.madvise(mmap.MADV_RANDOM)

    def prefetch(self, block: NDArray[Any]) -> None:
        """Start to read a part of the array, unless it is scattered over much more of the file."""
        steps = zip(block.shape, block.strides, strict=True)
        extent = sum((n - 1) * step for n, step in steps) + block.itemsize
        if self._map is not None and extent <= 2 * block.nbytes:
            first = block.ctypes.data - self._first
            start = first // mmap.PAGESIZE * mmap.PAGESIZE
            self._map.madvise(mmap.MADV_WILLNEED, start, first + extent - start)
