"""Linear probes: what can be read off representations with few labels, and with many."""

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
STRENGTH = 0.5  # of the penalty on weights, for standardised features: scikit-learn's own C = 1
_FLAT = 1e-6  # variance of an axis, over the greatest, under which it is left out
_STILL = 1e-6  # 1 - cosine from frame to frame: what turns less, by rounding, stands still


@dataclass(frozen=True)
class Probe:
    """Softmax regression on standardised features."""

    mean: Tensor
    scale: Tensor
    weight: Tensor  # classes features
    bias: Tensor

    def __call__(self, features: Tensor) -> Tensor:
        """Scores of the classes."""
        return ((features - self.mean) / self.scale) @ self.weight.T + self.bias

    def hits(self, features: Tensor, classes: Tensor) -> Tensor:
        """Whether each item is classified as it should be: (items,)."""
        return self(features).argmax(1) == classes

    def accuracy(self, features: Tensor, classes: Tensor) -> float:
        return self.hits(features, classes).float().mean().item()


def linear_probe_accuracy(train: Labelled, test: Labelled, strength: float = STRENGTH) -> float:
    """The test accuracy of the best probe on training codes (items, ...) and their classes."""
    return fit_probe(train[0].flatten(1), train[1], strength).accuracy(test[0].flatten(1), test[1])


def fit_probe(
    features: Tensor,
    classes: Tensor,
    strength: float = STRENGTH,
    steps: int = 100,
    whiten: bool = False,
) -> Probe:
    """The best probe by L-BFGS: (items, features) to classes (items,), 0 and up.

    The penalty is ``strength`` over the number of items, as in a prior on weights. The probe itself
    is small and stays on the CPU while it is fitted, where L-BFGS need not wait for a GPU.

    Where features are correlated, the penalty binds along the axes in which they vary least.
    ``whiten`` weighs all principal axes of the training features alike, and so reads the same off
    any invertible linear map of them. It wants many more items than features: ten times as many.
    """
    if features.ndim != 2 or len(features) != len(classes) or len(classes) == 0:
        raise BadInput(
            f"a probe takes (items, features) and a class of each, not {tuple(features.shape)} "
            f"and {tuple(classes.shape)}"
        )
    if not features.isfinite().all():
        raise NonFinite("a probe takes finite features: those of this model are not")
    mean = features.mean(0)
    scale = (features - mean).square().mean(0).sqrt().clamp_min(1e-6)
    standard = (features - mean) / scale
    axes = _whitening(standard) if whiten else None
    standard = standard if axes is None else standard @ axes
    count = int(classes.max()) + 1
    weight = torch.zeros(count, standard.shape[1], dtype=features.dtype, requires_grad=True)
    bias = torch.zeros(count, dtype=features.dtype, requires_grad=True)
    rule = torch.optim.LBFGS([weight, bias], max_iter=steps, line_search_fn="strong_wolfe")

    def loss() -> Tensor:
        rule.zero_grad()
        scores = standard @ weight.to(standard.device).T + bias.to(standard.device)
        found = cross_entropy(scores, classes).cpu()
        found = found + strength * weight.square().sum() / len(features)
        found.backward()
        return found

    rule.step(loss)
    weights, offset = (value.detach().to(features.device) for value in (weight, bias))
    return Probe(mean, scale, weights if axes is None else weights @ axes.T, offset)


def _whitening(standard: Tensor) -> Tensor:
    """What takes centred features to their principal axes, of variance 1: (features, axes)."""
    covariance = (standard.T @ standard / len(standard)).cpu().double()
    variances, axes = torch.linalg.eigh(covariance)
    kept = variances > _FLAT * variances.amax()
    return (axes[:, kept] / variances[kept].sqrt()).to(standard)


def whitened_accuracies(train: Labelled, tests: Mapping[str, Labelled]) -> dict[str, float]:
    """The accuracy on every test set of one probe of whitened features, fitted to ``train``."""
    probe = fit_probe(*train, whiten=True)
    return {name: probe.accuracy(*test) for name, test in tests.items()}


def refitted_accuracies(
    trains: Mapping[str, Labelled], tests: Mapping[str, Labelled]
) -> dict[str, float]:
    """The accuracy on every test set of a probe of its own, fitted to the training set of its name.

    This measures what can still be read off moved items, and ``whitened_accuracies`` whether it
    can be read in the same place. Smith et al. do not say which of the two their Table 1 is.
    """
    if missing := tests.keys() - trains.keys():
        raise BadInput(f"there is no training set for {', '.join(sorted(missing))}")
    return {
        name: whitened_accuracies(trains[name], {name: test})[name] for name, test in tests.items()
    }


def accuracy_by_labels(
    train: Labelled, test: Labelled, labels: Sequence[int] = LABELS, seed: int = 0
) -> dict[int, float]:
    """{labels used: accuracy on test}; as many of every class as the number allows."""
    features, classes = train
    generator = torch.Generator().manual_seed(seed)
    order = torch.randperm(len(classes), generator=generator).to(classes.device)
    balanced = order[ranks(classes[order]).argsort(stable=True)]
    found = {}
    for count in labels:
        if count <= len(classes):
            some = balanced[:count]
            found[count] = fit_probe(features[some], classes[some]).accuracy(*test)
    return found


def pooled(t: Any) -> Tensor:
    """What no roll changes: of every capsule, the mean, spread and peak over its sites.

    t: (…, time, capsules, *shape) to (…, time, 3 capsules).
    """
    t = as_latents(t)
    sites = t.flatten(SITE_AXIS)
    return torch.cat([sites.mean(-1), sites.std(-1, correction=0), sites.amax(-1)], -1)


def power(t: Any) -> Tensor:
    """What no roll changes: of every capsule, the power of each frequency along its sites.

    t: (…, time, capsules, *shape) to (…, time, features), log(1 + power).

    >>> t = torch.randn(2, 3, 4, 5)
    >>> power(t).shape, torch.allclose(power(t), power(t.roll(2, -1)), atol=1e-5)
    (torch.Size([2, 3, 12]), True)
    """
    t = as_latents(t)
    spectrum = torch.fft.rfftn(t.float(), dim=tuple(range(SITE_AXIS, t.ndim)))
    return spectrum.abs().square().log1p().flatten(2)


def specialisation(t: Any, factors: Tensor) -> float:
    """How much each capsule moves for one factor alone: 0 for all alike, 1 for one only.

    t: (batch, time, capsules, *shape). A capsule's motion is how far its direction turns from frame
    to frame; of its shares by factor, the entropy is compared with the greatest there can be.
    Capsules that stand still are left out; where all do, or fewer than two factors move, it is NaN.
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
