"""Free-form inference for single images, and scenes with rotations."""

import math

import pytest
import torch

from topocaps import VAE, BadInput, Topography
from topocaps.capsules import Capsules, LayerPosterior, PartWhole, poses
from topocaps.capsules.free_form import FROM_ENCODER, move_posteriors, optimise
from topocaps.data.geometry import warp

DOUBLE = {"dtype": torch.float64}


def model_of(frame_shape=(1, 4, 4), **settings):
    small = {"sizes": (2, 3), "template": 4, "width": 8, "depth": 1, "poses_are": "normal"}
    return PartWhole(frame_shape, **(small | settings)).double()


def test_turns_subtract_the_log_of_their_number_from_the_density():
    """Turned by a quarter, which a square picture takes exactly, nothing else changes."""
    still, turning = (model_of(frame_shape=(1, 8, 8), turns=turns) for turns in (1, 4))
    turning.load_state_dict(still.state_dict())
    x = torch.rand(3, 1, 1, 8, 8, **DOUBLE)
    layers = still.draw(still.encode(x))
    found = still.log_density(layers, x)
    for quarter in range(4):
        rotation = turning.rotations[quarter].expand(3, 1, -1)
        turned = turning.log_density(layers, x.rot90(quarter, (-2, -1)), rotation)
        torch.testing.assert_close(turned, found - math.log(4), rtol=0, atol=1e-4)


def test_the_rotation_of_a_scene_is_inferred():
    model = model_of(frame_shape=(1, 8, 8), turns=4)
    x = torch.rand(5, 1, 1, 8, 8, **DOUBLE)
    first = model.infer_rotation(x)
    posteriors = model.encode(x, first)
    for quarter in (1, 2, 3):
        turned = x.rot90(quarter, (-2, -1))
        rotation = model.infer_rotation(turned)
        wanted = poses.compose(first, model.rotations[quarter])
        torch.testing.assert_close(rotation, wanted, rtol=0, atol=1e-6)
        for one, other in zip(model.encode(turned, rotation), posteriors, strict=True):
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


def test_images_of_a_batch_are_optimised_independently(monkeypatch):
    model = model_of()
    x = torch.rand(2, 1, *model.frame_shape, **DOUBLE)
    monkeypatch.setattr(model, "draw", lambda posteriors: [b.mode(1.0) for b in posteriors])
    together = optimise(model, x, steps=5)
    for n in range(2):
        alone = optimise(model, x[n : n + 1], steps=5)
        for one, other in zip(alone.posteriors, together.posteriors, strict=True):
            torch.testing.assert_close(one.poses[0], other.poses[n])
            torch.testing.assert_close(one.logits[0], other.logits[n])


@pytest.mark.parametrize("how", [{"steps": 0}, {"steps": 1.5}, {"lr": 0}, {"lr": -1}])
def test_free_form_inference_refuses_invalid_arguments(how):
    model = model_of()
    with pytest.raises(BadInput, match=r"steps|lr"):
        optimise(model, torch.rand(1, 1, *model.frame_shape, **DOUBLE), **how)


def test_free_form_inference_refuses_models_of_other_families():
    model = VAE.mlp((1, 4, 4), Topography(2, (5,)), hidden=(9,))
    with pytest.raises(BadInput, match="optimise needs a PartWhole, not a VAE"):
        optimise(model, torch.rand(1, 1, 1, 4, 4))


def test_free_form_inference_refuses_posteriors_of_other_images():
    model = model_of()
    x = torch.rand(3, 1, *model.frame_shape, **DOUBLE)
    posteriors = model.encode(x)
    fewer = [LayerPosterior(b.logits[:2], b.poses[:2], b.spread[:2]) for b in posteriors]
    for bad in (posteriors[:1], fewer, posteriors[::-1], ()):
        with pytest.raises(BadInput, match="of every layer, wholes first"):
            optimise(model, x, bad, steps=1)


