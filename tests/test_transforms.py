"""Transformed images: rotation, scale and hue are exact, and change as the motion says."""

import math

import numpy as np
import pytest
import torch
from torch.nn.functional import grid_sample

import topocaps as tc
from topocaps.data.geometry import perspective, turned, warp
from topocaps.data.transforms import DEGREES, MOTIONS, SCALES, STEPS, TransformedImages, rgb
from topocaps.study.data import Mnist


def turn(images, angle, scale):
    return warp(images[:, None], turned(*images.shape[-2:], angle, scale))[:, 0]


@pytest.fixture(scope="module")
def digits():
    generator = torch.Generator().manual_seed(0)
    return torch.randint(256, (30, 28, 28), dtype=torch.uint8, generator=generator)


def test_a_quarter_turn_is_counter_clockwise_and_exact():
    image = torch.rand(1, 28, 28)
    turned = turn(image, torch.tensor([torch.pi / 2]), torch.ones(1))
    torch.testing.assert_close(turned, image.rot90(1, (1, 2)), rtol=0, atol=1e-4)


def test_a_rotation_and_its_inverse_restore_a_smooth_image():
    y, x = torch.meshgrid(*[torch.linspace(-2.5, 2.5, 28)] * 2, indexing="ij")
    blob = torch.exp(-((x - 0.3) ** 2) - 2 * y**2)[None]
    there = turn(blob, torch.tensor([0.7]), torch.tensor([1.2]))
    back = turn(there, torch.tensor([-0.7]), torch.tensor([1 / 1.2]))
    assert (there - blob).abs().max() > 0.3 and (back - blob).abs().max() < 0.04


def test_scaling_enlarges_images_and_fills_edges_with_black():
    image = torch.zeros(2, 28, 28)
    image[:, 10:18, 10:18] = 1
    half, twice = turn(image, torch.zeros(2), torch.tensor([0.5, 1.25]))
    assert half.sum() == pytest.approx(16, abs=0.1) and twice.sum() == pytest.approx(100, abs=0.5)
    assert turn(torch.ones(1, 28, 28), torch.zeros(1), torch.tensor([0.5]))[0, 0, 0] == 0


def test_hues_go_round_from_red_over_green_and_blue():
    found = rgb(torch.tensor([0.0, 1 / 6, 1 / 3, 1 / 2, 2 / 3, 5 / 6]))
    expected = [[1, 0, 0], [1, 1, 0], [0, 1, 0], [0, 1, 1], [0, 0, 1], [1, 0, 1]]
    torch.testing.assert_close(found, torch.tensor(expected).float(), rtol=0, atol=1e-5)


def test_one_factor_takes_all_its_values_and_the_others_are_constant(digits):
    sequences = TransformedImages(digits)
    batch = sequences.draw(60, torch.Generator().manual_seed(1))
    assert batch.x.shape == (60, STEPS, 3, 28, 28) and batch.factors.shape == (60, STEPS, 3)
    assert batch.x.min() >= 0 and batch.x.max() <= 1
    moves = (batch.factors != batch.factors[:, :1]).any(1)
    assert (moves.sum(1) == 1).all() and moves.any(0).all()
    for factors, moving in zip(batch.factors, moves, strict=True):
        values = factors[:, moving][:, 0]
        assert (values.diff() % STEPS == 1).all() and sorted(values.tolist()) == list(range(STEPS))


def test_frames_are_what_their_factors_say(digits):
    sequences = TransformedImages(digits)
    script = sequences.choose(torch.rand(5, 5, generator=torch.Generator().manual_seed(2)))
    shown = sequences.show(script).x
    for n in range(5):
        for frame in (0, 7):
            image, rotation, scale, hue = script[n, frame].tolist()
            grey = turn(
                digits[image][None] / 255,
                torch.tensor([2 * torch.pi * rotation / STEPS]),
                SCALES[scale][None],
            )
            expected = grey * rgb(torch.tensor(hue / STEPS))[:, None, None]
            torch.testing.assert_close(shown[n, frame], expected, rtol=0, atol=1e-5)
    together = sequences.show(script.reshape(5, 1, STEPS, 4)).x  # any axes in front
    torch.testing.assert_close(together[:, 0], shown)


def test_rotation_and_hue_may_move_together(digits):
    sequences = TransformedImages(digits, MOTIONS["combined"])
    batch = sequences.draw(20, torch.Generator().manual_seed(1))
    assert sequences.names == ("rotation", "hue") and batch.factors.shape == (20, STEPS, 2)
    assert (batch.factors.diff(dim=1) % STEPS == 1).all()
    image, rotation, hue = sequences.fixed()[3, 5].tolist()
    angle = torch.tensor([2 * torch.pi * rotation / STEPS])
    expected = turn(digits[image][None] / 255, angle, torch.ones(1))
    expected = expected * rgb(torch.tensor(hue / STEPS))[:, None, None]
    torch.testing.assert_close(sequences.show(sequences.fixed()[3:4]).x[0, 5], expected)


