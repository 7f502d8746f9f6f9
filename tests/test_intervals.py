"""Intervals of means over sequences: their coverage, and their place in reports."""

import json
import math

import pytest
import torch
from test_metrics import moving_dots, seeing_model

import topocaps as tc
from topocaps import metrics
from topocaps.metrics import Mean
from topocaps.metrics.intervals import at_the_ends
from topocaps.metrics.rolled_traversal import Traversal
from topocaps.study.data import Splits, Sprites
from topocaps.study.recipe import Recipe
from topocaps.study.report import section
from topocaps.study.runs import evaluate_run


def test_a_mean_averages_sequences_and_a_ratio_divides_sums():
    values, weights = torch.rand(9), torch.rand(9)
    assert Mean(values).value == pytest.approx(values.mean().item())
    assert torch.equal(Mean(values).each, values)
    ratio = Mean(values, weights)
    assert ratio.value == pytest.approx((values.sum() / weights.sum()).item())
    torch.testing.assert_close(ratio.each, values / weights)
    # a mean is a ratio of equal weights, and its interval is the same
    many = torch.randn(400)
    normal, drawn = Mean(many).interval(), Mean(many, torch.ones(400)).interval()
    assert normal == pytest.approx(drawn, abs=0.02)


def test_the_ratio_of_several_parts_is_the_mean_of_their_ratios():
    values, weights = torch.rand(6, 2), torch.rand(6, 2)
    parts = [Mean(values[:, n], weights[:, n]).value for n in range(2)]
    assert Mean(values, weights).value == pytest.approx(sum(parts) / 2)
    weights[:3, 0] = weights[3:, 1] = values[:3, 0] = values[3:, 1] = 0
    apart = Mean(values, weights)
    low, high = apart.interval()
    assert low <= apart.value <= high
    assert not apart.each.isnan().any()


@pytest.mark.parametrize("kind", ["mean", "ratio", "of parts"])
def test_intervals_cover_the_truth_at_about_their_rate(kind):
    """95 of 100 on average; fewer than 85 has a chance of about 1 in 10,000."""
    torch.manual_seed(0)
    hits = 0
    for _ in range(100):
        weights = 1 + torch.rand(80, 2)
        values = weights * (0.3 + torch.randn(80, 2))
        if kind == "mean":
            low, high = Mean(values[:, 0] / weights[:, 0]).interval()
        elif kind == "ratio":
            low, high = Mean(values[:, 0], weights[:, 0]).interval(draws=300)
        else:
            low, high = Mean(values, weights).interval(draws=300)
        hits += low <= 0.3 <= high
    assert 85 <= hits < 100


def test_one_sequence_has_no_interval():
    assert all(math.isnan(end) for end in Mean(torch.ones(1)).interval())


def test_gains_of_sequences_follow_the_definition():
    torch.manual_seed(0)
    orbit_mean, rolled = 1 + torch.rand(6, 4), torch.rand(6, 4)
    unseen = torch.tensor([[False, True, True, False]] * 5 + [[False] * 4])
    moving = torch.tensor([[True, False]] * 2 + [[False, True]] * 3 + [[True, True]])
    walked = Traversal(
        rolled, orbit_mean, torch.zeros(6, 4), unseen, moving, torch.zeros(6, dtype=torch.long)
    )
    expected = 1 - rolled[:5, 1:3].sum(1) / orbit_mean[:5, 1:3].sum(1)
    torch.testing.assert_close(walked.gain().each, expected.double())
    torch.testing.assert_close(walked.gain(0).each, expected[:2].double())
    assert walked.gain().value == walked.overall
    gains = [walked.by_factor[column] for column in (0, 1)]
    assert walked.overall == pytest.approx(sum(gains) / 2)
    low, high = walked.interval()
    assert low <= walked.overall <= high


def test_per_sequence_has_what_evaluate_averages():
    model, x = seeing_model(1.0), moving_dots(5)
    found, told = metrics.per_sequence(model, x, samples=3), metrics.evaluate(model, x, samples=3)
    assert set(found) == {
        "log_px", "log_px_paper", "log_px_per_frame", "elbo", "equivariance_error",
        "equivariance_error_squared", "traversal_gain", "gain all",
    }  # fmt: skip
    for name in set(found) - {"gain all"}:
        assert found[name].value == told[name] and len(found[name].each) == 5
        assert found[name].interval() == told["intervals"][name]
    assert found["gain all"].value == told["traversal"]["by_factor"]["all"]
    assert found["gain all"].interval() == told["traversal"]["interval"]["all"]


def test_factors_without_unseen_frames_have_no_gain():
    still = moving_dots(3)[:, :1].expand(-1, 6, -1, -1, -1)
    found = metrics.per_sequence(seeing_model(1.0), still)
    assert "traversal_gain" not in found and "elbo" in found
    assert metrics.evaluate(seeing_model(1.0), still)["intervals"]["traversal_gain"] is None


def test_a_report_shows_intervals_of_held_out_sequences(tmp_path):
    recipe = Recipe(
        name="mine",
        about="",
        data=Sprites(),
        topography=tc.Topography(2, (6,), window=3),
        hidden=(8,),
        training=tc.Training(epochs=1),
    )
    x = torch.rand(6, 6, 1, 4, 4)
    model = recipe.build((1, 4, 4), seed=0)
    tc.fit(model, x, epochs=1, out=tmp_path, settings=recipe.to_json())
    splits = Splits(tc.Sequences.of(x), tc.Sequences.of(x), "noise", "held out", None)
    run = evaluate_run(tmp_path, "cpu", splits=splits)
    header, *rows = section(run).table
    assert header == ["", "held out", "95 % from", "to", "training", "untrained"]
    told = json.loads((tmp_path / "metrics.json").read_text())

    def shown(text):
        return float(text.replace("−", "-").replace(",", ""))

    named = {row[0]: row[1:] for row in rows}
    for label, key in (
        ("ELBO", "elbo"),
        ("E_eq", "equivariance_error"),
        ("gain", "traversal_gain"),
    ):
        value, low, high = map(shown, named[label][:3])
        assert low <= value <= high
        assert [low, high] == pytest.approx(told["intervals"][key], abs=0.6)
    assert named["E_eq of chance"][1:3] == ["–", "–"]
    older = {k: v for k, v in told.items() if k != "intervals"}
    low, high = at_the_ends({**older, "intervals": {"elbo": [1.0, 2.0]}})
    assert (low["elbo"], high["elbo"], low["log_px"]) == (1.0, 2.0, None)
