"""Tables of results as data."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from topocaps.study.quantity import Quantity
from topocaps.study.recipe import BaseRecipe


@dataclass(frozen=True)
class Table:
    """A table or figure of a paper: its recipes and quantities."""

    title: str
    recipes: tuple[BaseRecipe, ...]
    quantities: tuple[Quantity, ...]
    picture: str = "traversals"  #: name of the figure that is shown of the first seed
    claims: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)  #: by recipe
    note: str = ""  #: explanation under the title
    seeds: int = 3  #: default number of seeds of each model
    predicted: tuple[str, ...] = ()  #: recipes whose predictions are drawn side by side
    one_by_one: bool = False  #: whether models train after each other, so that their times compare

    @property
    def is_figure(self) -> bool:
        """Whether the page shows its pictures in full."""
        return "Figure" in self.title


def markdown(rows: Sequence[Sequence[str]]) -> str:
    """Return a Markdown table whose header is the first row."""
    header, *body = (f"| {' | '.join(row)} |" for row in rows)
    return "\n".join([header, "|" + "---|" * len(rows[0]), *body])
