"""Figures and animations as files."""

from __future__ import annotations

import io
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from matplotlib.figure import Figure
from numpy.typing import NDArray
from PIL import Image

from topocaps.io import write_atomically
from topocaps.study import figures

_MILLISECONDS = 180  # for which a picture of an animation is shown
SUFFIXES = (".png", ".gif")


@dataclass(frozen=True, eq=False)
class Animation:
    """An animation: RGB pictures (time, height, width, 3) of bytes."""

    pictures: NDArray[np.uint8]

    def gif(self) -> bytes:
        """Return the content of a GIF file that repeats."""
        first, *rest = (Image.fromarray(picture) for picture in self.pictures)
        buffer = io.BytesIO()
        first.save(buffer, "GIF", save_all=True, append_images=rest, duration=_MILLISECONDS, loop=0)
        return buffer.getvalue()


Drawing = Figure | Animation


def save(drawing: Drawing, folder: Path, name: str, dpi: int = 150) -> None:
    """Write a figure as a PNG file and an animation as a GIF, atomically."""
    if isinstance(drawing, Animation):
        write_atomically(folder / f"{name}.gif", drawing.gif())
    else:
        figures.save(drawing, folder / f"{name}.png", dpi)


def saved(folder: Path, name: str) -> Path | None:
    """Return the file of a drawing, or None if there is none."""
    return next((f for s in SUFFIXES if (f := folder / f"{name}{s}").exists()), None)
