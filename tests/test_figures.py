"""Figures show what they say: pixels are looked up, not just files counted."""

import numpy as np
import pytest
import torch

import topocaps as tc
from topocaps.data import Batch
from topocaps.device import seeded
from topocaps.study import figures
from topocaps.study.evaluation.topographic import evenly, examples


def tiny_model(channels=1):
    topography = tc.Topography(2, (6,), window=3)
    return tc.TopographicVAE.mlp(frame_shape=(channels, 4, 4), topography=topography, hidden=(8,))


@pytest.mark.parametrize("channels", [1, 3])
def test_traversals_show_input_reconstruction_and_rolled(channels):
    model, x = tiny_model(channels), torch.rand(2, 6, channels, 4, 4)
    figure = figures.traversals(model, Batch(x, None))
    assert len(figure.axes) == 2
    picture = figure.axes[0].images[0].get_array()
    assert picture.shape[:2] == (3 * 6, 6 * 6)
    first = np.asarray(picture)[1:5, 1:5].reshape(4, 4, channels)
    np.testing.assert_allclose(first, x[0, 0].permute(1, 2, 0), atol=1e-6)
    unseen = np.asarray(picture)[1:5, 2 * 6 + 1 : 2 * 6 + 5].reshape(4, 4, channels)
    assert unseen.min() >= 0.35 and unseen.max() <= 0.6  # greyed
    rolled = np.asarray(picture)[2 * 6 + 1 : 2 * 6 + 5, 1:5]
    direct = np.asarray(picture)[6 + 1 : 6 + 5, 1:5]
    np.testing.assert_allclose(rolled, direct, atol=1e-6)  # rolled by nothing
    assert len(figure.axes[0].patches) == 2
    with seeded(0):
        t = model.encode(x, sample=True)
    ahead = model.decode(model.topography.roll(t[:1, 0], 2))[0].permute(1, 2, 0).detach()
    third = np.asarray(picture)[2 * 6 + 1 : 2 * 6 + 5, 2 * 6 + 1 : 2 * 6 + 5]
    np.testing.assert_allclose(third.reshape(4, 4, channels), ahead, atol=1e-5)


def test_missing_frames_are_drawn_as_the_sequence_moves():
    """Of two axes, each sequence's own; where time does not close, not round its ends."""
    topography = tc.Topography(1, (5, 5), window=3)
    model = tc.TopographicVAE.mlp(frame_shape=(1, 5, 5), topography=topography, hidden=(3,))
    model.encode_per_axis = lambda x, sample=False, mask=None: [x]
    model.decode = lambda t: t
    model.x_given_t.forward = lambda t: torch.distributions.Independent(
        torch.distributions.Bernoulli(t.clamp(1e-4, 1 - 1e-4), validate_args=False), 3
    )
    x = torch.zeros(4, 5, 1, 5, 5)
    for n in range(4):
        for frame in range(5):
            row, column = (n + frame, n) if n % 2 else (n, n + frame)
            x[n, frame, 0, row % 5, column % 5] = 1
    for frames, closed in ((5, None), (4, False)):
        figure = figures.filled(model, Batch(x[:, :frames], None), share=0.5, closed=closed)
        for axis in figure.axes:
            picture = np.asarray(axis.images[0].get_array())
            np.testing.assert_allclose(picture[14:], picture[:7], atol=1e-6)
            assert np.abs(picture[7:14] - picture[:7]).max() > 0.4  # some were missing


def test_frames_that_are_not_square_keep_their_borders():
    topography = tc.Topography(2, (6,), window=3)
    model = tc.TopographicVAE.mlp(frame_shape=(1, 4, 8), topography=topography, hidden=(8,))
    axis = figures.traversals(model, Batch(torch.rand(1, 6, 1, 4, 8), None)).axes[0]
    assert axis.images[0].get_array().shape == (3 * 6, 6 * 10)
    assert [p.get_y() for p in axis.patches] == [-0.5, 2 * 6 - 0.5]
    assert list(axis.get_yticks()) == [3, 9, 15]


