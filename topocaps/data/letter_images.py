"""Letters that rotate. Their glyphs come from fonts inside matplotlib, so nothing is downloaded."""

from __future__ import annotations

import math
import string
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from topocaps.data.download import cached_bytes
from topocaps.data.geometry import (
    adjugate,
    apply,
    as_places,
    determinant,
    pixels,
    rotation,
    warp,
)
from topocaps.data.sequences import Sequences

LETTERS = string.ascii_lowercase + string.ascii_uppercase + string.digits
FACES = (
    *(f"DejaVuSans{style}" for style in ("", "-Bold", "-Oblique", "-BoldOblique")),
    *(f"DejaVuSansMono{style}" for style in ("", "-Bold", "-Oblique", "-BoldOblique")),
    *(f"DejaVuSerif{style}" for style in ("", "-Bold", "-Italic", "-BoldItalic")),
)
NAMES = ("letter", "face", "variant", "rotation")
SIDE = 28  # pixels
POINTS, DPI = 16, 90
FRAMES = 15  # of 24 degrees
VARIANTS = 7  # of a training letter
#: True for held-out letters, which are every fifth one.
HELD_OUT = torch.arange(len(LETTERS)) % 5 == 0


def glyphs() -> Tensor:
    """Draw every letter in every face, centred: bytes (letters, faces, 28, 28).

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
            glyph = np.asarray(font.get_image())
            top, left = ((SIDE - side) // 2 for side in glyph.shape)
            centre = np.s_[top : top + glyph.shape[0], left : left + glyph.shape[1]]
            images[letter, face][centre] = glyph
    return torch.from_numpy(images)


def letters() -> tuple[Sequences, Sequences]:
    """Return training and held-out sequences of grey frames (1, 28, 28) in which a letter rotates.

    The letters are a-z, A-Z and 0-9 in twelve faces. Each frame is rotated counter-clockwise by 24
    degrees from the one before, so 15 frames are a full turn. Every fifth letter is held out in all
    faces; it is not distorted, and upright in frame 0. Each training letter has seven variants with
    different sizes, proportions, slants and first angles. They are drawn at random from a fixed
    seed. The images are drawn once and then read from the cache.

    >>> train, held_out = letters()
    >>> held_out
    Sequences(156 of 15 frames (1, 28, 28), letter, face, variant, rotation)
    """
    training, held_out = (part.nonzero().flatten() for part in (~HELD_OUT, HELD_OUT))
    shapes = [(len(training), VARIANTS), (len(held_out), 1)]
    sizes = [letters * len(FACES) * variants * FRAMES * SIDE**2 for letters, variants in shapes]
    images = torch.from_numpy(cached_bytes("letters-v2.bytes", sum(sizes), _rotate_all))
    training_images, held_out_images = images.split(sizes)
    return (
        _sequences(training_images, training, VARIANTS),
        _sequences(held_out_images, held_out, 1),
    )


def orientations(sequences: Sequences) -> Tensor:
    """Return the orientation of the letter in every image, in frames from upright: (images,).

    A frame is a counter-clockwise rotation by 24 degrees. Training letters start at an angle that
    is not a whole number of frames.
    """
    assert sequences.factors is not None
    letter, face, variant, rotation = sequences.factors.unbind(1)
    return _first_orientations()[letter, face, variant] + rotation


def _first_orientations() -> Tensor:
    """Return the orientations of all letters in frame 0, (letters, faces, variants)."""
    generator = torch.Generator().manual_seed(0)
    orientation = torch.zeros(len(LETTERS), len(FACES), VARIANTS, dtype=torch.float64)
    count = int((~HELD_OUT).sum()) * len(FACES)
    maps = torch.stack([_variants(generator) for _ in range(count)])
    across, down = maps[..., 0].double().unbind(-1)  # images of the horizontal axis
    angle = torch.atan2(-down, across)  # y points down
    orientation[~HELD_OUT] = (angle * FRAMES / (2 * math.pi)).unflatten(0, (-1, len(FACES)))
    return orientation


def _sequences(images: Tensor, letter: Tensor, variants: int) -> Sequences:
    levels = (torch.arange(count) for count in (len(FACES), variants, FRAMES))
    factors = torch.cartesian_prod(letter, *levels)
    order = torch.arange(len(factors)).reshape(-1, FRAMES)
    moving = torch.full((len(order),), NAMES.index("rotation"))
    frames = images.reshape(-1, 1, SIDE, SIDE)
    return Sequences(frames, order, factors, NAMES, moving, cyclic=True)


def _rotate_all() -> NDArray[np.uint8]:
    """Return the frames of all glyphs: bytes in the order (letter, face, variant, rotation, pixel).

    The variants of training letters come first, and then the held-out letters.
    """
    images, generator = glyphs(), torch.Generator().manual_seed(0)
    parts = [_rotate(glyph, _variants(generator)) for glyph in images[~HELD_OUT].flatten(0, 1)]
    parts += [_rotate(glyph, torch.eye(2)[None]) for glyph in images[HELD_OUT].flatten(0, 1)]
    return torch.cat(parts).numpy()


def _variants(generator: torch.Generator) -> Tensor:
    """Return random linear maps of a letter, (variants, 2, 2)."""

    def normal() -> Tensor:
        return torch.randn(VARIANTS, generator=generator).clamp(-2, 2)

    size = 0.85 + 0.3 * torch.rand(VARIANTS, generator=generator)
    angle = 2 * math.pi * torch.rand(VARIANTS, generator=generator)
    width_to_height, slant = (0.15 * normal()).exp(), 0.2 * normal()
    across = torch.stack([width_to_height.sqrt(), slant], -1)
    down = torch.stack([torch.zeros_like(size), width_to_height.rsqrt()], -1)
    return size[:, None, None] * rotation(angle) @ torch.stack([across, down], -2)


def _rotate(glyph: Tensor, maps: Tensor) -> Tensor:
    """Distort a glyph by maps (variants, 2, 2), then rotate it, and return its frames as bytes."""
    angle = torch.arange(FRAMES) * (2 * math.pi / FRAMES)
    maps = rotation(angle) @ maps[:, None]  # variants frames 2 2
    back = adjugate(maps) / determinant(maps)[..., None, None]
    places = as_places(apply(back, pixels(SIDE, SIDE)), SIDE, SIDE)
    return warp(glyph[None, None, None].float(), places).round().byte().flatten()
