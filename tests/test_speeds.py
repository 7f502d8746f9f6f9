"""Gains by speed: the sequences that they measure, and the tables that show them."""

from dataclasses import replace

import pytest
import torch

import topocaps as tc
from topocaps.data.subsets import at_speeds
from topocaps.metrics.visible_frames import gains_by_visible, moving_by_speed, speeds, visible_gains
from topocaps.models.likelihoods import Likelihood
from topocaps.papers.quantities import predictions
from topocaps.papers.tables import TABLES
from topocaps.study.evaluation.shared import visible_rows

BERNOULLI = Likelihood.BERNOULLI
CLOSED = 11  # frames, a prime number: whatever moves shows all of them


def rings(velocities=(1,), count=10):
    """Random sequences of one factor that come round, at velocities that take turns."""
    frames = torch.rand(count * CLOSED, 1, 2, 2, generator=torch.Generator().manual_seed(0))
    order = torch.arange(count * CLOSED).reshape(count, CLOSED)
    factors = (torch.arange(count * CLOSED) % CLOSED)[:, None]
    closed = tc.Sequences(frames.round(), order, factors, ("turn",), cyclic=True)
    return replace(at_speeds(closed, velocities), cyclic=False)


def guess(x, visible):
    """Fill in a blurred copy, better or worse by sequence, whatever else is measured."""
    return 0.6 * x + 0.2


@pytest.mark.parametrize("velocity", range(-5, 6))
def test_speeds_do_not_depend_on_the_first_frame(velocity):
    sequences = rings((velocity,))
    for start in range(CLOSED):
        levels = sequences.show(sequences.order.roll(start, 1)).factors
        assert (speeds(levels) == abs(velocity)).all()


def test_speeds_of_digits_are_those_that_were_drawn():
    moving = tc.data.TransformedImages(torch.ones(60, 4, 4, dtype=torch.uint8))
    motion = replace(moving.motion, speeds=(-2, -1, 0, 1, 2))
    sequences = replace(moving, motion=motion)
    levels = sequences.fixed()[..., 1:]
    steps = (levels[:, 1] - levels[:, 0] + 9) % 18 - 9  # with sign, of 18 levels
    assert torch.equal(speeds(levels), steps.abs())
    found = moving_by_speed(sequences, sequences.fixed())
    assert list(found) == [1, 2]
    assert all(torch.equal(at, steps.abs() == speed) for speed, at in found.items())


def test_gains_by_speed_are_those_of_the_sequences_of_that_speed():
    sequences = rings((-2, -1, 0, 1, 2), count=20)
    found = visible_gains(guess, sequences, BERNOULLI)
    whole = gains_by_visible(guess, sequences, BERNOULLI)
    for count, one in found.items():
        assert list(one["by_speed"]) == ["1", "2"]
        for speed, rows in (("1", (1, 3)), ("2", (0, 4))):
            chosen = torch.tensor([row % 5 in rows for row in range(20)])
            gains = whole[int(count)]
            alone = replace(
                gains, **{n: getattr(gains, n)[chosen] for n in gains.__dataclass_fields__}
            )
            measured = one["by_speed"][speed]
            assert measured["gain"] == pytest.approx(alone.overall)
            assert measured["by_factor"] == {"turn": pytest.approx(alone.overall)}
            assert measured["interval"] == pytest.approx(alone.interval(), abs=0.1)


def test_sequences_that_repeat_among_visible_frames_count_only_with_all_frames():
    images = torch.rand(12, 1, 2, 2).round()
    order = torch.stack([torch.arange(12), torch.arange(12) * 2 % 12])
    one = tc.Sequences(images, order, torch.arange(12)[:, None], ("turn",))
    found = visible_gains(guess, one, BERNOULLI)["9"]["by_speed"]
    assert found["1"]["gain"] is not None and found["2"]["gain"] is None
    assert found["2"]["all_frames"]["by_factor"]["turn"] is not None


@pytest.mark.parametrize("velocities", [(1,), (-1, 1), (0, 2)])
def test_sequences_of_one_speed_have_no_gains_by_speed(velocities):
    for one in visible_gains(guess, rings(velocities), BERNOULLI).values():
        assert set(one) == {
            "gain", "interval", "by_factor", "intervals", "of", "all_frames", "by_distance",
        }  # fmt: skip


def test_factors_that_are_no_levels_or_unknown_have_no_speeds():
    sequences = rings((1, 2))
    for factors in (None, sequences.factors.float()):
        other = replace(sequences, factors=factors)
        assert moving_by_speed(other, other.fixed()) == {}


def test_every_gain_by_speed_of_a_table_is_measured_under_its_key():
    found = {"visible": visible_gains(guess, rings((1, 2)), BERNOULLI)}
    lines = [q for q in predictions((), (), (1, 2), (2,)) if q.group]
    assert {q.group for q in lines} == {"speed 1", "speed 2", "speed 2, all frames"}
    for quantity in predictions(("turn",), (), (1, 2), (2,)) + tuple(lines):
        if quantity.key[:2] == ("visible", "5"):
            assert quantity.of(found) is not None and quantity.interval_of(found)
    rows = [q.label for q in visible_rows([found]) if "speed" in q.label]
    assert rows == ["– speed 1", "– speed 2"] * len(found["visible"])


def test_the_tables_of_speeds_have_their_lines():
    groups = {name: {q.group for q in TABLES[name].quantities} for name in TABLES}
    assert {"speed 1", "speed 2"} < groups["letters-speeds"]
    for factor in ("rotation", "scale", "hue"):
        lines = {f"{factor}, speed 1", f"{factor}, speed 2", f"{factor}, speed 2, all frames"}
        assert lines < groups["rolling-speeds"]
