"""Laws of the rolling VAE: its posterior, its bounds, and what it predicts."""

import math

import pytest
import torch
from torch import nn
from torch.distributions import Independent, MultivariateNormal, Normal

import topocaps as tc
from topocaps.latents.motion import Changing, Grouped, Known, Motion, Unknown
from topocaps.models import Likelihood
from topocaps.models.experts import product_of_experts, rolled_back, weighted_squares

DOUBLE = {"dtype": torch.float64}
FRAME = (1, 2, 4)
FORWARDS = Known(1)
GROUPED = Grouped((1, 1), (Known(0), Unknown((-1, 1))))
#: settings of ``rolling``
MODELS = {
    "known": dict(motion=Known(1)),
    "fractional": dict(motion=Known(0.6)),
    "direction": dict(motion=Unknown((-1, 1))),
    "axes": dict(motion=Unknown((1, 2), axes=(0, 1)), shape=(3, 3)),
    "grouped": dict(motion=GROUPED),
    "narrowed": dict(motion=Unknown((-1, -0.4, 0.3, 2)), keep=2),
    "one kept": dict(motion=GROUPED, keep=1),
    "changing": dict(motion=Changing((-1, 1), frames=(1, 3))),
    "open ends": dict(motion=Unknown((-1, 2)), cyclic=False),
    "Student-t": dict(prior="student-t"),
    "corrected": dict(motion=Known(-1), correction=4),
    "corrected axes": dict(motion=Unknown((1, 2), axes=(0, 1)), shape=(3, 4), correction=3),
    "corrected groups": dict(motion=GROUPED, keep=1, correction=2),
    "corrected open ends": dict(motion=Unknown((-1, 2)), cyclic=False, correction=4),
    "Laplace": dict(motion=Unknown((-1, 1)), prior="laplace"),
}
every_model = pytest.mark.parametrize("kind", MODELS.values(), ids=MODELS.keys())


def rolling(motion=FORWARDS, shape=(5,), capsules=2, cyclic=True, **settings):
    torch.manual_seed(0)
    topography = tc.Topography(capsules, shape, cyclic=cyclic)
    model = tc.RollingVAE.mlp(FRAME, topography, hidden=(8,), motion=motion, **settings).double()
    with torch.no_grad():  # so that posteriors and frames differ
        for parameter in model.parameters():
            parameter.mul_(3.0)
        if model.correction is not None:  # which starts as the identity
            for network in model.correction.networks:
                network[-1].weight.normal_(0, 0.1)
    return model


def frames(batch=2, time=5):
    return torch.rand(batch, time, *FRAME, generator=torch.Generator().manual_seed(1), **DOUBLE)


def repeated(x, times):
    return x.repeat(times, *(1,) * (x.ndim - 1))


def some(batch, *visible, time=5):
    mask = torch.zeros(batch, time, dtype=torch.bool)
    mask[:, list(visible)] = True
    return mask


def mean_and_error(values):
    return values.mean(0), values.std(0) / math.sqrt(len(values))


# --- the posterior ------------------------------------------------------------------------------


def test_rolling_the_data_rolls_the_code():
    model, x = rolling(), frames()  # 5 frames, 5 sites: sequences come round
    q, later = model.posterior(x), model.posterior(x.roll(-1, 1))
    torch.testing.assert_close(later.mean, q.mean.roll(1, -1))
    torch.testing.assert_close(later.stddev, q.stddev.roll(1, -1))
    t = model.encode(x)
    torch.testing.assert_close(model.encode(x.roll(-1, 1)), t.roll(-1, 1))
    assert tc.metrics.equivariance_error(t.float()) < 1e-6


@pytest.mark.parametrize("motion", [Known(1), Known(-2), Known(1, axis=1)])
def test_later_frames_of_the_same_content_roll_the_code_back(motion):
    model = rolling(motion, (5, 3))
    x = frames(time=7)
    early = torch.cat([x[:, :3], x[:, :4]], 1)
    late = torch.cat([x[:, :2], x[:, :3], x[:, :2]], 1)
    q, later = (
        model.posterior(early, some(2, 0, 1, 2, time=7)),
        model.posterior(late, some(2, 2, 3, 4, time=7)),
    )
    torch.testing.assert_close(later.mean, model.motions.roll(q.mean, 0, -2))
    torch.testing.assert_close(later.stddev, model.motions.roll(q.stddev, 0, -2))


