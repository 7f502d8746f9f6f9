"""Letters that turn: the glyphs of the fonts inside matplotlib, so there is nothing to download."""

from __future__ import annotations

import contextlib
import math
import string
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from topocaps.data.geometry import turned, warp
from topocaps.data.sequences import Sequences
from topocaps.io import cache_folder, write_atomically

LETTERS = string.ascii_lowercase + string.ascii_uppercase + string.digits
FACES = (
    *(f"DejaVuSans{style}" for style in ("", "-Bold", "-Oblique", "-BoldOblique")),
    *(f"DejaVuSansMono{style}" for style in ("", "-Bold", "-Oblique", "-BoldOblique")),
    *(f"DejaVuSerif{style}" for style in ("", "-Bold", "-Italic", "-BoldItalic")),
)
NAMES = ("letter", "face", "zoom", "rotation")
SIDE = 28  # pixels
POINTS, DPI = 16, 90
FRAMES = 15  # of 24 degrees
ZOOMS = (0.85, 0.9, 0.95, 1.0, 1.05, 1.1, 1.15)
EVERY = 5  # of so many letters, the first is held out


def glyphs() -> Tensor:
    """Draw every letter in every face, in the middle of its image: (letters, faces, 28, 28) bytes.

    >>> h = glyphs()[LETTERS.index("H"), 0]
    >>> for row in h[6:22:2, 6:21]:
    ...     print("|" + "".join(".#"[int(pixel > 127)] for pixel in row) + "|")
    |...............|
    |.##.......##...|
    |.##.......##...|
    |.###########...|
    |.##.......##...|
    |.##.......##...|
    |.##.......##...|
    |.##.......##...|
    """
    from matplotlib import get_data_path
    from matplotlib.ft2font import FT2Font

    folder = Path(get_data_path()) / "fonts" / "ttf"
    images = np.zeros((len(LETTERS), len(FACES), SIDE, SIDE), np.uint8)
    for face, name in enumerate(FACES):
        font = FT2Font(str(folder / f"{name}.ttf"))
        font.set_size(POINTS, DPI)
        for letter, character in enumerate(LETTERS):
            font.set_text(character)
            font.draw_glyphs_to_bitmap(antialiased=True)
            drawn = np.asarray(font.get_image())
            top, left = ((SIDE - side) // 2 for side in drawn.shape)
            place = np.s_[top : top + drawn.shape[0], left : left + drawn.shape[1]]
            images[letter, face][place] = drawn
    return torch.from_numpy(images)


def letters() -> tuple[Sequences, Sequences]:
    """Return (training, held-out) sequences of grey frames, (1, 28, 28), in which a letter turns.

    The letters are a-z, A-Z and 0-9 in twelve faces. A frame is turned by 24 degrees from the one
    before, counter-clockwise, so that 15 frames come round. Every fifth letter is held out in all
    faces, and its size is 1; training letters have seven sizes from 0.85 to 1.15. The images are
    drawn once and then read from the cache.

    >>> train, held_out = letters()
    >>> held_out
    Sequences(156 of 15 frames (1, 28, 28), letter, face, zoom, rotation)
    """
    held = torch.arange(len(LETTERS)) % EVERY == 0
    shape = (len(LETTERS), len(FACES), len(ZOOMS), FRAMES, 1, SIDE, SIDE)
    images = torch.from_numpy(_images(math.prod(shape))).reshape(shape)
    return _sequences(images, ~held, ZOOMS), _sequences(images, held, (1.0,))


def _sequences(images: Tensor, which: Tensor, zooms: tuple[float, ...]) -> Sequences:
    letter = which.nonzero().flatten()
    zoom = torch.tensor([ZOOMS.index(size) for size in zooms])
    chosen = images[letter][:, :, zoom]
    sides = (len(letter), len(FACES), len(zoom), FRAMES)
    factors = torch.cartesian_prod(
        letter, torch.arange(len(FACES)), torch.arange(len(zoom)), torch.arange(FRAMES)
    )
    order = torch.arange(math.prod(sides)).reshape(-1, FRAMES)
    moving = torch.full((len(order),), NAMES.index("rotation"))
    return Sequences(chosen.flatten(0, 3), order, factors, NAMES, moving, cyclic=True)


def _images(size: int) -> NDArray[np.uint8]:
    """Return all images, from the cache if it holds them."""
    try:
        file = cache_folder() / "letters-v1.bytes"
    except RuntimeError:  # a user without a home
        return _turn_all()
    with contextlib.suppress(OSError):
        found = np.fromfile(file, dtype=np.uint8)
        if found.size == size:
            return found
    images = _turn_all()
    with contextlib.suppress(OSError):
        file.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(file, images.tobytes())
    return images


def _turn_all() -> NDArray[np.uint8]:
    """Turn and zoom every glyph: bytes in the order (letter, face, zoom, rotation, pixel)."""
    angle = torch.arange(FRAMES) * (2 * math.pi / FRAMES)
    places = turned(SIDE, SIDE, angle.expand(len(ZOOMS), -1), torch.tensor(ZOOMS)[:, None])
    by_letter = [
        warp(one[:, None, None, None].float(), places).round().byte().flatten() for one in glyphs()
    ]
    return torch.cat(by_letter).numpy()
