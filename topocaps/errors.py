"""Errors of the package, checks of arguments, and numbers in messages."""

from __future__ import annotations

import importlib
import math
import operator
from collections.abc import Callable
from enum import StrEnum
from numbers import Real
from typing import Any, TypeVar

Kind = TypeVar("Kind", bound=StrEnum)


class TopocapsError(Exception):
    """Anything this package refuses or cannot go on with."""


class BadInput(TopocapsError, ValueError):
    """A user's mistake: a shape, a value, a name or a folder that cannot be used."""


def whole_number(name: str, value: Any) -> int:
    """Return ``value`` as a whole number of at least 1, or raise `BadInput` about ``name``."""
    try:
        number = operator.index(value)
    except TypeError:
        number = 0
    if number < 1 or isinstance(value, bool):
        raise BadInput(f"{name} must be a whole number of at least 1, not {value!r}")
    return number


def one_of(kind: type[Kind], name: str, value: Any) -> Kind:
    """Return ``value`` as one of a kind, or raise `BadInput` about ``name``."""
    try:
        return kind(value)
    except ValueError:
        known = ", ".join(kind)
        raise BadInput(f"{name} must be one of {known}, not {value!r}") from None


def positive(name: str, value: Any) -> float:
    """Return ``value`` as a finite number above 0, or raise `BadInput` about ``name``."""
    return _finite(name, value, "a number above 0", lambda number: number > 0)


def non_negative(name: str, value: Any) -> float:
    """Return ``value`` as a finite number of at least 0, or raise `BadInput` about ``name``."""
    return _finite(name, value, "a number of at least 0", lambda number: number >= 0)


def finite_number(name: str, value: Any) -> float:
    """Return ``value`` as a finite number, or raise `BadInput` about ``name``."""
    return _finite(name, value, "a finite number", lambda number: True)


def _finite(name: str, value: Any, kind: str, accepts: Callable[[float], bool]) -> float:
    number = float(value) if isinstance(value, Real) and not isinstance(value, bool) else math.nan
    if not (math.isfinite(number) and accepts(number)):
        raise BadInput(f"{name} must be {kind}, not {value!r}")
    return number


class NonFinite(TopocapsError, ArithmeticError):
    """Training met a value that is not finite; names the term and the step."""


class Interrupted(TopocapsError):
    """Training was stopped by the user after it had saved its state."""


def optional(module: str, needs: str, install: str) -> Any:
    """Import a module of an optional package, or raise `BadInput` that says how to install it.

    Args:
        needs: what needs which package, the beginning of the message.
        install: what ``pip install`` is given.
    """
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise BadInput(f"{needs}: pip install {install}") from error


def check_seed(seed: int) -> None:
    """Refuse what generators do not take."""
    if not 0 <= seed < 2**63:
        raise BadInput(f"a seed is a whole number from 0 to 2^63, not {seed}")


def counted(n: int, noun: str) -> str:
    """Return a number with its noun, in the plural unless ``n`` is 1.

    >>> counted(1, "epoch"), counted(2000, "frame")
    ('1 epoch', '2,000 frames')
    """
    return f"{n:,} {noun}" + "s" * (n != 1)
