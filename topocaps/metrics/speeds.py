"""How fast factors move, from their levels."""

from __future__ import annotations

import torch
from torch import Tensor

from topocaps.data.sequences import SequenceSet


def speeds(factors: Tensor) -> Tensor:
    """Return the levels by which factors move in a frame, without sign: (sequences, factor).

    A factor may come round. Its other steps are larger by the number of its levels, so the speed is
    the median over frames.

    Args:
        factors: levels (sequences, time, factor).

    >>> speeds(torch.tensor([[4, 2, 0, 7, 5, 3, 1, 8]])[..., None])  # 9 levels, by -2
    tensor([[2]])
    """
    return factors.diff(dim=1).abs().median(1).values


def moving_by_speed(sequences: SequenceSet, scripts: Tensor) -> dict[int, Tensor]:
    """Return which factors move at each speed, {speed: booleans (sequences, factor)}.

    The result is empty unless sequences in which the same factor moves differ in their speed, and
    where factors are unknown or are no levels.
    """
    factors = [sequences.show(some).factors for some in scripts.split(128)]
    known = [some.cpu() for some in factors if some is not None and not some.is_floating_point()]
    if len(known) < len(factors):
        return {}
    levels = torch.cat(known)
    moving, speed = (levels != levels[:, :1]).any(1), speeds(levels)
    columns = zip(moving.unbind(1), speed.unbind(1), strict=True)
    if all(len(at[moves].unique()) < 2 for moves, at in columns):
        return {}
    return {each: moving & (speed == each) for each in speed[moving].unique().tolist()}