def test_the_combined_motion_neither_grows_nor_shrinks(digits):
    """Every frame is the image, turned at scale 1."""
    sequences = TransformedImages(digits, MOTIONS["combined"])
    angles = torch.arange(STEPS) * (2 * torch.pi / STEPS)
    expected = turned(28, 28, angles, torch.ones(STEPS))
    assert torch.equal(sequences.views, expected)
    disc = torch.zeros(1, 28, 28, dtype=torch.uint8)
    y, x = torch.meshgrid(*[torch.arange(28) - 13.5] * 2, indexing="ij")
    disc[0, x**2 + y**2 < 64] = 255
    script = torch.tensor([[0, n, 0] for n in range(STEPS)])[None]  # red at every angle
    ink = TransformedImages(disc, MOTIONS["combined"]).show(script).x[0, :, 0].sum((1, 2))
    torch.testing.assert_close(ink, ink[:1].expand(STEPS), rtol=0.01, atol=0)


# The centre ---------------------------------------------------------------------------------------

DIGESTS = {
    "single": "559e9f8af7a3bc64",
    "combined": "65660bb47909cdce",
}


def old_views(angle, scale):
    """Where pixels came from before a centre could be chosen, about the middle of 28 x 28."""
    x = torch.arange(28) + 0.5 - 14
    y = x[:, None]
    cos, sin = (angle.cos() / scale)[..., None, None], (angle.sin() / scale)[..., None, None]
    return torch.stack([(cos * x - sin * y) * (2 / 28), (sin * x + cos * y) * (2 / 28)], -1)


def test_without_a_centre_frames_and_digests_are_unchanged(digits):
    """To the bit: runs and results are told apart by them."""
    angle = torch.arange(STEPS) * (2 * torch.pi / STEPS)
    shape = STEPS, STEPS
    views = {
        "single": old_views(angle[:, None].expand(shape), SCALES.expand(shape)),
        "combined": old_views(angle, torch.ones(STEPS)),
    }
    for motion, expected in views.items():
        sequences = TransformedImages(digits, MOTIONS[motion])
        assert sequences.digest() == DIGESTS[motion]
        assert torch.equal(sequences.views, expected)
        script = sequences.balanced(4, seed=3).fixed()
        image, *seen, hue = script.unbind(-1)
        places = expected[tuple(seen)].flatten(0, 1)
        grey = (digits[image].float() / 255).flatten(0, 1)[:, None]
        grey = grid_sample(grey, places, align_corners=False).reshape(*image.shape, 1, 28, 28)
        frames = grey * rgb(hue / STEPS)[..., None, None]
        assert torch.equal(sequences.show(script).x, frames)


@pytest.mark.parametrize("motion", ["single", "combined"])
def test_sets_with_other_centres_have_other_digests(digits, motion):
    centres = (None, 14, 13.5, 0, 27)
    sets = [TransformedImages(digits, MOTIONS[motion], centre=centre) for centre in centres]
    assert len({one.digest() for one in sets}) == len(sets)
    assert len({one.balanced(4, seed=0).digest() for one in sets}) == len(sets)
    same = TransformedImages(digits, MOTIONS[motion], centre=14.0)
    assert same.digest() == sets[1].digest() == same.to("cpu").digest()


@pytest.mark.parametrize("motion", ["single", "combined"])
def test_the_pixel_that_is_the_centre_keeps_its_value(digits, motion):
    """At every angle and every scale; about the middle, it would not."""
    sequences = TransformedImages(digits, MOTIONS[motion], centre=14)
    values = (digits[3, 14, 14] / 255).expand(STEPS)
    for column in range(len(sequences.names) - 1):  # all factors but hue
        script = torch.zeros(STEPS, 1 + len(sequences.names), dtype=torch.long)
        script[:, 0], script[:, 1 + column] = 3, torch.arange(STEPS)
        shown = sequences.show(script[None]).x[0, :, 0, 14, 14]
        torch.testing.assert_close(shown, values, rtol=0, atol=1e-5)
        about_the_middle = TransformedImages(digits, MOTIONS[motion]).show(script[None])
        assert (about_the_middle.x[0, :, 0, 14, 14] - values).abs().max() > 0.1


@pytest.mark.parametrize("centre", [-1, 28, 27.5, math.nan, math.inf, True, "middle"])
def test_a_centre_that_is_no_pixel_is_refused(digits, centre):
    with pytest.raises(tc.BadInput, match="centre must be the index of a pixel"):
        TransformedImages(digits, centre=centre)
    with pytest.raises(tc.BadInput, match="centre must be the index of a pixel"):
        Mnist(centre=centre)


# Perspective --------------------------------------------------------------------------------------


def rotate_along_axis(height, width, degrees):
    """The matrix of the released code, by NumPy: pixels of the image to pixels of the frame."""
    angle = np.deg2rad(degrees)
    sin, cos = np.sin(angle), np.cos(angle)
    focal = np.sqrt(height**2 + width**2) / (2 * sin if sin != 0 else 1)
    a1 = np.array([[1, 0, -width / 2], [0, 1, -height / 2], [0, 0, 1], [0, 0, 1]])
    rx = np.eye(4)
    ry = np.array([[cos, 0, -sin, 0], [0, 1, 0, 0], [sin, 0, cos, 0], [0, 0, 0, 1]])
    rz = np.array([[cos, -sin, 0, 0], [sin, cos, 0, 0], [0, 0, 1, 0], [0, 0, 0, 1]])
    t = np.eye(4)
    t[2, 3] = focal
    a2 = np.array([[focal, 0, width / 2, 0], [0, focal, height / 2, 0], [0, 0, 1, 0]])
    return a2 @ t @ (rx @ ry @ rz) @ a1


