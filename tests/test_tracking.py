"""Trackers and loggers get the numbers of every epoch, and watchers are still called."""

import runpy
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from torch import nn

import topocaps as tc
from topocaps.integrations.tracking import TensorBoard, track, trackio, wandb
from topocaps.training import watching
from topocaps.training.watching import Silent, numbers

EXAMPLES = Path(__file__).parent.parent / "examples"


class Heard(Silent):
    """A watcher that records its calls."""

    def __init__(self):
        self.calls = []

    def start(self, step, steps):
        self.calls.append(("start", step, steps))

    def epoch(self, record):
        self.calls.append(("epoch", record["epoch"]))

    def finish(self):
        self.calls.append(("finish",))


def train(watcher):
    model = tc.VAE.mlp(frame_shape=(1, 4, 4), topography=tc.Topography(2, (5,)), hidden=(9,))
    x = torch.rand(8, 3, 1, 4, 4)
    return tc.fit(model, x, epochs=3, batch=4, device="cpu", watcher=watcher).history


def test_tensorboard_gets_all_numbers_of_every_epoch(tmp_path):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    heard = Heard()
    history = train(track(heard, TensorBoard(tmp_path / "events"), {"lr": 1e-3}))
    assert heard.calls == [("start", 0, 6), *(("epoch", n) for n in (1, 2, 3)), ("finish",)]
    events = EventAccumulator(str(tmp_path / "events"))
    events.Reload()
    names = set(events.Tags()["scalars"])
    assert names == numbers(history[0]).keys() >= {"elbo", "kl_z", "log_px_given_t", "seconds"}
    for name in names:
        found = [(event.step, event.value) for event in events.Scalars(name)]
        assert [step for step, _ in found] == [2, 4, 6]
        values = [record[name] for record in history]
        assert [value for _, value in found] == pytest.approx(values, rel=1e-6)
    assert events.Tags()["tensors"] == ["settings/text_summary"]


