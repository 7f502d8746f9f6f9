"""Downloads with a progress bar, which resume after an interruption, and the cache of images."""

from __future__ import annotations

import contextlib
import sys
import urllib.error
import urllib.request
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn

from topocaps.errors import BadInput, TopocapsError
from topocaps.io import cache_folder, make_folder, write_atomically

_BLOCK = 1 << 16
_TIMEOUT = 20.0  # seconds without a byte


class NotDownloaded(TopocapsError):
    """No mirror provided the file."""


def download(mirrors: Sequence[str], name: str, folder: Path) -> Path:
    """Download a file from the first mirror that has it, and return its path.

    An interrupted download (``name.part``) is resumed.

    Args:
        mirrors: addresses that a file name is appended to.
        name: name of the file.
        folder: folder that the file is written to.
    """
    make_folder(folder)
    whole, part = folder / name, folder / f"{name}.part"
    problems = []
    for mirror in mirrors:
        try:
            _fetch(f"{mirror}{name}", part)
        except (OSError, urllib.error.URLError, BadInput) as error:
            problems.append(f"{mirror}: {error}")
        else:
            part.replace(whole)
            return whole
    raise NotDownloaded("; ".join(problems))


def _fetch(url: str, part: Path) -> None:
    """Download the rest of a file, or all of it if the server does not resume."""
    have = part.stat().st_size if part.exists() else 0
    request = urllib.request.Request(url, headers={"Range": f"bytes={have}-"} if have else {})
    try:
        answer = urllib.request.urlopen(request, timeout=_TIMEOUT)
    except urllib.error.HTTPError as error:
        if error.code == 416 and have:  # the part is complete
            return
        raise
    with answer, _progress() as progress:
        resumed = answer.status == 206
        length = answer.headers.get("Content-Length")
        total = None if length is None else int(length) + (have if resumed else 0)
        task = progress.add_task(part.stem, total=total, completed=have if resumed else 0)
        with part.open("ab" if resumed else "wb") as file:
            while block := answer.read(_BLOCK):
                file.write(block)
                progress.advance(task, len(block))
    if total is not None and part.stat().st_size != total:
        raise BadInput(f"got {part.stat().st_size} of {total} bytes")


def _progress() -> Progress:
    """Return a progress bar, which is shown on terminals only."""
    console = Console(file=sys.stderr)
    columns = (TextColumn("{task.description}"), BarColumn(bar_width=20), DownloadColumn())
    return Progress(*columns, console=console, disable=not console.is_terminal)


def cached_bytes(name: str, size: int, make: Callable[[], NDArray[np.uint8]]) -> NDArray[np.uint8]:
    """Return bytes from a file of the cache, or make them and write the file.

    A file of another size is replaced. A cache that cannot be read or written is ignored.

    Args:
        name: name of the file.
        size: number of bytes.
        make: function that returns the bytes.
    """
    try:
        file = cache_folder() / name
    except RuntimeError:  # a user without a home folder
        return make()
    with contextlib.suppress(OSError):
        cached = np.fromfile(file, dtype=np.uint8)
        if cached.size == size:
            return cached
    made = make()
    with contextlib.suppress(OSError):
        file.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(file, made.tobytes())
    return made
