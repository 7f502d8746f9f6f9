"""Poses as affine maps of the plane, and Concrete presences, against direct computations."""

from itertools import product

import pytest
import torch
from scipy import stats
from small_capsules import (
    DOUBLE,
    EXACT,
    REJECT,
    is_zero,
    normal,
    square,
    temperatures,
)
from torch.distributions import RelaxedBernoulli

from topocaps.capsules import (
    concrete,
    poses,
)

# ---- Poses are affine maps of the plane ----


def test_the_expected_pose_of_a_child_is_that_of_equation_5():
    parents, offsets = normal(5, 2, 6), normal(2, 3, 6)
    found = poses.expected(parents, offsets)
    assert found.shape == (5, 2, 3, 6)
    added = square(parents)
    added[..., 2, 2] = 0  # I + A is affine
    for one, i, j in product(range(5), range(2), range(3)):
        wanted = (torch.eye(3, **DOUBLE) + added[one, i]) @ square(offsets[i, j])
        torch.testing.assert_close(square(found[one, i, j]), wanted, **EXACT)


def test_composed_maps_are_products_of_matrices():
    first, then = normal(4, 6), normal(4, 6)
    wanted = square(then) @ square(first)
    torch.testing.assert_close(square(poses.compose(first, then)), wanted, **EXACT)


def test_the_inverse_of_a_pose_is_the_inverse_matrix():
    pose = normal(20, 6)
    found = square(poses.inverse(pose))
    torch.testing.assert_close(found @ square(pose), torch.eye(3, **DOUBLE).expand(20, 3, 3))


def test_a_pose_without_area_has_finite_gradients():
    pose = torch.zeros(3, 6, **DOUBLE)
    pose[1] = 1.0
    pose[2, 0], pose[2, 4] = 1e-3, -1e-3
    found = poses.inverse(pose.requires_grad_())
    found.sum().backward()
    assert found.isfinite().all() and pose.grad.isfinite().all()


def test_pixels_of_a_moved_image_come_from_the_inverse_map():
    pose, points = normal(2, 6), torch.randn(3, 5, 2, **DOUBLE)
    found = poses.sources(pose, points)
    assert found.shape == (2, 3, 5, 2)
    for one, row, column in product(range(2), range(3), range(5)):
        point = torch.cat([points[row, column], torch.ones(1, **DOUBLE)])
        wanted = (torch.linalg.inv(square(pose[one])) @ point)[:2]
        torch.testing.assert_close(found[one, row, column], wanted)


# ---- Concrete presences ----


@temperatures
def test_the_concrete_density_integrates_to_one(temperature):
    value = torch.linspace(-100, 100, 20_001, **DOUBLE)
    for logits in (-4.0, 0.0, 2.5):
        density = concrete.log_density(value, torch.tensor(logits, **DOUBLE), temperature).exp()
        assert torch.trapezoid(density, value).item() == pytest.approx(1, abs=1e-7)


@temperatures
def test_the_concrete_density_is_that_of_torch_after_the_change_of_variables(temperature):
    value, logits = 3 * normal(50), 2 * normal(50)
    t = value.sigmoid()
    known = RelaxedBernoulli(torch.tensor(temperature, **DOUBLE), logits=logits)
    wanted = known.log_prob(t) + (t * (1 - t)).log()
    found = concrete.log_density(value, logits, temperature)
    torch.testing.assert_close(found, wanted, rtol=1e-11, atol=1e-11)


@temperatures
def test_concrete_draws_follow_the_concrete_distribution(temperature):
    """KS test of 20,000 draws each."""
    for logits in (-3.0, 0.0, 2.0):
        where = torch.full((20_000,), logits, **DOUBLE)
        found = concrete.draw(where, torch.randn_like(where), temperature)
        wanted = stats.logistic(logits / temperature, 1 / temperature)
        assert stats.kstest(found.numpy(), wanted.cdf).pvalue > REJECT
        wrong = stats.logistic(logits / temperature, 1.1 / temperature)
        assert stats.kstest(found.numpy(), wrong.cdf).pvalue < REJECT


def test_concrete_draws_are_finite_far_out():
    far = torch.tensor([-30.0, 30.0], **DOUBLE)
    found = concrete.draw(torch.zeros_like(far), far, 1.0)
    assert found.isfinite().all() and found[0] == -found[1] < -400


@temperatures
def test_the_closed_kl_is_the_integral_of_the_log_ratio(temperature):
    """By quadrature, so that small ones are seen too."""
    value = torch.linspace(-120, 120, 60_001, **DOUBLE)
    for logits, apart in product((-2.0, 1.0), (0.0, 1e-3, 0.0199, 0.0201, 0.5, -3.0, 12.0)):
        q, p = (torch.tensor(one, **DOUBLE) for one in (logits + apart, logits))
        log_q = concrete.log_density(value, q, temperature)
        ratio = log_q - concrete.log_density(value, p, temperature)
        wanted = torch.trapezoid(log_q.exp() * ratio, value).item()
        assert concrete.kl(q, p).item() == pytest.approx(wanted, rel=2e-5, abs=1e-9)


@pytest.mark.parametrize("temperature", [0.5, 2.5])
def test_the_closed_kl_is_the_mean_log_ratio_of_draws(temperature):
    q, p = (torch.tensor(one, **DOUBLE) for one in ([0.3, -1.0, 4.0], [0.4, 1.0, -2.0]))
    value = concrete.draw(q.expand(40_000, 3), normal(40_000, 3), temperature)
    log_q, log_p = (concrete.log_density(value, one, temperature) for one in (q, p))
    assert is_zero(log_q - log_p - concrete.kl(q, p))


def test_the_closed_kl_has_a_gradient_everywhere():
    logits = torch.tensor([0.0, 1e-12, 0.019, 0.021, 1.0, 300.0, -300.0], **DOUBLE)
    logits.requires_grad_()
    concrete.kl(logits, torch.zeros_like(logits)).sum().backward()
    half = logits.detach() / 2
    wanted = 1 / half.tanh() - half / half.sinh().square()
    wanted[:2] = logits.detach()[:2] / 3
    torch.testing.assert_close(logits.grad, wanted, rtol=1e-4, atol=1e-6)
