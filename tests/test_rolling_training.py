"""Rolling VAEs in the engine: stacks, updates, resumed runs, steps without values; KL weights."""

import functools
import json
from dataclasses import replace

import pytest
import torch
from test_rolling import FRAME, frames
from test_training import StopAt, assert_same, weights

import topocaps as tc
from topocaps.latents.motion import Known, Unknown
from topocaps.models.visible import Past, RandomFrames, Stretch
from topocaps.training.engine import Engine
from topocaps.training.loop import train
from topocaps.training.memory import plan
from topocaps.training.stack import Stack, by_architecture
from topocaps.training.store import RunFolder
from topocaps.training.updates.autograd import AutogradUpdate
from topocaps.training.updates.base import MeanTerms
from topocaps.training.updates.fused import FusedUpdate
from topocaps.training.watching import KL_WEIGHT, Silent

ADAM = tc.Training(tc.Adam(3e-3, warmup=2), batch=4, epochs=3)
WARM = replace(ADAM, kl=tc.KLWeight(start=0.1, until=0.5))
MUON = replace(ADAM, optimiser=tc.Muon(3e-3, warmup=2))
PICTURE = (1, 8, 8)


def perceptrons(seed=0, **settings):
    torch.manual_seed(seed)
    return tc.RollingVAE.mlp(FRAME, tc.Topography(2, (5,)), hidden=(8,), **settings)


def convolutional(seed=0, **settings):
    torch.manual_seed(seed)
    capsules = tc.Topography(2, (5,))
    return tc.RollingVAE.convolutional(PICTURE, capsules, channels=(4,), hidden=6, **settings)


NETWORKS = {"perceptrons": perceptrons, "convolutions": convolutional}
every_network = pytest.mark.parametrize("build", NETWORKS.values(), ids=NETWORKS.keys())
#: settings under which a layer multiplies other rows than one for each frame
ROWS = {
    "all frames": {},
    "some frames": {"visible": Stretch(1, 2)},
    "unknown motion": {"motion": Unknown((-1, 1))},
    "fractional": {"motion": Known(0.4), "visible": RandomFrames(2)},
    "Student-t": {"prior": "student-t"},
}
every_setting = pytest.mark.parametrize("settings", ROWS.values(), ids=ROWS.keys())


def shown(build, count=20, gaps=False):
    x = torch.rand(count, 5, *build().frame_shape, generator=torch.Generator().manual_seed(1))
    if not gaps:
        return tc.Sequences.of(x)
    mask = torch.rand(count, 5, generator=torch.Generator().manual_seed(2)) < 0.7
    mask[:, 0] = True
    return tc.Sequences.of(torch.where(mask[..., None, None, None], x, torch.nan), mask)


@pytest.fixture
def mapped(monkeypatch):
    """Stack models that are mapped, as on a GPU."""
    monkeypatch.setattr(
        "topocaps.training.engine.by_architecture",
        lambda models, trainings, mapping: by_architecture(models, trainings),
    )


# Stacks -------------------------------------------------------------------------------------------


@every_network
@pytest.mark.parametrize(
    "training", [ADAM, replace(WARM, clip=1.0), MUON], ids=["bound", "KL weight", "muon"]
)
@pytest.mark.parametrize("gaps", [False, True], ids=["whole", "gaps"])
def test_a_member_of_a_stack_trains_as_it_would_alone(build, training, gaps, mapped):
    sequences, seeds = shown(build, gaps=gaps), [7, 3]
    together = [build(n) for n in range(2)]
    parts = 1 if build is perceptrons else 2  # convolutions are not mapped
    assert len(Engine(together, sequences, seeds, training).parts) == parts
    found = train(together, sequences, training, seeds=seeds)
    for n, (member, progress) in enumerate(zip(together, found, strict=True)):
        alone = build(n)
        (expected,) = train([alone], sequences, training, seeds=[seeds[n]])
        for name, value in alone.state_dict().items():
            torch.testing.assert_close(member.state_dict()[name], value, rtol=1e-3, atol=1e-4)
        for term in ("elbo", "kl"):
            assert progress.history[-1][term] == pytest.approx(expected.history[-1][term], rel=1e-3)


