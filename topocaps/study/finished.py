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
        """Open the run in a folder.

        Args:
            path: the run folder.
            recipe: recipe of the run; by default the one that the folder records.
        """
        folder = RunFolder(path)
        recipe = recipe or recipe_of(folder)
        model: Any = load(path)
        if not folder.metrics.exists():
            raise BadInput(f"{path} has not been evaluated: run topocaps evaluate {path}")
        metrics = read_json(folder.metrics)
        if not isinstance(metrics, dict) or "seed" not in metrics:
            raise BadInput(f"{folder.metrics} does not hold the metrics of a run: remove the file")
        return cls(folder, recipe, model, metrics)

    @property
    def name(self) -> str:
        return self.recipe.name


def recipe_of(folder: RunFolder) -> BaseRecipe:
    """Return the recipe that a run folder records, or raise `BadInput` if it records none."""
    settings = folder.settings()
    if (settings.get("data") or {}).get("kind") in DATA:
        return BaseRecipe.from_json(settings)
    config = settings.get("model")
    model = f"tc.load({str(folder.path)!r}{'' if config else ', model'})"
    has_metrics = config is None or "topography" in config
    advice = f"evaluate it with tc.metrics.evaluate({model}, x)"
    advice = advice if has_metrics else f"load it with {model}"
    raise BadInput(
        f"{folder.path} was trained on sequences of your own, without a recipe: in Python, {advice}"
    )
