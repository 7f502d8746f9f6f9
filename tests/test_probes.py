"""Linear probes: fits, whitening, and features of capsules."""

import itertools
import math

import pytest
import torch

import topocaps as tc
from topocaps.data.mnist_files import Digits
from topocaps.metrics import accuracy_by_labels, fit_probe, pooled, specialisation
from topocaps.metrics.probes import refitted_accuracies, whitened_accuracies
from topocaps.study.evaluation import digits


def blobs(count, apart=2.0, classes=4, features=6):
    which = torch.randint(classes, (count,))
    centres = apart * torch.eye(classes, features)
    return centres[which] + 0.3 * torch.randn(count, features), which


def test_a_probe_separates_linearly_separable_classes():
    train, test = blobs(400), blobs(400)
    assert fit_probe(*train).accuracy(*test) > 0.99
    noise = torch.randn(400, 6), torch.randint(4, (400,))
    assert fit_probe(*noise).accuracy(*blobs(400, apart=0.0)) < 0.4


def test_a_probe_minimises_the_penalised_loss():
    """At the best weights no small step lowers the loss."""
    features, classes = blobs(200, apart=0.4)
    best = fit_probe(features, classes, steps=500)
    scores = torch.nn.functional.cross_entropy
    standard = (features - best.mean) / best.scale

    def loss(weight):
        penalty = 0.5 * weight.square().sum() / len(features)
        return scores(standard @ weight.T + best.bias, classes) + penalty

    for _ in range(20):
        other = best.weight + 0.01 * torch.randn_like(best.weight)
        assert loss(other) > loss(best.weight) - 1e-6


def correlated(count, shared=5.0):
    """Features that all have the same large number in them, and differ a little by class."""
    features, which = blobs(count, apart=0.5)
    return features.double() + shared * torch.randn(count, 1).double(), which


def test_a_whitened_probe_is_invariant_to_invertible_maps_of_features():
    (train, classes), (test, _) = correlated(400), correlated(300)
    mix, shift = torch.randn(6, 6).double(), torch.randn(6).double()
    assert torch.linalg.cond(mix) < 30
    found = fit_probe(train, classes, whiten=True)(test)
    other = fit_probe(train @ mix + shift, classes, whiten=True)(test @ mix + shift)
    torch.testing.assert_close(other, found, rtol=1e-5, atol=1e-5)
    apart = fit_probe(train @ mix, classes)(test @ mix) - fit_probe(train, classes)(test)
    assert apart.abs().max() > 0.1  # merely standardised, it depends on the map


def test_a_whitened_probe_is_better_for_correlated_features():
    train, test = correlated(400, 30.0), correlated(2000, 30.0)
    held_back = fit_probe(*train).accuracy(*test)
    assert fit_probe(*train, whiten=True).accuracy(*test) > held_back + 0.05


def test_whitening_leaves_out_constant_axes():
    features, classes = blobs(400)
    test, _ = blobs(300)
    plain = fit_probe(features, classes, whiten=True)(test)
    twice = [torch.cat([x, 2 * x, torch.ones_like(x)], 1) for x in (features, test)]
    again = fit_probe(twice[0], classes, whiten=True)(twice[1])
    torch.testing.assert_close(again, plain, rtol=1e-2, atol=1e-2)
    constant = fit_probe(torch.ones(400, 3), classes, whiten=True)
    assert constant.weight.abs().max() == 0 and constant.bias.isfinite().all()


def corners(count, turn=0.0):
    """Four classes at the corners of a square that is turned, in quarters."""
    which = torch.randint(4, (count,))
    angle = (which + turn) * (math.pi / 2)
    return torch.stack([angle.cos(), angle.sin()], 1) + 0.1 * torch.randn(count, 2), which


def test_one_probe_is_applied_to_every_test():
    tests = {"0": corners(300), "slightly": corners(300, 0.2), "quarter": corners(300, 1.0)}
    found = whitened_accuracies(corners(400), tests)
    assert list(found) == ["0", "slightly", "quarter"]
    assert found["0"] == 1 and found["slightly"] > 0.99 and found["quarter"] == 0


