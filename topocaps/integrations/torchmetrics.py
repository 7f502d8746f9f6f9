"""The metrics of arrays as torchmetrics' own: ``update`` batch by batch, then ``compute``.

::

    metric = MutualInformationGap(bins=20)
    for x, factors in loader:
        metric.update(model.encode(x), factors)
    metric.compute()

What is computed is the function of the same arguments on all batches together, those of a merged
state coming first. Calling a metric (``forward``) also computes it for that batch alone, which few
batches are large enough for: call ``update``.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any, ClassVar

import torch
from torch import Tensor

from topocaps.errors import BadInput
from topocaps.metrics.capcorr import CapCorr, observed_rolls
from topocaps.metrics.disentanglement import (
    Discretiser,
    dci,
    equal_counts,
    factor_vae_score,
    forest,
    mig,
    sap,
)
from topocaps.metrics.equivariance import as_latents, equivariance_errors
from topocaps.metrics.lie import Action, Function, lie_error
from topocaps.metrics.neighbours import nearest_neighbour_accuracy, topographic_smoothness
from topocaps.metrics.probes import STRENGTH, fit_probe
from topocaps.metrics.traversal import Traversal, prediction
from topocaps.networks import Likelihood

try:
    from torchmetrics import Metric
    from torchmetrics.utilities import dim_zero_cat
except ImportError as error:
    raise BadInput(
        "metrics with update and compute need the package torchmetrics: "
        "pip install 'topocaps[metrics]'"
    ) from error


class _Kept(Metric):
    """A metric that keeps what it is shown, under names."""

    full_state_update = False
    is_differentiable = False
    kept: ClassVar[tuple[str, ...]]

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        for name in self.kept:
            self.add_state(name, [], dist_reduce_fx="cat")

    def _keep(self, *values: Tensor) -> None:
        for name, value in zip(self.kept, values, strict=True):
            getattr(self, name).append(value.detach())

    def _all(self) -> list[Tensor]:
        """Everything kept, by name."""
        states = [getattr(self, name) for name in self.kept]
        if any(isinstance(state, list) and not state for state in states):
            raise BadInput(f"{type(self).__name__} has seen no batch: call update first")
        return [dim_zero_cat(state) for state in states]


class EquivarianceError(_Kept):
    """``equivariance_error`` of latents (batch, time, capsules, *shape)."""

    kept = ("errors",)
    higher_is_better = False

    def __init__(self, rate: float = 1.0, cyclic: bool = True, **options: Any) -> None:
        super().__init__(**options)
        self.rate, self.cyclic = rate, cyclic

    def update(self, t: Tensor, axis: Tensor | None = None) -> None:
        """Capsules of several axes are rolled along their own ``axis``, (batch, capsules)."""
        self._keep(equivariance_errors(t, self.rate, self.cyclic, axis))

    def compute(self) -> Tensor:
        return self._all()[0].mean()


class CapsuleCorrelation(_Kept):
    """``capcorr``: {"capcorr_0": …}, a key for the column of every factor that moved."""

    kept = ("rolls",)
    higher_is_better = True

    def __init__(self, rate: float = 1.0, **options: Any) -> None:
        super().__init__(**options)
        self.rate = rate

    def update(self, t: Tensor, factors: Tensor) -> None:
        """t: (batch, time, capsules, *shape), factors: (batch, time, factor)."""
        rows = [t.new_zeros(0, 4, dtype=torch.double)]
        for column, found in observed_rolls(t, factors, self.rate).items():
            seen = torch.stack([found.observed, found.true, found.agreements], 1).double()
            dropped = seen.new_full((found.dropped, 3), math.nan)
            both = torch.cat([seen, dropped])
            rows.append(torch.cat([both.new_full((len(both), 1), column), both], 1).to(t.device))
        self._keep(torch.cat(rows))

    def found(self) -> dict[int, CapCorr]:
        """The values behind it, by column."""
        rolls = self._all()[0].cpu()
        by_column = {}
        for column in rolls[:, 0].unique().long().tolist():
            mine = rolls[rolls[:, 0] == column, 1:]
            seen = mine[~mine.isnan().any(1)]
            observed, true, agreements = seen.unbind(1)
            by_column[column] = CapCorr(observed, true, agreements, len(mine) - len(seen))
        return by_column

    def compute(self) -> dict[str, Tensor]:
        return {f"capcorr_{n}": _number(one.correlation) for n, one in self.found().items()}


class _OfCodes(_Kept):
    """A function of codes and factors, on all that were shown."""

    kept = ("codes", "factors")
    higher_is_better = True

    def __init__(self, function: Callable[[Tensor, Tensor], Any], **options: Any) -> None:
        super().__init__(**options)
        self.function = function

    def update(self, codes: Tensor, factors: Tensor) -> None:
        """Codes (items, ...) and factors (items, factor), or (batch, time, ...) of both."""
        codes, factors = torch.as_tensor(codes), torch.as_tensor(factors)
        if codes.shape[:1] != factors.shape[:1]:
            raise BadInput(
                f"codes and factors must be of the same items, not {tuple(codes.shape)} and "
                f"{tuple(factors.shape)}"
            )
        self._keep(codes, factors)

    def score(self) -> Any:
        """The function's own answer, with its settings."""
        return self.function(*self._all())

    def compute(self) -> Tensor | dict[str, Tensor]:
        return _number(self.score().value)


