"""Settings of training: precision, the weight of the KL terms, and `Training`."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from enum import StrEnum
from typing import Any, Self

import torch

from topocaps.data.sequences import SequenceSet
from topocaps.device import multiplies_bf16
from topocaps.errors import BadInput, non_negative, one_of, whole_number
from topocaps.training.optimisers import OPTIMISERS, Adam, Optimiser


class Precision(StrEnum):
    """The lowest precision that matrix products may have; all else is always fp32.

    A GPU uses any of them. A CPU uses bf16 if it has instructions for it, and fp32 otherwise. A
    run records what was allowed (``precision``) and what was used (``products``).
    """

    FP32 = "fp32"
    TF32 = "tf32"  #: ten bits of mantissa
    BF16 = "bf16"  #: layers multiply in bfloat16 (seven bits), everything else in TF32

    def on(self, device: torch.device) -> Precision:
        """Return the precision that a device uses."""
        if device.type == "cuda" or (self is Precision.BF16 and multiplies_bf16(device)):
            return self
        return Precision.FP32

    @contextmanager
    def products(self, device: torch.device, cast: bool = True) -> Iterator[None]:
        """Set the precision of PyTorch's matrix products on a device, inside the context.

        Args:
            cast: with bf16, cast the operands of layers. Without it, products have the type of
                their operands.
        """
        used = self.on(device)
        before = torch.get_float32_matmul_precision()
        torch.set_float32_matmul_precision("highest" if used is Precision.FP32 else "high")
        try:
            casting = cast and used is Precision.BF16
            with torch.autocast(device.type, torch.bfloat16, enabled=casting):
                yield
        finally:
            torch.set_float32_matmul_precision(before)


@dataclass(frozen=True)
class KLWeight:
    """The weight of the KL terms in the objective: a linear warm-up from ``start`` to ``end``.

    With a weight other than 1 the objective is no lower bound. The recorded terms are those of the
    bound at any weight, and the record of an epoch names a weight that is not 1.

    Args:
        start: weight at the first step.
        until: share of the steps in which the weight moves from ``start`` to ``end``. With 0 there
            is no warm-up, and ``start`` has no effect.
        end: weight afterwards.

    >>> KLWeight(start=0.1, until=0.5).at(step=25, steps=100)
    0.55
    """

    start: float = 1.0
    until: float = 0.0
    end: float = 1.0

    def __post_init__(self) -> None:
        for name in ("start", "until", "end"):
            object.__setattr__(self, name, non_negative(f"kl.{name}", getattr(self, name)))
        if self.until > 1:
            raise BadInput(f"kl.until is a share of the steps, from 0 to 1, not {self.until}")

    @property
    def is_bound(self) -> bool:
        """Whether the weight is 1 at every step."""
        return self.end == 1 and (self.start == 1 or self.until == 0)

    def at(self, step: int, steps: int) -> float:
        """Return the weight of a step, of which there are ``steps``."""
        share = min(1.0, step / (self.until * steps)) if self.until else 1.0
        return self.start + share * (self.end - self.start)


@dataclass(frozen=True)
class Training:
    """How a model is trained: ``epochs`` of ``epoch_size`` sequences in batches of ``batch``.

    Args:
        optimiser: `Sgd`, `Adam` or `Muon`, or the name of one, such as "muon", for its defaults.
        epoch_size: sequences of an epoch; by default as many as there are.
        clip: largest norm of the gradient; by default gradients are not clipped.
        precision: lowest precision that matrix products may have.
        patience: stop after this many epochs without a better bound on validation sequences, and
            keep the weights of the best epoch.
        kl: weight of the KL terms in the objective; by default 1, which maximises the bound.
    """

    optimiser: Optimiser = field(default_factory=Adam)
    batch: int = 8
    epochs: int = 100
    epoch_size: int | None = None
    clip: float | None = None
    precision: Precision = Precision.FP32
    patience: int | None = None
    kl: KLWeight = field(default_factory=KLWeight)

    def __post_init__(self) -> None:
        for name in ("batch", "epochs", "epoch_size", "patience"):
            value = getattr(self, name)
            if name in ("batch", "epochs") or value is not None:
                object.__setattr__(self, name, whole_number(name, value))
        if self.clip is not None and not self.clip > 0:
            raise BadInput(f"clip must be above 0, not {self.clip}")
        if isinstance(self.optimiser, str) and self.optimiser.lower() in OPTIMISERS:
            object.__setattr__(self, "optimiser", OPTIMISERS[self.optimiser.lower()]())
        if not isinstance(self.optimiser, Optimiser):
            raise BadInput(
                f"optimiser must be Sgd(…), Adam(…) or Muon(…), or sgd, adam or muon for their "
                f"defaults, not {self.optimiser!r}"
            )
        if not isinstance(self.kl, KLWeight):
            raise BadInput(f"kl must be KLWeight(…), not {self.kl!r}")
        object.__setattr__(self, "precision", one_of(Precision, "precision", self.precision))

    def to_json(self) -> dict[str, Any]:
        """Return the settings as plain data, the optimiser with its name.

        The KL weight is left out if it is 1, as older run folders do not have it.
        """
        optimiser = {"kind": type(self.optimiser).__name__, **asdict(self.optimiser)}
        settings = {**asdict(self), "optimiser": optimiser}
        if self.kl == KLWeight():
            del settings["kl"]
        return settings

    @classmethod
    def from_json(cls, settings: Mapping[str, Any]) -> Self:
        """Return the training that ``to_json`` wrote."""
        optimiser = dict(settings["optimiser"])
        name = optimiser.pop("kind")
        if name.lower() not in OPTIMISERS:
            raise BadInput(f"this version has no optimiser {name!r}")
        kind = OPTIMISERS[name.lower()]
        kl = KLWeight(**settings.get("kl", {}))
        return cls(**{**settings, "optimiser": kind(**optimiser), "kl": kl})

    @property
    def pace(self) -> tuple[int, int, int | None]:
        """Settings that models trained together must have in common."""
        return self.batch, self.epochs, self.epoch_size

    @property
    def shared(self) -> Training:
        """Settings that models of one stack must have in common: all but clip and patience."""
        return replace(self, clip=None, patience=None)

    def steps_per_epoch(self, sequences: SequenceSet) -> int:
        """Return the number of batches in an epoch."""
        return math.ceil((self.epoch_size or len(sequences)) / self.batch)


def for_each(training: Training | Sequence[Training], count: int) -> list[Training]:
    """Return the training of each of ``count`` models: the same for all, or one for each."""
    trainings = [training] * count if isinstance(training, Training) else list(training)
    if len(trainings) != count:
        raise BadInput(f"there are {count} models and {len(trainings)} trainings")
    if len({one.pace for one in trainings}) > 1:
        raise BadInput("models trained together must have the same batch, epochs and epoch size")
    return trainings
