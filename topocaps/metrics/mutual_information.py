"""The mutual information gap (MIG)."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from torch import Tensor

from topocaps.errors import BadInput, whole_number
from topocaps.metrics.codes import Array, Score, code_table, gap, value_indices
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

Discretiser = Callable[[Array, int], Array]


def equal_counts(values: Array, bins: int) -> Array:
    """Return the bins of values in bins with equal numbers of items.

    Increasing maps of the values do not change the bins. Equal values are in the same bin.
    """
    below = np.searchsorted(np.sort(values), values)
    return below * bins // len(values)


def equal_widths(values: Array, bins: int) -> Array:
    """Return the bins of values in bins of equal width, as in disentanglement_lib."""
    edges = np.histogram_bin_edges(values, bins)
    return np.digitize(values, edges[1:-1])


@cites(CHEN_2018)
def mig(
    codes: Array | Tensor,
    factors: Array | Tensor,
    bins: int = 20,
    discretise: Discretiser = equal_counts,
) -> Score:
    r"""Return the mutual information gap (Chen et al. 2018).

    The gap of a factor v is :math:`(I(c_1; v) - I(c_2; v)) / H(v)`, where :math:`c_1` and
    :math:`c_2` are the two dimensions with the most information about v.

    Args:
        codes: codes (items, ...), or (batch, time, ...) of sequences.
        factors: integer factors (items, factor), or (batch, time, factor).
        bins: number of bins of each dimension.
        discretise: function that bins a dimension. Most published numbers come from
            `equal_widths`, which depends on the scale and the tails of a code.

    >>> factors = np.stack(np.divmod(np.arange(64), 8), 1)  # all pairs of two factors of 8 values
    >>> mig(factors.astype(float), factors, bins=8).value  # one dimension per factor
    1.0
    >>> mig(np.repeat(factors, 2, axis=1), factors, bins=8).value  # two dimensions per factor
    0.0
    """
    table = code_table(codes, factors)
    bins = whole_number("bins", bins)
    if table.dims < 2:
        raise BadInput("MIG needs codes of at least two dimensions, not 1")
    binned = [value_indices(discretise(table.codes[:, n], bins)) for n in range(table.dims)]
    gaps = {}
    for column, factor in table.each_factor():
        shares = [mutual_information(dimension, factor) / entropy(factor) for dimension in binned]
        gaps[column] = gap(shares)
    settings = {"discretiser": discretise.__name__, "bins": bins, **table.settings}
    return Score.of(gaps, settings)


def entropy(classes: Array) -> float:
    """Return the entropy of integer classes in nats."""
    shares = np.bincount(classes) / len(classes)
    shares = shares[shares > 0]
    return float(-(shares * np.log(shares)).sum())


def mutual_information(a: Array, b: Array) -> float:
    """Return the mutual information of integer classes in nats."""
    joint = a * (int(b.max()) + 1) + b
    return max(0.0, entropy(a) + entropy(b) - entropy(joint))