def test_on_a_cpu_each_is_trained_by_itself():
    """A CPU takes longer for a mapped stack than for its members one after the other."""
    engine = Engine([perceptrons(0), perceptrons(1)], shown(perceptrons), [0, 1], ADAM)
    assert [len(part.stack) for part in engine.parts] == [1, 1]


@every_network
@pytest.mark.parametrize("together", [1, 2])
@pytest.mark.parametrize("training", [WARM, MUON], ids=["KL weight", "muon"])
def test_training_resumes_bit_for_bit(build, training, together, mapped, tmp_path):
    def models(seed):
        return [build(seed + n) for n in range(together)]

    sequences, seeds = shown(build), range(together)
    folders = [RunFolder(tmp_path / str(n)) for n in seeds]
    whole, again = models(0), models(5)
    train(whole, sequences, training, seeds=seeds)
    with pytest.raises(tc.Interrupted, match="after step 7 of 15"):
        train(models(0), sequences, training, seeds=seeds, folders=folders, watcher=StopAt(7))
    train(again, sequences, training, seeds=seeds, folders=folders)
    for one, other in zip(whole, again, strict=True):
        assert_same(weights(one), weights(other))


def test_memory_is_planned_from_what_a_step_decodes():
    sequences = tc.Sequences.of(torch.rand(8, 12, *PICTURE))
    some, unknown = convolutional(visible=Stretch(1, 2)), convolutional(motion=Unknown((-1, 1)))
    models = [some, convolutional(), unknown]
    needs = [one.activations for one in plan(models, sequences, ADAM)]
    assert needs[0] < needs[1] < needs[2]
    several = plan([*models, convolutional(1)], sequences, ADAM)
    assert [one.activations for one in several] == [*needs, needs[1]]


# Updates ------------------------------------------------------------------------------------------


@every_setting
@pytest.mark.parametrize("kl", [tc.KLWeight(), tc.KLWeight(0.2, 1.0)], ids=["bound", "KL weight"])
@pytest.mark.parametrize("clip", [None, 0.05])
def test_fused_update_without_rounding_equals_autograd(
    settings, kl, clip, fused_anywhere, monkeypatch
):
    monkeypatch.setattr(torch.Tensor, "bfloat16", lambda tensor: tensor)
    training = tc.Training(tc.Adam(1e-2), batch=4, clip=clip, kl=kl)
    found = []
    for precision, kind in (("bf16", FusedUpdate), ("fp32", AutogradUpdate)):
        one = perceptrons(**settings)
        engine = Engine([one], shown(perceptrons), [0], replace(training, precision=precision))
        assert type(engine.parts[0].update) is kind
        (sums,) = engine.advance(1, 6, 10)
        engine.write_back()
        found.append((one, sums))
    (fused, some), (plain, others) = found
    assert some == pytest.approx(others, rel=1e-4)
    for (name, start), a, b in zip(
        perceptrons(**settings).named_parameters(),
        fused.parameters(),
        plain.parameters(),
        strict=True,
    ):
        assert (a - b).norm() < 5e-3 * (b - start).norm() + 1e-7, name


@every_setting
def test_fused_update_suits_perceptrons_of_a_single_model(settings, monkeypatch):
    monkeypatch.setattr(tc.Precision, "on", lambda self, device: self)
    training = tc.Training(tc.Sgd(1e-3), batch=4, precision="bf16")
    assert FusedUpdate.suits(Stack([perceptrons(**settings)], 5), training)
    assert not FusedUpdate.suits(Stack([convolutional(**settings)], 5), training)
    several = Stack([perceptrons(n, **settings) for n in range(2)], 5)
    assert not FusedUpdate.suits(several, training)  # mapped layers have no axis for members
    on_a_cpu = replace(training, optimiser=tc.Adam())  # PyTorch's own is faster
    assert not FusedUpdate.suits(Stack([perceptrons(**settings)], 5), on_a_cpu)


