"""The engine: many models as one program, each as alone; failures, memory, precision."""

import itertools
from contextlib import nullcontext
from dataclasses import replace

import pytest
import torch
from test_training import (
    ADAM,
    FRAME,
    SGD,
    TOPOGRAPHY,
    StopAt,
    assert_same,
    frames,
    model,
    weights,
)

import topocaps as tc
from topocaps.arithmetic import seeded
from topocaps.networks import GaussianEncoder, Linear
from topocaps.pooling import TopographyStack
from topocaps.training.engine import Engine
from topocaps.training.factored import Factored
from topocaps.training.layers import factor, layers_are_called_once
from topocaps.training.loop import train
from topocaps.training.memory import plan, split
from topocaps.training.stack import Stack, by_architecture
from topocaps.training.watching import Silent

NOTHING = nullcontext()


def company(**settings):
    """Models that differ in everything a stack may hold: topography, mu and seed."""
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
def test_a_member_of_a_stack_trains_as_it_would_alone(training, norm):
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


def test_a_stack_that_was_stopped_goes_on_bit_for_bit_and_a_member_of_it_alone(tmp_path):
    sequences, seeds = tc.Sequences.of(frames()), [0, 1, 2, 3]
    states = [tmp_path / f"{n}.safetensors" for n in range(4)]
    whole = company()
    train(whole, sequences, ADAM, seeds=seeds)
    with pytest.raises(tc.Interrupted):
        train(company(), sequences, ADAM, seeds=seeds, states=states, watcher=StopAt(7))
    alone = company()[2]
    copied = tmp_path / "alone.safetensors"
    copied.write_bytes(states[2].read_bytes())
    train([alone], sequences, ADAM, seeds=[2], states=[copied])
    resumed = company()
    train(resumed, sequences, ADAM, seeds=seeds, states=states)
    for one, other in zip(whole, resumed, strict=True):
        assert_same(weights(one), weights(other))
    for name, value in weights(alone).items():
        torch.testing.assert_close(value, whole[2].state_dict()[name], rtol=1e-4, atol=1e-5)
    with pytest.raises(tc.BadInput, match="different steps"):
        train(
            company()[:2], sequences, ADAM, seeds=[0, 1], states=[states[0], _at_step_7(tmp_path)]
        )


def _at_step_7(folder):
    path = folder / "early.safetensors"
    with pytest.raises(tc.Interrupted):
        stop = StopAt(7)
        train([company()[1]], tc.Sequences.of(frames()), ADAM, states=[path], watcher=stop)
    return path


def test_a_member_that_is_not_finite_is_named_and_the_others_go_on(tmp_path):
    sequences, seeds = tc.Sequences.of(frames()), range(4)
    together, alone = company(), company()
    with torch.no_grad():
        together[2].u_given_x.network[0].bias.fill_(torch.nan)
    states = [tmp_path / f"{n}.safetensors" for n in range(4)]
    progress = train(together, sequences, ADAM, seeds=seeds, states=states)
    assert [one.failed is None for one in progress] == [True, True, False, True]
    assert "is not finite at step 1" in progress[2].failed and not progress[2].history
    assert [path.exists() for path in states] == [True, True, False, True]
    train(alone, sequences, ADAM, seeds=seeds)
    for n in (0, 1, 3):
        assert_same(weights(together[n]), weights(alone[n]))


def test_a_run_that_failed_says_so_and_is_not_tried_again(tmp_path):
    models, outs = [model(seed=s) for s in range(2)], [tmp_path / "a", tmp_path / "b"]
    with torch.no_grad():
        models[1].z_given_x.network[0].bias.fill_(torch.nan)
    there = dict(training=SGD, outs=outs, seeds=[0, 1], watcher=Silent())
    for _ in range(2):
        good, bad = tc.fit_together(models, frames(), **there)
        assert good.failure is None and "kl_z is not finite at step 1" in bad.failure
    assert (outs[0] / "weights.safetensors").exists()
    assert (outs[1] / "failure.json").exists() and not (outs[1] / "weights.safetensors").exists()
    with pytest.raises(tc.NonFinite, match="kl_z is not finite at step 1"):
        tc.fit(models[1], frames(), training=SGD, seed=1, out=outs[1], watcher=Silent())