@every_model
def test_the_order_of_visible_frames_does_not_matter(kind):
    model, x = rolling(**kind), frames()
    lag = torch.tensor([3, 0, 4])
    found = model.posteriors(x, some(2, 0, 3, 4))
    shifts, q = model.motions.shifts(found.candidate[..., None], lag), found.q
    every = torch.ones(2, len(lag), dtype=torch.bool)
    experts = rolled_back(model.z_given_x(x[:, lag]), model.motions.paths, shifts, every)
    shuffled = product_of_experts(*(one.sum(2) for one in experts))
    if model.correction is not None:
        shuffled = model.correction(shuffled, weighted_squares(*experts).sum(2))
    torch.testing.assert_close(shuffled.mean, q.mean)
    torch.testing.assert_close(shuffled.stddev, q.stddev)


@every_model
def test_missing_frames_do_not_affect_the_posterior(kind):
    model, x, mask = rolling(**kind), frames(), some(2, 1, 2, 4)
    broken = torch.where(mask[..., None, None, None], x, torch.nan)
    torch.testing.assert_close(model.encode(x, mask=mask), model.encode(broken, mask=mask))
    torch.manual_seed(0)
    whole = model(x, mask)
    torch.manual_seed(0)
    found = model(broken, mask)
    torch.testing.assert_close(found.elbo, whole.elbo)
    assert (found.elbo[~mask] == 0).all() and found.elbo.isfinite().all()


@every_model
def test_more_visible_frames_make_the_posterior_narrower(kind):
    model, x = rolling(**kind), frames()
    model.correction = None  # it may widen what experts disagree about
    model.keep = None  # so that both have the same candidates
    few, more = (model.posteriors(x, some(2, *seen)).q for seen in ([1], [0, 1, 4]))
    if not model.topography.cyclic:  # frame 4 says nothing of the sites that it has lost
        assert (more.stddev <= few.stddev).all() and (few.stddev <= 1).all()
        assert (more.stddev < few.stddev).any() and (few.stddev < 1).any()
        return
    assert (more.stddev < few.stddev).all() and (few.stddev < 1).all()


@every_model
def test_streaming_is_encoding_all_frames_so_far(kind):
    model, x = rolling(**kind), frames()
    stream = model.stream()
    with pytest.raises(tc.BadInput, match="the stream has no frames yet"):
        stream.predict()
    for n in range(5):
        t = stream(x[:, n])
        so_far = x[:, : n + 1]
        torch.testing.assert_close(t, model.encode(so_far)[:, n])
        torch.testing.assert_close(stream.motion().probs, model.motion(so_far).probs)
        ahead = model.predict(so_far, lags=[n + 1, n + 2]).mean
        torch.testing.assert_close(stream.predict(2).mean, ahead)
    with pytest.raises(tc.BadInput, match="a stream must keep its batch size"):
        stream(x[:1, 0])


def test_a_stream_needs_all_frames_if_keep_grows():
    """With keep=1 it has not kept them; a posterior over motions of the last one would be wrong."""
    model, x = rolling(motion=Unknown((-1, 1)), keep=1), frames()
    stream = model.stream()
    stream(x[:, 0]), stream(x[:, 1])
    model.keep = None
    with pytest.raises(tc.BadInput, match="begin a new stream"):
        stream.motion()


# --- the bound ----------------------------------------------------------------------------------


class Linear(nn.Module):
    """Frames A t + noise of unit variance, where the columns of A are orthogonal; and the posterior
    of t given a frame and a flat prior: together with the prior it is exact."""

    likelihood, frame_shape = Likelihood.GAUSSIAN, (1, 1, 8)

    def __init__(self, capsules, sites):
        super().__init__()
        a, _ = torch.linalg.qr(torch.randn(8, capsules * sites, **DOUBLE))
        self.a = nn.Parameter(a * torch.linspace(0.4, 2.0, capsules * sites))
        self.shape = capsules, sites

    def forward(self, t):
        mean = (t.flatten(-2) @ self.a.T).unflatten(-1, (1, 1, 8))
        return Independent(Normal(mean, 1.0), 3)

    def expert(self, x):
        scale = self.a.square().sum(0)
        mean = x.flatten(-3) @ self.a / scale
        return Normal(mean.unflatten(-1, self.shape), scale.rsqrt().reshape(self.shape))

    def log_px(self, x, moves, candidate):
        """log p(x|v) of every sequence, from the covariance of all its pixels."""
        unit = torch.eye(math.prod(self.shape), **DOUBLE).unflatten(-1, self.shape)
        rolled = moves.roll(unit[:, None], candidate, torch.arange(x.shape[1]))
        a = (rolled.flatten(-2) @ self.a.T).flatten(1).T  # pixels of all frames, latents
        covariance = a @ a.T + torch.eye(len(a), **DOUBLE)
        return MultivariateNormal(torch.zeros(len(a), **DOUBLE), covariance).log_prob(x.flatten(1))


