"""Student-t distributions against the equations of the paper."""

import math

import pytest
import torch
from conftest import EXTENSIONS, TOPOGRAPHIES, every, every_topography
from scipy import stats

from topocaps import (
    BadInput,
    ProductOfStudentT,
    TopographicStudentT,
    Topography,
    studentize,
)

SAMPLES = 40_000
REJECT = 1e-4  # each KS test fails a correct sampler this often; seeds are fixed


def is_student_t(topography, frames):
    """Where W is of zeros and ones (no part of a site, no frame that counts twice) and t has one
    energy (Eq. 6)."""
    whole = set(topography.matrix(frames).unique().tolist()) <= {0.0, 1.0}
    return whole and topography.axes == (None,)


@every({name: one for name, one in (TOPOGRAPHIES | EXTENSIONS).items() if is_student_t(*one)})
def test_marginals_are_student_t(topography, frames):
    """At the first and the last latent: ends are where a window goes wrong."""
    nu = topography.degrees_of_freedom
    t = TopographicStudentT(topography, frames).rsample((SAMPLES,)).flatten(1) * math.sqrt(nu)
    for latent in (0, -1):
        assert stats.kstest(t[:, latent].numpy(), stats.t(nu).cdf).pvalue > REJECT


@pytest.mark.parametrize("nu", [2, 3, 5])
def test_the_test_of_marginals_could_fail(nu):
    """One square more or less is seen where there are few; W's own tests count the many."""
    t = ProductOfStudentT(nu).rsample((SAMPLES,)).numpy() / math.sqrt(nu)
    for wrong in (nu - 1, nu + 1):
        assert stats.kstest(t * math.sqrt(wrong), stats.t(wrong).cdf).pvalue < REJECT


@every_topography
def test_neighbours_are_uncorrelated(topography, frames):
    """A bounded odd function of T, which has moments whatever nu is."""
    t = TopographicStudentT(topography, frames).rsample((SAMPLES,)).atan().flatten(1)
    correlation = torch.corrcoef(t.T) - torch.eye(t.shape[1])
    limit = stats.norm.isf(REJECT / t.shape[1] ** 2) / math.sqrt(SAMPLES)
    assert correlation.abs().max() < limit


def log_energy_correlation(topography, frames, later, further):
    """Of log T² at (l, i) and (l + later, i + further)."""
    t = TopographicStudentT(topography, frames).rsample((SAMPLES,)).square().log()
    here, there = t[:, 0, 0, 0], t[:, later, 0, further]
    return torch.corrcoef(torch.stack([here, there]))[0, 1].item()


def test_log_energies_correlate_along_the_diagonal_when_coherence_shifts():
    topography = Topography(2, (8,), window=3, velocity=1)
    assert log_energy_correlation(topography, 8, 1, 1) > 0.06
    for later, further in ((1, 0), (0, 1), (1, 2), (1, 7), (3, 3)):
        assert abs(log_energy_correlation(topography, 8, later, further)) < 0.03


def test_log_energies_correlate_along_time_when_coherence_is_stationary():
    topography = Topography(2, (8,), window=3, velocity=0)
    assert log_energy_correlation(topography, 8, 1, 0) > 0.06
    for later, further in ((1, 1), (0, 1), (3, 0)):
        assert abs(log_energy_correlation(topography, 8, later, further)) < 0.03


@pytest.mark.parametrize("mu", [0.0, -3.0])
def test_mean_and_variance_are_those_of_the_draws(mu):
    topography = Topography(1, (5,), (3,), window=5)  # 15 degrees of freedom
    prior = TopographicStudentT(topography, 5, mu)
    t = prior.rsample((200_000,))
    torch.testing.assert_close(t.mean(0), prior.mean, atol=0.01, rtol=0.01)
    torch.testing.assert_close(t.var(0), prior.variance, atol=0.01, rtol=0.03)
    assert prior.event_shape == t.shape[1:] == (5, 1, 5)


def test_moments_that_do_not_exist_are_nan_or_infinite():
    one = TopographicStudentT(Topography(1, (5,)), 2)
    assert one.mean.isnan().all() and one.variance.isnan().all()
    two = TopographicStudentT(Topography(1, (5,), (2,)), 2)
    assert (two.mean == 0).all() and two.variance.isinf().all()


@every_topography
def test_rolling_the_inputs_rolls_the_latents(topography, frames):
    z, u = (
        torch.randn(3, frames, topography.capsules, *shape)
        for shape in (topography.shape, topography.u_shape)
    )
    inside = slice(0 if topography.cyclic else 1, None)  # away from open ends
    for axis in topography.axes if topography.apart else (None,):
        rolled = studentize(z.roll(1, 3), u.roll(1, 3), topography, -30.0, axis)
        expected = studentize(z, u, topography, -30.0, axis).roll(1, 3)
        torch.testing.assert_close(rolled[:, :, :, inside], expected[:, :, :, inside])


@every_topography
def test_latents_and_gradients_are_finite_where_every_u_is_zero(topography, frames):
    z = torch.randn(2, frames, topography.capsules, *topography.shape, requires_grad=True)
    u = torch.zeros(2, frames, topography.capsules, *topography.u_shape, requires_grad=True)
    for axis in topography.axes if topography.apart else (None,):
        t = studentize(z, u, topography, -30.0, axis)
        t.sum().backward()
        assert t.isfinite().all() and z.grad.isfinite().all() and u.grad.isfinite().all()


@pytest.mark.parametrize("nu", [1, 2, 5, 30])
def test_product_of_student_t(nu):
    product = ProductOfStudentT(nu, (2, 3))
    t = product.rsample((SAMPLES,))
    assert t.shape == (SAMPLES, 2, 3)
    assert stats.kstest(t[:, 0, 0].numpy(), stats.t(nu).cdf).pvalue > REJECT
    energies = t.square().log().flatten(1)
    assert (torch.corrcoef(energies.T) - torch.eye(6)).abs().max() < 0.04
    expected = torch.from_numpy(stats.t(nu).logpdf(t[:5].numpy()).sum((1, 2))).float()
    torch.testing.assert_close(product.log_prob(t[:5]), expected, rtol=1e-4, atol=1e-4)
    assert ProductOfStudentT(nu).rsample((4,)).shape == (4,)


def test_mu_may_be_a_whole_number():
    assert TopographicStudentT(Topography(1, (3,), (2,)), 2, mu=-30).rsample((2,)).mean() > 0


def test_invalid_distributions_are_refused():
    with pytest.raises(BadInput, match="nu"):
        ProductOfStudentT(0)
    with pytest.raises(BadInput, match="longer than the sequence"):
        TopographicStudentT(Topography(1, (5,), window=4), frames=3)
