"""A run and its folder; ``fit`` trains a model into one, ``load`` takes a model out of one."""

from __future__ import annotations

import json
import platform
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy
import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save

from topocaps.data.sequences import Sequences
from topocaps.errors import BadInput
from topocaps.files import make_folder, read_json, write_atomically, write_json
from topocaps.models import SequenceModel, build, check_values
from topocaps.training.checkpoint import Progress
from topocaps.training.loop import Training, train
from topocaps.training.watching import Watcher, on_terminal
from topocaps.version import __version__

SCHEMA = 1


@dataclass(frozen=True)
class RunFolder:
    """Where the files of a run are."""

    path: Path

    @property
    def recipe(self) -> Path:
        return self.path / "recipe.json"

    @property
    def history(self) -> Path:
        return self.path / "metrics.jsonl"

    @property
    def metrics(self) -> Path:
        return self.path / "metrics.json"

    @property
    def weights(self) -> Path:
        return self.path / "weights.safetensors"

    @property
    def state(self) -> Path:
        return self.path / "state" / "state.safetensors"

    @property
    def figures(self) -> Path:
        return self.path / "figures"

    @property
    def report(self) -> Path:
        return self.path / "report.html"

    def settings(self) -> dict[str, Any]:
        """What the run was told to do."""
        if not self.recipe.exists():
            raise BadInput(f"{self.path} is not a run folder: it has no {self.recipe.name}")
        return read_json(self.recipe)

    def records(self) -> list[dict[str, Any]]:
        """A record for every epoch."""
        return [json.loads(line) for line in self.history.read_text().splitlines()]

    def begin(self, settings: dict[str, Any]) -> None:
        """Make the folder, or find in it a run of the same settings to go on with."""
        # what is written is compared with what was written: as JSON has it
        settings = json.loads(json.dumps({"schema": SCHEMA, **settings}))
        if self.recipe.exists():
            before = read_json(self.recipe)
            changed = [
                f"{key} was {old}, is now {new}"
                for key, old, new in _differences(before, settings)
                if key.split(".")[0] not in ("versions", "device")
            ]
            if changed:
                raise BadInput(
                    f"{self.path} holds a run with other settings ({'; '.join(changed[:3])}): "
                    "choose another folder or remove it"
                )
            return
        make_folder(self.path)
        make_folder(self.state.parent)
        versions = {
            "topocaps": __version__,
            "torch": torch.__version__,
            "numpy": numpy.__version__,
            "python": platform.python_version(),
        }
        write_json(self.recipe, {**settings, "versions": versions})


@dataclass(frozen=True)
class Run:
    """A trained model, how its training went and, where it was asked for, its folder."""

    model: SequenceModel
    history: list[dict[str, Any]]
    seconds: float
    device: str
    folder: RunFolder | None


def fit(
    model: SequenceModel,
    sequences: Any,
    *,
    training: Training = Training(),  # noqa: B008 (frozen)
    epochs: int | None = None,
    batch: int | None = None,
    out: str | Path | None = None,
    seed: int = 0,
    device: str = "auto",
    watcher: Watcher | None = None,
    settings: dict[str, Any] | None = None,
) -> Run:
    """Train ``model`` on ``sequences``: an array (sequences, time, *frame), or ``Sequences``.

    ``epochs`` and ``batch`` are short for those of ``training``. With ``out``, a run folder is
    written, and the same call goes on where an unfinished one there was stopped. ``settings`` are
    recorded with the run.
    """
    sequences = Sequences.of(sequences)
    training = replace(
        training,
        epochs=training.epochs if epochs is None else epochs,
        batch=training.batch if batch is None else batch,
    )
    check(model, sequences)
    where = choose_device(device)
    folder = None if out is None else RunFolder(Path(out))
    if folder is not None:
        described = describe_training(training)
        folder.begin(
            {
                **(settings or {}),
                "model": model.config,
                "training": described,
                "seed": seed,
                "sequences": len(sequences),
                "device": describe_device(where),
            }
        )

    def on_epoch(all_progress: list[Progress]) -> None:
        if folder is not None:
            lines = "".join(json.dumps(record) + "\n" for record in all_progress[0].history)
            write_atomically(folder.history, lines)

    model.to(where)
    (progress,) = train(
        [model],
        sequences.to(where),
        training,
        seeds=[seed],
        states=[folder.state] if folder else [],
        watcher=watcher or on_terminal("training"),
        on_epoch=on_epoch,
    )
    if folder is not None:
        tensors = {k: v.detach().cpu().contiguous() for k, v in model.state_dict().items()}
        write_atomically(folder.weights, save(tensors))
        on_epoch([progress])
    return Run(model, progress.history, progress.seconds, describe_device(where), folder)


def load(run: str | Path, model: SequenceModel | None = None) -> SequenceModel:
    """The model of a finished run; ``model`` where its networks were your own."""
    folder = RunFolder(Path(run))
    settings = folder.settings()
    if not folder.weights.exists():
        raise BadInput(f"{run} is not finished: run the command that began it again to go on")
    if model is None:
        if settings.get("model") is None:
            raise BadInput(f"{run} has networks of your own: pass a model to load the weights into")
        model = build(settings["model"])
    try:
        model.load_state_dict(load_file(folder.weights))
    except (SafetensorError, RuntimeError) as error:
        reason = str(error).splitlines()[0]
        raise BadInput(f"{folder.weights} does not fit the model: {reason}") from error
    return model.eval()


def check(model: SequenceModel, sequences: Sequences) -> None:
    """Refuse, before anything is written, sequences that the model cannot be trained on."""
    images = sequences.images
    model.check(sequences.show(sequences.order[:1]).x)
    if images.is_floating_point():
        check_values(images, model.likelihood)


def choose_device(device: str) -> torch.device:
    """``auto`` is the GPU where there is one."""
    if device == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        where = torch.device(device)
        torch.empty(1, device=where)
    except (RuntimeError, AssertionError, NotImplementedError) as error:
        raise BadInput(
            f"device {device!r} cannot be used here: {str(error).splitlines()[0]}"
        ) from None
    return where


def describe_device(where: torch.device) -> str:
    if where.type == "cuda":
        return torch.cuda.get_device_name(where)
    return f"{where.type}, {torch.get_num_threads()} threads"


def describe_training(training: Training) -> dict[str, Any]:
    """Settings as plain data, the optimiser with its name."""
    optimiser = {"kind": type(training.optimiser).__name__, **asdict(training.optimiser)}
    return {**asdict(training), "optimiser": optimiser}


def _differences(old: Any, new: Any, path: str = "") -> list[tuple[str, Any, Any]]:
    if isinstance(old, dict) and isinstance(new, dict):
        found = []
        for key in sorted(old.keys() | new.keys()):
            found += _differences(old.get(key), new.get(key), f"{path}.{key}" if path else key)
        return found
    return [] if old == new else [(path, old, new)]
