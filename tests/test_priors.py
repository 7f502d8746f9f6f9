"""Laws of the priors of codes, and of rolling VAEs that have them. Laws are tested in float64."""

import json
import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from scipy import stats
from scipy.integrate import quad
from test_rolling import FRAME, frames, mean_and_error, repeated, rolling, some
from torch.distributions import Laplace as LaplaceDistribution
from torch.distributions import Normal, kl_divergence

import topocaps as tc
from topocaps.latents.capsule_motion import CapsuleMotion
from topocaps.latents.motion import Known, Unknown
from topocaps.models.base import build
from topocaps.models.evidence import kl_to_standard_normal
from topocaps.models.priors import (
    CodePrior,
    Laplace,
    StandardNormal,
    StudentT,
    prior_from,
    prior_settings,
)
from topocaps.papers.recipes import find
from topocaps.study.recipe import BaseRecipe
from topocaps.training.stack import Stack, by_architecture
from topocaps.training.updates.base import MeanTerms

DOUBLE = {"dtype": torch.float64}
PRIORS = [StandardNormal(), StudentT(), StudentT(6.5), Laplace()]
every_prior = pytest.mark.parametrize("prior", PRIORS, ids=repr)
sparse = pytest.mark.parametrize("prior", [StudentT(), Laplace()], ids=repr)
ONE = torch.zeros((), **DOUBLE)


def codes(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), **DOUBLE)


def posterior(*shape):
    return Normal(codes(*shape, seed=1), (0.5 * codes(*shape, seed=2)).exp())


# --- densities ----------------------------------------------------------------------------------


def test_densities_are_those_of_torch_and_scipy():
    t = 2 * codes(7, 3, 5)
    for prior, known in (
        (StandardNormal(), Normal(ONE, 1.0)),
        (Laplace(), LaplaceDistribution(ONE, math.sqrt(0.5))),
    ):
        torch.testing.assert_close(prior.log_prob(t, 2), known.log_prob(t).sum((1, 2)))
    for dof in (2.5, 3, 40):
        known = stats.multivariate_t(shape=np.eye(5) * (dof - 2) / dof, df=dof)
        expected = torch.from_numpy(known.logpdf(t.numpy())).sum(1)
        torch.testing.assert_close(StudentT(dof).log_prob(t, 2), expected)


@pytest.mark.parametrize("dof", [2.5, 3.0, 9.0])
def test_a_student_t_is_a_normal_whose_variance_is_inverse_gamma(dof):
    t = codes(1, 4)

    def joint(variance):
        normal = stats.norm(scale=variance**0.5).pdf(t[0]).prod()
        return normal * stats.invgamma(dof / 2, scale=(dof - 2) / 2).pdf(variance)

    expected = math.log(quad(joint, 0, 1)[0] + quad(joint, 1, math.inf)[0])
    assert StudentT(dof).log_prob(t, 2).item() == pytest.approx(expected, abs=1e-7)


