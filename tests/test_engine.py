"""The engine: models that train together train as if alone."""

import shutil
from dataclasses import replace

import pytest
import torch
from test_training import ADAM, FRAME, SGD, TOPOGRAPHY, StopAt, assert_same, frames, model, weights

import topocaps as tc
from topocaps.device import seeded
from topocaps.latents.stack import TopographyStack
from topocaps.training.engine import Engine
from topocaps.training.loop import train
from topocaps.training.stack import by_architecture
from topocaps.training.store import RunFolder
from topocaps.training.updates.autograd import AutogradUpdate
from topocaps.training.watching import Silent


def company(**settings):
    """Return models that differ in all that may differ in a stack: topography, mu and seed."""
    topographies = [
        TOPOGRAPHY,
        replace(TOPOGRAPHY, window=5, reach=(3,)),
        replace(TOPOGRAPHY, velocity=0.0, window=6),
        replace(TOPOGRAPHY, window=1, reach=(5,)),
    ]
    return [
        model(seed=n, topography=t, mu=-3.0 - n, centred=True, **settings)
        for n, t in enumerate(topographies)
    ]


@pytest.mark.parametrize("norm", ["none", "weight", "projected"])
@pytest.mark.parametrize("training", [ADAM, SGD], ids=["adam", "sgd"])
def test_a_member_of_a_stack_trains_as_if_alone(training, norm):
    sequences, seeds = tc.Sequences.of(frames()), [7, 3, 5]
    together = [model(seed=n, norm=norm) for n in range(3)]
    histories = train(together, sequences, training, seeds=seeds)
    for n, (member, progress) in enumerate(zip(together, histories, strict=True)):
        alone = model(seed=n, norm=norm)
        (expected,) = train([alone], sequences, training, seeds=[seeds[n]])
        for name, value in alone.state_dict().items():
            torch.testing.assert_close(member.state_dict()[name], value, rtol=1e-4, atol=1e-5)
        assert progress.history[-1]["elbo"] == pytest.approx(expected.history[-1]["elbo"], rel=1e-4)


def test_members_may_differ_in_topography_and_mu():
    sequences, seeds = tc.Sequences.of(frames()), [0, 1, 2, 3]
    together = company()
    train(together, sequences, ADAM, seeds=seeds)
    for member, alone, seed in zip(together, company(), seeds, strict=True):
        train([alone], sequences, ADAM, seeds=[seed])
        for name, value in alone.state_dict().items():
            torch.testing.assert_close(member.state_dict()[name], value, rtol=1e-4, atol=1e-5)


def test_an_interrupted_stack_resumes_bit_for_bit_and_a_member_resumes_alone(tmp_path):
    sequences, seeds = tc.Sequences.of(frames()), [0, 1, 2, 3]
    folders = [RunFolder(tmp_path / str(n)) for n in range(4)]
    whole = company()
    train(whole, sequences, ADAM, seeds=seeds)
    with pytest.raises(tc.Interrupted):
        train(company(), sequences, ADAM, seeds=seeds, folders=folders, watcher=StopAt(7))
    alone = company()[2]
    copied = RunFolder(shutil.copytree(folders[2].path, tmp_path / "alone"))
    train([alone], sequences, ADAM, seeds=[2], folders=[copied])
    resumed = company()
    train(resumed, sequences, ADAM, seeds=seeds, folders=folders)
    for one, other in zip(whole, resumed, strict=True):
        assert_same(weights(one), weights(other))
    for name, value in weights(alone).items():
        torch.testing.assert_close(value, whole[2].state_dict()[name], rtol=1e-4, atol=1e-5)
    with pytest.raises(tc.BadInput, match="different steps"):
        differing = [folders[0], _at_step_7(tmp_path / "early")]
        train(company()[:2], sequences, ADAM, seeds=[0, 1], folders=differing)


def _at_step_7(path):
    folder = RunFolder(path)
    with pytest.raises(tc.Interrupted):
        stop = StopAt(7)
        train([company()[1]], tc.Sequences.of(frames()), ADAM, folders=[folder], watcher=stop)
    return folder


def mixed():
    """Return models of several architectures: two stacks of two, and a model of another size."""
    other = tc.TopographicVAE.mlp(frame_shape=FRAME, topography=TOPOGRAPHY, hidden=(9,))
    vaes = [model(seed=s, kind=tc.VAE) for s in range(2)]
    return [model(seed=0), vaes[0], model(seed=1), other, vaes[1]]


