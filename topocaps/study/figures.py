"""Figures of topographic models: traversals, costs by lag, rows of W, training curves."""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from matplotlib.ticker import LogLocator, MaxNLocator, NullFormatter, StrMethodFormatter
from numpy.typing import NDArray
from torch import Tensor

from topocaps.data.sequences import Batch
from topocaps.errors import BadInput
from topocaps.io import write_atomically
from topocaps.latents.learned import LearnedTopography
from topocaps.latents.topography import Topography
from topocaps.metrics.decoded_traversal import DecodedTraversal
from topocaps.metrics.rolled_traversal import traversal, unseen_lags
from topocaps.metrics.visible_frames import some_missing
from topocaps.models.sequence import SequenceModel
from topocaps.training.watching import KL_WEIGHT

GREY, ACCENT = "#8a8f98", "#c8402f"
ROWS = ("input", "reconstruction", "rolled")
GAP = 2  # pixels between frames
WIDE = 5  # ratio of the largest to the smallest cost above which the axis is logarithmic
FEW = 30  # number of epochs below which every epoch is marked by a point
MANY = 5  # smallest number of curves whose legend stands beside the axes
COLOURS = 10  # number of colours in matplotlib's cycle


def save(figure: Figure, path: str | Path, dpi: int = 150) -> None:
    """Write a figure as a PNG file, atomically."""
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", dpi=dpi, bbox_inches="tight")
    write_atomically(Path(path), buffer.getvalue())


def can_be_drawn(frame_shape: Sequence[int]) -> bool:
    """Return whether frames are pictures, grey or in colour."""
    return len(frame_shape) == 3 and frame_shape[0] in (1, 3)


def check_drawable(frame_shape: Sequence[int]) -> None:
    """Raise `BadInput` if frames are not pictures."""
    if not can_be_drawn(frame_shape):
        raise BadInput(
            "only frames (channels, height, width) of 1 or 3 channels can be drawn, not "
            f"{tuple(frame_shape)}"
        )


def unseen_in_grey(x: Tensor, unseen: Tensor) -> Tensor:
    """Return pictures (batch, time, *frame), grey where ``unseen`` (batch, time) is True."""
    return torch.where(unseen[..., None, None, None], 0.35 + 0.25 * x, x)


def traversals(
    model: SequenceModel,
    batch: Batch,
    names: Sequence[str] = (),
    rate: float = 1.0,
    **options: Any,
) -> Figure:
    """Draw the input, the reconstruction and the rolled frames of every sequence (Fig. 4).

    Latents are samples.

    Args:
        names: names of the factors, for the titles.
        rate: sites per frame by which latents are rolled.
        options: other options of `DecodedTraversal.of`.
    """
    decoded = DecodedTraversal.of(model, batch.x, rate=rate, sample=True, **options)
    return decoded_traversal(decoded, labels_of(batch, names))


def decoded_traversal(decoded: DecodedTraversal, labels: Sequence[str] = ()) -> Figure:
    """Draw the input, the reconstruction and the rolled frames of every sequence of a traversal."""
    x = decoded.x
    check_drawable(x.shape[2:])
    down, across = (size + GAP for size in x.shape[-2:])
    shown = unseen_in_grey(x, decoded.unseen)
    blocks = torch.stack([shown, decoded.reconstructed, decoded.rolled], 1)
    figure, axes = draw_blocks(blocks, ROWS, labels, [str(lag) for lag in decoded.lags])
    for axis in axes:
        for row in (0, 2):
            corner = (decoded.start * across - 0.5, row * down - 0.5)
            edge = Rectangle(corner, across, down, fill=False, edgecolor=ACCENT, linewidth=2)
            edge.set_clip_on(False)
            axis.add_patch(edge)
    rate = decoded.rate
    label = "frame = sites rolled" if rate == 1 else f"frame, rolled by {rate:g} sites per frame"
    axes[-1].set_xlabel(label, fontsize=9)
    return figure


