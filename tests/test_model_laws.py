"""Models against their equations, written with torch.distributions, in float64."""

from dataclasses import replace

import pytest
import torch
from references import DOUBLE, assert_same, inverse_moment, normal, roots_of_energies
from test_learned import STARTS, every_start
from torch.distributions import Bernoulli, Normal, kl_divergence
from torch.nn.functional import binary_cross_entropy_with_logits

from topocaps import VAE, BadInput, TopographicVAE, Topography
from topocaps.latents.learned import LearnedTopography
from topocaps.models.evidence import Evidence, summed_out
from topocaps.models.likelihoods import Likelihood
from topocaps.models.networks import FrameDecoder, GaussianEncoder
from topocaps.models.sequence import spread_of_capsules

TOPOGRAPHIES = {
    "one energy": Topography(2, (5,), (3,), window=3),
    "open": Topography(2, (5,), window=3, cyclic=False),
    "two axes": Topography(1, (4, 3), (2, 3), window=3),
    "axes apart": Topography(1, (4, 3), (2, 3), window=3, apart=True),
}
every_likelihood = pytest.mark.parametrize(
    "likelihood", [Likelihood.BERNOULLI, Likelihood.GAUSSIAN]
)
every_model = pytest.mark.parametrize("topography", TOPOGRAPHIES.values(), ids=TOPOGRAPHIES)


def tvae(topography, **settings):
    model = TopographicVAE.mlp((1, 2, 3), topography, hidden=(7,), mu=-2.0, **settings)
    return model.double()


def reference_log_likelihood(model, t, x):
    """log p(x|t) of a decoder, from its network alone."""
    decoder = model.x_given_t
    seen = decoder.network(t.flatten(-decoder.latent_axes) - decoder.centre)
    outputs = seen.unflatten(-1, decoder.frame_shape)
    if decoder.likelihood is Likelihood.BERNOULLI:
        nats = binary_cross_entropy_with_logits(outputs, x, reduction="none")
        return -nats.flatten(-3).sum(-1)
    return Normal(outputs, 1.0).log_prob(x).flatten(-3).sum(-1)


def reference_posterior(encoder, x):
    mean, log_variance = encoder.network(x.flatten(2)).chunk(2, -1)
    mean, log_variance = (v.unflatten(-1, encoder.latent_shape) for v in (mean, log_variance))
    return Normal(mean, (log_variance / 2).exp())


def reference_kl(q):
    prior = Normal(torch.zeros_like(q.mean), torch.ones_like(q.mean))
    return kl_divergence(q, prior).flatten(2).sum(2)


@every_likelihood
@every_model
@pytest.mark.parametrize("missing", [False, True])
def test_the_bound_is_equation_12_term_by_term(topography, likelihood, missing):
    """Frames that are missing have the prior in place of a posterior, and no terms."""
    centred = likelihood is Likelihood.BERNOULLI
    model = tvae(topography, likelihood=likelihood, centred=centred, sparsity=0.7)
    x, mask = torch.rand(3, 5, 1, 2, 3, **DOUBLE), torch.ones(3, 5, dtype=torch.bool)
    if missing:
        mask[0, 1] = mask[1, 3] = mask[1, 4] = False
    noise = [torch.randn(3, 5, *shape, **DOUBLE) for shape in model.noise_shapes]
    left = iter(noise)
    found = model.evidence(x, lambda like: next(left), mask if missing else None)
    posteriors = [reference_posterior(one, x) for one in (model.z_given_x, model.u_given_x)]
    there = [mask.reshape(3, 5, *(1,) * (q.mean.ndim - 2)) for q in posteriors]
    z, u = (
        torch.where(is_there, q.mean + q.stddev * number, number)
        for q, is_there, number in zip(posteriors, there, noise, strict=True)
    )
    axes = topography.axes if topography.apart else (None,)
    ways = [(z - model.mu) / roots_of_energies(u, topography, axis) for axis in axes]
    each = torch.stack([reference_log_likelihood(model, t, x).where(mask, 0.0) for t in ways])
    assert_same(found.log_px_given_t.sum(1), each.sum(-1).exp().mean(0).log())
    if len(each) == 1:
        assert_same(found.log_px_given_t, each[0])
    for term, q in zip((found.kl_z, found.kl_u), posteriors, strict=True):
        assert_same(term, reference_kl(q).where(mask, 0.0))
    assert_same(found.elbo, found.log_px_given_t - found.kl_z - found.kl_u)
    shares = each.sum(-1).softmax(0)[..., None]
    spread = torch.stack([spread_of_capsules(t, model._axes) for t in ways])
    penalty = (0.7 * shares * spread).sum(0).where(mask, 0.0)
    assert_same(found.objective, found.elbo - penalty)


