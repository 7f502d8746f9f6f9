"""What was read: sequences, what is known of them, and their two sides."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from topocaps.data.own.gather import none_to_hold_out
from topocaps.data.own.mapped import MappedSequences
from topocaps.data.own.moving import MovingImages
from topocaps.data.sequences import Sequences, SequenceSet
from topocaps.errors import BadInput, check_seed, counted


@dataclass(frozen=True)
class Own:
    """Sequences of your own, what was found and chosen (plain data, to print), and from which clip
    each sequence was cut."""

    sequences: SequenceSet
    found: dict[str, Any]
    clips: Tensor | None = None  # (sequences,)

    @property
    def likelihood(self) -> str:
        """What a decoder of these frames should be: "bernoulli" or "gaussian"."""
        return self.found["likelihood"]

    def __str__(self) -> str:
        found = self.found
        shape = " x ".join(map(str, found["frame_shape"]))
        said = (
            f"{found['kind']}: {counted(found['sequences'], 'sequence')} of "
            f"{counted(found['frames'], 'frame')}, "
            f"{shape}, {found['dtype']}, {found['likelihood']}"
        )
        if found.get("axes"):
            said += f"; axes are taken as {found['axes']}"
        if found.get("shrunk"):
            said += f"; pictures of {' and '.join(found['shrunk'])} were made that small"
        if found["skipped"]:
            said += f"; {len(found['skipped'])} skipped: {', '.join(found['skipped'])}"
        if found["left_aside"]:
            more = len(found["left_aside"]) - 1
            said += f"; left aside: {found['left_aside'][0]}" + f" and {more} more" * (more > 0)
        return said


def split(
    own: Own | SequenceSet, share: float = 0.2, seed: int = 0
) -> tuple[SequenceSet, SequenceSet]:
    """(training, held-out) sequences, of different clips; of one clip alone, of different times.
    Of what was read, or made of pictures.

    >>> from topocaps.data import read
    >>> train, held_out = split(read(torch.rand(10, 6, 1, 8, 8)))
    >>> len(train), len(held_out)
    (8, 2)
    """
    check_seed(seed)
    if not 0 < share < 1:
        raise BadInput(f"share must be between 0 and 1, not {share!r}")
    sequences = own if isinstance(own, SequenceSet) else own.sequences
    if isinstance(sequences, MappedSequences) and sequences.scripts is None:
        if sequences.clips == 1:
            return sequences.in_time(share)
        train, held_out = _sides(torch.arange(sequences.clips), share, seed)
        return sequences.of_clips(train), sequences.of_clips(held_out)
    if isinstance(sequences, MovingImages) and sequences.scripts is None:
        train, held_out = _sides(torch.arange(len(sequences.images)), share, seed)
        return sequences.of_clips(train), sequences.of_clips(held_out)
    if not isinstance(sequences, Sequences) or isinstance(own, SequenceSet) or own.clips is None:
        raise BadInput("only sequences that were read, or made of pictures, can be split")
    clips = own.clips.unique()
    if len(clips) == 1:
        before, after = _in_time(sequences.order, share)
    else:
        train, held_out = _sides(clips, share, seed)
        before, after = (torch.isin(own.clips, some) for some in (train, held_out))
    return _those(sequences, before), _those(sequences, after)


def _those(sequences: Sequences, which: Tensor) -> Sequences:
    moving = None if sequences.moving is None else sequences.moving[which]
    return replace(sequences, order=sequences.order[which], moving=moving)


def _sides(clips: Tensor, share: float, seed: int) -> tuple[Tensor, Tensor]:
    if len(clips) < 2:
        raise BadInput("one picture cannot be split: give more of them")
    held = min(max(1, round(share * len(clips))), len(clips) - 1)
    order = clips[torch.randperm(len(clips), generator=torch.Generator().manual_seed(seed))]
    return order[held:].sort().values, order[:held].sort().values


def _in_time(order: Tensor, share: float) -> tuple[Tensor, Tensor]:
    """Which windows end before the last ``share`` of them begins, and which those are."""
    after = torch.arange(len(order)) >= len(order) - max(1, round(share * len(order)))
    before = order[:, -1] < order[after][0, 0]
    if not before.any():
        raise none_to_hold_out(int(order.max()) + 1)
    return before, after
