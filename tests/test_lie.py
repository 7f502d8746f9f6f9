"""Lie derivatives against closed forms, and the error of resampling alone.

For a cyclic wave of w radians per pixel, shifts by bilinear interpolation are known. The symmetric
difference is sin w. A shift by a pixels and back changes the wave by (1 - a) (2 - 2 cos w) of
itself per pixel. All tests are in float64, with a tolerance of 1e-9.
"""

import math

import pytest
import torch
from torch import nn
from torch.nn.functional import avg_pool2d, grid_sample

from topocaps import BadInput
from topocaps.data.geometry import turned
from topocaps.metrics.lie import Rotation, Scale, Translation, interpolation_floor, lie_error

AROUND = Translation(cyclic=True)
DOWN = Translation(-2, cyclic=True)
ACTIONS = [AROUND, DOWN, Translation(), Translation(-2, outside="border"), Rotation(), Scale()]
every_action = pytest.mark.parametrize("action", ACTIONS, ids=repr)


def wave(turns=2, size=16):
    """cos w n along a row, w = 2 pi turns / size: (1, 1, size, size)."""
    row = torch.cos(2 * math.pi * turns * torch.arange(size, dtype=torch.double) / size)
    return row.expand(1, 1, size, size), 2 * math.pi * turns / size


def bump(size=33, width=5.0, across=0.0, down=0.0):
    """A round hill, black at the edges."""
    place = torch.arange(size, dtype=torch.double) - (size - 1) / 2
    hill = (-((place - across).square() + (place - down)[:, None].square()) / (2 * width**2)).exp()
    return hill[None, None]


def noise(images=2, size=12):
    return torch.randn(images, 3, size, size, dtype=torch.double)


def circular():
    return nn.Conv2d(3, 4, 3, padding=1, padding_mode="circular").double()


@pytest.mark.parametrize("action", [AROUND, DOWN], ids=repr)
def test_circular_convolutions_have_no_error_under_circular_shifts(action):
    x, f = noise(), circular()
    found = lie_error(f, x, action)
    assert found.derivative.max() < 1e-12
    # warping the output back blurs it, which adds to the finite error
    torch.testing.assert_close(found.finite, lie_error(lambda y: y, f(x).detach(), action).floor)


def test_convolutions_with_padding_have_an_error():
    f = nn.Conv2d(3, 4, 3, padding=1).double()
    assert lie_error(f, noise(), AROUND).derivative.min() > 1e-3


@pytest.mark.parametrize("action", [AROUND, DOWN, Translation(), Translation(-2)], ids=repr)
def test_outputs_of_another_size_are_shifted_by_the_same_share(action):
    """Averages over blocks of 3 x 3 are nearly equivariant; their images are a third as large."""
    x = bump(36, width=8.0)
    found = lie_error(lambda y: avg_pool2d(y, 3), x, action)
    assert found.derivative < 0.02
    gone = lie_error(lambda y: avg_pool2d(y, 3).flatten(1), x, action)
    assert gone.derivative > 0.08  # it did move


@pytest.mark.parametrize("turns", [1, 3, 5])
@pytest.mark.parametrize("step", [0.05, 0.5])
def test_the_derivative_of_a_wave_is_known(turns, step):
    """f returns x as a vector, so the error is the derivative of the motion itself."""
    x, w = wave(turns)
    found = lie_error(lambda y: 3 * y.flatten(1), x, AROUND, step)
    assert found.derivative.item() == pytest.approx(abs(math.sin(w)), abs=1e-9)
    assert found.settings["output"] == "invariants"


def test_the_derivative_of_a_linear_map_is_its_commutator():
    """A shift by s pixels is 1 + s D + |s| K, with D the central difference and 2 K the second one.

    For f = A x, the symmetric difference is [A, D] + s (K A D - D A K): the Lie derivative, and the
    error that the kinks of bilinear interpolation add.
    """
    size = 8
    a = torch.randn(size, size, dtype=torch.double)
    on = torch.eye(size, dtype=torch.double).roll(1, 0)
    d, k = (on - on.T) / 2, (on + on.T) / 2 - torch.eye(size)
    x = torch.randn(5, 1, 1, size, dtype=torch.double)
    rows = x[:, 0, 0]
    for step in (0.1, 1e-4):
        found = lie_error(lambda y: y @ a.T, x, AROUND, step).derivative
        wanted = rows @ (a @ d - d @ a + step * (k @ a @ d - d @ a @ k)).T
        torch.testing.assert_close(
            found, wanted.norm(dim=1) / (rows @ a.T).norm(dim=1), atol=1e-9, rtol=0
        )


@pytest.mark.parametrize("step", [0.1, 0.25, 0.5])
def test_the_floor_of_a_wave_is_known(step):
    x, w = wave(3)
    wanted = (1 - step) * (2 - 2 * math.cos(w))
    found = lie_error(lambda y: y, x, AROUND, step)
    assert found.floor.item() == pytest.approx(wanted, abs=1e-9)
    assert found.finite.item() == pytest.approx(wanted, abs=1e-9)
    assert found.derivative.item() == pytest.approx(0, abs=1e-9)
    assert interpolation_floor(x, [step])[0, 0].item() == pytest.approx(step * wanted, abs=1e-9)


