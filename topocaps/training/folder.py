"""A run's folder: where its files are, and whether it holds a run of the same settings."""

from __future__ import annotations

import json
import math
import platform
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy
import torch

from topocaps.errors import BadInput
from topocaps.files import make_folder, read_json, write_json
from topocaps.networks import paper_widths
from topocaps.version import __version__

SCHEMA = 1
fcntl: Any = import_module("fcntl") if find_spec("fcntl") else None  # Windows has none


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
    def failure(self) -> Path:
        return self.path / "failure.json"

    @property
    def events(self) -> Path:
        """For TensorBoard."""
        return self.path / "events"

    @property
    def figures(self) -> Path:
        return self.path / "figures"

    @property
    def report(self) -> Path:
        return self.path / "report.html"

    def settings(self) -> dict[str, Any]:
        """Return what the run was told to do, in the form of this version."""
        if not self.recipe.exists():
            raise BadInput(f"{self.path} is not a run folder: it has no {self.recipe.name}")
        return migrated(read_json(self.recipe))

    def records(self) -> list[dict[str, Any]]:
        """A record for every epoch."""
        try:
            found = [json.loads(line) for line in self.history.read_text().splitlines()]
        except (OSError, ValueError) as error:
            raise BadInput(f"{self.history} cannot be read: {error}") from error
        if not found or not all(isinstance(one, dict) and "seconds" in one for one in found):
            raise BadInput(f"{self.history} has no record of any epoch")
        return found

    def begin(self, settings: dict[str, Any]) -> None:
        """Make the folder, or find in it a run of the same settings to go on with."""
        # what is written is compared with what was written: as JSON has it
        settings = json.loads(json.dumps({"schema": SCHEMA, **settings}))
        if self.recipe.exists():
            make_folder(self.state.parent)
            before = read_json(self.recipe)
            changed = [
                f"{key.replace('digest', 'fingerprint of the data')} was {old}, is now {new}"
                for key, old, new in _differences(migrated(before), migrated(settings))
                if _TOLD.isdisjoint(key.split("."))
            ]
            if changed:
                raise BadInput(
                    f"{self.path} holds a run with other settings ({'; '.join(changed[:3])}): "
                    "choose another folder or remove it"
                )
            self._record_products(before, settings.get("products"))
            return
        make_folder(self.path)
        versions = {
            "topocaps": __version__,
            "torch": torch.__version__,
            "numpy": numpy.__version__,
            "python": platform.python_version(),
        }
        make_folder(self.state.parent)
        write_json(self.recipe, {**settings, "versions": versions})

    @contextmanager
    def alone(self) -> Iterator[None]:
        """Nobody else trains into the folder meanwhile, where the system can tell."""
        with self.recipe.open() as file:
            if fcntl is not None:
                try:
                    fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                except BlockingIOError:
                    raise BadInput(
                        f"{self.path} is being trained into already: wait, or choose another folder"
                    ) from None
                except OSError:  # a file system without locks
                    pass
            yield

    def _record_products(self, before: dict[str, Any], now: str | None) -> None:
        """A run that goes on where products are made otherwise says so, if it is not finished."""
        done = before.get("products")
        if done and now and not self.weights.exists() and done.split(", then ")[-1] != now:
            write_json(self.recipe, {**before, "products": f"{done}, then {now}"})


#: of a run, what does not change it
_TOLD = {"versions", "device", "products", "claims", "about", "edition"}


def migrated(settings: dict[str, Any]) -> dict[str, Any]:
    """Return the settings of a run folder with the recipe's fields that older folders lack.

    An older folder records them in the configuration of the model alone, and of a recipe's start
    only its name and training.
    """
    model = settings.get("model")
    if not isinstance(model, dict) or "name" not in settings:
        return settings  # no recipe of the library
    if model.get("kind") == "PartWhole":
        capsules = {key: model[key] for key in model if key not in ("kind", "frame_shape")}
        fields: dict[str, Any] = {"capsules": capsules, "probed": None}
        of_start = {"capsules": {**capsules, "poses_are": "delta"}}  # no other start was recorded
    elif "topography" in model:
        fields, of_start = _fields_of_model(model), {}
    else:
        return settings
    full = {"about": "", **fields, **settings}
    if "start" in full:
        shared = {key: full[key] for key in (*fields, "about", "data", "claims", "edition")}
        full["start"] = {**shared, **of_start, "model": model["kind"], **full["start"]}
    return full


def _fields_of_model(model: dict[str, Any]) -> dict[str, Any]:
    """Return the fields of a topographic model's recipe, from the model's configuration."""
    topography = model["topography"]
    latents = topography["capsules"] * math.prod(topography["shape"])
    hidden = model.get("hidden")
    if hidden == list(paper_widths(tuple(model["frame_shape"]), latents)[1:]):
        hidden = None
    return {
        "unseen_window": None,
        "rate": 1.0,
        "closed": topography.get("cyclic", True),
        "topography": topography,
        "hidden": hidden,
        "convolutional": model.get("networks") == "convolutional",
        "mu": model.get("mu"),
        "centred": model.get("centred", False),
        "learned": model.get("learned", "nothing"),
        "sparsity": model.get("sparsity", 0.0),
        "epsilon": model.get("epsilon", 0.0),
        "norm": model.get("norm", "none"),
        "encoder_fan": model.get("encoder_fan", "in"),
        "decoder_fan": model.get("decoder_fan", "in"),
        "likelihood": model["likelihood"],
    }


def _differences(old: Any, new: Any, path: str = "") -> list[tuple[str, Any, Any]]:
    if isinstance(old, dict) and isinstance(new, dict):
        found = []
        for key in sorted(old.keys() | new.keys()):
            found += _differences(old.get(key), new.get(key), f"{path}.{key}" if path else key)
        return found
    return [] if old == new else [(path, old, new)]
