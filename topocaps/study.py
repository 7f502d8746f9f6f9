"""From recipes to finished runs: train, evaluate beside the untrained control, draw, report."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from topocaps import figures
from topocaps.arithmetic import seeded
from topocaps.data.sequences import SequenceSet
from topocaps.errors import BadInput, Interrupted, NonFinite
from topocaps.examine import Measured, examination_of
from topocaps.files import make_folder, read_json, write_atomically, write_json
from topocaps.machine import with_doubles
from topocaps.metrics.intervals import at_the_ends
from topocaps.models.base import GenerativeModel, build
from topocaps.recipes import DATA, BaseRecipe, Splits, find
from topocaps.report import Section, page
from topocaps.training import RunFolder, fit_together, load
from topocaps.training.folder import SCHEMA
from topocaps.training.run import choose_device
from topocaps.training.validation import best_epoch
from topocaps.training.watching import Watcher, on_terminal
from topocaps.wording import counted

Say = Callable[[str], None]
VALIDATED = 100  # sequences of every factor, after every epoch
VALIDATION_SEED = 1


@dataclass(frozen=True)
class Finished:
    """A finished run: its folder, its settings, its model and its metrics."""

    folder: RunFolder
    settings: dict[str, Any]
    model: GenerativeModel
    metrics: dict[str, Any]

    @classmethod
    def open(cls, path: Path) -> Finished:
        folder = RunFolder(path)
        settings = folder.settings()
        if not folder.metrics.exists():
            data_kind(path, settings)  # else there is nothing to evaluate it on
            load(path)  # unless it is not finished
            raise BadInput(f"{path} has not been evaluated: topocaps evaluate {path}")
        metrics = read_json(folder.metrics)
        if not isinstance(metrics, dict) or "seed" not in metrics:
            raise BadInput(f"{folder.metrics} is not what a run measured: remove it")
        return cls(folder, settings, load(path), metrics)

    @property
    def name(self) -> str:
        return self.settings["name"]

    def shown_on(self, held_out: SequenceSet) -> Measured[Any]:
        return Measured(self.model, held_out, self.settings, self.metrics)


@dataclass(frozen=True)
class Job:
    """A recipe to run from a seed, into a folder."""

    recipe: BaseRecipe
    out: Path
    seed: int = 0
    start: Path | None = None  #: of the run whose weights it starts from [OUT/start]

    @property
    def before(self) -> Job | None:
        """What must be finished first: training that this one starts from."""
        if self.recipe.start is None:
            return None
        return Job(self.recipe.start, self.start or self.out / "start", self.seed)


def as_long(recipe: BaseRecipe, epochs: int | None) -> BaseRecipe:
    """The recipe, shortened where ``epochs`` are given."""
    return recipe if epochs is None else recipe.shortened(epochs)


def run_job(job: Job, device: str = "auto", say: Say = lambda line: None) -> Finished:
    """Train, evaluate and report one that has to stay finite."""
    for finished in run_jobs([job], device=device, say=say):
        return finished
    raise NonFinite(f"{job.recipe.name} did not stay finite: {RunFolder(job.out).failure} says why")


def run_jobs(
    jobs: Sequence[Job],
    data: Path | None = None,
    device: str = "auto",
    say: Say = lambda line: None,
    watch: Callable[[str], Watcher] = on_terminal,
    *,
    reports: bool = True,
) -> Iterator[Finished]:
    """Train, evaluate and report; jobs on the same data, for as many steps, run together.

    Each is given as soon as it is evaluated, group by group, and nothing is done before it is asked
    for. What is done already is kept. A model that is no
    longer finite is said to be so and left out. Without ``reports`` nothing is drawn.
    """
    first = {job.before.out: job.before for job in jobs if job.before is not None}
    if first:
        list(run_jobs(list(first.values()), data, device, say, watch, reports=reports))
    together: dict[object, list[Job]] = {}
    for job in jobs:
        if job.before is not None and RunFolder(job.before.out).failure.exists():
            say(f"{job.recipe.name}, seed {job.seed}: left out, as what it starts from failed")
            continue
        training = job.recipe.training
        together.setdefault((job.recipe.data, training.pace, training.patience), []).append(job)
    for group in together.values():
        yield from _run_group(group, data, device, say, watch, reports)


def _run_group(
    jobs: Sequence[Job],
    data: Path | None,
    device: str,
    say: Say,
    watch: Callable[[str], Watcher],
    reports: bool,
) -> Iterator[Finished]:
    recipes = [job.recipe for job in jobs]
    splits = recipes[0].data.load(data)
    frame_shape = splits.train.frame_shape
    for recipe in recipes:
        recipe.check(splits.train)
    folders = [RunFolder(job.out) for job in jobs]
    done = [
        folder.weights.exists() and (folder.report if reports else folder.metrics).exists()
        for folder in folders
    ]
    names = {recipe.name for recipe in recipes}
    label = names.pop() if len(names) == 1 else f"{len(jobs)} models"
    try:
        runs = fit_together(
            [_initial(job, frame_shape) for job in jobs],
            splits.train,
            training=[recipe.training for recipe in recipes],
            validation=_validation(splits) if recipes[0].training.patience else None,
            outs=[job.out for job in jobs],
            seeds=[job.seed for job in jobs],
            device=device,
            watcher=watch(label),
            settings=[recipe.settings() for recipe in recipes],
            say=lambda line: say(f"{label}: {line}"),
        )
    except Interrupted as stopped:
        raise Interrupted(f"{stopped}; the same command goes on from there") from None
    for job, run, folder, was_done in zip(jobs, runs, folders, done, strict=True):
        named = f"{job.recipe.name}, seed {job.seed}"
        if run.failure is not None:
            say(f"{named}: {run.failure} ({folder.failure})")
        elif was_done:
            say(f"{named}: trained already in {folder.path} (remove it to train again)")
            yield Finished.open(folder.path)
        else:
            best = "" if run.best_epoch is None else (
                f" for {counted(len(run.history), 'epoch')}, of which {run.best_epoch} was best"
            )  # fmt: skip
            say(f"{named}: trained in {run.seconds:.0f} s on {run.device}{best}; evaluating")
            if complaint := run.history[-1].get("complaint"):
                say(f"{named}: {complaint}")
            yield evaluate_run(folder.path, device, splits=splits, report=reports)


def _validation(splits: Splits) -> SequenceSet:
    """Some of what is there for choices or, where nothing is, of what is held out."""
    return (splits.validation or splits.held_out).balanced(VALIDATED, seed=VALIDATION_SEED)


def _initial(job: Job, frame_shape: tuple[int, ...]) -> GenerativeModel:
    """The model before its first step: fresh, or with the weights it starts from."""
    model = job.recipe.build(frame_shape, job.seed)
    return model if job.before is None else load(job.before.out, model).train()


def evaluate_run(
    path: Path,
    device: str = "auto",
    data: Path | None = None,
    splits: Splits | None = None,
    report: bool = True,
) -> Finished:
    """Measure a trained run from its folder; write its metrics and, asked for, its report."""
    folder = RunFolder(path)
    settings = folder.settings()
    splits = splits or data_of(path, settings, data)
    model = load(path)
    with seeded(settings["seed"]):
        untrained = build(settings["model"])
    examination = examination_of(model)
    where = with_doubles(choose_device(device))
    history = folder.records()
    patient = settings["training"].get("patience") and splits.validation is None
    chosen = best_epoch(history) if patient else 0
    write_json(
        folder.metrics,
        {
            "schema": SCHEMA,
            "recipe": settings["name"],
            **examination.measure(model, untrained, splits, settings, where),
            "split": splits.name + (f", which chose epoch {chosen}" if chosen else ""),
            "data": splits.source,
            "epochs": len(history),
            **_started(settings),
            "seed": settings["seed"],
            "seconds": history[-1]["seconds"],
            "together": history[-1].get("together", 1),  # models that shared these seconds
            "complaint": history[-1].get("complaint"),
            "device": settings["device"],
            "torch": settings["versions"]["torch"],
        },
    )
    finished = Finished(folder, settings, model.cpu(), read_json(folder.metrics))
    if report:
        draw_figures(finished, splits.held_out)
        write_atomically(folder.report, page(settings["name"], [section(finished)]))
    return finished


def _started(settings: dict[str, Any]) -> dict[str, Any]:
    """What a run was trained from, and for how long that was."""
    if "start" not in settings:
        return {}
    start = settings["start"]
    return {"start": {"recipe": start["name"], "epochs": start["training"]["epochs"]}}


def run_demo(out: Path, device: str, say: Say) -> list[Finished]:
    """The main job: a TVAE and a VAE of the same size on small sprites, side by side."""
    jobs = [Job(find(f"sprites/{name}"), out / name) for name in ("tvae", "vae")]
    runs = [run_job(job, device, say) for job in jobs]
    sections = [section(run) for run in runs]
    lags = figures.by_lag({run.name: run.metrics for run in runs})
    make_folder(out / "figures")
    figures.save(lags, out / "figures" / "by_lag.png")
    overview = Section(
        title="Side by side",
        text="Both models saw the same sequences for the same number of steps. Only one rolls.",
        table=compare(runs),
        figures=[(out / "figures" / "by_lag.png", figures.BY_LAG_CAPTION)],
    )
    write_atomically(
        out / "report.html", page("Equivariant capsules, learned", [overview, *sections])
    )
    return runs


def compare(runs: list[Finished]) -> list[list[str]]:
    """One table: every run, then the untrained control of the first."""
    named = Counter(run.name for run in runs)
    columns: dict[str, Any] = {}
    for run in runs:
        label = run.name + f", seed {run.metrics['seed']}" * (named[run.name] > 1)
        columns[label if label not in columns else f"{label}, {run.folder.path}"] = run.metrics
    columns[f"{runs[0].name}, untrained"] = runs[0].metrics["untrained"]
    return examination_of(runs[0].model).table(columns)


def section(run: Finished) -> Section:
    """The part of a report that one run fills."""
    examination = examination_of(run.model)
    captions = examination.captions
    files = {name: run.folder.figures / f"{name}.png" for name in captions}
    metrics = run.metrics
    low, high = at_the_ends(metrics) if "intervals" in metrics else (None, None)
    columns = {
        metrics["split"]: metrics,
        **({"95 % from": low, "to": high} if low and high else {}),
        "training": metrics["train"],
        "untrained": metrics["untrained"],
    }
    return Section(
        title=run.name,
        text=f"{counted(metrics['epochs'], 'epoch')} in {metrics['seconds']:.0f} s "
        f"on {metrics['device']}{_in_company(metrics)}, seed {metrics['seed']}; "
        f"{counted(metrics['sequences'], 'sequence')} evaluated."
        + (f" {metrics['complaint']}." if metrics.get("complaint") else ""),
        table=examination.table(columns),
        figures=[
            (files[name], caption) for name, caption in captions.items() if files[name].exists()
        ],
        settings=run.settings,
        legend=examination.legend,
    )


def _in_company(metrics: dict[str, Any]) -> str:
    together = metrics.get("together", 1)
    return f" ({together} models at once)" if together > 1 else ""


def draw_figures(run: Finished, held_out: SequenceSet) -> None:
    """Everything there is to see of a run, into its folder."""
    make_folder(run.folder.figures)
    drawn = examination_of(run.model).draw(run.shown_on(held_out))
    drawn["history"] = figures.history(run.folder.records())
    for name, figure in drawn.items():
        figures.save(figure, run.folder.figures / f"{name}.png")


def data_of(path: Path, settings: dict[str, Any], folder: Path | None = None) -> Splits:
    """The data of a run, made again from what it recorded."""
    kind = data_kind(path, settings)
    return DATA[kind](**{k: v for k, v in settings["data"].items() if k != "kind"}).load(folder)


def data_kind(path: Path, settings: dict[str, Any]) -> str:
    """Which data a run recorded; a run on others cannot be measured without them."""
    kind = (settings.get("data") or {}).get("kind")
    if kind not in DATA:
        known = settings.get("model")
        model = f"tc.load({str(path)!r}{'' if known else ', model'})"
        rolls = known is None or known.get("kind") != "PartWhole"
        then = f"tc.metrics.evaluate({model}, x)" if rolls else f"{model} is the model"
        raise BadInput(f"{path} was trained on sequences of your own: in Python, {then}")
    return str(kind)