@every_action
def test_the_error_of_the_identity_is_the_floor(action):
    x = noise()
    found = lie_error(lambda y: y, x, action)
    assert (found.floor > 0.1).all()
    for same in (found.finite, found.resampled):
        torch.testing.assert_close(same, found.floor)
    scaled = lie_error(lambda y: -2 * y, 5 * x, action)
    torch.testing.assert_close(scaled.finite, found.floor)
    torch.testing.assert_close(scaled.floor, found.floor)
    torch.testing.assert_close(scaled.derivative, found.derivative)


@every_action
def test_smooth_images_have_a_lower_floor(action):
    rough, smooth = noise(1, 33)[:, :1], bump()
    floors = [lie_error(lambda y: y, x, action).floor.item() for x in (rough, smooth)]
    assert floors[1] < 0.15 * floors[0]


def test_a_round_hill_is_invariant_to_rotation_and_its_sum_to_shifts():
    """Up to interpolation; the same image beside the centre is not invariant."""
    vector = lie_error(lambda y: y.flatten(1), bump(), Rotation())
    aside = lie_error(lambda y: y.flatten(1), bump(across=6), Rotation())
    assert vector.derivative < 0.02 * aside.derivative
    total = lie_error(lambda y: y.sum((1, 2, 3))[:, None], bump(across=2), Translation())
    assert total.derivative < 1e-3
    grown = lie_error(lambda y: y.sum((1, 2, 3))[:, None], bump(), Scale())
    # areas grow by e^2 an amount of 1, which is 16.5 pixels at the rim
    assert grown.derivative.item() == pytest.approx(2 / 16.5, rel=0.01)


def test_rotation_turns_counter_clockwise_and_scale_grows_as_the_data_do():
    x = bump(21, across=4)
    for action, angle, scale in ((Rotation(), 0.3, 1.0), (Scale(), 0.0, math.exp(0.3))):
        grid = turned(21, 21, torch.tensor(angle), torch.tensor(scale))[None].double()
        torch.testing.assert_close(
            action(x, 0.3), grid_sample(x, grid, align_corners=False), atol=1e-5, rtol=0
        )
    wide = torch.zeros(1, 1, 11, 21, dtype=torch.double)
    wide[..., 5, 13] = 1
    turned_up = Rotation()(wide, math.pi / 2)
    assert turned_up[0, 0, 2, 10].item() == pytest.approx(1)  # three to the right: three up


@pytest.mark.parametrize("size", [(10, 10), (10, 14), (14, 10)])
def test_translation_is_by_pixels_in_the_direction_of_the_axis(size):
    x = torch.randn(1, 3, *size, dtype=torch.double)
    amount = 2 / (max(size) / 2)  # of half the longer side
    for axis in (-1, -2):
        rolled, left = x.roll(2, axis), size[axis] - 2
        torch.testing.assert_close(Translation(axis, cyclic=True)(x, amount), rolled)
        moved = Translation(axis)(x, amount)
        torch.testing.assert_close(
            moved.narrow(axis, 2, left), rolled.narrow(axis, 2, left), atol=1e-9, rtol=0
        )
        assert moved.narrow(axis, 0, 2).abs().max() < 1e-9


def test_a_mask_is_not_equivariant_unless_it_turns_into_itself():
    x = bump(across=5)
    place = torch.linspace(0, 1, 33, dtype=torch.double)
    slope = lie_error(lambda y: place * y, x, Rotation())
    round_mask = lie_error(lambda y: (1 - bump(width=9.0)) * y, x, Rotation())
    assert round_mask.derivative < 0.15 * slope.derivative


def test_the_floor_is_zero_at_whole_steps_and_largest_at_halves():
    x = noise()
    costs = interpolation_floor(x, [0, 1, 3, 0.25, 0.5, 0.75])
    assert costs.shape == (6, 2)
    assert costs[:3].max() < 1e-12
    assert (costs[4] > costs[3]).all() and (costs[4] > costs[5]).all()
    torch.testing.assert_close(costs[3], costs[5])
    latents = torch.randn(4, 3, 2, 5)
    assert (interpolation_floor(latents, [0.5]) > 0.1).all()
    assert interpolation_floor(x, []).shape == (0, 2)
    assert (interpolation_floor(x, [1.0], Rotation()) > 0.1).all()


def test_frames_of_a_sequence_move_together_and_black_ones_have_no_error():
    x = noise(6).unflatten(0, (2, 3))
    found = lie_error(lambda y: y.flip(1), x, AROUND)
    assert found.derivative.shape == (2,) and found.derivative.max() < 1e-12
    assert found.settings["output"] == "images"
    black = lie_error(lambda y: y, torch.zeros(1, 1, 4, 4), Rotation())
    assert black.finite == black.floor == black.derivative == 0
    forced = lie_error(lambda y: y, noise(), AROUND, invariant=True)
    assert forced.derivative.min() > 0.1 and forced.settings["output"] == "invariants"


def test_invalid_images_are_refused():
    x = noise()
    for bad in (x[0, 0], x.long(), x / 0, x[:0]):
        with pytest.raises(BadInput):
            lie_error(lambda y: y, bad, AROUND)
    with pytest.raises(BadInput, match="step"):
        lie_error(lambda y: y, x, AROUND, step=0)
    with pytest.raises(BadInput, match="each of 2"):
        lie_error(lambda y: y.sum(), x, AROUND)
    with pytest.raises(BadInput, match="axis"):
        lie_error(lambda y: y, x, Translation(1))
    with pytest.raises(BadInput, match="pixels"):
        interpolation_floor(x, [math.nan])
