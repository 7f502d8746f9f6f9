"""The command ``topocaps``."""

from __future__ import annotations

import json
import re
import runpy
import sys
from pathlib import Path
from typing import Annotated, Any, NoReturn

import typer
from rich.console import Console
from rich.table import Table

from topocaps.device import steady_arithmetic
from topocaps.errors import BadInput, Interrupted, NonFinite, TopocapsError
from topocaps.io import make_folder
from topocaps.papers.page import draw, write_page
from topocaps.papers.recipes import RECIPES, find
from topocaps.papers.reproduce import groups, missing, named, names
from topocaps.papers.reproduce import reproduce as run_tables
from topocaps.papers.results import Results
from topocaps.study import figures
from topocaps.study.data import OwnSequences
from topocaps.study.evaluation import evaluation_of
from topocaps.study.finished import Finished
from topocaps.study.fit import Choices, Kind, fit_own
from topocaps.study.report import compare
from topocaps.study.runs import Job, evaluate_run, run_jobs
from topocaps.study.side_by_side import side_by_side
from topocaps.version import __version__

app = typer.Typer(
    add_completion=False,
    no_args_is_help=True,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    help="Generative capsules: latent variables that move when the input moves.",
)

Device = Annotated[
    str,
    typer.Option(help="cpu, cuda, mps (Apple's GPU), or auto: cuda if it is available, else cpu."),
]
Data = Annotated[
    Path | None, typer.Option(help="Folder of MNIST's files, for recipes that need them.")
]
Patience = Annotated[
    int | None, typer.Option(help="Stop after this many epochs without a better bound.", min=1)
]
Seed = Annotated[int, typer.Option(help="Seed of initial weights, sequences and noise.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON, for scripts.")]


def _set(example: str) -> Any:
    return typer.Option("--set", help=f"key=value, such as {example}.")


@app.command()
def demo(
    out: Annotated[Path, typer.Option(help="Folder for the runs and the report.")] = Path(
        "runs/demo"
    ),
    device: Device = "auto",
) -> None:
    """Train a rolling VAE, a TVAE and a VAE of the same size on letters that turn, in minutes.

    The models then see 5 frames of letters that are new to them, and predict the other 10.

    Example: topocaps demo --out runs/demo
    """
    names_of_models = {"rolling VAE": "rolling", "TVAE": "tvae", "VAE": "vae"}
    recipes = {title: find(f"letters/{name}") for title, name in names_of_models.items()}
    _print_table(compare(side_by_side(recipes, out, device, _say)))
    pictures = out / "figures"
    for content, path in {
        "Five frames seen, ten predicted:": pictures / "predicted.png",
        "The same as an animation:": pictures / "animation.gif",
        "The report, in one file:": out / "report.html",
    }.items():
        _out.print(f"{content:34}{path}", soft_wrap=True)
    _out.print("Next: topocaps fit YOUR_CLIPS, or topocaps recipes", soft_wrap=True)


@app.command()
def train(
    recipe: Annotated[str, typer.Argument(help="A name from `topocaps recipes`.")],
    out: Annotated[Path | None, typer.Option(help="Run folder [runs/RECIPE].")] = None,
    epochs: Annotated[int | None, typer.Option(help="Epochs [those of the recipe].")] = None,
    patience: Patience = None,
    seed: Seed = 0,
    seeds: Annotated[
        int, typer.Option(help="Train this many models together, seeds from --seed on.", min=1)
    ] = 1,
    data: Data = None,
    device: Device = "auto",
    settings: Annotated[list[str] | None, _set("topography.window=11")] = None,
) -> None:
    """Train a recipe, evaluate it beside the untrained model, and write a run folder.

    Run the same command again to resume.

    Example: topocaps train sprites/tvae --epochs 5 --set window=11
    """
    changes = list(settings or []) + ([] if epochs is None else [f"training.epochs={epochs}"])
    changes += [] if patience is None else [f"training.patience={patience}"]
    chosen = find(recipe).change(changes)
    base = out or Path("runs") / recipe.replace("/", "-")
    folders = [base] if seeds == 1 else [base / f"seed-{seed + n}" for n in range(seeds)]
    jobs = [Job(chosen, folder, seed + n) for n, folder in enumerate(folders)]
    finished = list(run_jobs(jobs, data, device, _say))
    if finished:
        _print_table(compare(finished))
    for run in finished:
        _out.print(f"report: {run.folder.report}", soft_wrap=True)
    if failed := len(jobs) - len(finished):
        raise NonFinite(
            f"{failed} of {len(jobs)} runs did not stay finite: see failure.json in their folders"
        )


