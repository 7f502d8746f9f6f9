"""Masks of sequences with missing frames."""

from __future__ import annotations

import torch
from torch import Tensor

from topocaps.errors import BadInput


def check_tensor(x: object) -> None:
    """Raise `BadInput` unless frames are a tensor."""
    if not isinstance(x, Tensor):
        raise BadInput(
            f"frames must be a tensor, not a {type(x).__name__}: convert with torch.as_tensor(x)"
        )


def zero_missing(x: Tensor, mask: Tensor | None) -> Tensor:
    """Return the frames with zeros in place of the missing ones, which may hold NaN.

    Args:
        x: frames (batch, time, *frame).
        mask: booleans (batch, time), True where a frame is present. None means that no frame is
            missing: the result is then ``x`` itself.

    >>> zero_missing(torch.tensor([[[1.0], [torch.nan]]]), torch.tensor([[True, False]]))
    tensor([[[1.],
             [0.]]])
    """
    if mask is None:
        return x
    check_tensor(x)
    if not isinstance(mask, Tensor) or mask.dtype != torch.bool or mask.shape != x.shape[:2]:
        given = f"{tuple(mask.shape)} of {mask.dtype}" if isinstance(mask, Tensor) else mask
        raise BadInput(
            f"a mask must be a boolean tensor {tuple(x.shape[:2])}, True where a frame is "
            f"present, not {given}"
        )
    return torch.where(mask.reshape(mask.shape + (1,) * (x.ndim - 2)), x, x.new_zeros(()))
