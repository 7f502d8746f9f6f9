"""Recipes: all settings of a run as data, with a class for each family of models."""

from __future__ import annotations

import functools
import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from operator import methodcaller
from typing import Any, NamedTuple, Self, TypeVar

from topocaps.capsules import PartWhole, PartWholeSettings
from topocaps.data.sequences import SequenceSet
from topocaps.device import seeded
from topocaps.errors import (
    BadInput,
    check_seed,
    finite_number,
    non_negative,
    one_of,
    positive,
    whole_number,
)
from topocaps.latents.learned import Learned
from topocaps.latents.topography import Topography
from topocaps.metrics.rolled_traversal import TraversalOptions
from topocaps.models import VAE, TopographicVAE
from topocaps.models.base import GenerativeModel
from topocaps.models.convolutional import RELU, SILU, convolutional
from topocaps.models.likelihoods import Likelihood
from topocaps.models.networks import Fan, Norm
from topocaps.models.visible import VisibleFrames, visible_from, visible_settings
from topocaps.references import references
from topocaps.study.changes import (
    changed,
    check_fields,
    check_one_layer,
    optional,
    true_or_false,
    widths,
)
from topocaps.study.data import DATA, SOME, Data, Mnist
from topocaps.study.fingerprint import (
    fingerprint,
    of_part_whole,
    of_topography,
    of_training,
    pairs,
    plain,
    stable,
)
from topocaps.training import Training


@dataclass(frozen=True, kw_only=True)
class BaseRecipe(ABC):
    """Base of recipes: the data, the training, and the numbers that a paper reports for them.

    Subclasses add the model and its settings.
    """

    name: str
    about: str
    data: Data
    training: Training
    claims: Mapping[str, Any] = field(default_factory=dict)
    edition: str = "topocaps"  #: name of a paper's edition, or "topocaps" for our own settings
    #: recipe of the run from whose weights training starts; it has the same seed
    start: BaseRecipe | None = None

    @abstractmethod
    def build(self, frame_shape: tuple[int, ...], seed: int) -> GenerativeModel:
        """Return the model, initialised from ``seed``."""

    def check(self, sequences: SequenceSet) -> None:
        """Raise `BadInput` if the settings do not suit the sequences. Called before ``build``."""
        return

    def shortened(self, epochs: int) -> Self:
        """Return the recipe of a short trial: other ``epochs``, and few MNIST test sequences."""
        data, start = self.data, self.start
        if isinstance(data, Mnist) and data.evaluated is None:
            data = replace(data, evaluated=SOME)
        training = replace(self.training, epochs=epochs)
        return replace(self, data=data, training=training, start=start and start.shortened(epochs))

    def to_json(self) -> dict[str, Any]:
        """Return the recipe as plain data. ``from_json`` makes an equal recipe from it."""
        values = {f.name: getattr(self, f.name) for f in fields(self)}
        if self.start is None:
            del values["start"]
        return {
            name: None if value is None else _form(name).write(value)
            for name, value in values.items()
        }

    @staticmethod
    def from_json(settings: Mapping[str, Any]) -> BaseRecipe:
        """Return a recipe from the result of ``to_json`` or from the settings in a run folder.

        The class of the recipe follows from the recorded model. Keys that are not fields of a
        recipe, such as those that a run folder adds, are ignored.
        """
        model = settings["model"]
        kind = model["kind"] if isinstance(model, Mapping) else model
        if kind not in FAMILIES:
            raise BadInput(
                f"this version has no recipes of {kind!r} models: import the module that defines "
                "them"
            )
        family = FAMILIES[kind]
        given = [f.name for f in fields(family) if f.init and settings.get(f.name) is not None]
        return family(**{name: _form(name).read(settings[name]) for name in given})

    @abstractmethod
    def identity(self) -> dict[str, Any]:
        """Return all settings that decide the result of a run, under keys that never change.

        It leaves out the seed, the recipe's name, its description and its claims.
        """
        return {
            "data": self.data.identity(),
            "training": of_training(self.training),
            **({} if self.start is None else {"start": self.start.identity()}),
        }

    @property
    def fingerprint(self) -> str:
        """Digest of ``identity``."""
        return fingerprint(self.identity())

    def change(self, changes: Iterable[str]) -> Self:
        """Return the recipe with ``key=value`` settings changed.

        A key is a path such as ``topography.window``, or the end of a path. If ``start`` has the
        same value of a setting, it changes there as well. Settings of training change in ``start``
        only if they are numbers of epochs. An optimiser changes before its settings do.

        >>> import topocaps as tc
        >>> tc.recipes.find("sprites/tvae").change(["window=11", "lr=1e-3"]).topography.window
        11
        """
        optimiser_first = sorted(
            changes, key=lambda text: not re.match(r"[\w.]*optimiser\s*=", text)
        )
        return functools.reduce(changed, optimiser_first, self)