def test_the_bound_of_a_vae_has_no_energies():
    model = VAE.mlp((1, 2, 3), Topography(2, (5,)), hidden=(7,)).double()
    x, noise = torch.rand(3, 4, 1, 2, 3, **DOUBLE), torch.randn(3, 4, 2, 5, **DOUBLE)
    found, q = model.evidence(x, lambda like: noise), reference_posterior(model.z_given_x, x)
    wanted = reference_log_likelihood(model, q.mean + q.stddev * noise, x)
    assert_same(found.log_px_given_t, wanted)
    assert_same(found.objective, wanted - reference_kl(q))


@every_model
def test_importance_weights_are_log_ratios_of_densities(topography):
    model, x = tvae(topography), torch.rand(3, 5, 1, 2, 3, **DOUBLE)
    posterior = model.posterior(x)
    torch.manual_seed(1)
    found = model.log_weights(x, posterior, 2)
    torch.manual_seed(1)
    drawn = [q.rsample((2,)) for q in (posterior.z, posterior.u)]
    wanted, _ = summed_out(
        torch.stack([model.x_given_t(t).log_prob(x) for t in model.t_per_axis(*drawn)])
    )
    for q, value in zip((posterior.z, posterior.u), drawn, strict=True):
        ratio = Normal(0.0, 1.0).log_prob(value) - q.log_prob(value)
        wanted = wanted + ratio.flatten(3).sum(3)
    assert_same(found, wanted)


@every_model
def test_encoding_without_drawing_uses_the_mean_square_of_u(topography):
    model, x = tvae(topography), torch.rand(3, 5, 1, 2, 3, **DOUBLE)
    z, u = (reference_posterior(one, x) for one in (model.z_given_x, model.u_given_x))
    size = (u.mean.square() + u.variance).sqrt()
    axes = topography.axes if topography.apart else (None,)
    for t, axis in zip(model.encode_per_axis(x), axes, strict=True):
        assert_same(t, (z.mean - model.mu) / roots_of_energies(size, topography, axis))


def test_the_penalty_is_not_part_of_the_bound():
    terms = normal(4, 2, 3).unbind(0)
    evidence = Evidence(*terms)
    assert_same(evidence.elbo, terms[0] - terms[1] - terms[2])
    assert_same(evidence.objective, terms[0] - terms[1] - terms[2] - terms[3])


@pytest.mark.parametrize("shape", [(5,), (3, 4)])
def test_the_spread_of_a_capsule_is_the_norm_of_its_deviations(shape):
    """Of large values: near 0 the length is smoothed."""
    t = 1e6 * normal(2, 3, 4, *shape)
    sites = t.flatten(3)
    wanted = (sites.var(-1, correction=0) * sites.shape[-1]).sqrt().sum(-1)
    assert_same(spread_of_capsules(t, 1 + len(shape)), wanted)


def test_the_mean_of_the_prior_enters_over_an_open_end():
    topography = Topography(2, (5,), (3,), window=3, cyclic=False)
    model, t = tvae(topography), torch.randn(4, 2, 5, **DOUBLE)
    mean = 2.0 * inverse_moment(9, 1)
    rolled = model.roll(t, 2)
    assert_same(rolled[..., :2], torch.full((4, 2, 2), mean, **DOUBLE))
    assert_same(rolled[..., 2:], t[..., :3])


