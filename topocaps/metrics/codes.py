"""Codes and factors of items, as metrics of disentanglement take them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from topocaps.errors import BadInput, check_seed

Array = NDArray[Any]

TRAINED = 2 / 3  # share of items that a classifier learns from: 10,000 of 15,000 in most papers


@dataclass(frozen=True)
class Table:
    """Items with a code each, and the factors that vary."""

    codes: Array  # (items, dims)
    factors: Array  # (items, factors), values numbered from 0
    columns: tuple[int, ...]  # of these factors in what was given
    left_out: tuple[int, ...]  # columns of factors that do not vary
    sequence: Array  # (items,) number of the sequence of an item

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


def table_of(codes: Array | Tensor, factors: Array | Tensor) -> Table:
    """Codes (items, ...) and factors (items, factor), or sequences of both, as a table."""
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
    return Table(
        codes=flat,
        factors=np.stack([numbered(columns[:, n]) for n in np.flatnonzero(varies)], 1),
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


def numbered(values: Array) -> Array:
    """The index of each value among the different ones, in ascending order."""
    return np.unique(values, return_inverse=True)[1].reshape(-1)
