"""Neighbours of items against scikit-learn; neighbours of sites on maps with known answers."""

import itertools
import math

import numpy as np
import pytest
import torch
from sklearn.neighbors import KNeighborsClassifier

from topocaps import BadInput
from topocaps.metrics.neighbours import nearest_neighbour_accuracy, topographic_smoothness


def blobs(count, spread=1.0, classes=4):
    which = torch.randint(classes, (count,))
    return 2 * torch.eye(classes, 6)[which] + spread * torch.randn(count, 6), which


# of items


@pytest.mark.parametrize("batch", [7, 1000])
def test_the_nearest_neighbour_agrees_with_scikit_learn(batch):
    """With k = 1 there are no ties: the same share, exactly."""
    train, test = blobs(300), blobs(200)
    theirs = KNeighborsClassifier(1).fit(*train).score(*test)
    assert 0.4 < theirs < 1
    assert nearest_neighbour_accuracy(train, test, k=1, batch=batch) == pytest.approx(theirs)


def test_the_majority_of_two_classes_agrees_with_scikit_learn():
    """With k odd and two classes there are no ties either."""
    train, test = blobs(300, classes=2), blobs(200, classes=2)
    theirs = KNeighborsClassifier(7).fit(*train).score(*test)
    assert nearest_neighbour_accuracy(train, test, k=7) == pytest.approx(theirs)


def test_ties_go_to_the_class_of_the_nearest_item():
    train = torch.tensor([[1.0], [-2.0], [3.0], [-4.0]]), torch.tensor([1, 0, 1, 0])
    assert nearest_neighbour_accuracy(train, (torch.zeros(1, 1), torch.tensor([1])), k=4) == 1
    assert nearest_neighbour_accuracy(train, (torch.zeros(1, 1), torch.tensor([0])), k=4) == 0


def test_accuracy_is_invariant_to_shifts_and_rotations_of_codes():
    codes, classes = blobs(100)
    assert nearest_neighbour_accuracy((codes, classes), (codes, classes), k=1) == 1
    test = blobs(100)
    wanted = nearest_neighbour_accuracy((codes, classes), test)
    turn = torch.linalg.qr(torch.randn(6, 6)).Q
    moved = (codes @ turn - 30, classes), (test[0] @ turn - 30, test[1])
    assert nearest_neighbour_accuracy(*moved) == wanted
    capsules = (codes.reshape(-1, 2, 3), classes), (test[0].reshape(-1, 2, 3), test[1])
    assert nearest_neighbour_accuracy(*capsules) == wanted


@pytest.mark.parametrize(
    "train, test, k",
    [
        ((torch.rand(3, 2), torch.zeros(4).long()), (torch.rand(3, 2), torch.zeros(3).long()), 1),
        ((torch.rand(3, 2), torch.zeros(3).long()), (torch.rand(3, 4), torch.zeros(3).long()), 1),
        ((torch.rand(3, 2), torch.zeros(3).long()), (torch.rand(3, 2), torch.zeros(3).long()), 4),
        ((torch.rand(3, 2), torch.zeros(3).long()), (torch.rand(3, 2), torch.zeros(3).long()), 0),
        ((torch.rand(3, 2), torch.zeros(3)), (torch.rand(3, 2), torch.zeros(3).long()), 1),
        ((torch.rand(3, 2), -torch.ones(3).int()), (torch.rand(3, 2), torch.zeros(3).long()), 1),
        ((torch.rand(3, 2) / 0, torch.zeros(3).long()), (torch.rand(3, 2), torch.zeros(3)), 1),
    ],
)
def test_invalid_items_are_refused(train, test, k):
    with pytest.raises(BadInput):
        nearest_neighbour_accuracy(train, test, k)


# of sites


def waves(frames=400, capsules=2, sites=12):
    """One bump of cosine in every capsule, anywhere: sites n apart correlate by cos(2 pi n / S)."""
    phase = torch.arange(frames)[:, None, None] * (2 * math.pi / sites)  # frames are whole turns
    place = torch.arange(sites) * (2 * math.pi / sites)
    return (place - phase).cos().expand(frames, capsules, sites)[:, None]


def test_smoothness_of_waves_is_known():
    found = topographic_smoothness(waves(frames=48))
    assert found.observed == pytest.approx(math.cos(2 * math.pi / 12), abs=1e-6)
    # of all pairs of 12 sites, correlations sum to -12/2 pairs: the mean is -1/11
    assert found.shuffled == pytest.approx(-1 / 11, abs=0.02)
    assert found.p_value == 1 / 1000


def test_smoothness_agrees_with_numpys_correlation():
    """To 1e-12, in float64: every pair by ``numpy.corrcoef``, on a torus and on a sheet."""
    t = torch.randn(5, 4, 2, 3, 4, dtype=torch.double)
    flat = t.reshape(20, 2, 3, 4).numpy()
    around, within = [], []
    for c, i, j in itertools.product(range(2), range(3), range(4)):
        for a, b in ((i + 1, j), (i, j + 1)):
            one = np.corrcoef(flat[:, c, i, j], flat[:, c, a % 3, b % 4])[0, 1]
            around.append(one)
            if a < 3 and b < 4:
                within.append(one)
    assert topographic_smoothness(t).observed == pytest.approx(np.mean(around), abs=1e-12)
    sheet = topographic_smoothness(t, cyclic=False)
    assert sheet.observed == pytest.approx(np.mean(within), abs=1e-12)


def test_p_values_of_noise_are_uniform():
    """Of 60 maps of noise, p < 0.2 in 12 of the mean: more than 24 once in 10,000."""
    found = [
        topographic_smoothness(torch.randn(10, 1, 1, 9), permutations=99, seed=n).p_value
        for n in range(60)
    ]
    assert sum(p < 0.2 for p in found) <= 24 and 0.3 < np.mean(found) < 0.7


def test_shuffled_sites_are_not_smooth():
    t = waves()[..., torch.tensor([0, 7, 3, 10, 5, 1, 8, 4, 11, 2, 6, 9])]
    assert topographic_smoothness(t).p_value > 0.05
    assert topographic_smoothness(waves()).p_value < 0.01


def test_energies_may_be_smooth_if_activities_are_not():
    energy = waves(frames=480).square()
    signs = torch.randn_like(energy).sign()
    t = energy.sqrt() * signs
    assert topographic_smoothness(t).observed < 0.2 < topographic_smoothness(t.square()).observed


def test_the_p_value_is_one_if_all_sites_are_neighbours():
    assert topographic_smoothness(torch.randn(9, 2, 2, 3)).p_value == 1
    assert topographic_smoothness(torch.ones(9, 2, 2, 5)).observed == 0


@pytest.mark.parametrize(
    "t",
    [torch.rand(4, 5), torch.rand(4, 2, 3, 1), torch.rand(1, 1, 3, 4), torch.rand(4, 2, 3, 4) / 0],
)
def test_invalid_latents_are_refused(t):
    with pytest.raises(BadInput):
        topographic_smoothness(t)
