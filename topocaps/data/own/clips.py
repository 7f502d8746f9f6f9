"""Where clips come from: the files of a folder, the array of a file, the items of a data set."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import IterableDataset

from topocaps.data.own.files import (
    CLIPS,
    HDF5,
    PICTURES,
    VIDEOS,
    array,
    naturally,
    picture,
    reading,
    video,
)
from topocaps.data.own.frames import Look, held
from topocaps.data.own.gather import Clip, alike
from topocaps.errors import BadInput

KINDS = {"pictures": PICTURES, "videos": VIDEOS, "clips": CLIPS}  #: that folders may hold
_FORMATS = f"{', '.join(VIDEOS[:4])}, …, {', '.join((*CLIPS, *HDF5))}"


def files_in(folder: Path) -> tuple[dict[str, list[Path]], list[Path]]:
    """The files of every kind in a folder and its subfolders, in natural order, and all others."""
    walk = os.walk(folder, followlinks=True)
    there = [(Path(root) / name).relative_to(folder) for root, _, names in walk for name in names]
    shown = (f for f in there if not any(p.startswith((".", "__MACOSX")) for p in f.parts))
    found: dict[str, list[Path]] = {kind: [] for kind in KINDS}
    aside = []
    for file in sorted(shown, key=naturally):
        kind = next((k for k, suffixes in KINDS.items() if file.suffix.lower() in suffixes), None)
        if kind is None:
            aside.append(file)
        else:
            found[kind].append(folder / file)
    return found, aside


def film(files: Sequence[Path], look: Look) -> Tensor:
    """Pictures that are the frames of one sequence."""
    found: list[Tensor] = []
    for file in files:
        found.append(picture(file, look))
        alike(found[0], str(files[0]), found[-1], str(file))
    return torch.cat(found)


def array_at(path: Path, axes: int) -> Any:
    """The array of a file, or the one named after it: ``file.h5/name``."""
    archives = (p for p in path.parents if p.suffix.lower() in (".npz", *HDF5) and p.is_file())
    file = next(archives, path)
    if not file.exists():
        raise BadInput(f"there is nothing at {path}: give a file, or a folder")
    if file.suffix.lower() not in (*CLIPS, *HDF5):
        raise BadInput(
            f"{path} is neither a video nor an array: give one ({_FORMATS}), or a folder of "
            "pictures, videos or clips"
        )
    return array(file, axes, path.relative_to(file).as_posix() if file != path else "")


def clip_at(path: Path, look: Look) -> Tensor:
    """The sequence of a file."""
    if path.suffix.lower() in VIDEOS and path.exists():
        return video(path, look)
    return clip(array_at(path, 2), str(path), look)


def items(source: Any, kind: str, look: Look) -> Iterator[Clip]:
    """The items of a data set as clips."""
    counted = hasattr(source, "__len__") and hasattr(source, "__getitem__")
    if counted and not isinstance(source, IterableDataset):
        for n in range(len(source)):
            name = f"item {n} of the {kind}"
            yield Clip(name, partial(_item, partial(source.__getitem__, n), name, look))
    else:
        for n, item in enumerate(source):
            name = f"item {n} of the {kind}"
            yield Clip(name, partial(clip, item, name, look))


def _item(get: Callable[[], Any], name: str, look: Look) -> Tensor:
    with reading(name, "a sequence"):
        item = get()
    return clip(item, name, look)


def clip(item: Any, name: str, look: Look) -> Tensor:
    """One sequence (time, *frame), alone or before its label; or the file of one."""
    x = item[0] if isinstance(item, tuple | list) and item else item
    if isinstance(x, str | Path):
        return clip_at(Path(x), look)
    if not isinstance(x, Tensor | np.ndarray):
        raise BadInput(
            f"{name} is of type {type(x).__name__}, and must be an array (time, *frame), alone or "
            "before its label"
        )
    return look.wanted(held(look.arranged(x, "T", name), name))