class MutualInformationGap(_OfCodes):
    """``mig``."""

    def __init__(
        self, bins: int = 20, discretise: Discretiser = equal_counts, **options: Any
    ) -> None:
        super().__init__(partial(mig, bins=bins, discretise=discretise), **options)


class SeparatedAttributes(_OfCodes):
    """``sap``."""

    def __init__(self, seed: int = 0, standardise: bool = True, **options: Any) -> None:
        super().__init__(partial(sap, seed=seed, standardise=standardise), **options)


class DisentanglementCompleteness(_OfCodes):
    """``dci``: {"disentanglement", "completeness", "informativeness", "chance"}."""

    def __init__(
        self, seed: int = 0, classifier: Callable[[int], Any] = forest, **options: Any
    ) -> None:
        super().__init__(partial(dci, seed=seed, classifier=classifier), **options)

    def compute(self) -> dict[str, Tensor]:
        found = self.score()
        names = ("disentanglement", "completeness", "informativeness", "chance")
        return {name: _number(getattr(found, name)) for name in names}


class FactorVAEScore(_OfCodes):
    """``factor_vae_score``."""

    def __init__(
        self,
        batch: int = 64,
        votes: int = 10_000,
        tests: int = 5_000,
        dead: float = 0.01,
        seed: int = 0,
        **options: Any,
    ) -> None:
        function = partial(
            factor_vae_score, batch=batch, votes=votes, tests=tests, dead=dead, seed=seed
        )
        super().__init__(function, **options)


class TopographicSmoothness(_Kept):
    """``topographic_smoothness``: {"observed", "shuffled", "p_value"}."""

    kept = ("t",)
    higher_is_better = True

    def __init__(
        self, permutations: int = 999, seed: int = 0, cyclic: bool = True, **options: Any
    ) -> None:
        super().__init__(**options)
        self.function = partial(
            topographic_smoothness, permutations=permutations, seed=seed, cyclic=cyclic
        )

    def update(self, t: Tensor) -> None:
        """t: (batch, time, capsules, *shape)."""
        self._keep(as_latents(t))

    def compute(self) -> dict[str, Tensor]:
        found = self.function(*self._all())
        names = ("observed", "shuffled", "p_value")
        return {name: _number(getattr(found, name)) for name in names}


class NearestNeighbourAccuracy(_Kept):
    """``nearest_neighbour_accuracy`` of the codes shown, among training codes given at once."""

    kept = ("right",)
    higher_is_better = True

    def __init__(self, train: tuple[Tensor, Tensor], k: int = 5, **options: Any) -> None:
        super().__init__(**options)
        self.train_codes, self.train_classes, self.k = *train, k

    def update(self, codes: Tensor, classes: Tensor) -> None:
        train = self.train_codes.to(codes.device), self.train_classes.to(codes.device)
        share = nearest_neighbour_accuracy(train, (codes, classes), self.k)
        right = torch.arange(len(codes), device=codes.device) < round(share * len(codes))
        self._keep(right.double())

    def compute(self) -> Tensor:
        return self._all()[0].mean()


class LinearProbeAccuracy(_Kept):
    """``linear_probe_accuracy`` of the codes shown, of the best probe on training codes."""

    kept = ("right",)
    higher_is_better = True

    def __init__(
        self, train: tuple[Tensor, Tensor], strength: float = STRENGTH, **options: Any
    ) -> None:
        super().__init__(**options)
        self.probe = fit_probe(train[0].flatten(1), train[1], strength)

    def update(self, codes: Tensor, classes: Tensor) -> None:
        self._keep((self.probe(codes.flatten(1)).argmax(1) == classes).double())

    def compute(self) -> Tensor:
        return self._all()[0].mean()


class TraversalGain(_Kept):
    """The gain of predicted frames over a sequence's mean frame, as ``prediction`` has it."""

    kept = tuple(Traversal.__dataclass_fields__)
    higher_is_better = True

    def __init__(self, likelihood: str = Likelihood.BERNOULLI, **options: Any) -> None:
        super().__init__(**options)
        self.likelihood = likelihood

    def update(
        self, x: Tensor, predicted: Tensor, unseen: Tensor, factors: Tensor | None = None
    ) -> None:
        """x, predicted: (batch, time, *frame); unseen: (batch, time)."""
        found = prediction(x, predicted, unseen, factors, self.likelihood)
        self._keep(*(getattr(found, name) for name in self.kept))

    def compute(self) -> Tensor:
        gain = Traversal(*self._all()).overall
        return _number(math.nan if gain is None else gain)


class LieEquivarianceError(_Kept):
    """``lie_error`` of f, meant over the images shown: {"derivative", "finite", "floor", …}."""

    kept = ("derivative", "finite", "floor", "resampled")
    higher_is_better = False

    def __init__(
        self,
        f: Function,
        action: Action,
        step: float = 0.1,
        invariant: bool = False,
        **options: Any,
    ) -> None:
        super().__init__(**options)
        self.function = partial(lie_error, f, action=action, step=step, invariant=invariant)

    def update(self, x: Tensor) -> None:
        """x: (images, …, height, width)."""
        found = self.function(x)
        self._keep(*(getattr(found, name) for name in self.kept))

    def compute(self) -> dict[str, Tensor]:
        return {name: of.mean() for name, of in zip(self.kept, self._all(), strict=True)}


def _number(value: float) -> Tensor:
    return torch.tensor(value, dtype=torch.double)