def mixed():
    """Models of several architectures: two stacks of two, and a model of another size."""
    other = tc.TopographicVAE.mlp(frame_shape=FRAME, topography=TOPOGRAPHY, hidden=(9,))
    vaes = [model(seed=s, kind=tc.VAE) for s in range(2)]
    return [model(seed=0), vaes[0], model(seed=1), other, vaes[1]]


def test_models_of_any_architecture_train_side_by_side_as_alone():
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


def test_models_may_be_trained_in_different_ways_side_by_side():
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


def test_models_that_only_differ_in_their_norm_or_likelihood_are_no_stack():
    models = [model(), model(norm="projected"), model(likelihood="gaussian"), model()]
    assert by_architecture(models) == [[0, 3], [1], [2]]


FACTORED = {
    "sgd": tc.Training(tc.Sgd(lr=1e-3), batch=4, precision="bf16"),
    "adam": tc.Training(tc.Adam(lr=1e-3), batch=4, precision="bf16"),
    "clipped": tc.Training(tc.Sgd(lr=1e-3), batch=4, precision="bf16", clip=5.0),
}


@pytest.fixture
def factored_anywhere(monkeypatch):
    """The descent of bf16, also where a CPU has no instructions for it."""
    suits = staticmethod(lambda stack, training: training.precision is tc.Precision.BF16)
    monkeypatch.setattr(Factored, "suits", suits)


@pytest.mark.parametrize("how", FACTORED)
@pytest.mark.parametrize("members", [1, 4])
@pytest.mark.parametrize("norm", ["none", "weight"])
def test_factored_gradients_train_as_written_ones(how, members, norm, factored_anywhere):
    """Up to the rounding of bf16: weights move together, and far more than they differ."""
    training, sequences = FACTORED[how], tc.Sequences.of(frames())
    before, factored, plain = (company(norm=norm)[:members] for _ in range(3))
    near = (
        0.35 if how == "adam" else 0.15
    )  # Adam goes as far for a gradient that is mostly rounding
    elbos = []
    for models, precision in ((factored, "bf16"), (plain, "fp32")):
        engine = Engine(models, sequences, range(members), replace(training, precision=precision))
        sums = engine.advance(1, 20, 1000)
        engine.write_back()
        elbos.append(sums[0]["elbo"])
    assert elbos[0] == pytest.approx(elbos[1], rel=2e-3)
    for first, one, other in zip(before, factored, plain, strict=True):
        for (name, start), a, b in zip(
            first.named_parameters(), one.parameters(), other.parameters(), strict=True
        ):
            assert a.is_contiguous()
            assert (a - b).norm() < near * (b - start).norm() + 1e-6, name


def test_a_step_whose_gradient_is_not_finite_is_left_out_where_gradients_are_clipped(
    factored_anywhere,
):
    for precision in ("bf16", "fp32"):
        one = model()
        with torch.no_grad():
            one.mu.fill_(torch.inf)
        before = one.z_given_x.network[0].matrix.clone()
        training = tc.Training(tc.Sgd(), batch=4, clip=1.0, precision=precision)
        engine = Engine([one], tc.Sequences.of(frames()), [0], training)
        (found,) = engine.advance(1, 1, 1)
        assert torch.equal(one.z_given_x.network[0].matrix, before)
        assert engine.failures() and found["left_out"] == 1


