"""Draws the pictures of docs/concepts.md: what W ties together, and what the prior then looks like.

    python docs/tools/pictures.py [FOLDER]

Every W is ``Topography.matrix``, the dense oracle, and nothing else.
"""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from torch import Tensor

import topocaps as tc
from topocaps.study.figures import ACCENT, GREY, canvas, save

IMAGES = Path(__file__).parents[1] / "images"
FRAMES = SITES = 9

#: name of the picture: topography of one capsule
SHOWN = {
    "w-shifting": tc.Topography(1, (SITES,), window=5),
    "w-bubbles": tc.Topography(1, (SITES,), (3,), window=5, velocity=0),
    "w-open": tc.Topography(1, (SITES,), window=5, cyclic=False),
    "w-causal": tc.Topography(1, (SITES,), window=5, causal=True),
    "w-fractional": tc.Topography(1, (SITES,), window=5, velocity=0.5),
}
TORUS = tc.Topography(1, (SITES, SITES), (3, 3))


def over_time(topography: tc.Topography) -> Figure:
    """What a latent in the middle sums, what one at the edge sums, and all of W."""
    w = topography.matrix(FRAMES)
    rows = w.reshape(FRAMES, SITES, FRAMES, *topography.u_shape)
    figure, axes = canvas(1, 3, (10.2, 3.5))
    first = -topography.beyond[0]
    edge = (1, 4) if topography.causal else (8, 7)
    for axis, (frame, site) in zip(axes[:2], ((4, 4), edge), strict=True):
        plane(axis, rows[frame, site].T, (frame, site), first)
        axis.set_title(f"what t at frame {frame}, site {site} sums", fontsize=10)
        axis.set_xlabel("frame")
        axis.set_ylabel("site of U")
        axis.set_xticks(range(0, FRAMES, 2))
        axis.set_yticks(range(first, first + rows.shape[-1], 2))
    whole(axes[2], w, FRAMES, "frame")
    return figure


def torus() -> Figure:
    """The same for sites on a torus, in a single frame."""
    w = TORUS.matrix(1)
    rows = w.reshape(SITES, SITES, SITES, SITES)
    figure, axes = canvas(1, 3, (10.2, 3.5))
    for axis, (row, column) in zip(axes[:2], ((4, 4), (0, 7)), strict=True):
        plane(axis, rows[row, column], (column, row), 0)
        axis.set_title(f"what t at row {row}, column {column} sums", fontsize=10)
        axis.set_xlabel("column")
        axis.set_ylabel("row")
        axis.set_xticks(range(0, SITES, 2))
        axis.set_yticks(range(0, SITES, 2))
    whole(axes[2], w, SITES, "row")
    return figure


def plane(axis: Axes, values: Tensor, here: tuple[int, int], first: int) -> None:
    """A row of W over time and sites; the latent itself is framed, open ends are dashed."""
    down, across = values.shape
    extent = (-0.5, across - 0.5, first - 0.5, first + down - 0.5)
    axis.imshow(values.numpy(), cmap="Reds", origin="lower", vmin=0, vmax=1.25, extent=extent)
    for n in range(1, across):
        axis.axvline(n - 0.5, color="white", linewidth=1)
    for n in range(1, down):
        axis.axhline(first + n - 0.5, color="white", linewidth=1)
    for end in (-0.5, SITES - 0.5) if first < 0 else ():
        axis.axhline(end, color=GREY, linewidth=1.2, linestyle="--")
    corner = (here[0] - 0.5, here[1] - 0.5)
    frame = Rectangle(corner, 1, 1, fill=False, edgecolor="black", linewidth=2, zorder=3)
    frame.set_clip_on(False)
    axis.add_patch(frame)
    tidy(axis)


