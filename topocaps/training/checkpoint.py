"""Everything a run needs to go on as if it had not stopped, in one file without a pickle."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor

from topocaps.errors import BadInput
from topocaps.files import write_atomically
from topocaps.training.engine import Engine


@dataclass
class Progress:
    """Where a run stands, apart from its tensors."""

    step: int = 0
    seconds: float = 0.0
    sums: dict[str, float] = field(default_factory=dict)  # of the terms, over this epoch so far
    history: list[dict[str, float]] = field(default_factory=list)  # a record for every epoch


def save_states(paths: Sequence[Path], progress: Sequence[Progress], engine: Engine) -> None:
    """A file for each member: it can go on alone as well as in the stack it was trained in."""
    stack = engine.stack
    for member, path in enumerate(paths):
        tensors: dict[str, Tensor] = {"rng": engine.randomness.state(member)}
        for name, parameter in stack.model.named_parameters():
            tensors[f"model.{name}"] = stack.of_member(parameter, member)
            for key, value in engine.optimiser.state.get(parameter, {}).items():
                tensors[f"optimiser.{key}.{name}"] = stack.of_member(value, member)
        tensors = {name: value.detach().cpu().contiguous() for name, value in tensors.items()}
        metadata = {"progress": json.dumps(vars(progress[member]))}
        write_atomically(path, save(tensors, metadata=metadata))


@torch.no_grad()
def restore_states(paths: Sequence[Path], engine: Engine) -> list[Progress]:
    """Put everything back, in place (a graph knows where things are); where each member stands."""
    stack = engine.stack
    read = [_read(path) for path in paths]
    progress = [p for p, _ in read]
    if len({p.step for p in progress}) > 1:
        raise BadInput("the runs of this stack stand at different steps: go on with each by itself")
    for member, (path, (_, tensors)) in enumerate(zip(paths, read, strict=True)):
        names = {f"model.{name}" for name, _ in stack.model.named_parameters()}
        if not names | {"rng"} <= tensors.keys():
            raise BadInput(f"{path} is the state of a model with other networks")
        engine.randomness.restore(member, tensors["rng"])
        for name, parameter in stack.model.named_parameters():
            stack.of_member(parameter, member).copy_(tensors[f"model.{name}"])
    for name, parameter in stack.model.named_parameters():
        for key in [k for k in read[0][1] if k.startswith("optimiser.")]:
            _, moment, of = key.split(".", 2)
            if of == name:
                parts = [tensors[key].to(parameter.device) for _, tensors in read]
                alone = len(parts) == 1 or moment == "step"  # steps are counted once for all
                value = parts[0] if alone else torch.stack(parts)
                held = engine.optimiser.state[parameter]
                held[moment] = held[moment].copy_(value) if moment in held else value
    return progress


def step_of(path: Path) -> int:
    """The step a state was saved after; 0 where there is none."""
    return _read(path)[0].step if path.exists() else 0


def _read(path: Path) -> tuple[Progress, dict[str, Tensor]]:
    try:
        with safe_open(path, framework="pt") as file:
            progress = Progress(**json.loads(file.metadata()["progress"]))
            return progress, {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    except (SafetensorError, KeyError, TypeError, ValueError) as error:
        raise BadInput(f"{path} is not a state this version can resume: {error}") from error
