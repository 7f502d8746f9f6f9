"""What can be run, as data."""

from topocaps.errors import BadInput
from topocaps.recipes.recipe import DATA, Recipe
from topocaps.recipes.sprites import SPRITES

RECIPES: dict[str, Recipe] = {recipe.name: recipe for recipe in SPRITES}


def find(name: str) -> Recipe:
    """The recipe of that name."""
    if name not in RECIPES:
        raise BadInput(f"there is no recipe {name!r}; there are {', '.join(RECIPES)}")
    return RECIPES[name]


__all__ = ["DATA", "RECIPES", "Recipe", "find"]
