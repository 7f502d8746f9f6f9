"""From recipes to finished runs: train, evaluate beside the untrained control, draw, report."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from topocaps import figures
from topocaps.arithmetic import seeded
from topocaps.data.mnist import digits
from topocaps.data.sequences import Batch, SequenceSet
from topocaps.data.transforms import TransformedImages
from topocaps.errors import BadInput, Interrupted
from topocaps.files import make_folder, read_json, write_atomically, write_json
from topocaps.learned import LearnedTopography
from topocaps.metrics import (
    accuracy_by_labels,
    evaluate,
    neighbour_agreement,
    pooled,
    strongest_images,
)
from topocaps.models import SequenceModel, build
from topocaps.recipes import DATA, Recipe, Splits, find
from topocaps.recipes.data import SOME
from topocaps.report import Section, page, table
from topocaps.training import RunFolder, fit_together, load
from topocaps.training.folder import SCHEMA
from topocaps.training.run import choose_device
from topocaps.training.watching import Watcher, on_terminal

EVALUATION_SEED = 0  # the same sequences and noise for every model that is compared

Say = Callable[[str], None]


@dataclass(frozen=True)
class Finished:
    """A finished run: its folder, its settings, its model and its metrics."""

    folder: RunFolder
    settings: dict[str, Any]
    model: SequenceModel
    metrics: dict[str, Any]

    @classmethod
    def open(cls, path: Path) -> Finished:
        folder = RunFolder(path)
        settings, model = folder.settings(), load(path)
        if not folder.metrics.exists():
            raise BadInput(f"{path} has not been evaluated: topocaps evaluate {path}")
        return cls(folder, settings, model, read_json(folder.metrics))

    @property
    def name(self) -> str:
        return self.settings["name"]


@dataclass(frozen=True)
class Job:
    """A recipe to run from a seed, into a folder."""

    recipe: Recipe
    out: Path
    seed: int = 0


def run_jobs(
    jobs: Sequence[Job],
    data: Path | None = None,
    device: str = "auto",
    say: Say = lambda line: None,
    watch: Callable[[str], Watcher] = on_terminal,
) -> list[Finished]:
    """Train, evaluate and report; jobs on the same data, for as many steps, run together.

    What is done already is kept. A model that is no longer finite is said to be so and left out.
    """
    together: dict[object, list[Job]] = {}
    for job in jobs:
        together.setdefault((job.recipe.data, job.recipe.training.pace), []).append(job)
    found = {}
    for group in together.values():
        for job, finished in zip(group, _run_group(group, data, device, say, watch), strict=True):
            found[id(job)] = finished
    return [run for job in jobs if (run := found[id(job)]) is not None]


def _run_group(
    jobs: Sequence[Job],
    data: Path | None,
    device: str,
    say: Say,
    watch: Callable[[str], Watcher],
) -> list[Finished | None]:
    recipes = [job.recipe for job in jobs]
    splits = recipes[0].data.load(data)
    frames, frame_shape = splits.train.frames, splits.train.frame_shape
    for recipe in recipes:
        if (recipe.unseen_window or 0) > frames:
            raise BadInput(f"unseen_window {recipe.unseen_window} is more than {frames} frames")
    folders = [RunFolder(job.out) for job in jobs]
    done = [folder.weights.exists() and folder.report.exists() for folder in folders]
    names = {recipe.name for recipe in recipes}
    label = names.pop() if len(names) == 1 else f"{len(jobs)} models"
    try:
        runs = fit_together(
            [job.recipe.build(frame_shape, job.seed) for job in jobs],
            splits.train,
            training=[recipe.training for recipe in recipes],
            outs=[job.out for job in jobs],
            seeds=[job.seed for job in jobs],
            device=device,
            watcher=watch(label),
            settings=[recipe.settings() for recipe in recipes],
            say=lambda line: say(f"{label}: {line}"),
        )
    except Interrupted as stopped:
        raise Interrupted(f"{stopped}; the same command goes on from there") from None
    finished: list[Finished | None] = []
    for job, run, folder, was_done in zip(jobs, runs, folders, done, strict=True):
        named = f"{job.recipe.name}, seed {job.seed}"
        if run.failure is not None:
            say(f"{named}: {run.failure} ({folder.failure})")
            finished.append(None)
        elif was_done:
            say(f"{named}: trained already in {folder.path} (remove it to train again)")
            finished.append(Finished.open(folder.path))
        else:
            say(f"{named}: trained in {run.seconds:.0f} s on {run.device}; evaluating")
            finished.append(evaluate_run(folder.path, device, splits=splits))
    return finished


def evaluate_run(
    path: Path,
    device: str = "auto",
    data: Path | None = None,
    splits: Splits | None = None,
) -> Finished:
    """Measure a trained run from its folder; write its metrics, figures and report."""
    folder = RunFolder(path)
    settings, model = folder.settings(), load(path)
    splits = splits or data_of(path, settings, data)
    with seeded(settings["seed"]):
        untrained = build(settings["model"])
    where = choose_device(device)

    def on(sequences: SequenceSet, each: int | None, which: SequenceModel) -> dict[str, Any]:
        fixed = sequences.balanced(each, EVALUATION_SEED).to(where)
        found = evaluate(which.to(where), fixed, seed=EVALUATION_SEED, **how_to_walk(settings))
        return {**found, "map": _map(which, fixed)} if is_map(which) else found

    history = folder.records()
    write_json(
        folder.metrics,
        {
            "schema": SCHEMA,
            "recipe": settings["name"],
            **on(splits.held_out, splits.each, model),
            "split": splits.name,
            "data": splits.source,
            "untrained": on(splits.held_out, splits.each, untrained),
            "train": on(splits.train, SOME, model),
            "epochs": len(history),
            "seed": settings["seed"],
            "seconds": history[-1]["seconds"],
            "together": history[-1].get("together", 1),  # models that shared these seconds
            "device": settings["device"],
        },
    )
    finished = Finished(folder, settings, model.cpu(), read_json(folder.metrics))
    draw_figures(finished, splits.held_out)
    write_atomically(folder.report, page(settings["name"], [section(finished)]))
    return finished


def how_to_walk(settings: dict[str, Any]) -> dict[str, Any]:
    """What a recipe says of traversals: frames that count as unseen, speed, whether time closes."""
    walk = {"window": settings["unseen_window"], "rate": settings.get("rate", 1.0)}
    return walk | {"closed": settings.get("closed")}


PROBED = 10_000  # labelled sequences, and as many to test on


@torch.no_grad()
def probe_digits(model: SequenceModel, folder: Path | None) -> dict[str, Any]:
    """{what is read: {labels: accuracy}}: digits from the t of one moving, turned, coloured frame,
    and from what of it no roll changes."""
    where = next(model.parameters()).device
    sets: dict[str, list[tuple[Tensor, Tensor]]] = {"t": [], "pooled": []}
    for part in digits(folder):
        moving = TransformedImages(part.images)
        fixed = moving.balanced(-(-PROBED // len(moving.motion.together)), EVALUATION_SEED)
        read = [model.encode(one.x)[:, :1] for one in fixed.to(where).batches(128)]
        t = torch.cat(read)
        classes = part.classes[fixed.fixed()[:, 0, 0].cpu()].long().to(where)
        sets["t"].append((t.flatten(1), classes))
        sets["pooled"].append((pooled(t).flatten(1), classes))
    with torch.enable_grad():
        return {
            name: {str(n): share for n, share in accuracy_by_labels(train, test).items()}
            for name, (train, test) in sets.items()
        }


def is_map(model: SequenceModel) -> bool:
    return model.topography.capsules == 1 and len(model.topography.shape) == 2


def _map(model: SequenceModel, sequences: SequenceSet) -> dict[str, Any]:
    """Whether neighbours of a map like images of the same class."""
    _, classes = strongest(model, sequences)
    found = neighbour_agreement(classes)
    shares = {"agreement": found.observed, "shuffled": found.shuffled, "p_value": found.p_value}
    return {**shares, "classes": classes.tolist()}


def strongest(model: SequenceModel, sequences: SequenceSet) -> tuple[Tensor, Tensor]:
    """The images that excite the sites of a map most, and their classes."""
    which = strongest_images(model, sequences)[0]  # rows columns
    shown = sequences.show(sequences.fixed().cpu()[which.flatten()])
    assert shown.factors is not None
    images = shown.x[:, 0].unflatten(0, which.shape)
    return images.cpu(), shown.factors[:, 0, 0].reshape(which.shape).cpu()


def run_demo(out: Path, device: str, say: Say) -> list[Finished]:
    """The main job: a TVAE and a VAE of the same size on small sprites, side by side."""
    jobs = [Job(find(f"sprites/{name}"), out / name) for name in ("tvae", "vae")]
    runs = [run for job in jobs for run in run_jobs([job], device=device, say=say)]
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
    columns = {run.name: run.metrics for run in runs}
    columns[f"{runs[0].name}, untrained"] = runs[0].metrics["untrained"]
    return table(columns)


def section(run: Finished) -> Section:
    """The part of a report that one run fills."""
    captions = {
        "torus": figures.TORUS_CAPTION,
        "traversal": figures.TRAVERSAL_CAPTION,
        "by_lag": figures.BY_LAG_CAPTION,
        "topography": figures.TOPOGRAPHY_CAPTION,
        "learned": figures.LEARNED_CAPTION,
        "history": figures.HISTORY_CAPTION,
    }
    files = {name: run.folder.figures / f"{name}.png" for name in captions}
    metrics = run.metrics
    columns = {
        metrics["split"]: metrics,
        "training": metrics["train"],
        "untrained": metrics["untrained"],
    }
    return Section(
        title=run.name,
        text=f"{metrics['epochs']} epochs in {metrics['seconds']:.0f} s on {metrics['device']}"
        f"{_in_company(metrics)}, seed {metrics['seed']}; "
        f"{metrics['sequences']} sequences evaluated.",
        table=table(columns),
        figures=[
            (files[name], caption) for name, caption in captions.items() if files[name].exists()
        ],
        settings=run.settings,
    )


def _in_company(metrics: dict[str, Any]) -> str:
    together = metrics.get("together", 1)
    return f" ({together} models at once)" if together > 1 else ""


def draw_figures(run: Finished, held_out: SequenceSet) -> None:
    """Everything there is to see of a run, into its folder."""
    make_folder(run.folder.figures)
    drawn = {"history": figures.history(run.folder.records())}
    if isinstance(run.model.topography, LearnedTopography):
        drawn["learned"] = figures.learned(run.model.topography)
    else:
        drawn["topography"] = figures.topography(run.model.topography, held_out.frames)
    if is_map(run.model):
        drawn["torus"] = figures.torus(*strongest(run.model, held_out))
    else:
        shown = examples(held_out)
        how = how_to_walk(run.settings)
        drawn["traversal"] = figures.traversals(run.model, shown, held_out.names, **how)
        drawn["by_lag"] = figures.by_lag({run.name: run.metrics})
    for name, figure in drawn.items():
        figures.save(figure, run.folder.figures / f"{name}.png")


def examples(held_out: SequenceSet, each: int = 1) -> Batch:
    """The sequences that figures show: ``each`` of every factor, always the same."""
    shown = held_out.balanced(each, seed=1)
    return next(shown.batches(len(shown)))


def data_of(path: Path, settings: dict[str, Any], folder: Path | None = None) -> Splits:
    """The data of a run, made again from what it recorded."""
    data = dict(settings.get("data") or {})
    if data.get("kind") not in DATA:
        raise BadInput(
            f"{path} was trained on sequences of your own: in Python, use "
            f"tc.metrics.evaluate(tc.load({str(path)!r}), x)"
        )
    return DATA[data.pop("kind")](**data).load(folder)
