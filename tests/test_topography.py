"""Laws of the matrix W, over every topography."""

import itertools
import math

import numpy as np
import pytest
import torch
from conftest import every_topography, every_topography_of_the_papers

from topocaps import BadInput, Topography
from topocaps.latents.rolling import roll_each

pytestmark = pytest.mark.usefixtures("pooling")


def latents(topography, frames, batch=3, dtype=torch.float64):
    return torch.rand(batch, frames, topography.capsules, *topography.u_shape, dtype=dtype)


def dense(topography, frames, axis=None):
    return topography.matrix(frames, axis).double()


def every_axis(topography):
    return {None, *topography.axes}


@every_topography
def test_structured_pool_is_the_dense_matrix(topography, frames):
    u2 = latents(topography, frames)
    for axis in every_axis(topography):
        expected = u2.flatten(1) @ dense(topography, frames, axis).T
        torch.testing.assert_close(
            topography.pool(u2, axis).flatten(1), expected, rtol=1e-6, atol=1e-6
        )


@every_topography
def test_gradients_of_pool_are_those_of_the_dense_matrix_to_second_order(topography, frames):
    near = dict(rtol=1e-6, atol=1e-6)
    for axis in every_axis(topography):
        u2 = latents(topography, frames).requires_grad_()
        pooled = topography.pool(u2, axis)
        weight = torch.rand_like(pooled).requires_grad_()
        (grad,) = torch.autograd.grad((pooled * weight).sum(), u2, create_graph=True)
        expected = weight.flatten(1) @ dense(topography, frames, axis)
        torch.testing.assert_close(grad.flatten(1), expected, **near)
        direction = torch.rand_like(u2)
        (back,) = torch.autograd.grad((grad * direction).sum(), weight)
        torch.testing.assert_close(back, topography.pool(direction, axis), **near)