def test_models_of_several_architectures_train_together_as_if_alone():
    sequences, seeds = tc.Sequences.of(frames()), [3, 4, 5, 6, 7]
    with seeded(0):
        together, apart = mixed(), mixed()
    assert by_architecture(together) == [[0, 2], [1, 4], [3]]
    apart[3].load_state_dict(together[3].state_dict())
    progress = train(together, sequences, SGD, seeds=seeds)
    for member, alone, seed, one in zip(together, apart, seeds, progress, strict=True):
        (expected,) = train([alone], sequences, SGD, seeds=[seed])
        assert one.history[-1]["elbo"] == pytest.approx(expected.history[-1]["elbo"], rel=1e-4)
        for name, value in alone.state_dict().items():
            torch.testing.assert_close(member.state_dict()[name], value, rtol=1e-4, atol=1e-5)


def test_models_with_different_training_settings_train_together():
    sequences, seeds = tc.Sequences.of(frames()), [0, 1, 2]
    ways = [SGD, ADAM, replace(SGD, clip=None)]
    together, apart = ([model(seed=s) for s in range(3)] for _ in range(2))
    train(together, sequences, ways, seeds=seeds)
    for member, alone, way, seed in zip(together, apart, ways, seeds, strict=True):
        train([alone], sequences, way, seeds=[seed])
        for name, value in weights(alone).items():
            torch.testing.assert_close(weights(member)[name], value, rtol=1e-4, atol=1e-6)
    with pytest.raises(tc.BadInput, match="the same batch, epochs and epoch size"):
        train(together, sequences, [SGD, SGD, replace(SGD, batch=5)], seeds=seeds)
    with pytest.raises(tc.BadInput, match="there are 3 models and 2 trainings"):
        train(together, sequences, [SGD, SGD], seeds=seeds)


def test_models_of_different_norm_or_likelihood_are_not_stacked():
    models = [model(), model(norm="projected"), model(likelihood="gaussian"), model()]
    assert by_architecture(models) == [[0, 3], [1], [2]]


def test_buffers_of_custom_networks_are_part_of_the_state(tmp_path):
    def own(seed):
        torch.manual_seed(seed)
        one = model(seed)
        one.z_given_x.network.insert(1, torch.nn.BatchNorm1d(8))
        return one

    class Flat(torch.nn.Module):
        def __init__(self, network):
            super().__init__()
            self.network = network

        def forward(self, x):
            return self.network(x.flatten(0, -2)).reshape(*x.shape[:-1], -1)

    def flat(seed):
        one = own(seed)
        one.z_given_x.network = Flat(one.z_given_x.network)
        return one

    assert by_architecture([flat(0), flat(1)]) == [[0], [1]]  # custom layers are not stacked
    sequences, folders = tc.Sequences.of(frames()), [RunFolder(tmp_path)]
    whole, part, again = flat(0), flat(0), flat(0)
    train([whole], sequences, SGD)
    with pytest.raises(tc.Interrupted):
        train([part], sequences, SGD, folders=folders, watcher=StopAt(7))
    train([again], sequences, SGD, folders=folders)
    assert_same(weights(whole), weights(again))


@pytest.mark.parametrize("other", [{}, {"window": 2}])
def test_a_stack_pools_like_its_members(other, pooling):
    lattice = tc.Topography(2, (3, 4), window=3)
    both = [lattice, replace(lattice, **other)]
    u2 = torch.rand(2, 5, 6, 2, 3, 4)
    for axis in lattice.axes:
        each = [topography.pool(one, axis) for topography, one in zip(both, u2, strict=True)]
        torch.testing.assert_close(TopographyStack(both, 6).pool(u2, axis), torch.stack(each))


