"""A recipe of a topographic model: everything that decides a run, as data."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from topocaps.arithmetic import seeded
from topocaps.data.sequences import SequenceSet
from topocaps.errors import BadInput, check_seed, non_negative, one_of, whole_number
from topocaps.latents.learned import Learned
from topocaps.latents.topography import Topography
from topocaps.models import VAE, TopographicVAE
from topocaps.models.convolutional import convolutional
from topocaps.models.likelihoods import Likelihood
from topocaps.models.networks import Fan, Norm
from topocaps.recipes.base import BaseRecipe
from topocaps.recipes.fingerprint import of_topography, stable
from topocaps.references import references


@dataclass(frozen=True, kw_only=True)
class Recipe(BaseRecipe):
    """Data, topographic model, training, and what the papers claim for them."""

    topography: Topography
    model: type[TopographicVAE] | type[VAE] = TopographicVAE
    hidden: tuple[int, ...] | None = None  #: an encoder's layers; the paper's where None
    convolutional: bool = False  #: instead of multilayer perceptrons (not the paper's)
    mu: float = -30.0
    norm: Norm = Norm.NONE
    likelihood: Likelihood = Likelihood.BERNOULLI
    centred: bool = False  #: the decoder sees t less its mean under the prior (not the paper's)
    learned: Learned = Learned.NOTHING  #: of the topography
    sparsity: float = 0.0  #: price of capsules that stand out, in nats
    encoder_fan: Fan = Fan.IN  #: which side of a layer bounds the encoders' initial weights
    decoder_fan: Fan = Fan.IN  #: the same for the decoder
    epsilon: float = 0.0  #: number added to every energy
    rate: float = 1.0  #: sites a frame that the data ask for
    closed: bool = True  #: sequences come round
    unseen_window: int | None = None  #: traversal predicts frames outside it; else the model's own

    def __post_init__(self) -> None:
        hidden = (self.hidden,) if isinstance(self.hidden, int) else self.hidden
        if hidden is not None and not (
            isinstance(hidden, tuple) and all(isinstance(h, int) and h > 0 for h in hidden)
        ):
            raise BadInput(f"hidden must be widths such as 300,200, not {self.hidden!r}")
        object.__setattr__(self, "hidden", hidden)
        if isinstance(self.mu, bool) or not isinstance(self.mu, int | float):
            raise BadInput(f"mu must be a number, not {self.mu!r}")
        if not math.isfinite(self.mu):
            raise BadInput(f"mu must be finite, not {self.mu}")
        for name in ("centred", "closed", "convolutional"):
            if not isinstance(getattr(self, name), bool):
                raise BadInput(f"{name} must be true or false, not {getattr(self, name)!r}")
        number = isinstance(self.rate, int | float) and not isinstance(self.rate, bool)
        if not number or not 0 < self.rate < math.inf:
            raise BadInput(f"rate must be more than 0 sites a frame, not {self.rate!r}")
        if not isinstance(self.sparsity, int | float) or not 0 <= self.sparsity < math.inf:
            raise BadInput(f"sparsity must be 0 or more, not {self.sparsity!r}")
        if self.closed and not self.topography.cyclic:
            raise BadInput(
                "capsules with open ends are for sequences that do not come round: closed=false"
            )
        if self.unseen_window is not None:
            window = whole_number("unseen_window", self.unseen_window)
            if window < self.topography.window:
                raise BadInput(
                    f"unseen_window {window} is less than the model's window "
                    f"{self.topography.window}: what the model has seen is not unseen"
                )
        object.__setattr__(self, "epsilon", non_negative("epsilon", self.epsilon))
        for name, kind in (
            ("norm", Norm), ("learned", Learned), ("encoder_fan", Fan), ("decoder_fan", Fan),
        ):  # fmt: skip
            object.__setattr__(self, name, one_of(kind, name, getattr(self, name)))
        object.__setattr__(self, "likelihood", Likelihood.of(self.likelihood))
        if self.convolutional and (
            self.learned is not Learned.NOTHING or self.sparsity or self.norm is not Norm.NONE
        ):
            raise BadInput("convolutional networks have no norm, and no W to learn or be sparse")
        if self.convolutional and (self.encoder_fan, self.decoder_fan) != (Fan.IN, Fan.IN):
            raise BadInput(
                "encoder_fan and decoder_fan are of multilayer perceptrons: convolutional networks "
                "are initialised as PyTorch does it"
            )
        if self.model is VAE and (
            self.learned is not Learned.NOTHING or self.sparsity or self.epsilon
        ):
            raise BadInput(
                "a VAE has no W to learn, no energies to add epsilon to, and no capsules that "
                "could be sparse"
            )

    @property
    def citations(self) -> tuple[str, ...]:
        """BibTeX entries of the model and of the data."""
        return references(self.model, self.data)

    def build(self, frame_shape: tuple[int, ...], seed: int) -> TopographicVAE | VAE:
        """The model, initialised from ``seed``."""
        check_seed(seed)
        own = {
            "mu": self.mu,
            "centred": self.centred,
            "learned": self.learned,
            "sparsity": self.sparsity,
            "epsilon": self.epsilon,
        }
        settings: dict[str, Any] = {} if self.model is VAE else own
        with seeded(seed):
            if self.convolutional:
                return convolutional(
                    frame_shape, self.topography, self.model, likelihood=self.likelihood,
                    mu=self.mu, centred=self.centred, epsilon=self.epsilon,
                )  # fmt: skip
            return self.model.mlp(
                frame_shape=frame_shape,
                topography=self.topography,
                hidden=self.hidden,
                norm=self.norm,
                likelihood=self.likelihood,
                encoder_fan=self.encoder_fan,
                decoder_fan=self.decoder_fan,
                **settings,
            )

    def check(self, sequences: SequenceSet) -> None:
        if (self.unseen_window or 0) > sequences.frames:
            raise BadInput(
                f"unseen_window {self.unseen_window} is more than {sequences.frames} frames"
            )

    def settings(self) -> dict[str, Any]:
        """What a run folder records beside the model, the training and the seed."""
        walk = {"unseen_window": self.unseen_window, "rate": self.rate, "closed": self.closed}
        return super().settings() | walk

    def describe(self) -> dict[str, Any]:
        """The whole recipe as plain data."""
        return {
            **super().describe(),
            "model": self.model.__name__,
            "topography": self.topography.settings(),
            "hidden": self.hidden,
            "convolutional": self.convolutional,
            "mu": None if self.model is VAE else self.mu,
            "centred": self.centred and self.model is not VAE,
            "learned": self.learned.value,
            "sparsity": self.sparsity,
            "epsilon": self.epsilon,
            "norm": self.norm.value,
            "encoder_fan": self.encoder_fan.value,
            "decoder_fan": self.decoder_fan.value,
            "likelihood": self.likelihood.value,
        }

    def identity(self) -> dict[str, Any]:
        vae = self.model is VAE
        return super().identity() | stable(
            "vae" if vae else "topographic-vae",
            topography=(of_topography(self.topography), None),
            hidden=(self.hidden, None),
            networks=("convolutions" if self.convolutional else "perceptrons", "perceptrons"),
            mu=(None if vae else self.mu, None),
            norm=(self.norm.value, "none"),
            likelihood=(self.likelihood.value, "bernoulli"),
            centred=(self.centred and not vae, False),
            learned=(self.learned.value, "nothing"),
            sparsity=(self.sparsity, 0.0),
            encoder_fan=(self.encoder_fan.value, "in"),
            decoder_fan=(self.decoder_fan.value, "in"),
            epsilon=(self.epsilon, 0.0),
            rate=(self.rate, 1.0),
            closed=(self.closed, True),
            unseen_window=(self.unseen_window, None),
        )
