"""Sequences made of single pictures, and shifted sequences."""

import numpy as np
import pytest
import torch
from own_sources import (
    COLOUR,
    SIDE,
    N,
    S,
    as_shown,
    pictures,
    shown,
    two_steps,
    write_pictures,
)

import topocaps as tc
from topocaps.data import Sequences, from_images, read, split
from topocaps.data.shifted import ShiftedSequences, room_to_shift


def blob(side=17):
    """A smooth spot off the centre: one grey picture in [0, 1]."""
    y, x = np.mgrid[:side, :side] - side // 2
    return np.exp(-((x - 3) ** 2 + y**2) / 6).astype(np.float32)


def centre(x):
    """Where the mass of pictures (…, height, width) is: x and y from the middle."""
    grid = torch.arange(x.shape[-1]) - (x.shape[-1] - 1) / 2
    mass = x.sum((-2, -1))
    return (
        torch.stack([(x.sum(-2) * grid).sum(-1), (x.sum(-1) * grid).sum(-1)], -1) / mass[..., None]
    )


def moved(name, frames=8, images=None):
    """One sequence from its first value on, (frames, channels, height, width)."""
    sequences = from_images(blob()[None] if images is None else images, name, frames)
    script = torch.stack([torch.zeros(frames, dtype=torch.long), torch.arange(frames)], -1)
    return sequences.show(script).x


def test_pictures_rotate_grow_and_shift():
    turn = 2 * np.pi * torch.arange(8) / 8
    expected = 3 * torch.stack([turn.cos(), -turn.sin()], -1)  # counter-clockwise, y points down
    assert (centre(moved("rotation"))[:, 0] - expected).abs().max() < 0.1
    assert torch.allclose(moved("rotation")[0, 0], torch.from_numpy(blob()), atol=1e-6)
    sizes = centre(moved("scale"))[:, 0, 0] / 3
    assert (sizes - torch.linspace(0.60, 1.26, 8)).abs().max() < 0.05
    middle = np.roll(blob(), -3, 1)[None]
    for axis, name in enumerate(("shift_x", "shift_y")):
        found = centre(moved(name, images=middle))[:, 0]
        assert (found[:, axis] - 17 * torch.linspace(-0.25, 0.25, 8)).abs().max() < 0.2
        assert found[:, 1 - axis].abs().max() < 0.05


def test_hue_colours_grey_pictures_and_rotates_other_colours():
    grey = moved("hue", 3)
    assert grey.shape == (3, 3, 17, 17)
    assert torch.allclose(grey[1, 1], torch.from_numpy(blob())) and grey[1, 0].max() == 0
    red = np.zeros((1, 3, 17, 17), np.float32)
    red[0, 0] = blob()
    assert torch.allclose(moved("hue", 3, red), grey, atol=1e-6)


def test_moving_pictures_are_split_and_trained_like_other_sequences(tmp_path):
    names = ("rotation", "scale", "shift_x", "shift_y", "hue")
    folder = write_pictures(tmp_path / "stills", COLOUR.reshape(-1, SIDE, SIDE, 3))
    sequences = from_images(folder, names, 9, size=8)
    assert (len(sequences), sequences.frames, sequences.frame_shape) == (N * S, 9, (3, 8, 8))
    batch = sequences.draw(200, torch.Generator())
    assert batch.x.shape == (200, 9, 3, 8, 8) and batch.x.min() >= 0 and batch.x.max() <= 1
    changes = (batch.factors != batch.factors[:, :1]).any(1)
    assert (changes.sum(1) == 1).all() and changes.sum(0).min() > 20
    fixed = sequences.balanced(2, seed=0)
    assert len(fixed) == 10 and fixed.fixed().equal(sequences.balanced(2, seed=0).fixed())
    own = read(sequences)
    train, held_out = split(own, 0.2)
    assert (len(train), len(held_out)) == (24, 6) and own.likelihood == "bernoulli"
    assert two_steps(train)
    np.save(tmp_path / "stills.npy", COLOUR[:, 0])
    for images in (tmp_path / "stills.npy", COLOUR[:, 0], read(COLOUR[:, :1])):
        assert torch.equal(from_images(images, "scale", 4).images, as_shown(COLOUR)[:, 0].mul(255))


