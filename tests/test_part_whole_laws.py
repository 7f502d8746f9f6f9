"""Part-whole models: terms of the bound, where parameters start, attention; in float64."""

import math

import pytest
import torch
from references import DOUBLE, assert_same, normal
from small_capsules import both_poses, images_of, model_of
from torch import nn
from torch.distributions import Normal, kl_divergence

from topocaps.capsules import Connection, LayerPosterior, Poses, concrete, poses
from topocaps.capsules.free_form import optimise
from topocaps.capsules.settings import HEADS, PartWholeSettings
from topocaps.data import geometry
from topocaps.metrics.capsules import ink_kept


@pytest.mark.parametrize("turns", [1, 4])
@both_poses
def test_the_terms_of_the_bound_are_those_of_equation_8(poses_are, turns):
    """Wholes by a divergence in closed form or, with Delta poses, by -log p(A); parts as drawn."""
    model = model_of((2, 3), poses_are=poses_are, turns=turns, temperature=0.7, noise=0.3)
    x = images_of(model, 5, 2)
    turn = model.infer_rotation(x)
    wholes, parts = model.encode(x, turn)
    above, below = model.draw((wholes, parts))
    found = model.bound(x, (wholes, parts), (above, below), turn)
    drawn = Normal(model.templates(below.rotated(turn)), 0.3)
    assert_same(found.log_px_given_t, drawn.log_prob(x).sum((-3, -2, -1)))
    log_q = parts.log_density(below, 0.7)
    assert_same(found.kl_parts, log_q - model.links[0].log_density(above, below))
    prior = torch.full_like(wholes.logits, math.log(0.1 / 0.9))
    presences = concrete.kl(wholes.logits, prior).sum(-1)
    assert_same(found.presence_nats, presences.detach())
    standard = Normal(torch.zeros_like(wholes.poses), 1.0)
    if poses_are is Poses.NORMAL:
        where = kl_divergence(Normal(wholes.poses, wholes.spread), standard)
    else:
        where = -standard.log_prob(wholes.poses)
    assert_same(found.kl_wholes, presences + where.sum((-2, -1)) + math.log(turns))
    assert_same(found.elbo, found.log_px_given_t - found.kl_parts - found.kl_wholes)


@pytest.mark.parametrize("turns", [1, 4])
def test_the_density_of_a_scene_includes_that_of_its_rotation(turns):
    model = model_of((2, 3), turns=turns, noise=0.3)
    x = images_of(model, 5)
    layers = model.draw(model.encode(x))
    turn = model.rotations[torch.arange(5) % turns] if turns > 1 else None
    wanted = model.log_prior(layers[0]) + model.links[0].log_density(*layers)
    pixels = Normal(model.templates(layers[1].rotated(turn)), 0.3).log_prob(x)
    wanted = wanted + pixels.sum((-3, -2, -1)) - math.log(turns)
    assert_same(model.log_density(layers, x, turn), wanted)


@pytest.mark.parametrize("frame_shape", [(1, 4, 4), (2, 4, 8)])
def test_the_rotations_of_a_scene_are_rotations_of_the_plane(frame_shape):
    """In pixels, where sides may differ: four quarters are none, and lengths stay."""
    model = model_of(frame_shape=frame_shape, turns=4)
    pixels = torch.tensor([frame_shape[2], frame_shape[1]], **DOUBLE) / 2
    for n, turn in enumerate(model.rotations):
        linear = pixels[:, None] * poses.as_matrix(turn)[:, :2] / pixels
        angle = math.pi / 2 * n
        cos, sin = math.cos(angle), math.sin(angle)
        wanted = torch.tensor([[cos, sin], [-sin, cos]], **DOUBLE)
        torch.testing.assert_close(linear, wanted, rtol=0, atol=1e-6)


def test_the_inverse_of_a_nearly_singular_map_keeps_its_orientation():
    """It is as large as the inverse of a map of the least area that is inverted."""
    for sign in (1.0, -1.0):
        small = torch.tensor([1e-3, 0.0, 0.0, 0.0, sign * 1e-3, 0.0], **DOUBLE)
        wanted = torch.tensor([10.0, 0.0, 0.0, 0.0, sign * 10.0, 0.0], **DOUBLE)
        torch.testing.assert_close(poses.inverse(small), wanted, rtol=1e-6, atol=0)


@pytest.mark.parametrize("stand", [False, True])
def test_connections_start_where_settings_say(stand):
    """Parents in their places expect children at the base, within ``tight`` of it."""
    base = poses.scaled(0.43)
    link = Connection(2, 3, base, PartWholeSettings(scatter=1e-9, tight=0.25), stand)
    torch.testing.assert_close(link.c, torch.full((2, 3), 0.25))
    parents = model_of((2, 3)).sample(1).layers[0]
    still = type(parents)(parents.logits.float(), torch.zeros(1, 2, 6))
    expected = link.means(still)
    torch.testing.assert_close(expected, base.expand_as(expected))


