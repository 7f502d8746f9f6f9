"""Training: learning, exact resumption, failures, and run folders."""

import json
import os
import shutil
import signal
from dataclasses import replace

import numpy as np
import pytest
import torch

import topocaps as tc
from topocaps.training.engine import LEFT_OUT
from topocaps.training.loop import epoch_record, train
from topocaps.training.watching import KL_WEIGHT, Silent

TOPOGRAPHY = tc.Topography(2, (6,), window=3)
FRAME = (1, 4, 4)


def model(seed=0, kind=tc.TopographicVAE, topography=TOPOGRAPHY, **settings):
    torch.manual_seed(seed)
    return kind.mlp(frame_shape=FRAME, topography=topography, hidden=(8,), **settings)


def frames(count=20):
    """Bars that move across a small frame and come back."""
    x = torch.zeros(count, 6, *FRAME)
    for n in range(count):
        for frame in range(6):
            x[n, frame, 0, :, (n + frame) % 4] = 1
    return x


def weights(one):
    return {name: value.clone() for name, value in one.state_dict().items()}


def assert_same(one, other):
    assert one.keys() == other.keys()
    for name, value in one.items():
        assert torch.equal(value, other[name]), name


class StopAt(Silent):
    """A watcher that interrupts training after a step."""

    def __init__(self, step):
        self.at = step

    def step(self, step, terms):
        if step == self.at:
            os.kill(os.getpid(), signal.SIGINT)


ADAM = tc.Training(tc.Adam(3e-3, warmup=2), batch=4, epochs=4)
SGD = tc.Training(tc.Sgd(1e-3), batch=4, epochs=4, clip=5.0)
MUON = replace(ADAM, optimiser=tc.Muon(3e-3, warmup=2), clip=5.0)


@pytest.mark.parametrize("training", [ADAM, SGD, MUON], ids=["adam", "sgd", "muon"])
def test_training_raises_the_bound(training):
    training = replace(training, epochs=30)
    history = tc.fit(model(mu=-3.0), frames(), training=training, watcher=Silent()).history
    assert [record["epoch"] for record in history] == list(range(1, 31))
    assert history[-1]["elbo"] > history[0]["elbo"] + 0.5
    last = history[-1]
    parts = last["log_px_given_t"] - last["kl_z"] - last["kl_u"]
    assert last["elbo"] == pytest.approx(parts, abs=1e-3)


@pytest.mark.parametrize(
    "training, stop",
    [(ADAM, 1), (ADAM, 7), (ADAM, 20), (SGD, 5), (SGD, 19), (MUON, 7)],
    ids=["adam-1", "adam-7", "adam-20", "sgd-5", "sgd-19", "muon-7"],
)
def test_a_run_resumed_at_any_step_ends_like_an_uninterrupted_run(tmp_path, training, stop):
    whole = tc.fit(model(), frames(), training=training, out=tmp_path / "whole", watcher=Silent())
    there = dict(training=training, out=tmp_path / "parts")
    with pytest.raises(tc.Interrupted, match=f"after step {stop} of 20"):
        tc.fit(model(), frames(), watcher=StopAt(stop), **there)
    assert not (tmp_path / "parts" / "weights.safetensors").exists()
    torch.rand(7)  # the global random state does not matter either
    # the initial weights of the model do not matter: the state replaces them
    resumed = tc.fit(model(seed=9), frames(), watcher=Silent(), **there)
    assert_same(weights(whole.model), weights(resumed.model))
    for one, other in zip(whole.history, resumed.history, strict=True):
        assert {**one, "seconds": 0} == {**other, "seconds": 0}


def test_a_killed_run_resumes_from_its_last_saved_epoch(tmp_path):
    """The state of the last epoch is complete, although the run could not save at its end."""

    class Dies(Silent):
        def step(self, step, terms):
            if step == 13:
                raise MemoryError

    whole = tc.fit(model(), frames(), training=ADAM, watcher=Silent())
    with pytest.raises(MemoryError):
        tc.fit(model(), frames(), training=ADAM, out=tmp_path, watcher=Dies())
    assert len((tmp_path / "metrics.jsonl").read_text().splitlines()) == 2
    resumed = tc.fit(model(), frames(), training=ADAM, out=tmp_path, watcher=Silent())
    assert_same(weights(whole.model), weights(resumed.model))


