"""Everything a run needs to go on as if it had not stopped, in one file without a pickle."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor

from topocaps.errors import BadInput
from topocaps.io import write_atomically
from topocaps.training.engine import Engine

_BEST = "best."  # before the names of weights that are kept


@dataclass
class Progress:
    """Where a run stands, apart from what its engine holds."""

    step: int = 0
    seconds: float = 0.0
    sums: dict[str, float] = field(default_factory=dict)  # of the terms, over this epoch so far
    history: list[dict[str, Any]] = field(default_factory=list)  # a record for every epoch
    failed: str | None = None  # since when and why it is no longer finite
    stopped: bool = False  # it had no more patience, and trains on only for others
    best: dict[str, Tensor] = field(default_factory=dict)  # weights of the best epoch, where kept


def save_states(paths: Sequence[Path], progress: Sequence[Progress], engine: Engine) -> None:
    """A file for each model: it can go on alone as well as in the company it was trained in.

    Of one that has failed, the last good state is kept.
    """
    for place, path in enumerate(paths):
        if not progress[place].failed:
            # clones: networks that share a module share its memory, which the format refuses
            told = dict(vars(progress[place]))
            kept = {f"{_BEST}{name}": value for name, value in told.pop("best").items()}
            tensors = {
                name: value.detach().cpu().clone(memory_format=torch.contiguous_format)
                for name, value in (engine.state(place) | kept).items()
            }
            write_atomically(path, save(tensors, metadata={"progress": json.dumps(told)}))


def restore_states(paths: Sequence[Path], engine: Engine) -> list[Progress]:
    """Put everything back; where each model stands."""
    read = [_read(path) for path in paths]
    progress = [p for p, _ in read]
    if len({p.step for p in progress}) > 1:
        raise BadInput("the runs of this stack stand at different steps: go on with each by itself")
    for place, (path, (_, tensors)) in enumerate(zip(paths, read, strict=True)):
        shapes = {name: value.shape for name, value in tensors.items()}
        if shapes.get("rng") != engine.state(place)["rng"].shape:
            raise BadInput(f"{path} was saved on another kind of device: go on there")
        wanted = {name: value.shape for name, value in engine.state(place).items()}
        if any(shapes.get(name) != shape for name, shape in wanted.items()):
            raise BadInput(f"{path} is the state of a model with other networks")
        engine.restore(place, tensors)
    return progress


def step_of(path: Path) -> int:
    """The step a state was saved after; 0 where there is none."""
    return _read(path)[0].step if path.exists() else 0


def _read(path: Path) -> tuple[Progress, dict[str, Tensor]]:
    try:
        with safe_open(path, framework="pt") as file:
            progress = Progress(**json.loads(file.metadata()["progress"]))
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
            for name in [name for name in tensors if name.startswith(_BEST)]:
                progress.best[name.removeprefix(_BEST)] = tensors.pop(name)
            return progress, tensors
    except (SafetensorError, KeyError, TypeError, ValueError) as error:
        raise BadInput(f"{path} is not a state this version can resume: {error}") from error
