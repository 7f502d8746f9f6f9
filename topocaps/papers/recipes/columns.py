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

_ENDINGS = {"wn": Norm.WEIGHT, "pgd": Norm.PROJECTED}  # of names
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

    def table(self, rows: Mapping[str, Mapping[str, Any]]) -> tuple[Recipe, ...]:
        """Return the recipes of a table from what the paper reports of each column."""
        return tuple(self.column(name, claims) for name, claims in rows.items())

    def column(self, name: str, claims: Mapping[str, Any] | None = None) -> Recipe:
        """Return the recipe of a column.

        ``name`` is "vae", or "tvae" or "bubble" and L, and what distinguishes the column from
        others: ``bubble-5_36-k3`` has another K, ``vae-wn`` another norm. Otherwise K and the norm
        are those of the edition, and the VAE has no norm.
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
        """Return the settings of a TVAE, which is ``shifting``, or of a Bubble."""
        edition, single = self.edition, window == 1
        clip = edition.clip_single if single else edition.clip
        if reach is None:
            reach = edition.reach_single if single else edition.reach
            reach = window if edition.whole_bubbles and not shifting else reach
        over = "single frames" if single else f"{window} frames"
        coherence = "shifting" if shifting else "stationary"
        # a window of one frame, a reach of one site and a Bubble have no band and so no corners
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
        """Return the frames of 2L: of "5_36" (L = 5/36), of "0" a single one."""
        part, _, whole = length.partition("_")
        return 2 * int(part) * self.frames // int(whole) if whole else 1

    def _topography(self, **settings: Any) -> Topography:
        return Topography(capsules=self.frames, shape=(self.frames,), **settings)


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
