"""Laws of the matrix W, over every topography."""

import numpy as np
import pytest
import torch
from conftest import every_topography

from topocaps import BadInput, Topography

pytestmark = pytest.mark.usefixtures("pooling")


def latents(topography, frames, batch=3, dtype=torch.float64):
    return torch.rand(batch, frames, topography.capsules, *topography.shape, dtype=dtype)


def dense(topography, frames):
    return topography.matrix(frames).double()


@every_topography
def test_structured_pool_is_the_dense_matrix(topography, frames):
    u2 = latents(topography, frames)
    expected = u2.flatten(1) @ dense(topography, frames).T
    torch.testing.assert_close(topography.pool(u2).flatten(1), expected)


@every_topography
def test_and_so_is_its_gradient_twice(topography, frames):
    u2 = latents(topography, frames).requires_grad_()
    weight = torch.rand_like(u2).requires_grad_()
    (grad,) = torch.autograd.grad((topography.pool(u2) * weight).sum(), u2, create_graph=True)
    expected = weight.flatten(1) @ dense(topography, frames)
    torch.testing.assert_close(grad.flatten(1), expected)
    direction = torch.rand_like(u2)
    (back,) = torch.autograd.grad((grad * direction).sum(), weight)
    torch.testing.assert_close(back, topography.pool(direction))


