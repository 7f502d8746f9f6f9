"""Small models that come with the package, to play with before anything is trained."""

from __future__ import annotations

from pathlib import Path

from topocaps.errors import BadInput
from topocaps.generative import GenerativeModel
from topocaps.hub import CONFIG, from_pretrained

FOLDER = Path(__file__).parent


def names() -> list[str]:
    """Of the models there are."""
    return sorted(path.parent.name for path in FOLDER.glob(f"*/{CONFIG}"))


def pretrained(name: str) -> GenerativeModel:
    """One of them; what it is, how it was made and how well it does, says README.md beside it."""
    if name not in names():
        raise BadInput(f"there is no trained model {name!r}; there are {', '.join(names())}")
    return from_pretrained(FOLDER / name)