@pytest.mark.parametrize(
    "images, name, sentence",
    [
        (blob()[None], "spin", "several of rotation, scale, shift_x, shift_y, hue, not 'spin'"),
        (COLOUR, "scale", "too many axes"),
        (8 * blob()[None], "scale", r"must be in \[0, 1\]"),
        (read(COLOUR), "scale", "these are sequences already"),
    ],
)
def test_invalid_pictures_and_transformations_are_refused(images, name, sentence):
    with pytest.raises(tc.BadInput, match=sentence):
        from_images(images, name, 4)


def test_large_pictures_are_shrunk_and_reported():
    own = read(pictures(side=20), at_most=10)
    assert own.summary["frame_shape"] == [3, 10, 10]
    assert "pictures shrunk from 20 x 20" in str(own)
    assert torch.equal(shown(own), shown(read(pictures(side=20), size=10)))
    wide = np.zeros((2, 3, 12, 30), np.uint8)
    assert read(wide, at_most=6).summary["frame_shape"] == [1, 6, 15]
    for how in ({"at_most": 16}, {"size": 16, "at_most": 4}):
        own = read(COLOUR, **how)
        assert torch.equal(shown(own), as_shown(COLOUR)) and "small" not in str(own)
    assert read(np.zeros((2, 3, 40), np.float32), at_most=8).summary["frame_shape"] == [40]


# in other places ----------------------------------------------------------------------------------


def shifted(shift=2):
    x = torch.from_numpy(COLOUR).movedim(-1, -3).flatten(0, 1)
    return ShiftedSequences(x, torch.arange(N * S).reshape(N, S), shift=shift)


def test_fixed_sets_are_not_shifted():
    sequences = shifted()
    assert torch.equal(next(sequences.batches(N)).x, as_shown(COLOUR))
    fixed = sequences.balanced(3, seed=0)
    among = (next(fixed.batches(3)).x[:, None] == as_shown(COLOUR)).flatten(2).all(2)
    assert among.any(1).all()


def test_all_frames_of_a_drawn_sequence_are_shifted_alike():
    drawn = shifted().draw(400, torch.Generator().manual_seed(0)).x
    middle = as_shown(COLOUR)[..., 2:-2, 2:-2]  # what no shift loses
    found = set()
    for down in range(5):
        for right in range(5):
            part = drawn[..., down : down + SIDE - 4, right : right + SIDE - 4]
            hits = (part[:, None] == middle).flatten(2).all(2).any(1)
            found |= {(down, right)} if hits.any() else set()
    assert len(found) == 25
    moved = shifted().show(torch.tensor([[[7, 2, -1]]])).x[0, 0]
    x = as_shown(COLOUR).flatten(0, 1)[7]
    assert torch.equal(moved[:, :-2, 1:], x[:, 2:, :-1])
    assert torch.equal(moved[:, -1, 1:], x[:, -1, :-1])  # the edge goes on
    assert torch.equal(moved[:, :-2, 0], x[:, 2:, 0])


def spots(places, side=40):
    """A sequence for each place (row, column): a spot that grows there."""
    x = torch.zeros(len(places), 4, 1, side, side)
    for clip, (row, column) in zip(x, places, strict=True):
        for n, frame in enumerate(clip):
            frame[0, row - n : row + n + 1, column - n : column + n + 1] = 1
    return Sequences.of(x)


@pytest.mark.parametrize(
    "places, room",
    [([(20, 20)], 1), ([(19, 20), (20, 20), (21, 20)], 2), ([(10, 10), (30, 12)], 4)],
)
def test_room_to_shift_is_twice_the_spread_or_a_tenth_of_a_side(places, room):
    assert room_to_shift(spots(places * 6)) == room


def test_black_frames_have_room_to_shift():
    assert room_to_shift(Sequences.of(torch.ones(3, 4, 1, 8, 8))) == 1


def test_shifted_sequences_train():
    assert two_steps(shifted())
    assert shifted(1).digest() != shifted(2).digest()
