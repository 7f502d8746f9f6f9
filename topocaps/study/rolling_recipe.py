"""Recipes of rolling VAEs."""

from __future__ import annotations

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
from topocaps.models.visible import Stretch, VisibleFrames, visible_settings
from topocaps.references import references
from topocaps.study.changes import check_fields, check_one_layer, optional, widths
from topocaps.study.fingerprint import of_topography, pairs, stable
from topocaps.study.recipe import FORMS, BaseRecipe, Form, recipe_of


@recipe_of(RollingVAE)
@dataclass(frozen=True, kw_only=True)
class RollingRecipe(BaseRecipe):
    """Recipe of a `RollingVAE`."""

    model: type[RollingVAE] = field(default=RollingVAE, init=False)
    topography: Topography
    motion: Motion = field(default_factory=Known)
    visible: VisibleFrames = field(default_factory=Stretch)
    keep: int | None = None  #: number of candidate motions that are decoded [all]
    #: widths of the perceptrons' layers, or width of the layer after convolutions
    hidden: tuple[int, ...] | None = None
    channels: tuple[int, ...] | None = None  #: of convolutional networks [perceptrons]
    likelihood: Likelihood = Likelihood.BERNOULLI
    prior: CodePrior = field(default_factory=StandardNormal)  #: prior of the code, or its name
    correction: int | None = None  #: hidden channels of a network that corrects the posterior

    def __post_init__(self) -> None:
        w = self.topography
        if w != Topography(w.capsules, w.shape, cyclic=w.cyclic):
            raise BadInput(
                "a rolling VAE uses only capsules, shape and cyclic of its topography: leave out "
                "the other settings"
            )
        check_fields(
            self,
            hidden=optional(widths),
            channels=optional(widths),
            keep=optional(whole_number),
            correction=optional(whole_number),
            likelihood=lambda _, value: Likelihood.of(value),
            prior=lambda _, value: CodePrior.of(value),
        )
        if self.channels is not None:
            check_one_layer(self.hidden)
        if None in (
            motion_settings(self.motion), visible_settings(self.visible), prior_settings(self.prior)
        ):  # fmt: skip
            raise BadInput(
                "a recipe records its motion, its visible frames and its prior, and cannot record "
                "a class of your own: train the model with tc.fit"
            )

    @property
    def citations(self) -> tuple[str, ...]:
        """BibTeX entries of the model and of the data."""
        return references(RollingVAE, self.data)

    def build(self, frame_shape: tuple[int, ...], seed: int) -> RollingVAE:
        """Return the model, initialised from ``seed``."""
        check_seed(seed)
        settings: dict[str, Any] = {
            "frame_shape": frame_shape,
            "topography": self.topography,
            "motion": self.motion,
            "visible": self.visible,
            "likelihood": self.likelihood,
            "keep": self.keep,
            "prior": self.prior,
            "correction": self.correction,
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
        """Return the recipe as plain data, without later settings that have their default.

        Run folders of earlier versions do not record them.
        """
        settings = super().to_json()
        if self.prior == StandardNormal():
            del settings["prior"]
        if self.correction is None:
            del settings["correction"]
        return settings

    def identity(self) -> dict[str, Any]:
        return super().identity() | stable(
            "rolling-vae",
            topography=(of_topography(self.topography), None),
            motion=(motion_settings(self.motion), None),
            visible=(visible_settings(self.visible), None),
            **pairs(self, keep=None, hidden=None, channels=None, likelihood="bernoulli"),
            prior=(prior_settings(self.prior), {"kind": "normal"}),
            correction=(self.correction, None),
        )


FORMS |= {
    "motion": Form(motion_settings, motion_from),
    "prior": Form(prior_settings, prior_from),
}
