"""Reproduction of the papers' tables and figures: missing runs, stored results, the page."""

from __future__ import annotations

import itertools
import multiprocessing
import os
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from topocaps.errors import BadInput, counted
from topocaps.io import make_folder, read_json
from topocaps.models.networks import Norm
from topocaps.papers.claims import CLAIMS
from topocaps.papers.page import write_page
from topocaps.papers.pictures import draw, draw_predicted
from topocaps.papers.results import DEFERRED, Results
from topocaps.papers.table import Table
from topocaps.papers.tables import GROUPS, TABLES
from topocaps.study import drawing
from topocaps.study.evaluation import evaluation_of
from topocaps.study.finished import Finished
from topocaps.study.recipe import BaseRecipe, PartWholeRecipe, Recipe
from topocaps.study.rolling_recipe import RollingRecipe
from topocaps.study.runs import Job, Say, run_jobs, train_jobs
from topocaps.training.run import choose_device
from topocaps.training.store import RunFolder

#: Seconds per step of a model in a table, measured on an H200: batches of at most ``SMALL``
#: sequences, the same with normalised weights, larger batches, part-whole models. Convolutions: of
#: a rolling VAE of sprites, beside two other programs.
H200_SECONDS = {
    "small": 113e-6, "normed": 150e-6, "large": 0.83e-3, "parts": 1.85e-3, "convolutions": 10e-3,
}  # fmt: skip
SMALL = 32  # largest number of sequences of a small batch


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
    """Run the missing models of tables, store every result, and return the page of all results.

    A result that is stored already is not run again. Models of all ``tables`` train together where
    their data and number of steps agree.

    Args:
        out: folder of the results.
        runs: folder of the run folders.
        epochs: epochs of a short trial; full runs by default.
        seeds: number of seeds of each model; each table's own number by default.
        data: folder of the data.
        say: called with every line of progress.
    """
    make_folder(out)
    results = Results(out, short=epochs is not None)
    results.check()
    programs = _programs(tables, results, runs, epochs, seeds, say)
    if epochs is not None:
        say(
            f"Short trial: {counted(epochs, 'epoch')}, "
            f"{counted(max(seeds or table_of(name).seeds for name in tables), 'seed')}. "
            f"Results go to {out}/."
        )
    # a short run measures only what the given tables show, a full run what any table shows
    asked = None
    if epochs is not None and "claims" not in tables:
        asked = {q.key[0] for name in tables for q in table_of(name).quantities}
    measure = _Measurement(results, asked, data, device)
    for jobs in programs:
        measure.of_program(jobs, say)
    for job in itertools.chain(*programs):
        _keep_failure(job, results)
    if epochs is not None:
        for name in tables:
            say(_how_long(name, results, epochs))
    for name in tables:
        draw_predicted(name, out, runs, data)
    draw(results)
    return write_page(results)


def _programs(
    tables: Sequence[str],
    results: Results,
    runs: Path,
    epochs: int | None,
    seeds: int | None,
    say: Say,
) -> list[list[Job]]:
    """Return the missing runs of tables, each once, as lists of jobs that may train together."""
    programs: dict[str, list[Job]] = {}
    planned: set[Path] = set()
    for name in tables:
        table, found = table_of(name), missing(name, results, runs, epochs, seeds)
        stored = len(table.recipes) * (seeds or table.seeds) - len(found)
        say(f"{name}: {stored} results stored, {len(found)} to run")
        for job in found:
            if job.out not in planned:
                program = job.recipe.name if table.one_by_one else ""
                programs.setdefault(program, []).append(job)
        planned |= {job.out for job in found}
    return list(programs.values())


def missing(
    name: str, results: Results, runs: Path, epochs: int | None = None, seeds: int | None = None
) -> list[Job]:
    """Return the missing runs of a table; refuse results of other settings."""
    table = table_of(name)
    recipes = table.recipes if epochs is None else [one.shortened(epochs) for one in table.recipes]
    return [
        Job(
            recipe,
            runs / recipe.name / f"seed-{seed}",
            seed,
            runs / recipe.start.name / f"seed-{seed}" if recipe.start else None,
        )
        for recipe in recipes
        for seed in range(seeds or table.seeds)
        if not results.has(recipe, seed, table.quantities)
    ]


def _keep_failure(job: Job, results: Results) -> None:
    """Store the failure of a job, or of the run that it starts from, if one of them failed."""
    for part, said in ((job.before, "the run that it starts from failed: "), (job, "")):
        if part is not None and (file := RunFolder(part.out).failure).exists():
            found = read_json(file)
            failure = {**found, "failure": f"{said}{found['failure']}"}
            results.keep_failure(job.recipe, job.seed, failure)


def names() -> list[str]:
    """Return the names of everything that can be reproduced."""
    return [*TABLES, "claims"]


def groups() -> dict[str, tuple[str, ...]]:
    """Return the tables of each group, by its name."""
    return GROUPS


def named(what: Sequence[str]) -> list[list[str]]:
    """Return the tables to reproduce, as lists that train together.

    Tables that are named one by one are one list; each table of a group is a list of its own.
    """
    known_groups = {"all": names(), **GROUPS}
    for one in what:
        if one not in {*known_groups, *names()}:
            known = f"{', '.join((*names(), *GROUPS))} and all"
            raise BadInput(f"cannot reproduce {one!r}; choose from {known}")
    together = [one for one in what if one not in known_groups]
    alone = [[name] for one in what for name in known_groups.get(one, [])]
    return ([together] if together else []) + alone


#: The models that claims need. Each claim names its own quantities.
_OF_CLAIMS = Table(
    "Claims",
    tuple({recipe.name: recipe for one in CLAIMS for recipe in one.recipes}.values()),
    quantities=(),
    seeds=1,
)


