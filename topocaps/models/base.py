"""The interface of every model family, and the table of the families."""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar, Protocol, Self, TypeVar

import torch
from torch import Tensor, nn

from topocaps.errors import BadInput
from topocaps.latents.masking import check_tensor, zero_missing
from topocaps.latents.topography import Topography
from topocaps.models.likelihoods import Likelihood
from topocaps.models.networks import Linear
from topocaps.models.visible import visible_from

#: A function that returns standard normal numbers in the shape of its argument.
Noise = Callable[[Tensor], Tensor]


class EvidenceLike(Protocol):
    """The result of ``evidence``: every term and monitor that the model names is an attribute.

    Each is (batch, time), in nats unless it is a monitor.
    """

    @property
    def elbo(self) -> Tensor:
        """Lower bound on log p(x), or its estimate if the model's ``is_bound`` is False."""

    @property
    def objective(self) -> Tensor:
        """Quantity that training maximises: ``elbo``, less a penalty if there is one."""


class GenerativeModel(nn.Module, ABC):
    """Base of models of frames x, (batch, time, *frame), that training fits by a bound.

    A family defines ``terms``, ``likelihood``, ``frame_shape``, ``noise_shapes`` and ``evidence``.
    Everything else has a default. To be loaded from run folders without a model to load into, a
    family sets ``config`` and is decorated with `family`.
    """

    #: Names of the terms of the bound: the bound, log p(x|t), and what is subtracted from it.
    terms: ClassVar[tuple[str, ...]]
    #: Names of other attributes of the evidence that training records and prints.
    monitors: ClassVar[tuple[str, ...]] = ()
    citations: ClassVar[tuple[str, ...]]  #: BibTeX entries of the source of the model
    likelihood: Likelihood  #: of the frames; it decides what values they may have
    frame_shape: tuple[int, ...] | None  #: shape of one frame, or None if it is not known
    config: dict[str, Any] | None = None  #: settings that rebuild the model; None for own networks
    #: Whether ``torch.func.vmap`` supports ``evidence``, which then draws from ``noise`` alone, so
    #: that many models train as one program. A subclass does not inherit the value: it sets it.
    supports_vmap: ClassVar[bool] = False

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        cls.supports_vmap = vars(cls).get("supports_vmap", False)

    @property
    def recorded(self) -> tuple[str, ...]:
        """Names of the terms and the monitors, which training records in this order."""
        return self.terms + self.monitors

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> Self:
        """Return a new model of the settings that ``config`` recorded.

        By default these are the arguments of the constructor, and ``kind``.
        """
        return cls(**{name: value for name, value in config.items() if name != "kind"})

    @property
    def is_bound(self) -> bool:
        """Whether `elbo` lower-bounds log p(x)."""
        return True

    @property
    @abstractmethod
    def noise_shapes(self) -> list[tuple[int, ...]]:
        """Shapes of the standard normal numbers that ``evidence`` needs for one frame."""

    @abstractmethod
    def evidence(
        self, x: Tensor, noise: Noise = torch.randn_like, mask: Tensor | None = None
    ) -> EvidenceLike:
        """Return the terms, the monitors and the objective, each (batch, time).

        Args:
            noise: function that returns standard normal numbers in the shape of its argument.
            mask: booleans (batch, time), True where a frame is present. The terms of missing frames
                are 0, so the sum over time bounds the evidence of the frames that are present.
                A family that does not support masks raises `BadInput`.
        """

    def forward(self, x: Tensor, mask: Tensor | None = None) -> EvidenceLike:
        """Check the frames, then return their ``evidence``; missing frames may hold NaN."""
        return self.evidence(self.checked(x, mask), mask=mask)

    def checked(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        """Return the frames, zero where they are missing, if the model can take them."""
        x = zero_missing(x, mask)
        self.check(x, mask)
        return x

    def check(self, x: Tensor, mask: Tensor | None = None) -> None:
        """Raise `BadInput` if this model cannot take these frames, or a mask."""
        check_tensor(x)
        shape = self.frame_shape
        if shape is not None and (x.ndim < 3 or tuple(x.shape[2:]) != tuple(shape)):
            grey = tuple(shape) == (1, *x.shape[2:])
            raise BadInput(
                f"frames must be (batch, time, *frame) with frame {tuple(shape)}, "
                f"not {tuple(x.shape)}{': grey ones need a channel, x[:, :, None]' * grey}"
            )
        check_values(x, self.likelihood)
        check_place(x, self)

    def log_px(self, x: Tensor, samples: int = 10, mask: Tensor | None = None) -> Tensor:
        """Return the importance-weighted bound on log p(x_1..S), nats a present frame: (batch,).

        A family without importance weights raises `BadInput`.
        """
        raise BadInput(f"a {type(self).__name__} has no importance weights: ask for its elbo")

    def project(self) -> None:
        """Project parameters onto their constraints, after each optimiser step.

        By default these are the rows of every `Linear` whose norm asks for it.
        """
        for module in self.modules():
            if isinstance(module, Linear):
                module.project()

    def lr_scale(self, name: str) -> float:
        """Return the factor that scales the learning rate of a parameter."""
        return 1.0

    def stack_key(self) -> tuple[object, ...] | None:
        """Return what models of one stack have in common beside their networks.

        None, for a model that trains by itself, unless ``evidence`` counts axes from the end, so
        that parameters and frames may have an axis for several models in front, or is mapped.
        """
        return () if self.supports_vmap else None

    def join(self, members: Sequence[GenerativeModel], frames: int) -> None:
        """Take over what differs between ``members`` beside tensors, in a copy of the first.

        The copy will hold the parameters of all members, and train on sequences of ``frames``.
        """

    def make_compilable(self, frames: int) -> None:
        """Replace parts that compilers do not support, in a copy that trains on ``frames`` frames.

        By default there are none.
        """

    def diagnose(self, means: Mapping[str, float]) -> str | None:
        """Return what is wrong with a model whose terms and monitors have these means, or None.

        The means are finite; values that are not finite are found without this method.
        """
        return None

    def summary(self, means: Mapping[str, float]) -> str:
        """Return what training prints of these means of terms and monitors."""
        bound, log_px, *subtracted = self.terms
        value = bound if self.is_bound else "value (no bound)"
        parts = "".join(f" - {name} {means[name]:.1f}" for name in subtracted)
        rest = "".join(f", {name} {means[name]:.2f}" for name in self.monitors)
        terms = f"{parts}{rest}".replace("_", " ")
        return f"{value} {means[bound]:.1f} = {means[log_px]:.1f}{terms}"


#: Functions that build a model from its ``config``, by ``networks`` if given, otherwise ``kind``.
FAMILIES: dict[str, Callable[[dict[str, Any]], GenerativeModel]] = {}
Family = TypeVar("Family", bound=type[GenerativeModel])


def family(model: Family) -> Family:
    """Add a family to `FAMILIES` under its class name, as a decorator of the class."""
    FAMILIES[model.__name__] = model.from_config
    return model


def build(config: dict[str, Any]) -> GenerativeModel:
    """Return a new model from the ``config`` of one."""
    kind: Any = config.get("kind")
    networks: Any = config.get("networks", kind)
    for name in (kind, networks):
        if name not in FAMILIES:
            raise BadInput(f"this version knows no model of kind {name!r}")
    try:
        return FAMILIES[networks](config)
    except KeyError as error:
        raise BadInput(f"the config of a {kind} needs the setting {error}") from error
    except TypeError as error:
        unknown = re.search(r"unexpected keyword argument ('\w+')", str(error))
        raise BadInput(
            f"this version does not know the setting {unknown[1]} of a {kind}"
            if unknown
            else f"this version cannot build a {kind} from this config: {error}"
        ) from error


def settings_in(config: dict[str, Any]) -> dict[str, Any]:
    """Return the settings of a ``config`` without its kind, and its topography as an object."""
    settings = {name: value for name, value in config.items() if name != "kind"}
    if "visible" in settings:
        settings["visible"] = visible_from(settings["visible"])
    return settings | {"topography": Topography(**config["topography"])}


def check_values(x: Tensor, likelihood: Likelihood = Likelihood.BERNOULLI) -> None:
    """Raise `BadInput` for frames that are not finite or not in the domain of the likelihood."""
    if not x.is_floating_point():
        raise BadInput(f"frames must be floating point, not {x.dtype}")
    if x.numel() == 0:
        raise BadInput(f"there are no frames in an array of shape {tuple(x.shape)}")
    low, high = (v.item() for v in x.aminmax())
    if not (x.sum().isfinite() or x.isfinite().all()):
        raise BadInput("frames hold NaN or infinite values")
    likelihood.check_domain(low, high)


def check_place(x: Tensor, model: nn.Module) -> None:
    """Raise `BadInput` for frames of another type, or on another device, than the model."""
    own = next(model.parameters(), x)
    if (x.dtype, x.device) != (own.dtype, own.device):
        raise BadInput(
            f"frames are {x.dtype} on {x.device}, the model is {own.dtype} on {own.device}: "
            "move one to the other with .to(…)"
        )
