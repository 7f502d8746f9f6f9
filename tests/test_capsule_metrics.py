"""Metrics of part-whole models: probes of wholes, kept ink and affine copies."""

import math

import pytest
import torch
from torch.nn.functional import grid_sample

import topocaps as tc
from topocaps.capsules import LayerPosterior, PartWhole, poses
from topocaps.capsules.templates import Templates
from topocaps.data.geometry import grid
from topocaps.metrics.capsules import (
    affine_copies,
    ink_kept,
    majority_vote,
    presence_and_pose,
    presence_logits,
    strangers,
    strokes,
)
from topocaps.metrics.probes import whitened_accuracies


def blobs(count, turn=0.0):
    """Four classes at the corners of a square that is turned, in quarters."""
    which = torch.randint(4, (count,))
    angle = (which + turn) * (math.pi / 2)
    return torch.stack([angle.cos(), angle.sin()], 1) + 0.1 * torch.randn(count, 2), which


def test_features_are_logits_and_then_poses():
    posterior = LayerPosterior(torch.randn(5, 1, 3), torch.randn(5, 1, 3, poses.NUMBERS), None)
    assert torch.equal(presence_logits(posterior), posterior.logits[:, 0])
    both = presence_and_pose(posterior)
    assert both.shape == (5, 21) and torch.equal(both[:, :3], posterior.logits[:, 0])
    assert torch.equal(both[:, 3:].reshape(5, 3, 6), posterior.poses[:, 0])


def test_poses_predict_classes_that_presences_do_not():
    def latents(count):
        features, which = blobs(count)
        where = torch.randn(count, 1, 1, poses.NUMBERS)
        where[:, 0, 0, :2] = features
        return LayerPosterior(torch.randn(count, 1, 1), where, None), which

    (train, labels), (test, which) = latents(400), latents(300)
    found = {
        read: whitened_accuracies((read(train), labels), {"0": (read(test), which)})["0"]
        for read in (presence_logits, presence_and_pose)
    }
    assert found[presence_logits] < 0.4 and found[presence_and_pose] > 0.99


def test_wholes_vote_for_their_most_frequent_class():
    classes = torch.tensor([0, 0, 1, 1, 2, 2])
    assert majority_vote(classes, classes) == 1
    assert majority_vote((classes + 1) % 3 + 4, classes) == 1  # whatever wholes are called
    assert majority_vote(torch.zeros(6, dtype=torch.long), classes) == pytest.approx(1 / 3)
    assert majority_vote(torch.tensor([5, 5, 5, 0, 0, 0]), classes) == pytest.approx(4 / 6)
    assert majority_vote(torch.arange(6), classes) == 1  # the more wholes, the easier
    with pytest.raises(tc.BadInput, match="assignments and classes must be"):
        majority_vote(classes[:3], classes)


# Templates ----------------------------------------------------------------------------------------


def moved(template, pose):
    """As a model draws it, on a square of its own size."""
    size = template.shape[-1]
    places = poses.sources(pose, grid(size, size))
    return grid_sample(template[None], places[None], align_corners=False)[0]


def glyph(*rows):
    """A white template of 12 x 12 from rows of 6, a little blurred."""
    alpha = torch.tensor([[float(c != " ") for c in row] for row in rows])
    alpha = alpha.repeat_interleave(2, 0).repeat_interleave(2, 1)
    alpha = torch.nn.functional.avg_pool2d(alpha[None], 3, 1, 1)
    return torch.cat([torch.ones_like(alpha), alpha])


#: what no affine map takes to each other: one, two and four things, a ring, branches
STRANGERS = torch.stack(
    [
        glyph("      ", "      ", " #### ", " #### ", "      ", "      "),
        glyph("      ", " #  # ", " #  # ", " #  # ", " #  # ", "      "),
        glyph("      ", " #  # ", "      ", "      ", " #  # ", "      "),
        glyph("      ", " #### ", " #  # ", " #  # ", " #### ", "      "),
        glyph("      ", " #### ", " #    ", " #    ", " #    ", "      "),
    ]
)


