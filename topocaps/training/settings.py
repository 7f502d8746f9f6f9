"""How models are trained, as data."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Self

from topocaps.data.sequences import SequenceSet
from topocaps.errors import BadInput, one_of, whole_number
from topocaps.training.optimisers import Adam, Sgd
from topocaps.training.precision import Precision


@dataclass(frozen=True)
class Training:
    """How a model is trained: ``epochs`` of ``epoch_size`` sequences in batches of ``batch``.

    Without an ``epoch_size``, an epoch is as many sequences as there are. With ``patience``,
    training stops after so many epochs in which the bound on validation sequences was no better
    than before, and the weights of the best epoch are kept.
    """

    optimiser: Sgd | Adam = field(default_factory=Adam)
    batch: int = 8
    epochs: int = 100
    epoch_size: int | None = None
    clip: float | None = None  #: largest norm of the gradient
    precision: Precision = Precision.FP32  #: of products
    patience: int | None = None  #: epochs

    def __post_init__(self) -> None:
        for name in ("batch", "epochs", "epoch_size", "patience"):
            value = getattr(self, name)
            if name in ("batch", "epochs") or value is not None:
                object.__setattr__(self, name, whole_number(name, value))
        if self.clip is not None and not self.clip > 0:
            raise BadInput(f"clip must be above 0, not {self.clip}")
        if not isinstance(self.optimiser, Sgd | Adam):
            raise BadInput(f"optimiser must be Sgd(…) or Adam(…), not {self.optimiser!r}")
        object.__setattr__(self, "precision", one_of(Precision, "precision", self.precision))

    def to_json(self) -> dict[str, Any]:
        """Return the settings as plain data, the optimiser with its name."""
        optimiser = {"kind": type(self.optimiser).__name__, **asdict(self.optimiser)}
        return {**asdict(self), "optimiser": optimiser}

    @classmethod
    def from_json(cls, settings: Mapping[str, Any]) -> Self:
        """Return the training that ``to_json`` wrote."""
        optimiser = dict(settings["optimiser"])
        kind = {"Sgd": Sgd, "Adam": Adam}[optimiser.pop("kind")]
        return cls(**{**settings, "optimiser": kind(**optimiser)})

    @property
    def pace(self) -> tuple[int, int, int | None]:
        """What models that are trained together must have in common."""
        return self.batch, self.epochs, self.epoch_size

    @property
    def shared(self) -> Training:
        """What models of one stack must have in common: clip and patience are each one's own."""
        return replace(self, clip=None, patience=None)

    def steps_per_epoch(self, sequences: SequenceSet) -> int:
        return math.ceil((self.epoch_size or len(sequences)) / self.batch)


def for_each(training: Training | Sequence[Training], count: int) -> list[Training]:
    """The training of each of ``count`` models: the same for all, or one for each."""
    each = [training] * count if isinstance(training, Training) else list(training)
    if len(each) != count:
        raise BadInput(f"there are {count} models and {len(each)} trainings")
    if len({one.pace for one in each}) > 1:
        raise BadInput(
            "models that are trained together have the same batch, epochs and epoch size"
        )
    return each
