"""What every recipe has: a name, data, training, and settings that can be changed by name."""

from __future__ import annotations

import ast
import functools
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field, fields, is_dataclass, replace
from typing import Any, Self

from topocaps.data.sequences import SequenceSet
from topocaps.errors import BadInput
from topocaps.models.base import GenerativeModel
from topocaps.recipes import fingerprint
from topocaps.recipes.data import SOME, Data, Mnist
from topocaps.training import Training
from topocaps.training.run import describe_training


@dataclass(frozen=True, kw_only=True)
class BaseRecipe(ABC):
    """Data, training, and what a paper claims for them; what is trained says the recipe's kind."""

    name: str
    about: str
    data: Data
    training: Training
    claims: Mapping[str, Any] = field(default_factory=dict)
    edition: str = "topocaps"  #: which paper's settings these are; this library's own by default
    start: BaseRecipe | None = None  #: whose weights, from the same seed, training starts from

    @abstractmethod
    def build(self, frame_shape: tuple[int, ...], seed: int) -> GenerativeModel:
        """The model, initialised from ``seed``."""

    def check(self, sequences: SequenceSet) -> None:
        """Refuse sequences that the settings do not suit, before anything is built."""
        return

    def shortened(self, epochs: int) -> Self:
        """To try it out: fewer epochs, and no more sequences measured than need be."""
        data, start = self.data, self.start
        if isinstance(data, Mnist) and data.evaluated is None:
            data = replace(data, evaluated=SOME)
        training = replace(self.training, epochs=epochs)
        return replace(self, data=data, training=training, start=start and start.shortened(epochs))

    def settings(self) -> dict[str, Any]:
        """What a run folder records beside the model, the training and the seed."""
        return {
            "name": self.name,
            "data": {"kind": type(self.data).__name__, **asdict(self.data)},
            "claims": dict(self.claims),
            "edition": self.edition,
            **({} if self.start is None else {"start": self.start._trained()}),
        }

    def _trained(self) -> dict[str, Any]:
        return {"name": self.name, "training": describe_training(self.training)}

    def describe(self) -> dict[str, Any]:
        """The whole recipe as plain data."""
        return {**self.settings(), **self._trained(), "about": self.about}

    @abstractmethod
    def identity(self) -> dict[str, Any]:
        """Return all settings that decide the result of a run, under keys that never change.

        The seed, the recipe's name, its description and its claims do not belong to them.
        """
        return {
            "data": self.data.identity(),
            "training": fingerprint.of_training(self.training),
            **({} if self.start is None else {"start": self.start.identity()}),
        }

    @property
    def fingerprint(self) -> str:
        """The digest of ``identity``."""
        return fingerprint.fingerprint(self.identity())

    def change(self, changes: Iterable[str]) -> Self:
        """With ``key=value`` settings; a key is a path such as topography.window, or its end.

        What its start has alike stays alike, but for how it is trained: there, only the epochs.

        >>> from topocaps.recipes import find
        >>> find("sprites/tvae").change(["window=11", "lr=1e-3"]).topography.window
        11
        """
        recipe = self
        for text in changes:
            key, equals, value = text.partition("=")
            if not equals:
                raise BadInput(f"a setting is key=value, not {text!r}")
            recipe = _changed(recipe, _find(recipe, key.strip()), _parse(value.strip()))
        return recipe


_FIXED = ("name", "about", "model", "claims", "edition", "start")


def _keys(value: Any, path: tuple[str, ...] = ()) -> list[tuple[str, ...]]:
    """The paths of all settings that can be changed."""
    found = []
    for f in fields(value):
        inner = getattr(value, f.name)
        if path or f.name not in _FIXED:
            here = (*path, f.name)
            found += _keys(inner, here) if is_dataclass(inner) else [here]
    return found


def _find(recipe: BaseRecipe, key: str) -> tuple[str, ...]:
    wanted = tuple(key.split("."))
    keys = _keys(recipe)
    found = [path for path in keys if path[-len(wanted) :] == wanted]
    if len(found) != 1:
        known = ", ".join(".".join(path) for path in keys)
        raise BadInput(f"there is no setting {key!r}; there are {known}")
    return found[0]


def _changed(recipe: Any, path: tuple[str, ...], new: Any) -> Any:
    """A recipe with another setting, and its start with it."""
    start, shared = recipe.start, path[0] != "training" or path[-1] == "epochs"
    if start is not None and shared and _at(start, path) == _at(recipe, path):
        recipe = replace(recipe, start=_changed(start, path, new))
    return _replace_at(recipe, path, new)


def _at(value: Any, path: tuple[str, ...]) -> Any:
    return functools.reduce(getattr, path, value)


def _replace_at(value: Any, path: tuple[str, ...], new: Any) -> Any:
    name, *rest = path
    if rest:
        new = _replace_at(getattr(value, name), tuple(rest), new)
    try:
        return replace(value, **{name: new})
    except (TypeError, ValueError) as error:
        if isinstance(error, BadInput):
            raise
        raise BadInput(f"{name} cannot be {new!r}") from error


def _parse(text: str) -> Any:
    if text.lower() in ("true", "false", "none"):
        text = text.capitalize()
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError):
        return text
