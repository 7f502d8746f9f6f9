"""Stored results: one small file for each recipe and seed."""

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

#: Key of a result. Its value lists extra metrics that were not measured, as no table showed them.
DEFERRED = "put_off"


@dataclass(frozen=True)
class Results:
    """The folder of results: ``<recipe>/seed-<n>.json`` and ``README.md``.

    Every result states its settings, under stable keys, and their fingerprint. A folder has the
    results of full runs or of ``short`` trials, but not both.
    """

    folder: Path
    short: bool = False

    def path(self, recipe: BaseRecipe, seed: int) -> Path:
        """Return the file of the result of a recipe and seed."""
        return self.folder / recipe.name / f"seed-{seed}.json"

    def has(self, recipe: BaseRecipe, seed: int, numbers: Sequence[Quantity] = ()) -> bool:
        """Return whether there is a result of this recipe and seed with these ``numbers``.

        A failed run counts as a result. A result does not count if none of the ``numbers`` was
        measured, or if some were deferred. A short result of other settings does not count either.
        A full result of other settings raises `BadInput`, which names the settings.
        """
        path, failed = self.path(recipe, seed), self._failure(recipe, seed)
        if not path.exists():
            return failed.exists() and self._agrees(failed, _read_failure(failed), recipe)
        result = _read(path)
        if not self._agrees(path, result, recipe):
            return False
        deferred = [n for n in numbers if n.key[0] in result.get(DEFERRED, ())]
        if any(not number.values([result]) for number in deferred):
            return False
        return not numbers or any(number.key[0] in result for number in numbers)

    def _agrees(self, path: Path, stored: dict[str, Any], recipe: BaseRecipe) -> bool:
        """Return whether a file has the settings of a recipe. A full result has to have them."""
        if stored.get("fingerprint") == recipe.fingerprint:
            return True
        if self.short:
            return False
        now = json.loads(json.dumps(recipe.identity()))  # JSON has no tuples
        changes = "; ".join(
            f"{key or 'its settings'} was {_text(before)}, is now {_text(after)}"
            for key, before, after in differences(stored.get("settings"), now)[:3]
        )
        raise BadInput(
            f"{path} was made with other settings than {recipe.name} has now ({changes}): remove "
            "it and its run, or choose another --out and another --runs"
        )

    def names(self, recipe: BaseRecipe, seed: int) -> set[str]:
        """Return the names of the metrics that a result holds."""
        path = self.path(recipe, seed)
        result = _read(path) if path.exists() else {}
        return set(result) - set(result.get(DEFERRED, ()))

    def keep(self, recipe: BaseRecipe, seed: int, metrics: dict[str, Any]) -> None:
        """Write a result: the metrics of a run, rounded to six significant digits."""
        self._write(self.path(recipe, seed), _few_digits(metrics), recipe)
        self._failure(recipe, seed).unlink(missing_ok=True)

    def keep_failure(self, recipe: BaseRecipe, seed: int, failure: dict[str, Any]) -> None:
        """Write the failure of a run: its cause, and the number of epochs before it."""
        self._write(self._failure(recipe, seed), {**failure, "seed": seed}, recipe)

    def _write(self, path: Path, content: dict[str, Any], recipe: BaseRecipe) -> None:
        """Write a file with some content and the settings of its run."""
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
        write_json(path, content | settings)

    def _failure(self, recipe: BaseRecipe, seed: int) -> Path:
        return self.folder / recipe.name / f"failed-{seed}.json"

    def of(self, recipe: BaseRecipe) -> list[dict[str, Any]]:
        """Return the results of a recipe, in the order of their seeds."""
        return [_read(file) for _, file in self._files(recipe, "seed")]

    def _files(self, recipe: BaseRecipe, kind: str) -> list[tuple[int, Path]]:
        """Return the seed and path of every file ``<kind>-<seed>.json``, in the order of seeds."""
        files = (self.folder / recipe.name).glob(f"{kind}-*.json")
        numbers = [(file.stem.removeprefix(f"{kind}-"), file) for file in files]
        return sorted((int(number), file) for number, file in numbers if number.isdigit())

    def troubles(self, recipe: BaseRecipe) -> list[str]:
        """Return a line for every problem of a recipe: failed runs, and runs with a diagnosis."""
        problems: list[tuple[Any, str]] = [
            (seed, _read_failure(file)["failure"]) for seed, file in self._files(recipe, "failed")
        ]
        problems += [
            (result.get("seed"), result["complaint"])
            for result in self.of(recipe)
            if result.get("complaint")
        ]
        seeds: dict[str, list[str]] = {}
        for seed, text in problems:  # the text before the parenthesis is the same for all seeds
            seeds.setdefault(text.split(" (")[0], []).append(str(seed))
        return [f"seed{'s' * (len(n) > 1)} {', '.join(n)}: {text}" for text, n in seeds.items()]

    def failed(self, recipe: BaseRecipe) -> int:
        """Return how many runs of a recipe failed."""
        return len(self._files(recipe, "failed"))

    def check(self) -> None:
        """Raise `BadInput` for files that cannot be read, and for a mix of short and full runs."""
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
        """Return the values of a number, one for each seed."""
        return number.values(self.of(recipe))

    def spread(self, recipe: BaseRecipe, number: Quantity) -> float | None:
        """Return a standard deviation over seeds for a model with a single seed; None if unknown.

        It is the median standard deviation of comparable models with several seeds. Comparable
        models have the same norm of weights, data, optimiser and number of steps. Those that also
        have the same window and velocity are preferred. If there are no comparable models, the
        spread of the quantity that ``number.spread_like`` names is used instead.
        """
        training, coherence = _training(recipe), _coherence(recipe)
        by_coherence: dict[bool, list[float]] = {True: [], False: []}
        for other in RECIPES.values():
            if _training(other) == training and len(values := self(other, number)) > 1:
                by_coherence[_coherence(other) == coherence].append(statistics.stdev(values))
        if spreads := by_coherence[True] or by_coherence[False]:
            return statistics.median(spreads)
        similar = replace(number, key=number.spread_like, spread_like=())
        return self.spread(recipe, similar) if number.spread_like else None


