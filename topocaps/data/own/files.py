"""Files that hold frames: pictures, videos, arrays; each read by its own library when needed."""

from __future__ import annotations

import importlib
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from topocaps.data.own.frames import Look, held
from topocaps.device import free_memory
from topocaps.errors import BadInput

PICTURES = (".png", ".jpg", ".jpeg", ".bmp", ".tif", ".tiff", ".webp", ".pgm", ".ppm")
VIDEOS = (".mp4", ".avi", ".mov", ".mkv", ".webm", ".m4v", ".mpg", ".mpeg", ".wmv", ".gif")
CLIPS = (".npy", ".npz")
HDF5 = (".h5", ".hdf5")
_AT_ONCE = 32  # frames of a video that are held as they were stored


class Unreadable(BadInput):
    """A file, or an item, that is broken: it may be left out."""

    def __init__(self, name: object, kind: str, reason: str) -> None:
        super().__init__(
            f"{name} cannot be read as {kind} ({reason}): write it anew, or leave out what cannot "
            "be read with skip_bad"
        )
        self.short = f"{name} ({reason})"


@contextmanager
def reading(path: object, kind: str) -> Iterator[None]:
    """Whatever a library stumbles over becomes one sentence about the file."""
    try:
        yield
    except BadInput:
        raise
    except Exception as error:  # each library has its own
        said = str(getattr(error, "strerror", None) or error).replace(repr(str(path)), "it")
        reason = said.strip(" .\n").partition("\n")[0] or type(error).__name__
        raise Unreadable(path, kind, reason) from error


def library(module: str, extra: str) -> Any:
    """An optional library, or a sentence that says how to install it."""
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise BadInput(
            f"{extra} is read by {module.partition('.')[0]}, which is not installed: "
            f"pip install 'topocaps[{extra}]'"
        ) from error


def picture(path: Path, look: Look) -> Tensor:
    """One frame: (1, channels, height, width)."""
    image, ops = library("PIL.Image", "images"), library("PIL.ImageOps", "images")
    with reading(path, "a picture"), image.open(path) as file:
        upright = ops.exif_transpose(file)
        if upright.mode in ("1", "LA", "La"):
            upright = upright.convert("L")
        elif upright.mode not in ("L", "I", "F") and not upright.mode.startswith("I;16"):
            upright = upright.convert("RGB")
        pixels = np.array(upright)
    if pixels.dtype == np.int32 and pixels.min() >= 0 and pixels.max() < 2**16:
        pixels = pixels.astype(np.uint16)  # as some versions hold 16 bits
    pixels = pixels.transpose(2, 0, 1) if pixels.ndim == 3 else pixels[None]
    return look.wanted(held(pixels[None], str(path)))


def video(path: Path, look: Look) -> Tensor:
    """All frames, as they are decoded: (time, channels, height, width), bytes."""
    av = library("av", "video")
    parts: list[Tensor] = []
    frames: list[Tensor] = []

    def keep() -> None:
        parts.append(look.wanted(torch.stack(frames)))
        frames.clear()
        check_room(len(parts) * parts[0].numel())

    with reading(path, "a video"), av.open(str(path)) as file:
        if not file.streams.video:
            raise ValueError("it has no pictures")
        file.streams.video[0].thread_type = "AUTO"
        for frame in file.decode(video=0):
            grey = frame.format.name.startswith(("gray", "mono"))
            pixels = torch.from_numpy(frame.to_ndarray(format="gray" if grey else "rgb24"))
            frames.append(pixels[None] if grey else pixels.movedim(-1, 0))
            if len(frames) == _AT_ONCE:
                keep()
        if frames:
            keep()
        if not parts:
            raise ValueError("it has no frames")
        seconds = (file.duration or 0) / 1e6
        if len(file.streams) == 1 and (frame.time or seconds) < 0.9 * seconds - 1:
            raise ValueError(f"it ends after {frame.time:.1f} of {seconds:.1f} seconds")
        return torch.cat(parts)


def array(path: Path, axes: int, name: str = "") -> NDArray[Any]:
    """What a file of arrays holds: its array ``name``, or its largest of so many axes or more.

    A .npy, and what lies in one piece in an HDF5 file, is mapped, not read.
    """
    kind = f"a {path.suffix.lower()}"
    if path.suffix.lower() == ".npy":
        with reading(path, kind):
            return np.lib.format.open_memmap(path, mode="r")
    if path.suffix.lower() == ".npz":
        # opened here: of one that is broken, numpy leaves the file open
        with reading(path, kind), path.open("rb") as raw, np.load(raw, allow_pickle=False) as file:
            check_room(sum(one.file_size for one in file.zip.infolist()))
            return np.asarray(_chosen({key: file[key] for key in file.files}, axes, path, name))
    h5py = library("h5py", "h5")
    with reading(path, kind), h5py.File(path, "r") as file:
        found: dict[str, Any] = {}
        file.visititems(
            lambda key, one: found.update({key: one} if isinstance(one, h5py.Dataset) else {})
        )
        dataset = _chosen(found, axes, path, name)
        offset = dataset.id.get_offset()
        if dataset.chunks is None and offset is not None:
            return np.memmap(path, dataset.dtype, "r", offset, dataset.shape)
        check_room(dataset.nbytes)
        return np.asarray(dataset[...])


def _chosen(found: dict[str, Any], axes: int, path: Path, name: str) -> Any:
    if name:
        if name not in found:
            raise BadInput(f"{path} holds no {name}, but {', '.join(found) or 'nothing'}")
        return found[name]
    large = [one for one in found.values() if one.ndim >= axes]
    if not large:
        held_there = ", ".join(f"{key} {one.shape}" for key, one in found.items()) or "nothing"
        raise BadInput(f"{path} holds no array of {axes} axes or more, but {held_there}")
    return max(large, key=lambda one: one.size)


def check_room(size: int) -> None:
    """Refuse in time what memory will not hold: frames are copied once when all are there."""
    if size > (free := free_memory(torch.device("cpu"))):
        raise BadInput(
            f"{size / 2**30:.1f} GB of frames are too much for {free / 2**30:.1f} that are free: "
            "take a smaller size=, or write all as one .npy (sequences, time, *frame), which is "
            "not read at once"
        )


def naturally(path: Path) -> list[list[tuple[int, str]]]:
    """A key that puts frame 10 after frame 9."""
    return [
        [(int(part), "") if part.isdigit() else (-1, part) for part in re.split(r"(\d+)", step)]
        for step in path.parts
    ]
