"""Reproduction of the papers' tables: run what is missing, store results, write the page."""

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

#: Seconds per step of a model that trains with its table, measured on an H200. *small*: batches of
#: at most ``SMALL`` sequences. *normed*: the same with normalised weights. *large*: larger batches.
#: *parts*: part-whole models. *convolutions*: a rolling VAE of sprites, beside two other programs.
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

    Stored results are not run again. Models of all ``tables`` train together if they have the same
    data and number of steps.

    Args:
        tables: names of tables, or "claims".
        out: folder of the results.
        runs: folder of the run folders.
        epochs: number of epochs of a short trial; full runs by default.
        seeds: number of seeds of each model; by default that of its table.
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
    # a short run measures only metrics that the given tables show, a full run those of all tables
    metrics = None
    if epochs is not None and "claims" not in tables:
        metrics = {q.key[0] for name in tables for q in table_of(name).quantities}
    measurement = _Measurement(results, metrics, data, device)
    for jobs in programs:
        measurement.run(jobs, say)
    for job in itertools.chain(*programs):
        _keep_failure(job, results)
    if epochs is not None:
        for name in tables:
            say(_estimate(name, results, epochs))
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
    """Return the missing runs of tables without duplicates, as lists that may train together."""
    programs: dict[str, list[Job]] = {}
    planned: set[Path] = set()
    for name in tables:
        table, jobs = table_of(name), missing(name, results, runs, epochs, seeds)
        stored = len(table.recipes) * (seeds or table.seeds) - len(jobs)
        say(f"{name}: {stored} results stored, {len(jobs)} to run")
        for job in jobs:
            if job.out not in planned:
                program = job.recipe.name if table.one_by_one else ""
                programs.setdefault(program, []).append(job)
        planned |= {job.out for job in jobs}
    return list(programs.values())


def missing(
    name: str, results: Results, runs: Path, epochs: int | None = None, seeds: int | None = None
) -> list[Job]:
    """Return the missing runs of a table. Raise `BadInput` for full results of other settings."""
    table = table_of(name)
    recipes = table.recipes if epochs is None else [r.shortened(epochs) for r in table.recipes]
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
    for run, prefix in ((job.before, "the run that it starts from failed: "), (job, "")):
        if run is not None and (file := RunFolder(run.out).failure).exists():
            failure = read_json(file)
            text = f"{prefix}{failure['failure']}"
            results.keep_failure(job.recipe, job.seed, {**failure, "failure": text})


def names() -> list[str]:
    """Return the names of all tables and figures, and "claims"."""
    return [*TABLES, "claims"]


def groups() -> dict[str, tuple[str, ...]]:
    """Return the tables of each group, by its name."""
    return GROUPS


def named(tables_or_groups: Sequence[str]) -> list[list[str]]:
    """Return the tables to reproduce, as lists that train together.

    Tables that are given by their own names are one list. Each table of a group is another list.
    """
    known_groups = {"all": names(), **GROUPS}
    for name in tables_or_groups:
        if name not in {*known_groups, *names()}:
            known = f"{', '.join((*names(), *GROUPS))} and all"
            raise BadInput(f"cannot reproduce {name!r}; choose from {known}")
    together = [name for name in tables_or_groups if name not in known_groups]
    alone = [[name] for group in tables_or_groups for name in known_groups.get(group, [])]
    return ([together] if together else []) + alone


#: The models of all claims. It has no quantities, as each claim has its own.
_OF_CLAIMS = Table(
    "Claims",
    tuple({recipe.name: recipe for claim in CLAIMS for recipe in claim.recipes}.values()),
    quantities=(),
    seeds=1,
)


def table_of(name: str) -> Table:
    """Return a table or figure by its name; for "claims", the models of the claims."""
    return _OF_CLAIMS if name == "claims" else TABLES[name]


def _tables_of(recipe: BaseRecipe) -> list[Table]:
    """Return the tables that have this recipe as a row."""
    return [t for t in TABLES.values() if recipe.name in {row.name for row in t.recipes}]


