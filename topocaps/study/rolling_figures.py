"""Figures of predictions: filled-in frames, gains, motions, capsules and calibration."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from matplotlib import colormaps
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator
from torch import Tensor

from topocaps.device import seeded
from topocaps.metrics.decoded_traversal import RingTraversal
from topocaps.metrics.visible_frames import Fill
from topocaps.models.rolling import RollingVAE
from topocaps.study import figures
from topocaps.study.drawing import Animation

SHOWN = 5  # number of visible frames in pictures
LEAST = 0.01  # probability above which a motion has a label
_PIXELS = 3  # factor by which an animation enlarges frames
_BAR = 3  # half the height of the red bar, in pixels
_CAPSULES = 12  # largest number of capsules that are drawn


def first_frames(x: Tensor, count: int = SHOWN) -> Tensor:
    """Return a mask (batch, time) that is True for the first ``count`` frames.

    At least two frames are hidden, so in short sequences fewer frames are visible.
    """
    shown = max(1, min(count, x.shape[1] - 2))
    return (torch.arange(x.shape[1]) < shown).expand(x.shape[:2])


@torch.no_grad()
def predicted(models: Mapping[str, Fill], x: Tensor) -> Figure:
    """Draw sequences, and below each the predictions of every model from its first frames.

    Args:
        models: functions that fill in hidden frames, by the label of their row.
        x: frames (batch, time, *frame).
    """
    visible = first_frames(x)
    rows = torch.stack([x, *(fill(x, visible) for fill in models.values())], 1).clamp(0, 1)
    size = (0.55 * x.shape[1] + 1.4, 0.55 * rows.shape[1] * len(x) + 0.3)
    figure, axes = figures.canvas(len(x), 1, size)
    down, across = (pixels + figures.GAP for pixels in x.shape[-2:])
    edge = int(visible[0].sum()) * across - 0.5
    for axis, block in zip(axes, rows, strict=True):
        columns = [str(frame) for frame in range(x.shape[1])] if axis is axes[-1] else []
        figures.show_rows(axis, block, ("sequence", *models), columns)
        ends = [down, len(block) * down]
        axis.plot([edge, edge], ends, color=figures.ACCENT, linewidth=2)
    axes[-1].set_xlabel("frame", fontsize=9)
    return figure


def ring_traversal(traversed: RingTraversal, labels: Sequence[str] = ()) -> Figure:
    """Draw the frames of rolled codes, below the input frames that they correspond to.

    Input frames that were hidden from the model are grey. A roll that lies between two frames has
    no input frame.
    """
    x, frame = traversed.x, traversed.frame
    figures.check_drawable(x.shape[2:])
    shown = figures.unseen_in_grey(x, ~traversed.visible)
    rows = torch.arange(len(x), device=x.device)[:, None]
    has_input = (frame >= 0)[..., None, None, None]
    inputs = torch.where(has_input, shown[rows, frame.clamp_min(0)], 1.0)
    blocks = torch.stack([inputs, traversed.rolled], 1)
    offsets = [str(offset) for offset in range(blocks.shape[2])]
    figure, axes = figures.draw_blocks(blocks, ("input", "rolled"), labels, offsets)
    axes[-1].set_xlabel("sites rolled, along the motion of the sequence", fontsize=9)
    return figure


@torch.no_grad()
def animated(models: Mapping[str, Fill], x: Tensor) -> Animation:
    """Return an animation of sequences and, below each, of predictions from its first frames.

    Args:
        models: functions that fill in hidden frames, by their label.
        x: frames (batch, time, *frame).
    """
    visible = first_frames(x)
    rows = torch.stack([x, *(fill(x, visible) for fill in models.values())]).clamp(0, 1)
    pictures = []
    for frame in range(x.shape[1]):
        picture = figures.tile(rows[:, :, frame])
        rgb = np.repeat(picture[..., None], 3, 2) if picture.ndim == 2 else picture
        enlarged = (255 * rgb).astype(np.uint8).repeat(_PIXELS, 0).repeat(_PIXELS, 1)
        if not visible[0, frame]:
            end_of_input = len(enlarged) // len(rows)
            enlarged[end_of_input - _BAR : end_of_input + _BAR] = (200, 64, 47)
        pictures.append(enlarged)
    return Animation(np.stack(pictures))


def by_visible(runs: Mapping[str, Mapping[str, Mapping[str, float | None]]]) -> Figure:
    """Draw the gain of each run against the number of visible frames.

    Args:
        runs: the metrics of each run, by the number of visible frames.
    """
    gains = {
        name: {int(n): metrics["gain"] for n, metrics in by_count.items()}
        for name, by_count in runs.items()
    }
    return _gains(gains, "visible frames")


def by_distance(runs: Mapping[str, Mapping[str, Any]]) -> Figure:
    """Draw the gain of each run against the distance from the nearest of ``SHOWN`` visible frames.

    Args:
        runs: the metrics of each run, by the number of visible frames.
    """
    gains = {
        name: {int(n): gain for n, gain in by_count[str(SHOWN)]["by_distance"].items()}
        for name, by_count in runs.items()
        if str(SHOWN) in by_count
    }
    return _gains(gains, f"frames from the nearest of {SHOWN} visible ones")


def _gains(runs: Mapping[str, Mapping[int, float | None]], label: str) -> Figure:
    """Draw the gains of each run against whole numbers. ``label`` is that of their axis."""
    figure, (axis,) = figures.canvas(1, 1, (6.0, 3.4))
    lowest = 0.0
    for curve, (name, gains) in enumerate(runs.items()):
        known = {n: gain for n, gain in gains.items() if gain is not None}
        if known:
            style = "-" if curve < figures.COLOURS else ":"
            axis.plot([*known], [*known.values()], style, marker="o", markersize=4, label=name)
            lowest = min(lowest, *known.values())
    axis.axhline(0, color=figures.GREY, linestyle="--", label="mean frame")
    axis.set_ylim(max(lowest - 0.1, -1.5), 1.02)
    axis.xaxis.set_major_locator(MaxNLocator(integer=True))
    figures.add_legend(axis, len(runs))
    figures.finish(axis, label, "gain on hidden frames")
    return figure


def motions(metrics: Mapping[str, Any]) -> Figure:
    """Draw the probabilities of candidate motions by the number of visible frames.

    Args:
        metrics: the metrics of a run on its motions: the names of the ``candidates``, the
            ``most_frequent`` ones, and their mean probabilities by the number of visible frames.
    """
    names, groups = metrics["candidates"], metrics["most_frequent"]
    by_count = metrics["probability"]
    figure, axes = figures.canvas(1, len(groups), (1.4 + 2.6 * len(groups), 3.0))
    for place, (axis, group) in enumerate(zip(axes, groups, strict=True)):
        bottom = np.zeros(len(by_count))
        for n, name in enumerate(names):
            share = np.array([by_group[place][n] for by_group in by_count.values()])
            label = name if share.max() > LEAST else None
            axis.bar(list(by_count), share, bottom=bottom, label=label)
            bottom += share
        axis.set_title(f"moves by {names[group]}", fontsize=10)
        axis.set_ylim(0, 1)
        axis.legend(fontsize=8)
        figures.finish(axis, "visible frames", "probability" if place == 0 else "")
    return figure


@torch.no_grad()
def capsules(model: RollingVAE, x: Tensor, shown: int = 5) -> Figure:
    """Draw how each capsule changes the first decoded frame of some sequences.

    Args:
        x: frames (batch, time, *frame).
        shown: number of sequences that are drawn, spread over all.
    """
    q = model.posterior(x)
    nats = model.capsule_nats(q).mean(0)
    order = nats.argsort(descending=True)[:_CAPSULES]
    rows = torch.linspace(0, len(x) - 1, shown).long()
    code = q.mean[rows]
    decoded = model.decode(code)
    changes = []
    for capsule in order.tolist():
        without = code.clone()
        without[:, capsule] = 0
        changes.append((decoded - model.decode(without)).mean(1))  # over colours
    differences = torch.stack(changes, 1)  # shown capsules height width
    largest = differences.abs().max().clamp_min(1e-6)
    coloured = colormaps["RdBu_r"]((0.5 + 0.5 * differences / largest).cpu().numpy())[..., :3]
    pairs = torch.stack([x[rows, 0], decoded], 1)
    frames = pairs.mean(2, keepdim=True).expand(-1, -1, 3, -1, -1).cpu()
    block = torch.cat([frames, torch.from_numpy(coloured).movedim(-1, 2).to(frames)], 1)
    titles = ["frame", "decoded", *(f"{nats[capsule]:.0f} nats" for capsule in order)]
    size = (0.75 * block.shape[1] + 0.4, 0.75 * shown + 0.6)
    figure, (axis,) = figures.canvas(1, 1, size)
    figures.show_rows(axis, block, [], titles)
    axis.xaxis.tick_top()
    return figure


@torch.no_grad()
def calibration(model: RollingVAE, x: Tensor, samples: int = 30, groups: int = 12) -> Figure:
    """Draw the root mean square error of hidden pixels against their predicted deviation.

    Args:
        x: frames (batch, time, *frame), of which the first ones are visible.
        samples: number of samples of the prediction that give the deviation.
        groups: number of groups of pixels with similar deviations.
    """
    visible = first_frames(x).to(x.device)
    prediction = model.predict(x, visible)
    with seeded(0):
        decoded = torch.cat([prediction.sample_mean((1,)) for _ in range(samples)])
    squared_error = (decoded.mean(0) - x)[~visible].flatten().square()
    deviation = decoded.std(0)[~visible].flatten()
    order = deviation.argsort()
    parts = order.tensor_split(groups)
    predicted_deviation = [deviation[part].square().mean().sqrt().item() for part in parts]
    measured_error = [squared_error[part].mean().sqrt().item() for part in parts]
    figure, (axis,) = figures.canvas(1, 1, (4.2, 3.6))
    top = 1.05 * max(*predicted_deviation, *measured_error)
    axis.plot([0, top], [0, top], "--", color=figures.GREY)
    axis.plot(predicted_deviation, measured_error, marker="o", markersize=4, color=figures.ACCENT)
    figures.finish(axis, "predicted standard deviation of a pixel", "root mean square error")
    return figure
