"""Encoding of frames one at a time, and prediction of missing and next frames."""

import itertools
import json
import math
from dataclasses import replace

import pytest
import torch
from conftest import EXTENSIONS, every, every_topography

import topocaps as tc
from topocaps.integrations.torchmetrics import EquivarianceError
from topocaps.metrics import (
    axis_moved,
    axis_shares,
    filled_costs,
    own_axes,
    traversal,
    unseen_lags,
)
from topocaps.metrics.equivariance import equivariance_errors
from topocaps.study.evaluation.topographic import TopographicEvaluation

FRAME = (1, 4, 4)


def tvae(topography, **settings):
    return tc.TopographicVAE.mlp(
        frame_shape=FRAME, topography=topography, hidden=(9,), mu=-5.0, **settings
    )


@every({name: one for name, one in EXTENSIONS.items() if one[0].causal})
def test_streaming_equals_encoding_the_whole_sequence(topography, frames):
    model, x = tvae(topography), torch.rand(3, frames, *FRAME)
    stream = model.stream()
    one_by_one = torch.stack([stream(x[:, n]) for n in range(frames)], 1)
    torch.testing.assert_close(one_by_one, model.encode(x), rtol=1e-5, atol=1e-5)


def test_a_stream_predicts_by_rolling_ahead():
    model = tvae(tc.Topography(2, (5,), window=3, causal=True))
    stream = model.stream()
    with pytest.raises(tc.BadInput, match="the stream has no frames yet"):
        stream.predict()
    t = stream(torch.rand(2, *FRAME))
    ahead = stream.predict(3)
    assert ahead.shape == (2, 3, *FRAME)
    torch.testing.assert_close(ahead[:, 1], model.decode(t.roll(2, -1)))
    still = stream.predict(2, rate=0.0)
    torch.testing.assert_close(still[:, 0], model.decode(t))
    with pytest.raises(tc.BadInput, match="frames"):
        stream.predict(0)
    with pytest.raises(tc.BadInput, match="2 sequences, and the frame has 3"):
        stream(torch.rand(3, *FRAME))


def test_streams_need_a_causal_topography():
    with pytest.raises(tc.BadInput, match="causal=True"):
        tvae(tc.Topography(2, (5,), window=3)).stream()
    # the window of a VAE binds nothing
    vae = tc.VAE.mlp(frame_shape=FRAME, topography=tc.Topography(2, (5,), window=4), hidden=(9,))
    x = torch.rand(2, 3, *FRAME)
    assert vae(x).elbo.shape == (2, 3)
    stream = vae.stream()
    torch.testing.assert_close(torch.stack([stream(x[:, n]) for n in range(3)], 1), vae.encode(x))
    torch.testing.assert_close(stream.predict(1)[:, 0], vae.decode(stream.t))  # it does not roll


@every_topography
def test_missing_frames_have_no_effect(topography, frames):
    """Their terms are 0, and nothing depends on what stands in their place, NaN included."""
    model, x = tvae(topography), torch.rand(2, frames, *FRAME)
    mask = torch.ones(2, frames, dtype=torch.bool)
    mask[0, 1] = mask[1, 0] = False
    other = torch.where(mask[..., None, None, None], x, torch.nan)
    found = []
    for frames_given in (x, other):
        torch.manual_seed(3)
        found.append(model(frames_given, mask))
    for name in ("log_px_given_t", "kl_z", "kl_u"):
        one, same = (getattr(evidence, name) for evidence in found)
        torch.testing.assert_close(one, same)
        assert (one[~mask] == 0).all() and (one[mask] != 0).all()
    torch.testing.assert_close(model.encode(x, mask=mask), model.encode(other, mask=mask))
    whole = torch.ones_like(mask)
    torch.testing.assert_close(model.encode(x, mask=whole), model.encode(x))


class Rolls(tc.VAE):
    """Frames of one row of pixels, which are its capsule: t is the frame, and decodes to it."""

    @classmethod
    def make(cls, topography):
        sites = topography.shape[0]
        model = cls.mlp(frame_shape=(1, 1, sites), topography=topography, hidden=(3,))
        model.encode_per_axis = lambda x, sample=False, mask=None: [x[:, :, :1, 0]]
        model.decode = lambda t: t[..., None, :].clamp(0, 1)
        return model

    rate = 1.0


def bars(sites, frames, shift=1):
    """A bright site that moves ``shift`` sites a frame, from another start in every sequence."""
    x = torch.zeros(sites, frames, 1, 1, sites)
    for n in range(sites):
        for frame in range(frames):
            x[n, frame, 0, 0, (n + shift * frame) % sites] = 1
    return x


