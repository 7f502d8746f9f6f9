"""Laws of motions: rolls of codes are a group, precisions stay positive, candidates differ."""

import json
import math

import numpy as np
import pytest
import torch
from torch import nn

import topocaps as tc
from topocaps.latents.capsule_motion import CapsuleMotion
from topocaps.latents.motion import (
    Changing,
    Grouped,
    Known,
    Motion,
    Unknown,
    motion_from,
    motion_settings,
)

DOUBLE = {"dtype": torch.float64}
#: (motion, capsules, shape)
MOTIONS = {
    "known": (Known(1), 3, (4,)),
    "backwards": (Known(-2), 1, (5,)),
    "fractional": (Known(0.3), 2, (5,)),
    "second axis": (Known(1.7, axis=1), 2, (4, 3)),
    "direction": (Unknown((-1, 1)), 2, (6,)),
    "speeds": (Unknown((-0.5, 0, 0.5, 2)), 2, (7,)),
    "axes": (Unknown((-1, 1), axes=(0, 1)), 1, (3, 4)),
    "grouped": (
        Grouped((1, 2, 1), (Known(0), Unknown((-1, 0.4)), Known(1))),
        4,
        (5,),
    ),
    "changing": (Changing((-1, 1), frames=(1, 3)), 2, (6,)),
    "changing by fractions": (Changing((0.4, -1), frames=2), 1, (5,)),
    "changing group": (Grouped((1, 1), (Known(0.6), Changing((1, 2), 2))), 2, (5,)),
    "two unknown": (
        Grouped((1, 1), (Unknown((1, 2)), Unknown((-1, 1)))),
        2,
        (5,),
    ),
}
every_motion = pytest.mark.parametrize(
    "motion, capsules, shape", MOTIONS.values(), ids=MOTIONS.keys()
)


def made(motion, capsules, shape):
    moves = CapsuleMotion(motion, capsules, shape).double()
    return moves, torch.randn(2, capsules, *shape, **DOUBLE)


@every_motion
def test_the_prior_is_a_distribution_over_the_candidates(motion, capsules, shape):
    moves, _ = made(motion, capsules, shape)
    assert moves.velocities.shape[:3] == (len(moves), capsules, len(shape))
    torch.testing.assert_close(moves.log_prior.exp().sum(), torch.tensor(1.0, **DOUBLE))


@every_motion
def test_rolls_have_an_identity_an_inverse_and_compose(motion, capsules, shape):
    moves, code = made(motion, capsules, shape)
    for candidate in range(len(moves)):
        assert torch.equal(moves.roll(code, candidate, 0), code)
        for a, b in ((1, 2), (3, -3), (-4, 1)):
            first, then = moves.shifts(candidate, a), moves.shifts(candidate, b)
            twice = moves.paths.roll(moves.roll(code, candidate, a), then)
            torch.testing.assert_close(twice, moves.paths.roll(code, first + then))
            torch.testing.assert_close(twice.square().sum(), code.square().sum())
            back = moves.paths.roll(moves.roll(code, candidate, a), -first)
            torch.testing.assert_close(back, code)
            if moves.paths.velocities.shape[-1] == 1:
                torch.testing.assert_close(first + then, moves.shifts(candidate, a + b))


@every_motion
def test_whole_rolls_are_those_of_torch(motion, capsules, shape):
    moves, code = made(motion, capsules, shape)
    for candidate in range(len(moves)):
        for steps in (-7, 1, 10):
            shifts = moves.shifts(candidate, steps)
            rolled = moves.roll(code, candidate, steps)
            for capsule in range(capsules):
                by = shifts[capsule].tolist()
                if all(abs(one - round(one)) < 1e-9 for one in by):
                    by, axes = [round(one) for one in by], list(range(1, len(shape) + 1))
                    assert torch.equal(rolled[:, capsule], code[:, capsule].roll(by, axes))