@pytest.mark.parametrize("precision", ["bf16", "fp32"])
def test_members_of_a_stack_have_clips_of_their_own(precision, factored_anywhere):
    """Each goes as it goes alone; one that has no clip is not held back, nor saved."""
    rule = tc.Training(tc.Sgd(lr=1e-3, momentum=0.0), batch=4, precision=precision)
    clips = (None, 1e-3, 1e6)
    models = [model(seed=5) for _ in clips]
    before = [p.clone() for p in models[0].parameters()]
    trainings = [replace(rule, clip=clip) for clip in clips]
    engine = Engine(models, tc.Sequences.of(frames()), [0, 0, 0], trainings)
    assert len(engine.parts) == 1
    engine.advance(1, 1, 1)
    engine.write_back()
    moved = [
        torch.cat([(a - b).flatten() for a, b in zip(one.parameters(), before, strict=True)])
        for one in models
    ]
    assert moved[1].norm().item() == pytest.approx(1e-6, rel=0.02)
    torch.testing.assert_close(moved[0], moved[2])
    with torch.no_grad():
        for one in models:
            one.mu.fill_(torch.inf)
    engine = Engine(models, tc.Sequences.of(frames()), [0, 0, 0], trainings)
    assert [found["left_out"] for found in engine.advance(1, 1, 1)] == [0, 1, 1]
    engine.write_back()
    kept = [bool(one.x_given_t.network[0].matrix.isfinite().all()) for one in models]
    assert kept == [False, True, True]


def halved(terms, *inputs):
    return ((terms + terms.detach()) / 2, *inputs)


def of_one_member(terms, *inputs):
    """The gradient of the last member only, which is the shortest."""
    return (torch.cat([terms[:-1], terms[-1:].detach()]), *inputs)


def without_inputs(terms, *inputs):
    return (terms, *([torch.zeros_like(one) for one in given] for given in inputs))


ERRORS = {
    "none": (lambda *found: found, ("fp32", "bf16")),
    "half": (halved, ("fp32", "bf16")),
    "a member": (of_one_member, ("fp32", "bf16")),
    "what came in": (without_inputs, ("bf16",)),
}


@pytest.mark.parametrize(
    ("error", "precision"), [(name, one) for name, (_, some) in ERRORS.items() for one in some]
)
def test_compiled_code_is_used_only_where_its_gradients_are_those_of_plain_code(
    error, precision, factored_anywhere, monkeypatch
):
    """Here the compiler gives the right bound, and a gradient that is wrong."""
    used, errs = [], error != "none"

    def compiled(function):
        def run(*given):
            used.append(function)
            found = function(*given)
            if "bound" not in function.__name__:
                return found
            several = isinstance(found, tuple)
            found = ERRORS[error][0](*(found if several else (found,)))
            return found if several else found[0]

        return run

    for module in ("descent", "factored", "engine"):
        monkeypatch.setattr(f"topocaps.training.{module}.compiled", compiled)
    sequences = tc.Sequences.of(frames())
    training = tc.Training(tc.Sgd(1e-3), precision=precision)
    found = []
    for compiling in (False, True):
        members, numbers = company(), torch.get_rng_state()
        with pytest.warns(UserWarning, match="other gradients") if compiling and errs else NOTHING:
            engine = Engine(members, sequences, range(4), training, compiling=compiling)
        assert torch.equal(numbers, torch.get_rng_state())
        assert all(p.grad is None for p in members[0].parameters())
        used.clear()
        found.append(engine.advance(1, 5, 100))
    assert found[0] == found[1]  # whose random numbers were not touched either
    assert bool(used) is not errs


def test_layers_that_keep_statistics_have_kept_none_before_the_first_step(monkeypatch):
    for module in ("descent", "engine"):
        monkeypatch.setattr(f"topocaps.training.{module}.compiled", lambda function: function)
    normed = model(topography=TOPOGRAPHY)
    normed.z_given_x.network.insert(1, torch.nn.BatchNorm1d(6))  # of six frames
    Engine([normed], tc.Sequences.of(frames()), [0], tc.Training(), compiling=True)
    assert normed.z_given_x.network[1].num_batches_tracked == 0


def test_only_layers_that_are_called_once_are_factored():
    shared, unused = model(), model()
    shared.u_given_x.network = shared.z_given_x.network
    unused.x_given_t.network.never = Linear(3, 3)
    unused.x_given_t.network.forward = lambda t: unused.x_given_t.network[:3](t)
    found = [layers_are_called_once(one, 6) for one in (model(), model(kind=tc.VAE), shared)]
    assert found == [True, True, False]
    assert not layers_are_called_once(unused, 6)


