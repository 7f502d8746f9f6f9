"""Metrics and traversals of rolling VAEs, and what refuses them."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from test_rolling import FRAME, GROUPED, frames, rolling, some

import topocaps as tc
from topocaps.integrations.onnx import export
from topocaps.latents.motion import Changing, Grouped, Known, Unknown
from topocaps.metrics.visible_frames import (
    is_new,
    visible_counts,
    visible_gains,
    visible_masks,
)
from topocaps.models.evidence import log_weights
from topocaps.study import figures

MOTIONS = {"known": Known(1), "direction": Unknown((-1, 1)), "grouped": GROUPED}
every_motion = pytest.mark.parametrize("motion", MOTIONS.values(), ids=MOTIONS.keys())


def model_of(motion=MOTIONS["known"], **settings):
    return rolling(motion, **settings).float()


def sequences(count=7, time=6):
    x = torch.rand(count, time, *FRAME, generator=torch.Generator().manual_seed(1))
    x[: count // 2, 3:] = x[: count // 2, :3]  # half of them come round after three frames
    factors = torch.zeros(count, time, 2, dtype=torch.int64)
    factors[: count // 2, :, 0] = torch.arange(time) % 3
    factors[count // 2 :, :, 1] = torch.arange(time)
    return tc.data.Sequences(
        x.flatten(0, 1),
        torch.arange(count * time).view(count, time),
        factors=factors.flatten(0, 1),
        names=("turn", "shift"),
    )


# Metrics ------------------------------------------------------------------------------------------


@every_motion
def test_the_bound_of_a_model_is_that_of_log_px(motion):
    model, x, mask = model_of(motion), frames().float(), some(2, 0, 2, 3)
    for given in (None, mask):
        torch.manual_seed(3)
        expected = model.log_px(x, 6, given)
        torch.manual_seed(3)
        assert torch.equal(tc.log_px(model, x, 6, given), expected)


@every_motion
def test_all_metrics_are_those_of_each_sequence(motion):
    model, data = model_of(motion), sequences()
    found = tc.evaluate(model, data, samples=4, batch=3)
    each = tc.metrics.per_sequence(model, data, samples=4, batch=3)
    for name in ("elbo", "log_px_given_t", "kl", "log_px"):
        assert each[name].each.shape == (7,)
        assert found[name] == each[name].value == pytest.approx(each[name].each.mean().item())
        assert found["intervals"][name] == each[name].interval()
    assert found["elbo"] == pytest.approx(found["log_px_given_t"] - found["kl"], abs=1e-4)
    assert found["samples"] == 4 and found["sequences"] == 7
    assert set(found["visible"]) == {"3", "4"} and not math.isnan(found["visible"]["3"]["gain"])
    gains = tc.metrics.gains_by_visible(model.fill, data, model.likelihood)
    for count, one in found["visible"].items():
        expected = gains[int(count)]
        assert one["gain"] == expected.overall == each[f"gain, {count} visible"].value
        low, high = one["interval"]
        assert low <= one["gain"] <= high and one["of"] == 6
        assert set(one["by_factor"]) == set(one["intervals"]) == {"turn", "shift"}
        hidden = ~visible_masks(data, data.fixed())[int(count)]
        assert one["all_frames"]["gain"] == replace(expected, unseen=hidden).overall
    assert "equivariance_error" not in found  # it is 0 by construction


def test_metrics_are_reproducible_and_accept_arrays():
    model, data = model_of(Unknown((-1, 1))), sequences()
    before = torch.get_rng_state()
    found = tc.evaluate(model, data, samples=2)
    assert torch.equal(torch.get_rng_state(), before)
    assert tc.evaluate(model, data, samples=2) == found
    assert tc.evaluate(model, data, samples=2, seed=1)["log_px"] != found["log_px"]
    x = torch.cat([one.x for one in data.batches(4)])
    assert tc.evaluate(model, x.numpy(), samples=2)["elbo"] == pytest.approx(found["elbo"])
    some_of = tc.evaluate(model, data, samples=2, most=2)
    assert some_of["sequences"] == 2 and some_of["elbo"] != found["elbo"]  # the first and the last


def test_more_samples_give_a_higher_bound():
    model, x = model_of(), frames(200).float()
    few, many = (tc.evaluate(model, x, samples=n)["log_px"] for n in (1, 50))
    assert many > few


def test_sequences_too_short_to_hide_two_frames_have_bounds_alone():
    assert visible_counts(2) == ()
    found = tc.evaluate(model_of(), frames(3, time=2).float())
    assert found["visible"] == {} and math.isfinite(found["log_px"])
    assert "gain, 1 visible" not in tc.metrics.per_sequence(model_of(), frames(3, 2).float())


# Gains on hidden frames ---------------------------------------------------------------------------


def truth(x, visible):
    return x


def mean_frame(x, visible):
    return x.mean(1, keepdim=True).expand_as(x)


@pytest.mark.parametrize("likelihood", ["bernoulli", "gaussian"])
def test_the_gain_of_the_truth_is_one_and_of_the_mean_frame_zero(likelihood):
    kind = tc.Likelihood.of(likelihood)
    for fill, gain in ((truth, 1.0), (mean_frame, 0.0)):
        found = tc.metrics.gains_by_visible(fill, sequences(), kind, counts=(1, 3, 5))
        assert list(found) == [1, 3, 5]
        for one in found.values():
            assert one.overall == pytest.approx(gain, abs=0.01)
    worse = tc.metrics.gains_by_visible(lambda x, v: 1 - x, sequences(), kind)
    assert all(one.overall < 0 for one in worse.values())


def test_hidden_frames_that_equal_a_visible_one_do_not_count():
    x = torch.eye(3)[torch.tensor([[0, 1, 2, 0, 1, 2], [0, 0, 1, 1, 2, 2]])]
    visible = torch.tensor([[False, True, True, True, False, False], [True] + [False] * 5])
    equal = tc.metrics.visible_frames.equal_frames(x)
    assert is_new(equal, visible).int().tolist() == [
        [0, 0, 0, 0, 0, 0],
        [0, 0, 1, 1, 1, 1],
    ]
    data, kind = tc.Sequences.of(x[:1].repeat(4, 1, 1)), tc.Likelihood.GAUSSIAN
    assert tc.metrics.gains_by_visible(truth, data, kind, (3,))[3].overall is None
    counted = visible_gains(truth, data, kind)["3"]
    assert counted["gain"] is None and counted["all_frames"]["gain"] == pytest.approx(1.0)


def test_every_model_is_shown_the_same_contiguous_frames():
    shown = []

    def fill(x, visible):
        shown.append(visible)
        return x

    for seed in (0, 0, 1):
        tc.metrics.gains_by_visible(fill, sequences(40), tc.Likelihood.BERNOULLI, (2,), seed=seed)
    first, again, other = shown
    assert torch.equal(first, again) and not torch.equal(first, other)
    assert (first.sum(1) == 2).all() and (first[:, :-1] & first[:, 1:]).sum(1).eq(1).all()
    shown.clear()
    tc.metrics.gains_by_visible(fill, sequences(40), tc.Likelihood.BERNOULLI, (2,), most=10)
    assert sum(map(len, shown)) == 10


@pytest.mark.parametrize(
    "counts, says", [((0,), "not 0"), ((3, 6), "not 3, 6"), ((), "not none"), ((7,), "not 7")]
)
def test_counts_that_hide_nothing_or_show_nothing_are_refused(counts, says):
    with pytest.raises(tc.BadInput, match=f"visible frames must be from 1 to 5, {says}"):
        tc.metrics.gains_by_visible(truth, sequences(), tc.Likelihood.BERNOULLI, counts)


# Traversals ---------------------------------------------------------------------------------------


def test_a_known_motion_of_one_site_shows_the_sequence_and_goes_round():
    model, x = model_of(), frames(3, time=4).float()
    found = tc.traverse(model, x)
    assert found.rolled.shape == (3, 5, *FRAME) and torch.equal(found.x, x)
    torch.testing.assert_close(found.rolled[:, :4], model.decode(model.encode(x)))
    assert found.frame.tolist() == [[0, 1, 2, 3, -1]] * 3
    t = model.topography.roll(model.encode(x)[:, 0], 4)
    torch.testing.assert_close(found.rolled[:, 4], model.decode(t))


@pytest.mark.parametrize(
    "velocity, shown",
    [(-1, [0, 1, 2, 3, 4]), (2, [0, 3, 1, 4, 2]), (0.5, [0, 2, 4, -1, -1]), (0, [0] * 5)],
)
def test_frames_stand_where_their_code_is_rolled_to(velocity, shown):
    model, x = model_of(Known(velocity)), frames().float()
    found, decoded = tc.traverse(model, x), model.decode(model.encode(x))
    assert found.frame.tolist() == [shown] * 2
    for offset, frame in enumerate(shown):
        if frame >= 0:
            torch.testing.assert_close(found.rolled[:, offset], decoded[:, frame])


def test_frames_stand_modulo_the_ring_if_all_capsules_are_whole_turns_apart():
    x = frames(time=9).float()
    found = tc.traverse(model_of(Known(2), shape=(9,)), x)
    assert found.frame.tolist() == [[0, 5, 1, 6, 2, 7, 3, 8, 4]] * 2
    open_ends = model_of(Known(2), shape=(9,), cyclic=False)
    assert tc.traverse(open_ends, x).frame.tolist() == [[0, -1, 1, -1, 2, -1, 3, -1, 4]] * 2
    two_speeds = model_of(Grouped((1, 1), (Known(1), Known(2))), shape=(9,))
    assert tc.traverse(two_speeds, x).frame.tolist() == [[0, -1, 1, -1, 2, -1, 3, -1, 4]] * 2


@pytest.mark.parametrize("cyclic", [True, False])
def test_a_motion_that_changes_is_followed_along_its_first_velocity(cyclic):
    motion, x = Changing((-1, 0, 1), frames=(1, 3)), frames(40).float()
    model = model_of(motion, cyclic=cyclic)
    found, t = tc.traverse(model, x), model.encode(x)
    likeliest = model.motion(x).probs.argmax(-1)
    begins_at_rest = 0
    for n, candidate in enumerate(likeliest.tolist()):
        velocities = model.motions.velocities[candidate, 0, 0].tolist()
        along = next((v for v in velocities if v != 0), 0)
        begins_at_rest += velocities[0] == 0 != along
        for offset in range(5):
            code = model.topography.roll(t[n, 0], along * offset)
            torch.testing.assert_close(found.rolled[n, offset], model.decode(code))
            same = [f for f in range(5) if torch.allclose(t[n, f], code, atol=1e-5)]
            assert found.frame[n, offset] == (same[0] if same else -1)
    assert begins_at_rest and likeliest.unique().numel() > 2
    assert len(tc.traverse(model, x[:3]).figure().axes) == 3


@pytest.mark.parametrize("shape", [(5,), (4,)])
@pytest.mark.parametrize("cyclic", [True, False])
def test_slower_capsules_roll_in_proportion(shape, cyclic):
    motion = Grouped((1, 1, 1), (Known(0), Known(-1), Known(3)))
    model = model_of(motion, shape=shape, capsules=3, cyclic=cyclic)
    x = frames().float()
    found, t = tc.traverse(model, x), model.encode(x)[:, 0]
    for offset in range(*shape):
        steps = torch.tensor([0.0, -1 / 3, 1.0]) * offset
        code = model.topography.roll(t, steps, fourier=cyclic)
        torch.testing.assert_close(found.rolled[:, offset], model.decode(code))


def test_a_traversal_encodes_once_and_decodes_candidates_once():
    model, x = model_of(Unknown((-1, 1))), frames().float()
    calls = {"z_given_x": 0, "x_given_t": 0}
    for name in calls:
        network = getattr(model, name)
        network.register_forward_hook(lambda *_, name=name: calls.update({name: calls[name] + 1}))
    tc.traverse(model, x)
    assert calls == {"z_given_x": 1, "x_given_t": 2}  # once to compare motions


@pytest.mark.parametrize("motion", [Unknown((-1, 1)), Unknown((1,), axes=(0, 1)), GROUPED])
def test_an_unknown_motion_is_the_likeliest_one(motion):
    shape = (4, 4) if motion.__class__ is Unknown and len(motion.axes) > 1 else (5,)
    model, x = model_of(motion, shape=shape), frames(6, time=4).float()
    found = tc.traverse(model, x)
    assert (found.frame[:, :4] == torch.arange(4)).all()
    torch.testing.assert_close(found.rolled[:, :4], model.decode(model.encode(x)))


def test_hidden_frames_do_not_change_what_is_rolled():
    model, x, mask = model_of(), frames().float(), some(2, 0, 1)
    other = torch.where(mask[..., None, None, None], x, torch.rand_like(x))
    found = tc.traverse(model, x, mask=mask)
    assert torch.equal(found.rolled, tc.traverse(model, other, mask=mask).rolled)
    assert torch.equal(found.visible, mask)
    for same in (x[0], x[0].numpy(), x[:1].double()):
        alone = tc.traverse(model, same, mask=mask[0])
        torch.testing.assert_close(alone.rolled, found.rolled[:1])


def test_the_figure_has_a_row_of_the_input_and_a_row_of_rolled_frames():
    model, x = model_of(Known(0.5)), frames().float()
    figure = tc.traverse(model, x, mask=some(2, 0, 1)).figure()
    assert len(figure.axes) == 2
    picture = np.asarray(figure.axes[0].images[0].get_array())
    down, across = (size + figures.GAP for size in FRAME[1:])
    assert picture.shape == (2 * down, 5 * across)

    def cell(row, column):
        inside = picture[row * down + 1 : (row + 1) * down - 1]
        return torch.from_numpy(inside[:, column * across + 1 : (column + 1) * across - 1])

    torch.testing.assert_close(cell(0, 0), x[0, 0, 0])
    torch.testing.assert_close(cell(0, 1), 0.35 + 0.25 * x[0, 2, 0])  # not visible
    assert (cell(0, 3) == 1).all()  # after the last frame
    found = tc.traverse(model, x, mask=some(2, 0, 1)).rolled
    for offset in range(5):
        torch.testing.assert_close(cell(1, offset), found[0, offset, 0])


# Refusals -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "use, says",
    [
        (lambda m, x: tc.log_px_paper(m, x), "RollingVAE has no importance weights of frames"),
        (lambda m, x: log_weights(m, x, 3), "RollingVAE has no importance weights of frames"),
        (lambda m, x: tc.metrics.traversal(m, x), "RollingVAE does not support traversals of"),
        (lambda m, x: tc.DecodedTraversal.of(m, x), "RollingVAE does not support traversals of"),
        (lambda m, x: tc.metrics.filled_costs(m, x), "filled_costs: gains_by_visible measures"),
        (lambda m, x: tc.evaluate(m, x, window=3), "options samples, seed, .*, not window"),
        (lambda m, x: tc.metrics.per_sequence(m, x, rate=1), "options .*, not rate"),
        (lambda m, x: tc.metrics.per_sequence(m, x, closed=True), "options .*, not closed"),
        (
            lambda m, x: tc.traverse(m, x, rate=0.5, axis=0),
            "do not take rate, axis: the only option is mask",
        ),
        (lambda m, x: tc.traverse(m, x, mask=some(2)), "at least one frame that is present"),
        (lambda m, x: tc.evaluate(m, x + 1), r"frames must lie in \[0, 1\]"),
        (lambda m, x: export(m, "/nowhere", 5), "only a TopographicVAE or a VAE is exported"),
    ],
)
def test_options_that_a_rolling_vae_does_not_have_are_refused(use, says):
    with pytest.raises(tc.BadInput, match=says) as refused:
        use(model_of(), frames().float())
    assert "\n" not in str(refused.value)


def test_families_without_these_metrics_are_refused():
    model, x = tc.PartWhole((1, 28, 28)), torch.rand(1, 1, 1, 28, 28)
    for use in (tc.evaluate, tc.metrics.per_sequence):
        with pytest.raises(tc.BadInput, match="PartWhole does not support these metrics"):
            use(model, x)
    with pytest.raises(tc.BadInput, match="a PartWhole has no importance weights: use evidence"):
        tc.log_px(model, x)
