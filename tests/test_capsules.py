"""The part-whole model against the equations of its paper (Smith et al. 2020)."""

import math
from itertools import pairwise

import pytest
import torch
from scipy import stats
from small_capsules import (
    DOUBLE,
    REJECT,
    both_poses,
    capsules_of,
    drawn_for,
    given,
    images_of,
    inferred,
    is_zero,
    model_of,
    normal,
)
from torch.distributions import Bernoulli, Normal, RelaxedBernoulli

from topocaps.capsules import (
    Capsules,
    LayerPosterior,
    Poses,
    concrete,
)

# ---- The bound ----


def log_prior_by_hand(model, wholes):
    """Eq. 1, relaxed, and 2."""
    presence = RelaxedBernoulli(
        torch.tensor(model.temperature, **DOUBLE), torch.tensor(model.config["prior"], **DOUBLE)
    )
    t = wholes.presences
    found = presence.log_prob(t) + (t * (1 - t)).log()
    return (found + Normal(0.0, 1.0).log_prob(wholes.poses).sum(-1)).sum(-1)


@pytest.mark.parametrize("sizes", [(2, 3), (2, 2, 3)])
def test_the_density_of_a_scene_is_the_product_over_layers(sizes):
    model = model_of(sizes, (3, 4, 5), noise=0.3, prior=0.2)
    x, layers = images_of(model, 7), [capsules_of(7, size) for size in sizes]
    wanted = log_prior_by_hand(model, layers[0])
    for link, (above, below) in zip(model.links, pairwise(layers), strict=True):
        wanted = wanted + link.log_density(above, below)
    pixels = Normal(model.templates(layers[-1]), 0.3).log_prob(x)
    torch.testing.assert_close(model.log_density(layers, x), wanted + pixels.sum((-3, -2, -1)))


@pytest.mark.parametrize("sizes", [(2, 3), (2, 2, 3)])
def test_a_drawn_scene_has_a_finite_density(sizes):
    """Of wholes, the probability of being there (Eq. 1) and the density of where (2)."""
    model = model_of(sizes, prior=0.2, temperature=0.7)
    scene = model.sample(20)
    wholes = scene.layers[0]
    there = Bernoulli(torch.tensor(0.2, **DOUBLE)).log_prob(wholes.presences).sum(-1)
    wanted = there + Normal(0.0, 1.0).log_prob(wholes.poses).sum((-1, -2))
    torch.testing.assert_close(model.log_prior(wholes), wanted)
    for link, two in zip(model.links, pairwise(scene.layers), strict=True):
        wanted = wanted + link.log_density(*two)
    wanted = wanted + model.log_likelihood(scene.layers[-1], scene.x)
    found = model.log_density(scene.layers, scene.x)
    assert found.isfinite().all()
    torch.testing.assert_close(found, wanted)


def test_sampled_kls_have_the_expectation_of_closed_forms():
    """log p - log q of the same 4,000 draws of q, against ``evidence``; and kl_wholes by itself."""
    model = model_of((2, 2), temperature=0.7)
    x, draws = images_of(model, 1, 1), 4000
    numbers = drawn_for(model, draws, 1)
    with torch.no_grad():
        found = model.evidence(x.expand(draws, -1, -1, -1, -1), given(numbers))
        posteriors, layers = inferred(model, x.expand(draws, -1, -1, -1, -1), numbers)
        log_q = [
            posterior.log_density(values, 0.7)
            for posterior, values in zip(posteriors, layers, strict=True)
        ]
        value = model.log_density(layers, x) - sum(log_q)
        torch.testing.assert_close(model.bound(x, posteriors, layers, drawn_kl=True).elbo, value)
        drawn = log_q[0] - log_prior_by_hand(model, layers[0])
    assert value.std() > 0.1
    assert is_zero(value - found.elbo) and is_zero(drawn - found.kl_wholes)
    torch.testing.assert_close(
        value - found.elbo, found.kl_wholes - drawn, rtol=1e-6, atol=1e-6
    )  # nothing but the KL of wholes is in closed form
    torch.testing.assert_close(found.elbo, found.objective)


