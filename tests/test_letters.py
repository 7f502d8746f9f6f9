"""Letters that rotate: which are held out, how they rotate, and the cache of images."""

import numpy as np
import torch

import topocaps as tc
from topocaps.data.download import cached_bytes
from topocaps.data.letter_images import FACES, LETTERS, VARIANTS, glyphs


def test_every_fifth_letter_is_held_out_in_all_faces():
    train, held_out = tc.data.letters()
    assert len(held_out) == 13 * len(FACES) and len(train) == 49 * len(FACES) * VARIANTS
    trained, held = (set(one.factors[:, 0].tolist()) for one in (train, held_out))
    assert held == set(range(0, len(LETTERS), 5)) and not trained & held
    assert {"k", "3"} < {LETTERS[n] for n in held}
    for one in held:
        assert len(set(held_out.factors[held_out.factors[:, 0] == one, 1].tolist())) == len(FACES)


def test_a_sequence_is_a_full_turn_of_one_letter():
    train, _ = tc.data.letters()
    shown = train.draw(20, torch.Generator().manual_seed(0))
    still, turning = shown.factors[..., :3], shown.factors[..., 3]
    assert (still == still[:, :1]).all()
    assert ((turning - turning[:, :1]) % 15 == torch.arange(15)).all()
    assert shown.x.shape == (20, 15, 1, 28, 28) and 0 <= shown.x.min() < shown.x.max() <= 1
    assert len(set(turning[:, 0].tolist())) > 5  # sequences start anywhere


def test_a_held_out_letter_that_is_not_turned_is_the_glyph_itself():
    drawn = glyphs()
    assert drawn.shape == (62, 12, 28, 28) and drawn.dtype == torch.uint8
    _, held_out = tc.data.letters()
    upright = held_out.factors[:, 3] == 0
    letter, face = held_out.factors[upright, :2].unbind(1)
    assert torch.equal(held_out.images[upright, 0], drawn[letter, face])


def test_letters_turn_counter_clockwise():
    _, held_out = tc.data.letters()
    row = LETTERS[::5].index("J") * len(FACES)  # its hook, at the lower left, moves to the right
    x = held_out.show(held_out.order[row]).x[:, 0]
    column = torch.arange(28.0) - 13.5
    low = x[:, 18:].sum(1) @ column / x[:, 18:].sum((1, 2))
    assert low[2] > low[0] + 2


def ink(sequences):
    return sequences.show(sequences.order[:: len(sequences) // 150]).x.flatten(2).sum(2)


def test_no_ink_is_lost():
    train, held_out = (ink(sequences) for sequences in tc.data.letters())
    assert (held_out / held_out[:, :1]).min() > 0.95 and (held_out / held_out[:, :1]).max() < 1.05
    assert (train.amin(1) / train.amax(1)).min() > 0.85  # corners of few wide letters leave


def test_the_variants_of_a_training_letter_differ():
    train, _ = tc.data.letters()
    x = train.show(train.order[:VARIANTS]).x
    assert all((x[n] - x[m]).abs().mean() > 0.02 for n in range(VARIANTS) for m in range(n))


def test_the_cache_is_used_if_it_is_complete(monkeypatch, tmp_path):
    monkeypatch.setenv("TOPOCAPS_CACHE", str(tmp_path))

    def cached(value):
        return cached_bytes("images.bytes", 30, lambda: np.full(30, value, np.uint8)).sum()

    assert cached(1) == 30 and cached(0) == 30
    (tmp_path / "images.bytes").write_bytes(b"cut off")
    assert cached(0) == 0
    file = tmp_path / "file"
    file.write_text("")
    monkeypatch.setenv("TOPOCAPS_CACHE", str(file / "below"))
    assert cached(2) == 60
