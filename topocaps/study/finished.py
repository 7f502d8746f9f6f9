"""A finished run, read from its folder."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, TypeVar

from topocaps.errors import BadInput
from topocaps.io import read_json
from topocaps.models.base import GenerativeModel
from topocaps.study.data import DATA
from topocaps.study.recipe import BaseRecipe
from topocaps.training import RunFolder, load

Model = TypeVar("Model", bound=GenerativeModel)


@dataclass(frozen=True)
class Finished(Generic[Model]):
    """A finished run: its folder, its recipe, its model and its metrics."""

    folder: RunFolder
    recipe: BaseRecipe
    model: Model
    metrics: dict[str, Any]

    @classmethod
    def open(cls, path: Path, recipe: BaseRecipe | None = None) -> Finished[Any]:
        """Return the run in a folder; ``recipe`` where the caller has it at hand."""
        folder = RunFolder(path)
        recipe = recipe or recipe_of(folder)
        model: Any = load(path)
        if not folder.metrics.exists():
            raise BadInput(f"{path} has not been evaluated: topocaps evaluate {path}")
        metrics = read_json(folder.metrics)
        if not isinstance(metrics, dict) or "seed" not in metrics:
            raise BadInput(f"{folder.metrics} is not what a run measured: remove it")
        return cls(folder, recipe, model, metrics)

    @property
    def name(self) -> str:
        return self.recipe.name


def recipe_of(folder: RunFolder) -> BaseRecipe:
    """Return the recipe that a run folder recorded."""
    settings = folder.settings()
    if (settings.get("data") or {}).get("kind") in DATA:
        return BaseRecipe.from_json(settings)
    config = settings.get("model")
    model = f"tc.load({str(folder.path)!r}{'' if config else ', model'})"
    rolls = config is None or "topography" in config
    then = f"tc.metrics.evaluate({model}, x)" if rolls else f"{model} is the model"
    raise BadInput(f"{folder.path} was trained on sequences of your own: in Python, {then}")
