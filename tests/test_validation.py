"""Validation and patience: no effect on training, the best epoch, and resumption."""

import json
import math
import re
from dataclasses import replace

import numpy as np
import pytest
import torch
from test_training import (
    ADAM,
    FRAME,
    SGD,
    StopAt,
    assert_same,
    frames,
    model,
    weights,
)

import topocaps as tc
from topocaps import cli
from topocaps.training.engine import Engine
from topocaps.training.loop import train
from topocaps.training.store import RunFolder
from topocaps.training.validation import VALIDATION, best_epoch, has_stopped, validation_bound
from topocaps.training.watching import SUMMARY, Silent, summarise

OTHERS = 1 - frames(7)  #: sequences whose bound falls while a model trains on ``frames``
PATIENT = replace(ADAM, epochs=12, patience=3)


class Remembers(Silent):
    """A watcher that keeps the weights after every epoch."""

    def __init__(self, one):
        self.one, self.weights = one, []

    def epoch(self, record):
        self.weights.append(weights(self.one))


def bound_of(one, x=OTHERS, batch=16):
    return validation_bound(one, tc.Sequences.of(x), batch)


def fit(one, x=None, validation=OTHERS, training=PATIENT, watcher=None, **how):
    x = frames() if x is None else x
    return tc.fit(
        one, x, validation=validation, training=training, watcher=watcher or Silent(), **how
    )


def test_the_validation_bound_is_that_of_the_model_with_fixed_noise():
    one, x = model(), frames(7)
    assert bound_of(one, x) == bound_of(one, x)
    generator = torch.Generator().manual_seed(0)
    evidence = one.evidence(x, lambda like: torch.randn(like.shape, generator=generator))
    assert bound_of(one, x) == pytest.approx(evidence.elbo.mean().item(), rel=1e-6)
    drawn = [one(x).elbo.mean().item() for _ in range(200)]
    spread = torch.tensor(drawn).std().item()
    assert (
        abs(bound_of(one, x) - sum(drawn) / 200) < 4 * spread
    )  # the fixed noise is a typical draw


def test_validation_does_not_change_training():
    seen, unseen = model(), model()
    found = fit(seen, training=ADAM).history
    expected = fit(unseen, validation=None, training=ADAM).history
    assert_same(weights(seen), weights(unseen))
    for one, other in zip(found, expected, strict=True):
        bound = one.pop(VALIDATION)
        assert math.isfinite(bound) and {**one, "seconds": 0} == {**other, "seconds": 0}


def test_buffers_of_custom_networks_are_not_updated_by_validation():
    class Flat(torch.nn.Module):
        def __init__(self, network):
            super().__init__()
            self.network, self.norm = network, torch.nn.BatchNorm1d(16)

        def forward(self, x):
            return self.network(self.norm(x.flatten(0, -2)).reshape(x.shape))

    def own():
        one = model()
        one.z_given_x.network = Flat(one.z_given_x.network)
        return one

    seen, unseen = own(), own()
    fit(seen, training=SGD)
    fit(unseen, validation=None, training=SGD)
    assert seen.training
    assert_same(weights(seen), weights(unseen))


def test_patience_stops_training_and_keeps_the_best_epoch(tmp_path):
    """A model of bars soon gets worse at their negatives."""
    one = model(mu=-3.0)
    watcher = Remembers(one)
    run = fit(one, watcher=watcher, out=tmp_path)
    bounds = [record[VALIDATION] for record in run.history]
    best = bounds.index(max(bounds))
    assert len(bounds) == best + 1 + 3 < 12 and run.best_epoch == best + 1
    assert_same(weights(one), watcher.weights[best])
    assert bounds[best] == bound_of(tc.load(tmp_path)) > bound_of(loaded(watcher.weights[-1]))
    lines = (tmp_path / "metrics.jsonl").read_text().splitlines()
    assert [json.loads(line)[VALIDATION] for line in lines] == bounds


def loaded(tensors):
    one = model()
    one.load_state_dict(tensors)
    return one


def test_a_run_within_its_patience_trains_to_the_end():
    one = model(mu=-3.0)
    watcher = Remembers(one)
    run = fit(one, validation=frames(9), training=replace(PATIENT, patience=12), watcher=watcher)
    assert len(run.history) == 12
    assert_same(weights(one), watcher.weights[run.best_epoch - 1])


