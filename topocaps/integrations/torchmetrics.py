"""The metrics as torchmetrics metrics: ``update`` with each batch, then ``compute``.

::

    metric = MutualInformationGap(bins=20)
    for x, factors in loader:
        metric.update(model.encode(x), factors)
    metric.compute()

``compute`` returns the result of the function for all batches together; the batches of a merged
state come first. Call ``update`` and not the metric itself: a call (``forward``) also computes the
metric of that batch alone, and most batches are too small for that.

The settings of a function are keyword arguments of the constructor, beside the options of every
torchmetrics ``Metric``. One line makes a metric of any function::

    class Mine(FunctionMetric, of=my_function): ...
"""

from __future__ import annotations

import inspect
import itertools
import math
from collections.abc import Callable, Mapping
from dataclasses import fields, is_dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from topocaps.errors import BadInput, optional
from topocaps.metrics.attribute_predictability import sap
from topocaps.metrics.capsule_correlation import observed_rolls
from topocaps.metrics.dci_scores import dci
from topocaps.metrics.equivariance import equivariance_errors
from topocaps.metrics.factor_vae import factor_vae_score
from topocaps.metrics.lie import lie_error
from topocaps.metrics.mutual_information import mig
from topocaps.metrics.neighbours import nearest_neighbour_hits, topographic_smoothness
from topocaps.metrics.probes import STRENGTH, Probe, fit_probe
from topocaps.metrics.rolled_traversal import Traversal, prediction

_NEEDS = "metrics with update and compute need the package torchmetrics"
torchmetrics: Any = optional("torchmetrics", _NEEDS, "'topocaps[metrics]'")
Metric: Any = torchmetrics.Metric
_COUNT = itertools.count()


class FunctionMetric(Metric):
    """Base of the metric of a function: ``class Gap(FunctionMetric, of=mig)``.

    ``update`` stores the batches, and ``compute`` calls the function with all of them. With
    ``rows``, ``update`` calls the function with the batch and stores its result, and ``compute``
    returns the means.

    Args of a subclass:

    - ``of``: the function.
    - ``takes``: names of the parameters that ``update`` takes; by default, those without a default
      value. All other parameters are settings.
    - ``rows``: names of the results that have one row for every item: the attributes of the result,
      or one name if the result is a tensor.
    - ``higher_is_better``: as in torchmetrics.
    """

    full_state_update = False
    is_differentiable = False
    function: ClassVar[Callable[..., Any]]
    rows: ClassVar[tuple[str, ...]]
    citations: ClassVar[tuple[str, ...]]  #: BibTeX entries, those of the function
    _given: ClassVar[inspect.Signature]

    def __init_subclass__(
        cls,
        *,
        of: Callable[..., Any] | None = None,
        takes: tuple[str, ...] = (),
        rows: tuple[str, ...] = (),
        higher_is_better: bool | None = None,
    ) -> None:
        super().__init_subclass__()
        if of is None:  # a subclass inherits the function
            return
        parameters = inspect.signature(of).parameters
        takes = takes or tuple(name for name, p in parameters.items() if p.default is p.empty)
        cls.function, cls.rows = staticmethod(of), rows
        if higher_is_better is not None:
            cls.higher_is_better = higher_is_better
        cls.citations = getattr(of, "citations", ())
        cls._given = inspect.Signature([parameters[name] for name in takes])

        def update(self: FunctionMetric, *batch: Any, **named: Any) -> None:
            self._store(cls._given.bind(*batch, **named).arguments)

        # a MetricCollection passes the keyword arguments that are named in the signature
        first = inspect.Parameter("self", inspect.Parameter.POSITIONAL_OR_KEYWORD)
        signature = inspect.Signature([first, *cls._given.parameters.values()])
        update.__signature__ = signature  # type: ignore[attr-defined]
        update.__doc__ = f"Add a batch: {', '.join(takes)}."
        cls.update = update

    def __init__(self, **settings: Any) -> None:
        parameters = inspect.signature(self.function).parameters
        function_settings = {name: settings.pop(name) for name in parameters if name in settings}
        super().__init__(**settings)
        known = function_settings.keys() | self._given.parameters.keys()
        for name, parameter in parameters.items():
            if parameter.default is parameter.empty and name not in known:
                raise BadInput(f"{type(self).__name__} needs the setting {name}: pass {name}=…")
        self.settings = function_settings
        for name in self.rows or self._given.parameters:
            self.add_state(name, [], dist_reduce_fx="cat")
        if self.rows:
            # A MetricCollection updates only one of several metrics with equal states. Metrics of
            # different settings may have equal rows in the first batch, but not this number.
            self.add_state("number", torch.tensor(next(_COUNT)), dist_reduce_fx="max")

    def _store(self, batch: Mapping[str, Any]) -> None:
        if self.rows:
            result = self.function(**batch, **self.settings)
            alone = isinstance(result, Tensor)
            values = {name: result if alone else getattr(result, name) for name in self.rows}
        else:
            values = {name: torch.as_tensor(value) for name, value in batch.items()}
            if len({value.shape[:1] for value in values.values()}) > 1:
                shapes = " and ".join(str(tuple(value.shape)) for value in values.values())
                raise BadInput(
                    f"{' and '.join(values)} must have equally many items, not the shapes {shapes}"
                )
        for name, value in values.items():
            getattr(self, name).append(value.detach())

    def _stored(self) -> dict[str, Tensor]:
        """Return all stored tensors by name."""
        states = {name: getattr(self, name) for name in self.rows or self._given.parameters}
        if any(isinstance(state, list) and not state for state in states.values()):
            raise BadInput(f"{type(self).__name__} has seen no batch: call update first")
        return {name: torchmetrics.utilities.dim_zero_cat(state) for name, state in states.items()}

    def score(self) -> Any:
        """Return the result of the function for all batches; with ``rows``, the mean of each."""
        stored = self._stored()
        if not self.rows:
            return self.function(**stored, **self.settings)
        return {name: value.mean() for name, value in stored.items()}

    def compute(self) -> Tensor | dict[str, Tensor]:
        """Return the numbers of ``score``: one tensor if there is one number, else a dictionary."""
        score = self.score()
        if is_dataclass(score):
            score = {field.name: getattr(score, field.name) for field in fields(score)}
        if not isinstance(score, Mapping):
            return _number(score)
        numbers = {
            name: _number(value)
            for name, value in score.items()
            if isinstance(value, float | Tensor)
        }
        return numbers if len(numbers) > 1 else numbers.popitem()[1]


