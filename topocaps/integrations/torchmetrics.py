"""The metrics of arrays as torchmetrics metrics: ``update`` batch by batch, then ``compute``.

::

    metric = MutualInformationGap(bins=20)
    for x, factors in loader:
        metric.update(model.encode(x), factors)
    metric.compute()

``compute`` gives what the function gives for all batches together; the batches of a merged state
come first. Calling a metric (``forward``) also computes it for that batch alone, and most batches
are too small for that: call ``update``.

The settings of a function are keyword arguments of the constructor, beside the options that
torchmetrics gives every ``Metric``. Any function becomes a metric in a line::

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
    """The metric of a function, which a subclass names: ``class Gap(FunctionMetric, of=mig)``.

    ``update`` takes the function's parameters in ``takes``; by default, those without a default.
    All other parameters are settings. ``update`` stores what it is given, and ``compute`` calls the
    function with all of it. With ``rows``, ``update`` calls the function with the batch and stores
    its result, one row for every item: a tensor, or the attributes of these names. ``compute`` then
    takes the mean of each.
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
        if of is None:  # a subclass of the metric of a function
            return
        parameters = inspect.signature(of).parameters
        takes = takes or tuple(name for name, one in parameters.items() if one.default is one.empty)
        cls.function, cls.rows = staticmethod(of), rows
        if higher_is_better is not None:
            cls.higher_is_better = higher_is_better
        cls.citations = getattr(of, "citations", ())
        cls._given = inspect.Signature([parameters[name] for name in takes])

        def update(self: FunctionMetric, *batch: Any, **named: Any) -> None:
            self._store(cls._given.bind(*batch, **named).arguments)

        # a MetricCollection passes on the keyword arguments that a signature names
        itself = inspect.Parameter("self", inspect.Parameter.POSITIONAL_OR_KEYWORD)
        signature = inspect.Signature([itself, *cls._given.parameters.values()])
        update.__signature__ = signature  # type: ignore[attr-defined]
        update.__doc__ = f"Add a batch: {', '.join(takes)}."
        cls.update = update

    def __init__(self, **settings: Any) -> None:
        parameters = inspect.signature(self.function).parameters
        own = {name: settings.pop(name) for name in parameters if name in settings}
        super().__init__(**settings)
        for name, one in parameters.items():
            if one.default is one.empty and name not in own and name not in self._given.parameters:
                raise BadInput(f"{type(self).__name__} needs {name}=…")
        self.settings = own
        for name in self.rows or self._given.parameters:
            self.add_state(name, [], dist_reduce_fx="cat")
        if self.rows:
            # A MetricCollection updates only one of several metrics with equal states. Rows of
            # different settings may happen to be equal in the first batch; this number is not.
            self.add_state("number", torch.tensor(next(_COUNT)), dist_reduce_fx="max")

    def _store(self, batch: Mapping[str, Any]) -> None:
        if self.rows:
            found = self.function(**batch, **self.settings)
            alone = isinstance(found, Tensor)
            values = {name: found if alone else getattr(found, name) for name in self.rows}
        else:
            values = {name: torch.as_tensor(value) for name, value in batch.items()}
            if len({value.shape[:1] for value in values.values()}) > 1:
                shapes = " and ".join(str(tuple(value.shape)) for value in values.values())
                raise BadInput(f"{' and '.join(values)} must be of the same items, not {shapes}")
        for name, value in values.items():
            getattr(self, name).append(value.detach())

    def _stored(self) -> dict[str, Tensor]:
        """Everything that was stored, by name."""
        states = {name: getattr(self, name) for name in self.rows or self._given.parameters}
        if any(isinstance(state, list) and not state for state in states.values()):
            raise BadInput(f"{type(self).__name__} has seen no batch: call update first")
        return {name: torchmetrics.utilities.dim_zero_cat(state) for name, state in states.items()}

    def score(self) -> Any:
        """The function's own result, with its settings; with ``rows``, the mean of each."""
        stored = self._stored()
        if not self.rows:
            return self.function(**stored, **self.settings)
        return {name: value.mean() for name, value in stored.items()}

    def compute(self) -> Tensor | dict[str, Tensor]:
        """The numbers of ``score``: a tensor where there is one, else tensors by name."""
        found = self.score()
        if is_dataclass(found):
            found = {field.name: getattr(found, field.name) for field in fields(found)}
        if not isinstance(found, Mapping):
            return _number(found)
        wanted = {name: one for name, one in found.items() if isinstance(one, float | Tensor)}
        numbers = {name: _number(value) for name, value in wanted.items()}
        return numbers if len(numbers) > 1 else numbers.popitem()[1]


def _number(value: float | Tensor) -> Tensor:
    return value if isinstance(value, Tensor) else torch.tensor(value, dtype=torch.double)


class MutualInformationGap(FunctionMetric, of=mig, higher_is_better=True):
    """``mig``."""


class SeparatedAttributes(FunctionMetric, of=sap, higher_is_better=True):
    """``sap``."""


class DisentanglementCompleteness(FunctionMetric, of=dci, higher_is_better=True):
    """``dci``: {"disentanglement", "completeness", "informativeness", "chance"}."""


class FactorVAEScore(FunctionMetric, of=factor_vae_score, higher_is_better=True):
    """``factor_vae_score``."""


class TopographicSmoothness(FunctionMetric, of=topographic_smoothness, higher_is_better=True):
    """``topographic_smoothness``: {"observed", "shuffled", "p_value"}."""


class CapsuleCorrelation(FunctionMetric, of=observed_rolls, higher_is_better=True):
    """``capcorr``: {"capcorr_0": …}, a key for the column of every factor that moved.

    ``score`` gives the values behind the correlations, by column.
    """

    def compute(self) -> dict[str, Tensor]:
        return {f"capcorr_{n}": _number(one.correlation) for n, one in self.score().items()}


class EquivarianceError(
    FunctionMetric,
    of=equivariance_errors,
    takes=("t", "axis"),
    rows=("errors",),
    higher_is_better=False,
):
    """``equivariance_error``; settings ``rate`` and ``cyclic``."""


class LieEquivarianceError(
    FunctionMetric,
    of=lie_error,
    takes=("x",),
    rows=("derivative", "finite", "floor", "resampled"),
    higher_is_better=False,
):
    """``lie_error`` of ``f`` under ``action``: {"derivative", "finite", "floor", "resampled"}."""


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
    """``nearest_neighbour_accuracy`` among ``train``, training codes and their classes."""


def _probe_hits(codes: Tensor, classes: Tensor, probe: Probe) -> Tensor:
    return probe.hits(codes.flatten(1), classes).double()


class LinearProbeAccuracy(
    FunctionMetric,
    of=_probe_hits,
    takes=("codes", "classes"),
    rows=("right",),
    higher_is_better=True,
):
    """``linear_probe_accuracy`` of a probe that is fitted once, to training codes and classes."""

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
    """The gain of predicted frames over a sequence's mean frame, as ``prediction`` defines it."""

    def score(self) -> Traversal:
        return Traversal(**self._stored())

    def compute(self) -> Tensor:
        gain = self.score().overall
        return _number(math.nan if gain is None else gain)
