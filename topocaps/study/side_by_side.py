"""Runs of several models on the same data, with one report and one picture of predictions."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from topocaps.errors import BadInput
from topocaps.io import make_folder, write_atomically
from topocaps.metrics.visible_frames import Fill
from topocaps.study import drawing, rolling_figures
from topocaps.study.drawing import Drawing
from topocaps.study.evaluation import evaluation_of
from topocaps.study.evaluation.rolling import RollingEvaluation, examples
from topocaps.study.evaluation.shared import VISIBLE
from topocaps.study.finished import Finished
from topocaps.study.recipe import BaseRecipe
from topocaps.study.report import Section, compare, page, section
from topocaps.study.runs import Job, Say, run_job

EXAMPLES = 6  # sequences


def side_by_side(
    recipes: Mapping[str, BaseRecipe], out: Path, device: str, say: Say
) -> list[Finished[Any]]:
    """Run recipes with the same data, each in a subfolder of ``out``, and write one report.

    Args:
        recipes: recipes with the same data, by the label of their rows in pictures. The first one
            is drawn at the top.
        out: folder of all runs.
        device: device on which models train.
        say: called with every line of progress.
    """
    jobs = _jobs(recipes, out)
    splits = jobs[0].recipe.data.load()
    runs = [run_job(job, device, say, splits) for job in jobs]
    labelled = dict(zip(recipes, runs, strict=True))
    folder = out / "figures"
    make_folder(folder)
    models, x = fills(labelled), examples(splits.held_out, EXAMPLES)
    drawings: dict[str, Drawing] = {
        "predicted": rolling_figures.predicted(models, x),
        "animation": rolling_figures.animated(models, x),
        "by_visible": rolling_figures.by_visible(
            {label: run.metrics[VISIBLE] for label, run in labelled.items()}
        ),
    }
    for name, figure in drawings.items():
        drawing.save(figure, folder, name)
    captions = RollingEvaluation.captions
    overview = Section(
        title="Side by side",
        text="All models were trained on the same sequences and are shown the same frames.",
        table=compare(runs),
        figures=[
            (file, captions[name]) for name in drawings if (file := drawing.saved(folder, name))
        ],
    )
    sections = [overview, *(section(run) for run in runs)]
    write_atomically(out / "report.html", page("Predictions of hidden frames", sections))
    return runs


def _jobs(recipes: Mapping[str, BaseRecipe], out: Path) -> list[Job]:
    """Return a job for each recipe; raise `BadInput` if data differ or folders are the same."""
    first, *others = recipes.values()
    for recipe in others:
        if recipe.data != first.data:
            raise BadInput(
                f"models side by side need the same data: {recipe.name} has {recipe.data}, but "
                f"{first.name} has {first.data}"
            )
    jobs = [Job(recipe, out / recipe.name.split("/")[-1]) for recipe in recipes.values()]
    for folder, count in Counter(job.out for job in jobs).items():
        if count > 1:
            raise BadInput(
                f"{count} recipes would be run in {folder}: choose names that differ after the /"
            )
    return jobs


def fills(runs: Mapping[str, Finished[Any]]) -> dict[str, Fill]:
    """Return the functions with which models fill in hidden frames when gains are measured.

    Models that cannot fill in frames are left out.

    Args:
        runs: runs by their label.
    """
    by_label = {label: evaluation_of(r.model).fill(r.model, r.recipe) for label, r in runs.items()}
    return {label: fill for label, fill in by_label.items() if fill is not None}