def test_missing_frames_are_filled_across_the_ends_in_closed_time_only():
    """By default time is closed, except for causal windows; ``closed`` overrides it."""
    x, mask = torch.rand(2, 7, 1, 2, 3, **DOUBLE), torch.ones(2, 7, dtype=torch.bool)
    mask[:, 4:] = False
    for causal in (False, True):
        model = tvae(Topography(2, (7,), window=3, causal=causal))
        t = model.encode(x, mask=mask)
        after, before = (
            model.decode(model.roll(t[:, frame], steps)) for frame, steps in ((3, 3), (0, -1))
        )
        assert_same(model.fill(x, mask)[:, 6], after if causal else before)
        assert_same(model.fill(x, mask, closed=False)[:, 6], after)


@every_likelihood
def test_decoders_and_encoders_are_distributions_of_their_outputs(likelihood):
    """With networks that do nothing, and a decoder that is given t less its centre."""
    t, x = normal(3, 4, 1, 2, 3), normal(3, 4, 1, 2, 3).sigmoid()
    decoder = FrameDecoder(torch.nn.Identity(), (1, 2, 3), 3, likelihood, centre=1.5).double()
    pixels = Bernoulli(logits=t) if likelihood is Likelihood.BERNOULLI else Normal(t, 1.0)
    wanted = x * t - t.exp().log1p() if likelihood is Likelihood.BERNOULLI else pixels.log_prob(x)
    assert_same(decoder(t + 1.5).log_prob(x), wanted.flatten(2).sum(2))
    assert_same(decoder(t + 1.5).mean, pixels.mean)
    q = GaussianEncoder(torch.nn.Identity(), 1, (2, 3))(encoder_outputs(t))
    assert_same(q.mean, t[..., 0, :, :])
    assert_same(q.variance, (2 * t[..., 0, :, :]).exp())


def encoder_outputs(t):
    """Outputs of an encoder: means, and twice as large log-variances."""
    return torch.cat([t.flatten(2), 2 * t.flatten(2)], -1)


@pytest.mark.parametrize("outside", [-1e-3, 1 + 1e-3])
def test_frames_slightly_outside_their_range_are_refused(outside):
    x = torch.rand(2, 5, 1, 2, 3, **DOUBLE)
    x[1, 2, 0, 1, 0] = outside
    with pytest.raises(BadInput, match=r"must lie in \[0, 1\]"):
        tvae(Topography(2, (5,), window=3)).check(x)


# Topographies that are learned --------------------------------------------------------------------


@every_start
def test_learned_weights_start_as_w(start):
    """A learned W starts weights of 0 at 6e-6, so sums agree to a multiple of that."""
    learned = LearnedTopography(start, "weights").double()
    for axis in start.axes:
        wanted = start.matrix(7, axis, torch.float64)
        unit = torch.eye(wanted.shape[1], **DOUBLE).unflatten(
            1, (7, start.capsules, *start.u_shape)
        )
        found = learned.pool(unit, axis).flatten(1).T
        torch.testing.assert_close(found, wanted, rtol=1e-6, atol=1e-4)


def test_from_the_identity_other_weights_start_at_small_values():
    kernel = LearnedTopography(STARTS["tvae"], "from-identity").double().kernel_along(None)
    middle = kernel[:, 2, 0]
    torch.testing.assert_close(middle, torch.ones_like(middle), rtol=1e-6, atol=0)
    kernel[:, 2, 0] = 3.35e-4
    torch.testing.assert_close(kernel, torch.full_like(kernel, 3.35e-4), rtol=1e-2, atol=0)


@pytest.mark.parametrize("reach", [1, 2, 3])
@pytest.mark.parametrize("causal", [False, True])
def test_learned_velocities_pool_as_given_velocities_do(reach, causal):
    """Every capsule has its own; the topography reports their mean."""
    start = Topography(3, (7,), (reach,), window=4, causal=causal)
    learned, velocities = LearnedTopography(start, "velocity").double(), [0.37, -1.4, 2.0]
    learned.velocities.data = torch.tensor(velocities, **DOUBLE)
    energy = torch.rand(2, 6, 3, 7, **DOUBLE)
    for capsule, velocity in enumerate(velocities):
        one = replace(start, capsules=1, velocity=velocity)
        pooled = learned.pool(energy)[:, :, [capsule]]
        assert_same(pooled, one.pool(energy[:, :, [capsule]]))
    assert learned.velocity == pytest.approx(sum(velocities) / 3)
    assert learned.rate.tolist() == velocities
