"""What can be run, as data."""

import difflib

from topocaps.errors import BadInput
from topocaps.recipes.base import BaseRecipe
from topocaps.recipes.claims import VARIANTS
from topocaps.recipes.data import DATA, Splits
from topocaps.recipes.dsprites import DSPRITES
from topocaps.recipes.extensions import EXTENSIONS
from topocaps.recipes.mnist import MNIST
from topocaps.recipes.part_whole import PART_WHOLE, PartWholeRecipe
from topocaps.recipes.recipe import Recipe
from topocaps.recipes.sprites import SPRITES

RECIPES: dict[str, BaseRecipe] = {
    recipe.name: recipe
    for recipe in (*SPRITES, *EXTENSIONS, *MNIST, *DSPRITES, *VARIANTS, *PART_WHOLE)
}

MOST = 5  # names that a wrong one may have meant


def find(name: str) -> BaseRecipe:
    """The recipe of that name."""
    if name not in RECIPES:
        near = [known for known in RECIPES if name.split("/")[-1] in known]
        near = near[:MOST] or difflib.get_close_matches(name, RECIPES, MOST)
        maybe = f"did you mean {' or '.join(near)}? " * bool(near)
        raise BadInput(f"there is no recipe {name!r}; {maybe}topocaps recipes lists all")
    return RECIPES[name]


__all__ = ["DATA", "RECIPES", "BaseRecipe", "PartWholeRecipe", "Recipe", "Splits", "find"]