@app.command()
def fit(
    path: Annotated[str, typer.Argument(help="A video, an array (.npy, .npz, .h5) or a folder.")],
    out: Annotated[Path | None, typer.Option(help="Run folder [runs/fit-NAME].")] = None,
    frames: Annotated[
        int | None, typer.Option(help="Cut clips into windows of this length [24, if over 32].")
    ] = None,
    stride: Annotated[int | None, typer.Option(help="Frames from one window to the next.")] = None,
    size: Annotated[
        int | None, typer.Option(help="Height and width in pixels: frames become square.")
    ] = None,
    grey: Annotated[
        bool | None, typer.Option(help="Make frames grey, or keep their colour [grey if all are].")
    ] = None,
    layout: Annotated[str | None, typer.Option(help="Order of the axes, such as NTHWC.")] = None,
    skip_bad: Annotated[bool, typer.Option(help="Skip files that cannot be read.")] = False,
    closed: Annotated[
        bool, typer.Option(help="Sequences are cyclic: the first frame follows the last.")
    ] = False,
    model: Annotated[
        Kind | None, typer.Option(help="A rolling VAE, or the paper's TVAE [rolling].")
    ] = None,
    speeds: Annotated[
        str | None,
        typer.Option(help="Candidate velocities in sites per frame [-1,1]; rolling only."),
    ] = None,
    window: Annotated[
        int | None, typer.Option(help="Frames that share variances; TVAE only.")
    ] = None,
    epochs: Annotated[
        int | None, typer.Option(help="Epochs of 8,000 sequences [16; TVAE 18].", min=1)
    ] = None,
    patience: Patience = None,
    seed: Seed = 0,
    device: Device = "auto",
    settings: Annotated[list[str] | None, _set("capsules=20")] = None,
) -> None:
    """Read your own sequences, choose a model, train it and write a report.

    Run the same command again to resume.

    Example: topocaps fit clips/ --size 32 --grey
    """
    data = OwnSequences(path, frames, stride, size, grey, layout, skip_bad)
    out = out or Path("runs") / f"fit-{Path(path).resolve().stem}"
    candidates = None if speeds is None else _numbers(speeds)
    changes = tuple(settings or ())
    try:
        choices = Choices(
            model, epochs=epochs, patience=patience, closed=closed, window=window,
            speeds=candidates, changes=changes,
        )  # fmt: skip
        run = fit_own(
            data, out, choices, seed=seed, device=device, say=lambda line: _say(_with_options(line))
        )
    except BadInput as error:
        raise BadInput(_with_options(str(error))) from None
    _print_table(compare([run]))
    for remark in evaluation_of(run.model).remarks(run.metrics):
        _out.print(remark, soft_wrap=True)
    _out.print(f"report: {run.folder.report}", soft_wrap=True)


def _numbers(text: str) -> tuple[float, ...]:
    """Return the numbers of an option such as -1,1."""
    try:
        return tuple(float(number) for number in text.split(","))
    except ValueError:
        raise BadInput(f"--speeds must be numbers such as -1,1, not {text!r}") from None


def _with_options(sentence: str) -> str:
    """Return the sentence with Python's arguments as options: size=64 becomes --size 64."""

    def option(argument: re.Match[str]) -> str:
        name, value = argument[1], argument[2]
        if name == "grey":
            return "--no-grey" if value == "False" else "--grey"
        return f"--{name}" + (f" {value}" if value else "")

    sentence = re.sub(r"\b(size|frames|stride|grey|layout|model)=(?:'?(\w+)'?)?", option, sentence)
    return re.sub(r"(?<![.\w])skip_bad\b", "--skip-bad", sentence)


@app.command()
def evaluate(
    run: Annotated[Path, typer.Argument(help="A run folder.")],
    as_json: AsJson = False,
    data: Data = None,
    device: Device = "auto",
) -> None:
    """Evaluate a run again, on held-out and training data, beside the untrained model.

    Example: topocaps evaluate runs/demo/tvae --json
    """
    finished = evaluate_run(run, device, data)
    if as_json:
        print(finished.folder.metrics.read_text(), end="")
    else:
        _print_table(compare([finished]))


@app.command()
def traverse(
    run: Annotated[Path, typer.Argument(help="A run folder.")],
    out: Annotated[
        Path | None, typer.Option(help="The picture [RUN/figures/traversal.png].")
    ] = None,
    each: Annotated[int, typer.Option(help="Sequences to draw for each factor.", min=1)] = 1,
    data: Data = None,
) -> None:
    """Draw held-out sequences beside the frames that a model decodes from rolled latents.

    Example: topocaps traverse runs/demo/tvae --each 3 --out traversals.png
    """
    finished = Finished.open(run)
    held_out = finished.recipe.data.load(data).held_out
    figure = evaluation_of(finished.model).traversals(finished, held_out, each)
    path = out or finished.folder.figures / "traversal.png"
    if path.is_dir():
        raise BadInput(f"{path} is a folder: name a file in it, such as {path / 'traversal.png'}")
    make_folder(path.parent)
    figures.save(figure, path)
    _out.print(str(path), soft_wrap=True)


