"""A recipe: everything that decides a run, as data."""

from __future__ import annotations

import ast
import math
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field, fields, is_dataclass, replace
from typing import Any

from topocaps.arithmetic import seeded
from topocaps.errors import BadInput, whole_number
from topocaps.learned import Learned
from topocaps.models import MODELS, VAE, TopographicVAE
from topocaps.networks import Likelihood, Norm
from topocaps.recipes.data import Data
from topocaps.topography import Topography
from topocaps.training import Training
from topocaps.training.run import describe_training


@dataclass(frozen=True)
class Recipe:
    """Data, model, training, and what the papers claim for them."""

    name: str
    about: str
    data: Data
    topography: Topography
    training: Training
    model: type[TopographicVAE] | type[VAE] = TopographicVAE
    hidden: tuple[int, ...] | None = None  #: an encoder's layers; the paper's where None
    mu: float = -30.0
    norm: Norm = Norm.NONE
    likelihood: Likelihood = Likelihood.BERNOULLI
    centred: bool = False  #: the decoder sees t less its mean under the prior (not the paper's)
    learned: Learned = Learned.NOTHING  #: of the topography
    sparsity: float = 0.0  #: price of capsules that stand out, in nats
    rate: float = 1.0  #: sites a frame that the data ask for
    closed: bool = True  #: sequences come round
    unseen_window: int | None = None  #: traversal predicts frames outside it; else the model's own
    claims: Mapping[str, Any] = field(default_factory=dict)

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
        for name in ("centred", "closed"):
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
        for name, kind in (("norm", Norm), ("likelihood", Likelihood), ("learned", Learned)):
            value = getattr(self, name)
            try:
                object.__setattr__(self, name, kind(value))
            except ValueError:
                known = ", ".join(kind)
                raise BadInput(f"{name} must be one of {known}, not {value!r}") from None
        if self.model is VAE and (self.learned is not Learned.NOTHING or self.sparsity):
            raise BadInput("a VAE has no W to learn, and no capsules that could be sparse")

    def build(self, frame_shape: tuple[int, ...], seed: int) -> TopographicVAE | VAE:
        """The model, initialised from ``seed``."""
        if not 0 <= seed < 2**63:
            raise BadInput(f"a seed is a whole number from 0 to 2^63, not {seed}")
        own = {
            "mu": self.mu,
            "centred": self.centred,
            "learned": self.learned,
            "sparsity": self.sparsity,
        }
        settings: dict[str, Any] = {} if self.model is VAE else own
        with seeded(seed):
            return self.model.mlp(
                frame_shape=frame_shape,
                topography=self.topography,
                hidden=self.hidden,
                norm=self.norm,
                likelihood=self.likelihood,
                **settings,
            )

    def settings(self) -> dict[str, Any]:
        """What a run folder records beside the model, the training and the seed."""
        return {
            "name": self.name,
            "data": {"kind": type(self.data).__name__, **asdict(self.data)},
            "unseen_window": self.unseen_window,
            "rate": self.rate,
            "closed": self.closed,
            "claims": dict(self.claims),
        }

    def describe(self) -> dict[str, Any]:
        """The whole recipe as plain data."""
        model = next(name for name, kind in MODELS.items() if kind is self.model)
        return {
            **self.settings(),
            "about": self.about,
            "model": model,
            "topography": asdict(self.topography),
            "hidden": self.hidden,
            "mu": None if self.model is VAE else self.mu,
            "centred": self.centred and self.model is not VAE,
            "learned": self.learned.value,
            "sparsity": self.sparsity,
            "norm": self.norm.value,
            "likelihood": self.likelihood.value,
            "training": describe_training(self.training),
        }

    def change(self, changes: Iterable[str]) -> Recipe:
        """With ``key=value`` settings; a key is a path such as topography.window, or its end."""
        recipe = self
        for text in changes:
            key, equals, value = text.partition("=")
            if not equals:
                raise BadInput(f"a setting is key=value, not {text!r}")
            recipe = _replace_at(recipe, _find(recipe, key.strip()), _parse(value.strip()))
        return recipe


_FIXED = ("name", "about", "model", "claims")


def _keys(value: Any, path: tuple[str, ...] = ()) -> list[tuple[str, ...]]:
    """The paths of all settings that can be changed."""
    found = []
    for f in fields(value):
        inner = getattr(value, f.name)
        if path or f.name not in _FIXED:
            here = (*path, f.name)
            found += _keys(inner, here) if is_dataclass(inner) else [here]
    return found


def _find(recipe: Recipe, key: str) -> tuple[str, ...]:
    wanted = tuple(key.split("."))
    keys = _keys(recipe)
    found = [path for path in keys if path[-len(wanted) :] == wanted]
    if len(found) != 1:
        known = ", ".join(".".join(path) for path in keys)
        raise BadInput(f"there is no setting {key!r}; there are {known}")
    return found[0]


def _replace_at(value: Any, path: tuple[str, ...], new: Any) -> Any:
    name, *rest = path
    if rest:
        new = _replace_at(getattr(value, name), tuple(rest), new)
    try:
        return replace(value, **{name: new})
    except (TypeError, ValueError) as error:
        if isinstance(error, BadInput):
            raise
        raise BadInput(f"{name} cannot be {new!r}") from error


def _parse(text: str) -> Any:
    if text.lower() in ("true", "false", "none"):
        text = text.capitalize()
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError):
        return text
