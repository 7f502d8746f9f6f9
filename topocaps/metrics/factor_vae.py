"""The FactorVAE score."""

from __future__ import annotations

import numpy as np
from torch import Tensor

from topocaps.errors import BadInput, check_seed, whole_number
from topocaps.metrics.codes import Array, CodeTable, Score, code_table
from topocaps.references import cites

KIM_2018 = """\
@inproceedings{kim2018disentangling,
  title = {Disentangling by Factorising},
  author = {Kim, Hyunjik and Mnih, Andriy},
  booktitle = {International Conference on Machine Learning},
  year = {2018},
  url = {https://arxiv.org/abs/1802.05983},
}"""

CHUNK = 2**24  #: largest number of values of the batches that are drawn at once


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
    """Return the FactorVAE score (Kim & Mnih 2018).

    It measures how well the least variable dimension predicts which factor is fixed.

    A vote fixes a factor, drawn uniformly, at the value of a random item. It draws a batch of items
    with this value, with replacement, so other factors are as frequent as in the data. The vote
    goes to the dimension with the least variance over the batch, relative to its variance over all
    items. Each dimension predicts the factor of most of its votes. The score is the share of
    correct predictions in further votes. It is 0 if all dimensions are constant.

    Args:
        codes: codes (items, ...), or (batch, time, ...) of sequences.
        factors: integer factors (items, factor), or (batch, time, factor).
        batch: number of items in a batch. Values that fewer items have are not drawn, and factors
            with no other values are left out.
        votes: number of votes that decide the predictions.
        tests: number of further votes that test the predictions.
        dead: dimensions get no votes if their standard deviation is at most this share of the
            largest. The paper excludes dimensions that collapsed to the prior, which codes alone
            do not show.
        seed: seed of all draws.
    """
    table = code_table(codes, factors)
    counts = {"batch": batch, "votes": votes, "tests": tests}
    batch, votes, tests = (whole_number(name, count) for name, count in counts.items())
    if batch < 2:
        raise BadInput("batch must be at least 2, as a batch of 1 item has no variance")
    check_seed(seed)
    groups = _groups(table, batch)
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
    trained = _votes(units, list(groups.values()), batch, votes, rng)
    tested = _votes(units, list(groups.values()), batch, tests, rng)
    correct = tested * np.eye(len(groups), dtype=int)[trained.argmax(1)]  # dims factors
    recalls = correct.sum(0) / tested.sum(0).clip(1)
    return Score(
        float(correct.sum() / tests),
        {column: float(recall) for column, recall in zip(groups, recalls, strict=True)},
        settings,
    )


def _groups(table: CodeTable, batch: int) -> dict[int, list[Array]]:
    """Return {factor column: [items of a value]} for values that ``batch`` or more items have."""
    groups: dict[int, list[Array]] = {}
    for column, factor in table.each_factor():
        if len(values := np.flatnonzero(np.bincount(factor) >= batch)):
            groups[column] = [np.flatnonzero(factor == value) for value in values]
    if len(groups) < 2:
        raise BadInput(
            f"the FactorVAE score needs at least two factors with values of {batch} or more "
            f"items, not {len(groups)}: give more items or a smaller batch"
        )
    return groups


def _votes(
    units: Array, groups: list[list[Array]], batch: int, count: int, rng: np.random.Generator
) -> Array:
    """Return the numbers of votes of each dimension for each factor: (dims, factors)."""
    counts = np.zeros((units.shape[1], len(groups)), int)
    most = max(1, CHUNK // (batch * units.shape[1]))
    for factor, share in enumerate(rng.multinomial(count, np.full(len(groups), 1 / len(groups)))):
        sizes = np.array([len(group) for group in groups[factor]])
        for group, left in zip(
            groups[factor], rng.multinomial(share, sizes / sizes.sum()), strict=True
        ):
            for start in range(0, left, most):
                drawn = group[rng.integers(len(group), size=(min(most, left - start), batch))]
                least = units[drawn].var(1).argmin(1)
                counts[:, factor] += np.bincount(least, minlength=len(counts))
    return counts
