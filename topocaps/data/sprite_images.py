"""Sprites: squares, ellipses and hearts with the geometry of dSprites, at any resolution."""

from __future__ import annotations

import functools
import math
import zipfile
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from topocaps.data.download import cached_bytes
from topocaps.data.sequences import Sequences
from topocaps.errors import BadInput
from topocaps.references import cites

MATTHEY_2017 = """\
@misc{matthey2017dsprites,
  title = {{dSprites}: Disentanglement testing Sprites dataset},
  author = {Matthey, Loic and Higgins, Irina and Hassabis, Demis and Lerchner, Alexander},
  year = {2017},
  url = {https://github.com/deepmind/dsprites-dataset/},
}"""

Floats = NDArray[np.float64]
Bytes = NDArray[np.uint8]

NAMES = ("shape", "scale", "orientation", "x", "y")
SCALES = np.linspace(0.5, 1, 6)
ORIENTATIONS = np.linspace(0, 2 * math.pi, 40)
POSITIONS = np.linspace(0, 1, 32)

#: The numbers of values of the factors in the file of dSprites.
ALL = (3, 6, 40, 32, 32)
#: The 50,625 images of the papers: 3 shapes, the 5 largest of 6 scales, and every other value of
#: the first 30 orientations, x and y.
SUBSET = (range(3), range(1, 6), range(0, 30, 2), range(0, 30, 2), range(0, 30, 2))
#: Positions half a step apart, for sprites at half the speed, and fewer orientations.
HALF_STEPS = (range(3), range(1, 6), range(0, 30, 6), range(30), range(30))
#: The images of growing sprites, and their scales.
GROWING = (range(3), range(21), range(0, 30, 2), range(0, 30, 6), range(0, 30, 6))
GROWTH = np.linspace(0.3, 1, 21)
FRAMES = 15
HELD_OUT = 0.2
SPLIT_SEED = 0  # all runs hold out the same orbits


def _outlines() -> tuple[Floats, ...]:
    """Return the corners (x, y) of each shape at scale 1 on a canvas of side 64; y points down."""
    square = 9.6 * np.array([[1, 1], [-1, 1], [-1, -1], [1, -1]])
    s = 2 * math.pi * np.arange(64) / 64
    ellipse = np.stack([12.78 * np.cos(s), 7.22 * np.sin(s)], 1)
    t = 2 * math.pi * np.arange(120) / 120
    wave = 13 * np.cos(t) - 5 * np.cos(2 * t) - 2 * np.cos(3 * t) - np.cos(4 * t)
    heart = np.stack([0.6001 * 16 * np.sin(t) ** 3, -0.6623 * wave - 1.4416], 1)
    return square, ellipse, heart


@functools.cache
def _wedges(shape: int) -> tuple[Floats, Floats, Floats]:
    """Divide a shape into wedges around its centre: start angles, edge normals and edge offsets.

    All shapes are star-shaped, so a point lies inside the shape if it lies on the inner side of the
    edge of its wedge.
    """
    corners = _outlines()[shape]
    angle = np.arctan2(corners[:, 1], corners[:, 0])
    corners = corners[np.argsort(angle)]
    begin, end = corners, np.roll(corners, -1, axis=0)
    edge = end - begin
    normal = np.stack([edge[:, 1], -edge[:, 0]], 1)  # inside: p · normal <= offset
    return np.sort(angle), normal, (begin * normal).sum(1)


