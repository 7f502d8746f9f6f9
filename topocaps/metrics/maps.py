"""Topographic maps: which image excites each site most, and whether neighbours like the same."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from topocaps.data.sequences import SequenceSet
from topocaps.models.sequence import SequenceModel


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
    for n, one in enumerate(sequences.whole().batches(batch)):
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


def neighbour_agreement(
    classes: Tensor, images: Tensor | None = None, permutations: int = 9999, seed: int = 0
) -> Agreement:
    """Of the classes of a torus of sites, (rows, columns): the share of neighbours that agree.

    Neighbours are the next site along either axis, round the edges. Where ``images`` are given,
    the number of the image at every site, neighbours with the same image do not count: they agree
    whatever it shows; and what is shuffled are the classes of images, which stay where they are.
    The p-value counts the observed arrangement among the permutations, so that it is never 0.
    """
    generator = torch.Generator().manual_seed(seed)
    images = torch.arange(classes.numel()) if images is None else images.flatten()
    different, at = images.unique(return_inverse=True)
    of_image = torch.zeros_like(classes.flatten()[: len(different)])
    of_image[at] = classes.flatten()
    order = torch.rand(permutations, len(different), generator=generator).argsort(1)
    layout = at.reshape(classes.shape)
    shuffled, observed = (
        _agreement(of_image[which][:, at].reshape(-1, *classes.shape), layout[None])
        for which in (order, torch.arange(len(different))[None])
    )
    as_high = (shuffled >= observed).sum().item()
    return Agreement(
        observed=observed.item(),
        shuffled=shuffled.mean().item(),
        p_value=(1 + as_high) / (1 + permutations),
    )


def _agreement(classes: Tensor, images: Tensor) -> Tensor:
    """(maps, rows, columns), of one layout, to (maps,); 0 where all show the same image."""
    agree, differ = (
        torch.stack([found(of, of.roll(1, axis)) for axis in (1, 2)])
        for found, of in ((torch.eq, classes), (torch.ne, images))
    )
    return (agree & differ).sum((0, 2, 3)) / differ.sum((0, 2, 3)).clamp_min(1).double()