def test_every_run_folder_gets_its_own_tensorboard_files(tmp_path):
    """Each model of a stack has its own folder."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    models = [
        tc.VAE.mlp(frame_shape=(1, 4, 4), topography=tc.Topography(2, (5,)), hidden=(9,))
        for _ in range(2)
    ]
    outs = [tmp_path / "a", tmp_path / "b"]
    training = tc.Training(epochs=2, batch=4)
    x = torch.rand(8, 3, 1, 4, 4)
    runs = tc.training.fit_together(
        models, x, training=training, seeds=[0, 1], outs=outs, device="cpu", watcher=Silent()
    )
    for run, out in zip(runs, outs, strict=True):
        events = EventAccumulator(str(out / "events"))
        events.Reload()
        found = [(event.step, event.value) for event in events.Scalars("elbo")]
        wanted = [(record["step"], record["elbo"]) for record in run.history]
        assert [step for step, _ in found] == [2, 4]
        assert found == [pytest.approx(pair, rel=1e-6) for pair in wanted]


def test_runs_need_no_tensorboard(tmp_path, monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    model = tc.VAE.mlp(frame_shape=(1, 4, 4), topography=tc.Topography(2, (5,)), hidden=(9,))
    tc.fit(model, torch.rand(8, 3, 1, 4, 4), epochs=1, out=tmp_path / "run", device="cpu")
    assert not (tmp_path / "run" / "events").exists()


def test_a_custom_logger_gets_every_epoch_of_every_run_folder(tmp_path, monkeypatch):
    logged = {}

    class Memory:
        def __init__(self, folder):
            self.lines = logged.setdefault(folder.path.name, [])

        def log(self, step, numbers):
            self.lines.append((step, numbers["elbo"]))

        def finish(self):
            self.lines.append("finished")

    def only_b(folder):
        return Memory(folder) if folder.path.name == "b" else None

    monkeypatch.setattr(watching, "LOGGERS", [only_b])
    model = tc.VAE.mlp(frame_shape=(1, 4, 4), topography=tc.Topography(2, (5,)), hidden=(9,))
    for out in (tmp_path / "a", tmp_path / "b", None):
        run = tc.fit(
            model, torch.rand(8, 3, 1, 4, 4), epochs=2, batch=4, out=out, device="cpu",
            watcher=Silent(),
        )  # fmt: skip
        if out == tmp_path / "b":
            wanted = [(record["step"], record["elbo"]) for record in run.history]
    assert logged == {"b": [*wanted, "finished"]}
    assert not (tmp_path / "a" / "events").exists()


@pytest.mark.parametrize("make", [wandb, trackio])
def test_services_get_the_settings_and_the_numbers_of_every_epoch(make, monkeypatch):
    calls = []
    service = SimpleNamespace(
        init=lambda **options: calls.append(("init", options)),
        log=lambda found, step: calls.append(("log", step, found)),
        finish=lambda: calls.append(("finish",)),
    )
    monkeypatch.setitem(sys.modules, make.__name__, service)
    history = train(track(Silent(), make("capsules", name="one"), {"lr": 1e-3}))
    assert calls == [
        ("init", {"config": {"lr": 1e-3}, "project": "capsules", "name": "one"}),
        *(("log", record["step"], numbers(record)) for record in history),
        ("finish",),
    ]


def test_a_tracker_is_finished_after_an_error():
    class Stubborn(Silent):
        def epoch(self, record):
            raise RuntimeError("the terminal is gone")

        def finish(self):
            raise RuntimeError("still gone")

    finished = []
    tracker = SimpleNamespace(
        start=lambda settings: None, log=None, finish=lambda: finished.append(True)
    )
    with pytest.raises(RuntimeError, match="gone"):
        train(track(Stubborn(), tracker))
    assert finished == [True]


def test_only_numbers_are_logged():
    record = {"epoch": 2, "step": 9, "elbo": -3.5, "complaint": "flat", "on": True, "none": None}
    assert numbers(record) == {"epoch": 2, "elbo": -3.5}


@pytest.mark.parametrize(
    "make, module, words",
    [
        (lambda: track(Silent()), "torch.utils.tensorboard", r"tensorboard: pip .*\[track\]'$"),
        (lambda: wandb("it"), "wandb", r"wandb: pip install 'topocaps\[track\]' wandb"),
        (lambda: trackio("it"), "trackio", r"trackio: pip install 'topocaps\[track\]' trackio"),
    ],
)
def test_a_missing_package_is_named_before_anything_is_trained(make, module, words, monkeypatch):
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(tc.BadInput, match=words):
        make()


class StubTrainer:
    """The calls that Lightning's trainer makes to a module, in their order."""

    def __init__(self, *, max_epochs, accelerator, logger, enable_checkpointing):
        self.epochs = max_epochs

    def fit(self, module, batches):
        optimiser = module.configure_optimizers()
        for _ in range(self.epochs):
            for index, batch in enumerate(batches):
                optimiser.zero_grad()
                loss = module.training_step(batch, index)
                loss.backward()
                optimiser.step()
                module.on_train_batch_end(loss, batch, index)


class StubModule(nn.Module):
    def log(self, name, value, prog_bar=False):
        assert value.ndim == 0


def test_the_lightning_example_trains_a_model(monkeypatch):
    """A stub replaces Lightning, which takes ten seconds to import and is not installed.

    So this tests the wrapper's use of this library, not its use of Lightning.
    """
    stub = SimpleNamespace(LightningModule=StubModule, Trainer=StubTrainer)
    monkeypatch.setitem(sys.modules, "lightning", stub)
    example = runpy.run_path(str(EXAMPLES / "lightning_wrap.py"))
    model, x = example["main"](epochs=1)
    before = model(x).elbo.mean().item()
    torch.manual_seed(0)
    model, x = example["main"](epochs=10)
    assert model(x).elbo.mean().item() > before + 1
