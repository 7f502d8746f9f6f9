"""Run folders: the files of a run, its settings, and the state from which it resumes."""

from __future__ import annotations

import json
import platform
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy
import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from topocaps.errors import BadInput
from topocaps.io import make_folder, read_json, write_atomically, write_json, write_tensors
from topocaps.training.engine import Engine
from topocaps.training.migration import migrated
from topocaps.version import __version__

SCHEMA = 1
#: Settings that may change before a run is resumed.
DESCRIPTIVE = frozenset(("versions", "device", "products", "claims", "about", "edition"))
_BEST = "best."  # prefix of the weights of the best epoch
fcntl: Any = import_module("fcntl") if find_spec("fcntl") else None  # Windows has no fcntl


class _Inside:
    """Descriptor for the path of a file or folder inside a run folder."""

    def __init__(self, name: str) -> None:
        self.name = name

    def __get__(self, folder: RunFolder, owner: type[RunFolder]) -> Path:
        return folder.path / self.name


@dataclass(frozen=True)
class RunFolder:
    """The folder of a run, and the paths of its files."""

    path: Path

    recipe = _Inside("recipe.json")
    history = _Inside("metrics.jsonl")
    metrics = _Inside("metrics.json")
    weights = _Inside("weights.safetensors")
    state = _Inside("state/state.safetensors")
    failure = _Inside("failure.json")
    events = _Inside("events")  #: for TensorBoard
    figures = _Inside("figures")
    report = _Inside("report.html")

    def settings(self) -> dict[str, Any]:
        """Return the settings of the run, in the form of this version."""
        if not self.recipe.exists():
            raise BadInput(f"{self.path} is not a run folder: it has no {self.recipe.name}")
        return migrated(read_json(self.recipe))

    def records(self) -> list[dict[str, Any]]:
        """Return the record of every epoch."""
        try:
            records = [json.loads(line) for line in self.history.read_text().splitlines()]
        except (OSError, ValueError) as error:
            raise BadInput(f"{self.history} cannot be read: {error}") from error
        if not records or not all(isinstance(r, dict) and "seconds" in r for r in records):
            raise BadInput(f"{self.history} must have a record of every epoch, and has none")
        return records

    def write_records(self, records: Sequence[dict[str, Any]]) -> None:
        """Write the record of every epoch, replacing the file."""
        write_atomically(self.history, "".join(json.dumps(record) + "\n" for record in records))

    def begin(self, settings: dict[str, Any]) -> None:
        """Create the folder; if it exists, raise `BadInput` unless its settings are the same."""
        # converted to JSON and back, so that tuples compare equal to the lists of the file
        settings = json.loads(json.dumps({"schema": SCHEMA, **settings}))
        make_folder(self.path)
        if not self.recipe.exists():
            versions = {
                "topocaps": __version__,
                "torch": torch.__version__,
                "numpy": numpy.__version__,
                "python": platform.python_version(),
            }
            write_json(self.recipe, {**settings, "versions": versions})
            return
        before = read_json(self.recipe)
        changed = [
            f"{key.replace('digest', 'fingerprint of the data')} was {old}, is now {new}"
            for key, old, new in differences(migrated(before), migrated(settings))
            if DESCRIPTIVE.isdisjoint(key.split("."))
        ]
        if changed:
            raise BadInput(
                f"{self.path} holds a run with other settings ({'; '.join(changed[:3])}): "
                "choose another folder or remove it"
            )
        # an unfinished run that resumes with another precision of matrix products records both
        past, now = before.get("products"), settings.get("products")
        if past and now and not self.weights.exists() and past.split(", then ")[-1] != now:
            write_json(self.recipe, {**before, "products": f"{past}, then {now}"})

    @contextmanager
    def alone(self) -> Iterator[None]:
        """Lock the folder against other programs that train into it, if the system can."""
        with self.recipe.open() as file:
            if fcntl is not None:
                try:
                    fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                except BlockingIOError:
                    raise BadInput(
                        f"another run is training into {self.path}: wait, or choose another folder"
                    ) from None
                except OSError:  # a file system without locks
                    pass
            yield


def differences(old: Any, new: Any, path: str = "") -> list[tuple[str, Any, Any]]:
    """Return the key, the old and the new value of all settings that differ."""
    if isinstance(old, dict) and isinstance(new, dict):
        changed = []
        for key in sorted(old.keys() | new.keys()):
            changed += differences(old.get(key), new.get(key), f"{path}.{key}" if path else key)
        return changed
    return [] if old == new else [(path, old, new)]


@dataclass
class Progress:
    """The progress of a run: everything that it resumes from, except the state of its engine."""

    step: int = 0
    seconds: float = 0.0
    sums: dict[str, float] = field(default_factory=dict)  #: of the terms, over the current epoch
    history: list[dict[str, Any]] = field(default_factory=list)  #: a record for every epoch
    failed: str | None = None  #: the value that was not finite, and the step
    stopped: bool = False  #: patience has run out; the stack still trains the model
    best: dict[str, Tensor] = field(default_factory=dict)  #: weights of the best epoch, if kept


def save_states(folders: Sequence[RunFolder], progress: Sequence[Progress], engine: Engine) -> None:
    """Write the state of each model into its folder, if there are folders.

    From its state, a model resumes alone or with others. A failed model keeps its last state.
    """
    for place, (folder, done) in enumerate(zip(folders, progress, strict=False)):
        if not done.failed:
            plain = dict(vars(done))
            best = {f"{_BEST}{name}": value for name, value in plain.pop("best").items()}
            metadata = {"progress": json.dumps(plain)}
            write_tensors(folder.state, engine.state(place) | best, metadata)


def restore_states(folders: Sequence[RunFolder], engine: Engine) -> list[Progress]:
    """Restore the state of every model in the engine, and return the progress of each."""
    paths = [folder.state for folder in folders]
    states = [_read(path) for path in paths]
    progress = [done for done, _ in states]
    if len({done.step for done in progress}) > 1:
        raise BadInput("the runs of this stack are at different steps: resume each by itself")
    for place, (path, (_, tensors)) in enumerate(zip(paths, states, strict=True)):
        shapes = {name: value.shape for name, value in tensors.items()}
        expected = {name: value.shape for name, value in engine.state(place).items()}
        if shapes.get("rng") != expected["rng"]:
            raise BadInput(
                f"{path} was saved on another kind of device (CPU or GPU): resume it on that kind"
            )
        if any(shapes.get(name) != shape for name, shape in expected.items()):
            raise BadInput(
                f"{path} is the state of a model with other networks: use the networks of the run, "
                "or another folder"
            )
        engine.restore(place, tensors)
    return progress


def step_of(folder: RunFolder) -> int:
    """Return the step after which the state of a run was saved; 0 if there is none."""
    return _read(folder.state)[0].step if folder.state.exists() else 0


def _read(path: Path) -> tuple[Progress, dict[str, Tensor]]:
    try:
        with safe_open(path, framework="pt") as file:
            progress = Progress(**json.loads(file.metadata()["progress"]))
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    except (SafetensorError, KeyError, TypeError, ValueError) as error:
        raise BadInput(
            f"{path} is not a state that this version can resume ({error}): remove it to train "
            "from the start"
        ) from error
    for name in [name for name in tensors if name.startswith(_BEST)]:
        progress.best[name.removeprefix(_BEST)] = tensors.pop(name)
    return progress, tensors