def test_training_in_bf16_ends_near_training_in_fp32(monkeypatch):
    monkeypatch.setattr("topocaps.training.settings.multiplies_bf16", lambda device: True)
    ends = []
    for precision, kind in (("bf16", FusedUpdate), ("fp32", AutogradUpdate)):
        training = tc.Training(tc.Sgd(1e-3), batch=4, precision=precision, kl=tc.KLWeight(0.1, 1))
        engine = Engine([perceptrons()], shown(perceptrons), [0], training)
        assert type(engine.parts[0].update) is kind
        ends.append(engine.advance(1, 20, 20)[0]["elbo"])
    assert ends[0] == pytest.approx(ends[1], rel=2e-3)


@every_network
@every_setting
@pytest.mark.parametrize("policy", [Stretch(2, 3), RandomFrames(2), Past(2)], ids=repr)
@pytest.mark.parametrize("gaps", [False, True], ids=["whole", "gaps"])
def test_a_step_never_waits_for_values(build, settings, policy, gaps):
    """Tensors on the device "meta" have none: to read one, or to index by booleans, is an error."""
    model = build(**{**settings, "visible": policy}).to("meta")
    empty = functools.partial(torch.empty, device="meta")
    mask = empty(3, 5, dtype=torch.bool) if gaps else None
    noise = [empty(3, 5, *shape) for shape in model.noise_shapes]
    terms = MeanTerms(model, empty(()))(empty(3, 5, *model.frame_shape), *noise, mask=mask)
    (-terms[-1]).backward()
    assert all(p.grad is not None for p in model.parameters())


# KL weights ---------------------------------------------------------------------------------------


def test_the_weight_moves_linearly_and_then_stays():
    weight = tc.KLWeight(start=0.2, until=0.5, end=2.0)
    at = [weight.at(step, 8) for step in range(8)]
    assert at == pytest.approx([0.2, 0.65, 1.1, 1.55, 2.0, 2.0, 2.0, 2.0])
    assert not weight.is_bound
    assert [tc.KLWeight().at(step, 3) for step in range(3)] == [1.0] * 3
    assert tc.KLWeight(0.5, 0.0, 0.3).at(0, 10) == 0.3  # there is no warm-up
    assert tc.KLWeight(start=0.1, until=0.0).is_bound and not tc.KLWeight(0.1, 0.1).is_bound
    assert not tc.KLWeight(end=0.1).is_bound


@pytest.mark.parametrize(
    "settings, says",
    [
        (dict(start=-0.1), "kl.start"),
        (dict(end=float("nan")), "kl.end"),
        (dict(until="half"), "kl.until"),
        (dict(until=1.5), "kl.until is a share of the steps, from 0 to 1, not 1.5"),
    ],
)
def test_weights_that_cannot_be_are_refused(settings, says):
    with pytest.raises(tc.BadInput, match=says):
        tc.KLWeight(**settings)


MODELS = {
    "rolling": perceptrons,
    "tvae": lambda: tc.TopographicVAE.mlp(FRAME, tc.Topography(2, (5,), window=3), (8,), mu=-3.0),
}


@pytest.mark.parametrize("build", MODELS.values(), ids=MODELS.keys())
@pytest.mark.parametrize("weight", [0.0, 0.3, 2.0])
def test_the_objective_is_the_bound_with_the_kl_weighted(build, weight):
    model, x = build(), frames().float()
    noise = [torch.randn(2, 5, *shape) for shape in model.noise_shapes]
    bound, weighted = (
        dict(zip((*model.recorded, "objective"), MeanTerms(model, w)(x, *noise), strict=True))
        for w in (None, torch.tensor(weight))
    )
    kl = sum(bound[name] for name in model.terms[2:])
    assert kl > 0 and bound["objective"] == bound["elbo"]
    torch.testing.assert_close(weighted["objective"], bound["elbo"] + (1 - weight) * kl)
    torch.testing.assert_close(weighted["objective"], bound["log_px_given_t"] - weight * kl)
    for name in model.recorded:
        assert torch.equal(weighted[name], bound[name])


