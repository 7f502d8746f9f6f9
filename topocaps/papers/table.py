"""`Table`: a table of results as data."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from topocaps.study.quantity import Quantity
from topocaps.study.recipe import BaseRecipe


@dataclass(frozen=True)
class Table:
    """A table or figure of results: its recipes are the rows, its quantities the columns."""

    title: str
    recipes: tuple[BaseRecipe, ...]
    quantities: tuple[Quantity, ...]
    picture: str = "traversals"  #: name of the figure that is stored for the first seed
    #: numbers of the paper by the name of a recipe, if they differ from ``recipe.claims``
    claims: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    note: str = ""  #: explanation under the title
    seeds: int = 3  #: default number of seeds of each model
    predicted: tuple[str, ...] = ()  #: names of recipes whose predictions are drawn side by side
    one_by_one: bool = False  #: whether models train one after the other, so that times compare

    @property
    def is_figure(self) -> bool:
        """Whether the page shows its pictures in full."""
        return "Figure" in self.title


def markdown(rows: Sequence[Sequence[str]]) -> str:
    """Return a Markdown table whose header is the first row."""
    header, *body = (f"| {' | '.join(row)} |" for row in rows)
    return "\n".join([header, "|" + "---|" * len(rows[0]), *body])
