"""Disentanglement, completeness and informativeness (DCI)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from torch import Tensor

from topocaps.errors import BadInput
from topocaps.metrics.codes import Array, code_table, sklearn
from topocaps.references import cites

EASTWOOD_2018 = """\
@inproceedings{eastwood2018framework,
  title = {A Framework for the Quantitative Evaluation of Disentangled Representations},
  author = {Eastwood, Cian and Williams, Christopher K. I.},
  booktitle = {International Conference on Learning Representations},
  year = {2018},
}"""


@dataclass(frozen=True)
class DCI:
    """The three scores of Eastwood & Williams (2018), and their settings."""

    disentanglement: float  #: 1 if every dimension is important for one factor only
    completeness: float  #: 1 if one dimension alone is important for each factor
    informativeness: float  #: mean test accuracy of the factors
    chance: float  #: mean test accuracy of always predicting the most frequent value
    importances: Array  #: (dims, factors); the sum over dimensions is 1
    settings: dict[str, Any]  #: everything except codes and factors that the scores depend on


def forest(seed: int) -> Any:
    """Return a random forest that considers every dimension at every split.

    With random subsets of dimensions, the forest would use irrelevant dimensions, too.
    """
    return sklearn("ensemble").RandomForestClassifier(100, max_features=None, random_state=seed)


@cites(EASTWOOD_2018)
def dci(
    codes: Array | Tensor,
    factors: Array | Tensor,
    seed: int = 0,
    classifier: Callable[[int], Any] = forest,
) -> DCI:
    r"""Return disentanglement, completeness and informativeness (Eastwood & Williams 2018).

    Let :math:`R_{ij}` be the importance of dimension i to a classifier of factor j, and H an
    entropy divided by its largest possible value. The disentanglement is
    :math:`\sum_i \rho_i (1 - H(R_i / \sum_j R_{ij}))`, where :math:`\rho_i` is the share of
    dimension i in the sum of R. The completeness is the mean over factors of
    :math:`1 - H(R_j / \sum_i R_{ij})`. The informativeness is the mean accuracy of the classifiers.

    Args:
        codes: codes (items, ...), or (batch, time, ...) of sequences.
        factors: integer factors (items, factor), or (batch, time, factor).
        seed: seed of the split into training and test items, and of the classifier.
        classifier: function from a seed to a classifier of scikit-learn that has
            ``feature_importances_``. disentanglement_lib uses GradientBoostingClassifier.
    """
    table = code_table(codes, factors)
    if table.dims < 2 or len(table.columns) < 2:
        raise BadInput(
            "DCI needs at least two dimensions and two factors that vary, not "
            f"{table.dims} and {len(table.columns)}"
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
    by_dimension = 1 - _relative_entropy(matrix)
    return DCI(
        disentanglement=float((weights * by_dimension).sum() / max(weights.sum(), 1e-30)),
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


def _relative_entropy(rows: Array) -> Array:
    """Return the entropy of each row, divided by its maximum. A row of zeros counts as uniform."""
    total = rows.sum(1, keepdims=True)
    shares = np.where(total > 0, rows / np.where(total > 0, total, 1), 1 / rows.shape[1])
    logs = np.log(np.where(shares > 0, shares, 1))
    return -(shares * logs).sum(1) / np.log(rows.shape[1])
