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
    """Interface of the result of ``evidence``.

    Every term and monitor that the model names is an attribute, (batch, time). Terms are in nats.
    """

    @property
    def elbo(self) -> Tensor:
        """Lower bound on log p(x), or its estimate if the model's ``is_bound`` is False."""

    @property
    def objective(self) -> Tensor:
        """Quantity that training maximises: ``elbo``, minus the penalty if there is one."""


class GenerativeModel(nn.Module, ABC):
    """Base of models of frames x, (batch, time, *frame), that are trained by maximising a bound.

    A family defines ``terms``, ``likelihood``, ``frame_shape``, ``noise_shapes`` and ``evidence``.
    Everything else has a default. A family that sets ``config`` and is decorated with `family` can
    be loaded from a run folder alone. Other models need an instance to load the weights into.
    """

    #: Names of the terms of the bound, in this order: the bound, log p(x|t), the subtracted terms.
    terms: ClassVar[tuple[str, ...]]
    #: Names of other attributes of the evidence that training records and prints.
    monitors: ClassVar[tuple[str, ...]] = ()
    citations: ClassVar[tuple[str, ...]]  #: BibTeX entries of the papers that describe the model
    likelihood: Likelihood  #: of the frames; it determines their valid values
    frame_shape: tuple[int, ...] | None  #: shape of one frame, or None if it is not known
    #: settings that rebuild the model; None if it has networks that settings do not describe
    config: dict[str, Any] | None = None
    #: Whether ``torch.func.vmap`` supports ``evidence``, so that many models train as one program.
    #: All random numbers must then come from ``noise``. Subclasses do not inherit the value.
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
        """Return a new model with the settings in ``config``.

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
            x: frames, (batch, time, *frame).
            noise: function that returns standard normal numbers in the shape of its argument.
            mask: booleans (batch, time), True where a frame is present. The terms of missing frames
                are 0, so the sum over time bounds the evidence of the present frames. A family that
                does not support masks raises `BadInput`.
        """

    def forward(self, x: Tensor, mask: Tensor | None = None) -> EvidenceLike:
        """Check the frames and return their ``evidence``. Missing frames may hold NaN."""
        return self.evidence(self.checked(x, mask), mask=mask)

    def checked(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        """Return the frames, with zeros in place of missing ones, or raise `BadInput`."""
        x = zero_missing(x, mask)
        self.check(x, mask)
        return x

    def check(self, x: Tensor, mask: Tensor | None = None) -> None:
        """Raise `BadInput` if this model does not support these frames, or a mask."""
        check_tensor(x)
        shape = self.frame_shape
        if shape is not None and (x.ndim < 3 or tuple(x.shape[2:]) != tuple(shape)):
            grey = tuple(shape) == (1, *x.shape[2:])
            raise BadInput(
                f"frames must be (batch, time, *frame) with frame {tuple(shape)}, "
                f"not {tuple(x.shape)}{': grey frames need a channel axis, x[:, :, None]' * grey}"
            )
        check_values(x, self.likelihood)
        check_place(x, self)

    def log_px(self, x: Tensor, samples: int = 10, mask: Tensor | None = None) -> Tensor:
        """Return the importance-weighted bound on log p(x_1..S), in nats per frame: (batch,).

        A family without importance weights raises `BadInput`.

        Args:
            samples: number of samples of the posterior.
            mask: booleans (batch, time), True where a frame is present. The bound is then that of
                the present frames, divided by their number.
        """
        raise BadInput(f"a {type(self).__name__} has no importance weights: use evidence(x).elbo")

    def project(self) -> None:
        """Project parameters onto their constraints, after each optimiser step.

        By default this calls ``project`` of every `Linear`.
        """
        for module in self.modules():
            if isinstance(module, Linear):
                module.project()

    def lr_scale(self, name: str) -> float:
        """Return the factor by which the learning rate of a parameter is multiplied.

        Args:
            name: name of the parameter, as in ``named_parameters``.
        """
        return 1.0

    def stack_key(self) -> tuple[object, ...] | None:
        """Return a key of the settings that models of one stack must share, or None.

        Models with None train by themselves. A stack needs an ``evidence`` that counts tensor axes
        from the end, because parameters and frames get an axis for the models in front, or one that
        ``torch.func.vmap`` supports.
        """
        return () if self.supports_vmap else None

    def join(self, members: Sequence[GenerativeModel], frames: int) -> None:
        """Prepare this copy of the first of ``members`` to hold the parameters of all of them.

        The engine stacks parameters and buffers. This method sets everything else that differs
        between the members. By default there is nothing else.

        Args:
            members: the models of the stack.
            frames: number of frames of the sequences that the stack trains on.
        """

    def make_compilable(self, frames: int) -> None:
        """Replace the parts of this copy of a model that compilers do not support.

        By default there are none.

        Args:
            frames: number of frames of the sequences that the copy trains on.
        """

    def diagnose(self, means: Mapping[str, float]) -> str | None:
        """Return a warning if the means of the terms and monitors show a failure, otherwise None.

        The means are finite: training itself detects values that are not.
        """
        return None

    def summary(self, means: Mapping[str, float]) -> str:
        """Return the text that training prints for these means of terms and monitors."""
        bound, log_px, *subtracted = self.terms
        value = bound if self.is_bound else "value (no bound)"
        parts = "".join(f" - {name} {means[name]:.1f}" for name in subtracted)
        rest = "".join(f", {name} {means[name]:.2f}" for name in self.monitors)
        terms = f"{parts}{rest}".replace("_", " ")
        return f"{value} {means[bound]:.1f} = {means[log_px]:.1f}{terms}"


#: Functions that build a model from its ``config``. The key is the setting ``networks`` of the
#: config or, without it, ``kind``.
FAMILIES: dict[str, Callable[[dict[str, Any]], GenerativeModel]] = {}
Family = TypeVar("Family", bound=type[GenerativeModel])


def family(model: Family) -> Family:
    """Add a family to `FAMILIES` under the name of its class. Use it as a decorator."""
    FAMILIES[model.__name__] = model.from_config
    return model


def build(config: dict[str, Any]) -> GenerativeModel:
    """Return a new model with the settings in ``config``, which another model recorded."""
    kind: Any = config.get("kind")
    networks: Any = config.get("networks", kind)
    for name in (kind, networks):
        if name not in FAMILIES:
            known = ", ".join(FAMILIES)
            raise BadInput(f"this version knows no model of kind {name!r}, only {known}")
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
    """Return the settings of a ``config`` as arguments, without ``kind``.

    The topography and the visible frames are objects.
    """
    settings = {name: value for name, value in config.items() if name != "kind"}
    if "visible" in settings:
        settings["visible"] = visible_from(settings["visible"])
    return settings | {"topography": Topography(**config["topography"])}


def check_values(x: Tensor, likelihood: Likelihood = Likelihood.BERNOULLI) -> None:
    """Raise `BadInput` unless frames are finite numbers in the domain of the likelihood."""
    if not x.is_floating_point():
        raise BadInput(f"frames must be floating point, not {x.dtype}")
    if x.numel() == 0:
        raise BadInput(f"there are no frames in a tensor of shape {tuple(x.shape)}")
    low, high = (v.item() for v in x.aminmax())
    if not (x.sum().isfinite() or x.isfinite().all()):
        raise BadInput("frames hold NaN or infinite values")
    likelihood.check_domain(low, high)


def check_place(x: Tensor, model: nn.Module) -> None:
    """Raise `BadInput` unless frames have the dtype and the device of the model."""
    weight = next(model.parameters(), x)
    if (x.dtype, x.device) != (weight.dtype, weight.device):
        raise BadInput(
            f"frames are {x.dtype} on {x.device}, the model is {weight.dtype} on {weight.device}: "
            "move the frames or the model with .to(…)"
        )
