"""Sets of images in random poses: draws, fixed sets and balanced sets, for every kind."""

from dataclasses import replace

import pytest
import torch

import topocaps as tc
from topocaps.data.moved import MovedDigits, affnist_style
from topocaps.data.transforms import MOTIONS, TransformedImages, moving_images

GENERATOR = torch.Generator().manual_seed(0)
IMAGES = torch.randint(256, (30, 12, 12), dtype=torch.uint8, generator=GENERATOR)

#: every kind of set, and how many random numbers choose a sequence
SETS = {
    "single motions": (TransformedImages(IMAGES), 5),
    "combined motions": (TransformedImages(IMAGES, MOTIONS["combined"]), 4),
    "about a pixel": (TransformedImages(IMAGES, centre=6), 5),
    "pictures": (moving_images(IMAGES[:, None], ("shift_x", "rotation"), 7), 4),
    "moved digits": (MovedDigits(IMAGES, torch.arange(30) % 10, affnist_style()), 7),
}

#: which distinguish runs and results
DIGESTS = {
    "single motions": ("482f5e1f7ff74c5e", "5d71798fcb08d16a", "1f548ee97ccb857a"),
    "combined motions": ("c79c9c60b00fbb2d", "7bf126a3e05ec00d", "d9daa722d4940a51"),
    "about a pixel": ("d143e246e07dfd40", "b0d25dafcf9016e2", "52d690f650daacba"),
    "pictures": ("7c9ead1a00b6928e", "15ad2a1a18c8ca56", "af82ee562a5831e9"),
    "moved digits": ("91a9babdf11ade12", "a6b46750d015c7c9", "a4fb89c0c7d6daa9"),
}


def drawn(*shape, seed=1):
    return torch.rand(*shape, generator=torch.Generator().manual_seed(seed))


every_set = pytest.mark.parametrize("name", SETS)


@every_set
def test_digests_and_draws_are_unchanged(name):
    """Of the whole set, of one that is balanced, and of one that was drawn."""
    sequences, _ = SETS[name]
    chosen = sequences.choose(drawn(40, 7)[:, : sequences.numbers])
    sets = sequences, sequences.balanced(4, seed=3), replace(sequences, scripts=chosen)
    assert tuple(one.digest() for one in sets) == DIGESTS[name]


@every_set
def test_random_numbers_choose_every_image_and_every_level(name):
    sequences, numbers = SETS[name]
    assert sequences.numbers == numbers
    uniform = drawn(20_000, numbers)
    script = sequences.choose(uniform)
    assert script.shape == (20_000, sequences.frames, 1 + sequences.pose_size)
    image, pose = script[..., 0], script[..., 1:]
    assert (image == image[:, :1]).all() and image.unique().tolist() == list(range(30))
    assert pose.min() == 0 and pose.max() == sequences.levels - 1
    ends = sequences.choose(torch.tensor([[0.0] * numbers, [1 - 2**-24] * numbers]))[:, 0]
    assert ends[0].sum() == 0 and ends[1, 0] == 29 and (ends[1, 1:] == sequences.levels - 1).all()


@every_set
def test_one_group_moves_by_a_level_a_frame_and_the_others_are_constant(name):
    sequences, numbers = SETS[name]
    uniform = drawn(200, numbers)
    steps = sequences.choose(uniform)[..., 1:].diff(dim=1) % sequences.levels
    assert ((steps == 0) | (steps == 1)).all()
    moves = {tuple(row.nonzero().flatten().tolist()) for row in steps.flatten(0, 1)}
    assert moves == set(sequences.groups)


@every_set
def test_a_balanced_set_has_different_images_and_every_group_equally_often(name):
    sequences, _ = SETS[name]
    groups = max(1, len(sequences.groups))
    whole, some = sequences.balanced(None, seed=0), sequences.balanced(4, seed=0)
    assert len(sequences) == len(whole) == 30 and len(some) == 4 * groups
    assert sorted(whole.fixed()[:, 0, 0].tolist()) == list(range(30))
    assert len(some.fixed()[:, 0, 0].unique()) == len(some)
    assert some.digest() == sequences.balanced(4, 0).digest() != sequences.balanced(4, 1).digest()
    again = some.choose(drawn(50, sequences.numbers))
    assert (again[:, None] == some.fixed()).all((2, 3)).any(1).all()
    with pytest.raises(tc.BadInput, match="fixed already"):
        some.balanced(1, seed=0)


@every_set
def test_a_set_on_another_device_has_the_same_frames(name):
    sequences = SETS[name][0].balanced(2, seed=0)
    moved = sequences.to("cpu")
    assert moved.digest() == sequences.digest()
    assert torch.equal(moved.show(moved.fixed()).x, sequences.show(sequences.fixed()).x)


def test_a_set_with_another_centre_or_motion_shows_it():
    """Nothing of the set that it was made of is kept."""
    about_middle = TransformedImages(IMAGES)
    about_pixel = replace(about_middle, centre=6)
    assert about_pixel.digest() == SETS["about a pixel"][0].digest()
    combined = replace(about_middle, motion=MOTIONS["combined"])
    assert combined.digest() == SETS["combined motions"][0].digest()


def test_every_moving_factor_has_one_of_several_speeds():
    motion = replace(MOTIONS["combined"], speeds=(-2, 0, 1))
    sequences = TransformedImages(IMAGES, motion)
    assert sequences.numbers == 6  # image, group, and two for each factor
    for script in (sequences.choose(drawn(3000, 6)), sequences.balanced(None, 0).fixed()):
        steps = script[..., 1:].diff(dim=1) % sequences.levels
        assert (steps == steps[:, :1]).all()  # a sequence does not change its speed
        assert set(steps.unique().tolist()) == {0, 1, sequences.levels - 2}
    pairs = sequences.choose(drawn(3000, 6))[..., 1:].diff(dim=1)[:, 0] % sequences.levels
    counts = pairs.unique(dim=0, return_counts=True)[1]
    assert len(counts) == 9 and counts.min() > 3000 / 9 * 0.8  # factors are independent


def test_a_set_with_a_single_speed_moves_at_this_speed():
    slow, quick = (
        TransformedImages(IMAGES, replace(MOTIONS["single"], speeds=(speed,))) for speed in (1, 2)
    )
    assert slow.digest() == TransformedImages(IMAGES).digest() != quick.digest()
    uniform = drawn(50, slow.numbers)
    one, two = slow.choose(uniform), quick.choose(uniform)
    assert torch.equal(one[:, 0], two[:, 0]) and torch.equal(one[:, ::2], two[:, :9])
