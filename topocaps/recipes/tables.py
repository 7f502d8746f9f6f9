"""The papers' tables: which recipes are their rows, which numbers their columns."""

from __future__ import annotations

from dataclasses import dataclass

from topocaps.recipes import dsprites, mnist
from topocaps.recipes.recipe import Recipe


@dataclass(frozen=True)
class Number:
    """A number of a table: where it stands in metrics and claims, and how it is written."""

    label: str
    path: tuple[str, ...]
    digits: int


@dataclass(frozen=True)
class Table:
    """A table of a paper, with the numbers that stand beside it here."""

    title: str
    recipes: tuple[Recipe, ...]
    numbers: tuple[Number, ...]


_ERROR = Number("E_eq", ("equivariance_error",), 0)
_GAIN = Number("gain", ("traversal_gain",), 2)
_LIKELIHOOD = (
    Number("log p(x), paper's estimator", ("log_px_paper",), 1),
    _ERROR,
    _GAIN,
    Number("log p(x) ≥, K = 10", ("log_px",), 1),
)
_CAPCORR = (
    *(Number(f"CapCorr {f}", ("capcorr", f), 2) for f in ("x", "y", "orientation", "scale")),
    _ERROR,
    _GAIN,
)  # fmt: skip

_NORMS = tuple(r for r in mnist.FIRST if r.name.endswith(("/tvae-5_36", "/vae")))

TABLES = {
    "table1": Table("Table 1 (camera-ready): MNIST", mnist.FINAL, _LIKELIHOOD),
    "table2": Table("Table 2 (camera-ready): sprites for dSprites", dsprites.FINAL, _CAPCORR),
    "table3": Table(
        "Table 3 (submission): norms of weights, MNIST", (*mnist.NORMS, *_NORMS), _LIKELIHOOD
    ),
    "table4": Table("Table 4 (submission): MNIST, all models", mnist.FIRST, _LIKELIHOOD),
    "table5": Table(
        "Table 5 (submission): sprites for dSprites, all models", dsprites.FIRST, _CAPCORR
    ),
    "fast": Table("The fast recipe: the models of Table 1", mnist.FAST, _LIKELIHOOD),
}
