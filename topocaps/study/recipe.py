"""Recipes: everything that decides a run, as data, for each family of models."""

from __future__ import annotations

import functools
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from typing import Any, Self, TypeVar

from topocaps.capsules import PartWhole, PartWholeSettings
from topocaps.data.sequences import SequenceSet
from topocaps.device import seeded
from topocaps.errors import BadInput, check_seed, non_negative, one_of, positive, whole_number
from topocaps.latents.learned import Learned
from topocaps.latents.topography import Topography
from topocaps.metrics.rolled_traversal import TraversalOptions
from topocaps.models import VAE, TopographicVAE
from topocaps.models.base import GenerativeModel
from topocaps.models.convolutional import RELU, SILU, convolutional
from topocaps.models.likelihoods import Likelihood
from topocaps.models.networks import Fan, Norm
from topocaps.references import references
from topocaps.study.changes import changed
from topocaps.study.data import DATA, SOME, Data, Mnist
from topocaps.study.fingerprint import (
    fingerprint,
    of_part_whole,
    of_topography,
    of_training,
    stable,
)
from topocaps.training import Training


@dataclass(frozen=True, kw_only=True)
class BaseRecipe(ABC):
    """Data, training, and what a paper claims for them; what is trained says the recipe's kind."""

    name: str
    about: str
    data: Data
    training: Training
    claims: Mapping[str, Any] = field(default_factory=dict)
    edition: str = "topocaps"  #: which paper's settings these are; this library's own by default
    start: BaseRecipe | None = None  #: whose weights, from the same seed, training starts from

    @abstractmethod
    def build(self, frame_shape: tuple[int, ...], seed: int) -> GenerativeModel:
        """The model, initialised from ``seed``."""

    def check(self, sequences: SequenceSet) -> None:
        """Refuse sequences that the settings do not suit, before anything is built."""
        return

    def shortened(self, epochs: int) -> Self:
        """To try it out: fewer epochs, and no more sequences measured than need be."""
        data, start = self.data, self.start
        if isinstance(data, Mnist) and data.evaluated is None:
            data = replace(data, evaluated=SOME)
        training = replace(self.training, epochs=epochs)
        return replace(self, data=data, training=training, start=start and start.shortened(epochs))

    def to_json(self) -> dict[str, Any]:
        """Return the recipe as plain data; ``from_json`` makes the same recipe of it."""
        return {
            "name": self.name,
            "about": self.about,
            "data": {"kind": type(self.data).__name__, **asdict(self.data)},
            "training": self.training.to_json(),
            "claims": dict(self.claims),
            "edition": self.edition,
            **({} if self.start is None else {"start": self.start.to_json()}),
        }

    @staticmethod
    def from_json(settings: Mapping[str, Any]) -> BaseRecipe:
        """Return the recipe that ``to_json`` wrote, or that a run folder recorded.

        The family is that of the recorded model. Keys that are no settings of a recipe, such as
        those that a run folder adds, are ignored.
        """
        model = settings["model"]
        kind = model["kind"] if isinstance(model, Mapping) else model
        if kind not in FAMILIES:
            raise BadInput(f"this version has no recipes of {kind!r} models")
        family = FAMILIES[kind]
        told = {
            f.name: settings[f.name] for f in fields(family) if settings.get(f.name) is not None
        }
        read = {name: READ.get(name, _unchanged)(value) for name, value in told.items()}
        return family(**read)

    @abstractmethod
    def identity(self) -> dict[str, Any]:
        """Return all settings that decide the result of a run, under keys that never change.

        The seed, the recipe's name, its description and its claims do not belong to them.
        """
        return {
            "data": self.data.identity(),
            "training": of_training(self.training),
            **({} if self.start is None else {"start": self.start.identity()}),
        }

    @property
    def fingerprint(self) -> str:
        """The digest of ``identity``."""
        return fingerprint(self.identity())

    def change(self, changes: Iterable[str]) -> Self:
        """With ``key=value`` settings; a key is a path such as topography.window, or its end.

        What its start has alike stays alike, but for how it is trained: there, only the epochs.

        >>> import topocaps as tc
        >>> tc.recipes.find("sprites/tvae").change(["window=11", "lr=1e-3"]).topography.window
        11
        """
        return functools.reduce(changed, changes, self)


