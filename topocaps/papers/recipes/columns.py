"""What the columns of the papers' tables have in common."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from topocaps.latents.topography import Topography
from topocaps.models import VAE
from topocaps.models.networks import Norm
from topocaps.papers.recipes.editions import Edition
from topocaps.study.data import Data
from topocaps.study.recipe import BaseRecipe, Recipe

_NORMS = {Norm.NONE: "", Norm.WEIGHT: ", weight norm", Norm.PROJECTED: ", projected rows"}
AnyRecipe = TypeVar("AnyRecipe", bound=BaseRecipe)


@dataclass(frozen=True)
class Columns:
    """Makes the recipes of the tables of one data set, in one edition.

    Models have as many capsules, and as many sites in each, as sequences have ``frames``. All
    models of the edition predict frames outside the window ``unseen``, so that their gains compare.
    """

    data_name: str
    data: Data
    frames: int
    edition: Edition
    unseen: int

    def window(self, length: str) -> int:
        """Return the frames of 2L: of "5_36" (L = 5/36), of "0" a single one."""
        part, _, whole = length.partition("_")
        return 2 * int(part) * self.frames // int(whole) if whole else 1

    def topographic(
        self,
        name: str,
        reach: int | None = None,
        claims: Mapping[str, Any] | None = None,
        norm: Norm | None = None,
    ) -> Recipe:
        """Return the recipe of a topographic column.

        ``name`` is "tvae" or "bubble", L, and what distinguishes it from others:
        ``bubble-5_36-k3``. ``reach`` is K; it and ``norm`` are the edition's own unless given. The
        corners of W are cut where the edition cuts them and there are any: a window of one frame, a
        reach of one site and a Bubble have no band and so no corners.
        """
        edition = self.edition
        kind, length, *_ = name.split("-")
        window, shifting = self.window(length), kind == "tvae"
        single, norm = window == 1, edition.norm if norm is None else norm
        if reach is None:
            reach = edition.reach_single if single else edition.reach
        training = edition.training
        if shifting:
            clip = edition.clip_single if single else edition.clip
            training = replace(training, clip=clip)
        over = "single frames" if single else f"{window} frames"
        coherence = "shifting" if shifting else "stationary"
        banded = shifting and not single and reach > 1
        return self._recipe(
            name,
            about=f"{coherence} coherence over {over}, K = {reach}{_NORMS[norm]}",
            topography=self._topography(
                window=window,
                reach=(reach,),
                velocity=float(shifting),
                corners=edition.corners or not banded,
            ),
            training=training,
            norm=norm,
            epsilon=edition.epsilon_single if single else edition.epsilon,
            mu=edition.mu,
            unseen_window=None if window > self.unseen else self.unseen,
            claims=claims or {},
        )

    def vae(self, claims: Mapping[str, Any], name: str = "vae", norm: Norm = Norm.NONE) -> Recipe:
        """Return the recipe of the baseline, without a norm unless one is given."""
        return self._recipe(
            name,
            about=f"the plain VAE{_NORMS[norm]}",
            model=VAE,
            topography=self._topography(),
            training=self.edition.training,
            norm=norm,
            unseen_window=self.unseen,
            claims=claims,
        )

    def _topography(self, **settings: Any) -> Topography:
        return Topography(capsules=self.frames, shape=(self.frames,), **settings)

    def _recipe(self, name: str, **settings: Any) -> Recipe:
        return Recipe(
            name=f"{self.data_name}/{self.edition.name}/{name}",
            data=self.data,
            edition=self.edition.name,
            encoder_fan=self.edition.encoder_fan,
            decoder_fan=self.edition.decoder_fan,
            **settings,
        )


def variant(recipe: AnyRecipe, ending: str, about: str, **changes: Any) -> AnyRecipe:
    """Return a recipe with some settings changed; its name and description say which."""
    return renamed(recipe, ending, f"{recipe.about}, {about}", **changes)


def renamed(recipe: AnyRecipe, ending: str, about: str, **changes: Any) -> AnyRecipe:
    """Return a recipe with some settings changed, a longer name and another description."""
    return replace(recipe, name=f"{recipe.name}-{ending}", about=about, **changes)


def bubble_of(tvae: Recipe, name: str, about: str) -> Recipe:
    """Return the Bubble of the size of a TVAE: capsules whose variance does not move."""
    topography = replace(tvae.topography, velocity=0.0)
    return replace(tvae, name=name, about=about, topography=topography)


def vae_of(tvae: Recipe, name: str, about: str) -> Recipe:
    """Return the plain VAE of the size of a TVAE; its gains are of the frames of the TVAE's."""
    return replace(
        tvae,
        name=name,
        about=about,
        model=VAE,
        centred=False,
        topography=replace(tvae.topography, window=1),
        unseen_window=tvae.topography.window,
    )


def column(recipes: Iterable[Recipe], name: str) -> Recipe:
    """Return the recipe of a table whose name ends in ``name``, such as ``tvae-5_36``."""
    return next(recipe for recipe in recipes if recipe.name.endswith(f"/{name}"))
