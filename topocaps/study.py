"""From recipes to finished runs: train, evaluate beside the untrained control, draw, report."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from topocaps import figures
from topocaps.arithmetic import seeded
from topocaps.data.sequences import Batch, Sequences
from topocaps.errors import BadInput, Interrupted
from topocaps.files import make_folder, read_json, write_atomically, write_json
from topocaps.metrics import evaluate
from topocaps.models import SequenceModel, build
from topocaps.recipes import DATA, Recipe, find
from topocaps.report import Section, page, table
from topocaps.training import RunFolder, fit_together, load
from topocaps.training.run import SCHEMA, choose_device
from topocaps.training.watching import Watcher, on_terminal

EVALUATED_OF_EACH = 500  # sequences of every factor
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


def run_recipe(
    recipe: Recipe,
    outs: Sequence[Path],
    seeds: Sequence[int] = (0,),
    device: str = "auto",
    say: Say = lambda line: None,
    watch: Callable[[str], Watcher] = on_terminal,
) -> list[Finished]:
    """Train a recipe from each seed into its folder, all together, then evaluate and report each.

    What is done already is kept.
    """
    train, _ = recipe.data.load()
    if (recipe.unseen_window or 0) > train.frames:
        raise BadInput(f"unseen_window {recipe.unseen_window} is more than {train.frames} frames")
    folders = [RunFolder(out) for out in outs]
    done = [folder.weights.exists() and folder.report.exists() for folder in folders]
    try:
        runs = fit_together(
            [recipe.build(train.frame_shape, seed) for seed in seeds],
            train,
            training=recipe.training,
            outs=outs,
            seeds=seeds,
            device=device,
            watcher=watch(recipe.name),
            settings=recipe.settings(),
        )
    except Interrupted as stopped:
        raise Interrupted(f"{stopped}; the same command goes on from there") from None
    finished = []
    for run, folder, was_done in zip(runs, folders, done, strict=True):
        if was_done:
            say(f"{recipe.name}: trained already in {folder.path} (remove it to train again)")
            finished.append(Finished.open(folder.path))
        else:
            say(f"{recipe.name}: trained in {run.seconds:.0f} s on {run.device}; evaluating")
            finished.append(evaluate_run(folder.path, device))
    return finished


def evaluate_run(path: Path, device: str = "auto") -> Finished:
    """Measure a trained run from its folder alone; write its metrics, figures and report."""
    folder = RunFolder(path)
    settings, model = folder.settings(), load(path)
    train, held_out = data_of(path, settings)
    with seeded(settings["seed"]):
        untrained = build(settings["model"])
    where = choose_device(device)

    def on(sequences: Sequences, which: SequenceModel) -> dict[str, Any]:
        fixed = sequences.balanced(EVALUATED_OF_EACH, EVALUATION_SEED).to(where)
        window = settings["unseen_window"]
        return evaluate(which.to(where), fixed, window=window, seed=EVALUATION_SEED)

    history = folder.records()
    write_json(
        folder.metrics,
        {
            "schema": SCHEMA,
            "recipe": settings["name"],
            **on(held_out, model),
            "split": "held-out orbits",
            "untrained": on(held_out, untrained),
            "train": on(train, model),
            "epochs": len(history),
            "seed": settings["seed"],
            "seconds": history[-1]["seconds"],
            "device": settings["device"],
        },
    )
    finished = Finished(folder, settings, model.cpu(), read_json(folder.metrics))
    draw_figures(finished, held_out)
    write_atomically(folder.report, page(settings["name"], [section(finished)]))
    return finished


def run_demo(out: Path, device: str, say: Say) -> list[Finished]:
    """The main job: a TVAE and a VAE of the same size on small sprites, side by side."""
    runs = [
        run
        for name in ("tvae", "vae")
        for run in run_recipe(find(f"sprites/{name}"), [out / name], device=device, say=say)
    ]
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
    captions = {"traversal": figures.TRAVERSAL_CAPTION, "by_lag": figures.BY_LAG_CAPTION}
    captions |= {"topography": figures.TOPOGRAPHY_CAPTION, "history": figures.HISTORY_CAPTION}
    files = {name: run.folder.figures / f"{name}.png" for name in captions}
    metrics = run.metrics
    columns = {
        "held-out orbits": metrics,
        "training orbits": metrics["train"],
        "held-out, untrained": metrics["untrained"],
    }
    return Section(
        title=run.name,
        text=f"{metrics['epochs']} epochs in {metrics['seconds']:.0f} s on {metrics['device']}, "
        f"seed {metrics['seed']}; {metrics['sequences']} sequences evaluated.",
        table=table(columns),
        figures=[
            (files[name], caption) for name, caption in captions.items() if files[name].exists()
        ],
        settings=run.settings,
    )


def draw_figures(run: Finished, held_out: Sequences) -> None:
    """Everything there is to see of a run, into its folder."""
    make_folder(run.folder.figures)
    window = run.metrics["traversal"]["window"]
    drawn = {
        "traversal": figures.traversals(run.model, examples(held_out), held_out.names, window),
        "by_lag": figures.by_lag({run.name: run.metrics}),
        "topography": figures.topography(run.model.topography, held_out.frames),
        "history": figures.history(run.folder.records()),
    }
    for name, figure in drawn.items():
        figures.save(figure, run.folder.figures / f"{name}.png")


def examples(held_out: Sequences, each: int = 1) -> Batch:
    """The sequences that figures show: ``each`` of every factor, always the same."""
    shown = held_out.balanced(each, seed=1)
    return next(shown.batches(len(shown)))


def data_of(path: Path, settings: dict[str, Any]) -> tuple[Sequences, Sequences]:
    """The data of a run, made again from what it recorded."""
    data = dict(settings.get("data") or {})
    if data.get("kind") not in DATA:
        raise BadInput(
            f"{path} was trained on sequences of your own: in Python, use "
            f"tc.metrics.evaluate(tc.load({str(path)!r}), x)"
        )
    return DATA[data.pop("kind")](**data).load()
