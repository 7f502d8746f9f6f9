"""Disentanglement of codes from any model: MIG, SAP, DCI and the FactorVAE score.

Codes are (items, ...), factors (items, factor); or sequences, (batch, time, ...) and (batch, time,
factor), whose frames are the items. Arrays or tensors; factors are integers. A factor of one value
is left out, and ``settings["left_out"]`` says so. Of sequences, all frames of one are either learnt
from or tested on.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from torch import Tensor

from topocaps.errors import BadInput, check_seed, whole_number
from topocaps.metrics.codes import Array, numbered, table_of
from topocaps.references import cites

CHEN_2018 = """\
@inproceedings{chen2018isolating,
  title = {Isolating Sources of Disentanglement in Variational Autoencoders},
  author = {Chen, Ricky T. Q. and Li, Xuechen and Grosse, Roger B. and Duvenaud, David K.},
  booktitle = {Advances in Neural Information Processing Systems},
  volume = {31},
  year = {2018},
  url = {https://arxiv.org/abs/1802.04942},
}"""

KUMAR_2018 = """\
@inproceedings{kumar2018variational,
  title = {Variational Inference of Disentangled Latent Concepts from Unlabeled Observations},
  author = {Kumar, Abhishek and Sattigeri, Prasanna and Balakrishnan, Avinash},
  booktitle = {International Conference on Learning Representations},
  year = {2018},
  url = {https://arxiv.org/abs/1711.00848},
}"""

EASTWOOD_2018 = """\
@inproceedings{eastwood2018framework,
  title = {A Framework for the Quantitative Evaluation of Disentangled Representations},
  author = {Eastwood, Cian and Williams, Christopher K. I.},
  booktitle = {International Conference on Learning Representations},
  year = {2018},
}"""

KIM_2018 = """\
@inproceedings{kim2018disentangling,
  title = {Disentangling by Factorising},
  author = {Kim, Hyunjik and Mnih, Andriy},
  booktitle = {International Conference on Machine Learning},
  year = {2018},
  url = {https://arxiv.org/abs/1802.05983},
}"""

Discretiser = Callable[[Array, int], Array]

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


@cites(CHEN_2018)
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
    table = table_of(codes, factors)
    bins = whole_number("bins", bins)
    if table.dims < 2:
        raise BadInput("MIG compares two dimensions of a code, and this one has 1")
    cut = [numbered(discretise(table.codes[:, n], bins)) for n in range(table.dims)]
    gaps = {}
    for column, factor in table.each_factor():
        shared = [_mutual_information(one, factor) / _entropy(factor) for one in cut]
        gaps[column] = _gap(shared)
    settings = {"discretiser": discretise.__name__, "bins": bins, **table.settings}
    return Score(_mean(gaps), gaps, settings)


@cites(KUMAR_2018)
def sap(
    codes: Array | Tensor, factors: Array | Tensor, seed: int = 0, standardise: bool = True
) -> Score:
    """Separated attribute predictability (Kumar et al. 2018), all factors being classes.

    The gap between the accuracies, on items not learnt from, of the two dimensions that each alone
    predict a factor best, by the linear SVM of disentanglement_lib. Its penalty depends on the
    scale of a dimension; hence, unlike there, dimensions are standardised unless told otherwise.
    """
    table = table_of(codes, factors)
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


@cites(EASTWOOD_2018)
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
    table = table_of(codes, factors)
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


@cites(KIM_2018)
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
    table = table_of(codes, factors)
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


def _entropy(classes: Array) -> float:
    """In nats."""
    shares = np.bincount(classes) / len(classes)
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