def test_rotated_scaled_and_mirrored_copies_are_found_but_no_random_strokes():
    mirrored = torch.tensor([-1.0, 1.0, 1.0, -1.0, 1.0, 1.0])
    maps = [
        poses.rotated(math.radians(100)) * 0.9,
        poses.rotated(math.radians(-20)),
        poses.rotated(math.radians(200)) * 0.8 * mirrored,
    ]
    copied = [0, 3, 4]
    copies = [moved(STRANGERS[n], pose) for n, pose in zip(copied, maps, strict=True)]
    found = affine_copies(torch.cat([STRANGERS, torch.stack(copies)]))
    planted = torch.zeros(8, 8, dtype=torch.bool)
    planted[copied, torch.arange(5, 8)] = True
    planted = planted | planted.T
    assert found.errors[planted].max() < 0.03
    assert found.errors[~planted & ~torch.eye(8, dtype=torch.bool)].min() > 0.2
    assert torch.equal(found.errors, found.errors.T) and (found.errors.diagonal() == 0).all()
    assert found.share(strangers(8, 12, sets=1)) == pytest.approx(6 / 8)


def test_a_template_is_its_own_best_copy():
    both = torch.cat([STRANGERS[3:4], STRANGERS[3:4]])
    assert affine_copies(both).nearest.max() < 1e-3


def test_a_piece_of_a_template_is_no_copy_of_it():
    """One dot and four: a single one of them, enlarged, matches better in one direction."""
    dot = glyph("      ", "      ", "  ##  ", "  ##  ", "      ", "      ")
    assert affine_copies(torch.stack([dot, STRANGERS[2]])).nearest.min() > 0.25


def test_invisible_templates_are_no_copies_of_visible_ones():
    clear = STRANGERS[:2].clone()
    clear[0, 1] = 0
    # all of one is missing, and nothing of the other, which is moved out of sight
    assert affine_copies(clear).nearest.tolist() == pytest.approx([0.5, 0.5], abs=1e-4)


def test_a_models_templates_are_measured_without_their_gradients():
    templates = Templates(3, 8, (2, 16, 16))
    with torch.no_grad():
        alone = affine_copies(templates.images())
    found = affine_copies(templates.images())
    torch.testing.assert_close(found.errors, alone.errors)
    assert found.errors.shape == (3, 3) and not found.errors.requires_grad
    assert found.share(found.nearest) == 0 and templates.alpha.grad is None
    with pytest.raises(tc.BadInput, match="two or more"):
        affine_copies(templates.images()[:1])


def test_strokes_are_drawn_from_their_seed_and_are_much_alike():
    some = strokes(5, 12, seed=1)
    assert some.shape == (5, 2, 12, 12) and some.min() >= 0 and some.max() <= 1
    assert torch.equal(some, strokes(5, 12, seed=1)) and not torch.equal(some, strokes(5, 12, 2))
    assert (some[:, 1].sum((1, 2)) > 4).all()
    assert affine_copies(some).nearest.max() < 0.5


def test_random_strokes_are_seldom_copies():
    known = strangers(6, 12)
    assert known.shape == (24,)
    assert affine_copies(strokes(6, 12, seed=9)).share(known) < 0.4
    again = torch.cat([strokes(3, 12, seed=9), strokes(3, 12, seed=9)])
    assert affine_copies(again).share(known) == 1


# ---- Turned images ----


def test_all_ink_is_kept_without_a_rotation():
    torch.manual_seed(0)
    model = PartWhole((1, 12, 12), sizes=(2, 3), width=8, depth=1)
    found = ink_kept(model, torch.rand(4, 1, 12, 12), 0.0)
    assert found.same == pytest.approx(1) and found.any == pytest.approx(1)


def test_strokes_keep_their_templates_only_if_scenes_may_turn():
    torch.manual_seed(0)
    x = PartWhole((1, 16, 16), sizes=(4, 6), width=8, depth=1).sample(6).x
    kept = {}
    for turns in (1, 4):
        torch.manual_seed(0)
        model = PartWhole((1, 16, 16), sizes=(2, 3), width=8, depth=1, turns=turns)
        for parameter in model.part_encoder.parameters():  # so that parts feel the image
            parameter.data += 0.2 * torch.randn_like(parameter)
        kept[turns] = ink_kept(model, x, math.pi / 2)
        assert 0 <= kept[turns].same <= kept[turns].any <= 1 + 1e-6
    assert kept[4].same > 0.99 > kept[1].same + 0.05