#: Classes of recipes by the kind of their models. A family joins with the decorator `recipe_of`.
FAMILIES: dict[str, type[BaseRecipe]] = {}
Family = TypeVar("Family", bound=type[BaseRecipe])


def recipe_of(*models: type[GenerativeModel]) -> Callable[[Family], Family]:
    """Add the recipes of a family of models, as a decorator, so that ``from_json`` finds them."""

    def join(recipe: Family) -> Family:
        FAMILIES.update({model.__name__: recipe for model in models})
        return recipe

    return join


@recipe_of(TopographicVAE, VAE)
@dataclass(frozen=True, kw_only=True)
class Recipe(BaseRecipe):
    """Data, topographic model, training, and what the papers claim for them."""

    topography: Topography
    model: type[TopographicVAE] | type[VAE] = TopographicVAE
    hidden: tuple[int, ...] | None = None  #: an encoder's layers; the paper's where None
    convolutional: bool = False  #: instead of multilayer perceptrons (not the paper's)
    #: of convolutional networks like those of a `RollingVAE`, with at most one ``hidden`` layer
    channels: tuple[int, ...] | None = None
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
        if self.channels is not None:
            channels = (self.channels,) if isinstance(self.channels, int) else self.channels
            channels = tuple(whole_number("channels", count) for count in channels)
            object.__setattr__(self, "channels", channels)
            if not self.convolutional:
                raise BadInput("channels are of convolutional networks: set convolutional=true")
        if isinstance(self.mu, bool) or not isinstance(self.mu, int | float):
            raise BadInput(f"mu must be a number, not {self.mu!r}")
        if not math.isfinite(self.mu):
            raise BadInput(f"mu must be finite, not {self.mu}")
        for name in ("centred", "closed", "convolutional"):
            if not isinstance(getattr(self, name), bool):
                raise BadInput(f"{name} must be true or false, not {getattr(self, name)!r}")
        object.__setattr__(self, "rate", positive("rate", self.rate))
        for name in ("sparsity", "epsilon"):
            object.__setattr__(self, name, non_negative(name, getattr(self, name)))
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
        object.__setattr__(self, "likelihood", Likelihood.of(self.likelihood))
        for name, kind in (
            ("norm", Norm), ("learned", Learned), ("encoder_fan", Fan), ("decoder_fan", Fan),
        ):  # fmt: skip
            object.__setattr__(self, name, one_of(kind, name, getattr(self, name)))
        if self.convolutional and (
            self.learned is not Learned.NOTHING or self.sparsity or self.norm is not Norm.NONE
        ):
            raise BadInput("convolutional networks have no norm, and no W to learn or be sparse")
        if self.convolutional and (self.encoder_fan, self.decoder_fan) != (Fan.IN, Fan.IN):
            raise BadInput(
                "encoder_fan and decoder_fan are of multilayer perceptrons: convolutional networks "
                "are initialised as PyTorch does it, or as He et al. (2015) do if channels are set"
            )
        if self.convolutional and self.hidden is not None:
            if self.channels is None:
                raise BadInput("hidden is of multilayer perceptrons: set hidden=none first")
            if len(self.hidden) > 1:
                raise BadInput("convolutional networks have at most one hidden layer")
        if self.model is VAE:
            for name, default in (
                ("mu", Recipe.mu), ("centred", False), ("learned", Learned.NOTHING),
                ("sparsity", 0.0), ("epsilon", 0.0),
            ):  # fmt: skip
                if getattr(self, name) != default:
                    raise BadInput(f"a VAE has no {name}: that is a setting of a TopographicVAE")

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
                    frame_shape, self.topography, self.model, self.channels, self.likelihood,
                    mu=self.mu, centred=self.centred, epsilon=self.epsilon,
                    hidden=self.hidden[0] if self.hidden else None,
                    activation=RELU if self.channels is None else SILU,
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

    @property
    def traversal_options(self) -> TraversalOptions:
        """How traversals are measured: the window outside which frames count, rate, closed time."""
        return TraversalOptions(self.unseen_window, self.rate, self.closed)

    def to_json(self) -> dict[str, Any]:
        return {
            **super().to_json(),
            "unseen_window": self.unseen_window,
            "rate": self.rate,
            "closed": self.closed,
            "model": self.model.__name__,
            "topography": self.topography.settings(),
            "hidden": self.hidden,
            "convolutional": self.convolutional,
            "channels": self.channels,
            "mu": None if self.model is VAE else self.mu,
            "centred": self.centred,
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
            channels=(self.channels, None),
            mu=(None if vae else self.mu, None),
            norm=(self.norm.value, "none"),
            likelihood=(self.likelihood.value, "bernoulli"),
            centred=(self.centred, False),
            learned=(self.learned.value, "nothing"),
            sparsity=(self.sparsity, 0.0),
            encoder_fan=(self.encoder_fan.value, "in"),
            decoder_fan=(self.decoder_fan.value, "in"),
            epsilon=(self.epsilon, 0.0),
            rate=(self.rate, 1.0),
            closed=(self.closed, True),
            unseen_window=(self.unseen_window, None),
        )


