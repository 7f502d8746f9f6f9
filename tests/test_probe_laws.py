"""Probes, maps and templates against scikit-learn, scipy and explicit counts."""

from itertools import product

import numpy as np
import pytest
import torch
from references import DOUBLE, assert_same, normal
from scipy import stats
from sklearn.linear_model import LogisticRegression
from test_disentanglement import perfect

import topocaps as tc
from topocaps.metrics import (
    accuracy_by_labels,
    axis_moved,
    fit_probe,
    neighbour_agreement,
    pooled,
    specialisation,
    strongest_images,
    topographic_smoothness,
)
from topocaps.metrics.capsules import AffineCopies
from topocaps.metrics.factor_vae import factor_vae_score

# Probes -------------------------------------------------------------------------------------------


def blobs(count):
    which = torch.randint(3, (count,))
    return (0.7 * torch.eye(3, 4, **DOUBLE)[which] + normal(count, 4)) * 3 + 5, which


def test_a_probe_is_scikit_learns_logistic_regression():
    """With C = 1, on features of variance 1."""
    features, classes = blobs(150)
    standard = (features - features.mean(0)) / features.std(0, correction=0)
    theirs = LogisticRegression(C=1.0, tol=1e-10, max_iter=2000)
    theirs.fit(standard.numpy(), classes.numpy())
    found = fit_probe(features, classes, steps=2000)
    torch.testing.assert_close(found.weight, torch.from_numpy(theirs.coef_), rtol=0, atol=2e-4)
    scores, wanted = (
        one - one.mean(1, keepdim=True)
        for one in (found(features), torch.from_numpy(theirs.decision_function(standard.numpy())))
    )
    torch.testing.assert_close(scores, wanted, rtol=0, atol=1e-3)


def test_a_whitened_probe_is_that_of_uncorrelated_features_of_variance_one():
    features, classes = blobs(150)
    features = features @ normal(4, 4)
    centred = features - features.mean(0)
    values, axes = np.linalg.eigh(np.cov(features.T.numpy(), bias=True))
    white = centred @ torch.from_numpy(axes / np.sqrt(values))
    found = fit_probe(features, classes, steps=2000, whiten=True)(features)
    wanted = fit_probe(white, classes, steps=2000)(white)
    torch.testing.assert_close(found, wanted, rtol=0, atol=1e-3)


def test_few_labels_are_balanced_over_classes():
    """Of a class that is rare: with six labels two are of each class, and a probe knows all."""
    classes = torch.cat([torch.zeros(500), torch.ones(500), torch.full((4,), 2.0)]).long()
    features = 10 * torch.eye(3)[classes]
    test = 10 * torch.eye(3), torch.arange(3)
    for seed in range(3):
        assert accuracy_by_labels((features, classes), test, labels=(3, 6), seed=seed) == {
            3: 1,
            6: 1,
        }


def test_pooled_features_are_mean_spread_and_peak():
    t = normal(2, 3, 4, 2, 5)
    sites = t.numpy().reshape(2, 3, 4, 10)
    wanted = np.concatenate([sites.mean(-1), sites.std(-1), sites.max(-1)], -1)
    assert_same(pooled(t), torch.from_numpy(wanted))


@pytest.mark.parametrize("factors", [2, 3])
def test_specialisation_is_one_minus_the_entropy_of_motion(factors):
    """How far directions turn, from frame to frame, in each factor's sequences."""
    t = normal(4 * factors, 5, 3, 7)
    moving = torch.zeros(4 * factors, 5, factors, dtype=torch.long)
    for column in range(factors):
        moving[4 * column : 4 * column + 4, :, column] = torch.arange(5)
    centred = t - t.mean(-1, keepdim=True)
    cosines = torch.cosine_similarity(centred[:, 1:], centred[:, :-1], -1)
    motion = (1 - cosines).mean(1).unflatten(0, (factors, 4)).mean(1)  # factors capsules
    wanted = 1 - stats.entropy(motion.numpy(), base=factors, axis=0)
    assert specialisation(t, moving) == pytest.approx(wanted.mean(), rel=1e-9)


# Maps and axes ------------------------------------------------------------------------------------


