"""Metrics of neighbours: of the codes of items, and of sites within capsules and on maps."""

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
    """Return the accuracy of a classifier by the majority of the ``k`` nearest training items.

    Distances are Euclidean. If several classes have the most items, the one with the nearest item
    is predicted.

    Args:
        train: codes (items, ...) and classes (items,) of the training items. Classes are integers
            of at least 0.
        test: codes and classes of the test items.
        k: number of neighbours.
        batch: number of test items whose distances are computed at once.

    >>> train = torch.tensor([[0.0], [1.0], [10.0], [11.0]]), torch.tensor([0, 0, 1, 1])
    >>> test = torch.tensor([[0.4], [9.0]]), torch.tensor([0, 1])
    >>> nearest_neighbour_accuracy(train, test, k=1)
    1.0
    """
    return nearest_neighbour_hits(train, test, k, batch).double().mean().item()


def nearest_neighbour_hits(
    train: tuple[Tensor, Tensor], test: tuple[Tensor, Tensor], k: int = 5, batch: int = 1000
) -> Tensor:
    """Return which test items `nearest_neighbour_accuracy` counts as right: booleans (items,).

    Args:
        train, test, k, batch: as in `nearest_neighbour_accuracy`.
    """
    (train_codes, train_classes), (test_codes, test_classes) = _checked(train), _checked(test)
    k, batch = whole_number("k", k), whole_number("batch", batch)
    if k > len(train_codes):
        raise BadInput(f"k must be at most the {len(train_codes)} training items, not {k}")
    if train_codes.shape[1] != test_codes.shape[1]:
        raise BadInput(
            "training and test codes must have the same length, not "
            f"{train_codes.shape[1]} and {test_codes.shape[1]}"
        )
    centre = train_codes.mean(0)  # cdist is more accurate near the origin
    train_codes = train_codes - centre
    hits = []
    for codes, classes in zip(test_codes.split(batch), test_classes.split(batch), strict=True):
        nearest = torch.cdist(codes - centre, train_codes).topk(k, largest=False).indices
        voters = train_classes[nearest]  # items k, nearest first
        votes = (voters[:, :, None] == voters[:, None]).sum(2)
        winner = votes.argmax(1, keepdim=True)  # the first of equal votes, which is the nearest
        hits.append(voters.gather(1, winner)[:, 0] == classes)
    return torch.cat(hits)


def _checked(items: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
    """Return codes (items, dims) and their classes, or raise `BadInput`."""
    codes, classes = items
    if codes.ndim < 2 or classes.shape != codes.shape[:1] or codes.numel() == 0:
        raise BadInput(
            f"codes and classes must be (items, ...) and (items,), not {tuple(codes.shape)} and "
            f"{tuple(classes.shape)}"
        )
    if classes.is_floating_point() or classes.is_complex() or int(classes.min()) < 0:
        raise BadInput("classes must be integers of at least 0")
    if not codes.isfinite().all():
        raise BadInput("codes must be finite, but some are NaN or infinite")
    return codes.detach().float().flatten(1), classes.long().to(codes.device)


@dataclass(frozen=True)
class Smoothness:
    """The mean correlation of neighbouring sites, beside that of shuffled sites."""

    observed: float  #: mean correlation of neighbours
    shuffled: float  #: its mean over permutations
    p_value: float  #: share of permutations with at least this correlation
    permutations: int
    seed: int


def topographic_smoothness(
    t: Any, permutations: int = 999, seed: int = 0, cyclic: bool = True
) -> Smoothness:
    """Measure the correlation of neighbouring sites over all frames.

    Neighbours are adjacent along an axis of a capsule. Constant sites have a correlation of 0. Each
    permutation shuffles the sites of every capsule, in the same way for all frames. The p-value
    counts the observed order as one of the permutations, so it is above 0. Topographic ICA
    correlates energies; ``t.square()`` measures those.

    Args:
        t: latents (batch, time, capsules, *shape).
        permutations: number of permutations.
        seed: seed of the permutations.
        cyclic: whether the first and the last site of an axis are neighbours.
    """
    t = as_latents(t)
    check_seed(seed)
    permutations = whole_number("permutations", permutations)
    pairs = _pairs(tuple(t.shape[SITE_AXIS:]), cyclic)
    if len(pairs) == 0:
        raise BadInput(
            f"capsules of {tuple(t.shape[SITE_AXIS:])} sites have no neighbours: smoothness needs "
            "capsules of two sites or more"
        )
    if len(t) * t.shape[1] < 2 or not t.isfinite().all():
        raise BadInput("smoothness needs two frames or more, and finite latents")
    sites = t.detach().cpu().double().flatten(0, 1).flatten(2)  # frames capsules sites
    sites = sites - sites.mean(0)
    sites = sites / sites.norm(dim=0).clamp_min(1e-30)
    correlations = torch.einsum("ncs,ncr->csr", sites, sites)
    generator = torch.Generator().manual_seed(seed)
    shuffled = torch.zeros(permutations, dtype=torch.double)
    for capsule in correlations:
        order = torch.rand(permutations, len(capsule), generator=generator).argsort(1)
        neighbours = capsule[order[:, pairs[:, 0]], order[:, pairs[:, 1]]]
        shuffled += neighbours.mean(1) / len(correlations)
    observed = correlations[:, pairs[:, 0], pairs[:, 1]].mean().item()
    # rolled and reversed orders are as smooth as the observed one, up to rounding
    as_smooth = int((shuffled >= observed - 1e-9).sum())
    return Smoothness(
        observed=observed,
        shuffled=shuffled.mean().item(),
        p_value=(1 + as_smooth) / (1 + permutations),
        permutations=permutations,
        seed=seed,
    )


def _pairs(shape: tuple[int, ...], cyclic: bool) -> Tensor:
    """Return the flat indices of the neighbours in a lattice: (pairs, 2)."""
    sites = torch.arange(math.prod(shape)).reshape(shape)
    pairs = [sites.new_zeros(0, 2)]
    for axis, length in enumerate(shape):
        if length > 1:
            kept = length if cyclic else length - 1
            following = sites.roll(-1, axis).narrow(axis, 0, kept)
            pairs.append(torch.stack([sites.narrow(axis, 0, kept), following], -1).reshape(-1, 2))
    return torch.cat(pairs)


@dataclass(frozen=True)
class Agreement:
    """The share of neighbouring sites with equal classes, beside that of shuffled classes."""

    observed: float  #: share of neighbours with equal classes
    shuffled: float  #: its mean over permutations
    p_value: float  #: share of permutations with at least this share


@torch.no_grad()
def strongest_images(model: SequenceModel, sequences: SequenceSet, batch: int = 500) -> Tensor:
    """Return the sequence whose first frame excites each site most: (capsules, *shape)."""
    batches = sequences.whole().batches(batch)
    t = torch.cat([model.encode(some.x)[:, 0].cpu() for some in batches])
    return t.argmax(0)  # over sequences


def neighbour_agreement(
    classes: Tensor, images: Tensor | None = None, permutations: int = 9999, seed: int = 0
) -> Agreement:
    """Measure how often neighbouring sites of a torus have the same class.

    Neighbours are adjacent along either axis; the first and the last site of an axis are adjacent.
    The permutations shuffle the classes of images, and images keep their sites. The p-value counts
    the observed arrangement as one of the permutations, so it is above 0.

    Args:
        classes: class of every site, (rows, columns).
        images: index of the image at every site; by default all differ. Neighbours with the same
            image do not count, as they have equal classes in any case.
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
