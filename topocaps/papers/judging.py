"""Kinds of claims about numbers of models, and how each is judged."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol

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


@dataclass(frozen=True)
class Better:
    """``this`` has better numbers than ``that``: all of them, some, or none."""

    text: str
    this: BaseRecipe
    that: BaseRecipe
    higher: tuple[Quantity, ...] = ()
    lower: tuple[Quantity, ...] = ()

    @property
    def recipes(self) -> tuple[BaseRecipe, ...]:
        return self.this, self.that

    def judge(self, measured: Measured) -> Verdict:
        sides = (
            ((self.this, number), (self.that, number), number in self.higher)
            for number in (*self.higher, *self.lower)
        )
        return _compared(measured, sides, "{0.label} {1} against {3}")


@dataclass(frozen=True)
class Best:
    """One model has the highest, or the lowest, value of a number among several."""

    text: str
    this: BaseRecipe
    others: tuple[BaseRecipe, ...]
    higher: Quantity | None = None
    lower: Quantity | None = None

    @property
    def recipes(self) -> tuple[BaseRecipe, ...]:
        return self.this, *self.others

    def judge(self, measured: Measured) -> Verdict:
        number = self.higher or self.lower
        assert number is not None
        this, *others = ((recipe, number, measured(recipe, number)) for recipe in self.recipes)
        if not all(values for _, _, values in (this, *others)):
            return Verdict("", None)
        sides = [(this, other) if self.higher else (other, this) for other in others]
        told = ", ".join(
            f"{recipe.name.split('/')[-1]} {number.write(statistics.mean(values))}"
            for recipe, _, values in (this, *others)
        )
        return Verdict(
            f"{number.label}: {told}",
            _verdict([_is_more(measured, more, less) for more, less in sides]),
        )


@dataclass(frozen=True)
class Above:
    """Numbers of a model are higher than others of the same model, or of ``that``."""

    text: str
    this: BaseRecipe
    pairs: tuple[tuple[Quantity, Quantity], ...]
    that: BaseRecipe | None = None

    @property
    def recipes(self) -> tuple[BaseRecipe, ...]:
        return self.this, self.that or self.this

    def judge(self, measured: Measured) -> Verdict:
        sides = (
            ((self.this, number), (self.recipes[1], other), True) for number, other in self.pairs
        )
        return _compared(measured, sides, "{0.label} {1} against {2.label} {3}")


@dataclass(frozen=True)
class Within:
    """Numbers of models are between ``least`` and ``most``: all of them, some, or none."""

    text: str
    these: tuple[BaseRecipe, ...]
    numbers: tuple[Quantity, ...]
    least: float = -math.inf
    most: float = math.inf
    control: bool = False  #: whether the values of the untrained models are shown too

    @property
    def recipes(self) -> tuple[BaseRecipe, ...]:
        return self.these

    def judge(self, measured: Measured) -> Verdict:
        shown, inside = [], []
        for recipe in self.these:
            for number in self.numbers:
                values = measured(recipe, number)
                if not values:
                    return Verdict("", None)
                inside += [self.least <= value <= self.most for value in values]
                is_named = len(self.these) > 1 and number is self.numbers[0]
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
    these: tuple[BaseRecipe, ...]
    numbers: tuple[Quantity, ...]
    lower: bool = False
    why: str = ""

    @property
    def recipes(self) -> tuple[BaseRecipe, ...]:
        return self.these

    def judge(self, measured: Measured) -> Verdict:
        told = [self._judge(measured, number) for number in self.numbers]
        good = [is_better for _, found in told for is_better in found]
        return Verdict("; ".join(text for text, _ in told), _verdict(good) if good else None)

    def _judge(self, measured: Measured, number: Quantity) -> tuple[str, list[bool | None]]:
        """Return a sentence on one number, and for every model whether training improved it."""
        before = number.untrained
        shown, good = [], []
        for recipe in self.these:
            after, control = measured(recipe, number), measured(recipe, before)
            if after and control:
                sides = (recipe, number, after), (recipe, before, control)
                more, less = sides[::-1] if self.lower else sides
                good.append(_is_more(measured, more, less))
                values = " from ".join(number.write(statistics.mean(v)) for v in (after, control))
                shown.append(f"{recipe.name} {values}")
        better = [text for text, is_better in zip(shown, good, strict=True) if is_better]
        found = f"{number.label}, better in {len(better)} of {len(good)} models"
        return f"{found}{': ' * bool(better)}{', '.join(better)}", good


@dataclass(frozen=True)
class Distance:
    """How far a table is from the paper's, in units of the spread over seeds.

    The distance is the mean, over the columns and numbers that the paper reports, of
    ``|ours − published| / max(our spread, published spread)``. A spread of at least half a unit of
    the last printed digit is assumed. The definition was fixed before the runs that it compares.
    """

    recipes: tuple[BaseRecipe, ...]
    numbers: tuple[Quantity, ...]

    def of(self, measured: Measured) -> tuple[float, int] | None:
        """Return the distance and the count of its numbers; None if none was measured."""
        found = []
        for recipe in self.recipes:
            for number in self.numbers:
                claim = number.of(recipe.claims)
                values = measured(recipe, number)
                if claim is None or not values:
                    continue
                mean, published = claim
                several = len(values) > 1
                own = statistics.stdev(values) if several else measured.spread(recipe, number)
                spread = max(own or 0.0, published, 0.5 * 10.0**-number.digits)
                found.append(abs(statistics.mean(values) - mean) / spread)
        return (statistics.mean(found), len(found)) if found else None


def _compared(
    measured: Measured,
    sides: Iterable[tuple[tuple[BaseRecipe, Quantity], tuple[BaseRecipe, Quantity], bool]],
    text: str,
) -> Verdict:
    """Judge pairs of numbers, of which the first should be the higher, or else the lower."""
    shown, good = [], []
    for first, second, is_higher in sides:
        these, those = measured(*first), measured(*second)
        if not these or not those:
            return Verdict("", None)
        ordered = (*first, these), (*second, those)
        more, less = ordered if is_higher else ordered[::-1]
        good.append(_is_more(measured, more, less))
        one, other = (number.write(statistics.mean(values)) for _, number, values in ordered)
        shown.append(text.format(first[1], one, second[1], other))
    return Verdict("; ".join(shown), _verdict(good))


def _verdict(good: Sequence[bool | None]) -> str:
    if any(good):
        return HOLDS if all(good) else IN_PART
    return DOES_NOT if False in good else UNDECIDED


def _is_more(
    measured: Measured,
    more: tuple[BaseRecipe, Quantity, Sequence[float]],
    less: tuple[BaseRecipe, Quantity, Sequence[float]],
) -> bool | None:
    """Return whether the mean of ``more`` exceeds that of ``less`` by ``ENOUGH`` standard errors.

    A single seed is given the spread of comparable models. The result is None if a single seed
    leaves the claim undecided: its spread is unknown, or the difference is too small.
    """
    squares = []
    for recipe, number, values in (more, less):
        spread = statistics.stdev(values) if len(values) > 1 else measured.spread(recipe, number)
        if spread is None:
            return None
        squares.append(spread**2 / len(values))
    first, second = (statistics.mean(values) for _, _, values in (more, less))
    least, single = ENOUGH * math.sqrt(sum(squares)), 1 in (len(more[2]), len(less[2]))
    return None if single and abs(first - second) <= least else first - second > least