@pytest.mark.parametrize("velocity", [1.0, 2.0, -1.0])
def test_missing_frames_are_filled_by_rolling_the_nearest_one(velocity):
    x = bars(6, 6, int(velocity))
    model = Rolls.make(tc.Topography(1, (6,), velocity=velocity))
    mask = torch.rand(6, 6) > 0.5
    mask[:, 2] = True
    filled = model.fill(torch.where(mask[..., None, None, None], x, 0.3), mask, rate=velocity)
    torch.testing.assert_close(filled, x)
    held = model.fill(x, mask, rate=0.0)
    assert torch.equal(held[mask], x[mask]) and not torch.equal(held, x)
    for wrong in (mask[0], mask.tolist()):
        with pytest.raises(tc.BadInput, match="True where a frame is present"):
            model.fill(x, wrong)
    with pytest.raises(tc.BadInput, match="at least one frame that is present"):
        model.fill(x, torch.zeros(6, 6, dtype=torch.bool))
    with pytest.raises(tc.BadInput, match="True where a frame is present"):
        tvae(tc.Topography(1, (5,)))(torch.rand(1, 3, *FRAME), torch.ones(1, 2, dtype=torch.bool))


@pytest.mark.parametrize("frames, velocity", [(10, 1.0), (20, 1.0), (15, -1.0), (15, 2.0)])
def test_frames_of_open_sequences_are_not_filled_across_the_ends(frames, velocity):
    x = bars(15, frames, int(velocity))
    model = Rolls.make(tc.Topography(1, (15,), velocity=velocity))
    mask = torch.ones(15, frames, dtype=torch.bool)
    mask[:, -2:] = False  # nearer to the first than to the last that is there
    filled = model.fill(x, mask, rate=velocity, closed=False)
    torch.testing.assert_close(filled, x)
    round_the_end = model.fill(x, mask, rate=velocity)
    assert torch.equal(round_the_end, x) == (frames == 15)
    costs = [
        filled_costs(model, x, shares=(0.3,), rate=velocity, closed=closed)["0.3"]["filled"]
        for closed in (False, True)
    ]
    assert costs[0] < 0.01 and (costs[1] < 0.01) == (frames == 15)


@pytest.mark.parametrize("dtype", [torch.uint8, torch.bool])
def test_integer_frames_are_refused_with_a_mask_too(dtype):
    model, mask = tvae(tc.Topography(1, (5,))), torch.tensor([[True, False, True]])
    x = torch.ones(1, 3, *FRAME, dtype=dtype)
    for call in (model, model.fill, lambda x, mask: model.encode(x, mask=mask)):
        with pytest.raises(tc.BadInput, match="floating point"):
            call(x, mask)


def test_capsules_of_several_axes_need_an_axis_to_roll_along():
    model = tvae(tc.Topography(1, (3, 4), window=2, causal=True))
    x, mask = torch.rand(1, 3, *FRAME), torch.tensor([[True, False, True]])
    stream = model.stream()
    t = stream(x[:, 0])
    for call in (lambda: model.fill(x, mask), lambda: stream.predict()):
        with pytest.raises(tc.BadInput, match="axis=0 or 1"):
            call()
    before = model.encode(x, mask=mask)[:, 0]
    for axis in (0, 1):
        along = before.roll(1, axis + 2)
        torch.testing.assert_close(model.fill(x, mask, axis=axis)[:, 1], model.decode(along))
        ahead = stream.predict(axis=axis)[:, 0]
        torch.testing.assert_close(ahead, model.decode(t.roll(1, axis + 2)))


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("cyclic", [False, True])
def test_a_perfect_roll_has_the_full_traversal_gain(causal, cyclic):
    """From the first window on, from the middle, or round: frames that were not seen are met."""
    topography = tc.Topography(1, (12,), causal=causal, cyclic=cyclic)
    model = Rolls.make(topography)
    x = torch.zeros(2, 6, 1, 1, 12)
    for n in range(2):
        for frame in range(6):
            x[n, frame, 0, 0, n + 3 + frame] = 1
    if cyclic:
        x, model = bars(6, 6), Rolls.make(replace(topography, shape=(6,)))
    model.x_given_t.forward = lambda t: torch.distributions.Independent(
        torch.distributions.Bernoulli(model.decode(t).clamp(1e-4, 1 - 1e-4), validate_args=False), 3
    )
    walked = traversal(model, x, window=3)
    assert walked.overall > 0.98
    assert walked.unseen.sum(1).tolist() == [len(unseen_lags(3, 6, causal))] * len(x)


