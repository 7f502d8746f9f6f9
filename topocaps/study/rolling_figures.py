"""Figures of predictions: frames that models fill in, gains, motions and calibration."""

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

SHOWN = 5  # visible frames in pictures
LEAST = 0.01  # probability of a motion that is named
_PIXELS = 3  # of the animation for a pixel of a frame
_BAR = 3  # half the height of the red bar, in pixels
_CAPSULES = 12  # that are drawn, at most


def first_frames(x: Tensor, count: int = SHOWN) -> Tensor:
    """Return a mask (batch, time) under which the first frames are visible.

    Of short sequences at least two frames are hidden.
    """
    shown = max(1, min(count, x.shape[1] - 2))
    return (torch.arange(x.shape[1]) < shown).expand(x.shape[:2])


@torch.no_grad()
def predicted(models: Mapping[str, Fill], x: Tensor) -> Figure:
    """Draw sequences, and below each what every model makes of its first frames.

    Args:
        models: functions that fill hidden frames in, by the label of their row.
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
    """Draw the frames of a rolled code, and above them the frames of the input that lie there.

    Frames that the code has not seen are grey. An offset between two frames has no input.
    """
    x, frame = traversed.x, traversed.frame
    figures.check_drawable(x.shape[2:])
    shown = figures.unseen_in_grey(x, ~traversed.visible)
    each = torch.arange(len(x), device=x.device)[:, None]
    above = torch.where((frame >= 0)[..., None, None, None], shown[each, frame.clamp_min(0)], 1.0)
    blocks = torch.stack([above, traversed.rolled], 1)
    offsets = [str(offset) for offset in range(blocks.shape[2])]
    figure, axes = figures.draw_blocks(blocks, ("input", "rolled"), labels, offsets)
    axes[-1].set_xlabel("sites rolled, along the motion of the sequence", fontsize=9)
    return figure


@torch.no_grad()
def animated(models: Mapping[str, Fill], x: Tensor) -> Animation:
    """Return an animation of sequences, and below each what models make of its first frames."""
    visible = first_frames(x)
    rows = torch.stack([x, *(fill(x, visible) for fill in models.values())]).clamp(0, 1)
    pictures = []
    for frame in range(x.shape[1]):
        picture = figures.tile(rows[:, :, frame])
        colour = np.repeat(picture[..., None], 3, 2) if picture.ndim == 2 else picture
        large = (255 * colour).astype(np.uint8).repeat(_PIXELS, 0).repeat(_PIXELS, 1)
        if not visible[0, frame]:
            below = len(large) // len(rows)
            large[below - _BAR : below + _BAR] = (200, 64, 47)
        pictures.append(large)
    return Animation(np.stack(pictures))


def by_visible(runs: Mapping[str, Mapping[str, Mapping[str, float | None]]]) -> Figure:
    """Draw the gain of each run against the number of visible frames, from its metrics."""
    gains = {
        name: {int(n): one["gain"] for n, one in measured.items()}
        for name, measured in runs.items()
    }
    return _gains(gains, "visible frames")


def by_distance(runs: Mapping[str, Mapping[str, Any]]) -> Figure:
    """Draw the gain of each run against the distance from the nearest of ``SHOWN`` visible frames.

    Args:
        runs: the metrics of each run, by the number of visible frames.
    """
    gains = {
        name: {int(n): gain for n, gain in measured[str(SHOWN)]["by_distance"].items()}
        for name, measured in runs.items()
        if str(SHOWN) in measured
    }
    return _gains(gains, f"frames from the nearest of {SHOWN} visible ones")


def _gains(runs: Mapping[str, Mapping[int, float | None]], label: str) -> Figure:
    """Draw gains against whole numbers, which ``label`` names."""
    figure, (axis,) = figures.canvas(1, 1, (6.0, 3.4))
    lowest = 0.0
    for name, measured in runs.items():
        known = {n: gain for n, gain in measured.items() if gain is not None}
        if known:
            axis.plot(list(known), list(known.values()), marker="o", markersize=4, label=name)
            lowest = min(lowest, *known.values())
    axis.axhline(0, color=figures.GREY, linestyle="--", label="mean frame")
    axis.set_ylim(max(lowest - 0.1, -1.5), 1.02)
    axis.xaxis.set_major_locator(MaxNLocator(integer=True))
    figures.add_legend(axis, len(runs))
    figures.finish(axis, label, "gain on hidden frames")
    return figure


def motions(found: Mapping[str, Any]) -> Figure:
    """Draw the probabilities of candidate motions by the number of visible frames.

    Args:
        found: the numbers of a run on its motions: the names of the ``candidates``, the
            ``most_frequent`` ones, and their mean probabilities by the number of visible frames.
    """
    names, groups, measured = found["candidates"], found["most_frequent"], found["probability"]
    figure, axes = figures.canvas(1, len(groups), (1.4 + 2.6 * len(groups), 3.0))
    for place, (axis, group) in enumerate(zip(axes, groups, strict=True)):
        floor = np.zeros(len(measured))
        for n, name in enumerate(names):
            share = np.array([by_group[place][n] for by_group in measured.values()])
            label = name if share.max() > LEAST else None
            axis.bar(list(measured), share, bottom=floor, label=label)
            floor += share
        axis.set_title(f"moves by {names[group]}", fontsize=10)
        axis.set_ylim(0, 1)
        axis.legend(fontsize=8)
        figures.finish(axis, "visible frames", "probability" if place == 0 else "")
    return figure


@torch.no_grad()
def capsules(model: RollingVAE, x: Tensor, shown: int = 5) -> Figure:
    """Draw what each capsule adds to the first frame of ``shown`` sequences, spread over all."""
    q = model.posterior(x)
    nats = model.capsule_nats(q).mean(0)
    order = nats.argsort(descending=True)[:_CAPSULES]
    rows = torch.linspace(0, len(x) - 1, shown).long()
    code = q.mean[rows]
    whole = model.decode(code)
    added = []
    for capsule in order.tolist():
        without = code.clone()
        without[:, capsule] = 0
        added.append((whole - model.decode(without)).mean(1))  # over colours
    differences = torch.stack(added, 1)  # shown capsules height width
    largest = differences.abs().max().clamp_min(1e-6)
    coloured = colormaps["RdBu_r"]((0.5 + 0.5 * differences / largest).cpu().numpy())[..., :3]
    both = torch.stack([x[rows, 0], whole], 1)
    frames = both.mean(2, keepdim=True).expand(-1, -1, 3, -1, -1).cpu()
    block = torch.cat([frames, torch.from_numpy(coloured).movedim(-1, 2).to(frames)], 1)
    titles = ["frame", "decoded", *(f"{nats[capsule]:.0f} nats" for capsule in order)]
    size = (0.75 * block.shape[1] + 0.4, 0.75 * shown + 0.6)
    figure, (axis,) = figures.canvas(1, 1, size)
    figures.show_rows(axis, block, [], titles)
    axis.xaxis.tick_top()
    return figure


@torch.no_grad()
def calibration(model: RollingVAE, x: Tensor, samples: int = 30, groups: int = 12) -> Figure:
    """Draw the root mean square error of predicted pixels against their predicted deviation."""
    visible = first_frames(x).to(x.device)
    predicted = model.predict(x, visible)
    with seeded(0):
        decoded = torch.cat([predicted.sample_mean((1,)) for _ in range(samples)])
    error = (decoded.mean(0) - x)[~visible].flatten().square()
    deviation = decoded.std(0)[~visible].flatten()
    order = deviation.argsort()
    parts = order.tensor_split(groups)
    at = [deviation[part].square().mean().sqrt().item() for part in parts]
    off = [error[part].mean().sqrt().item() for part in parts]
    figure, (axis,) = figures.canvas(1, 1, (4.2, 3.6))
    top = 1.05 * max(*at, *off)
    axis.plot([0, top], [0, top], "--", color=figures.GREY)
    axis.plot(at, off, marker="o", markersize=4, color=figures.ACCENT)
    figures.finish(axis, "predicted standard deviation of a pixel", "root mean square error")
    return figure
