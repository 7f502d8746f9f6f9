"""Topographic VAEs that are trained to predict frames that are hidden from their encoders."""

from dataclasses import replace

import pytest
import torch
from test_training import StopAt, assert_same, weights

import topocaps as tc
from topocaps.models.base import build
from topocaps.models.convolutional import convolutional
from topocaps.models.visible import Past, Stretch, VisibleFrames
from topocaps.papers.recipes import find
from topocaps.study.recipe import BaseRecipe
from topocaps.training.engine import Engine
from topocaps.training.loop import train
from topocaps.training.watching import Silent

FRAME, FRAMES = (1, 4, 4), 6
TOPOGRAPHY = tc.Topography(2, (6,), window=5)
ADAM = tc.Training(tc.Adam(3e-3), batch=4, epochs=3)
PICTURE = (1, 8, 8)


def tvae(visible=None, seed=0, topography=TOPOGRAPHY):
    torch.manual_seed(seed)
    return tc.TopographicVAE.mlp(FRAME, topography, hidden=(8,), visible=visible)


def frames(count=3):
    return torch.rand(count, FRAMES, *FRAME, generator=torch.Generator().manual_seed(1))


def numbers(model, count=3):
    generator = torch.Generator().manual_seed(2)
    drawn = [torch.randn(count, FRAMES, *s, generator=generator) for s in model.noise_shapes]
    left = iter(drawn)
    return drawn, lambda like: next(left)


def terms(evidence):
    return [getattr(evidence, name) for name in tc.TopographicVAE.terms]


APART = tc.Topography(2, (3, 3), window=3, apart=True)
every_topography = pytest.mark.parametrize("topography", [TOPOGRAPHY, APART], ids=["one", "apart"])


@every_topography
def test_with_all_frames_visible_nothing_changes(topography):
    plain, all_visible = tvae(None, 0, topography), tvae(Stretch(FRAMES), 0, topography)
    drawn, noise = numbers(all_visible)
    left = iter(drawn[1:])
    expected = plain.evidence(frames(), lambda like: next(left))
    for one, other in zip(
        terms(all_visible.evidence(frames(), noise)), terms(expected), strict=True
    ):
        assert torch.equal(one, other)


def test_latents_of_hidden_frames_come_from_the_prior_and_the_frames_count():
    model, x = tvae(Past(2, 2)), frames()
    (_, z_noise, u_noise), noise = numbers(model)
    found = model.evidence(x, noise)
    hidden = torch.arange(FRAMES) >= 2
    assert (found.kl_z[:, hidden] == 0).all() and (found.kl_u[:, hidden] == 0).all()
    assert (found.kl_z[:, ~hidden] > 0).all() and (found.kl_u[:, ~hidden] > 0).all()
    q = model.posterior(x)
    seen = ~hidden[:, None, None]
    z, u = (
        torch.where(seen, one.mean + one.stddev * drawn, drawn)
        for one, drawn in ((q.z, z_noise), (q.u, u_noise))
    )
    expected = model.x_given_t(model.latents(z, u)).log_prob(x)
    torch.testing.assert_close(found.log_px_given_t, expected)


@pytest.mark.parametrize("gaps", [False, True])
def test_hidden_frames_affect_only_their_own_likelihood(gaps):
    model, x = tvae(Past(3, 3)), frames()
    mask = torch.ones(3, FRAMES, dtype=torch.bool)
    mask[:, 1] = not gaps
    hidden = ~(mask & (mask.cumsum(1) <= 3))
    changed = torch.where(hidden[..., None, None, None], 1 - x, x)
    given = mask if gaps else None
    one = model.evidence(x, numbers(model)[1], given)
    other = model.evidence(changed, numbers(model)[1], given)
    for term in ("log_px_given_t", "kl_z", "kl_u"):
        before, after = getattr(one, term), getattr(other, term)
        torch.testing.assert_close(before[~hidden], after[~hidden])
    assert (one.log_px_given_t != other.log_px_given_t)[hidden & mask].all()
    if gaps:
        assert (one.log_px_given_t[:, 1] == 0).all()