def test_runs_of_one_seed_are_equal_and_of_another_differ():
    one, same = (tc.fit(model(), frames(), training=ADAM, watcher=Silent()) for _ in range(2))
    other = tc.fit(model(), frames(), training=ADAM, seed=1, watcher=Silent())
    assert_same(weights(one.model), weights(same.model))
    assert not torch.equal(one.model.mu, other.model.mu)


def test_fit_does_not_change_the_global_random_state():
    one = model()
    torch.manual_seed(4)
    expected = torch.rand(3)
    torch.manual_seed(4)
    tc.fit(one, frames(), epochs=1, watcher=Silent())
    assert torch.equal(torch.rand(3), expected)


def test_models_of_one_seed_see_the_same_sequences(monkeypatch):
    """A VAE needs half the noise of a TVAE, which must not change its sequences."""
    seen, original = {}, tc.Sequences.show
    for kind in (tc.TopographicVAE, tc.VAE):
        shown = seen.setdefault(kind, [])

        def show(self, script, shown=shown):
            shown.append(script)
            return original(self, script)

        with monkeypatch.context() as patch:
            patch.setattr(tc.Sequences, "show", show)
            tc.fit(model(kind=kind), frames(), training=ADAM, watcher=Silent())
    tvae, vae = seen.values()
    tvae, vae = tvae[-20:], vae[-20:]  # without the sequences of the check before training
    assert all(torch.equal(a, b) for a, b in zip(tvae, vae, strict=True))
    assert not torch.equal(tvae[0], tvae[1])


def test_projected_rows_stay_on_the_sphere():
    trained = tc.fit(model(norm="projected"), frames(), training=SGD, watcher=Silent()).model
    for name, weight in trained.named_parameters():
        if name.endswith("matrix"):
            torch.testing.assert_close(weight.norm(dim=1), torch.ones(len(weight)), msg=name)


@pytest.mark.parametrize("poisoned, says", [("z_given_x", "kl_z"), ("u_given_x", "kl_u")])
def test_an_error_names_the_non_finite_term_and_its_step(tmp_path, poisoned, says):
    one = model()

    class Poison(Silent):
        def step(self, step, terms):
            if step == 3:
                with torch.no_grad():
                    getattr(one, poisoned).network[0].bias.fill_(torch.inf)

    with pytest.raises(tc.NonFinite, match=f"^{says} is not finite at step 4"):
        tc.fit(one, frames(), training=ADAM, watcher=Poison(), out=tmp_path)


def test_an_error_names_a_non_finite_gradient():
    for training, says in (
        (SGD, "^no gradient was finite in the epoch to step 5"),  # clips, so counts it as zero
        (ADAM, "^kl_u is not finite at step 2"),
    ):
        one = model()
        one.u_given_x.network[2].bias.register_hook(lambda grad: grad * torch.nan)
        with pytest.raises(tc.NonFinite, match=says):
            tc.fit(one, frames(), training=training, watcher=Silent())


def test_a_record_has_the_means_of_an_epoch_and_anything_unusual():
    sums = {"elbo": -30.0, "kl_z": 6.0, LEFT_OUT: 0.0}
    plain = epoch_record(model(), sums, step=8, steps=4)
    assert plain == {"epoch": 2, "step": 8, "elbo": -7.5, "kl_z": 1.5, "together": 1}

    class Estimate(tc.TopographicVAE):
        is_bound = False

        def diagnose(self, means):
            return f"the elbo is {means['elbo']}"

    found = epoch_record(
        model(kind=Estimate), sums | {LEFT_OUT: 3.0}, 8, 4, kl_weight=0.5, together=2
    )
    assert found == plain | {
        LEFT_OUT: 3, "is_bound": False, KL_WEIGHT: 0.5, "together": 2,
        "complaint": "the elbo is -7.5",
    }  # fmt: skip
    assert sums[LEFT_OUT] == 0  # not changed in place


def test_clipping_bounds_the_first_step():
    """A step of SGD without momentum is the learning rate times the clipped gradient."""
    lengths = {}
    for clip in (None, 1e-3):
        before, one = model(), model()
        training = tc.Training(
            tc.Sgd(1.0, momentum=0.0), batch=4, epochs=1, epoch_size=4, clip=clip
        )
        tc.fit(one, frames(), training=training, watcher=Silent())
        moved = [a - b for a, b in zip(one.parameters(), before.parameters(), strict=True)]
        lengths[clip] = torch.cat([m.detach().flatten() for m in moved]).norm().item()
    assert lengths[None] > 0.1 and lengths[1e-3] == pytest.approx(1e-3, rel=1e-2)