@pytest.mark.parametrize("stop", [5, 18])
def test_a_run_with_patience_resumed_at_any_step_ends_like_an_uninterrupted_run(tmp_path, stop):
    """The state also holds the best weights, which are older."""
    whole = fit(model(mu=-3.0), out=tmp_path / "whole")
    assert len(whole.history) < 12 and stop < 5 * len(whole.history)
    with pytest.raises(tc.Interrupted):
        fit(model(mu=-3.0), out=tmp_path / "parts", watcher=StopAt(stop))
    resumed = fit(model(seed=9, mu=-3.0), out=tmp_path / "parts")
    assert_same(weights(whole.model), weights(resumed.model))
    for one, other in zip(whole.history, resumed.history, strict=True):
        assert {**one, "seconds": 0} == {**other, "seconds": 0}


def test_a_run_killed_after_it_ran_out_of_patience_is_not_trained_further(tmp_path):
    whole = fit(model(mu=-3.0), out=tmp_path)
    (tmp_path / "weights.safetensors").unlink()
    steps = []

    class Counts(Silent):
        def step(self, step, terms):
            steps.append(step)

    again = fit(model(seed=9, mu=-3.0), out=tmp_path, watcher=Counts())
    assert not steps and again.history == whole.history
    assert_same(weights(again.model), weights(whole.model))


def company():
    """Return a model that stops soon, one that stops later, and one without patience."""
    models = [model(seed=0, mu=-3.0), model(seed=1, mu=-10.0), model(seed=2, mu=-3.0)]
    trainings = [PATIENT, replace(PATIENT, patience=6), replace(PATIENT, patience=None)]
    return models, trainings


def test_each_member_of_a_stack_has_its_own_best_epoch():
    models, trainings = company()
    sequences, others = tc.Sequences.of(frames()), tc.Sequences.of(OTHERS)
    assert len(Engine(models, sequences, [0, 1, 2], trainings).parts) == 1
    together = train(models, sequences, trainings, seeds=[0, 1, 2], validation=others)
    lengths = [len(one.history) for one in together]
    assert lengths[0] < lengths[2] == 12 and [bool(one.best) for one in together] == [1, 1, 0]
    for n, (alone, training) in enumerate(zip(*company(), strict=True)):
        (expected,) = train([alone], sequences, training, seeds=[n], validation=others)
        assert len(expected.history) == lengths[n]
        for one, other in zip(together[n].history, expected.history, strict=True):
            assert one[VALIDATION] == pytest.approx(other[VALIDATION], rel=1e-4)
        for name, value in weights(alone).items():
            torch.testing.assert_close(weights(models[n])[name], value, rtol=1e-4, atol=1e-5)


def test_a_stack_ends_when_all_its_members_have_stopped(tmp_path):
    models, _ = company()
    outs = [tmp_path / str(n) for n in range(3)]
    there = dict(training=PATIENT, validation=OTHERS, seeds=[0, 1, 2], outs=outs)
    runs = tc.fit_together(models, frames(), watcher=Silent(), **there)
    lengths = [len(run.history) for run in runs]
    assert max(lengths) < 12
    for run in runs:
        assert len(run.history) == run.best_epoch + 3
        found = bound_of(tc.load(run.folder.path))
        assert found == pytest.approx(max(record[VALIDATION] for record in run.history), rel=1e-6)


def test_a_stack_with_some_stopped_members_resumes_bit_for_bit(tmp_path):
    sequences, others = tc.Sequences.of(frames()), tc.Sequences.of(OTHERS)
    how = dict(seeds=[0, 1, 2], validation=others)
    whole, trainings = company()
    expected = train(whole, sequences, trainings, **how)
    stop = 5 * len(expected[0].history) + 7
    folders = [RunFolder(tmp_path / str(n)) for n in range(3)]
    with pytest.raises(tc.Interrupted):
        train(company()[0], sequences, trainings, folders=folders, watcher=StopAt(stop), **how)
    resumed = company()[0]
    found = train(resumed, sequences, trainings, folders=folders, **how)
    assert found[0].stopped and len(found[0].history) == len(expected[0].history)
    for one, other in zip(whole, resumed, strict=True):
        assert_same(weights(one), weights(other))


def test_a_member_that_has_stopped_cannot_fail(monkeypatch):
    """Its stack still trains it, but its result is that of its best epoch."""
    monkeypatch.setattr(Engine, "failures", lambda self: {0: "poisoned"} if self.step > 40 else {})
    models, trainings = company()
    progress = train(
        models, tc.Sequences.of(frames()), trainings, seeds=[0, 1, 2],
        validation=tc.Sequences.of(OTHERS),
    )  # fmt: skip
    assert len(progress[0].history) < 8 and progress[0].failed is None
    assert bound_of(models[0]) == pytest.approx(
        max(record[VALIDATION] for record in progress[0].history), rel=1e-6
    )