def test_the_density_of_a_normal_posterior_is_that_of_its_draws():
    posterior = LayerPosterior(normal(3), normal(3, 6), normal(3, 6).exp())
    values = posterior.draw(given([normal(3), normal(3, 6)]), 0.5)
    t = values.presences
    known = RelaxedBernoulli(torch.tensor(0.5, **DOUBLE), logits=posterior.logits)
    wanted = known.log_prob(t) + (t * (1 - t)).log()
    wanted = wanted + Normal(posterior.poses, posterior.spread).log_prob(values.poses).sum(-1)
    torch.testing.assert_close(
        posterior.log_density(values, 0.5), wanted.sum(), rtol=1e-8, atol=1e-8
    )


def wide_model():
    """Tiny, with a q so near its prior that evidence can be had by brute force."""
    model = model_of((1, 1), noise=1.0, scatter=0.1)
    with torch.no_grad():
        model.templates.alpha.fill_(3.0)
        model.links[0].spread.fill_(0.5)
        inverse = math.log(math.expm1(1.0)) - math.log(math.expm1(0.03))  # of a spread of 1
        whole = model.whole_encoders[0]
        model.part_encoder.read.weight.mul_(0.1)
        for layer, level in (
            (whole.presence, model.prior_logit + 0.5), (whole.pose, 0.1), (whole.spread, inverse)
        ):  # fmt: skip
            layer[-1].weight.mul_(0.1)
            layer[-1].bias.fill_(level)
        model.part_encoder.read.bias.zero_()[7:13] = inverse
    return model


def log_mean(logs):
    """The log of the mean of exponentials, and its standard error."""
    weights = (logs - logs.max()).exp()
    mean = weights.mean()
    return (mean.log() + logs.max()).item(), (weights.std() / mean / len(logs) ** 0.5).item()


def test_the_bound_lies_below_the_evidence_and_importance_weights_reach_it():
    """Evidence by 200,000 draws of the relaxed prior; limits of 4.4 standard errors."""
    model, limit = wide_model(), stats.norm.isf(REJECT / 2)
    with torch.no_grad():
        x = images_of(model, 1, 1)
        prior = model.sample(200_000, relaxed=True).layers[-1]
        evidence, error = log_mean(model.log_likelihood(prior, x[:, 0]))
        draws = 20_000
        many_x, numbers = x.expand(draws, -1, -1, -1, -1), drawn_for(model, draws, 1)
        elbo = model.evidence(many_x, given(numbers)).elbo
        posteriors, layers = inferred(model, many_x, numbers)
        log_q = sum(one.log_density(two, 1.0) for one, two in zip(posteriors, layers, strict=True))
        reached, other = log_mean((model.log_density(layers, x) - log_q)[:, 0])
    bound, spread = elbo.mean().item(), elbo.std().item() / draws**0.5
    assert error < 0.01 and spread < 0.02 and other < 0.05
    assert bound < evidence + limit * math.hypot(error, spread)
    assert evidence - bound < 0.6  # near enough for the law to be a test
    assert abs(reached - evidence) < limit * math.hypot(error, other)


@pytest.mark.parametrize("temperature", [1.0, 0.7])
def test_with_delta_poses_the_objective_omits_their_entropy(temperature):
    """E[log p(x, t, A)] - E[log q(t)] at A, that is -log p(A) of wholes in place of a KL."""
    model = model_of((2, 2), poses_are=Poses.DELTA, temperature=temperature)
    x = images_of(model, 3, 2)
    numbers = drawn_for(model, 3, 2)
    found = model.evidence(x, given(numbers))
    (wholes, parts), layers = inferred(model, x, numbers)
    log_q = concrete.log_density(layers[1].logits, parts.logits, temperature).sum(-1)
    kl_parts = log_q - model.links[0].log_density(*layers)
    prior = torch.tensor(math.log(0.1 / 0.9), **DOUBLE)
    kl_wholes = concrete.kl(wholes.logits, prior).sum(-1)
    kl_wholes = kl_wholes - Normal(0.0, 1.0).log_prob(wholes.poses).sum((-1, -2))
    pixels = Normal(model.templates(layers[1]), 0.2).log_prob(x).sum((-3, -2, -1))
    torch.testing.assert_close(found.log_px_given_t, pixels)
    torch.testing.assert_close(found.kl_parts, kl_parts)
    torch.testing.assert_close(found.kl_wholes, kl_wholes)
    torch.testing.assert_close(found.elbo, pixels - kl_parts - kl_wholes)