def test_a_run_does_not_resume_with_other_data(tmp_path):
    tc.fit(model(), frames(), training=ADAM, out=tmp_path, watcher=Silent())
    with pytest.raises(tc.BadInput, match="fingerprint of the data"):
        tc.fit(model(), 1 - frames(), training=ADAM, out=tmp_path, watcher=Silent())


def test_a_run_folder_is_complete_and_loads(tmp_path):
    run = tc.fit(model(), frames(), training=ADAM, out=tmp_path / "run", watcher=Silent())
    assert sorted(path.name for path in (tmp_path / "run").iterdir()) == [
        "events",
        "metrics.jsonl",
        "recipe.json",
        "state",
        "weights.safetensors",
    ]
    recipe = json.loads((tmp_path / "run" / "recipe.json").read_text())
    assert recipe["seed"] == 0 and recipe["versions"]["torch"] == torch.__version__
    assert recipe["training"]["optimiser"] == {
        "kind": "Adam",
        "lr": 3e-3,
        "betas": [0.9, 0.999],
        "warmup": 2,
    }
    loaded = tc.load(tmp_path / "run")
    assert_same(weights(run.model), weights(loaded))
    torch.testing.assert_close(loaded.encode(frames()), run.model.encode(frames()))


def test_a_finished_run_is_not_trained_again_and_refuses_other_settings(tmp_path):
    tc.fit(model(), frames(), training=ADAM, out=tmp_path, watcher=Silent())
    steps = []

    class Counts(Silent):
        def step(self, step, terms):
            steps.append(step)

    again = tc.fit(model(seed=5), frames(), training=ADAM, out=tmp_path, watcher=Counts())
    assert not steps
    assert_same(weights(again.model), weights(tc.load(tmp_path)))
    with pytest.raises(tc.BadInput, match=r"training.epochs was 4, is now 5"):
        tc.fit(model(), frames(), training=ADAM, epochs=5, out=tmp_path, watcher=Silent())


def test_a_finished_run_needs_no_state(tmp_path):
    run = tc.fit(model(), frames(), training=ADAM, out=tmp_path, watcher=Silent())
    shutil.rmtree(tmp_path / "state")
    again = tc.fit(model(seed=5), frames(), training=ADAM, out=tmp_path, watcher=StopAt(1))
    assert_same(weights(run.model), weights(again.model))
    assert again.history == run.history


def test_networks_may_share_a_module(tmp_path):
    base = model()
    shared = tc.TopographicVAE(base.z_given_x, base.z_given_x, base.x_given_t, TOPOGRAPHY)
    run = tc.fit(shared, frames(), training=ADAM, out=tmp_path, watcher=Silent())
    again = tc.TopographicVAE(base.z_given_x, base.z_given_x, base.x_given_t, TOPOGRAPHY)
    assert_same(weights(tc.load(tmp_path, again)), weights(run.model))


def test_loading_a_missing_or_unfinished_run_is_refused(tmp_path):
    with pytest.raises(tc.BadInput, match="not a run folder"):
        tc.load(tmp_path)
    with pytest.raises(tc.Interrupted):
        tc.fit(model(), frames(), training=ADAM, out=tmp_path, watcher=StopAt(2))
    with pytest.raises(tc.BadInput, match="not finished"):
        tc.load(tmp_path)
    (tmp_path / "state" / "state.safetensors").write_bytes(b"rubbish")
    with pytest.raises(tc.BadInput, match="not a state"):
        tc.fit(model(), frames(), training=ADAM, out=tmp_path, watcher=Silent())


def test_networks_of_your_own_are_trained_and_loaded_into(tmp_path):
    def own():
        base = model()
        return tc.TopographicVAE(base.z_given_x, base.u_given_x, base.x_given_t, TOPOGRAPHY)

    run = tc.fit(own(), frames(), training=ADAM, out=tmp_path, watcher=Silent())
    with pytest.raises(tc.BadInput, match="pass a model"):
        tc.load(tmp_path)
    assert_same(weights(tc.load(tmp_path, own())), weights(run.model))


