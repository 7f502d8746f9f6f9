"""What the columns of the papers' tables have in common."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from topocaps.models import VAE
from topocaps.models.networks import Norm
from topocaps.papers.recipes.editions import Edition
from topocaps.study.recipe import Recipe

_NORMS = {Norm.NONE: "", Norm.WEIGHT: ", weight norm", Norm.PROJECTED: ", projected rows"}


@dataclass(frozen=True)
class Columns:
    """Makes the recipes of the tables of one data set, in one edition.

    ``base`` holds what all columns share; its name is that of the data set. ``windows`` gives the
    frames of 2L for every L. ``unseen`` is the window outside of which all models of the edition
    predict frames, so that their gains compare.
    """

    base: Recipe
    edition: Edition
    windows: Mapping[str, int]
    unseen: int

    def topographic(
        self,
        name: str,
        reach: int | None = None,
        claims: Mapping[str, Any] | None = None,
        **changes: Any,
    ) -> Recipe:
        """Return the recipe of a topographic column.

        ``name`` is "tvae" or "bubble", L, and what distinguishes it from others:
        ``bubble-5_36-k3``. ``reach`` is K, the edition's own unless given.
        """
        kind, length, *_ = name.split("-")
        window, shifting = self.windows[length], kind == "tvae"
        if reach is None:
            reach = self.edition.reach_single if window == 1 else self.edition.reach
        over = "single frames" if window == 1 else f"{window} frames"
        coherence = "shifting" if shifting else "stationary"
        norm = changes.setdefault("norm", self.edition.norm)
        changes.setdefault("about", f"{coherence} coherence over {over}, K = {reach}{_NORMS[norm]}")
        changes.setdefault("training", self.edition.training_of(shifting, window))
        changes.setdefault("epsilon", self.edition.epsilon_of(window))
        topography = replace(
            self.base.topography, window=window, reach=(reach,), velocity=float(shifting)
        )
        return self._recipe(
            name,
            topography=self.edition.topography_of(topography),
            unseen_window=None if window > self.unseen else self.unseen,
            mu=self.edition.mu,
            claims=claims or {},
            **changes,
        )

    def vae(
        self, claims: Mapping[str, Any] | None = None, name: str = "vae", **changes: Any
    ) -> Recipe:
        """Return the recipe of the baseline, without a norm unless one is given."""
        changes.setdefault("about", f"the plain VAE{_NORMS[changes.get('norm', Norm.NONE)]}")
        return self._recipe(
            name,
            model=VAE,
            topography=replace(self.base.topography, window=1, reach=(1,)),
            training=self.edition.training,
            unseen_window=self.unseen,
            claims=claims or {},
            **changes,
        )

    def _recipe(self, name: str, **changes: Any) -> Recipe:
        return replace(
            self.base,
            name=f"{self.base.name}/{self.edition.name}/{name}",
            edition=self.edition.name,
            encoder_fan=self.edition.encoder_fan,
            decoder_fan=self.edition.decoder_fan,
            **changes,
        )


def variant(recipe: Recipe, ending: str, about: str, **changes: Any) -> Recipe:
    """Return a recipe with some settings changed; its name and description say which."""
    name, about = f"{recipe.name}-{ending}", f"{recipe.about}, {about}"
    return replace(recipe, name=name, about=about, **changes)


def column(recipes: Iterable[Recipe], name: str) -> Recipe:
    """Return the recipe of a table whose name ends in ``name``, such as ``tvae-5_36``."""
    return next(recipe for recipe in recipes if recipe.name.endswith(f"/{name}"))
