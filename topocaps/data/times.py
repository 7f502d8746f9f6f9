"""Frames that were taken at unequal times, as sequences with missing frames."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from topocaps.errors import BadInput, whole_number


def at_times(x: Any, times: Any, frames: int | None = None) -> tuple[Tensor, Tensor]:
    """Place frames at their times; return sequences of equal steps, and which frames are present.

    Missing frames are 0.

    Args:
        x: frames (sequences, n, *frame), a tensor or an array.
        times: time of every frame in whole steps from the first step, which is 0: (n,), or
            (sequences, n). The order is free.
        frames: number of steps of the returned sequences; by default they end with the last frame.

    Returns:
        Frames (sequences, time, *frame), and booleans (sequences, time).

    >>> x, mask = at_times(torch.ones(1, 3, 2), times=[0, 1, 4])
    >>> x[0, :, 0], mask.int()
    (tensor([1., 1., 0., 0., 1.]), tensor([[1, 1, 0, 0, 1]], dtype=torch.int32))
    """
    try:
        x = torch.as_tensor(x)
        when = torch.as_tensor(times, device=x.device)
    except (TypeError, ValueError, RuntimeError) as error:
        raise BadInput(f"frames and their times must be arrays of numbers: {error}") from error
    if x.ndim < 3 or when.shape not in (x.shape[1:2], x.shape[:2]):
        raise BadInput(
            "x must be (sequences, n, *frame), and times (n,) or (sequences, n), not "
            f"{tuple(x.shape)} and {tuple(when.shape)}"
        )
    if x.numel() == 0:
        raise BadInput(f"there are no frames in an array of shape {tuple(x.shape)}")
    steps = when.double().round()
    if (steps != when).any() or not ((steps >= 0) & (steps < 2**31)).all():
        raise BadInput(
            "times must be whole numbers of steps from 0 on: divide times by the length of a step, "
            "and round"
        )
    place = steps.long().expand(x.shape[:2])
    if (place.sort(1).values.diff(dim=1) == 0).any():
        raise BadInput("times of one sequence must differ: two frames have the same one")
    last = int(place.max())
    frames = last + 1 if frames is None else whole_number("frames", frames)
    if last >= frames:
        raise BadInput(f"a frame at time {last} does not fit into {frames} frames")
    row = torch.arange(len(x), device=x.device)[:, None]
    placed = x.new_zeros(len(x), frames, *x.shape[2:])
    present = torch.zeros(len(x), frames, dtype=torch.bool, device=x.device)
    placed[row, place], present[row, place] = x, True
    return placed, present
