"""Closed forms of densities, divergences and bounds against independent references, in float64.

The references are torch.distributions, scipy, numerical integration and sums over all cases. All
comparisons are to nine digits, so a term that is wrong by one part in a thousand fails.
"""

import math
from dataclasses import dataclass

import pytest
import torch
from conftest import every_topography
from references import DOUBLE, assert_same, inverse_moment, normal, roots_of_energies
from scipy import stats
from torch.distributions import (
    Bernoulli,
    Normal,
    RelaxedBernoulli,
    kl_divergence,
)

from topocaps import ProductOfStudentT, TopographicStudentT, Topography
from topocaps.capsules import Capsules, LayerPosterior, concrete
from topocaps.capsules.layers import log_normal
from topocaps.latents.student_t import studentize
from topocaps.models.evidence import (
    Posterior,
    joint_bound,
    kl_to_standard_normal,
    log_mean_exp_over_frames,
    log_mean_exp_over_sequences,
    log_px_paper,
    log_ratio_to_standard_normal,
    paper_estimate,
    summed_out,
)

# Densities and divergences ------------------------------------------------------------------------

GENERATOR = torch.Generator().manual_seed(0)
VALUE, LOGITS, MEANS, LOG_SPREADS = (normal(3, 4, 6, generator=GENERATOR) for _ in range(4))
Q = Normal(MEANS, LOG_SPREADS.exp())
STANDARD = Normal(torch.zeros(3, 4, 6, **DOUBLE), 1.0)
CERTAIN = torch.where(VALUE > 0, math.inf, -math.inf)


def relaxed(temperature, logits=LOGITS, value=VALUE):
    """The density of the logit of a relaxed Bernoulli variable."""
    t = value.sigmoid()
    known = RelaxedBernoulli(torch.tensor(temperature, **DOUBLE), logits=logits)
    return known.log_prob(t) + (t * (1 - t)).log()


FORMS = {
    "KL of normals": (kl_to_standard_normal(Q, 1), kl_divergence(Q, STANDARD).sum(-1)),
    "KL of normals, two axes": (
        kl_to_standard_normal(Q, 2),
        kl_divergence(Q, STANDARD).sum((-2, -1)),
    ),
    "log-ratio of normals": (
        log_ratio_to_standard_normal(Q, VALUE, 2),
        (STANDARD.log_prob(VALUE) - Q.log_prob(VALUE)).sum((-2, -1)),
    ),
    "log-density of poses": (log_normal(VALUE, Q.mean, Q.stddev), Q.log_prob(VALUE).sum(-1)),
    "log-density of poses, one spread": (
        log_normal(VALUE, 0.3, 1.7),
        Normal(STANDARD.mean + 0.3, 1.7).log_prob(VALUE).sum(-1),
    ),
    "binary concrete density": (concrete.log_density(VALUE, LOGITS, 0.7), relaxed(0.7)),
    "binary concrete density, wide": (concrete.log_density(VALUE, LOGITS, 2.5), relaxed(2.5)),
    "probability of a certain presence": (
        concrete.log_prob(CERTAIN, LOGITS, 0.7),
        Bernoulli(logits=LOGITS).log_prob((VALUE > 0).double()),
    ),
    "chance of a relaxed presence": (concrete.log_prob(VALUE, LOGITS, 0.7), relaxed(0.7)),
    "density of a layer's posterior": (
        LayerPosterior(LOGITS[..., 0], Q.mean, Q.stddev).log_density(
            Capsules(VALUE[..., 0], VALUE), 0.7
        ),
        relaxed(0.7, LOGITS[..., 0], VALUE[..., 0]).sum(-1) + Q.log_prob(VALUE).sum((-2, -1)),
    ),
    "a draw of a presence": (
        concrete.draw(LOGITS, VALUE, 0.7),
        (LOGITS + torch.special.ndtr(VALUE).logit()) / 0.7,
    ),
    "Student-t": (
        ProductOfStudentT(4, (6,)).log_prob(VALUE),
        torch.from_numpy(stats.t(4).logpdf(VALUE.numpy())).sum(-1),
    ),
    "Student-t variance": (
        ProductOfStudentT(5, (6,)).variance,
        torch.full((6,), stats.t(5).var()),
    ),
}


@pytest.mark.parametrize("found, wanted", FORMS.values(), ids=FORMS)
def test_a_closed_form_equals_its_reference(found, wanted):
    assert_same(found, wanted)


@pytest.mark.parametrize("temperature", [0.5, 1.0, 2.5])
def test_the_kl_of_concrete_variables_is_an_integral(temperature):
    """At differences of logits on either side of the switch to a series, and far from it."""
    value = torch.linspace(-160, 160, 64_001, **DOUBLE)
    for apart in (0.0, 1e-3, 0.0199, 0.0201, 0.1, 0.5, -3.0, 9.0):
        q, p = (torch.tensor(one, **DOUBLE) for one in (0.4 + apart, 0.4))
        log_q, log_p = (logistic_log_density(value, one, temperature) for one in (q, p))
        assert_same(concrete.kl(q, p), torch.trapezoid(log_q.exp() * (log_q - log_p), value))


def logistic_log_density(value, logits, temperature):
    """The logit of a relaxed Bernoulli variable is logistic; by scipy, which is exact far out."""
    known = stats.logistic(logits.item() / temperature, 1 / temperature)
    return torch.from_numpy(known.logpdf(value.numpy()))


# The prior ----------------------------------------------------------------------------------------

