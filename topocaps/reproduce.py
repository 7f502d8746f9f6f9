"""The papers' tables and figures: run what is missing, keep every result, write the page."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from topocaps import figures
from topocaps.errors import BadInput
from topocaps.examine import examination_of
from topocaps.files import make_folder, read_json
from topocaps.models.networks import Norm
from topocaps.recipes import BaseRecipe, Recipe
from topocaps.recipes.claims import CLAIMS
from topocaps.recipes.part_whole import PartWholeRecipe
from topocaps.recipes.tables import TABLES, Number, Table
from topocaps.results import PUT_OFF, Results
from topocaps.results_page import draw, write_page
from topocaps.study import Finished, Job, Say, as_long, data_of, run_jobs
from topocaps.training.folder import RunFolder
from topocaps.training.run import choose_device
from topocaps.wording import counted

#: a step of a model in a table, as measured: batches of 8, with normed weights, batches of 128,
#: part-whole models
H200_SECONDS = {"small": 113e-6, "normed": 150e-6, "large": 0.83e-3, "parts": 1.85e-3}
SMALL = 32  # sequences of a batch


def reproduce(
    tables: Sequence[str],
    out: Path,
    runs: Path,
    epochs: int | None = None,
    seeds: int | None = None,
    data: Path | None = None,
    device: str = "auto",
    say: Say = lambda line: None,
) -> Path:
    """Run what is missing of the papers' tables, keep every result, write the page of all.

    Each table has its own number of ``seeds``, unless it is given.
    Run folders are in ``runs``, small results in ``out``. What is there is not run again. Models
    of all tables that can be trained together are.
    """
    make_folder(out)
    results = Results(out, short=epochs is not None)
    results.check()
    jobs: dict[Path, Job] = {}
    for name in tables:
        found = missing(name, results, runs, epochs, seeds)
        there = len(recipes_of(name)) * seeds_of(name, seeds) - len(found)
        say(f"{name}: {there} results are there, {len(found)} to run")
        jobs |= {job.out: job for job in found}
    if epochs is not None:
        say(
            f"Short trial: {counted(epochs, 'epoch')}, "
            f"{counted(max(seeds_of(name, seeds) for name in tables), 'seed')}. "
            f"Results go to {out}/."
        )
    # a short run measures what was asked for; a whole one all that tables tell of it
    asked = None if epochs is None or "claims" in tables else _asked(tables)
    recipe_of = {job.recipe.name: job.recipe for job in jobs.values()}
    for run in run_jobs(list(jobs.values()), data, device, say, reports=False):
        recipe, seed = recipe_of[run.name], run.metrics["seed"]
        told = _told_of(recipe) if asked is None else asked | results.names(recipe, seed)
        more = _more(run, told, data, device, say)
        control = {**run.metrics["untrained"], **more.pop("untrained", {})}
        metrics = {**run.metrics, **more, "untrained": control}
        bounds = {str(n): one["elbo"] for n, one in enumerate(run.folder.records())}
        if seed == 0:  # first: a result that is there is not run again
            _show(run, recipe, results.path(recipe, 0).parent, data)
        results.keep(recipe, seed, {**metrics, "elbo_by_epoch": bounds})
    for job in jobs.values():
        for part, said in ((job.before, "what it starts from failed: "), (job, "")):
            if part is not None and (failure := RunFolder(part.out).failure).exists():
                found = read_json(failure)
                failed = {**found, "failure": f"{said}{found['failure']}"}
                results.keep_failure(job.recipe, job.seed, failed)
    if epochs is not None:
        for name in tables:
            say(_how_long(name, results, epochs))
    draw(results)
    return write_page(results)


def missing(
    name: str, results: Results, runs: Path, epochs: int | None = None, seeds: int | None = None
) -> list[Job]:
    """What is to be run for a table; results that are of other recipes than now are refused."""
    return [
        Job(
            recipe,
            runs / recipe.name / f"seed-{seed}",
            seed,
            runs / recipe.start.name / f"seed-{seed}" if recipe.start else None,
        )
        for recipe in (as_long(recipe, epochs) for recipe in recipes_of(name))
        for seed in range(seeds_of(name, seeds))
        if not results.has(recipe, seed, numbers_of(name))
    ]


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


def seeds_of(name: str, seeds: int | None = None) -> int:
    """Return how many runs of each model are asked for: the table's own number unless given."""
    if seeds is not None:
        return seeds
    return 1 if name == "claims" else TABLES[name].seeds


