"""Imported sequences, their windows, and their split into training and held-out sequences."""

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

FEWEST = 4  # frames of the shortest windows that messages suggest

#: Returns the name of the clip with an index. It is a function, as there may be millions of clips.
ClipName = Callable[[int], str]


@dataclass(frozen=True)
class Windows:
    """The windows that clips are cut into."""

    frames: int | None = None  #: number of frames of a window; None means whole clips
    stride: int | None = None  #: frames from one window to the next; None means ``frames``

    def __post_init__(self) -> None:
        for name in ("frames", "stride"):
            if getattr(self, name) is not None:
                object.__setattr__(self, name, whole_number(name, getattr(self, name)))
        if self.stride is not None and self.frames is None:
            raise BadInput("stride needs windows: say how many frames= a window has")

    def cut(self, lengths: Tensor) -> tuple[Tensor, Tensor]:
        """Cut concatenated clips into windows.

        Args:
            lengths: number of frames of every clip, (clips,).

        Returns:
            The indices of the frames of every window, (windows, frames), and of its clip,
            (windows,).
        """
        frames = self.frames or int(lengths[0])
        stride = self.stride or frames
        counts = (lengths - frames) // stride + 1
        clips = torch.arange(len(lengths)).repeat_interleave(counts)
        nth = torch.arange(len(clips)) - (counts.cumsum(0) - counts)[clips]
        first = (lengths.cumsum(0) - lengths)[clips] + nth * stride
        return first[:, None] + torch.arange(frames), clips

    def too_short(self, lengths: Sequence[int], named: ClipName, skip_bad: bool) -> list[int]:
        """Return the indices of clips that are shorter than a window.

        Raise `BadInput` if there are some, unless ``skip_bad`` is True and longer clips remain.
        Whole clips must have equal lengths.

        Args:
            lengths: number of frames of every clip.
            named: function from the index of a clip to its name.
            skip_bad: whether short clips are skipped.
        """
        if self.frames is None:
            other = next((n for n, length in enumerate(lengths) if length != lengths[0]), None)
            if other is not None:
                frames = min((n for n in lengths if n >= FEWEST), default=FEWEST)
                skip = " and skip_bad, which skips shorter clips" * (min(lengths) < frames)
                raise BadInput(
                    f"{named(0)} has {counted(lengths[0], 'frame')} and {named(other)} "
                    f"{lengths[other]}: say how many frames= to cut all into, such as "
                    f"frames={frames}{skip}"
                )
            return []
        short = [n for n, length in enumerate(lengths) if length < self.frames]
        if short and (not skip_bad or len(short) == len(lengths)):
            raise BadInput(
                f"{named(short[0])} has {counted(lengths[short[0]], 'frame')}, fewer than frames="
                f"{self.frames}: take frames={lengths[short[0]]} or fewer"
            )
        return short


@dataclass(frozen=True)
class Imported:
    """Imported sequences, with a summary of their source and of inferred properties."""

    sequences: SequenceSet
    summary: dict[str, Any]  #: data that JSON can hold
    clips: Tensor | None = None  # (sequences,), index of the clip of each sequence

    @property
    def likelihood(self) -> str:
        """The likelihood of a decoder for these frames: "bernoulli" or "gaussian"."""
        return self.summary["likelihood"]

    def cut(self, frames: int, stride: int) -> Imported:
        """Return windows of sequences that are whole clips. No file is read again.

        Args:
            frames: number of frames of a window.
            stride: number of frames from the start of one window to the next.
        """
        if isinstance(self.sequences, MappedSequences):
            sequences: SequenceSet = replace(self.sequences, window=frames, stride=stride)
            clips = None
        elif isinstance(self.sequences, Sequences):
            lengths = torch.full((len(self.sequences),), self.sequences.frames)
            windows, clips = Windows(frames, stride).cut(lengths)
            order = self.sequences.order.flatten()[windows.to(self.sequences.order.device)]
            sequences = replace(self.sequences, order=order)
        else:
            raise BadInput(
                f"{type(self.sequences).__name__} cannot be cut into windows: import arrays, files "
                "or a folder"
            )
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
            text += f"; axes {summary['axes']}"
        if summary.get("shrunk"):
            text += f"; pictures shrunk from {' and '.join(summary['shrunk'])}"
        if summary["skipped"]:
            text += f"; {len(summary['skipped'])} skipped: {', '.join(summary['skipped'])}"
        if summary["left_aside"]:
            more = len(summary["left_aside"]) - 1
            text += f"; ignored: {summary['left_aside'][0]}" + f" and {more} more" * (more > 0)
        return text


def split(
    imported: Imported | SequenceSet, share: float = 0.2, seed: int = 0
) -> tuple[SequenceSet, SequenceSet]:
    """Return training and held-out sequences of different clips, or of different pictures.

    A single clip is split in time.

    Args:
        imported: sequences from `read` or `from_images`.
        share: share of the clips, pictures or windows that are held out.
        seed: seed of the random choice of clips or pictures.

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
        raise BadInput(
            f"these {type(sequences).__name__} cannot be split: pass what read or from_images "
            "returned"
        )
    if len(clips.unique()) == 1:
        train, held_out = _split_in_time(sequences.order, share)
    else:
        train, held_out = (torch.isin(clips, c) for c in _split_clips(clips.unique(), share, seed))
    return _select(sequences, train), _select(sequences, held_out)


def _select(sequences: Sequences, rows: Tensor) -> Sequences:
    """Return the sequences of these rows, booleans (sequences,)."""
    moving = None if sequences.moving is None else sequences.moving[rows]
    return replace(sequences, order=sequences.order[rows], moving=moving)


def _split_clips(clips: Tensor, share: float, seed: int) -> tuple[Tensor, Tensor]:
    """Return indices of training and of held-out clips or pictures."""
    if len(clips) < 2:
        raise BadInput("a single picture cannot be split: give two or more")
    held_out = min(max(1, round(share * len(clips))), len(clips) - 1)
    order = clips[torch.randperm(len(clips), generator=torch.Generator().manual_seed(seed))]
    return order[held_out:].sort().values, order[:held_out].sort().values


def _split_in_time(order: Tensor, share: float) -> tuple[Tensor, Tensor]:
    """Return which windows of one clip are for training, and which are held out: (windows,).

    The last windows are held out. Windows that overlap with these are left out.
    """
    after = torch.arange(len(order)) >= len(order) - max(1, round(share * len(order)))
    before = order[:, -1] < order[after][0, 0]
    if not before.any():
        raise _too_short(int(order.max()) + 1)
    return before, after


def _split_mapped_in_time(
    sequences: MappedSequences, share: float
) -> tuple[MappedSequences, MappedSequences]:
    """Return the training and the held-out windows of one mapped clip, which do not overlap."""
    windows = sequences.windows_per_clip
    cut = (windows - max(1, round(share * windows))) * sequences.stride
    if cut < sequences.window:
        raise _too_short(sequences.stored.shape[1])
    before, after = sequences.stored[:, :cut], sequences.stored[:, cut:]
    return replace(sequences, stored=before), replace(sequences, stored=after)


def _too_short(frames: int) -> BadInput:
    return BadInput(
        f"one clip of {frames} frames has no windows to hold out: give more clips, or cut it into "
        f"shorter windows, such as frames={max(FEWEST, frames // 4)}"
    )