@pytest.mark.parametrize("sizes", [(2, 3), (2, 3, 4), (2, 2, 2, 3)])
def test_the_bound_is_finite_and_every_parameter_has_a_gradient(sizes):
    model = model_of(sizes)
    x = images_of(model, 3, 2)
    found = model.evidence(x)
    for term in model.recorded:
        assert getattr(found, term).shape == (3, 2) and getattr(found, term).isfinite().all()
    found.objective.sum().backward()
    for name, parameter in model.named_parameters():
        assert parameter.grad is not None, name
        assert parameter.grad.isfinite().all() and parameter.grad.abs().max() > 0, name
    encoded = [posterior.logits.shape[-1] for posterior in model.encode(x)]
    assert encoded == list(sizes)


@both_poses
@pytest.mark.parametrize("sizes", [(2, 3), (2, 3, 4)])
def test_evidence_draws_the_declared_noise_shapes(sizes, poses_are):
    model, asked = model_of(sizes, poses_are=poses_are), []

    def noise(like):
        asked.append(tuple(like.shape))
        return torch.randn_like(like)

    model.evidence(images_of(model, 3, 2), noise)
    assert asked == [(3, 2, *shape) for shape in model.noise_shapes]


@both_poses
def test_the_bound_is_a_function_of_the_noise(poses_are):
    model = model_of((2, 2, 3), poses_are=poses_are)
    x, numbers = images_of(model, 3, 2), drawn_for(model, 3, 2)
    one, same = (model.evidence(x, given(numbers)) for _ in range(2))
    other = model.evidence(x, given(drawn_for(model, 3, 2)))
    for term in model.recorded:
        assert torch.equal(getattr(one, term), getattr(same, term))
    assert not torch.equal(one.elbo, other.elbo)


def test_the_bound_of_an_image_does_not_depend_on_the_batch():
    model = model_of()
    x, numbers = images_of(model, 3, 2), drawn_for(model, 3, 2)
    both = model.evidence(x, given(numbers)).elbo
    alone = model.evidence(x[1:2, 1:], given([number[1:2, 1:] for number in numbers])).elbo
    torch.testing.assert_close(alone, both[1:2, 1:])


@both_poses
def test_encode_returns_the_posteriors_of_draws_without_noise(poses_are):
    model = model_of((2, 2, 3), poses_are=poses_are, temperature=0.7)
    x = images_of(model, 3)
    wanted, _ = inferred(
        model, x, [torch.zeros(3, *shape, **DOUBLE) for shape in model.noise_shapes]
    )
    for found, one in zip(model.encode(x), wanted, strict=True):
        torch.testing.assert_close(found.logits, one.logits)
        torch.testing.assert_close(found.poses, one.poses)
        assert (found.spread is None) == (poses_are is Poses.DELTA)


def test_wholes_do_not_depend_on_the_order_of_parts():
    """A set transformer that knows parts by name."""
    encoder, parts = model_of((2, 4)).whole_encoders[0], capsules_of(5, 4)
    order = [2, 0, 3, 1]
    found = encoder(parts)
    encoder.names.data = encoder.names.data[order]
    other = encoder(Capsules(parts.logits[:, order], parts.poses[:, order]))
    torch.testing.assert_close(found.logits, other.logits)
    torch.testing.assert_close(found.poses, other.poses)
    mixed = encoder(Capsules(parts.logits[:, order], parts.poses))
    assert (mixed.logits - found.logits).abs().max() > 1e-6
