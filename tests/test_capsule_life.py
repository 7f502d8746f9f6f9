"""Part-whole models: monitors and diagnoses, refused input, and settings."""

import json
from itertools import product

import numpy as np
import pytest
import torch
from small_capsules import (
    DOUBLE,
    both_poses,
    capsules_of,
    drawn_for,
    given,
    images_of,
    inferred,
    link_of,
    model_of,
)
from torch.distributions import Categorical

import topocaps as tc
from topocaps import BadInput
from topocaps.capsules import (
    Capsules,
    PartWhole,
)
from topocaps.capsules.settings import PartWholeSettings
from topocaps.models.base import build
from topocaps.training.watching import Silent

# ---- What training is told ----


def test_shares_count_present_parts():
    model = model_of((3, 4))
    x, numbers = images_of(model, 3, 2), drawn_for(model, 3, 2)
    found = model.evidence(x, given(numbers))
    posteriors, (wholes, parts) = inferred(model, x, numbers)
    taken = torch.zeros(4, **DOUBLE)
    for place in product(range(3), range(2)):
        for j in range(4):
            one = [Capsules(layer.logits[place], layer.poses[place]) for layer in (wholes, parts)]
            taken += parts.presences[place][j] * model.links[0].routing(*one)[:, j]
    shares = taken / parts.presences.sum()
    assert shares.sum().item() == pytest.approx(1)
    torch.testing.assert_close(found.clutter, shares[0].expand(3, 2))
    largest = shares[1:].max() / shares[1:].sum()
    torch.testing.assert_close(found.largest_share, largest.expand(3, 2))
    logits = posteriors[0].logits.flatten(0, 1).detach().numpy()
    assert found.logit_spread[0, 0].item() == pytest.approx(logits.std(0).mean())
    torch.testing.assert_close(found.parts_on, parts.presences.sum(-1))
    torch.testing.assert_close(found.wholes_on, wholes.presences.sum(-1))


def test_monitors_report_the_worst_of_several_layers():
    """The lowest connection is well, and all objects in the middle belong to nobody, or to one."""
    model = lively(model_of((3, 4, 5)))
    x = images_of(model, 16, 2)
    well = model.evidence(x)
    assert well.clutter.max() < 0.9 and well.largest_share.max() < 0.9
    model.links[0].affinity.data.fill_(-40.0)
    assert model.evidence(x).clutter.min() > 0.9
    with torch.no_grad():
        model.links[0].clutter = 1e-12
        model.links[0].affinity[1], model.links[0].spread[1] = 20.0, 1.0
    assert model.evidence(x).largest_share.min() > 0.9


def test_a_single_whole_may_have_all_parts():
    model = model_of((1, 4, 5), clutter=1e-3)
    found = model.evidence(images_of(model, 16, 2))
    parents = 4
    assert 1 / parents / 2 < found.largest_share.max() < 0.9


def means_of(model):
    found = model.evidence(images_of(model, 16, 2))
    return {term: getattr(found, term).mean().item() for term in model.recorded}


@torch.no_grad()
def lively(model):
    """Presences of wholes that vary over images, each about as often there as not."""
    last = model.whole_encoders[0].presence[-1]
    last.weight.normal_().mul_(30)
    last.bias -= model.encode(images_of(model, 64))[0].logits.mean(0)
    return model


def test_a_healthy_model_has_no_diagnosis():
    model = lively(model_of((3, 4)))
    means = means_of(model)
    assert means["logit_spread"] > 0.2 and model.diagnose(means) is None
    healthy = {"logit_spread": 1.0, "largest_share": 0.5, "clutter": 0.3}
    assert model.diagnose(healthy) is None


@pytest.mark.parametrize("seed", range(3))
def test_an_untrained_model_is_diagnosed(seed):
    torch.manual_seed(seed)
    model = PartWhole((1, 28, 28), sizes=(8, 12), width=64, depth=2)
    with torch.no_grad():
        means = {"logit_spread": model(torch.rand(64, 1, 1, 28, 28)).logit_spread.mean().item()}
    assert "not yet trained enough" in model.diagnose(
        {**means, "largest_share": 0.3, "clutter": 0.3}
    )


def test_constant_presences_of_wholes_are_diagnosed():
    model = model_of((3, 4))
    model.whole_encoders[0].presence[-1].weight.data.zero_()
    means = means_of(model)
    assert means["logit_spread"] < 1e-9
    assert "hardly vary" in model.diagnose(means)


def test_a_whole_with_all_parts_is_diagnosed():
    model = lively(model_of((3, 4), clutter=1e-12))
    with torch.no_grad():
        model.links[0].affinity.fill_(-40.0)
        model.links[0].affinity[1] = 20.0
        model.links[0].spread[1] = 1.0
    assert "one whole has" in model.diagnose(means_of(model))


