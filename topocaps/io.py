"""Atomic files of text, JSON and weights; folders; the cache."""

from __future__ import annotations

import contextlib
import json
import math
import os
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save
from torch import Tensor, nn

from topocaps.errors import BadInput


def write_atomically(path: Path, content: bytes | str) -> None:
    """Write a temporary file and rename it to ``path``, so that no reader sees half a file."""
    content = content.encode() if isinstance(content, str) else content
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(content)
        os.chmod(temporary, 0o644)
        os.replace(temporary, path)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(temporary)
        raise


def write_json(path: Path, value: Any) -> None:
    """Write JSON; numbers that are not finite become null, as JSON has no other form for them."""
    write_atomically(path, json.dumps(_finite(value), indent=2, allow_nan=False) + "\n")


def read_json(path: Path) -> Any:
    """Return the value in a JSON file."""
    try:
        return json.loads(path.read_text())
    except OSError as error:
        raise BadInput(f"cannot read {path}: {error.strerror}") from error
    except ValueError as error:
        raise BadInput(f"{path} is not JSON: {error}") from error


def write_tensors(path: Path, tensors: Mapping[str, Tensor], metadata: dict[str, str]) -> None:
    """Write tensors as safetensors."""
    # clones: safetensors refuses tensors that share memory, as those of a shared module do
    clones = {
        name: value.detach().cpu().clone(memory_format=torch.contiguous_format)
        for name, value in tensors.items()
    }
    write_atomically(path, save(clones, metadata=metadata))


def write_weights(path: Path, module: nn.Module) -> None:
    """Write the state of a module as safetensors."""
    write_tensors(path, module.state_dict(), {"format": "pt"})


def read_weights(path: Path, module: nn.Module) -> None:
    """Load weights that ``write_weights`` wrote into a module of the same architecture."""
    try:
        module.load_state_dict(load_file(path))
    except (OSError, SafetensorError, RuntimeError) as error:
        reason = str(error).splitlines()[0]
        raise BadInput(f"{path} does not fit the model: {reason}") from error


def cache_folder() -> Path:
    """Return ``$TOPOCAPS_CACHE`` if it is set, else the folder topocaps in the user's cache."""
    if folder := os.environ.get("TOPOCAPS_CACHE"):
        return Path(folder)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path("~/.cache").expanduser()) / "topocaps"


def make_folder(path: Path) -> Path:
    """Make a folder if there is none, and raise `BadInput` if files cannot be written to it."""
    try:
        path.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=path):
            pass
    except OSError as error:
        raise BadInput(f"cannot write to the folder {path}: {error.strerror}") from error
    return path


def _finite(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value
