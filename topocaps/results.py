"""Measured results: a small file for every recipe and seed, and the page that is made of them."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from topocaps import figures
from topocaps.errors import BadInput
from topocaps.files import make_folder, read_json, write_atomically, write_json
from topocaps.models import VAE
from topocaps.recipes import RECIPES, BaseRecipe, Recipe
from topocaps.recipes.claims import CLAIMS, CONCLUSIONS, HOLDS, OF_PARTS
from topocaps.recipes.tables import TABLES, Number, Table

NONE = "–"
PUT_OFF = "put_off"  #: names of what a short run did not measure, as no table asked for it


@dataclass(frozen=True)
class Results:
    """The folder of results: ``<recipe>/seed-<n>.json`` and ``README.md``."""

    folder: Path

    def path(self, recipe: BaseRecipe, seed: int) -> Path:
        return self.folder / recipe.name / f"seed-{seed}.json"

    def has(self, recipe: BaseRecipe, seed: int, numbers: Sequence[Number] = ()) -> bool:
        """Whether this recipe was run from this seed for as many epochs, and measured so.

        A result of which none of these ``numbers`` was ever measured, or some were put off, does
        not count.
        """
        path = self.path(recipe, seed)
        if not path.exists():
            return False
        found = _read(path)
        epochs = found["epochs"]
        if epochs != recipe.training.epochs:
            raise BadInput(
                f"{path} is of {epochs} epochs, and {recipe.training.epochs} are asked for: "
                "choose another --out and another --runs"
            )
        names = {number.path[0] for number in numbers}
        put_off = names.intersection(found.get(PUT_OFF, ()))
        return not numbers or (not put_off and any(name in found for name in names))

    def names(self, recipe: BaseRecipe, seed: int) -> set[str]:
        """What was measured already."""
        path = self.path(recipe, seed)
        return set(_read(path)) if path.exists() else set()

    def keep(self, recipe: BaseRecipe, seed: int, metrics: dict[str, Any]) -> None:
        """Write a result: what metrics.json holds, in few digits."""
        path = self.path(recipe, seed)
        make_folder(path.parent)
        write_json(path, _few_digits(metrics))
        self._failure(recipe, seed).unlink(missing_ok=True)

    def keep_failure(self, recipe: BaseRecipe, seed: int, why: str) -> None:
        """Write that a model did not stay finite, and why."""
        path = self._failure(recipe, seed)
        make_folder(path.parent)
        write_json(path, {"failure": why})

    def _failure(self, recipe: BaseRecipe, seed: int) -> Path:
        return self.folder / recipe.name / f"failed-{seed}.json"

    def of(self, recipe: BaseRecipe) -> list[dict[str, Any]]:
        """What there is of a recipe, by seed."""
        return [_read(file) for _, file in self._files(recipe, "seed")]

    def _files(self, recipe: BaseRecipe, kind: str) -> list[tuple[int, Path]]:
        """Those of every seed, in order; others that lie there are not ours."""
        found = (self.folder / recipe.name).glob(f"{kind}-*.json")
        numbers = [(file.stem.removeprefix(f"{kind}-"), file) for file in found]
        return sorted((int(number), file) for number, file in numbers if number.isdigit())

    def troubles(self, recipe: BaseRecipe) -> list[str]:
        """What went wrong with a recipe: runs that failed, and those that are said to be bad."""
        files = self._files(recipe, "failed")
        found: list[tuple[Any, str]] = [(n, read_json(file)["failure"]) for n, file in files]
        told = [(one.get("seed"), one.get("complaint")) for one in self.of(recipe)]
        found += [(seed, why) for seed, why in told if why]
        seeds: dict[str, list[str]] = {}
        for seed, why in found:  # numbers and advice are of each: what is wrong is the same
            seeds.setdefault(why.split(" (")[0], []).append(str(seed))
        return [f"seed{'s' * (len(n) > 1)} {', '.join(n)}: {why}" for why, n in seeds.items()]

    def check(self) -> None:
        """Whether all that is there can be read."""
        for recipe in RECIPES.values():
            self.of(recipe)

    def draw(self) -> None:
        """The figures that are made of numbers, from what there is."""
        self._draw_lags()
        self._draw_capcorr()
        self._draw_probes()

    def _draw_lags(self) -> None:
        for data in ("mnist", "sprites"):
            runs = {}
            for recipe in RECIPES.values():
                found = self.of(recipe)
                if recipe.name.startswith(f"{data}/submission/tvae-") and found:
                    runs[recipe.name.split("/")[-1]] = found[0]
            if runs:
                figures.save(figures.by_lag(runs), self.folder / f"{data}-by-lag.png")

    def _draw_capcorr(self) -> None:
        points: dict[str, list[tuple[float, float]]] = {}
        for recipe in TABLES["figure5"].recipes:
            if not isinstance(recipe, Recipe) or recipe.model is VAE:
                continue
            kind = recipe.name.split("/")[-1].split("-")[0]
            length = recipe.topography.window / recipe.topography.shape[0] / 2
            length = 0.0 if recipe.topography.window == 1 else length
            for one in self.of(recipe):
                points.setdefault(kind, []).append((length, _mean_capcorr(one)))
                control = points.setdefault(f"{kind}, untrained", [])
                control.append((length, _mean_capcorr(one["untrained"])))
                claimed = points.setdefault(f"{kind}, paper", [])
                claimed.append((length, _mean_capcorr(recipe.claims)))
        if points:
            drawn = {name: _means(values) for name, values in points.items()}
            figures.save(figures.capcorr_by_length(drawn), self.folder / "figure5.png")

    def _draw_probes(self) -> None:
        read: dict[str, dict[str, list[tuple[float, float]]]] = {}
        for recipe in TABLES["probes"].recipes:
            for one in self.of(recipe):
                for what, shares in one.get("probes", {}).items():
                    curve = read.setdefault(what, {}).setdefault(recipe.name.split("/")[-1], [])
                    curve += [(float(labels), share) for labels, share in shares.items()]
        if read:
            figures.save(figures.probes_by_labels(read), self.folder / "probes.png")

    def write_page(self) -> Path:
        """README.md, from what there is."""
        parts = [_HEAD]
        for name, table in TABLES.items():
            rows = [(recipe, self.of(recipe)) for recipe in table.recipes]
            if any(_values(number, found) for _, found in rows for number in table.numbers):
                troubles = {recipe.name: self.troubles(recipe) for recipe in table.recipes}
                parts.append(_section(name, table, rows, troubles))
                parts += self._pictures(name, table)
        parts += self._conclusions()
        parts += self._claims()
        page = self.folder / "README.md"
        write_atomically(page, "\n\n".join(parts) + "\n")
        return page

    def _conclusions(self) -> list[str]:
        """What the tables are read to show, where a bound or a control says otherwise."""
        lines = []
        for one in CONCLUSIONS:
            found = one.judge(self)
            if found.verdict is not None:
                because = "" if found.verdict == HOLDS else one.why
                lines.append(f"| {one.text} | {found.found} | **{found.verdict}** | {because} |")
        if not lines:
            return []
        header = ["| conclusion | found | | why |", "|---|---|---|---|"]
        return ["\n".join([_CONCLUSIONS_HEAD, "", *header, *lines])]

    def __call__(self, recipe: BaseRecipe, number: Number) -> list[float]:
        return _values(number, self.of(recipe))

    def spread(self, recipe: BaseRecipe, number: Number) -> float | None:
        """The median standard deviation over seeds, of models on the same data."""
        data = recipe.name.split("/")[0]
        alike = [other for name, other in RECIPES.items() if name.split("/")[0] == data]
        found = [values for other in alike if len(values := self(other, number)) > 1]
        return statistics.median(map(statistics.stdev, found)) if found else None

    def _claims(self) -> list[str]:
        """What the papers say beside their tables, judged by what there is."""
        lines = []
        for claim in (*CLAIMS, *OF_PARTS):
            found = claim.judge(self)
            if found.verdict is not None:
                lines.append(f"| {claim.text} | {found.found} | **{found.verdict}** |")
        if not lines:
            return []
        return [
            "\n".join([_CLAIMS_HEAD, "", "| the papers say | found | |", "|---|---|---|", *lines])
        ]

    def _pictures(self, name: str, table: Table) -> list[str]:
        """What is shown under a table: figures whole, traversals of tables as links."""
        own = [f"![{name}]({name}.png)"] if (self.folder / f"{name}.png").exists() else []
        lag = {"table4": "mnist-by-lag.png", "table5": "sprites-by-lag.png"}.get(name)
        if lag and (self.folder / lag).exists():
            own.append(f"Nats of the true frame under the rolled one, by lag:\n\n![{name}]({lag})")
        files = [
            (recipe, f"{recipe.name}/{table.picture}.png")
            for recipe in table.recipes
            if (self.folder / recipe.name / f"{table.picture}.png").exists()
        ]
        if table.is_figure and len(files) <= 2:
            own += [f"![{recipe.name}]({file})" for recipe, file in files]
        elif files:
            links = ", ".join(f"[{recipe.name}]({file})" for recipe, file in files)
            own.append(f"Pictures of the first seed: {links}.")
        return own


_CONCLUSIONS_HEAD = """## Conclusions, with a bound that holds and the untrained control beside them