def test_initially_children_are_expected_at_their_base_pose():
    model = model_of((2, 2, 3), scatter=1e-9, scale=0.5)
    bases = torch.zeros(6, **DOUBLE), poses.scaled(0.5).double()
    for link, base in zip(model.links, bases, strict=True):
        still = model.sample(1).layers[0]
        still = type(still)(still.logits, torch.zeros(1, 2, 6, **DOUBLE))
        expected = link.means(still)
        torch.testing.assert_close(expected, base.expand_as(expected), rtol=0, atol=1e-7)


def test_parts_are_encoded_as_weighted_means_over_positions():
    """Weights of each part add up to 1; numbers start at the base pose, its spread at 0.03."""
    encoder = model_of((2, 3)).part_encoder
    x = torch.rand(5, 1, 8, 8, **DOUBLE)
    encoder.places = geometry.grid(2, 2).permute(2, 0, 1).double()
    read = encoder.read
    with torch.no_grad():
        weights, bias = read.weight.unflatten(0, (3, -1)), read.bias.unflatten(0, (3, -1))
        weights[:, :-1] = 0
        bias[:, :-1] = 0
        bias[:, 0] = torch.tensor([1.0, -2.0, 0.5])
        belief = encoder(x)
        assert_same(belief.logits, bias[:, 0].expand(5, 3))
        assert_same(belief.poses, encoder.base.expand(5, 3, 6))
        assert_same(belief.spread, torch.full((5, 3, 6), 0.03, **DOUBLE))
        weights[:, 0] = normal(*weights[:, 0].shape)
        seen = torch.cat([encoder.look(x), encoder.places.expand(5, -1, -1, -1)], 1)
        logits, weigh = (
            torch.einsum("pc,bcyx->bpyx", weights[:, n, :, 0, 0], seen) + bias[:, n, None, None]
            for n in (0, -1)
        )
        weigh = weigh.exp() / weigh.exp().sum((2, 3), keepdim=True)
        assert_same(encoder(x).logits, (weigh * logits).sum((2, 3)))


def test_attention_is_that_of_torch():
    """Of a set transformer: what is added to queries before they go on by themselves."""
    pool = model_of(width=8).whole_encoders[0].pool
    theirs = nn.MultiheadAttention(8, HEADS, batch_first=True).double()
    theirs.in_proj_weight.data = torch.cat([pool.query.weight, pool.key_value.weight])
    theirs.in_proj_bias.data = torch.cat([pool.query.bias, pool.key_value.bias])
    theirs.out_proj = pool.out
    queries, items = normal(5, 3, 8), normal(5, 6, 8)
    about = pool.about(items)
    added, _ = theirs(pool.before(queries), about, about)
    wanted = queries + added
    assert_same(pool(queries, items), wanted + pool.alone(wanted))


def test_the_inferred_rotation_has_the_highest_bound():
    model = model_of((2, 3), frame_shape=(1, 8, 8), turns=4)
    x = images_of(model, 6, 2)
    bounds = []
    for turn in model.rotations.expand(6, 2, 4, 6).unbind(2):
        beliefs = model.encode(x, turn)
        values = [belief.mode(model.temperature) for belief in beliefs]
        bounds.append(model.bound(x, beliefs, values, turn).elbo)
    best = torch.stack(bounds).argmax(0)
    assert len(best.unique()) > 1
    assert torch.equal(model.infer_rotation(x), model.rotations[best])


def test_free_form_inference_is_adam_with_a_cosine_schedule(monkeypatch):
    """By torch.optim: of logits, poses and logs of spreads."""
    model = model_of((2, 3))
    x = images_of(model, 3, 1)

    def values(beliefs):
        return [belief.mode(model.temperature) for belief in beliefs]

    monkeypatch.setattr(model, "draw", values)
    leaves = [
        [nn.Parameter(one.detach().clone()) for one in (b.logits, b.poses, b.spread.log())]
        for b in model.encode(x)
    ]
    optimiser = torch.optim.Adam([leaf for layer in leaves for leaf in layer], lr=0.05)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimiser, 6)
    wanted = []
    for _ in range(7):
        beliefs = [LayerPosterior(logits, where, spread.exp()) for logits, where, spread in leaves]
        bound = model.bound(x, beliefs, values(beliefs)).elbo
        wanted.append(bound.detach())
        optimiser.zero_grad()
        (-bound.sum()).backward()
        optimiser.step()
        schedule.step()
    model.zero_grad()
    assert_same(optimise(model, x, steps=6, lr=0.05).bounds, torch.stack(wanted))


def test_kept_ink_is_a_share_of_the_expected_ink(monkeypatch):
    """Pixel by pixel, the lesser of what should be drawn and what is: by a template, and by any."""
    model, should, does = model_of((2, 3)), *torch.rand(2, 5, 3, 1, 4, 4, **DOUBLE)
    does = 2 * does
    drawn = iter([should, does])
    monkeypatch.setattr(model.templates, "visible_ink", lambda parts: next(drawn))
    found = ink_kept(model, images_of(model, 5), 0.3)
    same = torch.where(should < does, should, does).sum() / should.sum()
    together = should.sum(1), does.sum(1)
    kept = torch.where(together[0] < together[1], *together).sum() / should.sum()
    assert (found.same, found.any) == pytest.approx((same.item(), kept.item()), rel=1e-9)