def test_the_agreement_of_neighbours_is_counted_pair_by_pair():
    classes = torch.tensor([[0, 0, 1], [2, 1, 1], [0, 2, 1], [0, 1, 2]])
    images = torch.tensor([[0, 0, 1], [2, 3, 3], [4, 5, 6], [0, 7, 8]])
    pairs = [
        ((i, j), other)
        for i, j in product(range(4), range(3))
        for other in (((i + 1) % 4, j), (i, (j + 1) % 3))
    ]
    pairs = [two for two in pairs if images[two[0]] != images[two[1]]]
    agree = sum((classes[one] == classes[other]).item() for one, other in pairs)
    found = neighbour_agreement(classes, images, permutations=19)
    assert found.observed == pytest.approx(agree / len(pairs), rel=1e-9)
    assert (found.p_value * 20) == pytest.approx(round(found.p_value * 20))
    assert neighbour_agreement(torch.zeros(3, 3), permutations=19).p_value == 1


class Reads(tc.VAE):
    """Latents are the pixels."""

    def encode(self, x, sample=False):
        return x


@pytest.mark.parametrize("batch", [2, 3, 7, 100])
def test_strongest_images_do_not_depend_on_the_batch_size(batch):
    images = torch.rand(7, 1, 2, 3, 4)
    model = Reads.mlp((2, 3, 4), tc.Topography(2, (3, 4)), hidden=(2,))
    found = strongest_images(model, tc.Sequences.of(images), batch=batch)
    assert torch.equal(found, images[:, 0].argmax(0))


@pytest.mark.parametrize("noise, found", [(0.5, 0), (2.5, -1)])
def test_only_clear_rolls_count_as_motion(noise, found):
    """The roll leaves 1 less the cosine: at most 0.8 of what any other roll leaves."""
    start = normal(1, 1, 1, 40, 40)
    t = torch.cat([start.roll(n, 3) for n in range(4)], 1) + noise * normal(1, 4, 1, 40, 40)
    assert axis_moved(t).item() == found


def test_a_template_is_a_copy_if_its_error_is_below_that_of_most_strokes():
    errors = torch.tensor([[0.0, 0.3, 0.5], [0.3, 0.0, 0.04], [0.5, 0.04, 0.0]])
    strangers = torch.linspace(0, 1, 21)  # one in twenty is below 0.05
    assert AffineCopies(errors).nearest.tolist() == pytest.approx([0.3, 0.04, 0.04])
    assert AffineCopies(errors).share(strangers) == pytest.approx(2 / 3)
    assert AffineCopies(errors + 0.02 * (errors < 0.1)).share(strangers) == 0
    assert AffineCopies(3 - 3 * torch.eye(2)).nearest.tolist() == [3, 3]


@pytest.mark.parametrize("shape", [(2,), (2, 3), (5,)])
@pytest.mark.parametrize("cyclic", [False, True])
def test_smoothness_is_the_mean_correlation_of_neighbours(shape, cyclic):
    """On a sheet, two sites of an axis are neighbours once; round the ends, twice."""
    t = normal(6, 3, 2, *shape)
    sites, found = t.flatten(0, 1).numpy(), []
    for capsule, *place in product(range(2), *map(range, shape)):
        for axis, length in enumerate(shape):
            following = place.copy()
            following[axis] = (place[axis] + 1) % length
            if cyclic or following[axis]:
                two = (
                    sites[(slice(None), capsule, *place)],
                    sites[(slice(None), capsule, *following)],
                )
                found.append(np.corrcoef(*two)[0, 1])
    observed = topographic_smoothness(t, permutations=1, cyclic=cyclic).observed
    assert observed == pytest.approx(np.mean(found), rel=1e-9)


def test_the_score_of_a_factor_is_its_share_of_correct_tests():
    """What was learnt counts, not what would have been best: of one vote, little is learnt."""
    codes, factors = perfect()
    for seed in range(5):
        found = factor_vae_score(codes, factors, batch=30, votes=1, tests=6000, seed=seed)
        assert found.value < 0.7
        mean = sum(found.by_factor.values()) / 3
        assert mean == pytest.approx(found.value, abs=0.03)  # factors are drawn alike
