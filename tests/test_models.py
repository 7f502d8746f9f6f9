"""Topographic models: shapes, delays, and refused input."""

import pytest
import torch
from conftest import every_topography, every_topography_of_the_papers

from topocaps import VAE, BadInput, TopographicVAE, Topography
from topocaps.metrics import chance_equivariance_error, equivariance_error
from topocaps.models.base import build
from topocaps.models.sequence import spread_of_capsules

FRAME = (1, 4, 4)


def tvae(topography, **settings):
    return TopographicVAE.mlp(frame_shape=FRAME, topography=topography, hidden=(9,), **settings)


@every_topography
def test_shapes(topography, frames):
    model = tvae(topography)
    x = torch.rand(2, frames, *FRAME)
    latents = (2, frames, topography.capsules, *topography.shape)
    evidence = model(x)
    for term in ("elbo", "log_px_given_t", "kl_z", "kl_u"):
        assert getattr(evidence, term).shape == (2, frames)
    torch.testing.assert_close(
        evidence.elbo, evidence.log_px_given_t - evidence.kl_z - evidence.kl_u
    )
    assert (evidence.kl_z > 0).all() and (evidence.kl_u > 0).all()
    t = model.encode(x)
    assert t.shape == model.encode(x, sample=True).shape == latents
    decoded = model.decode(t)
    assert decoded.shape == x.shape and decoded.min() >= 0 and decoded.max() <= 1
    drawn = model.sample(3, frames=frames)
    assert drawn.shape == (3, frames, *FRAME) and drawn.min() >= 0 and drawn.max() <= 1
    assert (drawn[0] - drawn[1]).abs().max() > 1e-6


@every_topography_of_the_papers
def test_delaying_a_sequence_delays_its_latents(topography, frames):
    """Time is cyclic: starting a frame later delays t by a frame, nothing else."""
    model, x = tvae(topography), torch.rand(2, frames, *FRAME)
    torch.testing.assert_close(model.encode(x.roll(1, 1)), model.encode(x).roll(1, 1))


def test_sparsity_penalises_the_spread_of_capsules():
    topography = Topography(3, (5,), window=3)
    plain, sparse = (tvae(topography, sparsity=price) for price in (0.0, 2.0))
    sparse.load_state_dict(plain.state_dict())
    x = torch.rand(2, 5, *FRAME)
    torch.manual_seed(1)
    free = plain(x)
    torch.manual_seed(1)
    paid = sparse(x)
    torch.testing.assert_close(paid.elbo, free.elbo)  # it is no part of the bound
    torch.testing.assert_close(free.objective, free.elbo)
    assert (paid.objective < paid.elbo).all()
    level = torch.full((1, 3, 5), 7.0)
    one = level.clone()
    one[0, 1, 2] += 4
    assert spread_of_capsules(level, 2).item() < 0.01
    assert spread_of_capsules(one, 2).item() == pytest.approx(4 * (4 / 5) ** 0.5, abs=0.01)
    assert build(sparse.config).sparsity == 2.0


def test_t_depends_on_the_frames_of_its_window_and_no_others():
    model = tvae(Topography(2, (7,), window=3))
    x = torch.rand(1, 7, *FRAME)
    t0 = model.encode(x)[0, 0]
    for frame in range(7):
        changed = x.clone()
        changed[:, frame] = 1 - changed[:, frame]
        same = torch.equal(model.encode(changed)[0, 0], t0)
        assert same == (frame not in (6, 0, 1))


def test_encode_uses_the_mean_of_u_squared():
    """So that a drawn and an undrawn t are of one size; the bare mean of u would not do."""
    model = tvae(Topography(3, (5,), (3,), window=3))
    x = torch.rand(64, 5, *FRAME)
    drawn = model.encode(x, sample=True).median()
    assert model.encode(x).median().item() == pytest.approx(drawn.item(), rel=0.2)


