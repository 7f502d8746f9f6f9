"""Neighbours: of items among codes, and of sites within capsules and on maps."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from topocaps.data.sequences import SequenceSet
from topocaps.errors import BadInput, check_seed, whole_number
from topocaps.metrics.equivariance import SITE_AXIS, as_latents
from topocaps.models.sequence import SequenceModel


def nearest_neighbour_accuracy(
    train: tuple[Tensor, Tensor], test: tuple[Tensor, Tensor], k: int = 5, batch: int = 1000
) -> float:
    """Share of test items whose class most of the ``k`` nearest training items have.

    Codes are (items, ...), by Euclidean distance; classes are (items,), 0 and up. Of classes with
    as many votes, the one that has the nearest item.

    >>> known = torch.tensor([[0.0], [1.0], [10.0], [11.0]]), torch.tensor([0, 0, 1, 1])
    >>> asked = torch.tensor([[0.4], [9.0]]), torch.tensor([0, 1])
    >>> nearest_neighbour_accuracy(known, asked, k=1)
    1.0
    """
    return nearest_neighbour_hits(train, test, k, batch).double().mean().item()


def nearest_neighbour_hits(
    train: tuple[Tensor, Tensor], test: tuple[Tensor, Tensor], k: int = 5, batch: int = 1000
) -> Tensor:
    """Whether ``nearest_neighbour_accuracy`` counts each test item as right: (items,)."""
    (known, classes), (asked, wanted) = _checked(train), _checked(test)
    k, batch = whole_number("k", k), whole_number("batch", batch)
    if k > len(known) or known.shape[1] != asked.shape[1]:
        raise BadInput(
            f"{k} neighbours must be among {len(known)} training items with codes as long as the "
            f"test's: {known.shape[1]} and {asked.shape[1]}"
        )
    centre = known.mean(0)  # distances are sums of products: less is lost near the origin
    known = known - centre
    right = []
    for some, labels in zip(asked.split(batch), wanted.split(batch), strict=True):
        nearest = torch.cdist(some - centre, known).topk(k, largest=False).indices
        theirs = classes[nearest]  # items k, nearest first
        votes = (theirs[:, :, None] == theirs[:, None]).sum(2)
        winner = votes.argmax(1, keepdim=True)  # the first of equal votes, which is the nearest
        right.append(theirs.gather(1, winner)[:, 0] == labels)
    return torch.cat(right)


def _checked(items: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
    codes, classes = items
    if codes.ndim < 2 or classes.shape != codes.shape[:1] or codes.numel() == 0:
        raise BadInput(
            f"neighbours take codes (items, ...) and a class of each, not {tuple(codes.shape)} and "
            f"{tuple(classes.shape)}"
        )
    if classes.is_floating_point() or classes.is_complex() or int(classes.min()) < 0:
        raise BadInput("classes must be integers, 0 and up")
    if not codes.isfinite().all():
        raise BadInput("codes must be finite, and some are NaN or infinite")
    return codes.detach().float().flatten(1), classes.long().to(codes.device)


@dataclass(frozen=True)
class Smoothness:
    """How alike neighbouring sites act, against sites that were shuffled."""

    observed: float
    shuffled: float  # mean over permutations
    p_value: float  # of no organisation: share of permutations at least as smooth
    permutations: int
    seed: int


def topographic_smoothness(
    t: Any, permutations: int = 999, seed: int = 0, cyclic: bool = True
) -> Smoothness:
    """Mean correlation of the activities of sites that are next to each other.

    t: (batch, time, capsules, *shape). A site's activity is its value over all frames; that of a
    constant site correlates with nothing. Neighbours are the next along every axis, round the ends
    where ``cyclic``. Permutations are of the sites of every capsule, the same for all frames; the
    p-value counts the observed order among them, so that it is never 0. Topographic ICA ties
    *energies*: of those, ask with ``t.square()``.
    """
    t = as_latents(t)
    check_seed(seed)
    permutations = whole_number("permutations", permutations)
    pairs = _pairs(tuple(t.shape[SITE_AXIS:]), cyclic)
    if len(pairs) == 0:
        raise BadInput(f"capsules of {tuple(t.shape[SITE_AXIS:])} sites have no neighbours")
    if len(t) * t.shape[1] < 2 or not t.isfinite().all():
        raise BadInput("smoothness takes two frames or more, all finite")
    sites = t.detach().cpu().double().flatten(0, 1).flatten(2)  # frames capsules sites
    sites = sites - sites.mean(0)
    sites = sites / sites.norm(dim=0).clamp_min(1e-30)
    alike = torch.einsum("ncs,ncr->csr", sites, sites)
    generator = torch.Generator().manual_seed(seed)
    shuffled = torch.zeros(permutations, dtype=torch.double)
    for one in alike:
        order = torch.rand(permutations, len(one), generator=generator).argsort(1)
        shuffled += one[order[:, pairs[:, 0]], order[:, pairs[:, 1]]].mean(1) / len(alike)
    observed = alike[:, pairs[:, 0], pairs[:, 1]].mean().item()
    # some permutations are the same order turned round: as smooth, but for rounding
    as_smooth = int((shuffled >= observed - 1e-9).sum())
    return Smoothness(
        observed=observed,
        shuffled=shuffled.mean().item(),
        p_value=(1 + as_smooth) / (1 + permutations),
        permutations=permutations,
        seed=seed,
    )


def _pairs(shape: tuple[int, ...], cyclic: bool) -> Tensor:
    """Neighbours in a lattice by their places in it, flat: (pairs, 2)."""
    places = torch.arange(math.prod(shape)).reshape(shape)
    found = []
    for axis, length in enumerate(shape):
        if length > 1:
            kept = length if cyclic else length - 1
            following = places.roll(-1, axis).narrow(axis, 0, kept)
            found.append(torch.stack([places.narrow(axis, 0, kept), following], -1).reshape(-1, 2))
    return torch.cat(found) if found else places.new_zeros(0, 2)


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
    images = torch.arange(classes.numel()) if images is None else images.flatten()
    distinct, image_at = images.unique(return_inverse=True)
    class_of_image = torch.zeros_like(classes.flatten()[: len(distinct)])
    class_of_image[image_at] = classes.flatten()
    first, second = image_at[_pairs(tuple(classes.shape), cyclic=True)].unbind(1)
    first, second = first[first != second], second[first != second]

    def share_that_agrees(class_of_image: Tensor) -> Tensor:  # maps images -> maps
        agree = class_of_image[..., first] == class_of_image[..., second]
        return agree.sum(-1).double() / max(1, len(first))

    generator = torch.Generator().manual_seed(seed)
    order = torch.rand(permutations, len(distinct), generator=generator).argsort(1)
    observed = share_that_agrees(class_of_image)
    shuffled = share_that_agrees(class_of_image[order])
    as_high = (shuffled >= observed).sum().item()
    return Agreement(
        observed=observed.item(),
        shuffled=shuffled.mean().item(),
        p_value=(1 + as_high) / (1 + permutations),
    )