@pytest.fixture
def as_on_a_gpu(monkeypatch):
    """Precisions are what they would be there."""
    monkeypatch.setattr(tc.Precision, "on", lambda self, device: self)


BF16 = tc.Training(tc.Sgd(lr=1e-2), batch=4, precision="bf16")


def test_steps_that_a_model_changes_are_its_own(as_on_a_gpu):
    """Rates, what follows a step, frozen, shared and unknown layers are for plain steps."""

    class Slow(tc.TopographicVAE):
        def rate_of(self, name):
            return 0.0 if name == "mu" else 1.0

    class Small(tc.TopographicVAE):
        def project(self):
            self.mu.data.clamp_(max=0.25)

    class Double(Linear):
        def forward(self, x):
            return 2 * super().forward(x)

    double, frozen, shared = model(), model(), model()
    double.x_given_t.network[0].__class__ = Double
    frozen.z_given_x.requires_grad_(False)
    shared.u_given_x.network[0].matrix = shared.z_given_x.network[0].matrix
    others = (model(kind=Slow), model(kind=Small), double, frozen, shared)
    assert not any(Factored.suits(Stack([one], 6), BF16) for one in others)
    assert Factored.suits(Stack([model()], 6), BF16)


def test_encoders_are_paired_only_where_that_changes_nothing():
    class Own(tc.TopographicVAE):
        def posterior(self, x):
            return super().posterior(0.5 * x)

    class OwnEncoder(GaussianEncoder):
        def forward(self, x):
            return super().forward(0.5 * x)

    own, encoders, slopes, nested, plain = model(kind=Own), model(), model(), model(), model()
    encoders.z_given_x.__class__ = encoders.u_given_x.__class__ = OwnEncoder
    for slope, encoder in ((0.1, slopes.z_given_x), (0.9, slopes.u_given_x)):
        encoder.network[1] = torch.nn.LeakyReLU(slope)
    for encoder in (nested.z_given_x, nested.u_given_x):
        first, *rest = encoder.network
        encoder.network = torch.nn.Sequential(torch.nn.Sequential(first), *rest)
    for one, paired in ((own, 0), (encoders, 0), (slopes, 0), (nested, 0), (plain, 1)):
        factor(one, 1)
        assert hasattr(one, "encoders") == paired


def test_normalised_weights_move_across_their_directions(factored_anywhere):
    """dv is orthogonal to v (Eq. 15), for every row; nothing of it goes along."""
    one = model(norm="weight")
    layers = [layer for layer in one.modules() if isinstance(layer, Linear)]
    with torch.no_grad():
        for layer in layers:  # lengths that are not those of the directions
            layer.length.mul_(1.7)
            layer.direction.mul_(0.6)
    before = [layer.direction.clone() for layer in layers]
    training = tc.Training(tc.Sgd(lr=0.1, momentum=0.0), batch=4, precision="bf16")
    Engine([one], tc.Sequences.of(frames()), [0], training).advance(1, 1, 1)
    for layer, v in zip(layers, before, strict=True):
        moved = layer.direction - v
        along = (moved * v).sum(-1).abs() / (moved.norm(dim=-1) * v.norm(dim=-1) + 1e-9)
        assert moved.norm() > 0 and along.max() < 0.05


@pytest.mark.parametrize("how", ["sgd", "adam"])
@pytest.mark.parametrize("norm", ["none", "weight"])
def test_states_do_not_know_how_gradients_were_made(how, norm, factored_anywhere):
    training, sequences = FACTORED[how], tc.Sequences.of(frames())
    factored = Engine(company(norm=norm), sequences, range(4), training)
    factored.advance(1, 5, 1000)
    plain = Engine(company(norm=norm), sequences, range(4), replace(training, precision="fp32"))
    for place in range(4):
        plain.restore(place, {k: v.clone() for k, v in factored.state(place).items()})
    assert plain.state(2).keys() == factored.state(2).keys()
    for engine in (plain, factored):
        engine.sums = engine.advance(6, 5, 1000)
    for one, other in zip(plain.sums, factored.sums, strict=True):
        assert one["elbo"] == pytest.approx(other["elbo"], rel=1e-2)
    again = Engine(company(norm=norm), sequences, range(4), training)
    again.restore(1, factored.state(1))
    for name, value in factored.state(1).items():
        assert torch.equal(again.state(1)[name], value), name