def test_refitted_probes_are_fitted_to_moved_items():
    turns = {"0": 0.0, "half": 0.5, "quarter": 1.0}
    trains = {name: corners(400, turn) for name, turn in turns.items()}
    tests = {name: corners(300, turn) for name, turn in turns.items()}
    assert refitted_accuracies(trains, tests) == {"0": 1, "half": 1, "quarter": 1}
    alone = whitened_accuracies(trains["0"], {"0": tests["0"]})
    assert refitted_accuracies(trains, {"0": tests["0"]}) == alone
    with pytest.raises(tc.BadInput, match="no training set for half, quarter"):
        refitted_accuracies({"0": trains["0"]}, tests)


def test_more_labels_do_not_lower_the_accuracy_much():
    train, test = blobs(3000, apart=0.5), blobs(2000, apart=0.5)
    found = accuracy_by_labels(train, test, labels=(4, 40, 400, 3000, 10_000))
    assert list(found) == [4, 40, 400, 3000]
    values = list(found.values())
    assert values[0] > 0.3 and values[-1] > values[0]
    assert all(b > a - 0.02 for a, b in itertools.pairwise(values))


def test_pooled_features_are_invariant_to_rolls():
    topography = tc.Topography(3, (5,))
    t = torch.randn(2, 4, 3, 5)
    torch.testing.assert_close(pooled(topography.roll(t, 2)), pooled(t))
    assert pooled(t).shape == (2, 4, 9)


def test_specialisation_is_one_if_every_capsule_moves_for_one_factor():
    t = torch.randn(1, 1, 2, 6).expand(8, 4, 2, 6).clone()
    factors = torch.zeros(8, 4, 2, dtype=torch.long)
    for n in range(8):
        factors[n, :, n % 2] = torch.arange(4)
        for frame in range(4):
            t[n, frame, n % 2] = t[n, frame, n % 2].roll(frame)
    assert specialisation(t, factors) > 0.99
    both = torch.stack([t[:, frame].roll(frame, -1) for frame in range(4)], 1)
    both[:] = torch.stack([t[:, 0].roll(frame, -1) for frame in range(4)], 1)
    assert abs(specialisation(both, factors)) < 0.01
    assert math.isnan(specialisation(t[::2], factors[::2]))


def test_constant_capsules_have_no_specialisation():
    """Beside one that moves for all factors, or for one: they change nothing, and are no number."""
    factors = torch.zeros(8, 5, 2, dtype=torch.long)
    factors[:4, :, 0] = factors[4:, :, 1] = torch.arange(5)
    start = torch.randn(8, 1, 1, 15)
    moves = torch.cat([start.roll(n, -1) for n in range(5)], 1)
    still = start.repeat(1, 5, 1, 1)
    one = torch.cat([moves[:4], still[4:]])
    for moving in (moves, one, torch.randn(8, 5, 3, 15)):
        alone = specialisation(moving, factors)
        assert 0 <= alone <= 1
        for beside in (still, still * torch.rand(8, 5, 1, 1), torch.zeros_like(still)):
            together = specialisation(torch.cat([moving, beside], 2), factors)
            assert together == pytest.approx(alone, abs=1e-6)
    assert specialisation(one, factors) == pytest.approx(1.0)
    assert math.isnan(specialisation(still, factors))


def test_invalid_features_are_refused():
    with pytest.raises(tc.BadInput, match=r"features and classes must be \(items, features\)"):
        fit_probe(torch.rand(3, 2), torch.zeros(4))


def test_digits_are_probed_on_their_sequences(monkeypatch):
    """Of a model that shows which image it sees, any number of labels reads the class."""

    def some(count):
        classes = torch.arange(count) % 2
        images = (classes[:, None, None] * 255).expand(-1, 28, 28).to(torch.uint8).clone()
        images[:, :, :10] = 60
        return Digits(images, classes.to(torch.uint8))

    monkeypatch.setattr(digits, "digits", lambda folder: (some(60), some(40)))
    monkeypatch.setattr(digits, "LABELLED", 30)
    topography = tc.Topography(2, (18,), window=3)
    model = tc.TopographicVAE.mlp(frame_shape=(3, 28, 28), topography=topography, hidden=(20,))
    found = digits.probe_digits(
        lambda x: digits.of_codes(model.encode(x)[:, 0]), torch.device("cpu"), None
    )
    assert found.keys() == {"t", "pooled", "power", "pixels"} and list(found["t"]) == ["10", "30"]
    assert found["t"]["30"] > 0.7


def test_features_that_are_not_finite_are_refused():
    features = torch.tensor([[0.0], [torch.inf]])
    with pytest.raises(tc.NonFinite, match="a probe needs finite features"):
        fit_probe(features, torch.tensor([0, 1]), whiten=True)
