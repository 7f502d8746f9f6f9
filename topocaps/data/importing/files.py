"""Pictures, videos and arrays in files and folders. Optional libraries are imported when needed."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from topocaps.data.importing.frames import Look, check_alike, to_tensor
from topocaps.device import free_memory
from topocaps.errors import BadInput, optional

PICTURES = (".png", ".jpg", ".jpeg", ".bmp", ".tif", ".tiff", ".webp", ".pgm", ".ppm")
VIDEOS = (".mp4", ".avi", ".mov", ".mkv", ".webm", ".m4v", ".mpg", ".mpeg", ".wmv", ".gif")
CLIPS = (".npy", ".npz")
HDF5 = (".h5", ".hdf5")
KINDS = {"pictures": PICTURES, "videos": VIDEOS, "clips": CLIPS}  #: of files that a folder may hold
_FORMATS = f"{', '.join(VIDEOS[:4])}, …, {', '.join((*CLIPS, *HDF5))}"
_CONVERTED_TOGETHER = 32  # frames of a video; all of them at once would need too much memory


class Unreadable(BadInput):
    """A file or an item cannot be read. ``skip_bad`` leaves it out."""

    def __init__(self, name: object, kind: str, reason: str) -> None:
        super().__init__(
            f"{name} cannot be read as {kind} ({reason}): write it anew, or skip unreadable clips "
            "with skip_bad"
        )
        self.short = f"{name} ({reason})"


@contextmanager
def reading(path: object, kind: str) -> Iterator[None]:
    """Convert errors of other libraries to `Unreadable`.

    Args:
        path: the file, or the name of the item.
        kind: the format that it is read as, with its article.
    """
    try:
        yield
    except BadInput:
        raise
    except Exception as error:  # every library has its own errors
        message = str(getattr(error, "strerror", None) or error).replace(repr(str(path)), "it")
        reason = message.strip(" .\n").partition("\n")[0] or type(error).__name__
        raise Unreadable(path, kind, reason) from error


def library(module: str, extra: str) -> Any:
    """Import a module of an optional library, or raise `BadInput` that names its extra."""
    package = module.partition(".")[0]
    needs = f"these files are read with {package}, which is not installed"
    return optional(module, needs, f"'topocaps[{extra}]'")


def read_picture(path: Path, look: Look) -> Tensor:
    """Read one frame: (1, channels, height, width)."""
    image, ops = library("PIL.Image", "images"), library("PIL.ImageOps", "images")
    with reading(path, "a picture"), image.open(path) as file:
        upright = ops.exif_transpose(file)
        if upright.mode in ("1", "LA", "La"):
            upright = upright.convert("L")
        elif upright.mode not in ("L", "I", "F") and not upright.mode.startswith("I;16"):
            upright = upright.convert("RGB")
        pixels = np.array(upright)
    if pixels.dtype == np.int32 and pixels.min() >= 0 and pixels.max() < 2**16:
        pixels = pixels.astype(np.uint16)  # some versions of Pillow return 16 bits as 32
    pixels = pixels.transpose(2, 0, 1) if pixels.ndim == 3 else pixels[None]
    return look.convert(to_tensor(pixels[None], str(path)))


def read_pictures(paths: Sequence[Path], look: Look) -> Tensor:
    """Read pictures as the frames of one sequence: (time, channels, height, width)."""
    frames: list[Tensor] = []
    for path in paths:
        frames.append(read_picture(path, look))
        check_alike(frames[0], str(paths[0]), frames[-1], str(path))
    return torch.cat(frames)


def read_video(path: Path, look: Look) -> Tensor:
    """Read all frames of a video as bytes: (time, channels, height, width)."""
    av = library("av", "video")
    converted: list[Tensor] = []
    frames: list[Tensor] = []

    def convert() -> None:
        converted.append(look.convert(torch.stack(frames)))
        frames.clear()
        check_room(len(converted) * converted[0].numel())

    with reading(path, "a video"), av.open(str(path)) as file:
        if not file.streams.video:
            raise ValueError("it has no video stream")
        file.streams.video[0].thread_type = "AUTO"
        for frame in file.decode(video=0):
            grey = frame.format.name.startswith(("gray", "mono"))
            pixels = torch.from_numpy(frame.to_ndarray(format="gray" if grey else "rgb24"))
            frames.append(pixels[None] if grey else pixels.movedim(-1, 0))
            if len(frames) == _CONVERTED_TOGETHER:
                convert()
        if frames:
            convert()
        if not converted:
            raise ValueError("it has no frames")
        seconds = (file.duration or 0) / 1e6
        if len(file.streams) == 1 and (frame.time or seconds) < 0.9 * seconds - 1:
            raise ValueError(f"it ends after {frame.time:.1f} of {seconds:.1f} seconds")
        return torch.cat(converted)


def read_clip(path: Path, look: Look) -> Tensor:
    """Read the sequence in a file: (time, *frame)."""
    if path.suffix.lower() in VIDEOS and path.exists():
        return read_video(path, look)
    return look.clip(read_array(path, 2), str(path))


def read_array(path: Path, axes: int) -> NDArray[Any]:
    """Read an array. .npy files and contiguous HDF5 arrays are memory-mapped.

    Args:
        path: a .npy, .npz or HDF5 file. ``file.h5/name`` names one of several arrays; otherwise
            the largest one is read.
        axes: the smallest number of axes of the largest array.
    """
    archives = (p for p in path.parents if p.suffix.lower() in (".npz", *HDF5) and p.is_file())
    file = next(archives, path)
    if not file.exists():
        raise BadInput(f"there is nothing at {path}: give the path of a file or a folder")
    suffix = file.suffix.lower()
    if suffix not in (*CLIPS, *HDF5):
        raise BadInput(
            f"{path} is neither a video nor an array: give one of these ({_FORMATS}), or a folder "
            "of pictures, videos or clips"
        )
    name = path.relative_to(file).as_posix() if file != path else ""
    with reading(file, f"a {suffix}"):
        if suffix == ".npy":
            return np.lib.format.open_memmap(file, mode="r")
        if suffix == ".npz":
            # numpy does not close a broken file that it opened itself
            with file.open("rb") as raw, np.load(raw, allow_pickle=False) as archive:
                check_room(sum(entry.file_size for entry in archive.zip.infolist()))
                arrays = {key: archive[key] for key in archive.files}
                return np.asarray(_select(arrays, axes, file, name))
    return _read_hdf5(file, axes, name)


def _read_hdf5(path: Path, axes: int, name: str) -> NDArray[Any]:
    h5py = library("h5py", "h5")
    with reading(path, f"a {path.suffix.lower()}"), h5py.File(path, "r") as file:
        datasets: dict[str, Any] = {}
        file.visititems(
            lambda key, node: datasets.update({key: node} if isinstance(node, h5py.Dataset) else {})
        )
        dataset = _select(datasets, axes, path, name)
        offset = dataset.id.get_offset()
        if dataset.chunks is None and offset is not None:
            return np.memmap(path, dataset.dtype, "r", offset, dataset.shape)
        check_room(dataset.nbytes)
        return np.asarray(dataset[...])


def _select(arrays: Mapping[str, Any], axes: int, path: Path, name: str) -> Any:
    """Return the named array, or the largest one of at least ``axes`` axes if the name is empty."""
    if name:
        if name not in arrays:
            raise BadInput(f"{path} holds no {name}, but {', '.join(arrays) or 'nothing'}")
        return arrays[name]
    large = [array for array in arrays.values() if array.ndim >= axes]
    if not large:
        listed = ", ".join(f"{key} {array.shape}" for key, array in arrays.items()) or "nothing"
        raise BadInput(
            f"{path} holds no array of {axes} axes or more, but {listed}: give a file with frames"
        )
    return max(large, key=lambda array: array.size)


def check_room(size: int) -> None:
    """Raise `BadInput` if ``size`` bytes are more than the free memory."""
    if size > (free := free_memory(torch.device("cpu"))):
        raise BadInput(
            f"the frames need {size / 2**30:.1f} GB of memory, of which {free / 2**30:.1f} GB are "
            "free: take a smaller size=, or write all frames to one .npy (sequences, time, "
            "*frame): then only batches are read"
        )


def list_files(folder: Path) -> tuple[dict[str, list[Path]], list[Path]]:
    """Return the files in a folder and its subfolders, by kind, and the files of other kinds.

    Files of a kind have their full paths and are in natural order. The other files have paths
    relative to the folder. Hidden files are left out.
    """
    walk = os.walk(folder, followlinks=True)
    files = [(Path(root) / name).relative_to(folder) for root, _, names in walk for name in names]
    by_kind: dict[str, list[Path]] = {kind: [] for kind in KINDS}
    others = []
    for file in sorted(files, key=_natural_order):
        if any(part.startswith((".", "__MACOSX")) for part in file.parts):
            continue
        kind = next((k for k, suffixes in KINDS.items() if file.suffix.lower() in suffixes), None)
        if kind is None:
            others.append(file)
        else:
            by_kind[kind].append(folder / file)
    return by_kind, others


def _natural_order(path: Path) -> list[list[tuple[int, str]]]:
    """Return a sort key that puts frame 10 after frame 9."""
    return [
        [(int(part), "") if part.isdigit() else (-1, part) for part in re.split(r"(\d+)", step)]
        for step in path.parts
    ]