def test_parts_that_belong_to_no_whole_are_diagnosed():
    model = lively(model_of((3, 4)))
    model.links[0].affinity.data.fill_(-40.0)
    assert "no whole" in model.diagnose(means_of(model))


def test_a_whole_with_all_parts_is_diagnosed_beside_other_collapses():
    shares = {"largest_share": 0.99, "clutter": 0.45}
    said = model_of((3, 4)).diagnose({"logit_spread": 0.5, **shares})
    assert "one whole has 99%" in said and "hardly vary" not in said
    said = model_of((3, 4)).diagnose({"logit_spread": 0.01, **shares})
    assert "one whole has 99%" in said and "hardly vary" in said


def test_shares_are_finite_if_no_part_is_present():
    model = model_of((3, 4))
    x = images_of(model, 2, 1)
    wholes, parts = model.encode(x)
    gone = Capsules(torch.full_like(parts.logits, -1e4), parts.poses)
    found = model.bound(x, (wholes, parts), (wholes.mode(1.0), gone))
    assert found.clutter.isfinite().all() and found.largest_share.isfinite().all()


def test_the_summary_states_whether_the_value_is_a_bound(tmp_path):
    for poses_are, said in (("delta", "value (no bound) "), ("normal", "elbo ")):
        model = PartWhole((1, 8, 8), sizes=(2, 3), width=8, depth=1, poses_are=poses_are)
        run = tc.fit(model, torch.rand(8, 1, 1, 8, 8), epochs=1, batch=4, watcher=Silent())
        assert model.summary(run.history[-1]).startswith(said)
        assert model.is_bound == (said == "elbo ")


def test_metrics_of_rolling_capsules_refuse_a_part_whole_model():
    model, x = PartWhole((1, 8, 8), sizes=(2, 3), width=8, depth=1), torch.rand(4, 1, 1, 8, 8)
    for ask in (tc.log_px, tc.metrics.evaluate, tc.metrics.per_sequence, tc.traverse):
        with pytest.raises(BadInput, match="PartWhole"):
            ask(model, x)


def test_images_without_a_time_are_refused_before_training():
    model = PartWhole((1, 8, 8), sizes=(2, 3), width=8, depth=1)
    with pytest.raises(BadInput, match="single images are sequences of one"):
        tc.fit(model, torch.rand(8, 1, 8, 8), epochs=1)


def test_drawn_images_are_valid_input():
    model = PartWhole((1, 12, 12), sizes=(4, 6), width=8, depth=1)
    with torch.no_grad():
        model.templates.colour.fill_(20.0)
        model.templates.alpha.fill_(20.0)
    scene = model.sample(200)
    assert scene.x.max() == 1 and model(scene.x[:, None]).elbo.isfinite().all()


def test_the_rotation_of_a_scene_is_inferred_for_encoding_and_required_for_its_density():
    model = PartWhole((1, 12, 12), sizes=(2, 3), width=8, depth=1, turns=4)
    scene = model.sample(3)
    x = scene.x[:, None]
    for mine, theirs in zip(model.encode(x), model.encode(x, model.infer_rotation(x)), strict=True):
        assert torch.equal(mine.logits, theirs.logits)
    with pytest.raises(BadInput, match="needs the rotation"):
        model.log_density(scene.layers, scene.x)
    assert model.log_density(scene.layers, scene.x, scene.rotation).isfinite().all()


def test_settings_accept_numbers_of_numpy():
    settings = PartWholeSettings(sizes=(np.int64(2), np.int32(3)), noise=np.float32(0.25))
    assert settings.sizes == (2, 3) and settings.noise == 0.25
    with pytest.raises(BadInput, match="n must be a whole number"):
        PartWhole((1, 8, 8), settings, width=8, depth=1).sample(0)
    with pytest.raises(BadInput, match="tensor, not a ndarray"):
        PartWhole((1, 8, 8), settings, width=8, depth=1)(np.zeros((1, 1, 1, 8, 8)))


def test_encoders_of_wholes_have_a_lower_learning_rate():
    model = model_of(slower=0.25)
    rates = {name: model.lr_scale(name) for name, _ in model.named_parameters()}
    for name, rate in rates.items():
        assert rate == (0.25 if "whole_encoder" in name else 1.0)
    assert set(rates.values()) == {0.25, 1.0}


# ---- What is refused, and what is kept ----


@both_poses
@pytest.mark.parametrize("frame_shape", [(1, 5, 9), (3, 4, 4), (2, 11, 6)])
def test_frames_may_have_any_shape_and_colours(frame_shape, poses_are):
    model = model_of((2, 3), frame_shape, poses_are=poses_are)
    x = images_of(model, 2, 3)
    model.check(x)
    found = model.evidence(x)
    assert found.elbo.shape == (2, 3) and found.elbo.isfinite().all()
    assert model.sample(4).x.shape == (4, *frame_shape)