#: Classes of recipes by the name of their model class. The decorator `recipe_of` adds to it.
FAMILIES: dict[str, type[BaseRecipe]] = {}
Family = TypeVar("Family", bound=type[BaseRecipe])


def recipe_of(*models: type[GenerativeModel]) -> Callable[[Family], Family]:
    """Return a decorator that registers the recipe class of ``models`` for ``from_json``."""

    def join(recipe: Family) -> Family:
        FAMILIES.update({model.__name__: recipe for model in models})
        return recipe

    return join


@recipe_of(TopographicVAE, VAE)
@dataclass(frozen=True, kw_only=True)
class Recipe(BaseRecipe):
    """Recipe of a `TopographicVAE` or a `VAE`."""

    unseen_window: int | None = None  #: traversals predict frames outside it [the model's window]
    rate: float = 1.0  #: sites per frame by which latents have to roll to follow the data
    closed: bool = True  #: whether the last frame of a sequence is followed by the first
    model: type[TopographicVAE] | type[VAE] = TopographicVAE
    topography: Topography
    hidden: tuple[int, ...] | None = None  #: widths of the encoders' layers [the paper's]
    convolutional: bool = False  #: whether networks are convolutional (not in the paper)
    #: channels of convolutional networks like those of a `RollingVAE`, which have at most one
    #: ``hidden`` layer
    channels: tuple[int, ...] | None = None
    mu: float = -30.0  #: initial mu of Eq. 6
    centred: bool = False  #: whether the decoder gets t minus its prior mean (not in the paper)
    learned: Learned = Learned.NOTHING  #: which part of the topography is learned
    sparsity: float = 0.0  #: weight of the penalty on the spread of capsules, in nats
    epsilon: float = 0.0  #: number added to every energy
    visible: VisibleFrames | None = None  #: which frames are visible in training [all]
    norm: Norm = Norm.NONE  #: normalisation of weights
    encoder_fan: Fan = Fan.IN  #: which side of a layer bounds the encoders' initial weights
    decoder_fan: Fan = Fan.IN  #: the same for the decoder
    likelihood: Likelihood = Likelihood.BERNOULLI

    def __post_init__(self) -> None:
        check_fields(
            self,
            hidden=optional(widths),
            channels=optional(widths),
            convolutional=true_or_false,
            centred=true_or_false,
            closed=true_or_false,
            rate=positive,
            sparsity=non_negative,
            epsilon=non_negative,
            unseen_window=optional(whole_number),
            likelihood=lambda _, value: Likelihood.of(value),
            norm=functools.partial(one_of, Norm),
            learned=functools.partial(one_of, Learned),
            encoder_fan=functools.partial(one_of, Fan),
            decoder_fan=functools.partial(one_of, Fan),
        )
        finite_number("mu", self.mu)
        self._check_time()
        self._check_networks()
        for name, value in self._of_t.items():
            if self.model is VAE and value != getattr(Recipe, name):
                raise BadInput(f"a VAE has no {name}: that is a setting of a TopographicVAE")

    def _check_time(self) -> None:
        if self.closed and not self.topography.cyclic:
            raise BadInput(
                "capsules with open ends need sequences that are not closed: set closed=false"
            )
        if self.unseen_window is not None and self.unseen_window < self.topography.window:
            raise BadInput(
                f"unseen_window {self.unseen_window} is less than the model's window "
                f"{self.topography.window}: set unseen_window to at least {self.topography.window}"
            )

    def _check_networks(self) -> None:
        if not self.convolutional:
            if self.channels is not None:
                raise BadInput("channels needs convolutional networks: set convolutional=true")
            return
        if self.learned is not Learned.NOTHING or self.sparsity or self.norm is not Norm.NONE:
            raise BadInput(
                "convolutional networks do not support norm, learned and sparsity: leave them out"
            )
        if (self.encoder_fan, self.decoder_fan) != (Fan.IN, Fan.IN):
            raise BadInput(
                "encoder_fan and decoder_fan are settings of multilayer perceptrons: leave them "
                "out for convolutional networks"
            )
        if self.hidden is not None and self.channels is None:
            raise BadInput(
                "convolutional networks without channels have no hidden layers: set hidden=none "
                "first"
            )
        check_one_layer(self.hidden)

    @property
    def _of_t(self) -> dict[str, Any]:
        """Settings that a `TopographicVAE` has and a `VAE` has not."""
        names = ("mu", "centred", "learned", "sparsity", "epsilon", "visible")
        return {name: getattr(self, name) for name in names}

    @property
    def citations(self) -> tuple[str, ...]:
        """BibTeX entries of the model and of the data."""
        return references(self.model, self.data)

    def build(self, frame_shape: tuple[int, ...], seed: int) -> TopographicVAE | VAE:
        """Return the model, initialised from ``seed``."""
        check_seed(seed)
        with seeded(seed):
            if self.convolutional:
                return convolutional(
                    frame_shape, self.topography, self.model, self.channels, self.likelihood,
                    mu=self.mu, centred=self.centred, epsilon=self.epsilon, visible=self.visible,
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
                **({} if self.model is VAE else self._of_t),
            )

    def check(self, sequences: SequenceSet) -> None:
        if (self.unseen_window or 0) > sequences.frames:
            raise BadInput(
                f"unseen_window {self.unseen_window} is longer than sequences of "
                f"{sequences.frames} frames: set unseen_window to at most {sequences.frames}"
            )

    @property
    def traversal_options(self) -> TraversalOptions:
        """Options of the traversals that are measured."""
        return TraversalOptions(self.unseen_window, self.rate, self.closed)

    def to_json(self) -> dict[str, Any]:
        return {**super().to_json(), "mu": None if self.model is VAE else self.mu}

    def identity(self) -> dict[str, Any]:
        vae = self.model is VAE
        return super().identity() | stable(
            "vae" if vae else "topographic-vae",
            topography=(of_topography(self.topography), None),
            hidden=(self.hidden, None),
            networks=("convolutions" if self.convolutional else "perceptrons", "perceptrons"),
            channels=(self.channels, None),
            mu=(None if vae else self.mu, None),
            **pairs(self, norm="none", likelihood="bernoulli", centred=False, learned="nothing"),
            **pairs(self, sparsity=0.0, encoder_fan="in", decoder_fan="in", epsilon=0.0),
            **pairs(self, rate=1.0, closed=True, unseen_window=None),
            visible=(self.visible and visible_settings(self.visible), None),
        )


