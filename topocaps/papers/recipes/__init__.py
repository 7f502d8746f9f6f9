"""The papers' recipes and this library's own, by name."""

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

MOST = 5  # names that a wrong one may have meant


def find(name: str) -> BaseRecipe:
    """Return the recipe of that name."""
    if name not in RECIPES:
        near = [known for known in RECIPES if name.split("/")[-1] in known]
        near = near[:MOST] or difflib.get_close_matches(name, RECIPES, MOST)
        maybe = f"did you mean {' or '.join(near)}? " * bool(near)
        raise BadInput(f"there is no recipe {name!r}; {maybe}topocaps recipes lists all")
    return RECIPES[name]


__all__ = ["RECIPES", "find"]