@cites(MATTHEY_2017)
def render(
    shape: int, scale: float, orientation: float, x: Floats, y: Floats, resolution: int = 64
) -> NDArray[np.bool_]:
    """Render images (positions, resolution, resolution) of a shape.

    A pixel is True if its centre is inside the shape.

    Args:
        shape: 0 is the square, 1 the ellipse and 2 the heart.
        scale: size of the shape, at most 1.
        orientation: counter-clockwise rotation in radians.
        x, y: positions in [0, 1], each (positions,).
        resolution: side of the images in pixels.

    >>> heart = render(2, 1.0, 0.0, np.array([0.5]), np.array([0.5]), resolution=32)
    >>> for row in heart[0, 11:20, 11:21]:
    ...     print("".join(".#"[int(on)] for on in row))
    ..#....#..
    .########.
    ##########
    ##########
    .########.
    .########.
    ..######..
    ...####...
    ....##....
    """
    angles, normals, offsets = _wedges(shape)
    centres = (np.arange(resolution) + 0.5) * 64 / resolution
    dx = centres - (16 + 32 * np.asarray(x, float))[:, None]  # positions columns
    dy = centres - (16 + 32 * np.asarray(y, float))[:, None]  # positions rows
    reach = scale * np.hypot(*_outlines()[shape].T).max()
    near = dx[:, None, :] ** 2 + dy[:, :, None] ** 2 <= reach**2
    n, row, column = np.nonzero(near)
    px, py = dx[n, column] / scale, dy[n, row] / scale
    cos, sin = math.cos(orientation), math.sin(orientation)
    px, py = px * cos - py * sin, px * sin + py * cos  # coordinates of the unrotated shape
    wedge = np.searchsorted(angles, np.arctan2(py, px), side="right") - 1  # -1: the last wedge
    near[n, row, column] = px * normals[wedge, 0] + py * normals[wedge, 1] <= offsets[wedge]
    return near


Subset = tuple[range, ...]


@cites(MATTHEY_2017)
def render_subset(resolution: int, subset: Subset = SUBSET, sizes: Floats = SCALES) -> Bytes:
    """Render the images of a subset as bytes (images, resolution, resolution).

    Args:
        resolution: side of the images in pixels.
        subset: the indices of every factor, in the order of ``NAMES``.
        sizes: the scales that the second factor indexes.
    """
    shapes, scales, orientations, xs, ys = subset
    x, y = (p.ravel() for p in np.meshgrid(POSITIONS[xs], POSITIONS[ys], indexing="ij"))
    images = [
        render(shape, sizes[scale], ORIENTATIONS[orientation], x, y, resolution)
        for shape in shapes
        for scale in scales
        for orientation in orientations
    ]
    return np.concatenate(images).astype(np.uint8) * np.uint8(255)


