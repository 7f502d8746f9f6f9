"""Frames that are missing: how well they are filled in."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from topocaps.arithmetic import seeded
from topocaps.metrics.traversal import EDGE
from topocaps.models.sequence import SequenceModel

SHARES = (0.1, 0.3, 0.5)
_SURE = 1e-6  # no frame is filled in with more certainty than that


def some_missing(x: Tensor, share: float, seed: int = 0) -> Tensor:
    """A mask, False for a random ``share`` of frames; one at least of every sequence stays."""
    with seeded(seed):
        draw = torch.rand(x.shape[:2])
    return ((draw >= share) | (draw == draw.amax(1, keepdim=True))).to(x.device)


@torch.no_grad()
def filled_costs(
    model: SequenceModel,
    x: Tensor,
    shares: Sequence[float] = SHARES,
    rate: float | None = None,
    seed: int = 0,
    closed: bool | None = None,
) -> dict[str, dict[str, float]]:
    """{share missing: costs of a missing frame}, in nats (squared errors for a Gaussian decoder).

    Frames are taken out at random, at least one of every sequence stays, and those whose image is
    shown by another do not count. ``filled`` rolls the nearest frame's t by ``rate`` sites a frame
    (the model's own unless given; round the ends where sequences are ``closed``, as in
    ``SequenceModel.fill``), ``held`` decodes it as it is, ``mean`` is the mean of the frames
    that are there (no more certain than 0.001; the others, than 0.000001).
    """
    found: dict[str, dict[str, float]] = {}
    for share in shares:
        mask = some_missing(x, share, seed)
        same = (x[:, :, None] == x[:, None]).flatten(3).all(3)  # batch time time
        counts = ~mask & ~(same & mask[:, None]).any(2)
        there = mask.reshape(*mask.shape, *(1,) * (x.ndim - 2))
        mean = (x * there).sum(1, keepdim=True) / there.sum(1, keepdim=True)
        ways: dict[str, Any] = {
            "filled": model.fill(x, mask, rate, closed=closed),
            "held": model.fill(x, mask, 0.0, closed=closed),
            "mean": mean.expand_as(x),
        }
        costs = {}
        for name, shown in ways.items():
            cost = model.likelihood.cost(shown, x, EDGE if name == "mean" else _SURE)
            costs[name] = cost[counts].mean().item() if counts.any() else math.nan
        found[f"{share:g}"] = costs
    return found
