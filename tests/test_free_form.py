"""Beliefs of single images, optimised; and scenes that are turned as a whole."""

import math

import pytest
import torch

from topocaps import BadInput
from topocaps.capsules import Belief, Capsules, PartWhole, poses
from topocaps.capsules.free_form import moved, optimise

DOUBLE = {"dtype": torch.float64}


def model_of(frame_shape=(1, 4, 4), **settings):
    small = {"sizes": (2, 3), "template": 4, "width": 8, "depth": 1, "poses_are": "normal"}
    return PartWhole(frame_shape, **(small | settings)).double()


def test_a_scene_that_may_turn_is_worth_what_it_is_unturned_less_the_choice():
    """Turned by a quarter, which a square picture takes exactly, nothing else changes."""
    still, turning = (model_of(frame_shape=(1, 8, 8), turns=turns) for turns in (1, 4))
    turning.load_state_dict(still.state_dict())
    x = torch.rand(3, 1, 1, 8, 8, **DOUBLE)
    layers = still.draw(still.believe(x))
    found = still.log_density(layers, x)
    for quarter in range(4):
        turn = turning.rotations[quarter].expand(3, 1, -1)
        turned = turning.log_density(layers, x.rot90(quarter, (-2, -1)), turn)
        torch.testing.assert_close(turned, found - math.log(4), rtol=0, atol=1e-4)


def test_the_turn_is_inferred_whichever_way_the_picture_is_turned():
    model = model_of(frame_shape=(1, 8, 8), turns=4)
    x = torch.rand(5, 1, 1, 8, 8, **DOUBLE)
    first = model.upright(x)
    beliefs = model.believe(x, first)
    for quarter in (1, 2, 3):
        turned = x.rot90(quarter, (-2, -1))
        turn = model.upright(turned)
        wanted = poses.after(first, model.rotations[quarter])
        torch.testing.assert_close(turn, wanted, rtol=0, atol=1e-6)
        for one, other in zip(model.believe(turned, turn), beliefs, strict=True):
            torch.testing.assert_close(one.logits, other.logits, rtol=0, atol=1e-5)
            torch.testing.assert_close(one.poses, other.poses, rtol=0, atol=1e-5)


def test_free_form_inference_tightens_the_bound_and_leaves_the_model_alone():
    model = model_of()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    x = torch.rand(4, 1, *model.frame_shape, **DOUBLE)
    found = optimise(model, x, steps=60, lr=0.05)
    assert found.bounds.shape == (61, 4, 1)
    assert (found.bounds[-10:].mean(0) > found.bounds[:5].mean(0)).all()
    for name, value in model.state_dict().items():
        assert torch.equal(value, before[name]), name
    assert all(p.grad is None for p in model.parameters())


def test_images_are_optimised_each_by_itself(monkeypatch):
    model = model_of()
    x = torch.rand(2, 1, *model.frame_shape, **DOUBLE)
    monkeypatch.setattr(model, "draw", lambda beliefs: [b.values(1.0) for b in beliefs])
    together = optimise(model, x, steps=5)
    for n in range(2):
        alone = optimise(model, x[n : n + 1], steps=5)
        for one, other in zip(alone.beliefs, together.beliefs, strict=True):
            torch.testing.assert_close(one.poses[0], other.poses[n])
            torch.testing.assert_close(one.logits[0], other.logits[n])


@pytest.mark.parametrize("how", [{"steps": 0}, {"steps": 1.5}, {"lr": 0}, {"lr": -1}])
def test_free_form_inference_refuses_what_makes_no_sense(how):
    model = model_of()
    with pytest.raises(BadInput, match=r"steps|lr"):
        optimise(model, torch.rand(1, 1, *model.frame_shape, **DOUBLE), **how)


def test_beliefs_about_a_moved_picture_are_the_moved_beliefs():
    """A scene that the model drew itself, moved by a small map: from the moved beliefs, with the
    routing kept, free-form inference stays within 0.05 of them; what they draw is moved too."""
    torch.manual_seed(3)
    model = model_of(frame_shape=(1, 16, 16), template=6, noise=0.05, scale=0.5, poses_are="delta")
    scene = model.sample(4, relaxed=True)
    layers = [Capsules(torch.full_like(v.logits, 4.0), 0.1 * v.poses) for v in scene.layers[:1]]
    parts = model.links[0].means(layers[0])[:, 1]
    layers.append(Capsules(torch.full_like(parts[..., 0], 4.0), parts))
    x = model.templates(layers[-1]).detach()[:, None]
    beliefs = [Belief(v.logits[:, None], v.poses[:, None].detach(), None) for v in layers]
    settled = optimise(model, x, beliefs, steps=150, lr=0.01).beliefs
    by = torch.tensor([1.02, 0.05, 0.04, -0.05, 0.98, -0.03], **DOUBLE)
    after = moved(settled, by)
    shifted = poses.warp(x, by.expand(4, 1, 6), model.templates.pixels.double())
    found = optimise(model, shifted, after, steps=150, lr=0.01).beliefs
    assert (found[-1].poses - after[-1].poses).abs().mean() < 0.05
    drawn = [
        model.log_likelihood(b[-1].values(1.0), shifted).mean() for b in (after, found, settled)
    ]
    assert drawn[0] > drawn[2] and drawn[1] > drawn[2]


def test_an_optimised_bound_is_tighter_and_still_below_the_evidence():
    """The evidence of a tiny model by brute force, from scenes of the prior."""
    torch.manual_seed(1)
    model = model_of(sizes=(1, 1), noise=1.0)
    x = torch.rand(1, 1, *model.frame_shape, **DOUBLE)
    with torch.no_grad():
        likely = torch.cat(
            [
                model.log_likelihood(model.sample(50_000, relaxed=True).layers[-1], x[0])
                for _ in range(4)
            ]
        )
        weights = (likely - likely.max()).exp()
        evidence = likely.max() + weights.mean().log()
        error = weights.std() / weights.mean() / len(likely) ** 0.5

    def bound(beliefs):
        many = [
            Belief(*(v if v is None else v.expand(4000, *v.shape[1:]) for v in vars(b).values()))
            for b in beliefs
        ]
        with torch.no_grad():
            found = model.bound(x.expand(4000, *x.shape[1:]), many, model.draw(many)).elbo
        return found.mean(), found.std() / len(found) ** 0.5

    first, first_error = bound(model.believe(x))
    found, found_error = bound(optimise(model, x, steps=300, lr=0.05).beliefs)
    assert found > first + 5 * (first_error + found_error)
    assert found < evidence + 5 * (error + found_error)