def test_many_degrees_of_freedom_are_normal():
    t, q = codes(5, 2, 3), posterior(5, 2, 3)
    near, normal = StudentT(1e7), StandardNormal()
    torch.testing.assert_close(near.log_prob(t, 2), normal.log_prob(t, 2), rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(near.kl_bound(q, 2), normal.kl_bound(q, 2), rtol=1e-5, atol=1e-5)


@every_prior
def test_every_axis_of_sites_belongs_to_the_capsule(prior):
    t = codes(4, 2, 3, 5)
    torch.testing.assert_close(prior.log_prob(t, 3), prior.log_prob(t.flatten(2), 2))
    alone = prior.log_prob(t.unsqueeze(2), 3)  # of each capsule
    torch.testing.assert_close(alone.sum(1), prior.log_prob(t, 3))


@every_prior
@pytest.mark.parametrize("steps", [1, -2, 0.4])
def test_rolling_a_code_does_not_change_its_density(prior, steps):
    motions = CapsuleMotion(Known(steps), 3, (5,), cyclic=True).double()
    t = codes(4, 3, 5)
    rolled = motions.roll(t, 0, 1)
    change = (prior.log_prob(rolled, 2) - prior.log_prob(t, 2)).abs()
    if isinstance(prior, Laplace) and steps == 0.4:  # which mixes independent sites
        assert (change > 1e-3).all()
        return
    assert (change < 1e-9).all() and not torch.equal(rolled, t)


# --- samples ------------------------------------------------------------------------------------

#: distributions of a site
SITES = {
    StandardNormal(): stats.norm(),
    StudentT(3): stats.t(3, scale=math.sqrt(1 / 3)),
    StudentT(9): stats.t(9, scale=math.sqrt(7 / 9)),
    Laplace(): stats.laplace(scale=math.sqrt(0.5)),
}


@pytest.mark.parametrize("prior", SITES, ids=repr)
def test_samples_have_the_moments_of_the_prior(prior):
    torch.manual_seed(0)
    t = prior.sample(20_000, (2, 3), ONE)
    assert t.shape == (20_000, 2, 3) and t.dtype == torch.float64
    site = SITES[prior]
    assert site.mean() == 0 and site.var() == pytest.approx(1)
    for one in t.flatten(1).T:
        assert stats.kstest(one.numpy(), site.cdf).pvalue > 1e-4
    if prior != StudentT(3):  # whose fourth moment is infinite
        assert t.mean().abs() < 0.02 and t.var().item() == pytest.approx(1, abs=0.03)


def test_only_a_student_t_prior_couples_the_sites_of_a_capsule():
    torch.manual_seed(0)
    for prior in PRIORS:
        size = prior.sample(20_000, (2, 3), ONE).abs().log().flatten(1)
        correlation = size.T.corrcoef()
        within, between = correlation[0, 1:3], correlation[0, 3:]
        assert (between.abs() < 0.03).all()
        assert (within > 0.05).all() if isinstance(prior, StudentT) else (within < 0.03).all()
    t = StudentT(3).sample(20_000, (1, 5), ONE)
    squares = t.square().mean((1, 2)) * 3  # F with (sites, dof) degrees of freedom, scaled
    assert stats.kstest(squares.numpy(), stats.f(5, 3).cdf).pvalue > 1e-4


# --- KL divergences -----------------------------------------------------------------------------


@every_prior
def test_the_kl_is_estimated_without_bias_and_bounded_from_above(prior):
    torch.manual_seed(0)
    q = posterior(6, 2, 3)
    t = q.sample((100_000,))
    mean, error = mean_and_error(-prior.log_ratio(q, t, 2))
    estimate, _ = mean_and_error(prior.kl(q, t, 2).expand(100_000, 6))
    bound = prior.kl_bound(q, 2)
    assert ((estimate - mean).abs() < 4 * error).all()
    assert (bound > mean - 4 * error).all()
    if not isinstance(prior, StudentT):
        assert ((bound - mean).abs() < 4 * error).all()  # it has a closed form
        return
    assert (bound - mean < 2).all()
    narrow = Normal(q.mean, 0.01 * q.stddev)
    estimate, error = mean_and_error(prior.kl(narrow, narrow.sample((1000,)), 2))
    assert ((prior.kl_bound(narrow, 2) - estimate).abs() < 4 * error + 1e-3).all()


def test_closed_forms_are_those_of_numerical_integration():
    q = posterior(4, 1, 1)
    torch.testing.assert_close(
        StandardNormal().kl_bound(q, 2), kl_divergence(q, Normal(0 * q.mean, 1.0)).sum((1, 2))
    )
    for n in range(4):
        one = stats.norm(q.mean[n].item(), q.stddev[n].item())
        site = SITES[Laplace()]

        def integrand(t, one=one, site=site):
            return one.pdf(t) * (one.logpdf(t) - site.logpdf(t))

        expected = quad(integrand, -15, 0)[0] + quad(integrand, 0, 15)[0]
        assert Laplace().kl_bound(q, 2)[n].item() == pytest.approx(expected, abs=1e-7)


# --- models -------------------------------------------------------------------------------------


def brute_force_log_px(model, x, samples=200_000):
    """log p(x) of sequences and its standard error, from codes that are drawn from the prior."""
    torch.manual_seed(5)
    each = []
    for t in model.prior.sample(samples, (1, 3), ONE).split(50_000):
        candidates = []
        for k in range(len(model.motions)):
            decoded = model.x_given_t(model.at(t, k, range(x.shape[1])))
            log_px = torch.stack([decoded.log_prob(one).sum(1) for one in x], 1)
            candidates.append(log_px + model.motions.log_prior[k])
        each.append(torch.stack(candidates).logsumexp(0))
    weights = torch.cat(each)
    largest = weights.amax(0)
    mean, error = mean_and_error((weights - largest).exp())
    assert (error < 0.02 * mean).all()
    return mean.log() + largest, error / mean


@sparse
@pytest.mark.parametrize("motion", [Known(1), Unknown((-1, 1))], ids=repr)
@torch.no_grad()
def test_the_bound_is_below_the_evidence_and_rises_with_samples(prior, motion):
    model, x = rolling(motion, (3,), 1, prior=prior), frames(time=4)
    for parameter in model.z_given_x.parameters():
        parameter.mul_(0.3)
    model.z_given_x.network[-1].bias[3:] = -3  # so that the bound is close
    exact, error = brute_force_log_px(model, x)
    for visible in ([0], [1, 2], [0, 1, 2, 3]):
        noise = codes(2000, 1, 3, seed=3)
        found = model.evidence_from(repeated(x, 1000), some(2000, *visible, time=4), noise)
        mean, its_error = mean_and_error(found.elbo.sum(1).unflatten(0, (1000, 2)))
        assert (mean < exact + 3 * (error.square() + its_error.square()).sqrt()).all()
    bounds = {
        k: mean_and_error(4 * model.log_px(repeated(x, 300), k).unflatten(0, (300, 2)))
        for k in (1, 4, 16)
    }
    for fewer, more in ((1, 4), (4, 16)):
        (low, low_error), (high, high_error) = bounds[fewer], bounds[more]
        assert (high - low > -3 * (low_error.square() + high_error.square()).sqrt()).all()
    assert (bounds[16][0] < exact + 3 * bounds[16][1] + 3 * error).all()
    assert ((4 * model.log_px(x, 20_000) - exact).abs() < 0.2).all()


def test_the_default_is_the_normal_prior_bit_for_bit():
    x, mask, noise = frames(), some(2, 0, 2), codes(2, 2, 5)
    plain, named = rolling(), rolling(prior="normal")
    found, q = plain.evidence_from(x, mask, noise), plain.posteriors(x, mask).q
    kl = kl_to_standard_normal(q, 2)[0]
    assert torch.equal(found.kl, kl[:, None] * torch.full((2, 5), 1 / 5, **DOUBLE))
    assert torch.equal(named.evidence_from(x, mask, noise).elbo, found.elbo)
    torch.manual_seed(0)
    drawn = plain.sample(3, 4)
    torch.manual_seed(0)
    t = torch.randn(3, 2, 5, dtype=plain.motions.log_prior.dtype)
    assert torch.equal(drawn, plain.decode(plain.at(t, 0, range(4))))
    assert "prior" not in plain.config and named.config == plain.config


@every_prior
def test_priors_survive_json(prior):
    plain = json.loads(json.dumps(prior_settings(prior)))
    assert prior_from(plain) == prior
    model = rolling(prior=prior)
    again = build(json.loads(json.dumps(model.config)))
    assert again.prior == prior and again.config == model.config
    recipe = replace(find("letters/rolling"), prior=prior)
    same = BaseRecipe.from_json(json.loads(json.dumps(recipe.to_json())))
    assert same == recipe and same.fingerprint == recipe.fingerprint
    assert recipe.build(FRAME, 0).prior == prior
    neutral = prior == StandardNormal()
    assert ("prior" not in recipe.to_json()) == neutral == ("prior" not in recipe.identity())
    assert (recipe.fingerprint == find("letters/rolling").fingerprint) == neutral


def test_a_recipe_takes_the_name_of_a_prior():
    recipe = find("letters/rolling").change(["prior=student-t", "dof=5"])
    assert recipe.prior == StudentT(5)
    assert recipe.fingerprint != find("letters/rolling-student-t").fingerprint
    capsules = tc.Topography(2, (5,))
    picture = tc.RollingVAE.convolutional((1, 8, 8), capsules, channels=(4,), prior="laplace")
    assert build(picture.config).prior == Laplace()


@every_prior
@pytest.mark.parametrize("shape", [(5,), (5, 3)])
def test_nats_of_capsules_sum_to_the_kl(prior, shape):
    model = rolling(shape=shape, prior=prior)
    q = model.posterior(frames())
    nats = model.capsule_nats(q)
    assert nats.shape == (2, 2) and (nats > 0).all()
    torch.testing.assert_close(nats.sum(1), prior.kl_bound(q, 1 + len(shape)))
    if prior == StandardNormal():
        assert torch.equal(nats, kl_to_standard_normal(q, len(shape)))


class Own(StandardNormal):
    pass


class Unhashable(StandardNormal):
    __hash__ = None


def test_a_model_with_a_user_defined_prior_has_no_config():
    assert prior_settings(Own()) is None and rolling(prior=Own()).config is None
    with pytest.raises(tc.BadInput, match="its prior, and cannot record a class of your own"):
        replace(find("letters/rolling"), prior=Own())


@pytest.mark.parametrize(
    "use, says",
    [
        (lambda: CodePrior.of("cauchy"), "one of normal, student-t, laplace, or a CodePrior, not "),
        (lambda: CodePrior.of(3), "or a CodePrior, not 3"),
        (lambda: rolling(prior=["laplace"]), r"not \['laplace'\]"),
        (lambda: rolling(prior="t"), "not 't'"),
        (lambda: find("letters/rolling").change(["prior=t"]), "not 't'"),
        (lambda: StudentT(2), "dof must be above 2, so that codes have a variance, not 2"),
        (lambda: StudentT("3"), "dof must be a finite number, not '3'"),
        (lambda: prior_from({"kind": "cauchy"}), "knows no prior of kind 'cauchy'"),
    ],
)
def test_invalid_priors_are_refused(use, says):
    with pytest.raises(tc.BadInput, match=says) as refused:
        use()
    assert "\n" not in str(refused.value)


def small(seed, **settings):
    torch.manual_seed(seed)
    return tc.RollingVAE.mlp(FRAME, tc.Topography(2, (5,)), hidden=(8,), **settings)


@sparse
@pytest.mark.parametrize("motion", [Known(1), Unknown((-1, 1))], ids=repr)
def test_models_under_vmap_have_the_bounds_of_single_models(prior, motion):
    members = [small(seed, motion=motion, prior=prior) for seed in (0, 1)]
    assert by_architecture([*members, small(2, motion=motion)]) == [[0, 1], [2]]
    x = torch.rand(2, 3, 5, *FRAME)
    noise = [torch.randn(2, 3, 5, *shape) for shape in members[0].noise_shapes]
    together = MeanTerms(Stack(members, 5).model).mapped(x, *noise)
    for n, member in enumerate(members):
        alone = MeanTerms(member)(x[n], *(one[n] for one in noise))
        torch.testing.assert_close(together[n], alone)


@sparse
def test_a_model_trains_predicts_and_is_measured(prior, tmp_path):
    model, x = small(0, motion=Unknown((-1, 1)), keep=1, prior=prior), frames(20).float()
    run = tc.fit(model, x, epochs=2, batch=4, device="cpu", out=tmp_path)
    loaded = tc.load(tmp_path)
    assert loaded.prior == prior and torch.equal(loaded.encode(x), run.model.encode(x))
    assert math.isfinite(tc.evaluate(model, x)["log_px"])
    assert model.sample(3, 4).shape == (3, 4, *FRAME)


def test_a_user_defined_prior_needs_no_hash_to_train():
    models = [small(seed, prior=Unhashable()) for seed in (0, 1)]
    assert by_architecture(models) == [[0], [1]]
    run = tc.fit(models[0], frames(4).float(), epochs=1, device="cpu")
    assert math.isfinite(run.history[-1]["elbo"])