def test_weights_that_are_not_finite_after_the_last_step_are_a_failure(tmp_path):
    """No bound is computed after it, and no state or weights of it are kept."""
    training = tc.Training(tc.Sgd(1e38), batch=4, epochs=1, epoch_size=4)
    with pytest.raises(tc.NonFinite, match="a weight is not finite at step 1"):
        tc.fit(model(), frames(), training=training, out=tmp_path / "run", watcher=Silent())
    assert not list((tmp_path / "run" / "state").iterdir())
    assert not (tmp_path / "run" / "weights.safetensors").exists()


def test_a_failure_is_remembered_through_an_interruption(tmp_path):
    models, outs = [model(seed=s) for s in range(2)], [tmp_path / "a", tmp_path / "b"]
    with torch.no_grad():
        models[1].z_given_x.network[0].bias.fill_(torch.nan)
    there = dict(training=SGD, outs=outs, seeds=[0, 1])
    with pytest.raises(tc.Interrupted):
        tc.fit_together(models, frames(), watcher=StopAt(7), **there)
    assert (outs[1] / "failure.json").exists()
    good, bad = tc.fit_together(
        [model(seed=s) for s in range(2)], frames(), watcher=Silent(), **there
    )
    assert good.failure is None and bad.failure is not None


def test_a_stack_that_runs_out_of_memory_goes_on_in_halves_from_the_start(monkeypatch):
    calls, original = [], Engine.advance

    def advance(self, first, count, steps):
        calls.append(len(self.parts[0].places))
        if calls[-1] == 4 and first > 3:
            raise torch.OutOfMemoryError
        return original(self, first, count, steps)

    monkeypatch.setattr(Engine, "advance", advance)
    alone = [tc.fit(m, frames(), training=SGD, seed=s, watcher=Silent()) for s, m in
             enumerate(company())]  # fmt: skip
    runs = tc.fit_together(company(), frames(), training=SGD, seeds=range(4), watcher=Silent())
    assert 4 in calls and 2 in calls
    for run, expected in zip(runs, alone, strict=True):
        for name, value in expected.model.state_dict().items():
            torch.testing.assert_close(run.model.state_dict()[name], value, rtol=1e-4, atol=1e-5)


def test_what_networks_of_others_keep_is_part_of_the_state(tmp_path):
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

    assert by_architecture([flat(0), flat(1)]) == [[0], [1]]  # layers of others are not stacked
    sequences, path = tc.Sequences.of(frames()), tmp_path / "state.safetensors"
    whole, part, again = flat(0), flat(0), flat(0)
    train([whole], sequences, SGD)
    with pytest.raises(tc.Interrupted):
        train([part], sequences, SGD, states=[path], watcher=StopAt(7))
    train([again], sequences, SGD, states=[path])
    assert_same(weights(whole), weights(again))


@pytest.mark.parametrize("other", [{}, {"window": 2}])
def test_a_stack_pools_as_each_of_its_members_does(other, pooling):
    lattice = tc.Topography(2, (3, 4), window=3)
    both = [lattice, replace(lattice, **other)]
    u2 = torch.rand(2, 5, 6, 2, 3, 4)
    for axis in lattice.axes:
        each = [topography.pool(one, axis) for topography, one in zip(both, u2, strict=True)]
        torch.testing.assert_close(TopographyStack(both, 6).pool(u2, axis), torch.stack(each))


