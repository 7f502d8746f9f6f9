"""Checks of the settings of recipes and data, and changes by ``key=value``."""

from __future__ import annotations

import ast
import functools
from collections.abc import Callable
from dataclasses import fields, is_dataclass, replace
from typing import Any

from topocaps.errors import BadInput, whole_number
from topocaps.training.optimisers import Optimiser

#: A function of the name and the value of a setting. It returns the value to store, or raises
#: `BadInput`.
Check = Callable[[str, Any], Any]


def check_fields(settings: Any, **checks: Check) -> None:
    """Replace fields of a frozen dataclass by the values that their checks return."""
    for name, check in checks.items():
        object.__setattr__(settings, name, check(name, getattr(settings, name)))


def optional(check: Check) -> Check:
    """Return a check that also accepts None."""
    return lambda name, value: None if value is None else check(name, value)


def true_or_false(name: str, value: Any) -> bool:
    """Return ``value``, or raise `BadInput` if it is not a boolean."""
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
    """Raise `BadInput` if there are several hidden layers after convolutions."""
    if hidden is not None and len(hidden) > 1:
        raise BadInput(
            f"convolutional networks have at most one hidden layer, not {len(hidden)}: "
            "give a single width"
        )


def changed(recipe: Any, text: str) -> Any:
    """Return a recipe with one ``key=value`` setting changed.

    The key is a path such as ``topography.window``, or the end of a path. If ``recipe.start`` has
    the same value of the setting, it changes there as well. Settings of training change in
    ``recipe.start`` only if they are numbers of epochs.
    """
    key, equals, value = text.partition("=")
    if not equals:
        raise BadInput(f"a setting must have the form key=value, not {text!r}")
    return _changed(recipe, _find(recipe, key.strip()), _parse(value.strip()))


#: Fields of recipes that ``changed`` does not change.
_FIXED = ("name", "about", "model", "claims", "edition", "start")


def _keys(value: Any, path: tuple[str, ...] = ()) -> list[tuple[str, ...]]:
    """Return the paths of all settings that can be changed."""
    keys = []
    for f in fields(value):
        inner = getattr(value, f.name)
        if path or f.name not in _FIXED:
            key = (*path, f.name)
            inside = _keys(inner, key) if is_dataclass(inner) else []
            keys += [key, *inside] if isinstance(inner, Optimiser) else inside or [key]
    return keys


def _find(recipe: Any, key: str) -> tuple[str, ...]:
    """Return the path that is ``key``, or else the only one that ends in it."""
    ending = tuple(key.split("."))
    keys = _keys(recipe)
    if ending in keys:
        return ending
    matches = [path for path in keys if path[-len(ending) :] == ending]
    if not matches:
        raise BadInput(f"there is no setting {key!r}; there are {_listed(keys)}")
    if len(matches) > 1:
        raise BadInput(f"several settings end in {key!r}: give the path of one, {_listed(matches)}")
    return matches[0]


def _listed(paths: list[tuple[str, ...]]) -> str:
    return ", ".join(".".join(path) for path in paths)


def _changed(recipe: Any, path: tuple[str, ...], new: Any) -> Any:
    """Return a recipe with another value of a setting, and its start with the same change."""
    start, is_shared = recipe.start, path[0] != "training" or path[-1] == "epochs"
    if start is not None and is_shared and _value_at(start, path) == _value_at(recipe, path):
        recipe = replace(recipe, start=_changed(start, path, new))
    return _replace_at(recipe, path, new)


def _value_at(value: Any, path: tuple[str, ...]) -> Any:
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
