"""Traversals from Python: every frame is decoded from the rolled t of one frame."""

import pytest
import torch
from conftest import every_topography

import topocaps as tc
from topocaps.data import Batch
from topocaps.integrations.torchmetrics import TraversalGain
from topocaps.study import figures

FRAME = (1, 4, 4)


def model(topography):
    return tc.TopographicVAE.mlp(FRAME, topography, hidden=(8,), mu=-3.0)


@every_topography
def test_every_frame_is_decoded_from_the_rolled_t_of_one_frame(topography, frames):
    one, x = model(topography), torch.rand(2, frames, *FRAME)
    walked = tc.traverse(one, x, axis=0)
    assert walked.x.shape == walked.rolled.shape == walked.reconstructed.shape == x.shape
    shown = walked.x if topography.cyclic and not topography.causal else x
    t = one.encode_per_axis(shown)[0]  # along the first axis, where they are kept apart
    if topography.causal and topography.cyclic:  # begins with the frame whose past is there
        assert torch.equal(walked.x, x.roll(1 - topography.window, 1))
        t = t.roll(1 - topography.window, 1)
    assert len(walked.lags) == frames and walked.lags == sorted(walked.lags)
    for place, lag in enumerate(walked.lags):
        t_there = one.roll(t[:, walked.start], topography.velocity * lag)
        torch.testing.assert_close(walked.rolled[:, place], one.decode(t_there))
    torch.testing.assert_close(walked.reconstructed, one.decode(t))
    torch.testing.assert_close(
        walked.rolled[:, walked.start], walked.reconstructed[:, walked.start]
    )


def test_open_sequences_keep_the_order_of_their_frames():
    x = torch.rand(2, 7, *FRAME)
    walked = tc.traverse(model(tc.Topography(2, (7,), window=3, cyclic=False)), x)
    assert torch.equal(walked.x, x)
    assert walked.lags == [-3, -2, -1, 0, 1, 2, 3] and walked.start == 3
    assert walked.unseen[0].tolist() == [True, True, False, False, False, True, True]


def test_the_rolled_t_depends_on_frames_of_the_window_only():
    one, x = model(tc.Topography(2, (9,), window=3)), torch.rand(1, 9, *FRAME)
    other = x.clone()
    other[:, 2:8] = torch.rand(1, 6, *FRAME)
    found, again = tc.traverse(one, x), tc.traverse(one, other)
    assert found.unseen[0].tolist() == [False] * 2 + [True] * 6 + [False]
    assert torch.equal(found.rolled, again.rolled)
    assert not torch.equal(found.reconstructed, again.reconstructed)


def test_the_rate_is_the_topographys_unless_given():
    x = torch.rand(2, 6, *FRAME)
    half = model(tc.Topography(2, (6,), window=3, velocity=0.5))
    assert torch.equal(tc.traverse(half, x).rolled, tc.traverse(half, x, rate=0.5).rolled)
    still = tc.traverse(half, x, rate=0.0)
    assert torch.equal(still.rolled, still.rolled[:, :1].expand_as(x))
    assert not torch.allclose(tc.traverse(half, x, rate=1.0).rolled, tc.traverse(half, x).rolled)


def test_the_given_axis_is_rolled():
    one, x = model(tc.Topography(1, (5, 4), window=3)), torch.rand(3, 5, *FRAME)
    t = one.encode(x)
    for axis in (0, 1):
        walked = tc.traverse(one, x, axis=axis)
        assert walked.axis.tolist() == [[axis]] * 3
        torch.testing.assert_close(
            walked.rolled[:, 2], one.decode(one.topography.roll(t[:, 0], 2, axis))
        )
    chosen = tc.traverse(one, x)
    expected = tc.metrics.traversal(one, x).axis
    assert torch.equal(chosen.axis, expected)
    for n, axis in enumerate(expected):
        torch.testing.assert_close(
            chosen.rolled[n], tc.traverse(one, x[n : n + 1], axis=axis).rolled[0]
        )


def test_a_single_sequence_an_array_and_bytes_are_accepted():
    one, x = model(tc.Topography(2, (6,), window=3)), torch.rand(1, 6, *FRAME)
    expected = tc.traverse(one, x).rolled
    for same in (x[0], x.numpy(), x[0].numpy(), x.double(), tc.Sequences.of(x)):
        assert torch.equal(tc.traverse(one, same).rolled, expected)
    in_bytes = torch.randint(256, (1, 6, *FRAME), dtype=torch.uint8)
    assert torch.equal(tc.traverse(one, in_bytes).x, in_bytes.float() / 255)