def test_posteriors_of_rotated_scenes_need_their_rotation():
    model = model_of(frame_shape=(1, 8, 8), turns=4)
    x = torch.rand(3, 1, 1, 8, 8, **DOUBLE)
    rotation = model.rotations[[1, 2, 3], None]
    posteriors = model.encode(x, rotation)
    assert torch.equal(optimise(model, x, posteriors, rotation, steps=2).rotation, rotation)
    with pytest.raises(BadInput, match="need the rotation"):
        optimise(model, x, posteriors, steps=2)
    with pytest.raises(BadInput, match=r"not \(2, 1, 6\)"):
        optimise(model, x, posteriors, rotation[:2], steps=2)
    with pytest.raises(BadInput, match="turns=1"):
        optimise(model_of(frame_shape=(1, 8, 8)), x, rotation=rotation, steps=2)


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
@pytest.mark.parametrize("turns", [1, 4])
def test_free_form_inference_works_with_gradients_disabled(mode, turns):
    model = model_of(frame_shape=(1, 8, 8), turns=turns)
    x = torch.rand(2, 1, 1, 8, 8, **DOUBLE)
    torch.manual_seed(0)
    wanted = optimise(model, x, steps=3).bounds
    torch.manual_seed(0)
    with mode():
        inside = x + 0  # in inference mode, a tensor that remembers no gradients
        rotation = model.infer_rotation(inside)
        start = model.encode(inside, rotation)
        found = optimise(model, inside, start, rotation, steps=3, lr=FROM_ENCODER).bounds
    torch.testing.assert_close(found, wanted)


@pytest.mark.parametrize(
    "by", [[0.8, 0.4, 0.2, -0.4, 0.85, -0.15], [0.98, 0.09, 0.06, -0.09, 0.96, -0.05]]
)
def test_posteriors_of_a_moved_image_are_the_moved_posteriors(by):
    """Free-form inference of a moved scene stays near the moved posteriors.

    The scene is a sample of the model. Poses change by at most .02 or a fifth of the motion, and
    parts keep their wholes.
    """
    torch.manual_seed(3)
    model = model_of(frame_shape=(1, 16, 16), template=6, noise=0.05, scale=0.5, poses_are="delta")
    top = model.sample(4, relaxed=True).layers[0]
    wholes = Capsules(torch.full_like(top.logits, 4.0), 0.1 * top.poses)
    parts = model.links[0].means(wholes)[:, 1].detach()  # all of the first
    parts = Capsules(torch.full_like(parts[..., 0], 4.0), parts)
    x = model.templates(parts).detach()[:, None]
    posteriors = [
        LayerPosterior(v.logits[:, None], v.poses[:, None], None) for v in (wholes, parts)
    ]
    settled = optimise(model, x, posteriors, steps=150, lr=0.01).posteriors
    by = torch.tensor(by, **DOUBLE)
    after = move_posteriors(settled, by)
    shifted = warp(x, poses.sources(by.expand(4, 1, 6), model.templates.grid.double()))
    found = optimise(model, shifted, after, steps=150).posteriors

    def routing(posteriors):
        return model.links[0].routing(*(posterior.mode(1.0) for posterior in posteriors)).detach()

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
def test_parts_and_predictions_of_moved_posteriors_are_moved_in_the_image(turns, sizes):
    """Poses are stored before the rotation of a scene, and the picture is moved after it."""
    model = model_of(frame_shape=(1, 8, 8), turns=turns, sizes=sizes)
    x = torch.rand(6, 1, 1, 8, 8, **DOUBLE)
    rotation = model.infer_rotation(x)
    by = torch.tensor([0.9, 0.3, 0.2, -0.1, 1.1, -0.15], **DOUBLE)
    before = model.encode(x, rotation)
    after = move_posteriors(before, by, rotation)

    def drawn(posteriors):
        """Where parts are, and where each layer of objects expects what is below it."""
        values = [posterior.mode(1.0) for posterior in posteriors]
        places = [values[-1].poses]
        for link, above in zip(model.links, values, strict=False):
            places.append((link.means(above)[..., 1:, :, :] + link.stands_at).flatten(-3, -2))
        return [Capsules(p[..., 0], p).rotated(rotation).poses for p in places]

    for place, other in zip(drawn(before), drawn(after), strict=True):
        torch.testing.assert_close(other, poses.compose(place, by))


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

    def bound(posteriors):
        many = [
            LayerPosterior(
                *(v if v is None else v.expand(4000, *v.shape[1:]) for v in vars(b).values())
            )
            for b in posteriors
        ]
        with torch.no_grad():
            found = model.bound(x.expand(4000, *x.shape[1:]), many, model.draw(many)).elbo
        return found.mean(), found.std() / len(found) ** 0.5

    first, first_error = bound(model.encode(x))
    found, found_error = bound(optimise(model, x, steps=300, lr=0.05).posteriors)
    assert found > first + 5 * (first_error + found_error)
    assert found < evidence + 5 * (error + found_error)