@recipe_of(PartWhole)
@dataclass(frozen=True, kw_only=True)
class PartWholeRecipe(BaseRecipe):
    """Recipe of a `PartWhole` model."""

    probed: int | None = None  #: number of training images that probes are fitted on [all]
    model: type[PartWhole] = field(default=PartWhole, init=False)
    capsules: PartWholeSettings = field(default_factory=PartWholeSettings)

    def __post_init__(self) -> None:
        check_fields(self, probed=optional(whole_number))

    @property
    def citations(self) -> tuple[str, ...]:
        """BibTeX entries of the model and of the data."""
        return references(PartWhole, self.data)

    def build(self, frame_shape: tuple[int, ...], seed: int) -> PartWhole:
        check_seed(seed)
        with seeded(seed):
            return PartWhole(frame_shape, self.capsules)

    def identity(self) -> dict[str, Any]:
        return super().identity() | stable(
            "part-whole", capsules=(of_part_whole(self.capsules), None), probed=(self.probed, None)
        )


class Form(NamedTuple):
    """Functions that write the value of a field as plain data, and read it back."""

    write: Callable[[Any], Any]
    read: Callable[[Any], Any]


def _tuples(value: Any) -> Any:
    """Return the value with lists, as JSON has them, replaced by tuples."""
    if isinstance(value, Mapping):
        return {key: _tuples(item) for key, item in value.items()}
    return tuple(map(_tuples, value)) if isinstance(value, list | tuple) else value


def _data(settings: Mapping[str, Any]) -> Data:
    arguments = {key: value for key, value in settings.items() if key != "kind"}
    return DATA[settings["kind"]](**arguments)


def _model(recorded: str | Mapping[str, Any]) -> type[TopographicVAE] | type[VAE]:
    """Return the class of a model from its name, or from the settings in a run folder."""
    kind = recorded["kind"] if isinstance(recorded, Mapping) else recorded
    return {model.__name__: model for model in (TopographicVAE, VAE)}[kind]


_PLAIN = Form(plain, _tuples)
#: Forms of the fields whose values are not plain data, enumerations or tuples of them.
FORMS = {
    "data": Form(lambda data: {"kind": type(data).__name__, **asdict(data)}, _data),
    "training": Form(methodcaller("to_json"), Training.from_json),
    "start": Form(methodcaller("to_json"), BaseRecipe.from_json),
    "model": Form(lambda model: model.__name__, _model),
    "topography": Form(methodcaller("settings"), lambda settings: Topography(**_tuples(settings))),
    "capsules": Form(asdict, lambda settings: PartWholeSettings(**settings)),
    "visible": Form(visible_settings, visible_from),
}


def _form(name: str) -> Form:
    return FORMS.get(name, _PLAIN)
