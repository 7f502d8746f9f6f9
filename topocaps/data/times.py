"""Frames that were taken at unequal times, as sequences with missing frames."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from topocaps.errors import BadInput, whole_number


def at_times(x: Any, times: Any, frames: int | None = None) -> tuple[Tensor, Tensor]:
    """Return sequences of equal steps in which each frame stands at its time, and their mask.

    Missing frames are 0.

    Args:
        x: frames (sequences, n, *frame), a tensor or an array.
        times: time of every frame, in whole steps from 0 on, in any order: (n,) or (sequences, n).
        frames: length of the returned sequences; by default they end with the latest frame.

    Returns:
        Frames (sequences, time, *frame), and booleans (sequences, time), True for present frames.

    >>> x, mask = at_times(torch.ones(1, 3, 2), times=[0, 1, 4])
    >>> x[0, :, 0], mask.int()
    (tensor([1., 1., 0., 0., 1.]), tensor([[1, 1, 0, 0, 1]], dtype=torch.int32))
    """
    try:
        x = torch.as_tensor(x)
        given = torch.as_tensor(times, device=x.device)
    except (TypeError, ValueError, RuntimeError) as error:
        raise BadInput(f"frames and their times must be arrays of numbers: {error}") from error
    if x.ndim < 3 or given.shape not in (x.shape[1:2], x.shape[:2]):
        raise BadInput(
            "x must be (sequences, n, *frame), and times (n,) or (sequences, n), not "
            f"{tuple(x.shape)} and {tuple(given.shape)}"
        )
    if x.numel() == 0:
        raise BadInput(f"there are no frames in an array of shape {tuple(x.shape)}")
    steps = given.double().round()
    if (steps != given).any() or not ((steps >= 0) & (steps < 2**31)).all():
        raise BadInput(
            "times must be whole numbers of steps from 0 on: divide times by the length of a step, "
            "and round"
        )
    time = steps.long().expand(x.shape[:2])
    if (time.sort(1).values.diff(dim=1) == 0).any():
        raise BadInput("the times of a sequence must differ: two frames have the same time")
    last = int(time.max())
    frames = last + 1 if frames is None else whole_number("frames", frames)
    if last >= frames:
        raise BadInput(
            f"a frame at time {last} does not fit into {frames} frames: frames must be at least "
            f"{last + 1}"
        )
    row = torch.arange(len(x), device=x.device)[:, None]
    sequences = x.new_zeros(len(x), frames, *x.shape[2:])
    present = torch.zeros(len(x), frames, dtype=torch.bool, device=x.device)
    sequences[row, time], present[row, time] = x, True
    return sequences, present
