"""Parts of data sets: unseen digits, few images, and a slice of orientations."""

import itertools
import json
import os
from dataclasses import replace
from pathlib import Path

import pytest
import torch

import topocaps as tc
from topocaps.data.letter_images import orientations
from topocaps.data.mnist_files import Digits
from topocaps.data.subsets import in_slice, some_images
from topocaps.metrics.visible_frames import visible_gains, visible_masks
from topocaps.models.likelihoods import Likelihood
from topocaps.study import data as study_data
from topocaps.study.data import Letters, Mnist
from topocaps.training.migration import migrated

ARC = 8


def parts(counts=(600, 300, 200)):
    """Images of which the pixels are their class and their number."""
    generator = torch.Generator().manual_seed(0)
    found = []
    for count in counts:
        classes = torch.randint(10, (count,), generator=generator, dtype=torch.uint8)
        images = torch.zeros(count, 28, 28, dtype=torch.uint8)
        images[:, 0, 0], images[:, 0, 1] = classes, torch.arange(count) % 256
        images[:, 0, 2] = torch.arange(count) // 256
        found.append(Digits(images, classes))
    return tuple(found)


@pytest.fixture
def few_files(monkeypatch):
    monkeypatch.setattr(study_data, "digit_splits", lambda folder: parts())


def classes_of(sequences):
    return sorted(set(sequences.images[:, 0, 0].tolist()))


# Digits -------------------------------------------------------------------------------------------


def test_training_has_no_unseen_digit_and_only_these_are_held_out(few_files):
    splits = Mnist(unseen=(8, 9)).load()
    assert classes_of(splits.train) == classes_of(splits.validation) == list(range(8))
    assert classes_of(splits.held_out) == [8, 9]
    assert splits.name == "test images of 8, 9"
    whole = Mnist().load()
    assert whole.name == "test images"
    for part in (whole.train, whole.validation, whole.held_out):
        assert classes_of(part) == list(range(10))
    seen = sum(len(one) for one in (splits.train, splits.validation, splits.held_out))
    assert seen < sum(len(one) for one in (whole.train, whole.validation, whole.held_out))
    x, same = (one.train.images[:20] for one in (splits, Mnist(unseen=(9, 8, 8)).load()))
    assert torch.equal(x, same)


def numbered(sequences):
    return [tuple(pixels) for pixels in sequences.images[:, 0, :3].tolist()]


