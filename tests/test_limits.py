"""Failures in training: values that are not finite, and models that do not fit into memory."""

from dataclasses import replace

import pytest
import torch
from test_engine import company
from test_training import ADAM, SGD, StopAt, assert_same, frames, model, weights

import topocaps as tc
from topocaps.training.engine import Engine
from topocaps.training.loop import train
from topocaps.training.memory import plan, split
from topocaps.training.store import RunFolder
from topocaps.training.watching import Silent


def test_a_member_that_is_not_finite_fails_and_the_others_continue(tmp_path):
    sequences, seeds = tc.Sequences.of(frames()), range(4)
    together, alone = company(), company()
    with torch.no_grad():
        together[2].u_given_x.network[0].bias.fill_(torch.nan)
    folders = [RunFolder(tmp_path / str(n)) for n in range(4)]
    progress = train(together, sequences, ADAM, seeds=seeds, folders=folders)
    assert [one.failed is None for one in progress] == [True, True, False, True]
    assert "is not finite at step 1" in progress[2].failed and not progress[2].history
    assert [folder.state.exists() for folder in folders] == [True, True, False, True]
    train(alone, sequences, ADAM, seeds=seeds)
    for n in (0, 1, 3):
        assert_same(weights(together[n]), weights(alone[n]))


def test_a_failed_run_is_reported_and_not_trained_again(tmp_path):
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


def test_weights_that_are_not_finite_after_the_last_step_are_a_failure(tmp_path):
    """No bound follows the last step, and neither state nor weights are saved."""
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


def test_a_stack_that_runs_out_of_memory_restarts_in_halves(monkeypatch):
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


@pytest.mark.parametrize("epoch", [1, 2])
def test_a_failure_before_memory_runs_out_remains_and_the_others_resume(
    epoch, monkeypatch, tmp_path
):
    monkeypatch.setattr("topocaps.training.loop.SAVING", 1e9)  # a state after every epoch
    started, original = [], Engine.advance

    def advance(self, first, count, steps):
        if len(self.parts[0].places) == 4:
            if first == 5 * (epoch - 1) + 2:
                with torch.no_grad():
                    self.parts[0].stack.model.mu[1] = torch.nan
            if first > 15:
                raise torch.OutOfMemoryError
        return original(self, first, count, steps)

    class Starts(Silent):
        def start(self, step, steps):
            started.append(step)

    monkeypatch.setattr(Engine, "advance", advance)
    outs = [tmp_path / str(n) for n in range(4)]
    there = dict(training=replace(SGD, epochs=5), seeds=range(4), outs=outs, watcher=Starts())
    for _ in range(2):
        runs = tc.fit_together([model(seed=n) for n in range(4)], frames(), **there)
        assert [run.failure is None for run in runs] == [True, False, True, True]
        assert [len(run.history) for run in runs if run.failure is None] == [5, 5, 5]
    assert started == [0, 15, 15]
    assert not (outs[1] / "weights.safetensors").exists()


def test_the_plan_counts_weights_moments_activations_and_data():
    one, sequences = model(), tc.Sequences.of(frames())
    weights_bytes = 4 * sum(p.numel() for p in one.parameters())
    (small,) = plan([one], sequences, tc.Training(tc.Sgd(), batch=1))
    several = plan([one] * 3, sequences, tc.Training(tc.Adam(), batch=10))
    large = several[0] + several[1] + several[2]
    assert small.weights == 7 * weights_bytes and large.weights == 3 * 8 * weights_bytes
    assert large.data == small.data
    assert small.data >= sequences.images.numel() * 4
    assert 15 * small.activations < large.activations < 40 * small.activations  # W is held once
    assert "weights and moments" in str(large)


@pytest.mark.parametrize("kind", [tc.TopographicVAE, tc.VAE])
def test_activations_of_library_models_are_counted_not_guessed(kind, monkeypatch):
    def guess(*_):
        raise AssertionError("a pass without values failed")

    monkeypatch.setattr("topocaps.training.memory._guess", guess)
    assert plan([model(kind=kind)], tc.Sequences.of(frames()), SGD)[0].activations > 0


def test_a_stack_that_does_not_fit_is_split_and_its_members_train_as_if_alone(
    monkeypatch, tmp_path
):
    sequences, seeds, said = tc.Sequences.of(frames()), range(4), []
    (needs,) = plan([model()], sequences, SGD)
    room = 2.5 * (needs.weights + needs.activations)
    assert split([needs] * 4, int(room / 0.9), SGD.batch) == [[0, 1], [2, 3]]
    monkeypatch.setattr("topocaps.training.run.free_memory", lambda device: int(room / 0.9))
    runs = tc.fit_together(
        company(), frames(), training=SGD, seeds=seeds, watcher=Silent(), say=said.append
    )
    assert [line.startswith("2 models as one program") for line in said] == [True, True]
    for run, alone, seed in zip(runs, company(), seeds, strict=True):
        train([alone], sequences, SGD, seeds=[seed])
        for name, value in alone.state_dict().items():
            torch.testing.assert_close(run.model.state_dict()[name], value, rtol=1e-4, atol=1e-5)
    with pytest.raises(
        tc.BadInput, match=r"a model needs .* are free: take a smaller batch than 4"
    ):
        split([needs], 1000, SGD.batch)
