"""Measured results: a small file for every recipe and seed."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from topocaps.errors import BadInput
from topocaps.files import make_folder, read_json, write_json
from topocaps.recipes import RECIPES, BaseRecipe, Recipe
from topocaps.recipes.tables import Number

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
        length, wanted = length_of(found), _wanted_length(recipe)
        if length != wanted:
            raise BadInput(
                f"{path} is of {length} epochs, and {wanted} are asked for: remove it and its run, "
                "or choose another --out and another --runs"
            )
        if found.get("fingerprint", recipe.fingerprint) != recipe.fingerprint:
            raise BadInput(
                f"{path} is of other settings than {recipe.name} has now: remove it and its run, "
                "or choose another --out and another --runs"
            )
        put_off = [n for n in numbers if n.path[0] in found.get(PUT_OFF, ())]
        if any(not values_of(number, [found]) for number in put_off):
            return False
        return not numbers or any(number.path[0] in found for number in numbers)

    def names(self, recipe: BaseRecipe, seed: int) -> set[str]:
        """What was measured already."""
        path = self.path(recipe, seed)
        found = _read(path) if path.exists() else {}
        return set(found) - set(found.get(PUT_OFF, ()))

    def keep(self, recipe: BaseRecipe, seed: int, metrics: dict[str, Any]) -> None:
        """Write a result: what metrics.json holds, in few digits."""
        path = self.path(recipe, seed)
        make_folder(path.parent)
        write_json(path, {**_few_digits(metrics), "fingerprint": recipe.fingerprint})
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
        found: list[tuple[Any, str]] = [(n, _read_failure(file)) for n, file in files]
        told = [(one.get("seed"), one.get("complaint")) for one in self.of(recipe)]
        found += [(seed, why) for seed, why in told if why]
        seeds: dict[str, list[str]] = {}
        for seed, why in found:  # numbers and advice are of each: what is wrong is the same
            seeds.setdefault(why.split(" (")[0], []).append(str(seed))
        return [f"seed{'s' * (len(n) > 1)} {', '.join(n)}: {why}" for why, n in seeds.items()]

    def check(self) -> None:
        """Whether all that is there can be read."""
        for recipe in RECIPES.values():
            self.troubles(recipe)

    def __call__(self, recipe: BaseRecipe, number: Number) -> list[float]:
        return values_of(number, self.of(recipe))

    def spread(self, recipe: BaseRecipe, number: Number) -> float | None:
        """The median standard deviation over seeds, of models on the same data that are trained in
        the same steps: of those that see as much where there are any, else of all. Where no such
        model has several seeds of the number, that of one like it."""
        steps, near = _steps(recipe), _coherence(recipe)
        found: dict[bool, list[float]] = {True: [], False: []}
        for other in RECIPES.values():
            if _steps(other) == steps and len(values := self(other, number)) > 1:
                found[_coherence(other) == near].append(statistics.stdev(values))
        if spreads := found[True] or found[False]:
            return statistics.median(spreads)
        return (
            self.spread(recipe, replace(number, path=number.like, like=())) if number.like else None
        )


def _steps(recipe: BaseRecipe) -> object:
    return recipe.data, recipe.training.optimiser, recipe.training.pace


def _coherence(recipe: BaseRecipe) -> object:
    """What a model sees of a sequence at once, and how it moves there."""
    if not isinstance(recipe, Recipe):
        return None
    return recipe.model, recipe.topography.window, recipe.topography.velocity


def _read(path: Path) -> dict[str, Any]:
    found = read_json(path)
    if not isinstance(found, dict) or not {"epochs", "seconds", "device"} <= found.keys():
        raise BadInput(f"{path} is not a result of topocaps reproduce: remove it")
    return found


def length_of(found: dict[str, Any]) -> str:
    """How long a result was trained, after a start for how long."""
    start = found.get("start")
    return f"{start['epochs']} and {found['epochs']}" if start else str(found["epochs"])


def _wanted_length(recipe: BaseRecipe) -> str:
    own = recipe.training.epochs
    return str(own) if recipe.start is None else f"{recipe.start.training.epochs} and {own}"


def _read_failure(path: Path) -> str:
    found = read_json(path)
    if not isinstance(found, dict) or not isinstance(found.get("failure"), str):
        raise BadInput(f"{path} does not say what failed: remove it")
    return found["failure"]


def values_of(number: Number, found: Iterable[dict[str, Any]]) -> list[float]:
    values = []
    for one in found:
        value: Any = one
        for key in number.path:
            value = value.get(key) if isinstance(value, dict) else None
        if isinstance(value, int | float):
            values.append(float(value))
    return values


def _few_digits(value: Any) -> Any:
    """Six significant digits are more than any of this is known to."""
    if isinstance(value, dict):
        return {key: _few_digits(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_few_digits(item) for item in value]
    if isinstance(value, float) and math.isfinite(value):
        return float(f"{value:.6g}")
    return value
