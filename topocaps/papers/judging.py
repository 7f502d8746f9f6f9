"""Claims about numbers of models, and their verdicts."""

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
ENOUGH = 2.0  # number of standard errors above which a difference counts


class Measured(Protocol):
    """Interface of the measured numbers of models."""

    def __call__(self, recipe: BaseRecipe, number: Quantity) -> Sequence[float]:
        """Return the values of a number, one for each seed."""

    def spread(self, recipe: BaseRecipe, number: Quantity) -> float | None:
        """Return the standard deviation over seeds of comparable models; None if unknown."""


@dataclass(frozen=True)
class Verdict:
    """The measured numbers as text, and whether the claim holds."""

    numbers: str
    verdict: str | None  #: None if runs are missing


class Side(NamedTuple):
    """A quantity of a model, and its values for all seeds."""

    recipe: BaseRecipe
    number: Quantity
    values: Sequence[float]

    @property
    def mean(self) -> str:
        return self.number.write(statistics.mean(self.values))


@dataclass(frozen=True)
class Better:
    """The claim that ``this`` has better numbers than ``that``.

    It holds in part if only some of the numbers are better.
    """

    text: str
    this: BaseRecipe
    that: BaseRecipe
    #: quantities of which ``this`` has the higher value. A pair compares its first quantity of
    #: ``this`` with its second quantity of ``that``.
    higher: tuple[Quantity | tuple[Quantity, Quantity], ...] = ()
    lower: tuple[Quantity, ...] = ()  #: quantities of which ``this`` has the lower value

    @property
    def recipes(self) -> tuple[BaseRecipe, ...]:
        return self.this, self.that

    def judge(self, measured: Measured) -> Verdict:
        texts, is_better = [], []
        for number in (*self.higher, *self.lower):
            first, second = number if isinstance(number, tuple) else (number, number)
            this = Side(self.this, first, measured(self.this, first))
            that = Side(self.that, second, measured(self.that, second))
            if not this.values or not that.values:
                return Verdict("", None)
            more, less = (this, that) if number in self.higher else (that, this)
            is_better.append(_is_more(measured, more, less))
            other_label = f"{second.label} " if isinstance(number, tuple) else ""
            texts.append(f"{first.label} {this.mean} against {other_label}{that.mean}")
        return Verdict("; ".join(texts), _verdict(is_better))


@dataclass(frozen=True)
class Best:
    """The claim that the first of several models has the highest (or lowest) value of a number."""

    text: str
    recipes: tuple[BaseRecipe, ...]
    number: Quantity
    lowest: bool = False

    def judge(self, measured: Measured) -> Verdict:
        sides = [Side(r, self.number, measured(r, self.number)) for r in self.recipes]
        if not all(side.values for side in sides):
            return Verdict("", None)
        this, *others = sides
        pairs = [(other, this) if self.lowest else (this, other) for other in others]
        means = ", ".join(f"{side.recipe.name.split('/')[-1]} {side.mean}" for side in sides)
        return Verdict(
            f"{self.number.label}: {means}",
            _verdict([_is_more(measured, more, less) for more, less in pairs]),
        )


@dataclass(frozen=True)
class Within:
    """The claim that numbers of models are at least ``least``.

    It holds in part if only some of the models, numbers and seeds reach ``least``.
    """

    text: str
    recipes: tuple[BaseRecipe, ...]
    numbers: tuple[Quantity, ...]
    least: float
    control: bool = False  #: whether the values of the untrained models are shown too

    def judge(self, measured: Measured) -> Verdict:
        texts, is_within = [], []
        for recipe in self.recipes:
            for number in self.numbers:
                values = measured(recipe, number)
                if not values:
                    return Verdict("", None)
                is_within += [value >= self.least for value in values]
                is_named = len(self.recipes) > 1 and number is self.numbers[0]
                name = f"{recipe.name.split('/')[-1]}: " if is_named else ""
                text = f"{name}{number.label} {', '.join(map(number.write, values))}"
                if self.control and (before := measured(recipe, number.untrained)):
                    text += f" (untrained {number.write(statistics.mean(before))})"
                texts.append(text)
        return Verdict("; ".join(texts), _verdict(is_within))


@dataclass(frozen=True)
class Learned:
    """The claim that numbers of models are better than those of the untrained models.

    It holds in part if only some of the models and numbers are better.
    """

    text: str
    recipes: tuple[BaseRecipe, ...]
    numbers: tuple[Quantity, ...]
    lower: bool = False
    why: str = ""  #: explanation that is shown unless the claim holds

    def judge(self, measured: Measured) -> Verdict:
        judged = [self._judge(measured, number) for number in self.numbers]
        is_better = [better for _, of_models in judged for better in of_models]
        verdict = _verdict(is_better) if is_better else None
        explanation = f". {self.why}" if verdict in (DOES_NOT, IN_PART) else ""
        return Verdict("; ".join(text for text, _ in judged) + explanation, verdict)

    def _judge(self, measured: Measured, number: Quantity) -> tuple[str, list[bool | None]]:
        """Return a sentence on one number, and for every model whether training improved it."""
        texts, is_better = [], []
        for recipe in self.recipes:
            after, before = (
                Side(recipe, q, measured(recipe, q)) for q in (number, number.untrained)
            )
            if after.values and before.values:
                more, less = (before, after) if self.lower else (after, before)
                is_better.append(_is_more(measured, more, less))
                texts.append(f"{recipe.name} {after.mean} from {before.mean}")
        improved = [text for text, better in zip(texts, is_better, strict=True) if better]
        sentence = (
            f"{number.label}: better by two standard errors in {len(improved)} of {len(texts)} "
            "models"
        )
        return f"{sentence}{': ' * bool(improved)}{', '.join(improved)}", is_better


Claim = Better | Best | Within | Learned


def distance(
    measured: Measured, recipes: Sequence[BaseRecipe], numbers: Sequence[Quantity]
) -> tuple[float, int] | None:
    """Return the distance of a table from the paper's and the number of compared values, or None.

    The distance is the mean of ``|ours − published| / max(our spread, published spread)`` over the
    values that the paper reports. Spreads are standard deviations over seeds, and at least half a
    unit of the last printed digit. The definition was fixed before the runs that it compares.
    """
    distances = []
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
            distances.append(abs(statistics.mean(values) - mean) / spread)
    return (statistics.mean(distances), len(distances)) if distances else None


def _spread(measured: Measured, side: Side) -> float | None:
    """Return the standard deviation over seeds; for a single seed, that of comparable models."""
    if len(side.values) > 1:
        return statistics.stdev(side.values)
    return measured.spread(side.recipe, side.number)


def _verdict(agrees: Sequence[bool | None]) -> str:
    """Return the verdict on a claim from its comparisons. None is an undecided comparison."""
    if any(agrees):
        return HOLDS if all(agrees) else IN_PART
    return DOES_NOT if False in agrees else UNDECIDED


def _is_more(measured: Measured, more: Side, less: Side) -> bool | None:
    """Return whether the mean of ``more`` exceeds that of ``less`` by ``ENOUGH`` standard errors.

    A single seed has the spread of comparable models. The result is None if a single seed leaves
    the claim undecided, because its spread is unknown or the difference is too small.
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
