"""How well a model fills in missing frames."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from topocaps.device import seeded
from topocaps.metrics.rolled_traversal import EDGE, equal_frames, is_new
from topocaps.models.sequence import SequenceModel, check_topographic

SHARES = (0.1, 0.3, 0.5)  #: shares of missing frames
_EDGE = 1e-6  # distance from 0 and 1 of the probabilities in frames that a model fills in


def some_missing(x: Tensor, share: float, seed: int = 0) -> Tensor:
    """Return a mask that is False for a random share of frames, but not for all of a sequence."""
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
    """Return the mean costs of a missing frame: {share missing: {method: cost}}.

    Costs are nats, or squared errors if the decoder is Gaussian. Frames are removed at random. A
    missing frame that equals a present one does not count. The methods are:

    - ``filled``: t of the nearest present frame, rolled, as in `SequenceModel.fill`;
    - ``held``: t of the nearest present frame, not rolled;
    - ``mean``: the mean of the present frames.

    Probabilities are clamped at a distance of 0.001 from 0 and 1 for ``mean``, and of 0.000001 for
    the others.

    Args:
        shares: shares of frames that are missing.
        rate: sites rolled a frame; by default the model's rate.
        seed: seed of the masks.
        closed: as in `SequenceModel.fill`.
    """
    check_topographic(model, "filled_costs: gains_by_visible measures predictions of any model")
    costs_by_share: dict[str, dict[str, float]] = {}
    equal = equal_frames(x)
    for share in shares:
        mask = some_missing(x, share, seed)
        counts = is_new(equal, mask)
        present = mask.reshape(*mask.shape, *(1,) * (x.ndim - 2))
        mean = (x * present).sum(1, keepdim=True) / present.sum(1, keepdim=True)
        predictions = {
            "filled": model.fill(x, mask, rate, closed=closed),
            "held": model.fill(x, mask, 0.0, closed=closed),
            "mean": mean.expand_as(x),
        }
        costs = {}
        for name, predicted in predictions.items():
            cost = model.likelihood.cost(predicted, x, EDGE if name == "mean" else _EDGE)
            costs[name] = cost[counts].mean().item() if counts.any() else math.nan
        costs_by_share[f"{share:g}"] = costs
    return costs_by_share