@torch.no_grad()
def filled(
    model: SequenceModel,
    batch: Batch,
    names: Sequence[str] = (),
    share: float = 0.3,
    seed: int = 0,
    closed: bool | None = None,
) -> Figure:
    """Draw sequences, the same with missing frames, and the same with these frames filled in.

    Capsules roll along the axis that a traversal of the whole sequence infers. With ``apart=True``,
    the axis is inferred from the present frames.

    Args:
        names: names of the factors, for the titles.
        share: share of the frames that are missing.
        seed: seed that chooses the missing frames.
        closed: whether the last frame is followed by the first; by default whether the topography
            is cyclic.
    """
    x = batch.x
    mask = some_missing(x, share, seed)
    present = torch.where(mask[..., None, None, None], x, 0.5)
    axes, rate = None, model.topography.velocity
    if not model.topography.apart:
        axes = traversal(model, x, rate=rate, closed=closed).axis
    shown = model.fill(x, mask, axis=axes, closed=closed)
    blocks = torch.stack([x, present, shown], 1)
    return draw_blocks(blocks, ("input", "present", "filled"), labels_of(batch, names))[0]


def draw_blocks(
    blocks: Tensor, rows: Sequence[str], titles: Sequence[str] = (), columns: Sequence[str] = ()
) -> tuple[Figure, list[Axes]]:
    """Draw blocks of frames below each other.

    Args:
        blocks: frames, (blocks, rows, columns, *frame).
        rows: labels of the rows of a block.
        titles: titles of the blocks; by default "sequence 0" and so on.
        columns: labels of the columns.
    """
    count, height, width = blocks.shape[:3]
    titles = titles or [f"sequence {n}" for n in range(count)]
    figure, axes = canvas(count, 1, (0.62 * width + 1.6, (0.6 * height + 0.3) * count + 0.3))
    for axis, block, title in zip(axes, blocks.clamp(0, 1), titles, strict=True):
        show_rows(axis, block, rows, columns, title)
    return figure, axes


def by_lag(runs: Mapping[str, Mapping[str, Any]]) -> Figure:
    """Draw the mean cost of the rolled frame at every lag for each run.

    Args:
        runs: metrics by the name of the run.
    """
    figure, (axis,) = canvas(1, 1, (6.4, 3.6))
    reference: list[float] = []
    at: list[int] = []
    unseen: set[int] = set()
    for n, (name, metrics) in enumerate(runs.items()):
        measured = metrics["traversal"]
        costs, reference = measured["by_lag"], measured["orbit_mean_by_lag"]
        lags = measured.get("lags", list(range(len(costs))))
        order = sorted(range(len(lags)), key=lags.__getitem__)  # from the earliest frame
        at = [lags[n] for n in order]
        style = "-" if n < COLOURS else ":"
        axis.plot(at, [costs[n] for n in order], style, marker="o", markersize=3, label=name)
        reference = [reference[n] for n in order]
        causal = measured.get("causal", False)
        unseen |= {lags[n] for n in unseen_lags(measured["window"], len(costs), causal)}
    axis.plot(at, reference, "--", color=GREY, label="orbit mean")
    for lag in unseen:
        axis.axvspan(lag - 0.5, lag + 0.5, color=GREY, alpha=0.2, linewidth=0)
    all_costs = [*reference, *(c for m in runs.values() for c in m["traversal"]["by_lag"])]
    if max(all_costs) > WIDE * min(all_costs) > 0:
        axis.set_yscale("log")
        axis.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
        axis.yaxis.set_major_formatter(StrMethodFormatter("{x:,.0f}"))
        axis.yaxis.set_minor_formatter(NullFormatter())
    axis.xaxis.set_major_locator(MaxNLocator(integer=True))
    add_legend(axis, len(runs))
    finish(axis, "lag (frames)", "nats of the true frame")
    return figure


def finish(axis: Axes, x: str, y: str = "") -> None:
    """Label the axes of a plot, and hide its upper and right border."""
    axis.set_xlabel(x)
    axis.set_ylabel(y)
    axis.spines[["top", "right"]].set_visible(False)


def add_legend(axis: Axes, curves: int) -> None:
    """Add a legend. It stands beside the axes if there are many curves."""
    if curves >= MANY:
        axis.legend(frameon=False, loc="center left", bbox_to_anchor=(1.0, 0.5))
    else:
        axis.legend(frameon=False)


