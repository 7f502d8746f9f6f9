"""Kinds of claims about numbers of models, and how each is judged."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from topocaps.study.quantity import Quantity
from topocaps.study.recipe import BaseRecipe

HOLDS, IN_PART, DOES_NOT = "holds", "holds in part", "does not hold"
UNDECIDED = "not decided: single seeds"
ENOUGH = 2.0  # standard errors above which a difference counts


class Measured(Protocol):
    """The measured numbers of models."""

    def __call__(self, recipe: BaseRecipe, number: Quantity) -> Sequence[float]:
        """Return the values of a number, one for every seed."""

    def spread(self, recipe: BaseRecipe, number: Quantity) -> float | None:
        """Return the standard deviation over seeds of comparable models; None if unknown."""


@dataclass(frozen=True)
class Verdict:
    """The measured numbers, and whether the claim holds for them."""

    found: str
    verdict: str | None  #: None while runs are missing


class Side(NamedTuple):
    """A number of a model, and its values of all seeds."""

    recipe: BaseRecipe
    number: Quantity
    values: Sequence[float]

    @property
    def mean(self) -> str:
        return self.number.write(statistics.mean(self.values))


@dataclass(frozen=True)
class Better:
    """``this`` has better numbers than ``that``: all of them, some, or none.

    A pair is a number of ``this`` and the other number, of ``that``, which it exceeds.
    """

    text: str
    this: BaseRecipe
    that: BaseRecipe
    higher: tuple[Quantity | tuple[Quantity, Quantity], ...] = ()
    lower: tuple[Quantity, ...] = ()

    @property
    def recipes(self) -> tuple[BaseRecipe, ...]:
        return self.this, self.that

    def judge(self, measured: Measured) -> Verdict:
        shown, good = [], []
        for number in (*self.higher, *self.lower):
            first, second = number if isinstance(number, tuple) else (number, number)
            this = Side(self.this, first, measured(self.this, first))
            that = Side(self.that, second, measured(self.that, second))
            if not this.values or not that.values:
                return Verdict("", None)
            more, less = (this, that) if number in self.higher else (that, this)
            good.append(_is_more(measured, more, less))
            of_other = f"{second.label} " if isinstance(number, tuple) else ""
            shown.append(f"{first.label} {this.mean} against {of_other}{that.mean}")
        return Verdict("; ".join(shown), _verdict(good))


@dataclass(frozen=True)
class Best:
    """The first model has the highest, or the lowest, value of a number among several."""

    text: str
    recipes: tuple[BaseRecipe, ...]
    number: Quantity
    lowest: bool = False

    def judge(self, measured: Measured) -> Verdict:
        sides = [Side(one, self.number, measured(one, self.number)) for one in self.recipes]
        if not all(side.values for side in sides):
            return Verdict("", None)
        this, *others = sides
        pairs = [(other, this) if self.lowest else (this, other) for other in others]
        told = ", ".join(f"{side.recipe.name.split('/')[-1]} {side.mean}" for side in sides)
        return Verdict(
            f"{self.number.label}: {told}",
            _verdict([_is_more(measured, more, less) for more, less in pairs]),
        )


@dataclass(frozen=True)
class Within:
    """Numbers of models are at least ``least``: all of them, some, or none."""

    text: str
    recipes: tuple[BaseRecipe, ...]
    numbers: tuple[Quantity, ...]
    least: float
    control: bool = False  #: whether the values of the untrained models are shown too

    def judge(self, measured: Measured) -> Verdict:
        shown, inside = [], []
        for recipe in self.recipes:
            for number in self.numbers:
                values = measured(recipe, number)
                if not values:
                    return Verdict("", None)
                inside += [value >= self.least for value in values]
                is_named = len(self.recipes) > 1 and number is self.numbers[0]
                whose = f"{recipe.name.split('/')[-1]}: " if is_named else ""
                told = ", ".join(map(number.write, values))
                if self.control and (before := measured(recipe, number.untrained)):
                    told += f" (untrained {number.write(statistics.mean(before))})"
                shown.append(f"{whose}{number.label} {told}")
        return Verdict("; ".join(shown), _verdict(inside))


@dataclass(frozen=True)
class Learned:
    """Numbers of models are better than before their first step: of all models, some, or none."""

    text: str
    recipes: tuple[BaseRecipe, ...]
    numbers: tuple[Quantity, ...]
    lower: bool = False
    why: str = ""  #: what explains numbers that are not better

    def judge(self, measured: Measured) -> Verdict:
        told = [self._judge(measured, number) for number in self.numbers]
        good = [is_better for _, found in told for is_better in found]
        verdict = _verdict(good) if good else None
        because = f". {self.why}" if verdict in (DOES_NOT, IN_PART) else ""
        return Verdict("; ".join(text for text, _ in told) + because, verdict)

    def _judge(self, measured: Measured, number: Quantity) -> tuple[str, list[bool | None]]:
        """Return a sentence on one number, and for every model whether training improved it."""
        shown, good = [], []
        for recipe in self.recipes:
            after, before = (
                Side(recipe, one, measured(recipe, one)) for one in (number, number.untrained)
            )
            if after.values and before.values:
                more, less = (before, after) if self.lower else (after, before)
                good.append(_is_more(measured, more, less))
                shown.append(f"{recipe.name} {after.mean} from {before.mean}")
        better = [text for text, is_better in zip(shown, good, strict=True) if is_better]
        found = (
            f"{number.label}: better by two standard errors in {len(better)} of {len(good)} models"
        )
        return f"{found}{': ' * bool(better)}{', '.join(better)}", good


Claim = Better | Best | Within | Learned


def distance(
    measured: Measured, recipes: Sequence[BaseRecipe], numbers: Sequence[Quantity]
) -> tuple[float, int] | None:
    """Return how far a table is from the paper's, and the count of its numbers, if it was measured.

    The distance is in units of the spread over seeds: the mean, over the columns and numbers that
    the paper reports, of ``|ours − published| / max(our spread, published spread)``. A spread of at
    least half a unit of the last printed digit is assumed. The definition was fixed before the runs
    that it compares.
    """
    found = []
    for recipe in recipes:
        for number in numbers:
            claim, values = number.of(recipe.claims), measured(recipe, number)
            if claim is None or not values:
                continue
            mean, published = claim
            spread = max(
                _spread(measured, Side(recipe, number, values)) or 0.0,
                published,
                0.5 * 10.0**-number.digits,
            )
            found.append(abs(statistics.mean(values) - mean) / spread)
    return (statistics.mean(found), len(found)) if found else None


def _spread(measured: Measured, side: Side) -> float | None:
    """Return the standard deviation over seeds; that of comparable models for a single seed."""
    if len(side.values) > 1:
        return statistics.stdev(side.values)
    return measured.spread(side.recipe, side.number)


def _verdict(good: Sequence[bool | None]) -> str:
    if any(good):
        return HOLDS if all(good) else IN_PART
    return DOES_NOT if False in good else UNDECIDED


def _is_more(measured: Measured, more: Side, less: Side) -> bool | None:
    """Return whether the mean of ``more`` exceeds that of ``less`` by ``ENOUGH`` standard errors.

    A single seed is given the spread of comparable models. The result is None if a single seed
    leaves the claim undecided: its spread is unknown, or the difference is too small.
    """
    squares = []
    for side in (more, less):
        spread = _spread(measured, side)
        if spread is None:
            return None
        squares.append(spread**2 / len(side.values))
    difference = statistics.mean(more.values) - statistics.mean(less.values)
    least = ENOUGH * math.sqrt(sum(squares))
    if 1 in (len(more.values), len(less.values)) and abs(difference) <= least:
        return None
    return difference > least
