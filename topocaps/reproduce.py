"""The papers' tables and figures: run what is missing, keep every result, write the page."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from topocaps import figures
from topocaps.errors import BadInput
from topocaps.examine import examination_of
from topocaps.recipes import BaseRecipe
from topocaps.recipes.claims import CLAIMS
from topocaps.recipes.data import SOME
from topocaps.recipes.tables import TABLES, Number
from topocaps.results import Results
from topocaps.study import Finished, Job, Say, as_long, data_of, run_jobs
from topocaps.training.run import choose_device

H200_SECONDS = 104e-6  # a step of a model in a table: the run of results/mnist/camera-ready


def reproduce(
    tables: Sequence[str],
    out: Path,
    runs: Path,
    epochs: int | None = None,
    seeds: int = 3,
    data: Path | None = None,
    device: str = "auto",
    say: Say = lambda line: None,
) -> Path:
    """Run what is missing of the papers' tables, keep every result, write the page of all.

    Run folders are in ``runs``, small results in ``out``. What is there is not run again. Models
    of all tables that can be trained together are.
    """
    results = Results(out)
    wanted = {name: [as_long(recipe, epochs) for recipe in recipes_of(name)] for name in tables}
    jobs: dict[Path, Job] = {}
    for name, recipes in wanted.items():
        missing = [
            Job(
                recipe,
                runs / recipe.name / f"seed-{seed}",
                seed,
                runs / recipe.start / f"seed-{seed}" if recipe.start else None,
                epochs,
            )
            for recipe in recipes
            for seed in range(seeds)
            if not results.has(recipe, seed, numbers_of(name))
        ]
        there = len(recipes) * seeds - len(missing)
        say(f"{name}: {there} results are there, {len(missing)} to run")
        jobs |= {job.out: job for job in missing}
    if epochs is not None and jobs:
        say(f"short: {epochs} of the papers' epochs, measured on {SOME} sequences of each kind")
    recipe_of = {job.recipe.name: job.recipe for job in jobs.values()}
    for run in run_jobs(list(jobs.values()), data, device, say, reports=False):
        recipe, seed = recipe_of[run.name], run.metrics["seed"]
        metrics = run.metrics | _more(run, data, device)
        bounds = {str(n): one["elbo"] for n, one in enumerate(run.folder.records())}
        if seed == 0:  # first: a result that is there is not run again
            _show(run, results.path(recipe, 0).parent, data)
        results.keep(recipe, seed, {**metrics, "elbo_by_epoch": bounds})
    if epochs is not None and jobs:
        for name, recipes in wanted.items():
            say(_how_long(name, results, recipes, epochs))
    results.draw()
    return results.write_page()


EXTENSIONS = ("speed", "open", "causal", "axes", "learned", "sparse", "missing")


def names() -> list[str]:
    """Everything there is to reproduce."""
    return [*TABLES, "claims"]


def named(what: Sequence[str]) -> list[list[str]]:
    """What is meant, in parts: what is named together is one, of groups each table by itself."""
    groups = {"all": names(), "extensions": list(EXTENSIONS)}
    for one in what:
        if one not in {*groups, *names()}:
            known = f"{', '.join(names())}, extensions and all"
            raise BadInput(f"there is no {one!r} to reproduce; there are {known}")
    together = [one for one in what if one not in groups]
    alone = [[name] for one in what for name in groups.get(one, [])]
    return ([together] if together else []) + alone


def recipes_of(name: str) -> tuple[BaseRecipe, ...]:
    """What has to be run for a table, a figure or the claims."""
    if name == "claims":
        needed = [recipe for claim in CLAIMS for recipe in claim.recipes]
        return tuple({recipe.name: recipe for recipe in needed}.values())
    return TABLES[name].recipes


def numbers_of(name: str) -> tuple[Number, ...]:
    """What a table says of each of them; of claims, each judges what it needs."""
    return () if name == "claims" else TABLES[name].numbers


def _more(run: Finished, data: Path | None, device: str) -> dict[str, Any]:
    """Numbers that are for tables only."""
    model = run.model.to(choose_device(device))
    found = examination_of(model).more(model, run.settings, data)
    run.model.cpu()
    return found


def _show(run: Finished, folder: Path, data: Path | None) -> None:
    """The pictures of a run that stand beside its results."""
    held_out = data_of(run.folder.path, run.settings, data).held_out
    folder.mkdir(parents=True, exist_ok=True)
    shown = examination_of(run.model).keepsakes(run.shown_on(held_out))
    for name, figure in shown.items():
        figures.save(figure, folder / f"{name}.png", dpi=80)


def _how_long(name: str, results: Results, recipes: Sequence[BaseRecipe], epochs: int) -> str:
    """What the whole table would take here and on a GPU, from what this part of it took."""
    found = [one for recipe in recipes for one in results.of(recipe)]
    if not found:
        return f"{name}: nothing was finished, so nobody knows how long it would take"
    here = sum(one["seconds"] / one["together"] for one in found) / len(found) / epochs
    full = recipes_of(name)
    models, whole = 3 * len(full), full[0].training.epochs
    hours = here * models * whole / 3600
    steps = (full[0].training.epoch_size or 48_000) / full[0].training.batch * whole
    gpu = models * steps * H200_SECONDS / 3600
    return (
        f"{name} in full ({models} models, {whole} epochs) would train for {_long(hours)} here, "
        f"and about {_long(gpu)} on an H200"
    )


def _long(hours: float) -> str:
    return f"{hours:,.1f} hours" if hours >= 1 else f"{max(1, round(60 * hours))} minutes"