What the papers' tables are read to show, and whether it stands when the likelihood is bounded for
every window alike, and when a number is compared with that of the same network before its first
step. A difference counts when it is more than two standard errors over seeds; a single seed is
given the spread of other models on its data."""

_CLAIMS_HEAD = """## Claims beside the tables

`topocaps reproduce claims` runs what these need, and the tables of parts and wholes what is said of
those. A difference counts when it is more than two
standard errors over seeds, where a single seed is given the spread of other models on its data;
*in part*: in some of the numbers or seeds."""


def _mean_capcorr(metrics: Any) -> float:
    found = [value for value in metrics["capcorr"].values() if value is not None]
    values = [value[0] if isinstance(value, tuple) else value for value in found]  # of a paper
    return statistics.mean(values) if values else math.nan


def _means(points: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
    """The mean of all values at every place."""
    places: dict[float, list[float]] = {}
    for place, value in points:
        places.setdefault(place, []).append(value)
    return [(place, statistics.mean(values)) for place, values in sorted(places.items())]


_COUNTED = ("epochs", "sequences")
_HEAD = """# Results

Written by `topocaps reproduce`; every number is the mean over seeds ± their standard deviation,
from `<recipe>/seed-<n>.json` in this folder. *paper* is what the paper reports, *untrained* the
same network before its first step: what a number owes to the structure that is built in. Numbers
are of MNIST's test images, and of held-out orbits of sprites; where these are *rendered*, they are
a re-rendering in dSprites' geometry, not dSprites. CapCorr takes the most favourable
start where a factor loops. *gain* is traversal_gain: 1 is perfect, 0 the sequence's own mean frame,
below 0 worse than not moving; frames inside the window do not count, so a window over the whole
sequence has none. Minutes of training are as they were, also where other programs shared the
GPU."""


def _read(path: Path) -> dict[str, Any]:
    found = read_json(path)
    if not isinstance(found, dict) or not {"epochs", "seconds", "device"} <= found.keys():
        raise BadInput(f"{path} is not a result of topocaps reproduce: remove it")
    return found


def _section(
    name: str,
    table: Table,
    rows: Sequence[tuple[BaseRecipe, Sequence[dict[str, Any]]]],
    troubles: Mapping[str, Sequence[str]],
) -> str:
    """One table, with what it took to make it."""
    columns = _columns(table)
    lines = [["model", ""] + [text for one in columns for text in _titles(one, rows)]]
    for recipe, found in rows:
        wrong = "".join(f"<br>{one}" for one in troubles[recipe.name])
        model = f"`{recipe.name}`<br>{recipe.about}{_count(found)}{wrong}"
        claims = table.claims.get(recipe.name, recipe.claims)
        each = []
        for of in dict.fromkeys(number.of for number in table.numbers):
            cells = []
            for number in (one.get(of) for one in columns):
                cells += [NONE] * 3 if number is None else [
                    _cell(number, found), _claim(number, claims), _cell(number, _untrained(found))
                ]  # fmt: skip
            each.append([model, of or NONE, *cells])
        told = [line for line in each if any(cell != NONE for cell in line[2:])]
        lines += told or [[model, NONE, *each[0][2:]]]
    used = [column for column in range(len(lines[0])) if any(r[column] != NONE for r in lines[1:])]
    shown = [[line[column] for column in used] for line in lines]
    text = ["| " + " | ".join(line) + " |" for line in shown]
    text.insert(1, "|" + "---|" * len(used))
    everything = [one for _, found in rows for one in found]
    hours = sum(one["seconds"] / one.get("together", 1) for one in everything) / 3600
    sources = ", ".join(sorted({one.get("data", "") for one in everything} - {""}))
    devices = ", ".join(sorted({one["device"] for one in everything}))
    epochs, measured = (_range({one.get(name) for one in everything}) for name in _COUNTED)
    took = f"{hours:.1f} hours" if hours >= 1 else f"{60 * hours:.1f} minutes"
    short = {one["epochs"] for recipe, found in rows for one in found} - {
        recipe.training.epochs for recipe, _ in rows
    }
    cut = f" --epochs {short.pop()}" if len(short) == 1 else ""
    made = (
        f"`topocaps reproduce {name}{cut}`: runs: {len(everything)}, epochs of each: {epochs}, "
        f"{took} of training in all, on {devices}. Data: {sources}; sequences measured on: "
        f"{measured}."
    )
    about = [table.note, ""] if table.note else []
    return "\n".join([f"## {table.title}", "", *about, made, "", *text])


def _columns(table: Table) -> list[dict[str, Number]]:
    """Numbers that stand below each other, by what they are of: where models have several lines,
    those of one label."""
    if not any(number.of for number in table.numbers):
        return [{"": number} for number in table.numbers]
    columns: dict[str, dict[str, Number]] = {}
    for number in table.numbers:
        columns.setdefault(number.label, {})[number.of] = number
    return list(columns.values())


def _titles(
    column: Mapping[str, Number], rows: Sequence[tuple[BaseRecipe, Sequence[dict[str, Any]]]]
) -> list[str]:
    """Of a number, the paper's and the untrained one; where ours is not there, theirs is named."""
    label = next(iter(column.values())).label
    ours = any(_values(number, found) for _, found in rows for number in column.values())
    return [label, "paper" if ours else f"{label}, paper", "untrained"]


