"""Separated attribute predictability (SAP)."""

from __future__ import annotations

import numpy as np
from torch import Tensor

from topocaps.errors import BadInput
from topocaps.metrics.codes import Array, Score, code_table, gap, sklearn
from topocaps.references import cites

KUMAR_2018 = """\
@inproceedings{kumar2018variational,
  title = {Variational Inference of Disentangled Latent Concepts from Unlabeled Observations},
  author = {Kumar, Abhishek and Sattigeri, Prasanna and Balakrishnan, Avinash},
  booktitle = {International Conference on Learning Representations},
  year = {2018},
  url = {https://arxiv.org/abs/1711.00848},
}"""


@cites(KUMAR_2018)
def sap(
    codes: Array | Tensor, factors: Array | Tensor, seed: int = 0, standardise: bool = True
) -> Score:
    """Return the separated attribute predictability (Kumar et al. 2018).

    The score of a factor is the gap between the test accuracies of the two single dimensions that
    predict it best. All factors are treated as classes. The classifier is the linear SVM of
    disentanglement_lib.

    Args:
        codes: codes (items, ...), or (batch, time, ...) of sequences.
        factors: integer factors (items, factor), or (batch, time, factor).
        seed: seed of the split into training and test items, and of the classifier.
        standardise: standardise the dimensions, which disentanglement_lib does not. The penalty of
            the SVM depends on their scale.
    """
    table = code_table(codes, factors)
    if table.dims < 2:
        raise BadInput("SAP needs codes of at least two dimensions, not 1")
    svm = sklearn("svm").LinearSVC
    train, test = table.split(seed)
    scaled = table.codes.astype(float)
    if standardise:
        spread = scaled[train].std(0)
        scaled = (scaled - scaled[train].mean(0)) / np.where(spread > 0, spread, 1)
    model = svm(C=0.01, class_weight="balanced", random_state=seed % 2**32)
    gaps = {}
    for column, factor in table.each_factor():
        scores = []
        for values in scaled.T[:, :, None]:
            scores.append(model.fit(values[train], factor[train]).score(values[test], factor[test]))
        gaps[column] = gap(scores)
    settings = {
        "classifier": repr(model),
        "standardised": standardise,
        "seed": seed,
        "train_items": len(train),
        "test_items": len(test),
        **table.settings,
    }
    return Score.of(gaps, settings)