@recipe_of(PartWhole)
@dataclass(frozen=True, kw_only=True)
class PartWholeRecipe(BaseRecipe):
    """Data, part-whole model and training."""

    capsules: PartWholeSettings = field(default_factory=PartWholeSettings)
    probed: int | None = None  #: training images that probes are fitted on; all where None

    def __post_init__(self) -> None:
        if self.probed is not None:
            whole_number("probed", self.probed)

    @property
    def citations(self) -> tuple[str, ...]:
        """BibTeX entries of the model and of the data."""
        return references(PartWhole, self.data)

    def build(self, frame_shape: tuple[int, ...], seed: int) -> PartWhole:
        check_seed(seed)
        with seeded(seed):
            return PartWhole(frame_shape, self.capsules)

    def to_json(self) -> dict[str, Any]:
        return {
            **super().to_json(),
            "probed": self.probed,
            "model": PartWhole.__name__,
            "capsules": asdict(self.capsules),
        }

    def identity(self) -> dict[str, Any]:
        return super().identity() | stable(
            "part-whole", capsules=(of_part_whole(self.capsules), None), probed=(self.probed, None)
        )


def _unchanged(value: Any) -> Any:
    return value


def _tuples(value: Any) -> Any:
    """Return the value with tuples in place of JSON's lists."""
    if isinstance(value, Mapping):
        return {key: _tuples(item) for key, item in value.items()}
    return tuple(map(_tuples, value)) if isinstance(value, list | tuple) else value


def _data(settings: Mapping[str, Any]) -> Data:
    told = {key: value for key, value in settings.items() if key != "kind"}
    return DATA[settings["kind"]](**told)


def _topography(settings: Mapping[str, Any]) -> Topography:
    return Topography(**_tuples(settings))


MODELS: dict[str, type[TopographicVAE] | type[VAE]] = {
    kind.__name__: kind for kind in (TopographicVAE, VAE)
}

#: How the fields of recipes are made of plain data, where they are not plain themselves.
READ: dict[str, Callable[[Any], Any]] = {
    "data": _data,
    "training": Training.from_json,
    "start": BaseRecipe.from_json,
    "claims": _tuples,
    "hidden": _tuples,
    "channels": _tuples,
    "topography": _topography,
    "model": lambda model: MODELS[model["kind"] if isinstance(model, Mapping) else model],
    "capsules": lambda capsules: PartWholeSettings(**capsules),
}