def test_titles_name_the_factor_that_moves():
    factors = torch.zeros(2, 6, 2, dtype=torch.long)
    factors[0, :, 0] = factors[1, :, 0] = factors[1, :, 1] = torch.arange(6)
    figure = figures.traversals(tiny_model(), Batch(torch.rand(2, 6, 1, 4, 4), factors), ("a", "b"))
    titles = [axis.get_title(loc="left") for axis in figure.axes]
    assert titles == ["a moves", "a and b move"]


def test_vectors_are_not_drawn_as_pictures():
    model = tc.VAE.mlp(frame_shape=(5,), topography=tc.Topography(2, (3,)))
    with pytest.raises(tc.BadInput, match="channels"):
        figures.traversals(model, Batch(torch.rand(2, 6, 5), None))


@pytest.mark.parametrize(
    "topography", [tc.Topography(2, (7,), (3,), window=3), tc.Topography(1, (5, 4), (3, 2))]
)
def test_topography_shows_a_row_of_w(topography):
    figure = figures.topography(topography, 7)
    shown = np.asarray(figure.axes[0].images[0].get_array())
    assert shown.shape == (topography.shape[0], 7)
    assert shown.sum() == topography.window * topography.reach[0]
    if topography.window > 1:  # one frame later, one site further
        assert shown[4, 4] == 1 and shown[4, 2] == 0


def test_save_writes_whole_files_or_none(tmp_path, monkeypatch):
    figure = figures.history([{"epoch": 1, "elbo": 0, "log_px_given_t": 0, "kl_z": 0, "kl_u": 0}])
    figures.save(figure, tmp_path / "one.png")
    monkeypatch.setattr("os.replace", lambda *_: (_ for _ in ()).throw(OSError("full")))
    with pytest.raises(OSError, match="full"):
        figures.save(figure, tmp_path / "two.png")
    assert [path.name for path in tmp_path.iterdir()] == ["one.png"]


# The sequences that figures show ------------------------------------------------------------------


@pytest.fixture(scope="module")
def held_out():
    return tc.data.sprites(16)[1]


@pytest.mark.parametrize("each", [1, 2, 3, 4, 12])
def test_figures_of_sprites_show_factors_and_shapes_evenly(held_out, each):
    shown = examples(held_out, each)
    moves = (shown.factors != shown.factors[:, :1]).any(1)
    assert moves.sum(0).tolist() == [0, each, each, each, each]
    shapes = shown.factors[:, 0, 0]
    for chosen in (shapes, *(shapes[moves[:, column]] for column in range(1, 5))):
        counts = chosen.bincount(minlength=3)
        assert counts.max() - counts.min() <= 1
    again = examples(held_out, each)
    assert torch.equal(again.x, shown.x) and torch.equal(again.factors, shown.factors)


def test_twelve_traversals_of_sprites_show_every_factor_with_every_shape(held_out):
    factors = examples(held_out, 3).factors
    assert factors[:, 0, 0].tolist() == [0, 1, 2] * 4

    def orbits(sequences):
        return {frozenset(map(tuple, frames)) for frames in sequences.tolist()}

    assert orbits(factors) <= orbits(held_out.factors[held_out.order])


def test_metrics_of_sprites_do_not_depend_on_the_sequences_in_figures(held_out):
    """The digest of the set that tables of sprites are measured on."""
    measured = tc.data.sprites(16)[1].balanced(500, 0)
    assert measured.digest() == "031ba1bff8fd25c3"


def test_a_shape_that_is_rare_is_shown_as_often_as_it_can_be(held_out):
    some = evenly(held_out, "shape", 10_000)
    assert len(some) == len(held_out.balanced(None, 1))
    few = tc.Sequences.of(torch.rand(3, 4, 1, 2, 2))
    with pytest.raises(tc.BadInput, match="the sequences have no factors"):
        evenly(few, "shape", 1)


def test_figures_of_other_sequences_show_the_first_of_a_balanced_set():
    own = tc.Sequences.of(torch.rand(6, 4, 1, 2, 2))
    expected = next(own.balanced(2, seed=1).batches(2))
    assert torch.equal(examples(own, 2).x, expected.x)
