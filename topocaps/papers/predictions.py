"""Figures of tables of predictions: hidden frames as models fill them in, and curves of gains."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from topocaps.papers.results import Results
from topocaps.papers.table import Table
from topocaps.papers.tables import TABLES
from topocaps.study import figures, rolling_figures
from topocaps.study.evaluation.rolling import examples
from topocaps.study.evaluation.visible import VISIBLE
from topocaps.study.finished import Finished
from topocaps.study.side_by_side import fills
from topocaps.training import RunFolder

SHOWN = 6  # sequences in the picture of predicted frames
_BY_VISIBLE, _BY_DISTANCE, _PREDICTED = "by-visible", "by-distance", "predicted"
_CUT_OFF = "Means over seeds; what is below −1.5 is cut off."

#: Captions, by the ending of the file.
PICTURES = {
    _PREDICTED: rolling_figures.PREDICTED_CAPTION,
    _BY_VISIBLE: f"{rolling_figures.BY_VISIBLE_CAPTION} {_CUT_OFF}",
    _BY_DISTANCE: f"{rolling_figures.BY_DISTANCE_CAPTION} {_CUT_OFF}",
}


def draw_predicted(name: str, out: Path, runs: Path, data: Path | None = None) -> None:
    """Draw what the models of a table predict, side by side, if they are all evaluated.

    Args:
        out: folder of the picture.
        runs: folder of the run folders, of which the first seeds are drawn.
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


def draw_gains(results: Results) -> None:
    """Draw the gains of every table of predictions, as means over seeds."""
    for name, table in TABLES.items():
        if not _is_of_predictions(table):
            continue
        found = {recipe.name.split("/")[-1]: results.of(recipe) for recipe in table.recipes}
        gains = {model: _by_visible(seeds) for model, seeds in found.items() if seeds}
        if gains:
            drawn = rolling_figures.by_visible(gains)
            figures.save(drawn, results.folder / f"{name}-{_BY_VISIBLE}.png")
            drawn = rolling_figures.by_distance(gains)
            figures.save(drawn, results.folder / f"{name}-{_BY_DISTANCE}.png")


def _is_of_predictions(table: Table) -> bool:
    return any(quantity.key[0] == VISIBLE for quantity in table.quantities)


def _by_visible(results: Sequence[Mapping[str, Any]]) -> dict[str, dict[str, Any]]:
    """Return the mean gains over seeds, in the form that single results have."""
    counts = results[0].get(VISIBLE, {})
    each = {count: [one[VISIBLE][count] for one in results] for count in counts}
    return {
        count: {
            "gain": _mean([one["gain"] for one in found]),
            "by_distance": {
                n: _mean([one["by_distance"].get(n) for one in found])
                for n in found[0]["by_distance"]
            },
        }
        for count, found in each.items()
    }


def _mean(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return statistics.mean(known) if known else None
