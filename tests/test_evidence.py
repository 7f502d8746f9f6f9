"""The bounds lie below the evidence, and the estimator of the paper does not."""

import math

import pytest
import torch
from torch import nn
from torch.distributions import Independent, Normal

from topocaps import VAE, BadInput, TopographicVAE, Topography
from topocaps.models import evidence
from topocaps.models.evidence import (
    frame_bound,
    log_mean_exp_over_frames,
    log_mean_exp_over_sequences,
    log_px,
    log_weights,
    paper_estimate,
)
from topocaps.models.likelihoods import Likelihood

STANDARD_ERRORS = 3


class FixedGaussian(nn.Module):
    """A posterior of its own for each frame of the one sequence there is."""

    def __init__(self, mean, scale):
        super().__init__()
        self.mean, self.scale = mean, scale

    def forward(self, x):
        mean = self.mean.expand(len(x), -1, 1, 1)
        return Normal(mean, self.scale.expand(mean.shape))


class NoisyIdentity(nn.Module):
    """p(x|t) = N(t, 0.5)."""

    frame_shape = (1,)
    likelihood = Likelihood.GAUSSIAN

    def forward(self, t):
        return Independent(Normal(t.flatten(-2), 0.5), 1)


FRAMES = 3
X = torch.tensor([0.9, -0.4, 0.3]).reshape(1, FRAMES, 1)
MU = -0.5


def tiny_tvae():
    """Three frames of one latent that share all three u; q differs from the prior."""
    q_z = FixedGaussian(torch.tensor([0.6, -0.5, 0.1])[:, None, None], torch.tensor(0.9))
    q_u = FixedGaussian(torch.tensor([0.9, 0.4, 0.7])[:, None, None], torch.tensor(0.9))
    return TopographicVAE(q_z, q_u, NoisyIdentity(), Topography(1, (1,), window=3), mu=MU)


def brute_force_evidence(frames=slice(None)):
    """log p(x) / S of the tiny model: all frames share E = u1² + u2² + u3², so, given E,
    x_l ~ N(-mu / sqrt E, 1 / E + 1/4), and E ~ chi²(3): one integral, on a fine grid."""
    root = torch.linspace(1e-5, 12, 400_001, dtype=torch.float64)
    energy = root.square()
    log_density = root.log() * 2 - energy / 2 + 0.5 * math.log(2 / math.pi)  # of the chi(3) root
    x = X.double().reshape(-1, 1)[frames]
    given = Normal(-MU / root, (1 / energy + 0.25).sqrt()).log_prob(x).sum(0)
    return torch.trapezoid((given + log_density).exp(), root).log().item() / len(x)


def mean_and_error(values):
    return values.mean().item(), values.std().item() / math.sqrt(len(values))


@torch.no_grad()
def bounds(model, samples, repeats):
    """Independent values of the joint bound, (repeats,)."""
    x = X.expand(repeats, -1, -1)
    return log_mean_exp_over_sequences(log_weights(model, x, samples))


def test_the_joint_bound_stays_below_the_evidence_and_reaches_it():
    model, truth = tiny_tvae(), brute_force_evidence()
    means = []
    for samples in (1, 5, 50, 2000):
        mean, error = mean_and_error(bounds(model, samples, 2000))
        assert mean < truth + STANDARD_ERRORS * error
        if means:
            assert mean > means[-1] - STANDARD_ERRORS * error
        means.append(mean)
    assert means[0] < truth - 0.1  # q is no free lunch
    assert means[-1] > truth - 0.05


def test_the_bound_of_present_frames_is_on_their_evidence():
    """Whatever stands in the place of the others."""
    model, mask = tiny_tvae(), torch.tensor([[True, False, True]])
    truth = brute_force_evidence(mask[0])
    x = X.masked_fill(~mask[..., None], torch.nan).expand(2000, -1, -1)
    few, many = (log_px(model, x, k, mask.expand(2000, -1)).detach() for k in (1, 1000))
    mean, error = mean_and_error(few)
    assert mean < truth - STANDARD_ERRORS * error
    mean, error = mean_and_error(many)
    assert truth - 0.05 < mean < truth + STANDARD_ERRORS * error
    assert abs(truth - brute_force_evidence()) > 0.05  # of all frames, it would be another
    torch.manual_seed(0)
    whole = log_px(model, X, 3, torch.ones(1, 3, dtype=torch.bool))
    torch.manual_seed(0)
    torch.testing.assert_close(log_px(model, X, 3), whole)
    with pytest.raises(BadInput, match="True where a frame is present"):
        log_px(model, X, 3, mask[:, :2])


def test_the_papers_estimator_is_no_bound():
    """Even with its missing -log K put back: frames weighed apart, though they share u."""
    model, truth = tiny_tvae(), brute_force_evidence()
    weights = log_weights(model, X.expand(200, -1, -1), 2000)
    apart, error = mean_and_error(log_mean_exp_over_frames(weights))
    assert apart > truth + 5 * error
    paper, error = mean_and_error(paper_estimate(weights[:10]))
    assert paper > truth + 10 * error


def tiny_vae(window=1):
    """Three frames of independent latents, whose evidence is known; q differs from the prior."""
    q_z = FixedGaussian(torch.tensor([0.6, -0.5, 0.1])[:, None, None], torch.tensor(0.9))
    return VAE(q_z, NoisyIdentity(), Topography(1, (1,), window=window))