def test_an_untrained_vae_has_the_equivariance_error_of_chance():
    topography = Topography(18, (18,))
    chance = chance_equivariance_error(topography, 18)
    assert chance == pytest.approx(13272, rel=1e-3)
    vae = VAE.mlp(frame_shape=(3, 28, 28), topography=topography)
    assert sum(p.numel() for p in vae.z_given_x.parameters()) == 2352 * 972 + 972 + 972 * 648 + (
        648 + 648 * 648 + 648
    )
    t = vae.encode(torch.rand(16, 18, 3, 28, 28), sample=True)
    assert equivariance_error(t) == pytest.approx(13272, rel=0.01)


def test_mu_is_learned_from_its_initial_value():
    model = tvae(Topography(2, (5,), window=3), mu=-30.0)
    assert model.mu.item() == -30
    model(torch.rand(2, 5, *FRAME)).elbo.mean().backward()
    assert model.mu.grad.abs() > 0


def test_centring_subtracts_the_mean_of_t_and_changes_nothing_else():
    topography = Topography(2, (5,), (3,), window=5)
    model = tvae(topography, centred=True)
    t = model.prior(5).sample((2000,))
    assert model.x_given_t.centre.item() == pytest.approx(t.mean().item(), rel=0.02)
    torch.manual_seed(3)
    plain = tvae(topography)
    torch.manual_seed(3)
    model = tvae(topography, centred=True)
    with torch.no_grad():  # a bias undoes it
        first = plain.x_given_t.network[0]
        first.bias.sub_(first.weight.sum(1) * model.x_given_t.centre)
    torch.testing.assert_close(plain.decode(t), model.decode(t), atol=1e-5, rtol=1e-4)
    with pytest.raises(BadInput, match="no mean"):
        tvae(Topography(2, (5,)), centred=True)


def test_gaussian_decoders_accept_any_finite_value():
    model = tvae(Topography(2, (5,), window=3), likelihood="gaussian")
    x = 5 * torch.randn(2, 5, *FRAME)
    expected = torch.distributions.Normal(model.decode(torch.zeros(2, 5, 2, 5)), 1.0)
    found = model.x_given_t(torch.zeros(2, 5, 2, 5)).log_prob(x)
    torch.testing.assert_close(found, expected.log_prob(x).flatten(2).sum(2))
    assert model(x).elbo.isfinite().all()


@pytest.mark.parametrize("likelihood", ["bernoulli", "gaussian"])
@pytest.mark.parametrize("norm", ["none", "weight", "projected"])
@pytest.mark.parametrize("kind", [TopographicVAE, VAE])
def test_a_model_is_rebuilt_from_its_settings(kind, norm, likelihood):
    torch.manual_seed(1)
    topography = Topography(2, (3, 4), (3, 1), window=2)
    model = kind.mlp(frame_shape=FRAME, topography=topography, norm=norm, likelihood=likelihood)
    torch.manual_seed(1)
    again = build(model.config)
    assert again.topography == topography and again.config == model.config
    for name, value in model.state_dict().items():
        assert again.state_dict()[name].equal(value)


@pytest.mark.parametrize(
    "x, says",
    [
        (torch.rand(2, 5, 1, 4, 5), "frame"),
        (torch.rand(2, 1, 4, 4), "frame"),
        (torch.rand(2, 2, *FRAME), "window 3 is longer than the sequence of 2"),
        (torch.rand(2, 5, *FRAME) + 0.5, r"\[0, 1\]"),
        (torch.rand(2, 5, *FRAME) - 0.5, r"\[0, 1\]"),
        (torch.full((2, 5, *FRAME), torch.nan), "NaN"),
        (torch.ones(2, 5, *FRAME, dtype=torch.long), "floating point"),
    ],
)
@pytest.mark.parametrize("call", ["forward", "encode"])
def test_invalid_frames_are_refused(x, says, call):
    with pytest.raises(BadInput, match=says):
        getattr(tvae(Topography(2, (5,), window=3)), call)(x)
