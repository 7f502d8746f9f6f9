"""Settings of recipes and of their data: how they are checked, and changed by ``key=value``."""

from __future__ import annotations

import ast
import functools
from collections.abc import Callable
from dataclasses import fields, is_dataclass, replace
from typing import Any

from topocaps.errors import BadInput, whole_number
from topocaps.training.optimisers import Optimiser

#: A function of a name and a value that returns the value as it is kept, or raises `BadInput`.
Check = Callable[[str, Any], Any]


def check_fields(settings: Any, **checks: Check) -> None:
    """Replace fields of a frozen dataclass by what their checks return."""
    for name, check in checks.items():
        object.__setattr__(settings, name, check(name, getattr(settings, name)))


def optional(check: Check) -> Check:
    """Return a check that also accepts None."""
    return lambda name, value: None if value is None else check(name, value)


def true_or_false(name: str, value: Any) -> bool:
    """Return ``value``, or raise `BadInput` if it is no boolean."""
    if not isinstance(value, bool):
        raise BadInput(f"{name} must be true or false, not {value!r}")
    return value


def widths(name: str, value: Any) -> tuple[int, ...]:
    """Return the widths of layers as a tuple; a number is the width of a single layer."""
    try:
        layers = value if isinstance(value, tuple | list) else (value,)
        return tuple(whole_number(name, width) for width in layers)
    except BadInput:
        raise BadInput(
            f"{name} must be a whole number of at least 1, or several such as 300,200, "
            f"not {value!r}"
        ) from None


def check_one_layer(hidden: tuple[int, ...] | None) -> None:
    """Refuse several hidden layers after convolutions."""
    if hidden is not None and len(hidden) > 1:
        raise BadInput("convolutional networks have at most one hidden layer")


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
            inside = _keys(inner, here) if is_dataclass(inner) else []
            found += [here, *inside] if isinstance(inner, Optimiser) else inside or [here]
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
