"""Everything a run needs to go on as if it had not stopped, in one file without a pickle."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor, nn

from topocaps.errors import BadInput
from topocaps.files import write_atomically


@dataclass
class Progress:
    """Where a run stands, apart from its tensors."""

    step: int = 0
    seconds: float = 0.0
    sums: dict[str, float] = field(default_factory=dict)  # of the terms, over this epoch so far
    history: list[dict[str, float]] = field(default_factory=list)  # a record for every epoch


def save_state(
    path: Path,
    progress: Progress,
    model: nn.Module,
    optimiser: torch.optim.Optimizer,
    generator: torch.Generator,
) -> None:
    """Weights, the optimiser's moments, every generator and the progress."""
    tensors: dict[str, Tensor] = {
        "rng.cpu": torch.get_rng_state(),
        "rng.data": generator.get_state(),
    }
    if torch.cuda.is_available():
        tensors["rng.cuda"] = torch.cuda.get_rng_state()
    for name, value in model.state_dict().items():
        tensors[f"model.{name}"] = value
    for name, parameter in model.named_parameters():
        for key, value in optimiser.state.get(parameter, {}).items():
            tensors[f"optimiser.{key}.{name}"] = value
    tensors = {name: value.detach().cpu().contiguous() for name, value in tensors.items()}
    metadata = {"progress": json.dumps(vars(progress))}
    write_atomically(path, save(tensors, metadata=metadata))


def restore_state(
    path: Path, model: nn.Module, optimiser: torch.optim.Optimizer, generator: torch.Generator
) -> Progress:
    """Put everything back; the progress is returned."""
    try:
        with safe_open(path, framework="pt") as file:
            progress = Progress(**json.loads(file.metadata()["progress"]))
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    except (SafetensorError, KeyError, TypeError, ValueError) as error:
        raise BadInput(f"{path} is not a state this version can resume: {error}") from error
    torch.set_rng_state(tensors["rng.cpu"])
    generator.set_state(tensors["rng.data"])
    if "rng.cuda" in tensors and torch.cuda.is_available():
        torch.cuda.set_rng_state(tensors["rng.cuda"])
    model.load_state_dict(
        {name: tensors[f"model.{name}"] for name in model.state_dict()}, strict=True
    )
    for name, parameter in model.named_parameters():
        moments: dict[str, Any] = {}
        for key, value in tensors.items():
            kind, _, rest = key.partition(".")
            moment, _, of = rest.partition(".")
            if kind == "optimiser" and of == name:
                moments[moment] = value if moment == "step" else value.to(parameter.device)
        if moments:
            optimiser.state[parameter] = moments
    return progress