@torch.no_grad()
def test_independent_frames_have_a_tighter_bound_frame_by_frame():
    model, x = tiny_vae(), X.expand(4000, -1, -1)
    each = Normal(0.0, 1.25**0.5).log_prob(X[0, :, 0])
    for mask in (None, torch.tensor([[True, False, True]])):
        truth = each.mean() if mask is None else each[mask[0]].mean()
        given = None if mask is None else mask.expand(4000, -1)
        for samples in (2, 10):
            joint, joint_error = mean_and_error(log_px(model, x, samples, given))
            frame, error = mean_and_error(frame_bound(model, x, samples, given))
            assert frame > joint + STANDARD_ERRORS * math.hypot(error, joint_error)
            assert frame < truth + STANDARD_ERRORS * error
        many, error = mean_and_error(frame_bound(model, x, 300, given))
        assert truth - 0.01 < many < truth + STANDARD_ERRORS * error


def test_frames_are_independent_without_a_window_or_if_no_frame_shares_u():
    shared = dict(frame_shape=(1, 4, 4), hidden=(8,))
    assert tiny_vae().frames_are_independent and tiny_vae(window=3).frames_are_independent
    assert not tiny_tvae().frames_are_independent
    alone = TopographicVAE.mlp(topography=Topography(1, (3,), (3,)), **shared)
    assert alone.frames_are_independent


def models():
    shared = dict(frame_shape=(1, 4, 4), hidden=(8,))
    return [
        TopographicVAE.mlp(topography=Topography(2, (5,), (3,), window=3), mu=-3.0, **shared),
        TopographicVAE.mlp(topography=Topography(1, (3, 3), (3, 2)), mu=0.0, **shared),
        VAE.mlp(topography=Topography(2, (5,)), **shared),
    ]


@pytest.mark.parametrize("model", models())
def test_one_sample_is_the_sampled_elbo_on_the_same_draws(model):
    x = torch.rand(4, 6, 1, 4, 4)
    with torch.no_grad():
        posterior = model.posterior(x)
        torch.manual_seed(5)
        weights = model.log_weights(x, posterior, 1)
        torch.manual_seed(5)
        bound = log_px(model, x, samples=1)
        # by hand, from the distributions themselves
        torch.manual_seed(5)
        z = posterior.z.rsample((1,))
        u = posterior.u.rsample((1,)) if posterior.u else None
        standard = Normal(0.0, 1.0)
        elbo = model.x_given_t(model.latents(z, u)).log_prob(x)
        for q, value in ((posterior.z, z), (posterior.u, u)):
            if q is not None:
                elbo = elbo + (standard.log_prob(value) - q.log_prob(value)).flatten(3).sum(-1)
    torch.testing.assert_close(weights, elbo, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(bound, elbo[0].mean(-1), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("model", models())
@torch.no_grad()
def test_the_elbo_with_exact_kls_is_the_mean_of_the_sampled_elbo(model):
    x = torch.rand(1, 6, 1, 4, 4).expand(4000, -1, -1, -1, -1)
    closed, sampled = model(x).elbo.mean(1), log_px(model, x, samples=1)
    error = (closed.var() + sampled.var()).div(len(x)).sqrt().item()
    assert abs(closed.mean().item() - sampled.mean().item()) < 4 * error


@pytest.mark.parametrize("model", models())
@torch.no_grad()
def test_more_samples_do_not_lower_the_bound(model):
    x = torch.rand(1, 6, 1, 4, 4).expand(500, -1, -1, -1, -1)
    last, last_error = -math.inf, 0.0
    for samples in (1, 4, 16):
        mean, error = mean_and_error(log_px(model, x, samples))
        assert mean > last - STANDARD_ERRORS * math.hypot(error, last_error)
        last, last_error = mean, error


def test_memory_is_bounded_by_splitting_the_samples(monkeypatch):
    model, x, drawn = models()[0], torch.rand(2, 6, 1, 4, 4), []
    own = model.log_weights

    def counted(x, posterior, samples, mask=None):
        drawn.append(samples)
        return own(x, posterior, samples)

    monkeypatch.setattr(model, "log_weights", counted)
    weights = evidence.log_weights(model, x, samples=7, values_in_memory=3 * x.numel())
    assert drawn == [3, 3, 1] and weights.shape == (7, 2, 6)


def test_log_px_refuses_invalid_input():
    model, x = models()[0], torch.rand(2, 6, 1, 4, 4)
    for bad, samples, says in ((255 * x, 1, "0, 1"), (x[..., :3], 1, "frame"), (x, 0, "samples")):
        with pytest.raises(BadInput, match=says):
            log_px(model, bad, samples)


def test_the_estimators_on_hand_made_weights():
    """Two samples of two frames with weights 1 and 3, 5 and 7."""
    w = torch.tensor([[1.0, 3.0], [5.0, 7.0]]).log()[:, None]
    assert log_mean_exp_over_sequences(w).item() == pytest.approx(math.log((3 + 35) / 2) / 2)
    assert log_mean_exp_over_frames(w).item() == pytest.approx((math.log(3) + math.log(5)) / 2)
    assert paper_estimate(w).item() == pytest.approx((math.log(6) + math.log(10)) / 2)
