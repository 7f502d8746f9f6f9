"""Disentanglement of codes from any model: MIG, SAP, DCI and the FactorVAE score.

Codes are (items, ...), factors (items, factor); or sequences, (batch, time, ...) and (batch, time,
factor), whose frames are the items. Arrays or tensors; factors are integers. A factor of one value
is left out, and ``settings["left_out"]`` says so. Of sequences, all frames of one are either learnt
from or tested on.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from topocaps.errors import BadInput, check_seed, whole_number

Array = NDArray[Any]
Discretiser = Callable[[Array, int], Array]

TRAINED = 2 / 3  # share of items that a classifier learns from: 10,000 of 15,000 in most papers
CHUNK = 2**24  # numbers held at once


@dataclass(frozen=True)
class Score:
    """A mean over factors, and what decided it."""

    value: float
    by_factor: dict[int, float]  # by the factor's column
    settings: dict[str, Any]


@dataclass(frozen=True)
class DCI:
    """The three numbers of Eastwood & Williams (2018), and what decided them."""

    disentanglement: float  # 1: every dimension matters for one factor only
    completeness: float  # 1: every factor is in one dimension only
    informativeness: float  # mean accuracy of factors, on items not learnt from
    chance: float  # the accuracy of always saying the commonest value
    importances: Array  # (dims, factors), for every factor summing to 1
    settings: dict[str, Any]


def equal_counts(values: Array, bins: int) -> Array:
    """Bins of as many items each: no increasing map changes them. Equal values share one."""
    below = np.searchsorted(np.sort(values), values)
    return below * bins // len(values)


def equal_widths(values: Array, bins: int) -> Array:
    """Bins of one width from the least value to the greatest, as in disentanglement_lib."""
    edges = np.histogram_bin_edges(values, bins)
    return np.digitize(values, edges[1:-1])


def mig(
    codes: Array | Tensor,
    factors: Array | Tensor,
    bins: int = 20,
    discretise: Discretiser = equal_counts,
) -> Score:
    r"""Mutual information gap (Chen et al. 2018): :math:`(I(c_1; v) - I(c_2; v)) / H(v)`.

    c1 and c2 are the two dimensions that say most about a factor v, cut into ``bins``. Published
    numbers are mostly of ``equal_widths``, which depend on the scale and tails of a code.

    >>> factors = np.stack(np.divmod(np.arange(64), 8), 1)  # two of 8 values, all pairs
    >>> mig(factors.astype(float), factors, bins=8).value  # a dimension for each
    1.0
    >>> mig(np.repeat(factors, 2, axis=1), factors, bins=8).value  # two for each
    0.0
    """
    table = _table(codes, factors)
    bins = whole_number("bins", bins)
    if table.dims < 2:
        raise BadInput("MIG compares two dimensions of a code, and this one has 1")
    cut = [_numbered(discretise(table.codes[:, n], bins)) for n in range(table.dims)]
    gaps = {}
    for column, factor in table.each_factor():
        shared = [_mutual_information(one, factor) / _entropy(factor) for one in cut]
        gaps[column] = _gap(shared)
    settings = {"discretiser": discretise.__name__, "bins": bins, **table.settings}
    return Score(_mean(gaps), gaps, settings)


def sap(
    codes: Array | Tensor, factors: Array | Tensor, seed: int = 0, standardise: bool = True
) -> Score:
    """Separated attribute predictability (Kumar et al. 2018), all factors being classes.

    The gap between the accuracies, on items not learnt from, of the two dimensions that each alone
    predict a factor best, by the linear SVM of disentanglement_lib. Its penalty depends on the
    scale of a dimension; hence, unlike there, dimensions are standardised unless told otherwise.
    """
    table = _table(codes, factors)
    if table.dims < 2:
        raise BadInput("SAP compares two dimensions of a code, and this one has 1")
    svm = _sklearn("svm").LinearSVC
    train, test = table.split(seed)
    scaled = table.codes.astype(float)
    if standardise:
        spread = scaled[train].std(0)
        scaled = (scaled - scaled[train].mean(0)) / np.where(spread > 0, spread, 1)
    model = svm(C=0.01, class_weight="balanced", random_state=seed % 2**32)
    gaps = {}
    for column, factor in table.each_factor():
        scores = []
        for one in scaled.T[:, :, None]:
            scores.append(model.fit(one[train], factor[train]).score(one[test], factor[test]))
        gaps[column] = _gap(scores)
    settings = {
        "classifier": repr(model),
        "standardised": standardise,
        "seed": seed,
        "train_items": len(train),
        "test_items": len(test),
        **table.settings,
    }
    return Score(_mean(gaps), gaps, settings)


def forest(seed: int) -> Any:
    """Trees that consider every dimension at every split, lest what is useless seem important."""
    return _sklearn("ensemble").RandomForestClassifier(100, max_features=None, random_state=seed)


def dci(
    codes: Array | Tensor,
    factors: Array | Tensor,
    seed: int = 0,
    classifier: Callable[[int], Any] = forest,
) -> DCI:
    r"""Disentanglement, completeness and informativeness (Eastwood & Williams 2018).

    R is how important each dimension is to a classifier of each factor. With entropies in units of
    the greatest there can be, :math:`D = \sum_i \rho_i (1 - H(R_i / \sum_j R_{ij}))`, where
    :math:`\rho_i` is the share of dimension i in all of R, and C is the mean over factors of
    :math:`1 - H(R_j / \sum_i R_{ij})`. ``classifier`` makes one of scikit-learn's with
    ``feature_importances_`` from a seed; disentanglement_lib has GradientBoostingClassifier.
    """
    table = _table(codes, factors)
    if table.dims < 2 or len(table.columns) < 2:
        raise BadInput(
            f"DCI takes two dimensions and two factors that vary, or more, not {table.dims} "
            f"and {len(table.columns)}"
        )
    train, test = table.split(seed)
    importances, accuracies, chances = [], [], []
    for _, factor in table.each_factor():
        model = classifier(seed % 2**32).fit(table.codes[train], factor[train])
        importances.append(np.abs(model.feature_importances_))
        accuracies.append(model.score(table.codes[test], factor[test]))
        chances.append((factor[test] == np.bincount(factor[train]).argmax()).mean())
    matrix = np.stack(importances, 1)
    weights = matrix.sum(1)
    apart = 1 - _relative_entropy(matrix)
    return DCI(
        disentanglement=float((weights * apart).sum() / max(weights.sum(), 1e-30)),
        completeness=float((1 - _relative_entropy(matrix.T)).mean()),
        informativeness=float(np.mean(accuracies)),
        chance=float(np.mean(chances)),
        importances=matrix,
        settings={
            "classifier": repr(model),
            "seed": seed,
            "train_items": len(train),
            "test_items": len(test),
            **table.settings,
        },
    )


def factor_vae_score(
    codes: Array | Tensor,
    factors: Array | Tensor,
    batch: int = 64,
    votes: int = 10_000,
    tests: int = 5_000,
    dead: float = 0.01,
    seed: int = 0,
) -> Score:
    """How well the stillest dimension tells which factor is fixed (Kim & Mnih 2018).

    A vote draws a factor, all alike, and an item, whose value of it is the one fixed; then
    ``batch`` items, with replacement, among those of the data that have this value: their other
    factors are as frequent as the data have them. It is cast by the dimension whose variance over
    the batch is least in units of its variance over all items. Values of fewer than ``batch`` items
    are not drawn, and a factor of no others is left out. Each dimension stands for the factor of
    most of its ``votes``; the score is the share of ``tests`` that are right.

    Dimensions of a standard deviation below ``dead`` times the greatest cast no votes (the paper
    drops those collapsed to the prior, which codes alone do not show); 0 if all are constant.
    """
    table = _table(codes, factors)
    counts = {"batch": batch, "votes": votes, "tests": tests}
    batch, votes, tests = (whole_number(name, count) for name, count in counts.items())
    if batch < 2:
        raise BadInput("a batch of 1 item has no variance: take 2 or more")
    check_seed(seed)
    groups = {
        column: [
            np.flatnonzero(factor == value)
            for value in np.flatnonzero(np.bincount(factor) >= batch)
        ]
        for column, factor in table.each_factor()
    }
    groups = {column: of_values for column, of_values in groups.items() if of_values}
    if len(groups) < 2:
        raise BadInput(
            f"the FactorVAE score takes two factors or more with values that {batch} items have, "
            f"not {len(groups)}: give more items or a smaller batch"
        )
    spread = table.codes.std(0, dtype=float)
    active = np.flatnonzero(spread > dead * spread.max())
    settings = {
        "classifier": "majority vote",
        **counts,
        "dead": dead,
        "active": len(active),
        "chance": 1 / len(groups),
        "seed": seed,
        **table.settings,
        "factors": list(groups),
        "left_out": sorted({*table.left_out, *table.columns} - set(groups)),
    }
    if len(active) == 0:
        return Score(0.0, dict.fromkeys(groups, 0.0), settings)
    rng = np.random.default_rng(seed)
    units = table.codes[:, active] / spread[active]
    learnt = _votes(units, list(groups.values()), batch, votes, rng)
    tested = _votes(units, list(groups.values()), batch, tests, rng)
    right = tested[np.arange(len(active)), learnt.argmax(1)]
    says = np.eye(len(groups), dtype=bool)[learnt.argmax(1)]
    recalls = (tested * says).sum(0) / tested.sum(0).clip(1)
    return Score(
        float(right.sum() / tests),
        {column: float(recall) for column, recall in zip(groups, recalls, strict=True)},
        settings,
    )


def _votes(
    units: Array, groups: list[list[Array]], batch: int, count: int, rng: np.random.Generator
) -> Array:
    """How often each dimension was stillest while each factor was fixed: (dims, factors)."""
    found = np.zeros((units.shape[1], len(groups)), int)
    most = max(1, CHUNK // (batch * units.shape[1]))  # votes held at once
    for factor, share in enumerate(rng.multinomial(count, np.full(len(groups), 1 / len(groups)))):
        sizes = np.array([len(group) for group in groups[factor]])
        for group, left in zip(
            groups[factor], rng.multinomial(share, sizes / sizes.sum()), strict=True
        ):
            for start in range(0, left, most):
                drawn = group[rng.integers(len(group), size=(min(most, left - start), batch))]
                stillest = units[drawn].var(1).argmin(1)
                found[:, factor] += np.bincount(stillest, minlength=len(found))
    return found


@dataclass(frozen=True)
class _Table:
    """Items with a code and factors that vary."""

    codes: Array  # (items, dims)
    factors: Array  # (items, factors), values numbered from 0
    columns: tuple[int, ...]  # where factors were
    left_out: tuple[int, ...]
    sequence: Array  # (items,) to which an item belongs; its own where there are none

    @property
    def dims(self) -> int:
        return self.codes.shape[1]

    @property
    def settings(self) -> dict[str, Any]:
        return {
            "items": len(self.codes),
            "dims": self.dims,
            "factors": list(self.columns),
            "left_out": list(self.left_out),
        }

    def each_factor(self) -> Iterator[tuple[int, Array]]:
        yield from zip(self.columns, self.factors.T, strict=True)

    def split(self, seed: int) -> tuple[Array, Array]:
        """Items to learn from and items to test on: whole sequences at random."""
        check_seed(seed)
        sequences = int(self.sequence[-1]) + 1
        order = np.random.default_rng(seed).permutation(sequences)
        learnt = np.isin(self.sequence, order[: round(TRAINED * sequences)])
        train, test = np.flatnonzero(learnt), np.flatnonzero(~learnt)
        for column, factor in self.each_factor():
            if not len(test) or len(np.unique(factor[train])) < 2:
                raise BadInput(
                    f"factor {column} has no two values in the {len(train)} items to learn from, "
                    f"or none of {len(test)} is left to test on: give more items"
                )
        return train, test


def _table(codes: Array | Tensor, factors: Array | Tensor) -> _Table:
    codes, factors = _array(codes), _array(factors)
    if factors.dtype.kind not in "iub":
        raise BadInput(f"factors must be integers, not {factors.dtype}")
    leading = factors.shape[:-1]
    if (
        len(leading) not in (1, 2)
        or codes.ndim <= len(leading)
        or codes.shape[: len(leading)] != (leading)
    ):
        raise BadInput(
            "codes and factors must be (items, ...) and (items, factor), or (batch, time, ...) and "
            f"(batch, time, factor), not {codes.shape} and {factors.shape}"
        )
    items = int(np.prod(leading))
    if codes.size == 0 or factors.size == 0:
        raise BadInput(f"there are no codes or no factors in {codes.shape} and {factors.shape}")
    flat = codes.reshape(items, -1)
    if not np.isfinite(flat).all():
        raise BadInput("codes must be finite, and some are NaN or infinite")
    columns = factors.reshape(items, -1)
    varies = (columns != columns[0]).any(0)
    if not varies.any():
        raise BadInput("no factor has two values: there is nothing to tell apart")
    numbered = np.stack([_numbered(columns[:, n]) for n in np.flatnonzero(varies)], 1)
    return _Table(
        codes=flat,
        factors=numbered,
        columns=tuple(np.flatnonzero(varies).tolist()),
        left_out=tuple(np.flatnonzero(~varies).tolist()),
        sequence=np.repeat(np.arange(leading[0]), items // leading[0]),
    )


def _array(values: Array | Tensor) -> Array:
    if isinstance(values, Tensor):
        values = values.detach().cpu()
        values = values.float() if values.dtype is torch.bfloat16 else values
    found = np.asarray(values)
    if found.dtype.kind not in "iubf":
        raise BadInput(f"codes and factors must be numbers, not {found.dtype}")
    return found


def _numbered(values: Array) -> Array:
    """The place of each among the values there are."""
    return np.unique(values, return_inverse=True)[1].reshape(-1)


def _entropy(numbered: Array) -> float:
    """In nats."""
    shares = np.bincount(numbered) / len(numbered)
    shares = shares[shares > 0]
    return float(-(shares * np.log(shares)).sum())


def _mutual_information(a: Array, b: Array) -> float:
    both = a * (int(b.max()) + 1) + b
    return max(0.0, _entropy(a) + _entropy(b) - _entropy(both))


def _relative_entropy(rows: Array) -> Array:
    """Of every row, as a share of the greatest there can be; a row of zeros is as good as even."""
    total = rows.sum(1, keepdims=True)
    shares = np.where(total > 0, rows / np.where(total > 0, total, 1), 1 / rows.shape[1])
    logs = np.log(np.where(shares > 0, shares, 1))
    return -(shares * logs).sum(1) / np.log(rows.shape[1])


def _gap(scores: list[float]) -> float:
    second, first = sorted(scores)[-2:]
    return float(first - second)


def _mean(values: dict[int, float]) -> float:
    return sum(values.values()) / len(values)


def _sklearn(part: str) -> Any:
    try:
        return importlib.import_module(f"sklearn.{part}")
    except ImportError as error:
        raise BadInput(
            "SAP and DCI need the package scikit-learn: pip install 'topocaps[metrics]'"
        ) from error