def numbers_of(name: str) -> tuple[Number, ...]:
    """What a table says of each of them; of claims, each judges what it needs."""
    return () if name == "claims" else TABLES[name].numbers


def _asked(tables: Sequence[str]) -> set[str]:
    """What tables tell, by its name among metrics."""
    return {number.path[0] for name in tables for number in numbers_of(name)}


def _told_of(recipe: BaseRecipe) -> set[str]:
    """What any table tells of a recipe."""
    return {number.path[0] for table in _tables_of(recipe) for number in table.numbers}


def _tables_of(recipe: BaseRecipe) -> list[Table]:
    return [t for t in TABLES.values() if recipe.name in {one.name for one in t.recipes}]


def _more(
    run: Finished, asked: set[str], data: Path | None, device: str, say: Say
) -> dict[str, Any]:
    """Numbers that are for tables only: those that are asked for; what is put off is named."""
    model = run.model.to(choose_device(device))
    found: dict[str, Any] = {}
    put_off: list[str] = []
    for later in examination_of(model).more(model, run.settings, data):
        if asked.intersection(later.names):
            say(f"{run.name}, seed {run.metrics['seed']}: measuring {', '.join(later.names)}")
            found |= later.measure()
        else:
            put_off += later.names
    run.model.cpu()
    return found | ({PUT_OFF: put_off} if put_off else {})


def _show(run: Finished, recipe: BaseRecipe, folder: Path, data: Path | None) -> None:
    """The pictures of a run that stand beside its results: those that tables show."""
    wanted = {table.picture for table in _tables_of(recipe)}
    held_out = data_of(run.folder.path, run.settings, data).held_out
    folder.mkdir(parents=True, exist_ok=True)
    shown = examination_of(run.model).keepsakes(run.shown_on(held_out))
    for name in wanted & shown.keys():
        figures.save(shown[name], folder / f"{name}.png", dpi=80)


def _how_long(name: str, results: Results, epochs: int) -> str:
    """What the whole table would take here and on a GPU, from what this part of it took."""
    found = [one for recipe in recipes_of(name) for one in results.of(recipe)]
    if not found:
        return f"{name}: nothing was finished, so nobody knows how long it would take"
    here = sum(one["seconds"] / one.get("together", 1) for one in found) / len(found) / epochs
    full, seeds = recipes_of(name), seeds_of(name)
    whole = [recipe.training.epochs for recipe in full]
    hours, gpu = (
        seeds * sum(each) / 3600
        for each in ([here * count for count in whole], map(_on_an_h200, full))
    )
    length = f"{whole[0]}" if len(set(whole)) == 1 else f"{min(whole)} to {max(whole)}"
    return (
        f"{name} in full ({seeds * len(full)} models, {length} epochs) would train for "
        f"{_long(hours)} here, and about {_long(gpu)} on an H200"
    )


def _on_an_h200(recipe: BaseRecipe) -> float:
    """Seconds of a model in the company of its table."""
    training = recipe.training
    if isinstance(recipe, PartWholeRecipe):
        kind = "parts"
    elif training.batch > SMALL:
        kind = "large"
    else:
        kind = "normed" if isinstance(recipe, Recipe) and recipe.norm is not Norm.NONE else "small"
    steps = (training.epoch_size or 48_000) / training.batch * training.epochs
    first = 0.0 if recipe.start is None else _on_an_h200(recipe.start)
    return first + steps * H200_SECONDS[kind]


def _long(hours: float) -> str:
    return f"{hours:,.1f} hours" if hours >= 1 else counted(max(1, round(60 * hours)), "minute")
