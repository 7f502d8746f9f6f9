"""The way in: from a path or an object to sequences."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader

from topocaps.data.own.clips import KINDS, array_at, clip, clip_at, files_in, film, items
from topocaps.data.own.files import CLIPS, PICTURES, VIDEOS, picture, video
from topocaps.data.own.frames import Look, Stored, held, is_grey, likelihood_of
from topocaps.data.own.gather import (
    Clip,
    Named,
    Windows,
    check_lengths,
    check_ranges,
    gather,
    not_finite,
)
from topocaps.data.own.mapped import MappedSequences
from topocaps.data.own.moving import MovingImages, moving_images
from topocaps.data.own.own import Own
from topocaps.data.sequences import Sequences, SequenceSet
from topocaps.errors import BadInput

LARGE = 2**30  #: bytes; arrays in files that would be larger in memory stay where they are


def read(
    source: Any,
    *,
    frames: int | None = None,
    stride: int | None = None,
    size: int | Sequence[int] | None = None,
    grey: bool | None = None,
    layout: str | None = None,
    skip_bad: bool = False,
    at_most: int | None = None,
    say: Callable[[str], None] = lambda line: None,
) -> Own:
    """Sequences of your own: an array, a tensor, a data set, a list of clips, a file or a folder.

    Arrays are (sequences, time, *frame): bytes, numbers in [0, 1], or any (for a Gaussian
    decoder). Files are .npy, .npz and .h5 (the largest array, or ``file.h5/name``), or a video.
    A folder holds pictures (each subfolder a sequence, in natural order), clips (.npy, .npz) or
    videos; one without subfolders holds single pictures or, with ``frames``, one sequence.

    Clips are cut into windows of ``frames``, one every ``stride`` (side by side unless given).
    Pictures are resized to ``size``, a side or (height, width), and made ``grey`` or not; unless
    that is said, pictures and videos in which nothing has a colour have one channel. Without
    ``size``, those whose shorter side is more than ``at_most`` are made so small.
    ``layout`` names axes where sizes do not tell them: NTHWC, NTCHW, TNHW, THW (one sequence), ….
    ``skip_bad`` leaves out what cannot be read, is not finite, or is too short, and lists it.
    """
    look = Look(size, grey, layout, at_most)
    own = _Reader(Windows(frames, stride), look, skip_bad).read(source)
    if look.shrunk:
        own.found["shrunk"] = sorted(look.shrunk)
    say(str(own))
    if own.found["axes"] == "NTD" and own.found["frame_shape"] == [own.found["frames"]]:
        say("if this is one sequence of pictures and not many of vectors, say layout='THW'")
    return own


def from_images(
    images: Any,
    transformation: str | Sequence[str],
    frames: int,
    *,
    size: int | Sequence[int] | None = None,
    grey: bool | None = None,
    layout: str | None = None,
    skip_bad: bool = False,
) -> MovingImages:
    """Single pictures made into sequences: rotation, scale, shift_x, shift_y or hue moves.

    Pictures are an array (images, *frame), a file of one, a folder, or what ``read`` found; of
    several transformations one moves at a time.
    """
    if isinstance(images, str | Path) and Path(images).is_dir():
        images = read(images, size=size, grey=grey, skip_bad=skip_bad)
    if isinstance(images, Own):
        images = images.sequences
    if isinstance(images, SequenceSet):
        if not isinstance(images, Sequences) or images.frames != 1:
            raise BadInput("these are sequences already: give single pictures to make them move")
        return moving_images(images.images[images.order[:, 0]], transformation, frames)
    look = Look(size, grey, layout and "T" + layout.upper().replace("N", ""))
    name = "the array of pictures"
    if isinstance(images, str | Path):
        images, name = array_at(Path(images), 3), str(images)
    return moving_images(clip(images, name, look), transformation, frames)


class _Reader:
    """How sequences are asked for, and the ways to them."""

    def __init__(self, windows: Windows, look: Look, skip_bad: bool) -> None:
        self.windows, self.look, self.skip_bad = windows, look, skip_bad

    def read(self, source: Any) -> Own:
        if isinstance(source, Own):
            return source
        if isinstance(source, SequenceSet):
            return _as_it_is(source)
        if isinstance(source, str | Path):
            path = Path(source)
            return self.folder(path) if path.is_dir() else self.file(path)
        if isinstance(source, Tensor | np.ndarray):
            kind = "tensor" if isinstance(source, Tensor) else "array"
            return self.array(source, kind, f"the {kind}")
        if isinstance(source, DataLoader):
            raise BadInput("a DataLoader gives batches: pass its dataset, which gives sequences")
        if isinstance(source, dict) or not (
            isinstance(source, Iterable) or hasattr(source, "__getitem__")
        ):
            raise BadInput(
                "sequences are an array, a tensor, a data set, a list of clips, a file or a "
                f"folder, not {type(source).__name__}"
            )
        kind = "list" if isinstance(source, list | tuple) else "data set"
        return self.clips(items(source, kind, self.look), kind)

    def file(self, path: Path) -> Own:
        if path.suffix.lower() in VIDEOS and path.exists():
            return self.clips([Clip(str(path), partial(video, path, self.look))], "video")
        found = array_at(path, 3 if self.look.layout is None else 2)
        return self.array(found, "file of arrays", str(path))

    def folder(self, folder: Path) -> Own:
        files, aside = files_in(folder)
        there = [kind for kind in KINDS if files[kind]]
        if not there:
            seen = f", only {aside[0]}" if aside else ""
            raise BadInput(
                f"{folder} holds no pictures, videos or clips{seen}: put sequences there "
                f"({PICTURES[0]}, {VIDEOS[0]}, {CLIPS[0]}, …), each in a file or a subfolder"
            )
        if len(there) > 1:
            one, two = (files[kind][0].relative_to(folder) for kind in there[:2])
            raise BadInput(
                f"{folder} holds {there[0]} and {there[1]} ({one}, {two}): keep one kind"
            )
        (kind,) = there
        if kind != "pictures":
            clips = [Clip(str(f), partial(clip_at, f, self.look)) for f in files[kind]]
        elif self.windows.frames is None and all(f.parent == folder for f in files[kind]):
            clips = [Clip(str(f), partial(picture, f, self.look)) for f in files[kind]]
        else:
            films: dict[Path, list[Path]] = {}
            for file in files[kind]:
                films.setdefault(file.parent, []).append(file)
            clips = [Clip(str(f), partial(film, some, self.look)) for f, some in films.items()]
        own = self.clips(clips, f"folder of {kind}")
        own.found["left_aside"] = [str(file) for file in aside]
        return own

    def array(self, stored: Stored, kind: str, name: str) -> Own:
        """An array of sequences, (sequences, time, *frame)."""
        view = self.look.arranged(stored, "NT", name)
        dtype = str(stored.dtype).removeprefix("torch.")
        size = stored.size if isinstance(stored, np.ndarray) else stored.numel()
        if (
            isinstance(stored, np.memmap)
            and size * (1 if dtype in ("uint8", "bool") else 4) > LARGE
        ):
            return self.mapped(view, kind, name)
        x = self.look.wanted(held(view, name))
        own = self.cut(x.flatten(0, 1), [x.shape[1]] * len(x), _rows_of(name), kind, name)
        own.found["dtype"] = dtype
        return own

    def mapped(self, view: Any, kind: str, name: str) -> Own:
        """An array that stays in its file; a sample of it is looked at."""
        held(view[:1, :1], name)
        check_lengths(view.shape[1:2], _rows_of(name), self.windows, skip_bad=False)
        sequences = MappedSequences.over(view, self.windows.frames, self.windows.stride, self.look)
        if (bad := sequences.not_finite()) is not None:
            raise BadInput(f"sequence {bad} of {name} holds NaN or infinite values: take it out")
        found = _found(sequences, kind, likelihood_of(sequences.images, name))
        found |= {"clips": sequences.clips, "dtype": str(view.dtype), "on_host": True}
        return Own(sequences, found | {"axes": self._axes})

    def clips(self, clips: Iterable[Clip], kind: str) -> Own:
        found, names, skipped = gather(clips, self.skip_bad)
        check_ranges(found, names)
        lengths = [len(x) for x in found]
        images = torch.cat(found)
        found.clear()
        if self.look.grey is None and is_grey(images):
            images = images[:, :1].contiguous()
        name = names[0] + (f" (and {len(names) - 1} more)" if names[1:] else "")
        own = self.cut(images, lengths, names.__getitem__, kind, name)
        own.found["skipped"][:0] = skipped
        return own

    def cut(
        self, images: Tensor, lengths: Sequence[int], named: Named, kind: str, name: str
    ) -> Own:
        """Frames of clips in a row, checked and cut into windows."""
        each = torch.tensor(lengths)
        short = check_lengths(lengths, named, self.windows, self.skip_bad)
        bad = not_finite(images, each)
        if bad and (not self.skip_bad or len({*short, *bad}) == len(lengths)):
            raise BadInput(
                f"{named(bad[0])} holds NaN or infinite values: make them finite, or leave out "
                "what is not with skip_bad"
            )
        if short or bad:
            whole = torch.ones(len(each), dtype=torch.bool)
            whole[[*short, *bad]] = False
            images = images[whole.repeat_interleave(each).to(images.device)]
            each = each[whole]
        order, clips = self.windows.cut(each)
        sequences = Sequences(images, order.to(images.device))
        found = _found(sequences, kind, likelihood_of(images, name))
        skipped = [f"{named(n)} (too short)" for n in short]
        skipped += [f"{named(n)} (not finite)" for n in bad]
        return Own(
            sequences, found | {"axes": self._axes, "clips": len(each), "skipped": skipped}, clips
        )

    @property
    def _axes(self) -> str:
        return ", ".join(sorted(self.look.chosen))


def _rows_of(name: str) -> Named:
    return lambda row: f"sequence {row} of {name}"


def _as_it_is(sequences: SequenceSet) -> Own:
    name, images = type(sequences).__name__, sequences.images
    likelihood = likelihood_of(images, name) if images.is_floating_point() else "bernoulli"
    clips = torch.arange(len(sequences)) if isinstance(sequences, Sequences) else None
    return Own(sequences, _found(sequences, name, likelihood), clips)


def _found(sequences: SequenceSet, kind: str, likelihood: str) -> dict[str, Any]:
    return {
        "kind": kind,
        "sequences": len(sequences),
        "clips": len(sequences),
        "frames": sequences.frames,
        "frame_shape": list(sequences.frame_shape),
        "dtype": str(sequences.images.dtype).removeprefix("torch."),
        "likelihood": likelihood,
        "axes": "",
        "skipped": [],
        "left_aside": [],
        "on_host": False,
    }