def test_unseen_lags_are_those_outside_the_window():
    for window in range(1, 8):
        for causal in (False, True):
            seen = range(1 - window, 1) if causal else range(-(window // 2), (window + 1) // 2)
            lags = set(unseen_lags(window, 7, causal))
            assert lags == set(range(7)) - {lag % 7 for lag in seen}


@pytest.mark.parametrize("capsules", [1, 2, 3])
def test_of_two_axes_each_capsule_of_a_sequence_rolls_along_its_own(capsules):
    """Some sequences move down, some to the right, and some capsules have their axes exchanged;
    each is met along its own axis."""
    topography = tc.Topography(capsules, (5, 5), (1, 1), window=3)
    assert topography.axes == (0, 1)
    x = torch.zeros(8, 5, capsules, 5, 5)
    for n, frame, capsule in itertools.product(range(8), range(5), range(capsules)):
        row, column = (n + frame, n) if (n + capsule) % 2 else (n, n + frame)
        x[n, frame, capsule, row % 5, column % 5] = 1
    frame_shape = (capsules, 5, 5)
    model = tc.TopographicVAE.mlp(frame_shape=frame_shape, topography=topography, hidden=(3,))
    model.encode_per_axis = lambda x, sample=False, mask=None: [x]
    model.decode = lambda t: t
    model.x_given_t.forward = lambda t: torch.distributions.Independent(
        torch.distributions.Bernoulli(t.clamp(1e-4, 1 - 1e-4), validate_args=False), 3
    )
    walked = traversal(model, x)
    own = [[(n + capsule + 1) % 2 for capsule in range(capsules)] for n in range(8)]
    assert walked.overall > 0.98 and walked.axis.tolist() == own
    assert torch.allclose(equivariance_errors(x, axis=walked.axis), torch.zeros(8), atol=1e-5)
    adapted = EquivarianceError()
    adapted.update(x, walked.axis)
    assert adapted.compute() < 1e-5
    with pytest.raises(tc.BadInput, match="axis must be between 0 and 1"):
        equivariance_errors(x, axis=walked.axis - 2)
    mask = torch.ones(8, 5, dtype=torch.bool)
    mask[:, 2] = mask[1, 3] = False
    torch.testing.assert_close(model.fill(x, mask, axis=walked.axis), x)
    rolled = torch.stack([model.roll(x[:, 0], n, walked.axis) for n in range(5)], 1)
    torch.testing.assert_close(rolled, x)
    assert torch.equal(model.roll(x[:, 0], 1, walked.axis - 2), rolled[:, 1])  # from the end
    for wrong in (torch.full((capsules,), 2), [2] * capsules, "x", 0.5, torch.zeros(capsules)):
        with pytest.raises(tc.BadInput, match="is not one of the 2 axes"):
            model.roll(x[:, 0], 1, wrong)
    for wrong in (torch.zeros(capsules + 1, dtype=torch.long), torch.zeros(1, 1, 1, 1).long()):
        with pytest.raises(tc.BadInput, match=r"axis must be \(…, capsules\)"):
            model.roll(x[:, 0], 1, wrong)
        with pytest.raises(tc.BadInput, match="axis must be an integer, or of shape"):
            model.fill(x, mask, axis=wrong)


@pytest.mark.parametrize("batch", [1, 2, 3])
def test_axes_of_capsules_are_rolled_along_in_batches_of_any_size(batch):
    topography = tc.Topography(2, (4, 3), window=3, causal=True)
    t = torch.randn(batch, 2, 4, 3)
    expected = torch.stack([t[:, 0].roll(1, 1), t[:, 1].roll(1, 2)], 1)
    for axis in ([0, 1], (0, -1), torch.tensor([0, 1]), torch.tensor([[0, 1]]).expand(batch, 2)):
        torch.testing.assert_close(topography.roll(t, 1, axis), expected)
    model = tvae(topography)
    stream = model.stream()
    seen = stream(torch.rand(batch, *FRAME))
    coming = model.decode(topography.roll(seen, 1, [0, 1]))
    torch.testing.assert_close(stream.predict(1, axis=[0, 1])[:, 0], coming)


def test_the_prior_of_two_axes_is_eq_21():
    """t (sum of roots of energies, one an axis) = z - mu."""
    topography = tc.Topography(2, (4, 3), (3, 1), window=3)
    z, u = torch.randn(2, 5, 5, 2, 4, 3).double()
    t = tc.studentize(z, u, topography, mu=-2.0)
    roots = [
        (u.square().flatten(1) @ topography.matrix(5, axis).double().T).sqrt() for axis in (0, 1)
    ]
    torch.testing.assert_close(t.flatten(1) * sum(roots), z.flatten(1) + 2.0)
    drawn = tc.TopographicStudentT(topography, 5, mu=-20.0)
    mean = drawn.rsample((4000,)).mean()
    assert math.isclose(mean, drawn.mean.mean(), rel_tol=0.25)  # near, as it says


@pytest.mark.parametrize("share", [0.1, 0.5])
def test_only_a_model_that_rolls_fills_missing_frames(share):
    x = bars(6, 6)
    model = Rolls.make(tc.Topography(1, (6,)))
    (costs,) = filled_costs(model, x, shares=(share,)).values()
    assert costs["filled"] < 0.01 < costs["mean"] < costs["held"]
    again = torch.cat([x, x], 1)  # every image is shown twice
    (costs,) = filled_costs(model, again, shares=(0.05,)).values()
    assert math.isnan(costs["filled"])


def test_the_axis_along_which_capsules_moved_is_inferred():
    t = torch.randn(9, 1, 2, 5, 6)
    down = torch.cat([t.roll(n, 3) for n in range(4)], 1)
    right = torch.cat([t.roll(n, 4) for n in range(4)], 1)
    still = t.expand(-1, 4, -1, -1, -1)
    moved = axis_moved(torch.cat([down, right, still]))
    assert moved.tolist() == [[0, 0]] * 9 + [[1, 1]] * 9 + [[-1, -1]] * 9
    apart = torch.stack([down[:, :, 0], right[:, :, 1]], 2)  # capsules know nothing of each other
    assert axis_moved(apart).tolist() == [[0, 1]] * 9
    moved = moved[:, 0]
    factors = torch.zeros(27, 4, 3, dtype=torch.long)
    for column in range(3):
        factors[9 * column : 9 * column + 9, :, column] = torch.arange(4)
    shares = axis_shares(moved, factors)
    assert shares == {0: [1.0, 0.0], 1: [0.0, 1.0], 2: [0.0, 0.0]}
    assert own_axes(shares) == {0: 1.0, 1: 1.0, 2: 0.0}  # a third factor has no axis left
    assert own_axes({"x": [0.6, 0.4], "y": [0.9, 0.0]}) == {"x": 0.4, "y": 0.9}  # not both the same
    assert own_axes({"x": [0.1, 0.2, 0.7]}) == {"x": 0.7}


def test_noise_moves_along_no_axis_and_neither_does_what_moves_along_two():
    """Of small capsules and few frames, noise seems to move less than once in twenty times."""
    assert (axis_moved(torch.randn(1000, 4, 1, 5, 6)) >= 0).float().mean() < 0.05
    t = torch.randn(50, 1, 2, 5, 6)
    for rate in (1, -1):
        diagonal = torch.cat([t.roll((rate * n, rate * n), (3, 4)) for n in range(4)], 1)
        assert (axis_moved(diagonal, rate) == -1).all()
        for axis in (0, 1):
            along = torch.cat([t.roll(rate * n, 3 + axis) for n in range(4)], 1)
            assert (axis_moved(along, rate) == axis).all()
            noisy = along + 0.3 * torch.randn_like(along)
            assert (axis_moved(noisy, rate) == axis).all()


def test_metrics_of_every_kind_of_topography_are_plain_numbers():
    """One axis, two, open, causal, slow: evaluate takes them all."""
    for topography, rate, closed in (
        (tc.Topography(2, (5,), window=3, velocity=0.5), 0.5, None),
        (tc.Topography(2, (5,), window=3, cyclic=False), 1.0, False),
        (tc.Topography(2, (5,), window=3), 1.0, False),
        (tc.Topography(2, (5,), window=3, causal=True), 1.0, None),
        (tc.Topography(2, (5,), window=3, velocity=-1.0), -1.0, None),
        (tc.Topography(2, (5,), window=3, velocity=0.0), 0.0, None),
        (tc.Topography(1, (5, 5), window=3), 1.0, None),
        (tc.Topography(1, (2, 3, 3), window=3), 1.0, None),
        (tc.Topography(2, (5, 4), window=3, apart=True), 1.0, None),
    ):
        x, factors = torch.rand(4 * 6, *FRAME), torch.arange(6).repeat(4)[:, None]
        order = torch.arange(24).reshape(4, 6)
        sequences = tc.Sequences(x, order, factors, ("phase",), torch.zeros(4, dtype=torch.long))
        found = tc.evaluate(tvae(topography), sequences, rate=rate, closed=closed)
        json.dumps(found)
        several = len(topography.shape) > 1
        assert found["traversal_gain"] < 1 and found["equivariance_error"] > 0
        told = not several or topography.apart
        assert set(found["missing"]) == ({"0.1", "0.3", "0.5"} if told else set())
        assert ("axes" in found) == ("own_axis" in found) == several
        labels = [row.label for row in TopographicEvaluation().quantities([found])]
        assert ("phase along its own axis" in labels) == several
        assert (found["capcorr"] == {}) == (several or not topography.cyclic or rate == 0)
