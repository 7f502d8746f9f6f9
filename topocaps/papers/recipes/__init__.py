"""All recipes by name: the papers' and those of this library."""

import difflib

from topocaps.errors import BadInput
from topocaps.papers.recipes import dsprites, mnist
from topocaps.papers.recipes.letters import LETTERS
from topocaps.papers.recipes.part_whole import PART_WHOLE
from topocaps.papers.recipes.rolling import ROLLING
from topocaps.papers.recipes.sprites import SPRITES
from topocaps.study.recipe import BaseRecipe

_VARIANTS = (mnist.SINGLE_SITE, dsprites.THREE_SITES, mnist.MU_FROM_0)

RECIPES: dict[str, BaseRecipe] = {
    recipe.name: recipe
    for recipe in (
        *LETTERS, *ROLLING, *SPRITES, *mnist.MNIST, *dsprites.DSPRITES, *_VARIANTS,
        *PART_WHOLE,
    )
}  # fmt: skip

MOST = 5  # largest number of names that an error message suggests


def find(name: str) -> BaseRecipe:
    """Return the recipe of that name, or raise `BadInput` with similar names."""
    if name not in RECIPES:
        similar = [known for known in RECIPES if name.split("/")[-1] in known]
        similar = similar[:MOST] or difflib.get_close_matches(name, RECIPES, MOST)
        question = f"did you mean {' or '.join(similar)}? " * bool(similar)
        raise BadInput(f"there is no recipe {name!r}; {question}topocaps recipes lists all")
    return RECIPES[name]


__all__ = ["RECIPES", "find"]