@pytest.mark.parametrize("velocity", [1, -2])
def test_values_leave_over_open_ends_and_zeros_enter(velocity):
    moves = CapsuleMotion(Known(velocity), 2, (5,), cyclic=False).double()
    code = 1 + torch.rand(3, 2, 5, **DOUBLE)
    wide = nn.functional.pad(code, (30, 30))
    for roll in (moves.paths.roll, moves.paths.roll_precision):
        assert torch.equal(roll(code, moves.shifts(0, 0)), code)
        for steps in (-7, -1, 1, 2, 4, 9):
            shifted = wide.roll(velocity * steps, -1)[..., 30:35]
            assert torch.equal(roll(code, moves.shifts(0, steps)), shifted)
            left = max(0, 5 - abs(velocity * steps))
            assert (shifted > 0).sum() == 6 * left
        there = roll(code, moves.shifts(0, 1))
        assert torch.equal(roll(there, moves.shifts(0, 1)), roll(code, moves.shifts(0, 2)))
        back = roll(there, moves.shifts(0, -1))
        assert torch.equal(back, torch.where(back > 0, code, 0.0)) and (back == 0).any()


def test_shifts_of_a_changing_motion_are_sums_of_its_velocities():
    motion = Grouped((1, 1), (Known(0.6), Changing((1, -2, 0.2), frames=(2, 4))))
    moves = CapsuleMotion(motion, 2, (9,)).double()
    assert len(moves) == 3 + 3 * 2 * 2
    rates = moves.velocities[:, :, 0]  # candidates capsules frames
    for steps in range(-3, 9):
        frame = torch.arange(min(steps, 0), max(steps, 0))  # those that are left
        passed = rates[..., frame.clamp(0, 4)].sum(-1)
        for candidate in range(len(moves)):
            found = moves.shifts(candidate, steps)[:, 0]
            expected = passed[candidate] if steps >= 0 else -passed[candidate]
            torch.testing.assert_close(found, expected, rtol=0, atol=2e-4)
    whole = moves.velocities[:, 1, 0].tolist()
    assert whole[0] == [1.0] * 5 and [1.0, 1.0, -2.0, -2.0, -2.0] in whole


def test_candidates_share_the_paths_of_their_capsules():
    """Groups multiply the candidates, and not the ways in which a capsule may move."""
    grid = np.linspace(-2, 2, 41)
    motion = Grouped((2, 3), (Unknown(grid), Unknown(grid)))
    moves = CapsuleMotion(motion, 5, (7,))
    assert len(moves) == 41 * 41 and len(moves.paths) == 41
    torch.testing.assert_close(moves.velocities.double(), motion.candidates(5, 1))


def test_fractional_rolls_shift_every_wave():
    place = torch.arange(7, **DOUBLE)
    wave = torch.cos(2 * torch.pi * 3 * place / 7)
    moves = CapsuleMotion(Known(0.4), 1, (7,)).double()
    shifted = torch.cos(2 * torch.pi * 3 * (place - 1.2) / 7)
    torch.testing.assert_close(moves.roll(wave[None], 0, 3), shifted[None])


@every_motion
def test_precisions_stay_positive_at_any_shift_and_keep_their_sum(motion, capsules, shape):
    moves, code = made(motion, capsules, shape)
    precision = torch.where(code > 1, code.exp(), 1e-6)  # steep: a Fourier shift would undershoot
    steps = torch.arange(-9, 10)
    for candidate in range(len(moves)):
        rolled = moves.paths.roll_precision(precision[:, None], moves.shifts(candidate, steps))
        assert (rolled >= 1e-6 * (1 - 1e-9)).all()
        sums = precision.flatten(2).sum(2)[:, None].expand(-1, len(steps), -1)
        torch.testing.assert_close(rolled.flatten(3).sum(3), sums)


@every_motion
def test_candidates_and_steps_broadcast(motion, capsules, shape):
    moves, code = made(motion, capsules, shape)
    candidates, steps = torch.arange(len(moves))[:, None, None], torch.tensor([0, 2, -1])
    for roll in (moves.paths.roll, moves.paths.roll_precision):
        together = roll(code[:, None], moves.shifts(candidates, steps))
        assert together.shape == (len(moves), 2, 3, capsules, *shape)
        for candidate in range(len(moves)):
            for n, step in enumerate(steps.tolist()):
                alone = roll(code, moves.shifts(candidate, step))
                torch.testing.assert_close(together[candidate, :, n], alone)
    assert torch.equal(
        moves.roll(code[:, None], candidates, steps),
        moves.paths.roll(code[:, None], moves.shifts(candidates, steps)),
    )