def test_fit_together_writes_a_folder_per_model_and_resumes_interrupted_models(tmp_path):
    outs, seeds = [tmp_path / f"{n}" for n in range(3)], [4, 5, 6]
    there = dict(training=SGD, seeds=seeds, outs=outs)
    alone = [tc.fit(model(seed=s), frames(), training=SGD, seed=s, watcher=Silent()) for s in seeds]

    def members():
        return [model(seed=s) for s in seeds]

    with pytest.raises(tc.Interrupted):
        tc.fit_together(members(), frames(), watcher=StopAt(7), **there)
    # one of them finishes alone; the others resume from another step than it
    tc.fit(model(seed=5), frames(), training=SGD, seed=5, out=outs[1], watcher=Silent())
    runs = tc.fit_together(members(), frames(), watcher=Silent(), **there)
    for run, expected, out in zip(runs, alone, outs, strict=True):
        assert len(run.history) == 4 and run.folder.path == out
        for name, value in tc.load(out).state_dict().items():
            torch.testing.assert_close(
                value, expected.model.state_dict()[name], rtol=1e-4, atol=1e-5
            )


def test_frozen_parameters_do_not_change_in_a_stack():
    free, frozen = model(seed=0), model(seed=1)
    frozen.z_given_x.requires_grad_(False)
    before = weights(frozen)
    train([free, frozen], tc.Sequences.of(frames()), ADAM, seeds=[0, 1])
    after = weights(frozen)
    assert all(torch.equal(after[n], before[n]) for n in before if n.startswith("z_given_x"))
    assert not torch.equal(after["mu"], before["mu"])
    pair = [model(seed=n) for n in range(2)]
    for one in pair:
        one.mu.requires_grad_(False)
    train(pair, tc.Sequences.of(frames()), ADAM, seeds=[0, 1])
    assert all(one.mu.item() == -30 for one in pair)


class Act(torch.nn.Module):
    def __init__(self, function):
        super().__init__()
        self.function = function

    def forward(self, x):
        return self.function(x)


class Everyone(tc.Topography):
    def pool(self, energy, axis=None):
        return energy.sum(-1, keepdim=True).expand_as(energy)


def tied(one):
    one.u_given_x.network[0].matrix = one.z_given_x.network[0].matrix
    return one


def acting(function):
    def changed(one):
        one.x_given_t.network[1] = Act(function)
        return one

    return changed


@pytest.mark.parametrize(
    "changed",
    [
        tied,
        acting(torch.cos),
        lambda one: model(seed=1, topography=Everyone(2, (6,), window=3)),
    ],
    ids=["shared parameters", "another function", "a W of its own"],
)
def test_a_model_that_cannot_be_stacked_trains_as_if_alone(changed):
    sequences, usual = tc.Sequences.of(frames()), acting(torch.tanh)(model(seed=0))
    together, alone = changed(model(seed=1)), changed(model(seed=1))
    assert len(by_architecture([usual, together])) == 2
    train([usual, together], sequences, ADAM, seeds=[0, 1])
    train([alone], sequences, ADAM, seeds=[1])
    assert_same(weights(together), weights(alone))


def test_models_with_shared_parameters_are_not_stacked():
    pair = [tied(model(seed=n)) for n in range(2)]
    assert by_architecture(pair) == [[0], [1]]
    train(pair, tc.Sequences.of(frames()), SGD, seeds=[0, 1])
    for one in pair:
        assert one.u_given_x.network[0].matrix is one.z_given_x.network[0].matrix


def test_a_model_that_cannot_be_compiled_trains_with_a_warning(monkeypatch):
    def _no_compiler(*_):
        raise RuntimeError("no C++ compiler was found\nand much more")

    plain = Engine([model()], tc.Sequences.of(frames()), [0], SGD)
    expected = plain.advance(1, 3, 10)
    original = AutogradUpdate.compile

    def compile(self, on=True):
        original(self, False)
        if on:
            self._bound = _no_compiler

    monkeypatch.setattr(AutogradUpdate, "compile", compile)
    with pytest.warns(UserWarning, match=r"cannot be compiled \(no C\+\+ compiler was found\)"):
        engine = Engine([model()], tc.Sequences.of(frames()), [0], SGD, compiling=True)
    assert engine.advance(1, 3, 10) == expected


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (dict(seeds=[0]), "there are 2 models and 1 seeds"),
        (dict(outs=["a"]), "there are 2 models and 1 outs"),
        (dict(same=True), "one model is in the list twice: build a model for each seed"),
    ],
)
def test_arguments_that_do_not_match_the_models_are_refused(changes, message):
    changes = dict(changes)
    one = model()
    models = [one, one if changes.pop("same", False) else model()]
    with pytest.raises(tc.BadInput, match=message):
        tc.fit_together(models, frames(), **{"seeds": [0, 1], "training": SGD, **changes})