@every_topography
def test_matrix_follows_the_definition_term_by_term(topography, frames):
    """energy[l, i] = sum over window d and reach k of u2[l + d, i + velocity d + k], where what is
    between two sites is interpolated, time that does not close is held at its ends, and an open
    capsule has sites of its own beyond them."""
    u2 = latents(topography, frames, batch=1)[0]
    pooled = topography.pool(u2[None])[0]
    first = 1 - topography.window if topography.causal else -(topography.window // 2)
    places = [
        topography.velocity * d + o
        for d in range(first, first + topography.window)
        for o in (-(topography.reach[0] // 2), (topography.reach[0] - 1) // 2)
    ]
    before = 0 if topography.cyclic else max(0, -math.floor(min(places) + 1e-9))
    for frame, c, *i in ([torch.randint(n, ()).item() for n in pooled.shape] for _ in range(20)):
        expected = 0.0
        for d in range(first, first + topography.window):
            at = frame + d
            closed = topography.cyclic and not topography.causal
            terms = u2[at % frames if closed else min(max(at, 0), frames - 1), c]
            for axis, (k, n) in enumerate(zip(topography.reach, topography.shape, strict=True)):
                drift = topography.velocity * d if axis == 0 else 0
                below, part = math.floor(drift + 1e-9), drift - math.floor(drift + 1e-9)
                summed = 0.0
                for o in range(-(k // 2), (k + 1) // 2):
                    for site, share in ((below, 1 - part), (below + 1, part)):
                        if share > 1e-9:
                            place = i[axis] + site + o
                            place = place % n if topography.cyclic else place + before
                            summed = summed + share * terms.select(0, place)
                terms = summed
            expected += terms
        torch.testing.assert_close(pooled[(frame, c, *i)], expected, rtol=1e-6, atol=1e-6)


def test_without_corners_the_ends_of_the_window_lose_a_site(monkeypatch):
    """The released code's W: a (window, window) band, which K = 3 leaves at two corners."""
    monkeypatch.setattr("topocaps.latents.topography.SMALL", 512)
    cut, full = (Topography(2, (6,), (3,), window=5, corners=c) for c in (False, True))
    assert (cut.degrees_of_freedom, full.degrees_of_freedom) == (13, 15)
    u2 = latents(cut, 6)
    missing = u2.roll((2, 3), (1, 3)) + u2.roll((-2, -3), (1, 3))  # frame ∓2, site ∓2 ∓1
    torch.testing.assert_close(cut.pool(u2) + missing, full.pool(u2))
    assert Topography(1, (18,), (3,), window=18, corners=False).degrees_of_freedom == 52
    with pytest.raises(BadInput, match="at most 512 sites times frames"):
        Topography(1, (200,), (3,), window=5, corners=False).pool(torch.rand(1, 20, 1, 200))
    for other in (dict(velocity=0), dict(reach=(6,))):
        with pytest.raises(BadInput, match="corners=False needs one cyclic axis"):
            Topography(**{**dict(capsules=1, shape=(6,), window=5, corners=False), **other})


@every_topography_of_the_papers
def test_every_latent_sums_as_many_squares_as_it_has_degrees_of_freedom(topography, frames):
    every = [topography.matrix(frames, axis) for axis in topography.axes]
    squares = [int(w[0].sum()) for w in every]
    assert min(squares) == topography.degrees_of_freedom
    for w, nu in zip(every, squares, strict=True):
        assert set(w.unique().tolist()) <= {0.0, 1.0}
        assert (w.sum(0) == nu).all() and (w.sum(1) == nu).all()


@every_topography
def test_no_energy_sums_less_than_another(topography, frames):
    least = []
    for axis in topography.axes:
        w = dense(topography, frames, axis)
        assert (w >= 0).all()
        torch.testing.assert_close(w.sum(1), w[0].sum().expand(len(w)))
        least.append(w[0].sum().item())
    assert min(least) == pytest.approx(topography.degrees_of_freedom)


def test_with_two_axes_an_energy_sums_squares_along_one():
    assert Topography(1, (4, 5), (3, 3), window=3).degrees_of_freedom == 9
    assert Topography(1, (4, 5), (3, 3), window=3, velocity=0).degrees_of_freedom == 27


@every_topography
@pytest.mark.parametrize("axis", [0, -1])
def test_rolling_the_inputs_rolls_the_energies(topography, frames, axis):
    """Everywhere in a closed capsule, and away from the ends of an open one."""
    u2 = latents(topography, frames)
    for which in every_axis(topography):
        pooled = topography.pool(u2, which)
        rolled = topography.pool(u2.roll(2, axis if axis < 0 else 3), which)
        expected = pooled.roll(2, axis if axis < 0 else 3)
        inside = slice(None) if topography.cyclic else slice(2, None)
        torch.testing.assert_close(rolled[:, :, :, inside], expected[:, :, :, inside])


@every_topography
def test_delaying_the_input_delays_the_energies(topography, frames):
    """Everywhere in closed time, and where no window reaches an end of time that has ends."""
    u2 = latents(topography, frames)
    expected = topography.pool(u2).roll(1, 1)
    waited = topography.pool(u2.roll(1, 1))
    if topography.cyclic and not topography.causal:
        torch.testing.assert_close(waited, expected)
        return
    past = topography.window - 1 if topography.causal else topography.window // 2
    future = 0 if topography.causal else (topography.window - 1) // 2
    inside = slice(past + 1, frames - future)
    torch.testing.assert_close(waited[:, inside], expected[:, inside])


@every_topography
def test_energies_of_causal_topographies_depend_on_the_past_only(topography, frames):
    u2 = latents(topography, frames)
    changed = u2.clone()
    changed[:, 2:] += 1
    same = (topography.pool(changed) == topography.pool(u2))[:, :2].all()
    assert same or not topography.causal


def test_an_open_capsule_that_rolls_loses_its_end():
    open_ended = Topography(1, (4,), cyclic=False)
    t = torch.tensor([[[[1.0, 2.0, 3.0, 4.0]]]])
    assert open_ended.roll(t, 1).flatten().tolist() == [0, 1, 2, 3]
    assert open_ended.roll(t, -2, fill=9.0).flatten().tolist() == [3, 4, 9, 9]
    assert open_ended.roll(t, 0.5).flatten().tolist() == [0.5, 1.5, 2.5, 3.5]
    with pytest.raises(BadInput, match="fourier=True needs cyclic capsules"):
        open_ended.roll(t, 0.5, fourier=True)


def test_a_roll_by_fourier_phases_is_exact_for_waves_and_undone_by_its_opposite():
    topography = Topography(2, (9,))
    site = torch.arange(9.0) * 2 * math.pi / 9
    for steps in (0.5, -1.3, 4.0):
        wave = (2 * site).cos().expand(1, 1, 2, 9)
        expected = (2 * (site - steps * 2 * math.pi / 9)).cos().expand(1, 1, 2, 9)
        torch.testing.assert_close(topography.roll(wave, steps, fourier=True), expected)
    t = torch.rand(1, 1, 2, 9)
    back = topography.roll(topography.roll(t, 0.3, fourier=True), -0.3, fourier=True)
    torch.testing.assert_close(back, t)
    torus = Topography(1, (4, 5))
    t = torch.rand(2, 3, 1, 4, 5)
    for axis in (0, 1):
        expected = torus.roll(t, 2, axis)
        found = torus.roll(torus.roll(t, 1.25, axis, fourier=True), 0.75, axis, fourier=True)
        if axis == 1:  # an odd number of sites has no wave that is its own opposite
            torch.testing.assert_close(found, expected)


def test_energies_with_a_window_of_the_whole_orbit_move_exactly_with_it():
    """Window = frames = sites: the energy of frame l + n is that of frame l, rolled n sites."""
    topography = Topography(2, (6,), (3,), window=6)
    energy = topography.pool(latents(topography, 6))
    for lag in range(6):
        torch.testing.assert_close(topography.roll(energy[:, 0], lag), energy[:, lag])


def test_different_capsules_share_no_squares():
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
    assert two.roll(t, 1, axis=1).flatten().tolist() == [2, 0, 1, 5, 3, 4]


def test_each_capsule_rolls_by_its_own_steps():
    for topography in (Topography(3, (5,)), Topography(3, (5,), cyclic=False)):
        t, steps = torch.rand(2, 4, 3, 5), torch.tensor([1.0, -2.0, 0.5])
        found = topography.roll(t, steps, fill=7.0)
        for n in range(3):
            expected = topography.roll(t[:, :, n], steps[n].item(), fill=7.0)
            torch.testing.assert_close(found[:, :, n], expected)


@pytest.mark.parametrize("sites", [5, 6])
@pytest.mark.parametrize("cyclic, fourier", [(True, False), (True, True), (False, False)])
def test_slices_roll_together_as_each_does_alone(sites, cyclic, fourier):
    topography = Topography(1, (sites,), cyclic=cyclic)
    values = torch.rand(4, 3, sites)
    shifts = torch.tensor([[0.0, 1.0, -2.0], [0.5, -0.25, 3.75], [-7.5, 8.0, 0.1], [1, 4.5, -9]])
    settings = dict(fourier=fourier, cyclic=cyclic)
    found = roll_each(values, shifts[..., None], -1, fractional=True, **settings)
    for row, column in itertools.product(range(4), range(3)):
        alone, steps = values[row, column, None], shifts[row, column].item()
        expected = topography.roll(alone, steps, fourier=fourier)
        torch.testing.assert_close(found[row, column, None], expected)
    whole = roll_each(values, shifts.round()[..., None], -1, fractional=False, **settings)
    again = roll_each(values, shifts.round()[..., None], -1, fractional=True, **settings)
    assert torch.equal(whole, again)


@pytest.mark.parametrize("steps", ["a", None, math.nan, 1j, True, torch.rand(2)])
def test_rolls_by_invalid_steps_are_refused(steps):
    with pytest.raises(BadInput, match="steps must be a finite number of sites"):
        Topography(3, (5,)).roll(torch.rand(3, 5), steps)


def test_rolls_of_another_shape_are_refused():
    for topography, t in ((Topography(1, (4,)), torch.rand(1, 5)), (Topography(1, (2, 3)), 3)):
        t = torch.rand(t) if isinstance(t, int) else t
        with pytest.raises(BadInput, match="roll takes"):
            topography.roll(t, 1)


def test_a_velocity_may_be_any_number_but_not_a_boolean():
    for half in (np.float32(0.5), np.float64(0.5), torch.tensor(0.5)):
        velocity = Topography(2, (5,), velocity=half).velocity
        assert velocity == 0.5 and type(velocity) is float
    for wrong in (True, np.bool_(True), None, torch.rand(2)):
        with pytest.raises(BadInput, match="velocity must be a number"):
            Topography(2, (5,), velocity=wrong)


def test_every_site_of_u_is_part_of_an_energy():
    """A velocity that is a whole number but for rounding asks for no further site."""
    for velocity in (1e-10, 0.1 * 10, 1 - 1e-11, -1e-10, 1 / 3, 0.1):
        for window in (1, 3, 7):
            topography = Topography(1, (5,), (2,), window, velocity, cyclic=False)
            counts = topography.matrix(window).sum(0).reshape(window, -1).sum(0)
            assert (counts > 0).all()


def test_whole_numbers_of_any_type_are_accepted():
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
        (dict(capsules=2, shape=(5,), velocity=math.nan), "velocity"),
        (dict(capsules=2, shape=(5,), velocity="fast"), "velocity"),
        (dict(capsules=2, shape=(5, 5), cyclic=False), "one axis"),
        (dict(capsules=2, shape=(5,), causal=1), "causal"),
        (dict(capsules=2, shape=(5,), window=3, causal=True, corners=False), "corners"),
        (dict(capsules=2, shape=(5,), window=3, velocity=0.5, corners=False), "corners"),
    ],
)
def test_invalid_settings_are_refused(settings, says):
    with pytest.raises(BadInput, match=says):
        Topography(**settings)


def test_sequences_and_latents_of_invalid_shapes_are_refused():
    topography = Topography(2, (5,), window=4)
    with pytest.raises(BadInput, match="window 4 is longer than the sequence of 3"):
        topography.pool(torch.rand(1, 3, 2, 5))
    with pytest.raises(BadInput, match="window 4"):
        topography.matrix(3)
    with pytest.raises(BadInput, match="last axes"):
        topography.pool(torch.rand(1, 4, 2, 6))
    with pytest.raises(BadInput, match="axis 1"):
        topography.roll(torch.rand(1, 4, 2, 5), 1, axis=1)