@every_motion
def test_gradients_of_rolls(motion, capsules, shape):
    moves, code = made(motion, capsules, shape)
    shifts = moves.shifts(len(moves) - 1, torch.tensor([1, 2]))
    for roll in (moves.paths.roll, moves.paths.roll_precision):
        given = code[0].clone().requires_grad_()
        assert torch.autograd.gradcheck(lambda t, roll=roll: roll(t[None], shifts), given)


@every_motion
def test_settings_rebuild_the_motion(motion, capsules, shape):
    assert motion_from(motion_settings(motion)) == motion


def test_a_group_without_velocity_does_not_move():
    motion = Grouped((1, 1), (Known(0), Known(1)))
    moves, code = made(motion, 2, (5,))
    rolled = moves.roll(code, 0, 2)
    assert torch.equal(rolled[:, 0], code[:, 0])
    assert torch.equal(rolled[:, 1], code[:, 1].roll(2, -1))


@pytest.mark.parametrize(
    ("motion", "capsules", "shape", "message"),
    [
        (lambda: Unknown((1, 1)), 1, (5,), "candidate motions 0 and 1 are the same"),
        (lambda: Unknown((-2, 3)), 1, (5,), "are the same on rings"),
        (
            lambda: Unknown((0, 1), (0, 1)),
            1,
            (5, 5),
            "candidate motions 0 and 2 are the same",
        ),
        (
            lambda: Known(1, axis=1),
            1,
            (5,),
            "axis 1 needs capsules of at least 2 axes, and these have 1",
        ),
        (lambda: Unknown((1,), (0, 2)), 1, (5, 4), "at least 3 axes, and these have 2"),
        (
            lambda: Known(0.5),
            1,
            (6,),
            "fractional velocities need an odd number of sites",
        ),
        (
            lambda: Grouped((1, 2), (Known(), Known(0))),
            4,
            (5,),
            r"the 4 capsules, but the sum of \(1, 2\) is 3",
        ),
        (
            lambda: Grouped((1, 2), (Known(),)),
            3,
            (5,),
            "2 sizes and 1 motions",
        ),
        (
            lambda: Grouped((0,), (Known(),)),
            3,
            (5,),
            "a group's size must be a whole number",
        ),
        (lambda: Unknown(()), 1, (5,), "at least one velocity and one axis"),
        (lambda: Changing((1,), 2), 1, (5,), "at least two velocities and one frame"),
        (lambda: Changing((1, 2), 0), 1, (5,), "a frame of a change must be a whole number"),
        (lambda: Changing((1, 6), 3), 1, (5,), "candidate motions 0 and 1 are the same"),
        (lambda: Known(float("nan")), 1, (5,), "velocity must be a finite number"),
        (
            lambda: Known(1, axis=-1),
            1,
            (5,),
            "an axis must be a whole number of at least 0",
        ),
        (lambda: Known(1, axis=1.0), 1, (5,), "an axis must be a whole number of at least 0"),
        (lambda: Known(1, axis=True), 1, (5,), "an axis must be a whole number of at least 0"),
        (lambda: Grouped((1, 2), (1, 2)), 3, (5,), r"such as Known\(1\), not 1$"),
        (lambda: Grouped((3,), 0), 3, (5,), r"such as Known\(1\), not 0$"),
        (lambda: 1.0, 1, (5,), r"a motion must be a Motion such as Known\(1\), not 1.0"),
        (lambda: 0, 1, (5,), r"such as Known\(1\), not 0$"),
    ],
)
def test_invalid_motions_are_refused(motion, capsules, shape, message):
    with pytest.raises(tc.BadInput, match=message) as refused:
        CapsuleMotion(motion(), capsules, shape)
    assert "\n" not in str(refused.value)


