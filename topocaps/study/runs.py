"""Runs of recipes: train, evaluate beside the untrained network, draw and report."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from topocaps.data.sequences import SequenceSet
from topocaps.device import with_doubles
from topocaps.errors import BadInput, Interrupted, NonFinite, counted
from topocaps.io import read_json, write_atomically, write_json
from topocaps.models.base import GenerativeModel
from topocaps.study.data import Splits
from topocaps.study.evaluation import evaluation_of
from topocaps.study.finished import Finished, recipe_of
from topocaps.study.recipe import BaseRecipe
from topocaps.study.report import draw_figures, page, section
from topocaps.training import Run, RunFolder, fit_together, load
from topocaps.training.run import choose_device
from topocaps.training.store import SCHEMA
from topocaps.training.validation import best_epoch
from topocaps.training.watching import on_terminal

Say = Callable[[str], None]
VALIDATED = 100  # number of validation sequences of every factor
VALIDATION_SEED = 1


@dataclass(frozen=True)
class Job:
    """A recipe, the seed it is run with, and the run folder."""

    recipe: BaseRecipe
    out: Path
    seed: int = 0
    start: Path | None = None  #: folder of the run from whose weights it starts [OUT/start]
    evaluate_start: bool = True  #: whether that run is also evaluated and reported

    @property
    def named(self) -> str:
        return f"{self.recipe.name}, seed {self.seed}"

    @property
    def before(self) -> Job | None:
        """The job from whose weights this one starts, or None. It must finish first."""
        if self.recipe.start is None:
            return None
        return Job(self.recipe.start, self.start or self.out / "start", self.seed)

    def is_done(self, reports: bool) -> bool:
        """Return whether the run is trained and evaluated and, if ``reports``, has a report."""
        folder = RunFolder(self.out)
        last = folder.report if reports else folder.metrics
        return folder.weights.exists() and last.exists()


def run_job(
    job: Job,
    device: str = "auto",
    say: Say = lambda line: None,
    splits: Splits | None = None,
) -> Finished[Any]:
    """Train, evaluate and report one job. Raise `NonFinite` if training does not stay finite."""
    for finished in run_jobs([job], device=device, say=say, splits=splits):
        return finished
    raise NonFinite(f"{job.recipe.name} did not stay finite: see {RunFolder(job.out).failure}")


def run_jobs(
    jobs: Sequence[Job],
    data: Path | None = None,
    device: str = "auto",
    say: Say = lambda line: None,
    *,
    reports: bool = True,
    splits: Splits | None = None,
) -> Iterator[Finished[Any]]:
    """Train, evaluate and report jobs. Jobs with the same data and number of steps train together.

    The iterator yields each run when it is evaluated, and starts a group only when its first run is
    requested. Finished runs are not run again. Runs that did not stay finite are reported through
    ``say`` and skipped.

    Args:
        data: folder of the data.
        say: called with every line of progress.
        reports: whether to draw figures and write reports.
        splits: the data of all jobs, if they are already loaded.
    """
    _check_data(jobs, splits)
    for evaluate in (True, False):
        chosen = [job for job in jobs if job.evaluate_start is evaluate]
        starts = list({s.out: s for job in chosen if (s := job.before) is not None}.values())
        loaded = splits if all(s.recipe.data == chosen[0].recipe.data for s in starts) else None
        if starts and evaluate:
            list(run_jobs(starts, data, device, say, reports=reports, splits=loaded))
        elif starts:
            train_jobs(starts, data, device, say, splits=loaded)
    for group in _together(jobs, say):
        shared = splits or group[0].recipe.data.load(data)
        done = [job.is_done(reports) for job in group]
        for job, was_done, run in zip(group, done, _train(group, shared, device, say), strict=True):
            folder = RunFolder(job.out)
            if run.failure is not None:
                say(f"{job.named}: {run.failure} ({folder.failure})")
            elif was_done:
                say(f"{job.named}: trained already in {job.out} (remove the folder to train again)")
                yield Finished.open(job.out, job.recipe)
            else:
                say(f"{job.named}: {_trained(run)}; evaluating")
                if complaint := run.history[-1].get("complaint"):
                    say(f"{job.named}: {complaint}")
                yield evaluate_run(
                    job.out, device, recipe=job.recipe, splits=shared, report=reports
                )
        del shared  # frees memory before the next group loads its data


def train_jobs(
    jobs: Sequence[Job],
    data: Path | None = None,
    device: str = "auto",
    say: Say = lambda line: None,
    *,
    splits: Splits | None = None,
) -> None:
    """Train jobs as `run_jobs` does, but do not evaluate them.

    The runs from whose weights they start must be trained already.
    """
    _check_data(jobs, splits)
    for group in _together(jobs, say):
        _train(group, splits or group[0].recipe.data.load(data), device, say)


def _check_data(jobs: Sequence[Job], splits: Splits | None) -> None:
    """Raise `BadInput` if ``splits`` cannot be the data of all jobs."""
    for job in jobs:
        if splits is not None and job.recipe.data != jobs[0].recipe.data:
            raise BadInput(
                f"splits must be the data of all jobs: {job.recipe.name} has {job.recipe.data}, "
                f"but {jobs[0].recipe.name} has {jobs[0].recipe.data}"
            )


def _together(jobs: Sequence[Job], say: Say) -> list[list[Job]]:
    """Return groups of jobs with the same data, number of steps and patience.

    Jobs that start from a failed run are left out.
    """
    groups: dict[object, list[Job]] = {}
    for job in jobs:
        if job.before is not None and RunFolder(job.before.out).failure.exists():
            say(f"{job.named}: skipped, as the run that it starts from failed")
            continue
        training = job.recipe.training
        groups.setdefault((job.recipe.data, training.pace, training.patience), []).append(job)
    return list(groups.values())


def _train(jobs: Sequence[Job], splits: Splits, device: str, say: Say) -> list[Run]:
    """Train the jobs of a group."""
    recipes = [job.recipe for job in jobs]
    for recipe in recipes:
        recipe.check(splits.train)
    names = {recipe.name for recipe in recipes}
    label = names.pop() if len(names) == 1 else f"{len(jobs)} models"
    try:
        return fit_together(
            [_initial(job, splits.train.frame_shape) for job in jobs],
            splits.train,
            training=[recipe.training for recipe in recipes],
            validation=_validation(splits) if recipes[0].training.patience else None,
            outs=[job.out for job in jobs],
            seeds=[job.seed for job in jobs],
            device=device,
            watcher=on_terminal(label),
            settings=[recipe.to_json() for recipe in recipes],
            say=lambda line: say(f"{label}: {line}"),
        )
    except Interrupted as stopped:
        raise Interrupted(f"{stopped}; repeat the command to resume") from None


def _trained(run: Run) -> str:
    """Return a sentence on the training time and, with validation, on the best epoch."""
    time = f"trained in {run.seconds:.0f} s on {run.device}"
    if run.best_epoch is None:
        return time
    return f"{time} for {counted(len(run.history), 'epoch')}; the best was epoch {run.best_epoch}"


def _validation(splits: Splits) -> SequenceSet:
    """Return some validation sequences, or held-out ones if the data have no validation split."""
    return (splits.validation or splits.held_out).balanced(VALIDATED, seed=VALIDATION_SEED)


def _initial(job: Job, frame_shape: tuple[int, ...]) -> GenerativeModel:
    """Return the model before its first step: a new one, or one with the weights of ``before``."""
    model = job.recipe.build(frame_shape, job.seed)
    return model if job.before is None else load(job.before.out, model).train()


def evaluate_run(
    path: Path,
    device: str = "auto",
    data: Path | None = None,
    recipe: BaseRecipe | None = None,
    splits: Splits | None = None,
    report: bool = True,
) -> Finished[Any]:
    """Evaluate a trained run and write its metrics and, if ``report``, its figures and report.

    Args:
        path: the run folder.
        data: folder of the data.
        recipe: recipe of the run; by default the one that the folder records.
        splits: data of the recipe; loaded by default.
        report: whether to draw figures and write a report.
    """
    folder = RunFolder(path)
    settings = folder.settings()
    recipe = recipe or recipe_of(folder)
    splits = splits or recipe.data.load(data)
    model = load(path)
    untrained = recipe.build(splits.train.frame_shape, settings["seed"])
    measured = evaluation_of(model).measure(
        model, untrained, splits, recipe, with_doubles(choose_device(device))
    )
    parameters = sum(p.numel() for p in model.parameters())
    write_json(
        folder.metrics,
        {
            "schema": SCHEMA,
            "recipe": recipe.name,
            **measured,
            **_about(folder, recipe, splits, parameters),
        },
    )
    finished = Finished(folder, recipe, model.cpu(), read_json(folder.metrics))
    if report:
        draw_figures(finished, splits.held_out)
        write_atomically(folder.report, page(recipe.name, [section(finished)]))
    return finished


def _about(
    folder: RunFolder, recipe: BaseRecipe, splits: Splits, parameters: int
) -> dict[str, Any]:
    """Return the entries of metrics.json on a run: its data, its training and its device."""
    settings, history = folder.settings(), folder.records()
    last, start = history[-1], recipe.start
    together = last.get("together", 1)
    held_out_chose = recipe.training.patience and splits.validation is None
    chosen = best_epoch(history) if held_out_chose else 0
    return {
        "split": splits.name + (f", which chose epoch {chosen}" if chosen else ""),
        "data": splits.source,
        "epochs": len(history),
        **({"start": {"recipe": start.name, "epochs": start.training.epochs}} if start else {}),
        "seed": settings["seed"],
        "parameters": parameters,
        "seconds": last["seconds"],
        "together": together,  # models that shared these seconds
        "seconds_each": last["seconds"] / together,
        "complaint": last.get("complaint"),
        "device": settings["device"],
        "torch": settings["versions"]["torch"],
    }