def test_records_have_the_bound_and_name_the_weight():
    training = tc.Training(tc.Sgd(1e-9), batch=4, epochs=4, kl=tc.KLWeight(0.0, 0.5))
    (found,) = train([perceptrons()], shown(perceptrons), training, seeds=[0])
    assert [record.get(KL_WEIGHT) for record in found.history] == [0.0, 0.5, None, None]
    (plain,) = train([perceptrons()], shown(perceptrons), replace(training, kl=ADAM.kl), seeds=[0])
    for one, other in zip(found.history, plain.history, strict=True):
        assert one["elbo"] == pytest.approx(other["elbo"], rel=1e-5)  # nothing was learned
        assert one["elbo"] == pytest.approx(one["log_px_given_t"] - one["kl"], abs=1e-4)


def test_a_small_weight_lets_the_kl_grow():
    training = tc.Training(tc.Adam(1e-2), batch=4, epochs=8)
    kls = []
    for kl in (tc.KLWeight(), tc.KLWeight(0.0, 0.0, 0.0)):
        run = tc.fit(perceptrons(), shown(perceptrons), training=replace(training, kl=kl),
                     device="cpu", watcher=Silent())  # fmt: skip
        kls.append(run.history[-1]["kl"])
    assert kls[1] > 2 * kls[0]


def test_a_run_resumes_with_the_weight_of_its_step(tmp_path):
    x = shown(perceptrons)
    settings = dict(training=WARM, device="cpu")
    whole = tc.fit(perceptrons(), x, watcher=Silent(), **settings)
    there = dict(out=tmp_path, **settings)
    with pytest.raises(tc.Interrupted):
        tc.fit(perceptrons(), x, watcher=StopAt(4), **there)
    again = tc.fit(perceptrons(3), x, watcher=Silent(), **there)
    assert_same(weights(whole.model), weights(again.model))
    told = [[record.get(KL_WEIGHT) for record in run.history] for run in (whole, again)]
    assert told[0] == told[1] and told[0][-1] is None
    with pytest.raises(tc.BadInput, match=r"training\.kl"):
        tc.fit(perceptrons(), x, out=tmp_path, training=ADAM, device="cpu", watcher=Silent())
    assert tc.Training.from_json(WARM.to_json()) == WARM and "kl" not in ADAM.to_json()


CHANGES = {
    "motion": {"motion": Unknown((-1, 1))},
    "visible": {"visible": Past(2)},
    "prior": {"prior": "laplace"},
}


@pytest.mark.parametrize("changed", CHANGES.values(), ids=CHANGES.keys())
def test_a_run_of_own_networks_resumes_with_its_settings_alone(changed, tmp_path):
    def own(**settings):
        model = perceptrons()
        return tc.RollingVAE(model.z_given_x, model.x_given_t, model.topography, **settings)

    there = dict(training=ADAM, out=tmp_path, device="cpu")
    with pytest.raises(tc.Interrupted):
        tc.fit(own(), shown(perceptrons), watcher=StopAt(4), **there)
    with pytest.raises(tc.BadInput, match=f"networks.{next(iter(changed))}"):
        tc.fit(own(**changed), shown(perceptrons), watcher=Silent(), **there)
    recipe = tmp_path / "recipe.json"  # of a version that did not record these settings
    told = json.loads(recipe.read_text())
    for name in ("motion_kind", "visible", "prior"):
        del told["networks"][name]
    recipe.write_text(json.dumps(told))
    assert tc.fit(own(), shown(perceptrons), watcher=Silent(), **there).failure is None