def _values(number: Number, found: Iterable[dict[str, Any]]) -> list[float]:
    values = []
    for one in found:
        value: Any = one
        for key in number.path:
            value = value.get(key) if isinstance(value, dict) else None
        if isinstance(value, int | float):
            values.append(float(value))
    return values


def _cell(number: Number, found: Sequence[dict[str, Any]]) -> str:
    values = _values(number, found)
    if not values:
        return NONE
    if number.worst:
        return _written(max(values), None, number.digits)
    spread = statistics.stdev(values) if len(values) > 1 else None
    some = "" if len(values) == len(found) else f" ({len(values)} of {len(found)})"
    return _written(statistics.mean(values), spread, number.digits) + some


def _claim(number: Number, claims: Mapping[str, Any]) -> str:
    value: Any = claims
    for key in number.path:
        value = value.get(key) if hasattr(value, "get") else None
    if value is None:
        return NONE
    mean, spread = value if isinstance(value, tuple | list) else (value, None)
    return _written(mean, spread, number.digits)


def _written(mean: float, spread: float | None, digits: int) -> str:
    text = f"{mean:,.{digits}f}".replace("-", "−")
    return text if spread is None else f"{text} ± {spread:,.{digits}f}"


def _untrained(found: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    return [one["untrained"] for one in found if "untrained" in one]


def _count(found: Sequence[dict[str, Any]]) -> str:
    return "" if len(found) == 3 else f" ({len(found)} seed{'s' * (len(found) != 1)})"


def _range(found: set[int | None]) -> str:
    known = sorted(count for count in found if count is not None)
    if not known:
        return NONE
    return f"{known[0]:,}" if len(known) == 1 else f"{known[0]:,} to {known[-1]:,}"


def _few_digits(value: Any) -> Any:
    """Six significant digits are more than any of this is known to."""
    if isinstance(value, dict):
        return {key: _few_digits(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_few_digits(item) for item in value]
    if isinstance(value, float) and math.isfinite(value):
        return float(f"{value:.6g}")
    return value
