"""The training loop: a stack of models, each with its own sequences and noise; exact to resume."""

from __future__ import annotations

import math
import signal
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import torch

from topocaps.arithmetic import denormals_flushed
from topocaps.data.sequences import Sequences
from topocaps.errors import BadInput, Interrupted, NonFinite
from topocaps.models import SequenceModel
from topocaps.networks import lead
from topocaps.training.checkpoint import Progress, restore_states, save_states
from topocaps.training.optimisers import Adam, Sgd
from topocaps.training.stack import Randomness, Stack
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
    models: Sequence[SequenceModel],
    sequences: Sequences,
    training: Training,
    *,
    seeds: Sequence[int] = (0,),
    states: Sequence[Path] = (),
    watcher: Watcher | None = None,
    on_epoch: Callable[[list[Progress]], None] | None = None,
) -> list[Progress]:
    """Train models of one architecture as one program, where they are.

    Sequences and noise of each come from its seed alone, so that a model trains the same in any
    company. With ``states`` (a file for each), a state is saved after every epoch and when the
    user interrupts, after the step in hand is done; from it the run goes on bit for bit.
    """
    watcher = watcher or Silent()
    steps_per_epoch = training.steps_per_epoch(sequences)
    steps = training.epochs * steps_per_epoch
    stack = Stack(models, sequences.frames)
    optimiser = training.optimiser.build(stack.model.parameters())
    randomness = Randomness(seeds, sequences.images.device)
    progress = [Progress() for _ in models]

    def save() -> None:
        for one in progress:
            one.seconds = before + time.monotonic() - began
        save_states(states, progress, stack, optimiser, randomness)

    with denormals_flushed(), _interrupts() as interrupted:
        if states and all(path.exists() for path in states):
            progress = restore_states(states, stack, optimiser, randomness)
        before, began = progress[0].seconds, time.monotonic()
        step = progress[0].step
        watcher.start(step, steps)
        try:
            while step < steps:
                for group in optimiser.param_groups:
                    group["lr"] = training.optimiser.lr_at(step, steps)
                step += 1
                terms = _step(stack, sequences, training, optimiser, randomness, step)
                for one, found in zip(progress, terms, strict=True):
                    one.step = step
                    for name, value in found.items():
                        one.sums[name] = one.sums.get(name, 0.0) + value
                watcher.step(step, terms[0])
                if step % steps_per_epoch == 0:
                    seconds = before + time.monotonic() - began
                    for one in progress:
                        means = {name: total / steps_per_epoch for name, total in one.sums.items()}
                        record = {"epoch": step // steps_per_epoch, "step": step, **means}
                        one.history.append({**record, "seconds": round(seconds, 3)})
                        one.sums = {}
                    save()
                    if on_epoch is not None:
                        on_epoch(progress)
                    watcher.epoch(progress[0].history[-1])
                if interrupted.is_set() and step < steps:
                    save()
                    raise Interrupted(f"stopped after step {step} of {steps}")
        finally:
            watcher.finish()
            stack.write_back()
    return progress


def _step(
    stack: Stack,
    sequences: Sequences,
    training: Training,
    optimiser: torch.optim.Optimizer,
    randomness: Randomness,
    step: int,
) -> list[dict[str, float]]:
    """One step up the bound for every member; the terms each had, in nats a frame."""
    x = sequences.show(sequences.choose(randomness.uniform(training.batch, 3))).x
    evidence = stack.model.evidence(x, randomness.normal)
    means = [getattr(evidence, name).flatten(-2).mean(-1).reshape(len(stack)) for name in TERMS]
    optimiser.zero_grad()
    (-means[0]).sum().backward()
    terms = [
        dict(zip(TERMS, values, strict=True))
        for values in torch.stack(means, 1).tolist()  # member term
    ]
    for member, found in enumerate(terms):
        for name in (*TERMS[1:], TERMS[0]):
            if not math.isfinite(found[name]):
                raise NonFinite(
                    f"{_whose(stack, member)}{name} became {found[name]} at step {step}; {_ADVICE}"
                )
    _clip(stack, training.clip, step)
    optimiser.step()
    stack.model.project()
    return terms


@torch.no_grad()
def _clip(stack: Stack, largest: float | None, step: int) -> None:
    """Shorten each member's gradient to ``largest``, and refuse one that is not finite."""
    gradients = {name: p.grad for name, p in stack.model.named_parameters() if p.grad is not None}
    squares = {
        name: grad.reshape(len(stack), -1).square().sum(1) for name, grad in gradients.items()
    }
    norms = torch.stack(list(squares.values())).sum(0).sqrt()
    if not norms.isfinite().all():
        name, bad = next((n, s.isfinite()) for n, s in squares.items() if not s.isfinite().all())
        whose = _whose(stack, int(bad.long().argmin()))
        raise NonFinite(f"{whose}the gradient of {name} is not finite at step {step}; {_ADVICE}")
    if largest is not None:
        factor = (largest / norms).clamp(max=1)
        factor = factor if len(stack) > 1 else factor[0]
        for gradient in gradients.values():
            gradient.mul_(lead(factor, gradient))


def _whose(stack: Stack, member: int) -> str:
    return f"model {member} of {len(stack)}: " if len(stack) > 1 else ""


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