def test_energies_are_never_summed_in_a_lower_precision():
    u2 = torch.rand(2, 6, 2, 6)
    expected = TOPOGRAPHY.pool(u2)
    with torch.autocast("cpu", torch.bfloat16):
        assert torch.equal(TOPOGRAPHY.pool(u2), expected)
        together = TopographyStack([TOPOGRAPHY, TOPOGRAPHY], 6)
        assert together.pool(torch.stack([u2, u2])).dtype == torch.float32


def test_the_plan_counts_what_training_holds():
    one, sequences = model(), tc.Sequences.of(frames())
    weights_bytes = 4 * sum(p.numel() for p in one.parameters())
    small = plan([one], sequences, tc.Training(tc.Sgd(), batch=1))
    large = plan([one] * 3, sequences, tc.Training(tc.Adam(), batch=10))
    assert small.weights == 5 * weights_bytes and large.weights == 3 * 6 * weights_bytes
    assert small.data >= sequences.images.numel() * 4
    assert 15 * small.activations < large.activations < 40 * small.activations  # W is held once
    assert "weights and moments" in str(large)


@pytest.mark.parametrize("kind", [tc.TopographicVAE, tc.VAE])
def test_activations_of_our_models_are_counted_not_guessed(kind, monkeypatch):
    def guess(*_):
        raise AssertionError("a pass without values failed")

    monkeypatch.setattr("topocaps.training.memory._guess", guess)
    assert plan([model(kind=kind)], tc.Sequences.of(frames()), SGD).activations > 0


def test_a_stack_that_does_not_fit_is_split_and_each_trains_as_alone(monkeypatch, tmp_path):
    sequences, seeds, said = tc.Sequences.of(frames()), range(4), []
    needs = plan([model()], sequences, SGD)
    room = 2.5 * (needs.weights + needs.activations)
    assert split([model()] * 4, sequences, SGD, int(room / 0.9)) == [[0, 1], [2, 3]]
    monkeypatch.setattr("topocaps.training.run.free_memory", lambda device: int(room / 0.9))
    runs = tc.fit_together(
        company(), frames(), training=SGD, seeds=seeds, watcher=Silent(), say=said.append
    )
    assert [line.startswith("2 models as one program") for line in said] == [True, True]
    for run, alone, seed in zip(runs, company(), seeds, strict=True):
        train([alone], sequences, SGD, seeds=[seed])
        for name, value in alone.state_dict().items():
            torch.testing.assert_close(run.model.state_dict()[name], value, rtol=1e-4, atol=1e-5)
    with pytest.raises(tc.BadInput, match=r"a model needs .* are free: take a smaller batch"):
        split([model()], sequences, SGD, 1000)


@pytest.mark.parametrize("able", [True, False])
def test_precision_is_part_of_what_is_recorded(able, tmp_path, monkeypatch):
    monkeypatch.setattr("topocaps.training.precision.multiplies_bf16", lambda device: able)
    training = tc.Training(tc.Sgd(), batch=4, epochs=1, precision="bf16")
    run = tc.fit(model(), frames(), training=training, out=tmp_path / "run", watcher=Silent())
    settings = run.folder.settings()
    assert settings["training"]["precision"] == "bf16"
    assert settings["products"] == ("bf16" if able else "fp32")
    with pytest.raises(tc.BadInput, match=r"other settings .*precision was bf16, is now fp32"):
        other = replace(training, precision="fp32")
        tc.fit(model(), frames(), training=other, out=tmp_path / "run", watcher=Silent())
    with pytest.raises(tc.BadInput, match="precision must be one of fp32, tf32, bf16, not 'fp8'"):
        tc.Training(precision="fp8")


@pytest.mark.parametrize("able", [True, False])
def test_a_cpu_multiplies_in_bf16_where_it_can_and_may(able, monkeypatch):
    monkeypatch.setattr("topocaps.training.precision.multiplies_bf16", lambda device: able)
    here = [kind.on(torch.device("cpu")).value for kind in tc.Precision]
    assert here == ["fp32", "fp32", "bf16" if able else "fp32"]
    with tc.Precision.BF16.products(torch.device("cpu")):
        assert (torch.ones(2, 2) @ torch.ones(2, 2)).dtype == (
            torch.bfloat16 if able else torch.float32
        )