def bilinear(image, x, y):
    """The value of an image between its pixels, black outside."""
    height, width = image.shape
    column, row = int(np.floor(x)), int(np.floor(y))
    total = 0.0
    for i, j in ((row, column), (row, column + 1), (row + 1, column), (row + 1, column + 1)):
        if 0 <= i < height and 0 <= j < width:
            total += image[i, j] * (1 - abs(y - i)) * (1 - abs(x - j))
    return total


@pytest.mark.parametrize(("height", "width"), [(28, 28), (14, 20)])
def test_maps_of_perspective_are_those_of_the_released_code(height, width):
    assert (*range(0, 180, 20), 181, *range(200, 360, 20)) == DEGREES and len(DEGREES) == STEPS
    assert torch.equal(perspective(height, width, 0), torch.eye(3, dtype=torch.double))
    for degrees in DEGREES[1:]:
        expected = torch.from_numpy(rotate_along_axis(height, width, degrees))
        torch.testing.assert_close(perspective(height, width, degrees), expected)


@pytest.mark.parametrize(("height", "width"), [(28, 28), (14, 20)])
def test_perspective_is_that_of_the_released_code(height, width):
    """Frames against matrices and interpolation by NumPy, pixel by pixel."""
    image = torch.randint(256, (1, height, width), dtype=torch.uint8)
    sequences = TransformedImages(image, MOTIONS["perspective"])
    assert sequences.names == ("perspective", "hue")
    script = torch.tensor([[0, n, 0] for n in range(STEPS)])[None]
    found = sequences.show(script).x[0, :, 0].numpy()  # in red
    pixels = image[0].numpy() / 255
    for n, frame in enumerate(found):
        degrees = 181 if n == 9 else 20 * n
        back = np.linalg.inv(rotate_along_axis(height, width, degrees) if n else np.eye(3))
        for row in range(height):
            for column in range(width):
                x, y, z = back @ [column, row, 1]
                expected = bilinear(pixels, x / z, y / z)
                assert frame[row, column] == pytest.approx(expected, abs=1e-4)
    assert len({frame.tobytes() for frame in found}) == STEPS


def test_hue_advances_with_perspective(digits):
    sequences = TransformedImages(digits, MOTIONS["perspective"])
    batch = sequences.draw(20, torch.Generator().manual_seed(1))
    assert (batch.factors.diff(dim=1) % STEPS == 1).all()
    assert batch.x.isfinite().all() and batch.x.min() >= 0 and batch.x.max() <= 1


def test_pixels_on_the_horizon_are_black():
    """In images of 18 x 24, some pixels show a line that is infinitely far away."""
    white = torch.full((1, 18, 24), 255, dtype=torch.uint8)
    sequences = TransformedImages(white, MOTIONS["perspective"])
    assert sequences.show(sequences.fixed()).x.isfinite().all()
    assert sequences.views.abs().max() <= 4


def test_the_centre_of_perspective_cannot_be_set(digits):
    with pytest.raises(tc.BadInput, match="the centre of the perspective motion is fixed"):
        TransformedImages(digits, MOTIONS["perspective"], centre=14)
    with pytest.raises(tc.BadInput, match="the centre of the perspective motion is fixed"):
        Mnist(motion="perspective", centre=14)


# Fixed sets ---------------------------------------------------------------------------------------


def test_a_fixed_set_has_every_image_once_and_balances_the_factors(digits):
    whole = TransformedImages(digits).balanced(None, seed=0)
    some = TransformedImages(digits).balanced(4, seed=0)
    assert len(whole) == 30 and len(some) == 12
    assert sorted(whole.fixed()[:, 0, 0].tolist()) == list(range(30))
    factors = torch.cat([batch.factors for batch in some.batches(5)])
    assert (factors != factors[:, :1]).any(1).sum(0).tolist() == [4, 4, 4]
    again = TransformedImages(digits).balanced(4, seed=0)
    assert again.digest() == some.digest() != TransformedImages(digits).balanced(4, 1).digest()


def test_models_train_on_them(digits):
    topography = tc.Topography(2, (STEPS,), window=5)
    model = tc.TopographicVAE.mlp((3, 28, 28), topography, hidden=(8,))
    training = tc.Training(tc.Adam(1e-2), batch=4, epochs=20)
    run = tc.fit(model, TransformedImages(digits), training=training)
    assert run.history[-1]["elbo"] > run.history[0]["elbo"] + 100
    found = tc.evaluate(model, TransformedImages(digits).balanced(4, 0))
    assert set(found["capcorr"]) == {"rotation", "scale", "hue"} and found["sequences"] == 12