def bad_images():
    x = torch.rand(2, 1, 1, 4, 6, **DOUBLE)
    hole, bright, dark = x.clone(), x.clone(), x.clone()
    hole[1, 0, 0, 2, 3] = torch.nan
    bright[0, 0, 0, 0, 0], dark[0, 0, 0, 0, 0] = 1.5, -0.5
    return {
        "NaN": (hole, "NaN"),
        "too bright": (bright, r"\[0, 1\]"),
        "too dark": (dark, r"\[0, 1\]"),
        "turned": (x.mT, r"\(1, 4, 6\)"),
        "another size": (torch.rand(2, 1, 1, 8, 6), r"\(1, 4, 6\)"),
        "colour": (x.expand(2, 1, 3, 4, 6), r"\(1, 4, 6\)"),
        "a bare frame": (x[0, 0], r"\(1, 4, 6\)"),
        "bytes": ((255 * x).byte(), "floating point"),
        "nothing": (x[:0], "no frames"),
    }


@pytest.mark.parametrize("x, why", bad_images().values(), ids=bad_images())
def test_bad_images_are_refused(x, why):
    with pytest.raises(BadInput, match=why):
        model_of((2, 3), (1, 4, 6)).check(x)


@pytest.mark.parametrize("x, why", bad_images().values(), ids=bad_images())
def test_bad_images_are_not_encoded(x, why):
    with pytest.raises(BadInput, match=why):
        model_of((2, 3), (1, 4, 6)).encode(x)


@pytest.mark.parametrize("sizes", [(), (3,), (0, 3), (3, 0), (2, -1, 3), (True, 2), "23", None])
def test_sizes_of_fewer_than_two_layers_are_refused(sizes):
    with pytest.raises(BadInput, match="two layers or more"):
        model_of(sizes)


@pytest.mark.parametrize(
    "frame_shape",
    [
        *((), (8, 8), (1, 1, 8, 8), (0, 8, 8), (1, 3, 8), (1, 8, 2)),
        *((1.0, 8, 8), (1, 8.5, 8), (True, 8, 8), "abc", None, 8),
    ],
)
def test_invalid_frame_shapes_are_refused(frame_shape):
    with pytest.raises(BadInput, match="channels, height, width"):
        model_of((2, 3), frame_shape)


NONSENSE = {
    "noise": 0.0, "prior": 0.0, "prior of one": 1.0, "temperature": 0.0, "clutter": 0.0,
    "template": 0, "poses_are": "gamma", "sizes": (2, 2.5), "width": 6,
}  # fmt: skip


@pytest.mark.parametrize("name, value", NONSENSE.items(), ids=NONSENSE)
def test_invalid_settings_are_refused_by_name(name, value):
    name = name.split()[0]
    with pytest.raises(BadInput, match=name.split("_")[0]):
        model_of(**{name: value})


@both_poses
def test_a_model_is_rebuilt_from_its_config(poses_are):
    settings = {"noise": 0.3, "prior": 0.2, "scale": 0.5, "temperature": 0.7, "clutter": 0.2}
    model = model_of((2, 2, 3), (3, 4, 6), poses_are=poses_are, slower=0.5, **settings)
    rebuilt = build(json.loads(json.dumps(model.config))).double()
    assert type(rebuilt) is PartWhole and rebuilt.config == model.config
    rebuilt.load_state_dict(model.state_dict())
    x, numbers = images_of(model, 2, 2), drawn_for(model, 2, 2)
    one, other = (each.evidence(x, given(numbers)) for each in (model, rebuilt))
    for term in model.recorded:
        assert torch.equal(getattr(one, term), getattr(other, term))
    assert rebuilt.lr_scale("whole_encoders.0.seed") == 0.5


def test_a_model_of_the_papers_size_has_fewer_than_30_000_generative_parameters():
    model = PartWhole((1, 28, 28))
    generative = (*model.connections.parameters(), *model.templates.parameters())
    assert sum(parameter.numel() for parameter in generative) < 30_000
    assert (len(model.links), model.sizes, model.noise) == (1, (16, 16), 0.2)
    assert model.templates.images().shape == (16, 2, 12, 12)
    assert (model.links[0].c > 0.1).all()


def test_selections_are_drawn_from_a_distribution_that_torch_accepts():
    link = link_of()
    chances = link.log_selection(capsules_of(4, 2)).mT
    assert Categorical(logits=chances).probs.sum(-1).allclose(torch.ones(4, 3, **DOUBLE))
