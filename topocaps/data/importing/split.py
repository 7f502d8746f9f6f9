"""Imported sequences: their windows, and their split into training and held-out sequences."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from topocaps.data.importing.mapped import MappedSequences
from topocaps.data.sequences import Sequences, SequenceSet
from topocaps.data.transforms import MovingImages
from topocaps.errors import BadInput, check_seed, counted, whole_number

ClipName = Callable[[int], str]  # of an index: an array may have millions of clips


@dataclass(frozen=True)
class Windows:
    """Windows of ``frames`` that start every ``stride`` frames; without ``frames``, whole clips."""

    frames: int | None = None
    stride: int | None = None

    def __post_init__(self) -> None:
        for name in ("frames", "stride"):
            if getattr(self, name) is not None:
                object.__setattr__(self, name, whole_number(name, getattr(self, name)))
        if self.stride is not None and self.frames is None:
            raise BadInput("stride is from one window to the next: say how many frames= it has too")

    def cut(self, lengths: Tensor) -> tuple[Tensor, Tensor]:
        """Return the frames (windows, frames) and clips of all windows, of concatenated clips."""
        frames = self.frames or int(lengths[0])
        stride = self.stride or frames
        counts = (lengths - frames) // stride + 1
        clips = torch.arange(len(lengths)).repeat_interleave(counts)
        nth = torch.arange(len(clips)) - (counts.cumsum(0) - counts)[clips]
        first = (lengths.cumsum(0) - lengths)[clips] + nth * stride
        return first[:, None] + torch.arange(frames), clips

    def too_short(self, lengths: Sequence[int], named: ClipName, skip_bad: bool) -> list[int]:
        """Return the indices of clips shorter than a window; refuse them unless ``skip_bad``."""
        if self.frames is None:
            other = next((n for n, length in enumerate(lengths) if length != lengths[0]), None)
            if other is not None:
                raise BadInput(
                    f"{named(0)} has {counted(lengths[0], 'frame')} and {named(other)} "
                    f"{lengths[other]}: say how many frames= to cut all into, such as "
                    f"frames={min(lengths)}"
                )
            return []
        short = [n for n, length in enumerate(lengths) if length < self.frames]
        if short and (not skip_bad or len(short) == len(lengths)):
            raise BadInput(
                f"{named(short[0])} has {counted(lengths[short[0]], 'frame')}, fewer than frames="
                f"{self.frames}: take fewer"
            )
        return short


@dataclass(frozen=True)
class Imported:
    """Sequences, a summary of what was read and inferred, and the clip of each sequence."""

    sequences: SequenceSet
    summary: dict[str, Any]  #: plain data
    clips: Tensor | None = None  # (sequences,)

    @property
    def likelihood(self) -> str:
        """The likelihood of a decoder for these frames: "bernoulli" or "gaussian"."""
        return self.summary["likelihood"]

    def cut(self, frames: int, stride: int) -> Imported:
        """Cut sequences, which must be whole clips, into windows. No file is read again."""
        if isinstance(self.sequences, MappedSequences):
            sequences: SequenceSet = replace(self.sequences, window=frames, stride=stride)
            clips = None
        elif isinstance(self.sequences, Sequences):
            lengths = torch.full((len(self.sequences),), self.sequences.frames)
            windows, clips = Windows(frames, stride).cut(lengths)
            order = self.sequences.order.flatten()[windows.to(self.sequences.order.device)]
            sequences = replace(self.sequences, order=order)
        else:
            raise BadInput(f"{type(self.sequences).__name__} cannot be cut into windows")
        changed = {"sequences": len(sequences), "frames": frames}
        return Imported(sequences, self.summary | changed, clips)

    def __str__(self) -> str:
        summary = self.summary
        shape = " x ".join(map(str, summary["frame_shape"]))
        text = (
            f"{summary['kind']}: {counted(summary['sequences'], 'sequence')} of "
            f"{counted(summary['frames'], 'frame')}, "
            f"{shape}, {summary['dtype']}, {summary['likelihood']}"
        )
        if summary.get("axes"):
            text += f"; axes are taken as {summary['axes']}"
        if summary.get("shrunk"):
            text += f"; pictures of {' and '.join(summary['shrunk'])} were made that small"
        if summary["skipped"]:
            text += f"; {len(summary['skipped'])} skipped: {', '.join(summary['skipped'])}"
        if summary["left_aside"]:
            more = len(summary["left_aside"]) - 1
            text += f"; left aside: {summary['left_aside'][0]}" + f" and {more} more" * (more > 0)
        return text


def split(
    imported: Imported | SequenceSet, share: float = 0.2, seed: int = 0
) -> tuple[SequenceSet, SequenceSet]:
    """Return training and held-out sequences of different clips, or of different pictures.

    A single clip is split in time. ``share`` is held out; ``seed`` chooses the clips.

    >>> from topocaps.data import read
    >>> train, held_out = split(read(torch.rand(10, 6, 1, 8, 8)))
    >>> len(train), len(held_out)
    (8, 2)
    """
    check_seed(seed)
    if not 0 < share < 1:
        raise BadInput(f"share must be between 0 and 1, not {share!r}")
    sequences = imported if isinstance(imported, SequenceSet) else imported.sequences
    if isinstance(sequences, MappedSequences) and sequences.scripts is None:
        if sequences.clips == 1:
            return _split_mapped_in_time(sequences, share)
        train, held_out = _split_clips(torch.arange(sequences.clips), share, seed)
        return sequences.of_clips(train), sequences.of_clips(held_out)
    if isinstance(sequences, MovingImages) and sequences.scripts is None:
        train, held_out = _split_clips(torch.arange(len(sequences.images)), share, seed)
        return sequences.of_images(train), sequences.of_images(held_out)
    clips = None if isinstance(imported, SequenceSet) else imported.clips
    if not isinstance(sequences, Sequences) or clips is None:
        raise BadInput("only sequences that were read, or made of pictures, can be split")
    if len(clips.unique()) == 1:
        train, held_out = _split_in_time(sequences.order, share)
    else:
        train, held_out = (torch.isin(clips, c) for c in _split_clips(clips.unique(), share, seed))
    return _select(sequences, train), _select(sequences, held_out)


def _select(sequences: Sequences, which: Tensor) -> Sequences:
    moving = None if sequences.moving is None else sequences.moving[which]
    return replace(sequences, order=sequences.order[which], moving=moving)


def _split_clips(clips: Tensor, share: float, seed: int) -> tuple[Tensor, Tensor]:
    if len(clips) < 2:
        raise BadInput("one picture cannot be split: give more of them")
    held_out = min(max(1, round(share * len(clips))), len(clips) - 1)
    order = clips[torch.randperm(len(clips), generator=torch.Generator().manual_seed(seed))]
    return order[held_out:].sort().values, order[:held_out].sort().values


def _split_in_time(order: Tensor, share: float) -> tuple[Tensor, Tensor]:
    """Return masks of the last windows of a clip, and of those that end before these begin."""
    after = torch.arange(len(order)) >= len(order) - max(1, round(share * len(order)))
    before = order[:, -1] < order[after][0, 0]
    if not before.any():
        raise _too_short(int(order.max()) + 1)
    return before, after


def _split_mapped_in_time(
    sequences: MappedSequences, share: float
) -> tuple[MappedSequences, MappedSequences]:
    windows = sequences.windows_per_clip
    cut = (windows - max(1, round(share * windows))) * sequences.stride
    if cut < sequences.window:
        raise _too_short(sequences.stored.shape[1])
    before, after = sequences.stored[:, :cut], sequences.stored[:, cut:]
    return replace(sequences, stored=before), replace(sequences, stored=after)


def _too_short(frames: int) -> BadInput:
    return BadInput(
        f"one clip of {frames} frames has no windows to hold out: give more clips, or take fewer "
        f"frames at a time, such as frames={max(4, frames // 4)}"
    )