@app.command()
def reproduce(
    chosen: Annotated[
        list[str],
        typer.Argument(
            metavar="NAME",
            help=f"Any of {', '.join(names())}. Groups: {', '.join(groups())}, all.",
        ),
    ],
    epochs: Annotated[int | None, typer.Option(help="Epochs of a short trial.")] = None,
    seeds: Annotated[
        int | None, typer.Option(help="Seeds of each model [the number of its table].", min=1)
    ] = None,
    out: Annotated[
        Path | None, typer.Option(help="Folder of results [results; results-short with --epochs].")
    ] = None,
    runs: Annotated[
        Path | None, typer.Option(help="Folder of runs [runs/reproduce; another with --epochs].")
    ] = None,
    page_only: Annotated[
        bool, typer.Option("--page-only", help="Write the page of stored results; run nothing.")
    ] = False,
    data: Data = None,
    device: Device = "auto",
) -> None:
    """Train the missing runs of the papers' tables, and write our numbers beside theirs.

    Tables that are named together are trained together, which takes less time on a GPU. With
    --epochs, runs are short trials, and their results are stored apart from those of full runs.

    Example: topocaps reproduce table1 --epochs 1 --seeds 1 --data mnist
    """
    short = epochs is not None
    folder = out or Path("results-short" if short else "results")
    default = f"reproduce-short/{epochs}-epochs" if short else "reproduce"
    runs = runs or Path("runs") / default
    trained_together, results = named(chosen), Results(folder, short)
    for tables in trained_together:
        for name in tables:  # refuse results of other settings before training
            missing(name, results, runs, epochs, seeds)
    if page_only:
        results.check()
        draw(results)
        _out.print(str(write_page(results)), soft_wrap=True)
        return
    for tables in trained_together:
        page = run_tables(tables, folder, runs, epochs, seeds, data, device, _say)
    _out.print(str(page), soft_wrap=True)


@app.command()
def recipes(as_json: AsJson = False) -> None:
    """List the recipes.

    Example: topocaps recipes --json
    """
    if as_json:
        print(json.dumps({name: recipe.to_json() for name, recipe in RECIPES.items()}, indent=2))
        return
    for name, recipe in RECIPES.items():
        _out.print(f"{name:34} {recipe.about}", highlight=False, soft_wrap=True)


@app.command()
def bench(as_json: AsJson = False) -> None:
    """Compare the speed of the engine with a plain reference, on this machine's CPU and GPU.

    Example: topocaps bench --json > mine.json
    """
    file = Path(__file__).parents[1] / "benchmarks" / "engine.py"
    if not file.exists():
        raise BadInput(
            "bench needs the reference implementation in the source tree: clone the project "
            "and install it with pip install -e ."
        )
    rows = []
    for row in runpy.run_path(str(file))["rows"]():
        rows.append(row)
        _say(f"{row['name']}: {row['ratio']} times as fast")
        if as_json:  # row by row, so that an interrupted command has printed its rows
            print("[" if len(rows) == 1 else ",", json.dumps(row, indent=2), flush=True)
    if as_json:
        print("]")
        return
    cells = [
        [r["name"], f"{r['ours_s'] * 1e3:.3f}", f"{r['reference_s'] * 1e3:.3f}",
         f"{r['ratio']:.1f}", r["device"]]
        for r in rows
    ]  # fmt: skip
    _print_table([["", "ours, ms", "reference, ms", "ratio", "device"], *cells])


def _version(wanted: bool) -> None:
    if wanted:
        print(f"topocaps {__version__}")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Show and exit.")
    ] = False,
) -> None: ...


_out = Console(markup=False, width=None if sys.stdout.isatty() else 160)


def _say(line: str) -> None:
    Console(stderr=True).print(line, markup=False, highlight=False, soft_wrap=True)


def _print_table(rows: list[list[str]]) -> None:
    header, *body = rows
    table = Table(box=None, pad_edge=False, padding=(0, 2))
    for n, name in enumerate(header):
        table.add_column(name, justify="right" if n else "left", no_wrap=True)
    for cells in body:
        table.add_row(*cells)
    _out.print(table)


def main() -> None:
    """Run the command and exit: 0 is success, 2 a user's mistake, 1 any other error.

    An interruption exits with 130. Errors are printed as one line.
    """
    try:
        with steady_arithmetic():
            code = app(sys.argv[1:] or ["--help"], standalone_mode=False)
    except (Interrupted, KeyboardInterrupt) as stopped:
        _fail(str(stopped) or "interrupted", 130)
    except BadInput as error:
        _fail(error, 2)
    except (TopocapsError, OSError) as error:
        _fail(error, 1)
    except Exception as error:
        # Errors in the options are of click, or of the copy of it in newer versions of Typer.
        describe = getattr(error, "format_message", None)
        if describe is None:
            raise
        message = describe().replace("Value error, ", "")  # a prefix of pydantic's messages
        command = getattr(getattr(error, "ctx", None), "command_path", "topocaps")
        _fail(f"{message} See {command} --help".strip(), getattr(error, "exit_code", 2))
    sys.exit(code if isinstance(code, int) else 0)


def _fail(message: object, code: int) -> NoReturn:
    _say(f"topocaps: {message}")
    sys.exit(code)