MOMENTS = {
    "three squares": (Topography(2, (5,), (3,)), 4),
    "nine": (Topography(2, (7,), (3,), window=3), 7),
    "a bubble": (Topography(2, (6,), (3,), window=5, velocity=0), 7),
    "axes apart": (Topography(1, (4, 6), (3, 5), window=3, apart=True), 4),
}


@pytest.mark.parametrize("mu", [0.0, -3.0])
@pytest.mark.parametrize("topography, frames", MOMENTS.values(), ids=MOMENTS)
def test_the_moments_of_the_prior_are_integrals_over_chi(topography, frames, mu):
    """Of axes that are kept apart, each is as likely: the moments are means over them."""
    prior = TopographicStudentT(topography, frames, torch.tensor(mu, **DOUBLE))
    squares = [int(topography.matrix(frames, axis)[0].sum()) for axis in topography.axes]
    first, second = (
        sum(inverse_moment(nu, power) for nu in squares) / len(squares) for power in (1, 2)
    )
    variance = (1 + mu**2) * second - (mu * first) ** 2
    assert_same(prior.mean, torch.full(prior.event_shape, -mu * first, **DOUBLE))
    assert_same(prior.variance, torch.full(prior.event_shape, variance, **DOUBLE))


@every_topography
def test_latents_are_the_ratio_of_equation_6(topography, frames):
    z, u = (
        torch.randn(3, frames, topography.capsules, *shape, **DOUBLE)
        for shape in (topography.shape, topography.u_shape)
    )
    for axis in topography.axes if topography.apart else (None,):
        wanted = (z + 7.0) / roots_of_energies(u, topography, axis)
        assert_same(studentize(z, u, topography, -7.0, axis), wanted)


@every_topography
def test_a_draw_of_the_prior_is_the_ratio_of_its_normal_numbers(topography, frames, monkeypatch):
    """Where every normal number is 1, it is (1 - mu) over the roots of the sums of W."""
    monkeypatch.setattr(torch, "randn", lambda shape, **kind: torch.ones(shape, **kind))
    prior = TopographicStudentT(topography, frames, torch.tensor(-2.0, **DOUBLE))
    ones = torch.ones(frames, topography.capsules, *topography.u_shape, **DOUBLE)
    axes = topography.axes if topography.apart else (None,)
    possible = torch.stack([3 / roots_of_energies(ones, topography, axis) for axis in axes])
    for drawn in prior.rsample((5,)):
        assert (drawn - possible).abs().flatten(1).amax(1).min() < 1e-9
    product = ProductOfStudentT(3, (2,)).rsample((4,))
    torch.testing.assert_close(product, torch.ones(4, 2))


# Estimators ---------------------------------------------------------------------------------------

WEIGHTS = normal(7, 3, 5, generator=GENERATOR)  # samples, batch, time


def test_the_estimators_are_means_of_weights():
    likelihoods = WEIGHTS.exp()
    by_sequence = likelihoods.prod(-1).mean(0).log() / 5
    by_frame = likelihoods.mean(0).log().mean(-1)
    assert_same(log_mean_exp_over_sequences(WEIGHTS), by_sequence)
    assert_same(log_mean_exp_over_frames(WEIGHTS), by_frame)
    assert_same(paper_estimate(WEIGHTS), by_frame + math.log(7))


@dataclass
class Known:
    """A model whose importance weights are ``WEIGHTS``."""

    drawn: int = 0

    def check(self, x):
        pass

    def posterior(self, x):
        return Posterior(Normal(torch.zeros_like(x), torch.ones_like(x)))

    def log_weights(self, x, posterior, samples, mask=None):
        found = WEIGHTS[self.drawn : self.drawn + samples]
        self.drawn += samples
        return found


def test_the_bounds_of_a_model_are_those_of_its_weights():
    """Of sequences with missing frames, for each frame that is there."""
    x = torch.zeros(3, 5, **DOUBLE)
    assert_same(joint_bound(Known(), x, 7), log_mean_exp_over_sequences(WEIGHTS))
    assert_same(log_px_paper(Known(), x, 7), paper_estimate(WEIGHTS))
    mask = torch.tensor([[1, 1, 1, 1, 1], [0, 1, 0, 1, 1], [0, 0, 1, 0, 0]], dtype=torch.bool)
    wanted = [
        weights[:, present].exp().prod(-1).mean().log()
        for weights, present in zip(WEIGHTS.unbind(1), mask, strict=True)
    ]
    assert_same(joint_bound(Known(), x, 7, mask), torch.stack(wanted) / mask.sum(1))


@pytest.mark.parametrize("ways", [1, 2, 3])
@pytest.mark.parametrize("missing", [False, True])
def test_axes_are_summed_out_by_bayes_rule(ways, missing):
    """The sum over time is the log of the mean likelihood; its gradient, the posterior of ways."""
    mask = torch.rand(4, 5) > 0.4 if missing else torch.ones(4, 5, dtype=torch.bool)
    mask[:, 0] = True
    log_likelihoods = (3 * normal(ways, 4, 5)).where(mask, 0.0).requires_grad_()
    frames, shares = summed_out(log_likelihoods, mask if missing else None)
    likelihoods = log_likelihoods.sum(-1).exp()
    assert_same(frames.sum(-1), likelihoods.mean(0).log())
    assert_same(shares, likelihoods / likelihoods.sum(0))
    (gradient,) = torch.autograd.grad(frames.sum(), log_likelihoods)
    assert_same(gradient, shares[..., None].expand_as(gradient))
    expected = (shares[..., None] * log_likelihoods).sum(0)
    left = (likelihoods.mean(0).log() - expected.sum(-1)) / mask.sum(-1)
    assert_same(frames, expected + left[:, None] * mask)
