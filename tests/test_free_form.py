"""Beliefs of single images, optimised; and scenes that are turned as a whole."""

import math

import pytest
import torch

from topocaps import BadInput
from topocaps.capsules import Belief, Capsules, PartWhole, poses
from topocaps.capsules.free_form import FROM_ENCODER, moved, optimise
from topocaps.capsules.model import in_image
from topocaps.data.geometry import warp

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


def test_free_form_inference_refuses_beliefs_that_are_not_of_these_images():
    model = model_of()
    x = torch.rand(3, 1, *model.frame_shape, **DOUBLE)
    beliefs = model.believe(x)
    fewer = [Belief(b.logits[:2], b.poses[:2], b.spread[:2]) for b in beliefs]
    for bad in (beliefs[:1], fewer, beliefs[::-1], ()):
        with pytest.raises(BadInput, match="of every layer, wholes first"):
            optimise(model, x, bad, steps=1)


def test_beliefs_of_scenes_that_turn_come_with_their_turn():
    model = model_of(frame_shape=(1, 8, 8), turns=4)
    x = torch.rand(3, 1, 1, 8, 8, **DOUBLE)
    turn = model.rotations[[1, 2, 3], None]
    beliefs = model.believe(x, turn)
    assert torch.equal(optimise(model, x, beliefs, turn, steps=2).turn, turn)
    with pytest.raises(BadInput, match="give their turn"):
        optimise(model, x, beliefs, steps=2)
    with pytest.raises(BadInput, match=r"not \(2, 1, 6\)"):
        optimise(model, x, beliefs, turn[:2], steps=2)
    with pytest.raises(BadInput, match="do not turn"):
        optimise(model_of(frame_shape=(1, 8, 8)), x, turn=turn, steps=2)


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
@pytest.mark.parametrize("turns", [1, 4])
def test_free_form_inference_needs_no_gradients_from_outside(mode, turns):
    model = model_of(frame_shape=(1, 8, 8), turns=turns)
    x = torch.rand(2, 1, 1, 8, 8, **DOUBLE)
    torch.manual_seed(0)
    wanted = optimise(model, x, steps=3).bounds
    torch.manual_seed(0)
    with mode():
        inside = x + 0  # in inference mode, a tensor that remembers no gradients
        turn = model.upright(inside)
        start = model.believe(inside, turn)
        found = optimise(model, inside, start, turn, steps=3, lr=FROM_ENCODER).bounds
    torch.testing.assert_close(found, wanted)


@pytest.mark.parametrize(
    "by", [[0.8, 0.4, 0.2, -0.4, 0.85, -0.15], [0.98, 0.09, 0.06, -0.09, 0.96, -0.05]]
)
def test_beliefs_about_a_moved_picture_are_the_moved_beliefs(by):
    """A scene that the model drew itself, moved by a large map or a small one: from the moved
    beliefs, free-form inference stirs by .02 or a fifth of the motion at most, and parts keep their
    wholes."""
    torch.manual_seed(3)
    model = model_of(frame_shape=(1, 16, 16), template=6, noise=0.05, scale=0.5, poses_are="delta")
    top = model.sample(4, relaxed=True).layers[0]
    wholes = Capsules(torch.full_like(top.logits, 4.0), 0.1 * top.poses)
    parts = model.links[0].means(wholes)[:, 1].detach()  # all of the first
    parts = Capsules(torch.full_like(parts[..., 0], 4.0), parts)
    x = model.templates(parts).detach()[:, None]
    beliefs = [Belief(v.logits[:, None], v.poses[:, None], None) for v in (wholes, parts)]
    settled = optimise(model, x, beliefs, steps=150, lr=0.01).beliefs
    by = torch.tensor(by, **DOUBLE)
    after = moved(settled, by)
    shifted = warp(x, poses.sources(by.expand(4, 1, 6), model.templates.grid.double()))
    found = optimise(model, shifted, after, steps=150).beliefs

    def routing(beliefs):
        return model.links[0].routing(*(belief.values(1.0) for belief in beliefs)).detach()

    children = routing(settled).sum(-1)
    assert (children[..., 1] > 2).all() and (children[..., 0] < 0.01).all()
    assert (routing(found) - routing(settled)).abs().max() < 0.1
    for layer, which in ((0, [0]), (1, [0, 1, 2])):  # the whole that has children, and all parts
        motion, apart = (
            (one[layer].poses - after[layer].poses)[..., which, :].abs().mean((0, 1, 3))
            for one in (settled, found)
        )
        assert (motion > 0.035).all() and (apart < (motion / 5).clamp_min(0.02)).all()


@pytest.mark.parametrize("turns", [1, 4])
@pytest.mark.parametrize("sizes", [(2, 3), (2, 2, 3)])
def test_what_moved_beliefs_draw_and_expect_is_moved_in_the_image(turns, sizes):
    """Poses are stored before the turn of a scene, and the picture is moved after it."""
    model = model_of(frame_shape=(1, 8, 8), turns=turns, sizes=sizes)
    x = torch.rand(6, 1, 1, 8, 8, **DOUBLE)
    turn = model.upright(x)
    by = torch.tensor([0.9, 0.3, 0.2, -0.1, 1.1, -0.15], **DOUBLE)
    before = model.believe(x, turn)
    after = moved(before, by, turn)

    def drawn(beliefs):
        """Where parts are, and where each layer of objects expects what is below it."""
        values = [belief.values(1.0) for belief in beliefs]
        places = [values[-1].poses]
        for link, above in zip(model.links, values, strict=False):
            places.append((link.means(above)[..., 1:, :, :] + link.stands_at).flatten(-3, -2))
        return [in_image(Capsules(p[..., 0], p), turn).poses for p in places]

    for place, other in zip(drawn(before), drawn(after), strict=True):
        torch.testing.assert_close(other, poses.after(place, by))


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
