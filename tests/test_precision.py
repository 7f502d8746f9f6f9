"""The precision of matrix products, and the check of compiled code."""

from contextlib import nullcontext
from dataclasses import replace

import pytest
import torch
from test_engine import company
from test_training import TOPOGRAPHY, StopAt, frames, model

import topocaps as tc
from topocaps.latents.stack import TopographyStack
from topocaps.training.engine import Engine
from topocaps.training.watching import Silent

NO_WARNING = nullcontext()


def halved(terms, *inputs):
    return ((terms + terms.detach()) / 2, *inputs)


def of_one_member(terms, *inputs):
    """Remove the gradient of the last member, which has the smallest norm."""
    return (torch.cat([terms[:-1], terms[-1:].detach()]), *inputs)


def without_inputs(terms, *inputs):
    return (terms, *([torch.zeros_like(one) for one in given] for given in inputs))


ERRORS = {
    "none": (lambda *found: found, ("fp32", "bf16")),
    "half": (halved, ("fp32", "bf16")),
    "a member": (of_one_member, ("fp32", "bf16")),
    "inputs": (without_inputs, ("bf16",)),
}


@pytest.mark.parametrize(
    ("error", "precision"), [(name, one) for name, (_, some) in ERRORS.items() for one in some]
)
def test_compiled_code_is_used_only_if_its_gradients_equal_those_of_plain_code(
    error, precision, fused_anywhere, monkeypatch
):
    """The compiler of this test returns the right bound with a wrong gradient."""
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

    for module in ("updates.autograd", "updates.fused", "engine"):
        monkeypatch.setattr(f"topocaps.training.{module}.compiled", compiled)
    sequences = tc.Sequences.of(frames())
    training = tc.Training(tc.Sgd(1e-3), precision=precision)
    found = []
    for compiling in (False, True):
        members, numbers = company(), torch.get_rng_state()
        with pytest.warns(UserWarning, match="differ") if compiling and errs else NO_WARNING:
            engine = Engine(members, sequences, range(4), training, compiling=compiling)
        assert torch.equal(numbers, torch.get_rng_state())
        assert all(p.grad is None for p in members[0].parameters())
        used.clear()
        found.append(engine.advance(1, 5, 100))
    assert found[0] == found[1]  # the check uses no random numbers of the engine
    assert bool(used) is not errs


def test_the_check_of_compiled_code_leaves_batch_statistics_unchanged(monkeypatch):
    for module in ("updates.autograd", "engine"):
        monkeypatch.setattr(f"topocaps.training.{module}.compiled", lambda function: function)
    normed = model(topography=TOPOGRAPHY)
    normed.z_given_x.network.insert(1, torch.nn.BatchNorm1d(6))  # of six frames
    Engine([normed], tc.Sequences.of(frames()), [0], tc.Training(), compiling=True)
    assert normed.z_given_x.network[1].num_batches_tracked == 0


def test_pool_stays_in_fp32_under_autocast():
    u2 = torch.rand(2, 6, 2, 6)
    expected = TOPOGRAPHY.pool(u2)
    with torch.autocast("cpu", torch.bfloat16):
        assert torch.equal(TOPOGRAPHY.pool(u2), expected)
        together = TopographyStack([TOPOGRAPHY, TOPOGRAPHY], 6)
        assert together.pool(torch.stack([u2, u2])).dtype == torch.float32


@pytest.mark.parametrize("able", [True, False])
def test_run_records_precision_and_products(able, tmp_path, monkeypatch):
    monkeypatch.setattr("topocaps.training.settings.multiplies_bf16", lambda device: able)
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
def test_cpu_uses_bf16_only_if_it_has_instructions_and_permission(able, monkeypatch):
    monkeypatch.setattr("topocaps.training.settings.multiplies_bf16", lambda device: able)
    here = [kind.on(torch.device("cpu")).value for kind in tc.Precision]
    assert here == ["fp32", "fp32", "bf16" if able else "fp32"]
    with tc.Precision.BF16.products(torch.device("cpu")):
        assert (torch.ones(2, 2) @ torch.ones(2, 2)).dtype == (
            torch.bfloat16 if able else torch.float32
        )


def test_resumed_run_records_a_change_of_products(tmp_path, monkeypatch):
    training = tc.Training(tc.Sgd(), batch=4, epochs=2, precision="bf16")
    for able, watcher in ((False, StopAt(3)), (True, StopAt(6)), (True, Silent())):
        monkeypatch.setattr(
            "topocaps.training.settings.multiplies_bf16", lambda device, able=able: able
        )
        stopped = isinstance(watcher, StopAt)
        with pytest.raises(tc.Interrupted) if stopped else nullcontext():
            tc.fit(model(), frames(), training=training, out=tmp_path, watcher=watcher)
    monkeypatch.setattr("topocaps.training.settings.multiplies_bf16", lambda device: False)
    run = tc.fit(model(), frames(), training=training, out=tmp_path, watcher=Silent())
    assert run.folder.settings()["products"] == "fp32, then bf16"  # the run had finished before