def test_all_frames_are_visible_when_the_model_is_called():
    x, found = frames(), []
    for visible in (None, Past(1, 1)):
        model = tvae(visible)
        torch.manual_seed(3)
        found.append(terms(model(x)))
    for one, other in zip(*found, strict=True):
        assert torch.equal(one, other)


def test_the_expected_bound_is_below_the_evidence():
    """With any visible frames, the bound is at most the importance-weighted one of many samples."""
    model, x = tvae(Past(2, 2)), frames(1)
    with torch.no_grad():
        drawn = torch.stack([model.evidence(x).elbo.mean() for _ in range(400)])
        tight = tc.log_px(model, x.expand(20, *x.shape[1:]), samples=200)
    error = drawn.std() / 20 + tight.std() / 20**0.5
    assert drawn.mean() <= tight.mean() + 3 * error


@pytest.mark.parametrize("clip", [None, 1.0])
def test_models_of_a_stack_train_as_they_do_alone(clip):
    sequences, seeds = tc.Sequences.of(frames(20)), [7, 3]
    training = replace(ADAM, clip=clip)
    together = [tvae(Stretch(2), n) for n in range(2)]
    assert len(Engine(together, sequences, seeds, training).parts) == 1
    train(together, sequences, training, seeds=seeds)
    for n, member in enumerate(together):
        alone = tvae(Stretch(2), n)
        train([alone], sequences, training, seeds=[seeds[n]])
        for name, value in alone.state_dict().items():
            torch.testing.assert_close(member.state_dict()[name], value, rtol=1e-3, atol=1e-4)


def test_models_with_different_visible_frames_do_not_share_a_stack():
    models = [tvae(Stretch(2)), tvae(Stretch(3)), tvae()]
    engine = Engine(models, tc.Sequences.of(frames(8)), [0, 1, 2], ADAM)
    assert len(engine.parts) == 3


def test_training_resumes_bit_for_bit(tmp_path):
    x, settings = frames(20), dict(training=ADAM, device="cpu")
    whole = tc.fit(tvae(Stretch(2)), x, watcher=Silent(), **settings)
    with pytest.raises(tc.Interrupted):
        tc.fit(tvae(Stretch(2)), x, out=tmp_path, watcher=StopAt(4), **settings)
    with pytest.raises(tc.BadInput, match=r"model\.visible\.least"):
        tc.fit(tvae(Stretch(3)), x, out=tmp_path, watcher=Silent(), **settings)
    again = tc.fit(tvae(Stretch(2), seed=5), x, out=tmp_path, watcher=Silent(), **settings)
    assert_same(weights(whole.model), weights(again.model))


def test_a_config_rebuilds_the_model():
    model = tvae(Stretch(2, 4))
    assert build(model.config).visible == Stretch(2, 4)
    assert "visible" not in tvae().config
    capsules = tc.Topography(2, (5,), window=3)
    made = convolutional(PICTURE, capsules, visible=Past(2))
    assert build(made.config).visible == Past(2)

    class Own(VisibleFrames):
        def among(self, uniform, present, count):
            return present

    assert tvae(Own()).config is None


def test_recipes_record_what_is_visible():
    recipe = find("letters/tvae-hidden")
    assert BaseRecipe.from_json(recipe.to_json()) == recipe
    assert recipe.visible == Stretch(3) and recipe.build((1, 28, 28), 0).visible == Stretch(3)
    assert recipe.change(["visible.least=4"]).visible == Stretch(4)
    assert recipe.fingerprint != find("letters/tvae").fingerprint
    with pytest.raises(tc.BadInput, match="a VAE has no visible"):
        replace(find("letters/vae"), visible=Stretch(3))


@pytest.mark.parametrize("value", [3, "stretch", Stretch])
def test_invalid_visible_frames_are_refused(value):
    with pytest.raises(tc.BadInput, match=r"visible must be VisibleFrames such as Stretch\(3\)"):
        tvae(value)
    with pytest.raises(tc.BadInput, match="it cannot predict others"):
        convolutional(PICTURE, tc.Topography(2, (5,)), tc.VAE, visible=Stretch(3))
