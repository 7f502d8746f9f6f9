"""Settings of a recipe, changed by ``key=value``."""

from __future__ import annotations

import ast
import functools
from dataclasses import fields, is_dataclass, replace
from typing import Any

from topocaps.errors import BadInput


def changed(recipe: Any, text: str) -> Any:
    """Return a recipe with one ``key=value`` setting changed.

    The key is a path such as ``topography.window``, or the end of one. A setting that the recipe's
    start shares changes there too. Of the start's training, only the epochs do.
    """
    key, equals, value = text.partition("=")
    if not equals:
        raise BadInput(f"a setting is key=value, not {text!r}")
    return _changed(recipe, _find(recipe, key.strip()), _parse(value.strip()))


_FIXED = ("name", "about", "model", "claims", "edition", "start")


def _keys(value: Any, path: tuple[str, ...] = ()) -> list[tuple[str, ...]]:
    """The paths of all settings that can be changed."""
    found = []
    for f in fields(value):
        inner = getattr(value, f.name)
        if path or f.name not in _FIXED:
            here = (*path, f.name)
            found += (_keys(inner, here) if is_dataclass(inner) else []) or [here]
    return found


def _find(recipe: Any, key: str) -> tuple[str, ...]:
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
