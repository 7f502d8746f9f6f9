"""Topographic maps: which image excites each site most, and whether neighbours like the same."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from topocaps.data.sequences import SequenceSet
from topocaps.models import SequenceModel


@dataclass(frozen=True)
class Agreement:
    """How often neighbouring sites have the same class, against sites that were shuffled."""

    observed: float
    shuffled: float  # mean over permutations
    p_value: float  # of no organisation: share of permutations that agree at least as often


@torch.no_grad()
def strongest_images(model: SequenceModel, sequences: SequenceSet, batch: int = 500) -> Tensor:
    """The number of the sequence whose first frame excites a site most: (capsules, *shape)."""
    best = None
    which = None
    for n, one in enumerate(sequences.batches(batch)):
        t = model.encode(one.x)[:, 0]  # batch capsules *shape
        value, index = t.max(0)
        index = index + n * batch
        if best is None or which is None:
            best, which = value, index
        else:
            which = torch.where(value > best, index, which)
            best = torch.maximum(value, best)
    assert which is not None
    return which.cpu()


def neighbour_agreement(classes: Tensor, permutations: int = 9999, seed: int = 0) -> Agreement:
    """Of the classes of a torus of sites, (rows, columns): the share of neighbours that agree.

    Neighbours are the next site along either axis, round the edges. The p-value counts the
    observed arrangement among the permutations, so that it is never 0.
    """
    generator = torch.Generator().manual_seed(seed)
    flat = classes.flatten()
    order = torch.rand(permutations, flat.numel(), generator=generator).argsort(1)
    shuffled = _agreement(flat[order].reshape(permutations, *classes.shape))
    observed = _agreement(classes[None])[0]
    as_high = (shuffled >= observed).sum().item()
    return Agreement(
        observed=observed.item(),
        shuffled=shuffled.mean().item(),
        p_value=(1 + as_high) / (1 + permutations),
    )


def _agreement(classes: Tensor) -> Tensor:
    """(maps, rows, columns) to (maps,)."""
    pairs = [classes == classes.roll(1, axis) for axis in (1, 2)]
    return torch.stack(pairs).double().mean((0, 2, 3))