def _number(value: float | Tensor) -> Tensor:
    return value if isinstance(value, Tensor) else torch.tensor(value, dtype=torch.double)


class MutualInformationGap(FunctionMetric, of=mig, higher_is_better=True):
    """The metric ``mig``."""


class SeparatedAttributes(FunctionMetric, of=sap, higher_is_better=True):
    """The metric ``sap``."""


class DisentanglementCompleteness(FunctionMetric, of=dci, higher_is_better=True):
    """The metric ``dci``: {"disentanglement", "completeness", "informativeness", "chance"}."""


class FactorVAEScore(FunctionMetric, of=factor_vae_score, higher_is_better=True):
    """The metric ``factor_vae_score``."""


class TopographicSmoothness(FunctionMetric, of=topographic_smoothness, higher_is_better=True):
    """The metric ``topographic_smoothness``: {"observed", "shuffled", "p_value"}."""


class CapsuleCorrelation(FunctionMetric, of=observed_rolls, higher_is_better=True):
    """The metric ``capcorr``: {"capcorr_0": …}, with a key for the column of every moving factor.

    ``score`` returns the values behind the correlations, by column.
    """

    def compute(self) -> dict[str, Tensor]:
        score = self.score()
        return {f"capcorr_{n}": _number(rolls.correlation) for n, rolls in score.items()}


class EquivarianceError(
    FunctionMetric,
    of=equivariance_errors,
    takes=("t", "axis"),
    rows=("errors",),
    higher_is_better=False,
):
    """The metric ``equivariance_error``, with the settings ``rate`` and ``cyclic``."""


class LieEquivarianceError(
    FunctionMetric,
    of=lie_error,
    takes=("x",),
    rows=("derivative", "finite", "floor", "resampled"),
    higher_is_better=False,
):
    """The metric ``lie_error``: {"derivative", "finite", "floor", "resampled"}.

    Its settings are ``f``, the function, and ``action``, the motion of the frames.
    """


def _neighbour_hits(
    codes: Tensor, classes: Tensor, train: tuple[Tensor, Tensor], k: int = 5
) -> Tensor:
    known = train[0].to(codes.device), train[1].to(codes.device)
    return nearest_neighbour_hits(known, (codes, classes), k).double()


class NearestNeighbourAccuracy(
    FunctionMetric,
    of=_neighbour_hits,
    takes=("codes", "classes"),
    rows=("right",),
    higher_is_better=True,
):
    """The metric ``nearest_neighbour_accuracy``.

    Its setting ``train`` holds the training codes and their classes.
    """


def _probe_hits(codes: Tensor, classes: Tensor, probe: Probe) -> Tensor:
    return probe.hits(codes.flatten(1), classes).double()


class LinearProbeAccuracy(
    FunctionMetric,
    of=_probe_hits,
    takes=("codes", "classes"),
    rows=("right",),
    higher_is_better=True,
):
    """The metric ``linear_probe_accuracy``, of a probe that the constructor fits.

    Args:
        train: training codes and their classes.
        strength: strength of the regularisation.
    """

    def __init__(
        self, train: tuple[Tensor, Tensor], strength: float = STRENGTH, **options: Any
    ) -> None:
        super().__init__(probe=fit_probe(train[0].flatten(1), train[1], strength), **options)


class TraversalGain(
    FunctionMetric,
    of=prediction,
    takes=("x", "predicted", "unseen", "factors"),
    rows=tuple(Traversal.__dataclass_fields__),
    higher_is_better=True,
):
    """The gain of predicted frames over a sequence's mean frame, as in ``prediction``."""

    def score(self) -> Traversal:
        return Traversal(**self._stored())

    def compute(self) -> Tensor:
        gain = self.score().overall
        return _number(math.nan if gain is None else gain)