def test_smaller_selections_are_part_of_larger_ones_and_balanced(few_files):
    counts = (7, 10, 100, 300, 600)
    images = [numbered(Mnist(images=count).load().train) for count in counts]
    for few, more in itertools.pairwise(images):
        assert more[: len(few)] == few
    assert [len(set(one)) for one in images] == list(counts)
    for count in (10, 100, 300):
        each = torch.bincount(torch.tensor([pixels[0] for pixels in images[counts.index(count)]]))
        assert (each == count // 10).all()
    whole = Mnist().load()
    assert set(images[-1]) == set(numbered(whole.train))
    splits = Mnist(images=10).load()
    assert torch.equal(splits.held_out.images, whole.held_out.images)
    assert torch.equal(splits.validation.images, whole.validation.images)
    both = Mnist(images=80, unseen=(8, 9)).load()
    assert len(both.train) == 80 and classes_of(both.train) == list(range(8))


def test_more_images_than_exist_are_refused(few_files):
    with pytest.raises(tc.BadInput, match="there are 600 training images, so images cannot be 601"):
        Mnist(images=601).load()
    assert len(some_images(parts()[0], 600).images) == 600


@pytest.mark.parametrize(
    "settings, says",
    [
        (dict(unseen=(10,)), r"unseen must be some, not all, of the digits 0 to 9, not \(10,\)"),
        (dict(unseen=(1.0,)), "unseen must be some"),
        (dict(unseen=range(10)), "unseen must be some, not all"),
        (dict(unseen="89"), "unseen must be some"),
        (dict(unseen=8.0), "unseen must be some"),
        (dict(images=0), "images must be a whole number of at least 1, not 0"),
        (dict(images=0.5), "images must be a whole number"),
    ],
)
def test_invalid_settings_of_digits_are_refused(settings, says):
    with pytest.raises(tc.BadInput, match=says):
        Mnist(**settings)


def test_neutral_settings_are_left_out_of_the_identity():
    assert Mnist().identity() == {"kind": "mnist-sequences"}
    assert Letters().identity() == {"kind": "letters"}
    assert Mnist(unseen=8).identity() == {"kind": "mnist-sequences", "unseen": (8,)}
    assert Mnist(images=10).identity() != Mnist(images=100).identity()
    assert Letters(arc=ARC).identity() == {"kind": "letters", "arc": ARC}


@pytest.mark.parametrize("kind", [Mnist, Letters])
def test_older_run_folders_have_neutral_settings(kind):
    recipe = tc.recipes.find("rolling/mnist" if kind is Mnist else "letters/rolling")
    settings = json.loads(json.dumps(recipe.to_json()))
    settings["model"] = {**recipe.build((1, 28, 28), 0).config}
    data = migrated({**settings, "data": {"kind": kind.__name__}})["data"]
    later = {"unseen", "images", "speeds", "arc"} & settings["data"].keys()
    assert later and all(data[key] == settings["data"][key] for key in later)


@pytest.mark.skipif(not os.environ.get("TOPOCAPS_DATA"), reason="needs MNIST's files")
def test_unseen_digits_of_mnist_are_those_of_its_labels():
    splits = Mnist(unseen=(8, 9)).load(Path(os.environ["TOPOCAPS_DATA"]))
    assert len(splits.held_out) == 974 + 1009


# Letters ------------------------------------------------------------------------------------------


def moment_angle(x):
    """Return the angle of the longest axis of ink in the middle of images, (…), up to half turns.

    Vertical places grow downwards, and the angle is counter-clockwise as seen.
    """
    side = x.shape[-1]
    place = torch.arange(side, dtype=torch.float64) - (side - 1) / 2
    x = x.double() / x.double().sum((-2, -1), keepdim=True)
    across, down = place.expand(side, side), place[:, None].expand(side, side)
    mean = [(x * p).sum((-2, -1))[..., None, None] for p in (across, down)]
    a, d = across - mean[0], down - mean[1]
    xx, yy, xy = ((x * p).sum((-2, -1)) for p in (a * a, d * d, -a * d))
    return torch.atan2(2 * xy, xx - yy) / 2


def test_orientations_are_those_of_the_pixels():
    """The longest axis of a dash or of an l turns as its letter."""
    train, held_out = tc.data.letters()
    assert torch.equal(orientations(held_out), held_out.factors[:, 3].double())
    letter = tc.data.letter_images.LETTERS.index("l")
    rows = (train.factors[:, 0] == letter) & (train.factors[:, 1] == 0)
    angle = orientations(train)[rows] * 2 * torch.pi / 15
    found = moment_angle(train.images[rows, 0])
    from_vertical = found - torch.pi / 2
    apart = (from_vertical - angle + torch.pi / 2) % torch.pi - torch.pi / 2
    assert apart.abs().max() < 0.45 and apart.abs().mean() < 0.2  # slants turn it, too


@pytest.mark.parametrize("arc", [3, 8, 14])
def test_no_frame_of_training_outside_the_slice_is_present(arc):
    train = Letters(arc=arc).load().train
    turn = (orientations(train) + 7.5) % 15 - 7.5  # from upright, in frames
    assert (turn[train.present].abs() <= arc / 2).all()
    assert (turn[~train.present].abs() >= arc / 2).all()
    assert (train.present[train.order].sum(1) == arc).all()
    assert not train.images[~train.present].any()
    drawn = train.draw(50, torch.Generator().manual_seed(0))
    assert (drawn.mask.sum(1) == arc).all() and not drawn.x[~drawn.mask].any()
    assert len(set(drawn.mask[:, 0].tolist())) == 2  # sequences start anywhere


def test_held_out_letters_are_whole_and_start_at_the_slice():
    splits, whole = Letters(arc=ARC).load(), Letters().load()
    assert splits.held_out.present is None and splits.train.present is not None
    assert (
        splits.held_out.balanced(None, 3)
        .order.sort(0)
        .values.equal(splits.held_out.order.sort(0).values)
    )
    for sequences, other in (
        (splits.held_out, whole.held_out), (splits.measured_train, whole.train),
    ):  # fmt: skip
        assert torch.equal(sequences.images, other.images)
        assert torch.equal(sequences.order.sort(1).values, other.order.sort(1).values)
        inside = sequences.in_training_of(sequences.fixed())
        assert torch.equal(inside, (torch.arange(15) < ARC).expand_as(inside))
    assert torch.equal(in_slice(whole.train, ARC), splits.train.present)
    assert torch.equal(splits.measured_train.in_training, splits.train.present)
    assert whole.measured_train is whole.train


def test_gains_by_pose_show_frames_of_the_slice_and_divide_the_hidden_ones():
    held_out = Letters(arc=ARC).load().held_out.balanced(20, 0)
    masks = visible_masks(held_out, held_out.fixed())
    inside = held_out.in_training_of(held_out.fixed())
    assert list(masks) == [3, 5]
    for count, visible in masks.items():
        assert (visible.sum(1) == count).all() and not (visible & ~inside).any()
        assert (visible.int().diff(dim=1).abs().sum(1) <= 2).all()  # contiguous

    def only_inside(x, visible):
        """Predict frames of the slice, and the mean frame for others."""
        mean = x.mean(1, keepdim=True).expand_as(x)
        return torch.where((torch.arange(15) < ARC)[:, None, None, None], x, mean)

    for one in visible_gains(only_inside, held_out, Likelihood.BERNOULLI).values():
        assert one["in_training"]["gain"] == pytest.approx(1, abs=0.05)
        assert one["not_in_training"]["gain"] == pytest.approx(0, abs=1e-6)
        assert 0.1 < one["gain"] < 0.9
    with pytest.raises(tc.BadInput, match="must be from 1 to 8"):
        visible_masks(held_out, held_out.fixed(), counts=(9,))


@pytest.mark.parametrize("name", ["letters/rolling-arc", "letters/tvae-arc", "letters/vae-arc"])
def test_models_learn_nothing_from_what_is_outside_the_slice(name, monkeypatch):
    recipe = tc.recipes.find(name).change(["batch=4", "hidden=8", "capsules=2"])
    trained = []
    for noise in (False, True):
        train = Letters(arc=ARC).load().train
        if noise:
            outside = torch.randint(256, train.images.shape, dtype=torch.uint8)
            present = train.present[:, None, None, None]
            train = replace(train, images=torch.where(present, train.images, outside))
        model = recipe.build((1, 28, 28), seed=0)
        training = replace(recipe.training, epochs=1, epoch_size=8)
        tc.fit(model, train, training=training, seed=0, device="cpu")
        trained.append(model)
    for one, other in zip(trained[0].parameters(), trained[1].parameters(), strict=True):
        assert torch.equal(one, other)


@pytest.mark.parametrize(
    "settings, says",
    [
        (dict(arc=2), "arc must be a number of frames from 3 to 14, or None, not 2"),
        (dict(arc=15), "arc must be a number of frames"),
        (dict(arc=7.5), "arc must be a number of frames"),
        (dict(arc=8, speeds=(-1, 1)), "arc needs letters that turn by 24 degrees per frame"),
    ],
)
def test_invalid_slices_are_refused(settings, says):
    with pytest.raises(tc.BadInput, match=says):
        Letters(**settings)


def test_a_share_of_the_glyphs_has_the_same_slice():
    train = Letters(arc=ARC, share=0.1).load().train
    assert (train.present[train.order].sum(1) == ARC).all() and len(train) == 59 * 7
