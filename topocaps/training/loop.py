"""The training loop: one model, one stream of sequences, exact to resume."""

from __future__ import annotations

import math
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import torch
from torch import Tensor, nn

from topocaps.arithmetic import denormals_flushed, seeded
from topocaps.data.sequences import Sequences
from topocaps.errors import BadInput, Interrupted, NonFinite
from topocaps.models import SequenceModel
from topocaps.training.checkpoint import Progress, restore_state, save_state
from topocaps.training.optimisers import Adam, Sgd
from topocaps.training.watching import TERMS, Silent, Watcher


@dataclass(frozen=True)
class Training:
    """How a model is trained: ``epochs`` of ``epoch_size`` sequences in batches of ``batch``.

    Without an ``epoch_size``, an epoch is as many sequences as there are.
    """

    optimiser: Sgd | Adam = field(default_factory=Adam)
    batch: int = 8
    epochs: int = 100
    epoch_size: int | None = None
    clip: float | None = None  #: largest norm of the gradient

    def __post_init__(self) -> None:
        for name in ("batch", "epochs", "epoch_size"):
            value = getattr(self, name)
            if name == "epoch_size" and value is None:
                continue
            if not isinstance(value, int) or isinstance(value, bool) or value < 1:
                raise BadInput(f"{name} must be a whole number of at least 1, not {value!r}")
        if self.clip is not None and not self.clip > 0:
            raise BadInput(f"clip must be above 0, not {self.clip}")

    def steps_per_epoch(self, sequences: Sequences) -> int:
        return math.ceil((self.epoch_size or len(sequences)) / self.batch)


def train(
    model: SequenceModel,
    sequences: Sequences,
    training: Training,
    *,
    seed: int = 0,
    state: Path | None = None,
    watcher: Watcher | None = None,
    on_epoch: Callable[[Progress], None] | None = None,
) -> Progress:
    """Train ``model`` where it is; with ``state`` (a file), save there and go on from there.

    Sequences and noise come from ``seed`` alone. A state is saved after every epoch and when the
    user interrupts, after the step in hand is done; from it the run goes on bit for bit.
    """
    watcher = watcher or Silent()
    steps_per_epoch = training.steps_per_epoch(sequences)
    steps = training.epochs * steps_per_epoch
    optimiser = training.optimiser.build(model.parameters())
    generator = torch.Generator().manual_seed(seed)
    progress = Progress()

    def save() -> None:
        progress.seconds = before + time.monotonic() - began
        if state is not None:
            save_state(state, progress, model, optimiser, generator)

    with seeded(seed), denormals_flushed(), _interrupts() as interrupted:
        if state is not None and state.exists():
            progress = restore_state(state, model, optimiser, generator)
        before, began = progress.seconds, time.monotonic()
        watcher.start(progress.step, steps)
        try:
            while progress.step < steps:
                lr = training.optimiser.lr_at(progress.step, steps)
                x = sequences.draw(training.batch, generator).x
                terms = _step(model, x, optimiser, lr, training.clip, progress.step + 1)
                progress.step += 1
                for name, value in terms.items():
                    progress.sums[name] = progress.sums.get(name, 0.0) + value
                watcher.step(progress.step, terms)
                if progress.step % steps_per_epoch == 0:
                    record = {
                        "epoch": progress.step // steps_per_epoch,
                        "step": progress.step,
                        **{k: v / steps_per_epoch for k, v in progress.sums.items()},
                        "seconds": round(before + time.monotonic() - began, 3),
                    }
                    progress.history.append(record)
                    progress.sums = {}
                    save()
                    if on_epoch is not None:
                        on_epoch(progress)
                    watcher.epoch(record)
                if interrupted.is_set() and progress.step < steps:
                    save()
                    raise Interrupted(f"stopped after step {progress.step} of {steps}")
        finally:
            watcher.finish()
    return progress


def _step(
    model: SequenceModel,
    x: Tensor,
    optimiser: torch.optim.Optimizer,
    lr: float,
    clip: float | None,
    step: int,
) -> dict[str, float]:
    """One step up the bound; the terms it had, in nats a frame."""
    for group in optimiser.param_groups:
        group["lr"] = lr
    evidence = model.evidence(x)
    bound = evidence.elbo.mean()
    means = torch.stack([bound, *(getattr(evidence, name).mean() for name in TERMS[1:])])
    terms = dict(zip(TERMS, means.tolist(), strict=True))
    for name in (*TERMS[1:], TERMS[0]):
        if not math.isfinite(terms[name]):
            raise NonFinite(f"{name} became {terms[name]} at step {step}; {_ADVICE}")
    optimiser.zero_grad()
    (-bound).backward()
    norm = nn.utils.clip_grad_norm_(model.parameters(), clip or math.inf)
    if not norm.isfinite():
        name = next(
            name
            for name, p in model.named_parameters()
            if p.grad is not None and not p.grad.isfinite().all()
        )
        raise NonFinite(f"the gradient of {name} is not finite at step {step}; {_ADVICE}")
    optimiser.step()
    model.project()
    return terms


_ADVICE = "try a smaller lr, a clip on the gradient, or a larger window or reach"


@contextmanager
def _interrupts() -> Iterator[threading.Event]:
    """An event that Ctrl-C or a termination sets, so that a step is never cut in half.

    A second Ctrl-C stops at once.
    """
    event = threading.Event()
    if threading.current_thread() is not threading.main_thread():
        yield event
        return
    signals = (signal.SIGINT, signal.SIGTERM)
    previous = [signal.getsignal(s) for s in signals]

    def ask(number: int, frame: object) -> None:
        event.set()
        for s, handler in zip(signals, previous, strict=True):
            signal.signal(s, handler)

    for s in signals:
        signal.signal(s, ask)
    try:
        yield event
    finally:
        for s, handler in zip(signals, previous, strict=True):
            signal.signal(s, handler)
