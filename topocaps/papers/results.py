"""Measured results: one small file for every recipe and seed."""

from __future__ import annotations

import json
import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from topocaps.errors import BadInput
from topocaps.io import make_folder, read_json, write_json
from topocaps.papers.recipes import RECIPES
from topocaps.study.quantity import Quantity
from topocaps.study.recipe import BaseRecipe, Recipe
from topocaps.training.store import differences

#: Key of a result. It lists the extra metrics that were not measured, as no table showed them.
DEFERRED = "put_off"


@dataclass(frozen=True)
class Results:
    """The folder of results: ``<recipe>/seed-<n>.json`` and ``README.md``.

    Every result states its settings, under stable keys, and their fingerprint. A folder holds
    results of full runs or of ``short`` trial runs, never both.
    """

    folder: Path
    short: bool = False

    def path(self, recipe: BaseRecipe, seed: int) -> Path:
        return self.folder / recipe.name / f"seed-{seed}.json"

    def has(self, recipe: BaseRecipe, seed: int, numbers: Sequence[Quantity] = ()) -> bool:
        """Return whether there is a result of this recipe and seed with these ``numbers``.

        A failed run counts as a result. A result does not count if none of the ``numbers`` was
        measured, or if some were deferred. A full result of other settings raises an error that
        names them; a short one is run again.
        """
        path, failed = self.path(recipe, seed), self._failure(recipe, seed)
        if not path.exists():
            return failed.exists() and self._agrees(failed, _read_failure(failed), recipe)
        found = _read(path)
        if not self._agrees(path, found, recipe):
            return False
        deferred = [n for n in numbers if n.key[0] in found.get(DEFERRED, ())]
        if any(not number.values([found]) for number in deferred):
            return False
        return not numbers or any(number.key[0] in found for number in numbers)

    def _agrees(self, path: Path, found: dict[str, Any], recipe: BaseRecipe) -> bool:
        """Return whether a file has the settings of a recipe; refuse a full result without them."""
        if found.get("fingerprint") == recipe.fingerprint:
            return True
        if self.short:
            return False
        now = json.loads(json.dumps(recipe.identity()))  # JSON has no tuples
        changes = "; ".join(
            f"{key or 'its settings'} was {_said(before)}, is now {_said(after)}"
            for key, before, after in differences(found.get("settings"), now)[:3]
        )
        raise BadInput(
            f"{path} was made with other settings than {recipe.name} has now ({changes}): remove "
            "it and its run, or choose another --out and another --runs"
        )

    def names(self, recipe: BaseRecipe, seed: int) -> set[str]:
        """Return the names of the metrics that a result holds."""
        path = self.path(recipe, seed)
        found = _read(path) if path.exists() else {}
        return set(found) - set(found.get(DEFERRED, ()))

    def keep(self, recipe: BaseRecipe, seed: int, metrics: dict[str, Any]) -> None:
        """Write a result: the metrics of a run, rounded to six digits."""
        self._write(self.path(recipe, seed), _few_digits(metrics), recipe)
        self._failure(recipe, seed).unlink(missing_ok=True)

    def keep_failure(self, recipe: BaseRecipe, seed: int, failure: dict[str, Any]) -> None:
        """Write the failure of a run: its cause, and after how many epochs."""
        self._write(self._failure(recipe, seed), {**failure, "seed": seed}, recipe)

    def _write(self, path: Path, found: dict[str, Any], recipe: BaseRecipe) -> None:
        """Write a file, and the settings of its run."""
        make_folder(path.parent)
        settings = {
            **({"short": True} if self.short else {}),
            "recipe": recipe.name,
            "edition": recipe.edition,
            "precision": recipe.training.precision.value,
            "clip": recipe.training.clip,
            "settings": recipe.identity(),
            "fingerprint": recipe.fingerprint,
        }
        write_json(path, found | settings)

    def _failure(self, recipe: BaseRecipe, seed: int) -> Path:
        return self.folder / recipe.name / f"failed-{seed}.json"

    def of(self, recipe: BaseRecipe) -> list[dict[str, Any]]:
        """Return the results of a recipe, in the order of their seeds."""
        return [_read(file) for _, file in self._files(recipe, "seed")]

    def _files(self, recipe: BaseRecipe, kind: str) -> list[tuple[int, Path]]:
        """Return the seed and path of every file of one kind; ignore files with other names."""
        found = (self.folder / recipe.name).glob(f"{kind}-*.json")
        numbers = [(file.stem.removeprefix(f"{kind}-"), file) for file in found]
        return sorted((int(number), file) for number, file in numbers if number.isdigit())

    def troubles(self, recipe: BaseRecipe) -> list[str]:
        """Return a line for every problem of a recipe: failed runs, and runs with a diagnosis."""
        files = self._files(recipe, "failed")
        found: list[tuple[Any, str]] = [(n, _read_failure(file)["failure"]) for n, file in files]
        told = [(one.get("seed"), one.get("complaint")) for one in self.of(recipe)]
        found += [(seed, why) for seed, why in told if why]
        seeds: dict[str, list[str]] = {}
        for seed, why in found:  # the text before the parenthesis is the same for all seeds
            seeds.setdefault(why.split(" (")[0], []).append(str(seed))
        return [f"seed{'s' * (len(n) > 1)} {', '.join(n)}: {why}" for why, n in seeds.items()]

    def failed(self, recipe: BaseRecipe) -> int:
        """Return how many runs of a recipe failed."""
        return len(self._files(recipe, "failed"))

    def check(self) -> None:
        """Refuse a folder with files that cannot be read, or with short results among full ones."""
        for recipe in RECIPES.values():
            self.troubles(recipe)
            for _, file in self._files(recipe, "seed"):
                if bool(_read(file).get("short")) != self.short:
                    kinds = ("full", "short") if self.short else ("short", "full")
                    raise BadInput(
                        f"{file} is the result of a {kinds[0]} run, and a folder cannot hold "
                        f"{kinds[1]} runs as well: choose another --out"
                    )

    def __call__(self, recipe: BaseRecipe, number: Quantity) -> list[float]:
        return number.values(self.of(recipe))

    def spread(self, recipe: BaseRecipe, number: Quantity) -> float | None:
        """Return the standard deviation over seeds that a model with a single seed is given.

        It is the median standard deviation of comparable models with several seeds. Comparable
        models have the same norm of weights, data, optimiser and number of steps. Those that also
        have the same window and velocity are preferred. If there are none, ``spread_like`` names
        the quantity whose spread is used instead.
        """
        steps, near = _steps(recipe), _coherence(recipe)
        found: dict[bool, list[float]] = {True: [], False: []}
        for other in RECIPES.values():
            if _steps(other) == steps and len(values := self(other, number)) > 1:
                found[_coherence(other) == near].append(statistics.stdev(values))
        if spreads := found[True] or found[False]:
            return statistics.median(spreads)
        alike = replace(number, key=number.spread_like, spread_like=())
        return self.spread(recipe, alike) if number.spread_like else None