def test_a_run_that_goes_on_where_products_are_others_says_so(tmp_path, monkeypatch):
    training = tc.Training(tc.Sgd(), batch=4, epochs=2, precision="bf16")
    for able, watcher in ((False, StopAt(3)), (True, StopAt(6)), (True, Silent())):
        monkeypatch.setattr(
            "topocaps.training.precision.multiplies_bf16", lambda device, able=able: able
        )
        stopped = isinstance(watcher, StopAt)
        with pytest.raises(tc.Interrupted) if stopped else nullcontext():
            tc.fit(model(), frames(), training=training, out=tmp_path, watcher=watcher)
    monkeypatch.setattr("topocaps.training.precision.multiplies_bf16", lambda device: False)
    run = tc.fit(model(), frames(), training=training, out=tmp_path, watcher=Silent())
    assert run.folder.settings()["products"] == "fp32, then bf16"  # it was finished by then


@pytest.mark.parametrize("norm", ["none", "weight"])
def test_trained_parameters_lie_by_themselves(norm, monkeypatch):
    """Others save what a parameter lies in: that must not be all of the model, nor moments."""
    monkeypatch.setattr("topocaps.training.precision.multiplies_bf16", lambda device: True)
    built = tc.TopographicVAE.mlp(
        (1, 8, 8), tc.Topography(2, (5,), (3,), window=3), hidden=(32, 16), norm=norm
    )
    training = tc.Training(tc.Sgd(), batch=4, epochs=1, precision="bf16")
    engine = Engine([built], tc.Sequences.of(torch.rand(8, 5, 1, 8, 8)), [0], training)
    assert isinstance(engine.parts[0].descent, Factored)
    engine.advance(1, 2, 2)
    engine.write_back()
    held = [parameter.untyped_storage() for parameter in built.parameters()]
    assert len({one.data_ptr() for one in held}) == len(held)
    sizes = [4 * parameter.numel() for parameter in built.parameters()]
    assert [one.nbytes() for one in held] == sizes


@pytest.mark.parametrize("norm", ["none", "weight"])
@pytest.mark.parametrize("how", FACTORED)
def test_weights_move_band_by_band_as_at_once(how, norm, factored_anywhere, monkeypatch):
    found = []
    for rows in (2**30, 1, 3):
        monkeypatch.setattr("topocaps.training.factored.CACHED", 1)
        monkeypatch.setattr("topocaps.training.factored.LEAST", rows)
        models = company(norm=norm)
        engine = Engine(models, tc.Sequences.of(frames()), range(4), FACTORED[how])
        engine.advance(1, 3, 1000)
        engine.write_back()
        found.append(models)
    for whole, *banded in zip(*found, strict=True):
        for one, (name, value) in itertools.product(banded, weights(whole).items()):
            torch.testing.assert_close(weights(one)[name], value, rtol=1e-3, atol=1e-5)


def test_fit_together_gives_each_its_own_folder_and_resumes_what_was_stopped(tmp_path):
    outs, seeds = [tmp_path / f"{n}" for n in range(3)], [4, 5, 6]
    there = dict(training=SGD, seeds=seeds, outs=outs)
    alone = [tc.fit(model(seed=s), frames(), training=SGD, seed=s, watcher=Silent()) for s in seeds]

    def members():
        return [model(seed=s) for s in seeds]

    with pytest.raises(tc.Interrupted):
        tc.fit_together(members(), frames(), watcher=StopAt(7), **there)
    # one of them goes on by itself; the others are then at another step, and still go on
    tc.fit(model(seed=5), frames(), training=SGD, seed=5, out=outs[1], watcher=Silent())
    runs = tc.fit_together(members(), frames(), watcher=Silent(), **there)
    for run, expected, out in zip(runs, alone, outs, strict=True):
        assert len(run.history) == 4 and run.folder.path == out
        for name, value in tc.load(out).state_dict().items():
            torch.testing.assert_close(
                value, expected.model.state_dict()[name], rtol=1e-4, atol=1e-5
            )