def test_numbers_of_numpy_are_plain_in_settings():
    motions = [
        Known(np.float64(1), np.int64(0)),
        Unknown(np.array([-1, 1]), np.arange(1)),
        Changing(np.array([-1.0, 1.0]), np.arange(1, 3), np.int64(0)),
    ]
    plain = [Known(1, 0), Unknown((-1, 1), (0,)), Changing((-1, 1), (1, 2), 0)]
    for motion, expected in zip(motions, plain, strict=True):
        assert motion == expected
        assert json.dumps(motion_settings(motion)) == json.dumps(motion_settings(expected))


def test_a_single_group_is_a_group():
    assert Grouped(3, Known(0)) == Grouped((3,), Known(0)) == Grouped((3,), (Known(0),))


@pytest.mark.parametrize(
    ("log_prior", "message"),
    [
        ([0.0, 0.0], "must sum to 1: the log of their sum is 0.693"),  # the bound would be too high
        ([-2.0, -2.0], "the log of their sum is -1.31"),
        ([math.nan, 0.0], "the log of their sum is nan"),
        ([-math.inf, -math.inf], "the log of their sum is -inf"),
        ([0.0], r"must have the shape \(candidates,\) = \(2,\), not \(1,\)"),
        ([[-math.log(2)], [-math.log(2)]], r"= \(2,\), not \(2, 1\)"),
    ],
)
def test_a_prior_that_is_not_normalised_is_refused(log_prior, message):
    class Own(Unknown):
        def log_prior(self):
            return torch.tensor(log_prior)

    for motion in (Own(), Grouped(1, Own())):
        if isinstance(motion, Grouped) and np.ndim(log_prior) == 2:
            continue  # combinations of one group are (candidates,)
        with pytest.raises(tc.BadInput, match=message):
            CapsuleMotion(motion, 1, (5,))


def test_a_prior_in_single_precision_is_accepted():
    class Own(Unknown):
        def log_prior(self):
            return torch.randn(41, generator=torch.Generator().manual_seed(0)).log_softmax(0)

    assert len(CapsuleMotion(Own(np.linspace(-2, 2, 41)), 1, (5,))) == 41


def test_fractions_of_frames_are_refused():
    moves, code = made(Known(1), 1, (5,))
    with pytest.raises(tc.BadInput, match="whole number of frames"):
        moves.roll(code, 0, torch.tensor(0.5))


def test_a_user_defined_motion_has_no_settings():
    class Still(Motion):
        def candidates(self, capsules, axes):
            return torch.zeros(1, capsules, axes, dtype=torch.float64)

        def log_prior(self):
            return torch.zeros(1, dtype=torch.float64)

    moves, code = made(Still(), 2, (4,))
    assert torch.equal(moves.roll(code, 0, 3), code)
    assert motion_settings(Still()) is None
    assert motion_settings(Grouped((1,), (Still(),))) is None
    with pytest.raises(tc.BadInput, match="knows no motion of kind 'Still'"):
        motion_from({"kind": "Still"})


@pytest.mark.parametrize(
    ("velocities", "message"),
    [
        (torch.zeros(1, 3, 1), r"= \(…, 2, 1\), or frames after these, not \(1, 3, 1\)"),
        (torch.zeros(1, 2, 2), r"not \(1, 2, 2\)"),
        (torch.zeros(1, 2), r"not \(1, 2\)"),
        (torch.zeros(1, 2, 1, 0), r"not \(1, 2, 1, 0\)"),
        (torch.full((1, 2, 1), math.nan), "must be finite, not nan"),
    ],
)
def test_candidates_of_another_shape_are_refused(velocities, message):
    class Own(Known):
        def candidates(self, capsules, axes):
            return velocities

    with pytest.raises(tc.BadInput, match=message):
        CapsuleMotion(Own(), 2, (5,))


def test_values_return_over_an_open_end_if_the_motion_turns_back():
    moves = CapsuleMotion(Changing((1, -1), frames=3), 1, (5,), cyclic=False)
    code = torch.rand(1, 5)
    assert moves.roll(code, candidate=2, steps=3).count_nonzero() == 2
    assert moves.roll(code, candidate=2, steps=6).equal(code)
