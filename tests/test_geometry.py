"""Maps agree with matrix products, and images are warped in one module."""

import math
import re
from pathlib import Path

import pytest
import torch

import topocaps
from topocaps.data.geometry import (
    adjugate,
    apply,
    as_places,
    determinant,
    grid,
    pixels,
    rotation,
    turned,
    warp,
)

DOUBLE = {"dtype": torch.float64}


def test_images_are_warped_in_one_module():
    root = Path(topocaps.__file__).parent
    called = re.compile(r"\b(grid_sample|affine_grid)\(")
    found = [file for file in root.rglob("*.py") if called.search(file.read_text())]
    assert found == [root / "data" / "geometry.py"]


# Points -------------------------------------------------------------------------------------------


def test_pixels_are_the_centres_of_equal_squares():
    x, y = pixels(2, 5).unbind(-1)
    assert x[0].tolist() == x[1].tolist() == [-2, -1, 0, 1, 2]
    assert y[:, 0].tolist() == y[:, 4].tolist() == [-0.5, 0.5]
    x, y = grid(2, 4).unbind(-1)
    assert x[0].tolist() == x[1].tolist() == [-0.75, -0.25, 0.25, 0.75]
    assert y[:, 0].tolist() == y[:, 3].tolist() == [-0.5, 0.5]


def test_places_do_not_depend_on_the_resolution():
    """The edges of an image are at -1 and 1."""
    edges = torch.tensor([[-10.0, -3.0], [10.0, 3.0], [0.0, 0.0]])
    assert as_places(edges, 6, 20).tolist() == [[-1, -1], [1, 1], [0, 0]]


@pytest.mark.parametrize("shape", [(2, 2), (2, 3), (3, 3)], ids=["linear", "affine", "projective"])
def test_maps_agree_with_matrix_products(shape):
    maps, points = torch.randn(2, 4, *shape, **DOUBLE), torch.randn(3, 5, 2, **DOUBLE)
    found = apply(maps, points)
    assert found.shape == (2, 4, 3, 5, 2)
    whole = torch.eye(3, **DOUBLE).expand(2, 4, 3, 3).clone()
    whole[..., : shape[0], : shape[1]] = maps
    homogeneous = torch.cat([points, torch.ones(3, 5, 1, **DOUBLE)], -1)
    wanted = torch.einsum("bnij,hwj->bnhwi", whole, homogeneous)
    torch.testing.assert_close(found, wanted[..., :2] / wanted[..., 2:])
    own = torch.randn(2, 4, 3, 5, 2, **DOUBLE)  # points of every map
    torch.testing.assert_close(apply(maps, own)[1, 2], apply(maps[1, 2], own[1, 2]))


def test_a_rotation_is_counter_clockwise_as_seen_and_rotations_add_up():
    """y points down, so a quarter turn takes what is on the right to the top."""
    quarter = rotation(torch.tensor(math.pi / 2, **DOUBLE))
    right, top = torch.tensor([1.0, 0.0], **DOUBLE), torch.tensor([0.0, -1.0], **DOUBLE)
    torch.testing.assert_close(quarter @ right, top)
    first, then = torch.randn(2, 7, **DOUBLE)
    torch.testing.assert_close(rotation(first) @ rotation(then), rotation(first + then))
    identity = torch.eye(2, **DOUBLE).expand(7, 2, 2)
    torch.testing.assert_close(rotation(first).mT @ rotation(first), identity)


def test_rotations_of_places_and_of_pixels_agree():
    height, width, angle = 6, 20, torch.tensor(0.4, **DOUBLE)
    points = pixels(height, width, **DOUBLE)
    turned_pixels = as_places(apply(rotation(angle), points), height, width)
    turned_places = apply(rotation(angle, width / height), as_places(points, height, width))
    torch.testing.assert_close(turned_places, turned_pixels)


def test_the_adjugate_over_the_determinant_is_the_inverse():
    linear = torch.randn(9, 2, 2, **DOUBLE)
    torch.testing.assert_close(determinant(linear), torch.linalg.det(linear))
    inverse = adjugate(linear) / determinant(linear)[:, None, None]
    torch.testing.assert_close(inverse, torch.linalg.inv(linear))


# Images -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_an_image_at_its_own_places_is_itself(dtype):
    image = torch.rand(3, 7, 10, dtype=dtype)
    seen = warp(image, grid(7, 10, dtype=dtype))
    assert seen.dtype == dtype
    torch.testing.assert_close(seen, image, rtol=0, atol=1e-5)


def test_values_are_interpolated_between_pixels_and_chosen_outside():
    image = torch.tensor([[[0.0, 4.0], [8.0, 12.0]]])
    # pixels are at -0.5 and 0.5; the last place is a pixel to the right of the image
    places = torch.tensor([[[0.0, -0.5], [0.0, 0.0], [1.0, -0.5], [1.5, -0.5]]])
    assert warp(image, places)[0, 0].tolist() == [2.0, 6.0, 2.0, 0.0]
    assert warp(image, places, "border")[0, 0].tolist() == [2.0, 6.0, 4.0, 4.0]
    assert warp(image, places, "reflection")[0, 0].tolist() == [2.0, 6.0, 4.0, 4.0]


def test_warping_a_batch_warps_each_image():
    images, places = torch.rand(4, 2, 5, 6), 2 * torch.rand(3, 4, 7, 8, 2) - 1
    seen = warp(images, places)  # axes in front are broadcast
    assert seen.shape == (3, 4, 2, 7, 8)
    for row in range(3):
        for column in range(4):
            assert torch.equal(seen[row, column], warp(images[column], places[row, column]))
    assert torch.equal(warp(images[0], places)[1, 2], warp(images[0], places[1, 2]))
    assert torch.equal(warp(images, places[0, 0]), torch.stack([
        warp(image, places[0, 0]) for image in images
    ]))  # fmt: skip


def test_a_rotation_about_a_pixel_is_one_about_the_middle_and_a_shift():
    """By 180 degrees about pixel 14 of 28, pixels end up one to the right and one down."""
    image, once = torch.rand(1, 28, 28), torch.tensor(1.0)
    found = warp(image, turned(28, 28, torch.tensor(math.pi), once, centre=14.0))
    torch.testing.assert_close(found[:, 1:, 1:], image.flip(1, 2)[:, :-1, :-1], rtol=0, atol=1e-4)
    angle, scale = torch.randn(5), torch.rand(5) + 0.5
    about_the_middle = turned(28, 28, angle, scale, centre=13.5)
    torch.testing.assert_close(about_the_middle, turned(28, 28, angle, scale))
