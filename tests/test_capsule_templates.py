"""Templates are drawn at the poses of their parts, one over another."""

import math
from itertools import product

import pytest
import torch
from small_capsules import (
    DOUBLE,
    EXACT,
    capsules_of,
    model_of,
    normal,
    square,
)
from torch.nn.functional import grid_sample, interpolate

from topocaps.capsules import (
    Capsules,
    Templates,
    composite,
    poses,
)
from topocaps.data.geometry import grid, turned

# ---- Parts are drawn ----


def over(colour, alpha, under, under_alpha):
    """The paper's operator, with its division."""
    both = alpha + under_alpha * (1 - alpha)
    return (colour * alpha + under * under_alpha * (1 - alpha)) / both, both


def one_after_another(colour, alpha):
    picture, opaque = torch.zeros_like(colour[0]), torch.ones_like(alpha[0])
    for layer in range(len(colour)):
        picture, opaque = over(colour[layer], alpha[layer], picture, opaque)
    return picture


def test_compositing_equals_drawing_layer_after_layer_on_black():
    colour, alpha = (torch.rand(6, n, 3, 4, **DOUBLE).requires_grad_() for n in (3, 1))
    found, wanted = composite(colour * alpha, alpha), one_after_another(colour, alpha)
    torch.testing.assert_close(found, wanted, rtol=0, atol=6e-6)
    cotangent = normal(*found.shape)
    for one, other in zip(
        torch.autograd.grad(found, (colour, alpha), cotangent),
        torch.autograd.grad(wanted, (colour, alpha), cotangent),
        strict=True,
    ):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-4)


def test_the_last_layer_is_the_uppermost_and_opaque_ink_hides_others():
    colour = torch.tensor([0.9, 0.2, 0.6], **DOUBLE).view(3, 1, 1, 1)
    alpha = torch.ones(3, 1, 1, 1, **DOUBLE).requires_grad_()
    found = composite(colour, alpha)
    assert found.item() == pytest.approx(0.6, abs=2e-6)
    found.backward()
    assert alpha.grad.isfinite().all()


def test_images_of_a_batch_are_composited_independently():
    colour, alpha = torch.rand(2, 5, 4, 3, 2, 2, **DOUBLE), torch.rand(2, 5, 4, 1, 2, 2, **DOUBLE)
    found = composite(colour, alpha)
    for at in product(range(2), range(5)):
        torch.testing.assert_close(found[at], composite(colour[at], alpha[at]), **EXACT)


def templates_of(parts, size, frame_shape):
    templates = Templates(parts, size, frame_shape).double()
    templates.colour.data, templates.alpha.data = (
        2 * normal(*one.shape) for one in (templates.colour, templates.alpha)
    )
    return templates


def at(pose, logits=math.inf):
    """A single part."""
    return Capsules(torch.full((1,), logits, **DOUBLE), pose.double()[None])


def test_presences_scale_the_drawn_ink():
    templates = templates_of(1, 4, (3, 6, 6))
    whole = templates(at(poses.scaled(0.8)))
    assert whole.max() > 0.1
    for t in (0.9, 0.25, 1e-3):
        faint = templates(at(poses.scaled(0.8), math.log(t / (1 - t))))
        torch.testing.assert_close(faint, t * whole, **EXACT)


def test_an_absent_part_draws_nothing():
    templates, parts = templates_of(3, 4, (1, 6, 6)), capsules_of(3)
    logits = parts.logits.clone()
    logits[1] = -torch.inf
    colour, alpha = (layer[[0, 2]] for layer in templates.moved(Capsules(logits, parts.poses)))
    found = templates(Capsules(logits, parts.poses))
    torch.testing.assert_close(found, composite(colour, alpha), **EXACT)
    assert (templates(Capsules(torch.full_like(logits, -torch.inf), parts.poses)) == 0).all()


@pytest.mark.parametrize(
    "size, frame, inside",
    [(6, (6, 6), 0), (8, (4, 4), 0), (12, (5, 7), 0), (4, (8, 8), 1), (4, (12, 16), 2)],
)
def test_a_template_that_fills_the_image_is_resized(size, frame, inside):
    """Up to half of its own pixel from the border, where it fades."""
    templates = templates_of(1, size, (3, *frame))
    found = templates(at(poses.scaled(1.0)))
    images = templates.images()
    ink = images[:, :-1] * images[:, -1:]
    resized = interpolate(ink, frame, mode="bilinear", align_corners=False)[0]
    kept = (slice(None), slice(inside, frame[0] - inside), slice(inside, frame[1] - inside))
    torch.testing.assert_close(found[kept], resized[kept], rtol=0, atol=2e-6)