def _training(recipe: BaseRecipe) -> object:
    """Return the data, the optimiser, the number of steps and the norm of weights."""
    norm = recipe.norm if isinstance(recipe, Recipe) else None
    return recipe.data, recipe.training.optimiser, recipe.training.pace, norm


def _coherence(recipe: BaseRecipe) -> object:
    """Return the kind, window and velocity of a topographic model."""
    if not isinstance(recipe, Recipe):
        return None
    return recipe.model, recipe.topography.window, recipe.topography.velocity


def _read(path: Path) -> dict[str, Any]:
    result = read_json(path)
    if not isinstance(result, dict) or not {"epochs", "seconds", "device"} <= result.keys():
        raise BadInput(f"{path} is not a result of topocaps reproduce: remove the file")
    return result


def length_of(result: dict[str, Any]) -> str:
    """Return the epochs of a result, preceded by those of the run that it started from."""
    start = result.get("start")
    return f"{start['epochs']} and {result['epochs']}" if start else str(result["epochs"])


def _text(value: Any) -> str:
    return "not set" if value is None else str(value)


def _read_failure(path: Path) -> dict[str, Any]:
    content = read_json(path)
    if not isinstance(content, dict) or not isinstance(content.get("failure"), str):
        raise BadInput(f"{path} does not state a failure: remove the file")
    return content


def _few_digits(value: Any) -> Any:
    """Return the value with floats rounded to six significant digits."""
    if isinstance(value, dict):
        return {key: _few_digits(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_few_digits(item) for item in value]
    if isinstance(value, float) and math.isfinite(value):
        return float(f"{value:.6g}")
    return value