def whole(axis: Axes, w: Tensor, blocks: int, block: str) -> None:
    """All of W: a row is a latent, a column a square of U; lines are between frames."""
    axis.imshow(w.numpy(), cmap="Reds", vmin=0, vmax=1.25, aspect="auto", interpolation="nearest")
    down, across = (size // blocks for size in w.shape)
    for n in range(1, blocks):
        axis.axhline(n * down - 0.5, color=GREY, linewidth=0.4)
        axis.axvline(n * across - 0.5, color=GREY, linewidth=0.4)
    axis.set_xticks([across * (n + 0.5) - 0.5 for n in range(blocks)], range(blocks))
    axis.set_yticks([down * (n + 0.5) - 0.5 for n in range(blocks)], range(blocks))
    axis.set_title(f"W: {w.shape[0]} × {w.shape[1]}", fontsize=10)
    axis.set_xlabel(f"{block} of U²")
    axis.set_ylabel(f"{block} of T")
    tidy(axis)


def tidy(axis: Axes) -> None:
    axis.tick_params(length=0, labelsize=8)
    axis.spines[:].set_color(GREY)


def prior(frames: int = 48, sites: int = 48, window: int = 13) -> Figure:
    """Draws of the prior: what the same U makes of the scale of t under three topographies."""
    alone = tc.Topography(1, (sites,), (3,))
    kinds = {
        "single frames: window 1": alone,
        "Bubbles: velocity 0": replace(alone, window=window, velocity=0),
        "shifting: velocity 1": replace(alone, window=window),
    }
    generator = torch.Generator().manual_seed(0)
    u = torch.randn(1, frames, 1, sites, generator=generator)
    figure, axes = canvas(1, 3, (10.2, 3.5))
    for axis, (name, topography) in zip(axes, kinds.items(), strict=True):
        energy = topography.pool(u.square())[0, :, 0] / topography.degrees_of_freedom
        scale = energy.rsqrt().log().T.numpy()
        drawn = axis.imshow(scale, cmap="RdGy_r", origin="lower", vmin=-0.8, vmax=0.8)
        axis.set_title(name, fontsize=10)
        axis.set_xlabel("frame")
        axis.set_ylabel("site")
        tidy(axis)
    bar = figure.colorbar(drawn, ax=axes, fraction=0.02)
    bar.set_label("log scale of t", fontsize=9)
    bar.ax.tick_params(labelsize=8)
    return figure


def roll() -> Figure:
    """An activation rolled by whole and by half sites."""
    sites = 15
    topography = tc.Topography(1, (sites,))
    place = torch.arange(sites)
    t = torch.exp(-0.5 * ((place - 3.0) / 1.1).square())[None]
    figure, axes = canvas(1, 3, (10.2, 2.5))
    for axis, steps in zip(axes, (4, 2.5, -5), strict=True):
        linear, phases = (topography.roll(t, steps, fourier=kind)[0] for kind in (False, True))
        axis.plot(place, t[0], color=GREY, linewidth=1, label="t")
        axis.plot(place, linear, color=ACCENT, marker="o", markersize=3, label="roll(t, n)")
        if steps != int(steps):
            axis.plot(place, phases, color="black", linewidth=1, linestyle=":", label="Fourier")
        axis.set_title(f"n = {steps:g}".replace("-", "−"), fontsize=10)
        axis.set_xlabel("site")
        axis.set_ylim(-0.1, 1.3)
        axis.legend(frameon=False, fontsize=8, ncols=3, loc="upper center")
        axis.tick_params(labelsize=8)
        axis.spines[["top", "right"]].set_visible(False)
    return figure


def draw(folder: Path = IMAGES) -> list[Path]:
    """All pictures, as PNGs in a folder."""
    figures = {name: over_time(topography) for name, topography in SHOWN.items()}
    figures |= {"w-torus": torus(), "prior": prior(), "roll": roll()}
    folder.mkdir(parents=True, exist_ok=True)
    for name, figure in figures.items():
        save(figure, folder / f"{name}.png", dpi=110)
    return [folder / f"{name}.png" for name in figures]


if __name__ == "__main__":
    for path in draw(*map(Path, sys.argv[1:2])):
        print(path)
