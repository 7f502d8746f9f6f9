"""Codes and factors of the metrics of disentanglement: MIG, SAP, DCI and the FactorVAE score.

Codes are (items, ...) and factors (items, factor), as arrays or tensors, from any model. Sequences
are (batch, time, ...) and (batch, time, factor). Their frames are the items, and all frames of a
sequence are either training or test items. Factors are integers. A factor with a single value is
left out, and the entry ``left_out`` of the settings lists it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from topocaps.errors import BadInput, check_seed, optional

Array = NDArray[Any]

TRAIN_SHARE = 2 / 3  #: share of training items: 10,000 of 15,000 in most papers


@dataclass(frozen=True)
class Score:
    """A metric of codes, averaged over factors."""

    value: float  #: mean over factors
    by_factor: dict[int, float]  #: value of each factor, by its column
    settings: dict[str, Any]  #: everything except codes and factors that the value depends on

    @classmethod
    def of(cls, by_factor: dict[int, float], settings: dict[str, Any]) -> Score:
        """Average the scores of factors."""
        return cls(sum(by_factor.values()) / len(by_factor), by_factor, settings)


@dataclass(frozen=True)
class CodeTable:
    """Codes of items, and the factors that vary."""

    codes: Array  #: (items, dims)
    factors: Array  #: (items, factors), values numbered from 0
    columns: tuple[int, ...]  #: columns of these factors in the input
    left_out: tuple[int, ...]  #: columns of factors that do not vary
    sequence: Array  #: (items,) index of each item's sequence

    @property
    def dims(self) -> int:
        """The number of dimensions of a code."""
        return self.codes.shape[1]

    @property
    def settings(self) -> dict[str, Any]:
        """The sizes and the columns, for the settings of a score."""
        return {
            "items": len(self.codes),
            "dims": self.dims,
            "factors": list(self.columns),
            "left_out": list(self.left_out),
        }

    def each_factor(self) -> Iterator[tuple[int, Array]]:
        """Yield the column and the values (items,) of every factor."""
        yield from zip(self.columns, self.factors.T, strict=True)

    def split(self, seed: int) -> tuple[Array, Array]:
        """Return the indices of training and of test items; sequences are split at random."""
        check_seed(seed)
        sequences = int(self.sequence[-1]) + 1
        order = np.random.default_rng(seed).permutation(sequences)
        training = np.isin(self.sequence, order[: round(TRAIN_SHARE * sequences)])
        train, test = np.flatnonzero(training), np.flatnonzero(~training)
        for column, factor in self.each_factor():
            if not len(test) or len(np.unique(factor[train])) < 2:
                raise BadInput(
                    f"factor {column} needs two values among the {len(train)} training items, and "
                    f"one or more test items, not {len(test)}: give more items"
                )
        return train, test


def code_table(codes: Array | Tensor, factors: Array | Tensor) -> CodeTable:
    """Return the table of codes and factors of items or sequences, or raise `BadInput`."""
    codes, factors = _array(codes), _array(factors)
    if factors.dtype.kind not in "iub":
        raise BadInput(f"factors must be integers, not {factors.dtype}")
    leading = factors.shape[:-1]
    axes = len(leading)
    if axes not in (1, 2) or codes.ndim <= axes or codes.shape[:axes] != leading:
        raise BadInput(
            "codes and factors must be (items, ...) and (items, factor), or (batch, time, ...) and "
            f"(batch, time, factor), not {codes.shape} and {factors.shape}"
        )
    items = int(np.prod(leading))
    if codes.size == 0 or factors.size == 0:
        raise BadInput(f"there are no codes or no factors in {codes.shape} and {factors.shape}")
    flat = codes.reshape(items, -1)
    if not np.isfinite(flat).all():
        raise BadInput("codes must be finite, but some are NaN or infinite")
    columns = factors.reshape(items, -1)
    varies = (columns != columns[0]).any(0)
    if not varies.any():
        raise BadInput(
            "every factor has a single value, so no metric of disentanglement is defined: give "
            "items with different factors"
        )
    return CodeTable(
        codes=flat,
        factors=np.stack([value_indices(columns[:, n]) for n in np.flatnonzero(varies)], 1),
        columns=tuple(np.flatnonzero(varies).tolist()),
        left_out=tuple(np.flatnonzero(~varies).tolist()),
        sequence=np.repeat(np.arange(leading[0]), items // leading[0]),
    )


def _array(values: Array | Tensor) -> Array:
    if isinstance(values, Tensor):
        values = values.detach().cpu()
        values = values.float() if values.dtype is torch.bfloat16 else values
    array = np.asarray(values)
    if array.dtype.kind not in "iubf":
        raise BadInput(f"codes and factors must be numbers, not {array.dtype}")
    return array


def value_indices(values: Array) -> Array:
    """Return the index of each value among the sorted distinct values."""
    return np.unique(values, return_inverse=True)[1].reshape(-1)


def gap(scores: list[float]) -> float:
    """Return the difference between the greatest and the second greatest score."""
    second, first = sorted(scores)[-2:]
    return float(first - second)


def sklearn(part: str) -> Any:
    """Import a module of scikit-learn, or raise `BadInput` if it is not installed."""
    needs = "SAP and DCI need the package scikit-learn"
    return optional(f"sklearn.{part}", needs, "'topocaps[metrics]'")