def test_drawn_latents_are_those_of_the_metric_and_the_seed_decides_them():
    one, x = model(tc.Topography(2, (6,), window=3)), torch.rand(2, 6, *FRAME)
    before = torch.get_rng_state()
    drawn = tc.traverse(one, x, sample=True)
    assert torch.equal(torch.get_rng_state(), before)
    cost = -(x * drawn.rolled.log() + (1 - x) * (1 - drawn.rolled).log()).flatten(2).sum(2)
    torch.testing.assert_close(cost, tc.metrics.traversal(one, x).rolled, rtol=1e-4, atol=1e-4)
    assert not torch.equal(tc.traverse(one, x, sample=True, seed=1).rolled, drawn.rolled)


def test_a_traversal_is_drawn_like_figures():
    one, x = model(tc.Topography(2, (6,), window=3)), torch.rand(2, 6, *FRAME)
    pictures = [
        axis.images[0].get_array()
        for figure in (
            tc.traverse(one, x, sample=True).figure(),
            figures.traversals(one, Batch(x, None)),
        )
        for axis in figure.axes
    ]
    assert len(pictures) == 4
    assert (pictures[0] == pictures[2]).all() and (pictures[1] == pictures[3]).all()


@pytest.mark.parametrize(
    "x, how, says",
    [
        (torch.rand(2, 6, 1, 4, 5), {}, "frame"),
        (torch.rand(2, 2, *FRAME), {}, "window 3 is longer"),
        (2 * torch.rand(2, 6, *FRAME), {}, r"\[0, 1\]"),
        (torch.rand(2, 6, *FRAME), {"axis": 1}, "axis 1 is not one of the 1 axes"),
        (torch.rand(2, 6, *FRAME), {"rate": float("nan")}, "number of sites"),
        (torch.rand(2, 6, *FRAME), {"window": 7}, "6 frames"),
        ("frames", {}, "array or a tensor"),
    ],
)
def test_mistakes_have_messages(x, how, says):
    with pytest.raises(tc.BadInput, match=says):
        tc.traverse(model(tc.Topography(2, (6,), window=3)), x, **how)


def test_models_without_rolls_are_refused():
    with pytest.raises(tc.BadInput, match="PartWhole does not support traversals"):
        tc.traverse(tc.PartWhole((1, 28, 28)), torch.rand(1, 1, 1, 28, 28))
    vectors = tc.VAE.mlp((5,), tc.Topography(2, (3,)))
    with pytest.raises(tc.BadInput, match="channels"):
        tc.traverse(vectors, torch.rand(2, 6, 5)).figure()


@pytest.mark.parametrize("likelihood", ["bernoulli", "gaussian"])
def test_the_gain_of_a_traversal_is_that_of_its_frames(likelihood):
    """Anyone's predictions are judged as ours are, at once and batch by batch."""
    one = tc.TopographicVAE.mlp(
        FRAME, tc.Topography(2, (6,), window=3), (8,), mu=-0.5, likelihood=likelihood
    )
    x = torch.rand(5, 6, 1, 4, 4)
    walked, wanted = tc.traverse(one, x, sample=True), tc.metrics.traversal(one, x)
    found = tc.metrics.prediction(walked.x, walked.rolled, walked.unseen, likelihood=likelihood)
    torch.testing.assert_close(found.rolled, wanted.rolled)
    assert found.overall == pytest.approx(wanted.overall, rel=1e-5)
    metric = TraversalGain(likelihood=likelihood)
    for part in (slice(0, 2), slice(2, 5)):
        metric.update(walked.x[part], walked.rolled[part], walked.unseen[part])
    assert metric.compute().item() == pytest.approx(found.overall)


def test_predictions_of_other_frames_are_refused():
    x = torch.rand(2, 3, 1, 4, 4)
    with pytest.raises(tc.BadInput, match=r"unseen \(batch, time\), not .*\(2, 4\)"):
        tc.metrics.prediction(x, x, torch.ones(2, 4, dtype=torch.bool))
