"""Errors of the package, checks of arguments, and numbers in messages."""

from __future__ import annotations

import importlib
import math
import operator
from collections.abc import Callable
from enum import StrEnum
from numbers import Real
from typing import Any, TypeVar

Choice = TypeVar("Choice", bound=StrEnum)


class TopocapsError(Exception):
    """Base class of the errors of this package."""


class BadInput(TopocapsError, ValueError):
    """A mistake of the user: a shape, a value, a name or a folder that cannot be used."""


def whole_number(name: str, value: Any) -> int:
    """Return ``value`` as a whole number of at least 1, or raise `BadInput` about ``name``."""
    try:
        number = operator.index(value)
    except TypeError:
        number = 0
    if number < 1 or isinstance(value, bool):
        raise BadInput(f"{name} must be a whole number of at least 1, not {value!r}")
    return number


def one_of(choices: type[Choice], name: str, value: Any) -> Choice:
    """Return ``value`` as a member of ``choices``, or raise `BadInput` about ``name``."""
    try:
        return choices(value)
    except ValueError:
        known = ", ".join(choices)
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


def _finite(name: str, value: Any, expected: str, accepts: Callable[[float], bool]) -> float:
    number = float(value) if isinstance(value, Real) and not isinstance(value, bool) else math.nan
    if not (math.isfinite(number) and accepts(number)):
        raise BadInput(f"{name} must be {expected}, not {value!r}")
    return number


class NonFinite(TopocapsError, ArithmeticError):
    """A term, a gradient or a weight is NaN or infinite; the message names it and the step."""


class Interrupted(TopocapsError):
    """The user stopped the training, which has saved its state."""


def optional(module: str, needs: str, install: str) -> Any:
    """Import a module of an optional package, or raise `BadInput` that says how to install it.

    Args:
        needs: beginning of the message, which says what needs which package.
        install: argument of ``pip install``.
    """
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise BadInput(f"{needs}: pip install {install}") from error


def check_seed(seed: int) -> None:
    """Raise `BadInput` if random number generators do not accept the seed."""
    if not 0 <= seed < 2**63:
        raise BadInput(f"seed must be a whole number from 0 to 2^63 - 1, not {seed}")


def counted(n: int, noun: str) -> str:
    """Return the number and its noun, which is plural unless ``n`` is 1.

    >>> counted(1, "epoch"), counted(2000, "frame")
    ('1 epoch', '2,000 frames')
    """
    return f"{n:,} {noun}" + "s" * (n != 1)