def linear(motion, cyclic=True, **settings):
    class Encoder(nn.Module):
        def forward(self, x):
            return decoder.expert(x)

    torch.manual_seed(0)
    decoder = Linear(2, 3)
    return tc.RollingVAE(
        Encoder(), decoder, tc.Topography(2, (3,), cyclic=cyclic), motion, **settings
    )


LINEAR = [
    (Known(1), True),
    (Unknown((-1, 1)), True),
    (Unknown((0, 1, -1)), True),
    (GROUPED, True),
    (Known(1), False),
    (Unknown((-2, 0, 1)), False),
    (GROUPED, False),
    (Changing((0, 1), frames=(1, 2)), True),
    (Grouped((1, 1), (Known(1), Changing((-1, 1), frames=2))), False),
]
every_linear = pytest.mark.parametrize("motion, cyclic", LINEAR)


@every_linear
def test_with_the_exact_posterior_the_bound_is_the_evidence(motion, cyclic):
    model = linear(motion, cyclic)
    x = 2 * torch.randn(3, 4, 1, 1, 8, **DOUBLE)
    moves = model.motions
    each = torch.stack([model.x_given_t.log_px(x, moves, k) for k in range(len(moves))])
    exact = (each + moves.log_prior[:, None].double()).logsumexp(0)
    torch.testing.assert_close(model.log_px(x, samples=1), exact / 4)
    if len(moves) > 1:  # the weights of the motions are sampled, and all samples say the same
        torch.testing.assert_close(model(x).elbo.sum(1), exact)
        return
    mean, error = mean_and_error(
        model(repeated(x, 400)).elbo.sum(1).detach().unflatten(0, (400, 3))
    )
    assert ((mean - exact).abs() < 4 * error).all()


@every_linear
def test_predictions_are_weighted_by_the_posterior(motion, cyclic):
    """With the exact posterior, log_prob approaches the log of a ratio of two evidences."""
    model = linear(motion, cyclic)
    x, mask = torch.randn(2, 3, 1, 1, 8, **DOUBLE), some(2, 0, 1, time=3)
    moves, rows = model.motions, range(len(model.motions))
    each = [model.x_given_t.log_px(x, moves, k) for k in rows]
    seen = [model.x_given_t.log_px(x[:, :2], moves, k) for k in rows]
    motions = model.motion(x, mask).probs.log().mT
    # p(v|x) of the model is not exact: it decodes the mean of t. It is what predictions use.
    exact = (torch.stack(each) - torch.stack(seen) + motions).logsumexp(0)
    found = model.predict(x, mask, lags=[2], samples=4000).log_prob(x[:, 2:])
    assert ((found - exact).abs() < 0.25).all()


def brute_force_log_px(model, x):
    """log p(x) of sequences, by a fine grid over the three sites of one capsule."""
    points = torch.linspace(-5, 5, 41, **DOUBLE)
    t = torch.cartesian_prod(points, points, points)[:, None]  # codes capsule site
    log_prior = Normal(0.0, 1.0).log_prob(t).sum((1, 2)) + 3 * math.log(10 / 40)
    candidates = []
    for k in range(len(model.motions)):
        decoded = model.x_given_t(model.at(t, k, range(x.shape[1])))
        log_px = torch.stack([decoded.log_prob(one).sum(1) for one in x])
        candidates.append((log_px + log_prior).logsumexp(1) + model.motions.log_prior[k])
    return torch.stack(candidates).logsumexp(0)


