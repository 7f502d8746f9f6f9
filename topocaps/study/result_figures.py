"""Figures of the results of several runs: CapCorr and probes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from matplotlib.figure import Figure

from topocaps.study.figures import canvas


def capcorr_by_length(found: Mapping[str, Sequence[tuple[float, float]]]) -> Figure:
    """Draw the mean CapCorr against L/S for each kind of model (Fig. 5)."""
    figure, (axis,) = canvas(1, 1, (6.4, 3.6))
    for name, points in found.items():
        lengths, values = zip(*sorted(points), strict=True)
        style = "--" if "untrained" in name or "paper" in name else "-"
        axis.plot(lengths, values, style, marker="o", markersize=4, label=name)
    axis.set_xlabel("L / S")
    axis.set_ylabel("CapCorr, mean of all factors")
    axis.legend(frameon=False)
    axis.spines[["top", "right"]].set_visible(False)
    return figure


def probes_by_labels(
    read: Mapping[str, Mapping[str, Sequence[tuple[float, float]]]],
) -> Figure:
    """Draw the accuracy of linear probes by number of labels: means and ranges over seeds.

    ``read`` maps features and models to (labels, accuracy) pairs of all seeds."""
    figure, axes = canvas(1, len(read), (1 + 3.6 * len(read), 3.6))
    for axis, (what, models) in zip(axes, read.items(), strict=True):
        for name, points in models.items():
            found: dict[float, list[float]] = {}
            for labels, share in points:
                found.setdefault(labels, []).append(share)
            means = [sum(shares) / len(shares) for shares in found.values()]
            axis.plot(list(found), means, marker="o", markersize=4, label=name)
            least, greatest = map(min, found.values()), map(max, found.values())
            axis.fill_between(list(found), list(least), list(greatest), alpha=0.2, linewidth=0)
        axis.set_title("probes on mean, spread, peak" if what == "pooled" else f"probes on {what}")
        axis.set_xscale("log")
        axis.set_xlabel("labels")
        axis.set_ylim(0, 1)
        axis.spines[["top", "right"]].set_visible(False)
    axes[0].set_ylabel("accuracy")
    axes[0].legend(frameon=False)
    return figure
