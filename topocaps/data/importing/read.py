"""Import of sequences from arrays, data sets, files and folders."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader, IterableDataset

from topocaps.data.importing import files
from topocaps.data.importing.frames import (
    Look,
    Stored,
    check_alike,
    check_ranges,
    dtype_name,
    is_grey,
    likelihood_of,
    nonfinite_clips,
    to_tensor,
)
from topocaps.data.importing.mapped import MappedSequences
from topocaps.data.importing.split import ClipName, Imported, Windows
from topocaps.data.sequences import Sequences, SequenceSet
from topocaps.data.transforms import MovingImages, moving_images
from topocaps.errors import BadInput

LARGE = 2**30  #: largest size in memory, in bytes, of a mapped array that is read as a whole
_ROOM_CHECKED_EVERY = 2**28  # bytes of clips between two checks of the free memory


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
) -> Imported:
    """Read sequences from an array, a tensor, a data set, a list of clips, a file or a folder.

    Arrays are (sequences, time, *frame): bytes, values in [0, 1], or any numbers (for a Gaussian
    decoder). A file is a video or an array. Of several arrays in an .npz or .h5 file, the largest
    is read, or the one that ``file.h5/name`` names. A folder holds videos, clips (.npy, .npz) or
    pictures. Each subfolder of pictures is a sequence, in natural order. A folder of pictures
    without subfolders holds single pictures or, with ``frames``, one sequence.

    Args:
        source: the array, tensor, data set, list of clips, or path.
        frames: number of frames of the windows that clips are cut into; by default clips stay
            whole.
        stride: number of frames from the start of one window to the next; by default ``frames``.
        size: side or (height, width) that pictures are resized to.
        grey: True makes pictures grey, False coloured. By default, pictures and videos in files get
            one channel if none of them has a colour.
        layout: the order of the axes if their sizes do not determine it: NTHWC, NTCHW, TNHW, THW
            (one sequence), ….
        skip_bad: leave out, and list, clips that are unreadable, not finite or too short.
        at_most: without ``size``, larger pictures are shrunk until their shorter side is this long.
        say: function that is called with a description of what was read.
    """
    look = Look(size, grey, layout, at_most)
    imported = _Reader(Windows(frames, stride), look, skip_bad).read(source)
    summary = imported.summary
    if look.shrunk:
        summary["shrunk"] = sorted(look.shrunk)
    say(str(imported))
    if summary["axes"] == "NTD" and summary["frame_shape"] == [summary["frames"]]:
        say("if this is one sequence of pictures and not many of vectors, say layout='THW'")
    return imported


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
    """Make sequences out of single pictures, by rotation, scale, shift_x, shift_y or hue.

    Args:
        images: an array (images, *frame), a file with such an array, a folder of pictures, or what
            `read` returned.
        transformation: one or several names of transformations. Each sequence changes by one.
        frames: number of frames of a sequence.
        size, grey, layout, skip_bad: as in `read`.
    """
    if isinstance(images, str | Path) and Path(images).is_dir():
        images = read(images, size=size, grey=grey, skip_bad=skip_bad)
    if isinstance(images, Imported):
        images = images.sequences
    if isinstance(images, SequenceSet):
        if not isinstance(images, Sequences) or images.frames != 1:
            raise BadInput(
                "images must be single pictures, but these are sequences already: give one frame"
            )
        return moving_images(images.images[images.order[:, 0]], transformation, frames)
    look = Look(size, grey, layout and "T" + layout.upper().replace("N", ""))
    name = "the array of pictures"
    if isinstance(images, str | Path):
        images, name = files.read_array(Path(images), 3), str(images)
    return moving_images(_to_clip(images, name, look), transformation, frames)


class _Clip(NamedTuple):
    """The name of a clip, and a function that reads it."""

    name: str
    load: Callable[[], Tensor]  # returns (time, *frame)


@dataclass(frozen=True)
class _Reader:
    """The options of ``read``, and a method for each kind of source."""

    windows: Windows
    look: Look
    skip_bad: bool

    def read(self, source: Any) -> Imported:
        if isinstance(source, Imported):
            return source
        if isinstance(source, SequenceSet):
            return _wrap(source)
        if isinstance(source, str | Path):
            path = Path(source)
            return self.folder(path) if path.is_dir() else self.file(path)
        if isinstance(source, Tensor | np.ndarray):
            kind = "tensor" if isinstance(source, Tensor) else "array"
            return self.array(source, kind, f"the {kind}")
        if isinstance(source, DataLoader):
            raise BadInput("a DataLoader yields batches, not sequences: pass its dataset")
        if isinstance(source, dict) or not (
            isinstance(source, Iterable) or hasattr(source, "__getitem__")
        ):
            raise BadInput(
                "sequences must be an array, a tensor, a data set, a list of clips, a file or a "
                f"folder, not {type(source).__name__}"
            )
        kind = "list" if isinstance(source, list | tuple) else "data set"
        return self.clips(_items(source, kind, self.look), kind)

    def file(self, path: Path) -> Imported:
        """Import a video, or a file of arrays."""
        if path.suffix.lower() in files.VIDEOS and path.exists():
            load = partial(files.read_video, path, self.look)
            return self.clips([_Clip(str(path), load)], "video")
        array = files.read_array(path, 3 if self.look.layout is None else 2)
        return self.array(array, "file of arrays", str(path))

    def folder(self, folder: Path) -> Imported:
        """Import a folder of videos, clips or pictures."""
        by_kind, others = files.list_files(folder)
        kinds = [kind for kind in files.KINDS if by_kind[kind]]
        if not kinds:
            only = f", only {others[0]}" if others else ""
            example = f"{files.PICTURES[0]}, {files.VIDEOS[0]}, {files.CLIPS[0]}"
            raise BadInput(
                f"{folder} holds no pictures, videos or clips{only}: put sequences there "
                f"({example}, …), each in a file or a subfolder"
            )
        if len(kinds) > 1:
            first, second = (by_kind[kind][0].relative_to(folder) for kind in kinds[:2])
            raise BadInput(
                f"{folder} holds {kinds[0]} and {kinds[1]} ({first}, {second}): keep one kind"
            )
        (kind,) = kinds
        paths = by_kind[kind]
        load: Callable[[Any, Look], Tensor] = files.read_clip
        sources: dict[Path, Any] = {path: path for path in paths}
        if kind == "pictures":
            load = files.read_picture
            if self.windows.frames is not None or any(path.parent != folder for path in paths):
                load, sources = files.read_pictures, {}
                for path in paths:
                    sources.setdefault(path.parent, []).append(path)
        clips = [
            _Clip(str(path), partial(load, source, self.look)) for path, source in sources.items()
        ]
        imported = self.clips(clips, f"folder of {kind}")
        imported.summary["left_aside"] = [str(file) for file in others]
        return imported

    def array(self, stored: Stored, kind: str, name: str) -> Imported:
        """Import an array (sequences, time, *frame)."""
        view = self.look.arrange(stored, "NT", name)
        dtype = dtype_name(stored)
        if (
            isinstance(stored, np.memmap)
            and stored.size * (1 if dtype in ("uint8", "bool") else 4) > LARGE
        ):
            return self.mapped(view, kind, name)
        x = self.look.convert(to_tensor(view, name))
        imported = self.cut(x.flatten(0, 1), [x.shape[1]] * len(x), _row_of(name), kind, name)
        imported.summary["dtype"] = dtype
        return imported

    def mapped(self, view: Any, kind: str, name: str) -> Imported:
        """Import an array that stays in its file. Only a sample of its values is checked."""
        to_tensor(view[:1, :1], name)
        self.windows.too_short(view.shape[1:2], _row_of(name), skip_bad=False)
        sequences = MappedSequences.over(view, self.windows.frames, self.windows.stride, self.look)
        if (bad := sequences.nonfinite_clip()) is not None:
            raise BadInput(f"sequence {bad} of {name} holds NaN or infinite values: remove it")
        return Imported(
            sequences,
            _summary(sequences, kind, likelihood_of(sequences.images, name))
            | {"clips": sequences.clips, "dtype": str(view.dtype), "on_host": True}
            | {"axes": self._axes},
        )

    def clips(self, clips: Iterable[_Clip], kind: str) -> Imported:
        """Load clips and import them."""
        loaded, names, skipped = _load(clips, self.skip_bad)
        check_ranges(loaded, names)
        lengths = [len(x) for x in loaded]
        images = torch.cat(loaded)
        loaded.clear()  # before the frames are copied again
        if self.look.grey is None and is_grey(images):
            images = images[:, :1].contiguous()
        name = names[0] + (f" (and {len(names) - 1} more)" if names[1:] else "")
        imported = self.cut(images, lengths, names.__getitem__, kind, name)
        imported.summary["skipped"][:0] = skipped
        return imported

    def cut(
        self, images: Tensor, lengths: Sequence[int], clip_name: ClipName, kind: str, name: str
    ) -> Imported:
        """Check concatenated clips, and cut them into windows."""
        counts = torch.tensor(lengths)
        short = self.windows.too_short(lengths, clip_name, self.skip_bad)
        bad = nonfinite_clips(images, counts)
        if bad and (not self.skip_bad or len({*short, *bad}) == len(lengths)):
            raise BadInput(
                f"{clip_name(bad[0])} holds NaN or infinite values: make them finite, or leave out "
                "such clips with skip_bad"
            )
        if short or bad:
            kept = torch.ones(len(counts), dtype=torch.bool)
            kept[[*short, *bad]] = False
            images = images[kept.repeat_interleave(counts).to(images.device)]
            counts = counts[kept]
        order, clips = self.windows.cut(counts)
        sequences = Sequences(images, order.to(images.device))
        skipped = [f"{clip_name(n)} (too short)" for n in short]
        skipped += [f"{clip_name(n)} (not finite)" for n in bad]
        summary = _summary(sequences, kind, likelihood_of(images, name))
        summary |= {"axes": self._axes, "clips": len(counts), "skipped": skipped}
        return Imported(sequences, summary, clips)

    @property
    def _axes(self) -> str:
        return ", ".join(sorted(self.look.layouts))


def _items(source: Any, kind: str, look: Look) -> Iterator[_Clip]:
    """Yield the items of a data set as clips."""
    indexed = hasattr(source, "__len__") and hasattr(source, "__getitem__")
    if indexed and not isinstance(source, IterableDataset):
        for n in range(len(source)):
            name = f"item {n} of the {kind}"
            yield _Clip(name, partial(_load_item, source, n, name, look))
    else:
        for n, item in enumerate(source):
            name = f"item {n} of the {kind}"
            yield _Clip(name, partial(_to_clip, item, name, look))


def _load_item(source: Any, n: int, name: str, look: Look) -> Tensor:
    with files.reading(name, "a sequence"):
        item = source[n]
    return _to_clip(item, name, look)


def _to_clip(item: Any, name: str, look: Look) -> Tensor:
    """Convert an array (time, *frame) or the path of a file, alone or followed by a label."""
    x = item[0] if isinstance(item, tuple | list) and item else item
    if isinstance(x, str | Path):
        return files.read_clip(Path(x), look)
    if not isinstance(x, Tensor | np.ndarray):
        raise BadInput(
            f"{name} is of type {type(x).__name__}: it must be an array (time, *frame) or a path, "
            "alone or before its label"
        )
    return look.clip(x, name)


def _load(clips: Iterable[_Clip], skip_bad: bool) -> tuple[list[Tensor], list[str], list[str]]:
    """Return clips with frames of one shape, their names, and the names of skipped clips."""
    loaded: list[Tensor] = []
    names: list[str] = []
    skipped: list[str] = []
    size = 0
    for clip in clips:
        try:
            x = clip.load()
        except files.Unreadable as error:
            if not skip_bad:
                raise
            skipped.append(error.short)
            continue
        if loaded:
            check_alike(loaded[0], names[0], x, clip.name)
        loaded.append(x)
        names.append(clip.name)
        before, size = size, size + x.numel() * x.element_size()
        if before // _ROOM_CHECKED_EVERY < size // _ROOM_CHECKED_EVERY:
            files.check_room(size)
    if skipped and not loaded:
        raise BadInput(f"none of the clips can be read, such as {skipped[0]}: write them anew")
    if not loaded:
        raise BadInput("there are no sequences: give at least one")
    return loaded, names, skipped


def _row_of(name: str) -> ClipName:
    return lambda row: f"sequence {row} of {name}"


def _wrap(sequences: SequenceSet) -> Imported:
    name, images = type(sequences).__name__, sequences.images
    likelihood = likelihood_of(images, name) if images.is_floating_point() else "bernoulli"
    clips = torch.arange(len(sequences)) if isinstance(sequences, Sequences) else None
    return Imported(sequences, _summary(sequences, name, likelihood), clips)


def _summary(sequences: SequenceSet, kind: str, likelihood: str) -> dict[str, Any]:
    return {
        "kind": kind,
        "sequences": len(sequences),
        "clips": len(sequences),
        "frames": sequences.frames,
        "frame_shape": list(sequences.frame_shape),
        "dtype": dtype_name(sequences.images),
        "likelihood": likelihood,
        "axes": "",
        "skipped": [],
        "left_aside": [],
        "on_host": False,
    }