@every_topography
def test_the_definition_term_by_term(topography, frames):
    """energy[l, i] = sum over window d and reach k of u2[l + d, i + velocity d + k]."""
    u2 = latents(topography, frames, batch=1)[0]
    pooled = topography.pool(u2[None])[0]
    frame, c, *i = (torch.randint(n, ()).item() for n in u2.shape)
    first = -(topography.window // 2)
    expected = 0.0
    for d in range(first, first + topography.window):
        terms = u2[(frame + d) % frames, c]
        for axis, (k, n) in enumerate(zip(topography.reach, topography.shape, strict=True)):
            drift = int(topography.velocity) * d if axis == 0 else 0
            sites = [(i[axis] + drift + o) % n for o in range(-(k // 2), (k + 1) // 2)]
            terms = terms.index_select(axis, torch.tensor(sites))
        expected += terms.sum()
    torch.testing.assert_close(pooled[(frame, c, *i)], expected)


def test_without_corners_the_ends_of_the_window_lose_a_site(monkeypatch):
    """The released code's W: a (window, window) band, which K = 3 leaves at two corners."""
    monkeypatch.setattr("topocaps.topography.SMALL", 512)
    cut, full = (Topography(2, (6,), (3,), window=5, corners=c) for c in (False, True))
    assert (cut.degrees_of_freedom, full.degrees_of_freedom) == (13, 15)
    u2 = latents(cut, 6)
    missing = u2.roll((2, 3), (1, 3)) + u2.roll((-2, -3), (1, 3))  # frame ∓2, site ∓2 ∓1
    torch.testing.assert_close(cut.pool(u2) + missing, full.pool(u2))
    assert Topography(1, (18,), (3,), window=18, corners=False).degrees_of_freedom == 52
    with pytest.raises(BadInput, match="small capsules only"):
        Topography(1, (200,), (3,), window=5, corners=False).pool(torch.rand(1, 20, 1, 200))
    for other in (dict(velocity=0), dict(reach=(6,))):
        with pytest.raises(BadInput, match="only a band has corners"):
            Topography(**{**dict(capsules=1, shape=(6,), window=5, corners=False), **other})


@every_topography
def test_every_latent_sums_as_many_squares_as_it_has_degrees_of_freedom(topography, frames):
    w = topography.matrix(frames)
    assert set(w.unique().tolist()) <= {0.0, 1.0}
    assert (w.sum(0) == topography.degrees_of_freedom).all()
    assert (w.sum(1) == topography.degrees_of_freedom).all()


@every_topography
@pytest.mark.parametrize("axis", [0, -1])
def test_rolling_the_inputs_rolls_the_energies(topography, frames, axis):
    u2 = latents(topography, frames)
    torch.testing.assert_close(
        topography.pool(topography.roll(u2, 2, axis)),
        topography.roll(topography.pool(u2), 2, axis),
    )


@every_topography
def test_waiting_a_frame_delays_the_energies(topography, frames):
    u2 = latents(topography, frames)
    torch.testing.assert_close(topography.pool(u2.roll(1, 1)), topography.pool(u2).roll(1, 1))


def test_a_tie_over_all_of_a_closed_orbit_moves_exactly_with_it():
    """Window = frames = sites: the energy of frame l + n is that of frame l, rolled n sites."""
    topography = Topography(2, (6,), (3,), window=6)
    energy = topography.pool(latents(topography, 6))
    for lag in range(6):
        torch.testing.assert_close(topography.roll(energy[:, 0], lag), energy[:, lag])


def test_capsules_share_nothing():
    topography = Topography(3, (5,), (3,), window=3)
    u2 = torch.zeros(1, 5, 3, 5)
    u2[:, :, 1] = 1
    pooled = topography.pool(u2)
    assert (pooled[:, :, 1] == 9).all() and not pooled[:, :, [0, 2]].any()


@every_topography
def test_float32_keeps_small_energies_beside_large_ones(topography, frames):
    """No running sum is ever subtracted: relative precision survives twenty orders of magnitude."""
    u2 = (10 ** (20 * latents(topography, frames, dtype=torch.float32) - 10)).float()
    pooled = topography.pool(u2)
    exact = u2.double().flatten(1) @ dense(topography, frames).T
    torch.testing.assert_close(pooled.double().flatten(1), exact, rtol=1e-5, atol=0)


def test_roll_moves_sites_on_and_interpolates_between_them():
    topography = Topography(1, (4,))
    t = torch.tensor([[[[1.0, 2.0, 3.0, 4.0]]]])
    assert topography.roll(t, 1).flatten().tolist() == [4, 1, 2, 3]
    assert topography.roll(t, -1).flatten().tolist() == [2, 3, 4, 1]
    assert topography.roll(t, 0.5).flatten().tolist() == [2.5, 1.5, 2.5, 3.5]
    two = Topography(1, (2, 3))
    t = torch.arange(6.0).reshape(1, 2, 3)
    assert topography.roll(two.roll(t, 1, axis=1), 0).flatten().tolist() == [2, 0, 1, 5, 3, 4]


def test_whole_numbers_of_any_kind_are_taken():
    found = Topography(np.int64(2), [np.int32(5)], np.int64(3), window=np.int64(3), velocity=1)
    assert found == Topography(2, (5,), (3,), window=3) and type(found.window) is int


@pytest.mark.parametrize(
    "settings, says",
    [
        (dict(capsules=0, shape=(5,)), "capsules"),
        (dict(capsules=2, shape=()), "shape"),
        (dict(capsules=2, shape=(5,), reach=(6,)), "reach 6"),
        (dict(capsules=2, shape=(5, 5), reach=(1, 1, 1)), "axes"),
        (dict(capsules=2, shape=(5,), window=0), "window"),
        (dict(capsules=2, shape=(5,), window=2.5), "window"),
        (dict(capsules=2, shape=(5,), velocity=0.5), "velocity"),
    ],
)
def test_what_makes_no_sense_is_refused_at_construction(settings, says):
    with pytest.raises(BadInput, match=says):
        Topography(**settings)


def test_sequences_and_latents_that_do_not_fit_are_refused():
    topography = Topography(2, (5,), window=4)
    with pytest.raises(BadInput, match="window 4 is longer than the sequence of 3"):
        topography.pool(torch.rand(1, 3, 2, 5))
    with pytest.raises(BadInput, match="window 4"):
        topography.matrix(3)
    with pytest.raises(BadInput, match="last axes"):
        topography.pool(torch.rand(1, 4, 2, 6))
    with pytest.raises(BadInput, match="axis 1"):
        topography.roll(torch.rand(1, 4, 2, 5), 1, axis=1)