@dataclass(frozen=True)
class _Measurement:
    """Trains runs, measures them and stores the results."""

    results: Results
    metrics: set[str] | None  #: names of the extra metrics to measure; None: those of all tables
    data: Path | None
    device: str

    def run(self, jobs: Sequence[Job], say: Say) -> None:
        """Train jobs together, then measure each of them. On a GPU, several processes measure.

        If a job starts from the weights of another run, all are measured in this process.
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
            for future in as_completed([pool.submit(self.measure_trained, job) for job in jobs]):
                for line in future.result():
                    say(line)

    def measure_trained(self, job: Job) -> list[str]:
        """Measure a trained run and store the result; return the lines of progress."""
        lines: list[str] = []
        for run in run_jobs([job], self.data, self.device, lines.append, reports=False):
            self.keep(run, lines.append)
        return lines

    def keep(self, run: Finished[Any], say: Say) -> None:
        """Measure the extra metrics of an evaluated run, draw its figures and store its result."""
        recipe, seed = run.recipe, run.metrics["seed"]
        extra = self._extra(run, say)
        control = {**run.metrics["untrained"], **extra.pop("untrained", {})}
        metrics = {**run.metrics, **extra, "untrained": control}
        bounds = {str(n): record["elbo"] for n, record in enumerate(run.folder.records())}
        if seed == 0:  # before the result is stored: runs with a stored result are skipped
            self._draw(run)
        self.results.keep(recipe, seed, {**metrics, "elbo_by_epoch": bounds})

    def _extra(self, run: Finished[Any], say: Say) -> dict[str, Any]:
        """Return the extra metrics that tables show, and a list of the others as deferred."""
        recipe, seed = run.recipe, run.metrics["seed"]
        if self.metrics is None:
            shown = {q.key[0] for table in _tables_of(recipe) for q in table.quantities}
        else:
            shown = self.metrics | self.results.names(recipe, seed)
        run.model.to(choose_device(self.device))
        measured: dict[str, Any] = {}
        deferred: list[str] = []
        for metric in evaluation_of(run.model).extra_metrics(run, self.data):
            if shown.intersection(metric.names):
                say(f"{run.name}, seed {seed}: measuring {', '.join(metric.names)}")
                measured |= metric.measure()
            else:
                deferred += metric.names
        run.model.cpu()
        return measured | ({DEFERRED: deferred} if deferred else {})

    def _draw(self, run: Finished[Any]) -> None:
        """Draw the figures of a run that tables show into the folder of its results."""
        wanted = {table.picture for table in _tables_of(run.recipe)}
        held_out = run.recipe.data.load(self.data).held_out
        folder = self.results.path(run.recipe, 0).parent
        folder.mkdir(parents=True, exist_ok=True)
        drawings = evaluation_of(run.model).result_figures(run, held_out)
        for name in wanted & drawings.keys():
            drawing.save(drawings[name], folder, name, dpi=80)


def evaluation_workers(device: torch.device) -> int:
    """Return the number of processes that measure runs at the same time.

    A measurement uses two cores, and a small part of a GPU.
    """
    return 1 if device.type == "cpu" else max(1, min(8, (os.cpu_count() or 1) // 2))


def _estimate(name: str, results: Results, epochs: int) -> str:
    """Return a sentence on the training time of the full table, here and on a GPU.

    The time here is estimated from short runs of ``epochs``.
    """
    table = table_of(name)
    stored = [result for recipe in table.recipes for result in results.of(recipe)]
    if not stored:
        return f"{name}: no run finished, so there is no estimate of the full training time"
    seconds = sum(one["seconds"] / one.get("together", 1) for one in stored)
    per_epoch = seconds / len(stored) / epochs
    full = [recipe.training.epochs for recipe in table.recipes]
    hours = table.seeds * per_epoch * sum(full) / 3600
    gpu_hours = table.seeds * sum(map(_h200_seconds, table.recipes)) / 3600
    length = f"{full[0]}" if len(set(full)) == 1 else f"{min(full)} to {max(full)}"
    return (
        f"{name} in full ({table.seeds * len(full)} models, {length} epochs) would train for "
        f"{_duration(hours)} here, and about {_duration(gpu_hours)} on an H200"
    )


def _h200_seconds(recipe: BaseRecipe) -> float:
    """Return the estimated training time of a model on an H200, in seconds."""
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
    start = 0.0 if recipe.start is None else _h200_seconds(recipe.start)
    return start + steps * H200_SECONDS[kind]


def _duration(hours: float) -> str:
    return f"{hours:,.1f} hours" if hours >= 1 else counted(max(1, round(60 * hours)), "minute")
