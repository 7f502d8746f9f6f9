"""Checks of the settings of recipes and of their data."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from topocaps.errors import BadInput, whole_number

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
        raise BadInput(f"{name} must be widths such as 300,200, not {value!r}") from None


def check_one_layer(hidden: tuple[int, ...] | None) -> None:
    """Refuse several hidden layers after convolutions."""
    if hidden is not None and len(hidden) > 1:
        raise BadInput("convolutional networks have at most one hidden layer")
