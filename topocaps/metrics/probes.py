"""Linear probes of representations, and features and scores of capsules for them."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.linalg import vector_norm
from torch.nn.functional import cross_entropy

from topocaps.data.subsets import ranks
from topocaps.errors import BadInput, NonFinite
from topocaps.metrics.equivariance import SITE_AXIS, as_latents

Labelled = tuple[Tensor, Tensor]  #: features (items, features) and classes (items,)

LABELS = (10, 30, 100, 300, 1000, 3000, 10_000)
STRENGTH = 0.5  # of the penalty on weights; this is C = 1 of scikit-learn
_FLAT = 1e-6  # smallest variance of a principal axis, relative to the largest
_STILL = 1e-6  # smallest motion, as 1 - cosine from frame to frame; less is due to rounding


@dataclass(frozen=True)
class Probe:
    """Softmax regression on standardised features."""

    mean: Tensor
    scale: Tensor
    weight: Tensor  # classes features
    bias: Tensor

    def __call__(self, features: Tensor) -> Tensor:
        """Return the scores of the classes, (items, classes)."""
        return ((features - self.mean) / self.scale) @ self.weight.T + self.bias

    def hits(self, features: Tensor, classes: Tensor) -> Tensor:
        """Return which items are classified correctly: booleans (items,)."""
        return self(features).argmax(1) == classes

    def accuracy(self, features: Tensor, classes: Tensor) -> float:
        """Return the share of items that are classified correctly."""
        return self.hits(features, classes).float().mean().item()


def linear_probe_accuracy(train: Labelled, test: Labelled, strength: float = STRENGTH) -> float:
    """Return the test accuracy of a probe that is fitted to training items.

    Args:
        train: codes (items, ...) and classes (items,) of the training items.
        test: codes and classes of the test items.
        strength: strength of the penalty on weights.
    """
    return fit_probe(train[0].flatten(1), train[1], strength).accuracy(test[0].flatten(1), test[1])


def fit_probe(
    features: Tensor,
    classes: Tensor,
    strength: float = STRENGTH,
    steps: int = 100,
    whiten: bool = False,
) -> Probe:
    """Fit a probe by L-BFGS.

    L-BFGS runs on the CPU, as the probe is small, and only the loss is computed on the device of
    the features.

    Args:
        features: features (items, features).
        classes: integers of at least 0, (items,).
        strength: strength of the penalty on weights. It is divided by the number of items, as a
            prior on the weights is.
        steps: largest number of iterations.
        whiten: scale all principal axes of the training features to variance 1. Otherwise the
            penalty affects those axes most along which correlated features vary least. A whitened
            probe gives the same result for any invertible linear map of the features. It needs
            about ten times as many items as features.
    """
    if features.ndim != 2 or len(features) != len(classes) or len(classes) == 0:
        raise BadInput(
            "features and classes must be (items, features) and (items,), with one item or more, "
            f"not {tuple(features.shape)} and {tuple(classes.shape)}"
        )
    if not features.isfinite().all():
        raise NonFinite("a probe needs finite features, but some are NaN or infinite")
    mean = features.mean(0)
    scale = (features - mean).square().mean(0).sqrt().clamp_min(1e-6)
    standard = (features - mean) / scale
    axes = _whitening(standard) if whiten else None
    standard = standard if axes is None else standard @ axes
    count = int(classes.max()) + 1
    weight = torch.zeros(count, standard.shape[1], dtype=features.dtype, requires_grad=True)
    bias = torch.zeros(count, dtype=features.dtype, requires_grad=True)
    optimiser = torch.optim.LBFGS([weight, bias], max_iter=steps, line_search_fn="strong_wolfe")

    def loss() -> Tensor:
        optimiser.zero_grad()
        scores = standard @ weight.to(standard.device).T + bias.to(standard.device)
        penalty = strength * weight.square().sum() / len(features)
        total = cross_entropy(scores, classes).cpu() + penalty
        total.backward()
        return total

    optimiser.step(loss)
    weights, offset = (value.detach().to(features.device) for value in (weight, bias))
    return Probe(mean, scale, weights if axes is None else weights @ axes.T, offset)


def _whitening(standard: Tensor) -> Tensor:
    """Return the map of standardised features to principal axes of variance 1: (features, axes)."""
    covariance = (standard.T @ standard / len(standard)).cpu().double()
    variances, axes = torch.linalg.eigh(covariance)
    kept = variances > _FLAT * variances.amax()
    return (axes[:, kept] / variances[kept].sqrt()).to(standard)


def whitened_accuracies(train: Labelled, tests: Mapping[str, Labelled]) -> dict[str, float]:
    """Return the accuracies on several test sets of one probe of whitened features.

    Args:
        train: features and classes that the probe is fitted to.
        tests: features and classes by the name of the test set.
    """
    probe = fit_probe(*train, whiten=True)
    return {name: probe.accuracy(*test) for name, test in tests.items()}


def refitted_accuracies(
    trains: Mapping[str, Labelled], tests: Mapping[str, Labelled]
) -> dict[str, float]:
    """Return the accuracy on every test set of a probe that is fitted to its training set.

    This measures whether features of moved items predict their classes. `whitened_accuracies`
    measures whether they do so with the probe of items that are not moved. Smith et al. do not say
    which of the two their Table 1 shows.

    Args:
        trains: features and classes by the name of the training set.
        tests: features and classes by the name of the test set. Every name must be in ``trains``.
    """
    if missing := tests.keys() - trains.keys():
        raise BadInput(
            f"there is no training set for {', '.join(sorted(missing))}: trains needs every name "
            "of tests"
        )
    return {
        name: whitened_accuracies(trains[name], {name: test})[name] for name, test in tests.items()
    }


def accuracy_by_labels(
    train: Labelled, test: Labelled, labels: Sequence[int] = LABELS, seed: int = 0
) -> dict[int, float]:
    """Return the test accuracies of probes that are fitted to some labelled items.

    Classes are as equally frequent among these items as their number allows.

    Args:
        train: features and classes of the training items.
        test: features and classes of the test items.
        labels: numbers of labelled items. Numbers above the training items are left out.
        seed: seed of the choice of items.

    Returns:
        {number of labelled items: accuracy}.
    """
    features, classes = train
    generator = torch.Generator().manual_seed(seed)
    order = torch.randperm(len(classes), generator=generator).to(classes.device)
    balanced = order[ranks(classes[order]).argsort(stable=True)]
    accuracies = {}
    for count in labels:
        if count <= len(classes):
            chosen = balanced[:count]
            accuracies[count] = fit_probe(features[chosen], classes[chosen]).accuracy(*test)
    return accuracies


def pooled(t: Any) -> Tensor:
    """Return features that no roll changes: the mean, the spread and the peak of every capsule.

    Args:
        t: latents (batch, time, capsules, *shape).

    Returns:
        Features (batch, time, 3 capsules).
    """
    t = as_latents(t)
    sites = t.flatten(SITE_AXIS)
    return torch.cat([sites.mean(-1), sites.std(-1, correction=0), sites.amax(-1)], -1)


def power(t: Any) -> Tensor:
    """Return features that no roll changes: the power of each frequency of every capsule.

    Args:
        t: latents (batch, time, capsules, *shape).

    Returns:
        log(1 + power), (batch, time, features).

    >>> t = torch.randn(2, 3, 4, 5)
    >>> power(t).shape, torch.allclose(power(t), power(t.roll(2, -1)), atol=1e-5)
    (torch.Size([2, 3, 12]), True)
    """
    t = as_latents(t)
    spectrum = torch.fft.rfftn(t.float(), dim=tuple(range(SITE_AXIS, t.ndim)))
    return spectrum.abs().square().log1p().flatten(2)


def specialisation(t: Any, factors: Tensor) -> float:
    """Return how much each capsule moves for one factor alone, averaged over capsules.

    A capsule's motion is 1 minus the cosine between its directions in consecutive frames, averaged
    over the sequences in which a factor moves. A capsule has a score of 1 minus the entropy of its
    motion's shares by factor, relative to the largest entropy. The score is 1 if it moves for one
    factor only, and 0 if it moves for all factors alike. Capsules that never move are left out. The
    result is NaN if no capsule moves, or if fewer than two factors do.

    Args:
        t: latents (batch, time, capsules, *shape).
        factors: factors of the frames, (batch, time, factor).
    """
    t = as_latents(t)
    sites = tuple(range(SITE_AXIS, t.ndim))
    t = t - t.mean(sites, keepdim=True)
    t = t / vector_norm(t, dim=sites, keepdim=True).clamp_min(1e-30)
    turned = t.diff(dim=1).square().sum(sites).mean(1) / 2  # 1 - cosine: batch capsules
    moves = (factors != factors[:, :1]).any(1).to(t.device)
    columns = moves.any(0).nonzero().flatten().tolist()
    if len(columns) < 2:
        return math.nan
    motion = torch.stack([turned[moves[:, column]].mean(0) for column in columns])
    motion = motion[:, motion.sum(0) > _STILL]
    shares = motion / motion.sum(0)
    entropy = -torch.special.xlogy(shares, shares).sum(0)
    return (1 - entropy / math.log(len(columns))).clamp(0, 1).mean().item()
