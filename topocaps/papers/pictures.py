"""The pictures of the results page: predictions of models, and curves of stored numbers."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from topocaps.models import VAE
from topocaps.papers.results import Results
from topocaps.papers.table import Table
from topocaps.papers.tables import TABLES
from topocaps.study import figures, rolling_figures
from topocaps.study.evaluation.rolling import RollingEvaluation, examples
from topocaps.study.evaluation.shared import VISIBLE
from topocaps.study.finished import Finished
from topocaps.study.recipe import Recipe
from topocaps.study.side_by_side import fills
from topocaps.training import RunFolder

SHOWN = 6  # number of sequences in the picture of predictions
_BY_VISIBLE, _BY_DISTANCE, _PREDICTED = "by-visible", "by-distance", "predicted"
_CUT_OFF = "Curves are means over seeds. Values below −1.5 are cut off."

#: Captions by the ending of the name of the file.
PICTURES = {
    _PREDICTED: RollingEvaluation.captions["predicted"],
    _BY_VISIBLE: f"{RollingEvaluation.captions['by_visible']} {_CUT_OFF}",
    _BY_DISTANCE: (
        "The gain on hidden frames by their distance from the nearest of "
        f"{rolling_figures.SHOWN} visible frames. {_CUT_OFF}"
    ),
}


def draw_predicted(name: str, out: Path, runs: Path, data: Path | None = None) -> None:
    """Draw the predictions of the models in ``Table.predicted``, if all of them are evaluated.

    Args:
        name: name of the table.
        out: folder of the picture.
        runs: folder of the run folders. The run of the first seed is drawn for each recipe.
        data: folder of the data.
    """
    table = TABLES.get(name)
    recipes = [r for r in table.recipes if r.name in table.predicted] if table else []
    folders = [RunFolder(runs / recipe.name / "seed-0") for recipe in recipes]
    if not folders or not all(folder.metrics.exists() for folder in folders):
        return
    finished = {
        recipe.name.split("/")[-1]: Finished.open(folder.path, recipe)
        for recipe, folder in zip(recipes, folders, strict=True)
    }
    x = examples(recipes[0].data.load(data).held_out, SHOWN)
    figures.save(rolling_figures.predicted(fills(finished), x), out / f"{name}-{_PREDICTED}.png")


def draw(results: Results) -> None:
    """Draw all curves from the stored results."""
    _draw_lags(results)
    _draw_capcorr(results)
    _draw_probes(results)
    for name, table in TABLES.items():
        if any(quantity.key[0] == VISIBLE for quantity in table.quantities):
            _draw_gains(results, name, table)


def _draw_lags(results: Results) -> None:
    """Draw the costs by lag of the first seed of each model."""
    for data, table in (("mnist", "table4"), ("sprites", "table5")):
        by_model = _by_model(results, TABLES[table])
        if by_model:
            figure = figures.by_lag({model: seeds[0] for model, seeds in by_model.items()})
            figures.save(figure, results.folder / f"{data}-by-lag.png")


def _by_model(results: Results, table: Table) -> dict[str, list[dict[str, Any]]]:
    """Return the results of the models of a table, by the last part of their names.

    Models without results are left out.
    """
    by_model = {recipe.name.split("/")[-1]: results.of(recipe) for recipe in table.recipes}
    return {model: seeds for model, seeds in by_model.items() if seeds}


def _draw_capcorr(results: Results) -> None:
    """Draw the mean CapCorr against L/S for each kind of model (Fig. 5)."""
    points: dict[str, dict[float, list[float]]] = {}
    for recipe in TABLES["figure5"].recipes:
        if not isinstance(recipe, Recipe) or recipe.model is VAE:
            continue
        kind = recipe.name.split("/")[-1].split("-")[0]
        window, sites = recipe.topography.window, recipe.topography.shape[0]
        length = 0.0 if window == 1 else window / sites / 2
        for result in results.of(recipe):
            for label, metrics in (
                (kind, result),
                (f"{kind}, untrained", result["untrained"]),
                (f"{kind}, paper", recipe.claims),
            ):
                value = _mean_capcorr(metrics)
                if not math.isnan(value):
                    points.setdefault(label, {}).setdefault(length, []).append(value)
    if not points:
        return
    figure, (axis,) = figures.canvas(1, 1, (6.4, 3.6))
    for label, by_length in points.items():
        lengths = sorted(by_length)
        style = "--" if "untrained" in label or "paper" in label else "-"
        means = [statistics.mean(by_length[length]) for length in lengths]
        axis.plot(lengths, means, style, marker="o", markersize=4, label=label)
    axis.legend(frameon=False)
    figures.finish(axis, "L / S", "CapCorr, mean of all factors")
    figures.save(figure, results.folder / "figure5.png")


def _mean_capcorr(metrics: Mapping[str, Any]) -> float:
    """Return the mean CapCorr of all factors; NaN if that of one factor is unknown."""
    values = [
        value[0] if isinstance(value, tuple) else value  # a paper's number has a spread
        for value in metrics["capcorr"].values()
    ]
    return math.nan if not values or None in values else statistics.mean(values)


def _draw_probes(results: Results) -> None:
    """Draw the means and ranges over seeds of the accuracy of probes, by the number of labels."""
    by_features: dict[str, dict[str, dict[float, list[float]]]] = {}
    for model, seeds in _by_model(results, TABLES["probes"]).items():
        for features, shares in (item for one in seeds for item in one.get("probes", {}).items()):
            curve = by_features.setdefault(features, {}).setdefault(model, {})
            for labels, share in shares.items():
                curve.setdefault(float(labels), []).append(share)
    if not by_features:
        return
    count = len(by_features)
    figure, axes = figures.canvas(1, count, (1 + 3.6 * count, 3.6))
    for axis, (features, models) in zip(axes, by_features.items(), strict=True):
        for model, by_labels in models.items():
            labels, shares = list(by_labels), by_labels.values()
            axis.plot(labels, [sum(s) / len(s) for s in shares], "o-", markersize=4, label=model)
            lowest, highest = list(map(min, shares)), list(map(max, shares))
            axis.fill_between(labels, lowest, highest, alpha=0.2, linewidth=0)
        is_pooled = features == "pooled"
        axis.set_title(f"probes on {'mean, spread, peak' if is_pooled else features}")
        axis.set_xscale("log")
        axis.set_ylim(0, 1)
        figures.finish(axis, "labels", "accuracy" if axis is axes[0] else "")
    axes[0].legend(frameon=False)
    figures.save(figure, results.folder / "probes.png")


def _draw_gains(results: Results, name: str, table: Table) -> None:
    """Draw the mean gains over seeds of a table of predictions."""
    gains = {model: _mean_gains(seeds) for model, seeds in _by_model(results, table).items()}
    if gains:
        for figure, ending in (
            (rolling_figures.by_visible(gains), _BY_VISIBLE),
            (rolling_figures.by_distance(gains), _BY_DISTANCE),
        ):
            figures.save(figure, results.folder / f"{name}-{ending}.png")


def _mean_gains(results: Sequence[Mapping[str, Any]]) -> dict[str, dict[str, Any]]:
    """Return the mean gains over seeds, in the form of the gains of a single result."""
    counts = results[0].get(VISIBLE, {})
    by_count = {count: [result[VISIBLE][count] for result in results] for count in counts}
    return {
        count: {
            "gain": _mean([gains["gain"] for gains in seeds]),
            "by_distance": {
                n: _mean([gains["by_distance"].get(n) for gains in seeds])
                for n in seeds[0]["by_distance"]
            },
        }
        for count, seeds in by_count.items()
    }


def _mean(values: Sequence[float | None]) -> float | None:
    """Return the mean of the values that are known, or None."""
    known = [value for value in values if value is not None]
    return statistics.mean(known) if known else None
