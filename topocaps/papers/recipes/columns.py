"""Recipes from the names of the columns in the papers' tables, such as ``tvae-5_36``."""

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

_ENDINGS = {"wn": Norm.WEIGHT, "pgd": Norm.PROJECTED}  # of the names of columns
_NORMS = {Norm.NONE: "", Norm.WEIGHT: ", weight norm", Norm.PROJECTED: ", projected rows"}
AnyRecipe = TypeVar("AnyRecipe", bound=BaseRecipe)


@dataclass(frozen=True)
class Columns:
    """Factory of the recipes of one data set in one edition.

    The number of capsules, and the number of sites of each, is the number of frames of a sequence.
    """

    data_name: str  #: first part of the names of the recipes
    data: Data
    frames: int  #: number of frames of a sequence
    edition: Edition
    unseen: int  #: window of all models outside which frames are predicted, so that gains compare

    def table(self, rows: Mapping[str, Mapping[str, Any]]) -> tuple[Recipe, ...]:
        """Return the recipes of a table from the numbers that the paper reports of each column."""
        return tuple(self.column(name, claims) for name, claims in rows.items())

    def column(self, name: str, claims: Mapping[str, Any] | None = None) -> Recipe:
        """Return the recipe of a column.

        Args:
            name: "vae", or "tvae" or "bubble" followed by L, such as ``tvae-5_36`` for L = 5/36.
                Endings change K (``bubble-5_36-k3``) or the norm (``vae-wn``). Without an ending,
                K and the norm are those of the edition, and the VAE has no norm.
            claims: the numbers that the paper reports.
        """
        kind, *parts = name.split("-")
        norm = Norm.NONE if kind == "vae" else self.edition.norm
        norm = next((_ENDINGS[part] for part in parts if part in _ENDINGS), norm)
        if kind == "vae":
            settings = self._of_vae(norm)
        else:
            reach = next((int(part[1:]) for part in parts if part[0] == "k"), None)
            settings = self._of_topographic(kind == "tvae", self._window(parts[0]), reach, norm)
        return Recipe(
            name=f"{self.data_name}/{self.edition.name}/{name}",
            data=self.data,
            edition=self.edition.name,
            encoder_fan=self.edition.encoder_fan,
            decoder_fan=self.edition.decoder_fan,
            norm=norm,
            claims=claims or {},
            **settings,
        )

    def _of_vae(self, norm: Norm) -> dict[str, Any]:
        """Return the settings of a VAE."""
        return {
            "about": f"the plain VAE{_NORMS[norm]}",
            "model": VAE,
            "topography": self._topography(),
            "training": self.edition.training,
            "unseen_window": self.unseen,
        }

    def _of_topographic(
        self, shifting: bool, window: int, reach: int | None, norm: Norm
    ) -> dict[str, Any]:
        """Return the settings of a TVAE if ``shifting``, and of a Bubble otherwise."""
        edition, single = self.edition, window == 1
        clip = edition.clip_single if single else edition.clip
        if reach is None:
            reach = edition.reach_single if single else edition.reach
            reach = window if edition.whole_bubbles and not shifting else reach
        over = "single frames" if single else f"{window} frames"
        coherence = "shifting" if shifting else "stationary"
        # W of one frame, of one site or of a Bubble has no diagonal band, and so no corners
        corners = edition.corners or not (shifting and not single and reach > 1)
        return {
            "about": f"{coherence} coherence over {over}, K = {reach}{_NORMS[norm]}",
            "topography": self._topography(
                window=window, reach=(reach,), velocity=float(shifting), corners=corners
            ),
            "training": replace(edition.training, clip=clip) if shifting else edition.training,
            "epsilon": edition.epsilon_single if single else edition.epsilon,
            "mu": edition.mu,
            "unseen_window": None if window > self.unseen else self.unseen,
        }

    def _window(self, length: str) -> int:
        """Return the number of frames of 2L, such as for "5_36" (L = 5/36); for "0" return 1."""
        part, _, whole = length.partition("_")
        return 2 * int(part) * self.frames // int(whole) if whole else 1

    def _topography(self, **settings: Any) -> Topography:
        return Topography(capsules=self.frames, shape=(self.frames,), **settings)


def variant(recipe: AnyRecipe, ending: str, about: str, **changes: Any) -> AnyRecipe:
    """Return a recipe with some settings changed, and with additions to its name and description.

    Args:
        ending: ending that is added to the name.
        about: words that are added to the description.
        changes: settings that change.
    """
    return renamed(recipe, ending, f"{recipe.about}, {about}", **changes)


def renamed(recipe: AnyRecipe, ending: str, about: str, **changes: Any) -> AnyRecipe:
    """Return a recipe with some settings changed, an ending of the name, and a new description."""
    return replace(recipe, name=f"{recipe.name}-{ending}", about=about, **changes)


def bubble_of(tvae: Recipe, name: str, about: str) -> Recipe:
    """Return the Bubble of the same size as a TVAE. Its shared variances do not move."""
    topography = replace(tvae.topography, velocity=0.0)
    return replace(tvae, name=name, about=about, topography=topography)


def vae_of(tvae: Recipe, name: str, about: str) -> Recipe:
    """Return the plain VAE of the same size as a TVAE. Gains of both count the same frames."""
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
    """Return the recipe whose name ends in ``name``, such as ``tvae-5_36``."""
    return next(recipe for recipe in recipes if recipe.name.endswith(f"/{name}"))