@pytest.mark.parametrize(
    "x, says",
    [
        (frames() * 2, r"\[0, 1\]"),
        (frames().masked_fill(frames() > 0, torch.nan), "NaN"),
        (torch.rand(3, 6, 1, 4, 5), "frame"),
        (torch.rand(3, 2, *FRAME), "window 3 is longer"),
        (torch.rand(6), "sequences, time"),
    ],
)
def test_unsuitable_sequences_are_refused_before_a_folder_is_created(tmp_path, x, says):
    with pytest.raises(tc.BadInput, match=says):
        tc.fit(model(), x, training=ADAM, out=tmp_path / "run", watcher=Silent())
    assert not (tmp_path / "run").exists()


def test_a_model_of_another_dtype_is_refused(tmp_path):
    with pytest.raises(tc.BadInput, match="float32 on cpu, the model is"):
        tc.fit(model().double(), frames(), training=ADAM, out=tmp_path / "run", watcher=Silent())
    assert not (tmp_path / "run").exists()
    assert model().double()(frames().double()).elbo.isfinite().all()


def test_unusable_folders_devices_and_settings_are_refused(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(tc.BadInput, match="cannot write to the folder"):
        tc.fit(model(), frames(), training=ADAM, out=tmp_path / "file" / "run", watcher=Silent())
    with pytest.raises(tc.BadInput, match="device 'abacus' cannot be used"):
        tc.fit(model(), frames(), training=ADAM, device="abacus", watcher=Silent())
    for settings, says in (
        (dict(batch=0), "batch"),
        (dict(clip=-1.0), "clip"),
        (dict(kl=0.5), r"kl must be KLWeight\(…\), not 0.5"),
    ):
        with pytest.raises(tc.BadInput, match=says):
            tc.Training(**settings)
    with pytest.raises(tc.BadInput, match="seed"):
        tc.fit(model(), frames(), seed=-1, watcher=Silent())
    for wrong in (dict(lr=0), dict(betas=(5, 6)), dict(betas=0.9), dict(warmup=-1)):
        with pytest.raises(tc.BadInput, match=next(iter(wrong))):
            tc.Adam(**wrong)
    with pytest.raises(tc.BadInput, match="momentum"):
        tc.Sgd(momentum=2)


def test_the_learning_rate_of_adam_warms_up_and_decays():
    adam = tc.Adam(lr=1.0, warmup=3)
    rates = [adam.lr_at(step, 100) for step in range(100)]
    assert rates[0] == pytest.approx(0.25) and max(rates) <= 1 and rates[-1] < 1e-3
    assert rates[4:] == sorted(rates[4:], reverse=True)
    assert {tc.Sgd(lr=0.1).lr_at(step, 100) for step in range(100)} == {0.1}


def test_settings_store_numpy_integers_as_int():
    one, two = np.int64(1), np.int64(2)
    training = tc.Training(tc.Adam(warmup=one), batch=two, epochs=two, epoch_size=two, patience=two)
    plain = tc.Training(tc.Adam(warmup=1), batch=2, epochs=2, epoch_size=2, patience=2)
    assert json.dumps(training.to_json()) == json.dumps(plain.to_json())


def test_an_epoch_size_counts_sequences_not_steps():
    sequences = tc.Sequences.of(frames(20))
    training = replace(ADAM, epoch_size=10, epochs=2)
    assert train([model()], sequences, training)[0].step == 6


def test_two_runs_cannot_train_into_one_folder(tmp_path):
    out, seen = tmp_path / "run", []

    class Greedy(Silent):
        def epoch(self, record):
            with pytest.raises(tc.BadInput, match=r"another run is training into .*: wait, or"):
                tc.fit(model(), frames(), training=SGD, out=out, watcher=Silent())
            seen.append(record["epoch"])

    tc.fit(model(), frames(), training=SGD, out=out, watcher=Greedy())
    assert seen == [1, 2, 3, 4]
    assert tc.fit(model(), frames(), training=SGD, out=out, watcher=Silent()).seconds > 0
    twice = dict(training=SGD, seeds=[0, 0], outs=[tmp_path / "a"] * 2, watcher=Silent())
    with pytest.raises(tc.BadInput, match="another run is training into"):
        tc.fit_together([model(), model()], frames(), **twice)