def _images(resolution: int) -> Bytes:
    """Return the images of the papers, from the cache if they were rendered before."""
    pixels = math.prod(map(len, SUBSET)) * resolution**2
    packed = cached_bytes(
        f"sprites-{resolution}-v1.bits",
        -(-pixels // 8),
        lambda: np.packbits(render_subset(resolution) > 0),
    )
    return np.unpackbits(packed, count=pixels).reshape(-1, resolution, resolution) * np.uint8(255)


def read_subset(archive: Path) -> Bytes:
    """Read the images of the papers from the file of dSprites."""
    wanted = np.ravel_multi_index(np.meshgrid(*SUBSET, indexing="ij"), ALL).ravel()
    try:
        with np.load(archive) as file:
            images = file["imgs"]
            if images.shape != (math.prod(ALL), 64, 64):
                raise ValueError(f"imgs has the shape {images.shape}")
            return images[wanted] * np.uint8(255)
    except (OSError, EOFError, KeyError, ValueError, zipfile.BadZipFile) as error:
        raise BadInput(f"{archive} is not the dSprites file: {error}") from error


@cites(MATTHEY_2017)
def sprites(
    resolution: int = 64,
    archive: Path | None = None,
    speed: float = 1.0,
    moving: Sequence[str] = (),
) -> tuple[Sequences, Sequences]:
    """Return training and held-out cyclic sequences of binary frames (1, resolution, resolution).

    In an orbit, one of the factors x, y, orientation and scale takes all its values, and the other
    factors are constant. (The five scales are repeated three times.) 20 % of the orbits of each
    factor are held out. Training has no held-out orbit, but has their frames in orbits of other
    factors.

    Args:
        resolution: side of the frames in pixels, at least 8.
        archive: the file of dSprites (64 x 64). Without it, sprites are rendered.
        speed: 1 shows each of the 15 values in turn. 2 skips every other value. 0.5 has 30 frames
            per orbit, half a step apart, and only x and y move.
        moving: the names of the factors that move; by default all.
    """
    allowed = NAMES[3:] if speed == 0.5 else NAMES[1:]
    columns = [NAMES.index(name) for name in allowed if name in (moving or allowed)]
    if unknown := set(moving) - set(allowed):
        raise BadInput(
            f"moving must name factors out of {', '.join(allowed)}, not {', '.join(unknown)}"
        )
    if resolution < 8:
        raise BadInput(f"sprites need a resolution of at least 8, not {resolution}")
    if archive is not None and (resolution != 64 or speed not in (1, 2)):
        raise BadInput(
            f"the file of dSprites has resolution 64 and speeds 1 and 2, not {resolution} and "
            f"{speed}: leave out archive"
        )
    if speed not in (0.5, 1, 2):
        raise BadInput(f"speed must be 0.5, 1 or 2, not {speed}")
    subset, frames, step = (
        (HALF_STEPS, 2 * FRAMES, 1) if speed == 0.5 else (SUBSET, FRAMES, int(speed))
    )

    def visit(orbits: Tensor) -> Tensor:
        return orbits[:, torch.arange(frames) * step % orbits.shape[1]]

    if archive is not None:
        images = read_subset(archive)
    else:
        images = _images(resolution) if subset is SUBSET else render_subset(resolution, subset)
    return _split(images, subset, columns, visit, cyclic=True)


@cites(MATTHEY_2017)
def growing_sprites(resolution: int = 32) -> tuple[Sequences, Sequences]:
    """Return training and held-out sequences of 15 frames in which sprites grow.

    A sequence starts at one of the first seven of 21 scales. The sequences are not cyclic. 20 % of
    the sprites are held out.
    """
    images = render_subset(resolution, GROWING, GROWTH)

    def visit(orbits: Tensor) -> Tensor:
        return orbits.unfold(1, FRAMES, 1).flatten(0, 1)

    return _split(images, GROWING, (1,), visit, cyclic=False)


def _split(
    rendered: Bytes,
    subset: Subset,
    columns: Iterable[int],
    visit: Callable[[Tensor], Tensor],
    cyclic: bool,
) -> tuple[Sequences, Sequences]:
    """Return training and held-out sequences.

    Args:
        rendered: the images of the subset.
        subset: the indices of every factor.
        columns: the factors that move.
        visit: function that makes sequences of image indices out of orbits (orbits, values).
        cyclic: whether the first frame follows the last.
    """
    images = torch.from_numpy(rendered)[:, None]
    sizes = tuple(map(len, subset))
    factors = torch.cartesian_prod(*map(torch.arange, sizes))
    grid = torch.arange(len(images)).reshape(sizes)
    generator = torch.Generator().manual_seed(SPLIT_SEED)
    train: list[tuple[Tensor, Tensor]] = []
    held_out: list[tuple[Tensor, Tensor]] = []
    for column in columns:
        orbits = grid.movedim(column, -1).flatten(0, -2)
        orbits = orbits[torch.randperm(len(orbits), generator=generator)]
        held = round(HELD_OUT * len(orbits))
        for part, chosen in ((held_out, orbits[:held]), (train, orbits[held:])):
            order = visit(chosen)
            part.append((order, torch.full((len(order),), column)))

    def gather(parts: list[tuple[Tensor, Tensor]]) -> Sequences:
        order, moving = map(torch.cat, zip(*parts, strict=True))
        return Sequences(
            images, order, factors, NAMES, moving, cyclic=cyclic, citations=(MATTHEY_2017,)
        )

    return gather(train), gather(held_out)
