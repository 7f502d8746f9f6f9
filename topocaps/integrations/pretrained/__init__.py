"""Small trained models that ship with the package."""

from __future__ import annotations

from pathlib import Path

from topocaps.errors import BadInput
from topocaps.integrations.hub import CONFIG, from_pretrained
from topocaps.models.base import GenerativeModel

FOLDER = Path(__file__).parent


def names() -> list[str]:
    """Return the names of the models."""
    return sorted(path.parent.name for path in FOLDER.glob(f"*/{CONFIG}"))


def pretrained(name: str) -> GenerativeModel:
    """Load a model by name. Its README.md states how it was trained, and its metrics."""
    if name not in names():
        raise BadInput(f"there is no trained model {name!r}: choose from {', '.join(names())}")
    return from_pretrained(FOLDER / name)