def test_a_non_finite_validation_bound_is_a_failure():
    one = model()
    with torch.no_grad():
        one.mu.fill_(torch.nan)
    assert not math.isfinite(bound_of(one))
    fine = tc.Sequences.of(frames())
    object.__setattr__(fine, "choose", lambda uniform: fine.order[:4])
    endless = tc.Sequences.of(frames(3) * 1e30)
    gaussian = model(likelihood="gaussian")
    (progress,) = train([gaussian], fine, ADAM, validation=endless)
    assert "validation sequences is not finite at step 5" in progress.failed


def test_the_history_decides_the_best_epoch_and_when_patience_runs_out():
    def history(*bounds):
        return [{"epoch": n, VALIDATION: b} for n, b in enumerate(bounds, 1)]

    assert best_epoch([]) == best_epoch([{"epoch": 1}]) == 0
    assert best_epoch(history(-3, -1, -2, -1)) == 2
    assert has_stopped(history(-1, -2, -3), 2) and not has_stopped(history(-1, -2), 2)
    assert has_stopped(history(-1, -1, -1), 2)  # an equal bound is not better
    assert not has_stopped(history(-3, -2, -1), 1) and not has_stopped(history(-1, -2, -3), None)


def test_mistakes_raise_bad_input_and_leave_no_folder(tmp_path):
    there = dict(out=tmp_path / "run", watcher=Silent())
    for how, says in (
        (dict(patience=2), "pass validation=…"),
        (dict(patience=0, validation=frames()), "patience must be"),
        (dict(patience=2, validation=torch.rand(2, 6, 1, 4, 5)), "frame"),
        (dict(patience=2, validation=torch.rand(2, 2, *FRAME)), "window 3 is longer"),
    ):
        with pytest.raises(tc.BadInput, match=says):
            tc.fit(model(), frames(), **how, **there)
    assert not (tmp_path / "run").exists()


def test_a_run_does_not_resume_with_other_validation_sequences(tmp_path):
    with pytest.raises(tc.Interrupted):
        fit(model(), out=tmp_path, watcher=StopAt(3))
    for other in (frames(7), None):
        with pytest.raises(tc.BadInput, match=r"validation"):
            fit(model(), validation=other, training=ADAM, out=tmp_path)


def test_the_summary_shows_the_validation_bound():
    terms = {"elbo": -10.0, "log_px_given_t": -7.0, "kl_z": 1.0, "kl_u": 2.0, VALIDATION: -11.5}
    assert summarise(model(), terms)[SUMMARY].endswith(", validation elbo -11.50")


def run_command(monkeypatch, *words):
    monkeypatch.setattr("sys.argv", ["topocaps", *map(str, words)])
    for module in ("topocaps.study.evaluation.topographic", "topocaps.study.data"):
        monkeypatch.setattr(f"{module}.SOME", 10)
    with pytest.raises(SystemExit) as left:
        cli.main()
    return left.value.code


SMALL = ["--epochs", "9", "--set", "hidden=16", "--set", "lr=0.05", "--device", "cpu"]


@pytest.mark.parametrize("of", ["fit", "train"])
def test_the_command_stops_by_patience_and_reports_the_best_epoch(
    of, tmp_path, monkeypatch, capsys
):
    """At this learning rate, the bound soon falls."""
    out, own = tmp_path / "out", tmp_path / "own.npy"
    np.save(own, torch.rand(12, 8, 1, 6, 6).numpy())
    what = ["fit", own] if of == "fit" else ["train", "sprites/tvae", "--set", "resolution=8"]
    words = [*what, "--out", out, *SMALL, "--set", "epoch_size=32", "--patience", "1"]
    assert run_command(monkeypatch, *words) == 0
    said = capsys.readouterr().err
    history = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
    bounds = [record[VALIDATION] for record in history]
    best = bounds.index(max(bounds)) + 1
    assert len(bounds) == min(best + 1, 9)
    assert re.search(f"for {len(bounds)} epochs; the best was epoch {best}", said)
    assert of == "train" or "up to 9 epochs (training stops after 1 without a better bound)" in said
    metrics = json.loads((out / "metrics.json").read_text())
    assert metrics["split"].endswith(f", which chose epoch {best}")
    assert metrics["epochs"] == len(bounds)
    assert run_command(monkeypatch, *words) == 0  # finished already
    assert "trained already" in capsys.readouterr().err


def test_the_command_refuses_a_patience_of_zero(monkeypatch, tmp_path):
    words = ["train", "sprites/tvae", "--out", tmp_path / "out", "--patience", "0"]
    assert run_command(monkeypatch, *words) == 2