def table_of(name: str) -> Table:
    """Return a table, a figure, or the models of the claims."""
    return _OF_CLAIMS if name == "claims" else TABLES[name]


def _tables_of(recipe: BaseRecipe) -> list[Table]:
    return [t for t in TABLES.values() if recipe.name in {one.name for one in t.recipes}]


@dataclass(frozen=True)
class _Measurement:
    """Trains runs, measures them and stores the results."""

    results: Results
    asked: set[str] | None  #: names of extra metrics; those that any table shows, if None
    data: Path | None
    device: str

    def of_program(self, jobs: Sequence[Job], say: Say) -> None:
        """Train jobs that may train together, then measure each; on a GPU, several at a time.

        A run that starts from the weights of another one is measured in this process.
        """
        workers = min(len(jobs), evaluation_workers(choose_device(self.device)))
        if workers < 2 or any(job.recipe.start for job in jobs):
            for run in run_jobs(jobs, self.data, self.device, say, reports=False):
                self.keep(run, say)
            return
        train_jobs(jobs, self.data, self.device, say)
        threads = max(1, torch.get_num_threads() // workers)
        context = multiprocessing.get_context("spawn")  # CUDA does not survive a fork
        with ProcessPoolExecutor(workers, context, torch.set_num_threads, (threads,)) as pool:
            for future in as_completed([pool.submit(self.of_trained, job) for job in jobs]):
                for line in future.result():
                    say(line)

    def of_trained(self, job: Job) -> list[str]:
        """Measure a trained run and store the result; return the lines of progress."""
        lines: list[str] = []
        for run in run_jobs([job], self.data, self.device, lines.append, reports=False):
            self.keep(run, lines.append)
        return lines

    def keep(self, run: Finished[Any], say: Say) -> None:
        """Measure the extra metrics of an evaluated run, draw its figures, store its result."""
        recipe, seed = run.recipe, run.metrics["seed"]
        extra = self._extra(run, say)
        control = {**run.metrics["untrained"], **extra.pop("untrained", {})}
        metrics = {**run.metrics, **extra, "untrained": control}
        bounds = {str(n): one["elbo"] for n, one in enumerate(run.folder.records())}
        if seed == 0:  # before the result is stored, as a stored one is not run again
            self._show(run)
        self.results.keep(recipe, seed, {**metrics, "elbo_by_epoch": bounds})

    def _extra(self, run: Finished[Any], say: Say) -> dict[str, Any]:
        """Measure the extra metrics that are shown, and name the others as deferred."""
        recipe, seed = run.recipe, run.metrics["seed"]
        if self.asked is None:
            shown = {q.key[0] for table in _tables_of(recipe) for q in table.quantities}
        else:
            shown = self.asked | self.results.names(recipe, seed)
        run.model.to(choose_device(self.device))
        found: dict[str, Any] = {}
        deferred: list[str] = []
        for metric in evaluation_of(run.model).extra_metrics(run, self.data):
            if shown.intersection(metric.names):
                say(f"{run.name}, seed {seed}: measuring {', '.join(metric.names)}")
                found |= metric.measure()
            else:
                deferred += metric.names
        run.model.cpu()
        return found | ({DEFERRED: deferred} if deferred else {})

    def _show(self, run: Finished[Any]) -> None:
        """Draw the figures of a run that tables show, beside its results."""
        wanted = {table.picture for table in _tables_of(run.recipe)}
        held_out = run.recipe.data.load(self.data).held_out
        folder = self.results.path(run.recipe, 0).parent
        folder.mkdir(parents=True, exist_ok=True)
        shown = evaluation_of(run.model).result_figures(run, held_out)
        for name in wanted & shown.keys():
            drawing.save(shown[name], folder, name, dpi=80)


def evaluation_workers(device: torch.device) -> int:
    """Return how many runs are measured at the same time.

    A measurement keeps two cores busy, and a small part of a GPU.
    """
    return 1 if device.type == "cpu" else max(1, min(8, (os.cpu_count() or 1) // 2))


def _how_long(name: str, results: Results, epochs: int) -> str:
    """Estimate the training time of the full table, here and on a GPU, from its short runs."""
    table = table_of(name)
    found = [one for recipe in table.recipes for one in results.of(recipe)]
    if not found:
        return f"{name}: no run finished, so there is no estimate of the full training time"
    here = sum(one["seconds"] / one.get("together", 1) for one in found) / len(found) / epochs
    whole = [recipe.training.epochs for recipe in table.recipes]
    hours = table.seeds * here * sum(whole) / 3600
    gpu = table.seeds * sum(map(_on_an_h200, table.recipes)) / 3600
    length = f"{whole[0]}" if len(set(whole)) == 1 else f"{min(whole)} to {max(whole)}"
    return (
        f"{name} in full ({table.seeds * len(whole)} models, {length} epochs) would train for "
        f"{_long(hours)} here, and about {_long(gpu)} on an H200"
    )


def _on_an_h200(recipe: BaseRecipe) -> float:
    """Return the seconds that a model trains on an H200, together with its table."""
    training = recipe.training
    if isinstance(recipe, PartWholeRecipe):
        kind = "parts"
    elif isinstance(recipe, Recipe | RollingRecipe) and recipe.channels is not None:
        kind = "convolutions"
    elif training.batch > SMALL:
        kind = "large"
    else:
        kind = "normed" if isinstance(recipe, Recipe) and recipe.norm is not Norm.NONE else "small"
    steps = (training.epoch_size or 48_000) / training.batch * training.epochs
    first = 0.0 if recipe.start is None else _on_an_h200(recipe.start)
    return first + steps * H200_SECONDS[kind]


def _long(hours: float) -> str:
    return f"{hours:,.1f} hours" if hours >= 1 else counted(max(1, round(60 * hours)), "minute")