def blob(size):
    """A smooth thing without symmetry, on templates that are clear at the border."""
    x, y = grid(size, size).double().unbind(-1)
    bumps = ((0.1, -0.2, 0.12), (0.35, 0.1, 0.05))
    return sum((-((x - a) ** 2 + (y - b) ** 2) / spread).exp() for a, b, spread in bumps) / 2


def smooth_templates(frame):
    templates = Templates(1, 48, frame).double()
    templates.colour.data = torch.full_like(templates.colour, 40.0)
    templates.alpha.data = blob(48).clamp(1e-12).logit()[None, None]
    return templates


MAPS = {
    "a shift": torch.tensor([1.0, 0.0, 0.25, 0.0, 1.0, -0.125]),
    "a turn": poses.rotated(0.7),
    "a shear and a scale": torch.tensor([1.1, 0.3, 0.0, -0.1, 0.8, 0.1]),
}


@pytest.mark.parametrize("frame", [(1, 64, 64), (1, 56, 80)])
@pytest.mark.parametrize("moved", MAPS.values(), ids=MAPS)
def test_translating_a_pose_translates_the_image(moved, frame):
    """Pixels of the new picture come from where the inverse map says."""
    templates, pose = smooth_templates(frame), torch.tensor([0.8, 0.1, 0.05, -0.1, 0.7, 0.1])
    before = templates(at(pose))
    after = templates(at(poses.compose(pose, moved)))
    back = torch.linalg.inv(square(moved.double()))
    points = grid(*frame[1:]).double()
    looked_up = points @ back[:2, :2].mT + back[:2, 2]
    warped = grid_sample(before[None], looked_up[None], align_corners=False)[0]
    assert (after - before).abs().max() > 0.1
    torch.testing.assert_close(after, warped, rtol=0, atol=0.012)


def test_rotating_a_pose_rotates_the_image_counter_clockwise():
    templates, pose = smooth_templates((1, 64, 64)), torch.tensor([0.8, 0.1, 0.05, -0.1, 0.7, 0.1])
    before = templates(at(pose))
    quarter = templates(at(poses.compose(pose, poses.rotated(math.pi / 2))))
    torch.testing.assert_close(quarter, before.rot90(1, (-2, -1)), rtol=0, atol=1e-5)
    angle = 0.6
    places = turned(64, 64, torch.tensor(angle), torch.tensor(1.0)).double()
    wanted = grid_sample(before[None], places[None], align_corners=False)[0]
    found = templates(at(poses.compose(pose, poses.rotated(angle))))
    torch.testing.assert_close(found, wanted, rtol=0, atol=0.012)


def test_a_white_part_over_a_white_part_changes_nothing():
    """A template is clear outside its square; it does not grow dark towards it."""
    templates = Templates(2, 4, (1, 16, 16)).double()
    templates.colour.data.fill_(40.0)
    templates.alpha.data[0], templates.alpha.data[1] = 40.0, 0.0
    pose = torch.stack([poses.scaled(3.0), poses.scaled(0.6)]).double()
    found = templates(Capsules(torch.full((2,), torch.inf, **DOUBLE), pose))
    torch.testing.assert_close(found, torch.ones_like(found), rtol=0, atol=1e-5)


def test_scenes_of_a_batch_are_drawn_independently():
    templates, parts = templates_of(3, 4, (3, 5, 6)), capsules_of(2, 4, 3)
    found = templates(parts)
    assert found.shape == (2, 4, 3, 5, 6)
    for place in product(range(2), range(4)):
        one = Capsules(parts.logits[place], parts.poses[place])
        torch.testing.assert_close(found[place], templates(one), **EXACT)


@pytest.mark.parametrize("layers", [2, 3])
def test_an_affine_map_of_wholes_moves_their_expected_parts_by_the_same_map(layers):
    """Poses go down by affine maps, so what is made of a whole, at I + A, moves as it does."""
    links = model_of((2,) * layers).links
    for link in links:
        link.offsets.data = normal(*link.offsets.shape)
    wholes, one = normal(2, 6), poses.scaled(1.0).double()
    moved = poses.compose(one + wholes, MAPS["a shear and a scale"].double()) - one

    def parts(found):
        for link in links:
            above = Capsules(torch.zeros(found.shape[:-1], **DOUBLE), found)
            found = link.means(above)[..., 1, :, :].detach()  # as the first whole expects them
        return found

    wanted = poses.compose(parts(wholes), MAPS["a shear and a scale"].double())
    torch.testing.assert_close(parts(moved), wanted)
