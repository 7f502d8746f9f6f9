"""Training without float64, as on Apple's GPUs, tested on other devices.

The device "meta", which computes no values, shows where and in which dtype everything is computed.
A CPU that pretends to have no float64 trains as such a GPU would.
"""

from dataclasses import replace

import pytest
import torch
from test_training import ADAM, SGD, assert_same, frames, model, weights
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

import topocaps as tc
from topocaps.device import free_memory, with_doubles
from topocaps.training.engine import Engine
from topocaps.training.loop import train
from topocaps.training.run import choose_device
from topocaps.training.watching import Silent

HOST = torch.device("cpu")


class Kinds(TorchDispatchMode):
    """Records the device and the dtype of every result."""

    def __init__(self):
        super().__init__()
        self.seen = set()

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        tensors = [leaf for leaf in tree_leaves(out) if isinstance(leaf, torch.Tensor)]
        self.seen |= {(tensor.device.type, tensor.dtype) for tensor in tensors}
        return out


def step_on_meta(monkeypatch):
    """Run one step on the device "meta", and return all devices and dtypes of results."""
    monkeypatch.setattr(
        tc.Sgd,
        "build",
        lambda self, groups, _: torch.optim.SGD([p for g in groups for p in g], 0.1),
    )
    sequences = tc.Sequences.of(frames())
    sequences = replace(sequences, images=sequences.images.to("meta"))
    one = model().to("meta")
    with Kinds() as kinds:
        engine = Engine([one], sequences, [0], replace(SGD, clip=None))
        engine._step()
    return kinds.seen


def test_nothing_on_a_device_without_float64_is_float64(monkeypatch):
    monkeypatch.setattr("topocaps.training.engine.with_doubles", lambda device: HOST)
    found = step_on_meta(monkeypatch)
    assert ("meta", torch.float32) in found and ("meta", torch.float64) not in found
    assert ("cpu", torch.float64) in found  # sequences are chosen on the host


def test_other_devices_keep_their_sums_in_float64(monkeypatch):
    with pytest.raises((RuntimeError, NotImplementedError)):  # no generator without values
        step_on_meta(monkeypatch)
    engine = Engine([model()], tc.Sequences.of(frames()), [0], ADAM)
    assert engine.parts[0].sums.dtype == torch.float64


@pytest.mark.parametrize("count", [1, 3])
def test_training_without_float64_gives_the_same_weights(count, monkeypatch):
    sequences, seeds = tc.Sequences.of(frames()), range(count)
    expected = [model(seed=s) for s in seeds]
    histories = train(expected, sequences, ADAM, seeds=seeds)
    host = torch.device("cpu", 0)  # compares unequal to "cpu", and is the same device
    monkeypatch.setattr("topocaps.training.engine.with_doubles", lambda device: host)
    models = [model(seed=s) for s in seeds]
    found = train(models, sequences, ADAM, seeds=seeds)
    for one, other in zip(expected, models, strict=True):
        assert_same(weights(one), weights(other))
    for one, other in zip(histories, found, strict=True):
        assert one.history[-1]["elbo"] == pytest.approx(other.history[-1]["elbo"], rel=1e-5)
    engine = Engine(models, sequences, seeds, ADAM)
    assert engine.parts[0].sums.dtype == torch.float32


def test_only_mps_moves_float64_to_the_cpu():
    assert with_doubles(torch.device("mps")) == HOST
    for name in ("cpu", "cuda:1", "meta"):
        assert with_doubles(torch.device(name)) == torch.device(name)


def test_mps_is_used_only_if_named_and_available(monkeypatch):
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: False)
    with pytest.raises(tc.BadInput, match=r"^device 'mps' cannot be used here: it is the GPU of"):
        tc.fit(model(), frames(), device="mps", watcher=Silent())
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: True)
    monkeypatch.setattr("topocaps.training.run.torch.zeros", lambda *_, device: torch.ones(1))
    assert choose_device("mps") == torch.device("mps")
    assert choose_device("auto").type != "mps"


def test_free_memory_of_mps_is_the_recommended_maximum_less_the_used(monkeypatch):
    monkeypatch.setattr(torch.mps, "recommended_max_memory", lambda: 10 * 2**30)
    monkeypatch.setattr(torch.mps, "driver_allocated_memory", lambda: 3 * 2**30)
    assert free_memory(torch.device("mps")) == 7 * 2**30
