"""Recipes of rolling VAEs."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from topocaps.data.sequences import SequenceSet
from topocaps.device import seeded
from topocaps.errors import BadInput, check_seed, whole_number
from topocaps.latents.motion import Known, Motion, motion_from, motion_settings
from topocaps.latents.topography import Topography
from topocaps.models.likelihoods import Likelihood
from topocaps.models.priors import CodePrior, StandardNormal, prior_from, prior_settings
from topocaps.models.rolling import RollingVAE
from topocaps.models.visible import Stretch, VisibleFrames, visible_from, visible_settings
from topocaps.references import references
from topocaps.study.fingerprint import of_topography, stable
from topocaps.study.recipe import READ, BaseRecipe, recipe_of


@recipe_of(RollingVAE)
@dataclass(frozen=True, kw_only=True)
class RollingRecipe(BaseRecipe):
    """Data, rolling VAE and training."""

    topography: Topography
    motion: Motion = field(default_factory=Known)
    visible: VisibleFrames = field(default_factory=Stretch)
    keep: int | None = None  #: candidate motions that are decoded; all where None
    #: widths of perceptrons, or of one layer after convolutions
    hidden: tuple[int, ...] | None = None
    channels: tuple[int, ...] | None = None  #: of convolutional networks; perceptrons where None
    likelihood: Likelihood = Likelihood.BERNOULLI
    prior: CodePrior = field(default_factory=StandardNormal)  #: of the code, or its name

    def __post_init__(self) -> None:
        given = self.topography
        if given != Topography(given.capsules, given.shape, cyclic=given.cyclic):
            raise BadInput(
                "a rolling VAE takes capsules, shape and cyclic of its topography: the other "
                "settings are those of a TopographicVAE"
            )
        for name in ("hidden", "channels"):
            value = getattr(self, name)
            if value is not None:
                widths = tuple(value) if isinstance(value, Iterable) else (value,)
                widths = tuple(whole_number(name, width) for width in widths)
                object.__setattr__(self, name, widths)
        if self.channels is not None and self.hidden is not None and len(self.hidden) > 1:
            raise BadInput("convolutional networks have at most one hidden layer")
        object.__setattr__(self, "prior", CodePrior.of(self.prior))
        if None in (
            motion_settings(self.motion), visible_settings(self.visible), prior_settings(self.prior)
        ):  # fmt: skip
            raise BadInput(
                "a recipe records its motion, its visible frames and its prior: a class of your "
                "own has no settings, so give the model to tc.fit"
            )
        if self.keep is not None:
            object.__setattr__(self, "keep", whole_number("keep", self.keep))
        object.__setattr__(self, "likelihood", Likelihood.of(self.likelihood))

    @property
    def citations(self) -> tuple[str, ...]:
        """BibTeX entries of the model and of the data."""
        return references(RollingVAE, self.data)

    def build(self, frame_shape: tuple[int, ...], seed: int) -> RollingVAE:
        check_seed(seed)
        settings: dict[str, Any] = {
            "frame_shape": frame_shape,
            "topography": self.topography,
            "motion": self.motion,
            "visible": self.visible,
            "likelihood": self.likelihood,
            "keep": self.keep,
            "prior": self.prior,
        }
        with seeded(seed):
            if self.channels is None:
                return RollingVAE.mlp(hidden=self.hidden, **settings)
            hidden = self.hidden[0] if self.hidden else None
            return RollingVAE.convolutional(channels=self.channels, hidden=hidden, **settings)

    def check(self, sequences: SequenceSet) -> None:
        if sequences.frames < 3:
            raise BadInput(
                "a rolling VAE infers the motion and predicts hidden frames: sequences need 3 or "
                f"more frames, not {sequences.frames}"
            )

    def to_json(self) -> dict[str, Any]:
        return {
            **super().to_json(),
            "model": RollingVAE.__name__,
            "topography": self.topography.settings(),
            "motion": motion_settings(self.motion),
            "visible": visible_settings(self.visible),
            "keep": self.keep,
            "hidden": self.hidden,
            "channels": self.channels,
            "likelihood": self.likelihood.value,
            **({} if self.prior == StandardNormal() else {"prior": prior_settings(self.prior)}),
        }

    def identity(self) -> dict[str, Any]:
        return super().identity() | stable(
            "rolling-vae",
            topography=(of_topography(self.topography), None),
            motion=(motion_settings(self.motion), None),
            visible=(visible_settings(self.visible), None),
            keep=(self.keep, None),
            hidden=(self.hidden, None),
            channels=(self.channels, None),
            likelihood=(self.likelihood.value, "bernoulli"),
            prior=(prior_settings(self.prior), {"kind": "normal"}),
        )


READ |= {"motion": motion_from, "visible": visible_from, "prior": prior_from}