def _steps(recipe: BaseRecipe) -> object:
    norm = recipe.norm if isinstance(recipe, Recipe) else None
    return recipe.data, recipe.training.optimiser, recipe.training.pace, norm


def _coherence(recipe: BaseRecipe) -> object:
    """Return the kind, window and velocity of a topographic model."""
    if not isinstance(recipe, Recipe):
        return None
    return recipe.model, recipe.topography.window, recipe.topography.velocity


def _read(path: Path) -> dict[str, Any]:
    found = read_json(path)
    if not isinstance(found, dict) or not {"epochs", "seconds", "device"} <= found.keys():
        raise BadInput(f"{path} is not a result of topocaps reproduce: remove the file")
    return found


def length_of(found: dict[str, Any]) -> str:
    """Return the epochs of a result, after those of the run that it started from."""
    start = found.get("start")
    return f"{start['epochs']} and {found['epochs']}" if start else str(found["epochs"])


def _said(value: Any) -> str:
    return "not set" if value is None else str(value)


def _read_failure(path: Path) -> dict[str, Any]:
    found = read_json(path)
    if not isinstance(found, dict) or not isinstance(found.get("failure"), str):
        raise BadInput(f"{path} does not state a failure: remove the file")
    return found


def _few_digits(value: Any) -> Any:
    """Round floats to six significant digits, which is finer than any result is known."""
    if isinstance(value, dict):
        return {key: _few_digits(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_few_digits(item) for item in value]
    if isinstance(value, float) and math.isfinite(value):
        return float(f"{value:.6g}")
    return value