def topography(topography: Topography, frames: int) -> Figure:
    """Draw a row of W and of W Wᵀ, over time and the first axis of one capsule (Fig. 2)."""
    frames = max(topography.window, frames)
    capsule = replace(topography, capsules=1)
    squares = torch.ones(frames, 1, *capsule.u_shape, requires_grad=True)
    here = (frames // 2, 0, *(n // 2 for n in capsule.shape))

    def pool(squares: Tensor) -> Tensor:
        axes = capsule.axes[:1] if capsule.apart else capsule.axes  # if apart, along the first
        return torch.stack([capsule.pool(squares[None], axis)[0] for axis in axes]).sum(0)

    row = torch.autograd.grad(pool(squares)[here], squares)[0].detach()  # of W
    in_common = pool(row)  # row of W Wᵀ
    other_axes = tuple(range(2, row.ndim - 1))
    figure, axes = canvas(1, 2, (8.2, 3.9))
    for axis, values, first, title in zip(
        axes,
        (row, in_common),
        (-capsule.beyond[0], 0),  # sites beyond an open end are before the first
        ("squares summed: a row of W", "squares in common"),
        strict=True,
    ):
        plane = values[:, 0].amax(other_axes) if other_axes else values[:, 0]
        extent = (-0.5, frames - 0.5, first - 0.5, first + plane.shape[1] - 0.5)
        image = axis.imshow(
            plane.T.numpy(), cmap="Reds", origin="lower", vmin=0, aspect="auto", extent=extent
        )
        axis.add_patch(
            Rectangle(
                (here[0] - 0.5, here[2] - 0.5), 1, 1, fill=False, edgecolor="black", linewidth=2
            )
        )
        for ticks in (axis.xaxis, axis.yaxis):
            ticks.set_major_locator(MaxNLocator(integer=True))
        axis.set_title(title, fontsize=10)
        axis.set_xlabel("frame")
        axis.set_ylabel("site")
        figure.colorbar(image, ax=axis, fraction=0.046)
    return figure


@torch.no_grad()
def learned(topography: LearnedTopography) -> Figure:
    """Draw learned kernels over offsets in time and sites: initial, mean, and of some capsules.

    There is a row for each axis. The kernels of a map are summed over time.
    """
    start = topography.start
    untrained = LearnedTopography(start, topography.learned)
    has_axes = len(start.axes) > 1
    shown: dict[str, tuple[int | None, Tensor]] = {}
    for axis in start.axes:
        kernels = topography.kernel_along(axis).detach().cpu()
        prefix = f"axis {axis}, " if has_axes else ""
        shown[f"{prefix}at first"] = axis, untrained.kernel_along(axis)[0].detach()
        shown[f"{prefix}mean of capsules"] = axis, kernels.mean(0)
        for n in range(min(1 if has_axes else 4, len(kernels))):
            shown[f"{prefix}capsule {n}"] = axis, kernels[n]
    figure, panels = canvas(max(2, len(start.axes)), 3, (9.4, 2.8 * max(2, len(start.axes))))
    for panel, (title, (axis, kernel)) in zip(panels, shown.items(), strict=False):
        image = _kernel(panel, start, axis, kernel)
        panel.set_title(title, fontsize=10)
        for ticks in (panel.xaxis, panel.yaxis):
            ticks.set_major_locator(MaxNLocator(integer=True))
        figure.colorbar(image, ax=panel, fraction=0.046)
    for panel in panels[len(shown) :]:
        panel.set_axis_off()
    return figure


def _kernel(panel: Any, start: Topography, axis: int | None, kernel: Tensor) -> Any:
    """Draw one kernel (window, offsets) against time, or as a map of two axes."""
    if axis is None and len(start.shape) > 1:
        rows, columns = start.shape[-2:]  # sums over any other axes
        seen = kernel.reshape(-1, rows, columns).sum(0).roll((rows // 2, columns // 2), (0, 1))
        across, up = (_around(n) for n in (columns, rows))
        panel.set_xlabel("sites from here")
    else:
        sites = start.shape[axis or 0]
        seen = (kernel.roll(sites // 2, 1) if start.cyclic else kernel).T  # sites window
        frames = start.time_offsets
        across = (frames[0] - 0.5, frames[-1] + 0.5)
        up = _around(sites) if start.cyclic else (-start.beyond[0] - 0.5, start.beyond[1] + 0.5)
        panel.set_xlabel("frames from here")
    panel.set_ylabel("sites from here")
    return panel.imshow(
        seen.numpy(), cmap="Reds", origin="lower", vmin=0, aspect="auto", extent=(*across, *up)
    )


def _around(sites: int) -> tuple[float, float]:
    """Return the limits of an axis of offsets that is centred on 0."""
    return -(sites // 2) - 0.5, (sites - 1) // 2 + 0.5


def torus(images: Tensor, classes: Tensor) -> Figure:
    """Draw the image that excites each site of a map most, and the class of this image.

    Args:
        images: frames, (rows, columns, *frame).
        classes: classes, (rows, columns).
    """
    rows, columns = classes.shape
    figure, axes = canvas(1, 2, (0.42 * columns + 5.2, 0.42 * rows))
    axes[0].imshow(tile(images), interpolation="nearest", cmap="gray", vmin=0, vmax=1)
    axes[0].set_axis_off()
    axes[0].set_title("strongest image of every site", fontsize=10)
    colours = axes[1].imshow(classes.numpy(), cmap="tab10", vmin=-0.5, vmax=9.5)
    axes[1].set_xticks([])
    axes[1].set_yticks([])
    axes[1].set_title("its class", fontsize=10)
    figure.colorbar(colours, ax=axes[1], fraction=0.046, ticks=range(10))
    return figure


def history(records: Sequence[Mapping[str, Any]]) -> Figure:
    """Draw the objective and its terms by epoch."""
    figure, axes = canvas(1, 2, (8.2, 3.2))
    epochs = [record["epoch"] for record in records]
    kls = [name for name in records[0] if name == "kl" or name.startswith("kl_")]
    kls = [name for name in kls if name != KL_WEIGHT]
    bounds = ("elbo", "log_px_given_t", *(["validation_elbo"] * ("validation_elbo" in records[0])))
    for axis, names in zip(axes, (bounds, tuple(kls)), strict=True):
        for name in names:
            values = [record[name] for record in records]
            label = _label_of(name, records[0].get("is_bound", True))
            axis.plot(epochs, values, marker="o" if len(values) < FEW else "", label=label)
        axis.xaxis.set_major_locator(MaxNLocator(integer=True))
        axis.legend(frameon=False)
        finish(axis, "epoch", "nats per frame" if axis is axes[0] else "")
    return figure


def _label_of(term: str, is_bound: bool) -> str:
    """Return the label of a term of the objective."""
    bound = "bound" if is_bound else "value (no bound)"
    known = {"elbo": bound, "validation_elbo": f"{bound}, validation"}
    known["log_px_given_t"] = "log p(x | t)"
    return known.get(term, term.replace("kl_", "KL of ").replace("kl", "KL"))


def canvas(rows: int, columns: int, size: tuple[float, float]) -> tuple[Figure, list[Axes]]:
    """Return a figure that pyplot does not manage, and its axes."""
    figure = Figure(figsize=size, layout="constrained")
    FigureCanvasAgg(figure)
    return figure, list(figure.subplots(rows, columns, squeeze=False).flat)


def show_rows(
    axis: Axes, block: Tensor, rows: Sequence[str], columns: Sequence[str] = (), title: str = ""
) -> None:
    """Draw frames (rows, columns, channel, height, width) with labels of rows and columns."""
    down, across = (size + GAP for size in block.shape[-2:])
    axis.imshow(tile(block), interpolation="nearest", cmap="gray", vmin=0, vmax=1)
    axis.set_yticks([down * (row + 0.5) for row in range(len(rows))], rows)
    axis.set_xticks([across * (n + 0.5) for n in range(len(columns))], columns)
    axis.tick_params(length=0, labelsize=8)
    axis.spines[:].set_visible(False)
    axis.set_title(title, loc="left", fontsize=10)


def labels_of(batch: Batch, names: Sequence[str]) -> list[str]:
    """Return a title for every sequence: the factors that move in it, or its number."""
    if batch.factors is None or not names:
        return [f"sequence {n}" for n in range(len(batch.x))]
    titles = []
    for row in (batch.factors != batch.factors[:, :1]).any(1):
        moving = [names[column] for column in row.nonzero().flatten()]
        verb = "moves" if len(moving) == 1 else "move"
        titles.append(f"{' and '.join(moving)} {verb}" if moving else "still")
    return titles


def tile(block: Tensor) -> NDArray[np.float32]:
    """Join frames (rows, columns, channel, height, width) into one picture with white gaps."""
    rows, columns, channels, height, width = block.shape
    padded = torch.nn.functional.pad(block, (1, 1, 1, 1), value=1.0)
    picture = padded.permute(0, 3, 1, 4, 2).reshape(
        rows * (height + GAP), columns * (width + GAP), channels
    )
    array: NDArray[np.float32] = picture.cpu().numpy()
    return array[..., 0] if channels == 1 else array