@pytest.mark.parametrize(
    "kind",
    [
        dict(motion=Known(1)),
        dict(motion=Unknown((-1, 1))),
        dict(motion=Unknown((0, 1, -1))),
        dict(motion=Unknown((0, 1, -1)), keep=2),
        dict(motion=Unknown((-1, 1)), cyclic=False),
    ],
)
def test_the_bound_is_below_the_evidence_whatever_is_visible(kind):
    model, x = rolling(**kind, shape=(3,), capsules=1), frames(time=4)
    with torch.no_grad():
        exact = brute_force_log_px(model, x)
        assert (exact > model.log_px(x, 1000) * 4 - 0.5).all()
        for visible in ([0], [3], [1, 2], [0, 1, 2, 3]):
            noise = torch.randn(1000, 1, 3, **DOUBLE)
            found = model.evidence_from(repeated(x, 500), some(1000, *visible, time=4), noise)
            mean, error = mean_and_error(found.elbo.sum(1).unflatten(0, (500, 2)))
            assert (mean < exact + 3 * error).all()


@pytest.mark.parametrize("motion", [Known(1), Unknown((-1, 1))])
def test_more_samples_do_not_lower_the_bound(motion):
    model, x = rolling(motion, (3,), capsules=1), frames(time=4)
    with torch.no_grad():
        exact = brute_force_log_px(model, x) / 4
        bounds = {
            k: mean_and_error(model.log_px(repeated(x, 300), k).unflatten(0, (300, 2)))
            for k in (1, 4, 16)
        }
    for fewer, more in ((1, 4), (4, 16)):
        (low, low_error), (high, high_error) = bounds[fewer], bounds[more]
        assert (high - low > -3 * (low_error.square() + high_error.square()).sqrt()).all()
    assert (bounds[16][0] > bounds[1][0]).all()
    assert (bounds[16][0] < exact + 3 * bounds[16][1]).all()


@pytest.mark.parametrize(
    "motion", [Unknown((-1, 1)), Unknown((1, 2), axes=(0, 1)), GROUPED, Changing((-1, 1), 2)]
)
def test_summing_motions_out_is_enumeration(motion):
    """Every candidate by itself, with sampled weights p(x, t) / q(t)."""
    model, x = rolling(motion, (5, 3)), frames()
    noise, mask = torch.randn(2, 2, 5, 3, **DOUBLE), some(2, 0, 2, 3)
    found = model.evidence_from(x, mask, noise)
    weights, log_px = [], []
    for velocities in model.motions.velocities:
        alone = rolling(Fixed(velocities), (5, 3))
        q = alone.posteriors(x, mask).q
        t = q.mean + q.stddev * noise
        frame_of = alone.x_given_t(alone.at(t[0], 0, range(5)))
        log_px.append(frame_of.log_prob(x))
        ratio = Normal(0.0, 1.0).log_prob(t[0]) - Normal(q.mean[0], q.stddev[0]).log_prob(t[0])
        weights.append(log_px[-1].sum(1) + ratio.sum((1, 2, 3)) - math.log(len(model.motions)))
    weights, log_px = torch.stack(weights), torch.stack(log_px)
    torch.testing.assert_close(found.elbo.sum(1), weights.logsumexp(0))
    expected = (weights.softmax(0)[..., None] * log_px).sum(0)
    torch.testing.assert_close(found.log_px_given_t, expected)


class Fixed(Motion):
    """One candidate, whose velocities are given."""

    def __init__(self, velocities):
        self.velocities = velocities.double()

    def candidates(self, capsules, axes):
        return self.velocities[None]

    def log_prior(self):
        return torch.zeros(1, **DOUBLE)


@every_model
def test_the_kl_is_divided_equally_among_present_frames(kind):
    model, x, mask = rolling(**kind), frames(), some(2, 0, 2, 3)
    found = model(x, mask)
    assert (found.kl[~mask] == 0).all()
    shares = found.kl[mask].unflatten(0, (2, 3))
    torch.testing.assert_close(shares, shares[:, :1].expand(-1, 3))
    torch.testing.assert_close(found.elbo, found.log_px_given_t - found.kl)


@every_model
def test_gradients_of_the_bound(kind):
    model, x, mask = rolling(**kind), frames(1, 3), some(1, 0, 2, time=3)
    noise = torch.randn(1, *model.noise_shapes[0], **DOUBLE)
    names, values = zip(*model.named_parameters(prefix="model"), strict=True)

    def bound(*values):
        given = dict(zip(names, values, strict=True))
        return torch.func.functional_call(Bound(model), given, (x, mask, noise))

    values = [value.detach().clone().requires_grad_() for value in values]
    assert torch.autograd.gradcheck(bound, values, fast_mode=True)


class Bound(nn.Module):
    def __init__(self, model):
        super().__init__()
        self.model = model

    def forward(self, x, visible, noise):
        return self.model.evidence_from(x, visible, noise).objective.sum()
