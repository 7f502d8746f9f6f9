"""Clips of any length, put one after the other and cut into windows."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from topocaps.data.own.files import Unreadable, check_room
from topocaps.errors import BadInput, whole_number

_LOOK = 2**28  # bytes from one look at what is free to the next


#: the name of a clip, by its place: of an array they may be millions
Named = Callable[[int], str]


class Clip(NamedTuple):
    """A clip that is still to be read: (time, *frame)."""

    name: str
    load: Callable[[], Tensor]


@dataclass(frozen=True)
class Windows:
    """How clips are cut: into windows of ``frames`` (else they are taken whole) each ``stride``."""

    frames: int | None = None
    stride: int | None = None

    def __post_init__(self) -> None:
        for name in ("frames", "stride"):
            if getattr(self, name) is not None:
                object.__setattr__(self, name, whole_number(name, getattr(self, name)))
        if self.stride is not None and self.frames is None:
            raise BadInput("stride is from one window to the next: say how many frames= it has too")

    def cut(self, lengths: Tensor) -> tuple[Tensor, Tensor]:
        """Frames of all windows (windows, frames), and the clip of each, of clips in a row."""
        frames = self.frames or int(lengths[0])
        stride = self.stride or frames
        counts = (lengths - frames) // stride + 1
        clips = torch.arange(len(lengths)).repeat_interleave(counts)
        nth = torch.arange(len(clips)) - (counts.cumsum(0) - counts)[clips]
        first = (lengths.cumsum(0) - lengths)[clips] + nth * stride
        return first[:, None] + torch.arange(frames), clips


def gather(clips: Iterable[Clip], skip_bad: bool) -> tuple[list[Tensor], list[str], list[str]]:
    """Clips of frames of one shape, their names, and the names of those left out."""
    found: list[Tensor] = []
    names: list[str] = []
    skipped: list[str] = []
    size = 0
    for clip in clips:
        try:
            x = clip.load()
        except Unreadable as error:
            if not skip_bad:
                raise
            skipped.append(error.short)
            continue
        if found:
            alike(found[0], names[0], x, clip.name)
        found.append(x)
        names.append(clip.name)
        before, size = size, size + x.numel() * x.element_size()
        if before // _LOOK < size // _LOOK:
            check_room(size)
    if skipped and not found:
        raise BadInput(f"nothing can be read, neither {skipped[0]} nor any other: write it anew")
    if not found:
        raise BadInput("there are no sequences: give at least one")
    return found, names, skipped


def alike(first: Tensor, name: str, x: Tensor, other: str) -> None:
    """Refuse frames that differ in shape or kind from the first."""
    one, two = tuple(first.shape[1:]), tuple(x.shape[1:])
    if one[-2:] != two[-2:] and len(one) == len(two) == 3:
        raise BadInput(
            f"{name} has frames of {one[1]} x {one[2]} and {other} of {two[1]} x {two[2]}: say "
            "which size= all should have, such as size=64"
        )
    if one != two and len(one) == len(two) == 3:
        raise BadInput(
            f"{name} has {one[0]} channels and {other} {two[0]}: say grey=True or grey=False"
        )
    if one != two:
        raise BadInput(f"{name} has frames of {one} and {other} of {two}: make them the same")
    if first.dtype != x.dtype:
        kinds = [str(one.dtype).removeprefix("torch.") for one in (first, x)]
        raise BadInput(f"{name} holds {kinds[0]} and {other} {kinds[1]}: make them the same")


def check_ranges(clips: Sequence[Tensor], names: Sequence[str]) -> None:
    """Refuse pictures in floating point of which some are in [0, 1] and others look like bytes."""
    if not clips[0].is_floating_point() or clips[0].ndim != 4:
        return
    highest = [x.nan_to_num(0.0, 0.0).amax().item() for x in clips]
    small = next((n for n, high in enumerate(highest) if high <= 1), None)
    large = next((n for n, high in enumerate(highest) if 100 < high <= 255), None)
    if small is not None and large is not None and clips[large].amin() >= 0:
        raise BadInput(
            f"{names[small]} holds values up to {highest[small]:g} and {names[large]} up to "
            f"{highest[large]:g}, which look like bytes: divide those by 255"
        )


def check_lengths(
    lengths: Sequence[int], named: Named, windows: Windows, skip_bad: bool
) -> list[int]:
    """Places of clips that are too short for a window; refused unless they may be left out."""
    if windows.frames is None:
        other = next((n for n, length in enumerate(lengths) if length != lengths[0]), None)
        if other is not None:
            raise BadInput(
                f"{named(0)} has {lengths[0]} frames and {named(other)} {lengths[other]}: say how "
                f"many frames= to cut all into, such as frames={min(lengths[0], lengths[other])}"
            )
        return []
    short = [n for n, length in enumerate(lengths) if length < windows.frames]
    if short and (not skip_bad or len(short) == len(lengths)):
        raise BadInput(
            f"{named(short[0])} has {lengths[short[0]]} frames, fewer than frames="
            f"{windows.frames}: take fewer"
        )
    return short


def none_to_hold_out(frames: int) -> BadInput:
    """Of one clip that is too short to be held out in part."""
    return BadInput(
        f"one clip of {frames} frames has no windows to hold out: give more clips, or take fewer "
        f"frames at a time, such as frames={max(4, frames // 4)}"
    )


def not_finite(images: Tensor, lengths: Tensor) -> list[int]:
    """Places of clips with a value that is NaN or infinite."""
    if not images.is_floating_point() or all(v.isfinite() for v in images.aminmax()):
        return []
    frames = ~images.flatten(1).isfinite().all(1)
    clips = torch.arange(len(lengths)).repeat_interleave(lengths)
    return clips[frames.cpu()].unique().tolist()
