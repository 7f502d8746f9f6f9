"""Topographic maps: the image that excites each site most, and the agreement of neighbours."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from topocaps.data.sequences import SequenceSet
from topocaps.models.sequence import SequenceModel


@dataclass(frozen=True)
class Agreement:
    """Share of neighbouring sites of one class, beside that of shuffled classes."""

    observed: float  #: share of neighbours that agree
    shuffled: float  #: mean share over permutations
    p_value: float  #: share of permutations that agree at least as often


@torch.no_grad()
def strongest_images(model: SequenceModel, sequences: SequenceSet, batch: int = 500) -> Tensor:
    """Return the sequence whose first frame excites each site most: (capsules, *shape)."""
    batches = sequences.whole().batches(batch)
    t = torch.cat([model.encode(one.x)[:, 0].cpu() for one in batches])  # sequences capsules *shape
    return t.argmax(0)


def neighbour_agreement(
    classes: Tensor, images: Tensor | None = None, permutations: int = 9999, seed: int = 0
) -> Agreement:
    """Return the share of neighbouring sites of a torus that have the same class.

    Neighbours are adjacent along either axis, round the edges. The permutations shuffle the classes
    of images; images keep their sites. The p-value counts the observed arrangement as one of the
    permutations, so it is above 0.

    Args:
        classes: class of every site, (rows, columns).
        images: index of the image at every site; by default all differ. Neighbours with the same
            image do not count, since they agree in any case.
        permutations: number of permutations.
        seed: seed of the permutations.
    """
    generator = torch.Generator().manual_seed(seed)
    images = torch.arange(classes.numel()) if images is None else images.flatten()
    distinct, image_at = images.unique(return_inverse=True)
    class_of_image = torch.zeros_like(classes.flatten()[: len(distinct)])
    class_of_image[image_at] = classes.flatten()
    order = torch.rand(permutations, len(distinct), generator=generator).argsort(1)
    layout = image_at.reshape(classes.shape)
    shuffled, observed = (
        _agreement(class_of_image[which][:, image_at].reshape(-1, *classes.shape), layout[None])
        for which in (order, torch.arange(len(distinct))[None])
    )
    as_high = (shuffled >= observed).sum().item()
    return Agreement(
        observed=observed.item(),
        shuffled=shuffled.mean().item(),
        p_value=(1 + as_high) / (1 + permutations),
    )


def _agreement(classes: Tensor, images: Tensor) -> Tensor:
    """Return the share of agreeing neighbours of each map: (maps, rows, columns) to (maps,).

    It is 0 if all sites have the same image.
    """
    agree = torch.stack([classes == classes.roll(1, axis) for axis in (1, 2)])
    differ = torch.stack([images != images.roll(1, axis) for axis in (1, 2)])
    return (agree & differ).sum((0, 2, 3)) / differ.sum((0, 2, 3)).clamp_min(1).double()
