"""The training loop. It records epochs, saves states, and resumes from them exactly."""

from __future__ import annotations

import math
import signal
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from topocaps.data.sequences import SequenceSet
from topocaps.device import steady_arithmetic
from topocaps.errors import Interrupted
from topocaps.models.base import GenerativeModel
from topocaps.training.engine import LEFT_OUT, WORTH_COMPILING, Engine
from topocaps.training.settings import Training, for_each
from topocaps.training.store import Progress, restore_states, save_states
from topocaps.training.validation import (
    VALIDATION,
    best_epoch,
    has_stopped,
    validation_bound,
)
from topocaps.training.watching import KL_WEIGHT, Silent, Watcher, summarise

SAVING = 0.03  # largest share of the time that saving states takes


def train(
    models: Sequence[GenerativeModel],
    sequences: SequenceSet,
    training: Training | Sequence[Training],
    *,
    seeds: Sequence[int] = (0,),
    states: Sequence[Path] = (),
    validation: SequenceSet | None = None,
    watcher: Watcher | None = None,
    on_epoch: Callable[[list[Progress]], None] | None = None,
    on_failure: Callable[[int, Progress], None] | None = None,
) -> list[Progress]:
    """Train models as one program, on the device where they are.

    The sequences and noise of a model depend on its seed alone, so it trains the same with any
    other models.

    With ``states`` (a file for each model), states are saved after the first and the last epoch,
    after other epochs as long as saving takes little of the time, and after the current step when
    the user interrupts. A run resumes from its state bit for bit.

    After every epoch the bound on ``validation`` sequences is recorded. A model with ``patience``
    ends with the weights of its best epoch, and records nothing after it has ``stopped``. Training
    ends when all models have stopped.

    A model that is not finite is marked as ``failed`` in its progress and is not saved again; the
    others continue.
    """
    watcher = watcher or Silent()
    trainings = for_each(training, len(models))
    steps_per_epoch = trainings[0].steps_per_epoch(sequences)
    steps = trainings[0].epochs * steps_per_epoch
    progress = [Progress() for _ in models]
    saved, saving = 0.0, 0.0  # time of the last save, and its duration

    def save() -> None:
        nonlocal saved, saving
        start = time.monotonic()
        engine.flag_nonfinite_weights()
        look_for_failures()
        for one in progress:
            one.seconds = before + start - began
        save_states(states, progress, engine)
        saved = time.monotonic()
        saving = saved - start

    def look_for_failures() -> None:
        for place, why in engine.failures().items():
            fail(place, why)

    def fail(place: int, why: str) -> None:
        one = progress[place]
        if not (one.failed or one.stopped):
            one.failed = why
            if on_failure is not None:
                on_failure(place, one)

    def going() -> list[int]:
        return [n for n, one in enumerate(progress) if not (one.failed or one.stopped)]

    def validate(place: int, sequences: SequenceSet) -> None:
        """Record the validation bound, and keep the weights if it is the best so far."""
        model, one, training = models[place], progress[place], trainings[place]
        weights = engine.weights(place)
        model.load_state_dict(weights)  # the weights of its stack
        found = validation_bound(model, sequences, 4 * training.batch)
        if not math.isfinite(found):
            fail(place, f"the bound on validation sequences is not finite at step {step}")
            return
        one.history[-1][VALIDATION] = found
        if training.patience is not None and best_epoch(one.history) == len(one.history):
            one.best = {name: value.detach().cpu().clone() for name, value in weights.items()}
        one.stopped = has_stopped(one.history, training.patience)

    with steady_arithmetic(), _interrupts() as interrupted:
        begun = bool(states) and all(path.exists() for path in states)
        engine = Engine(
            models, sequences, seeds, trainings,
            compiling=sequences.images.is_cuda
            and not sequences.on_host
            and steps >= WORTH_COMPILING,
        )  # fmt: skip
        if begun:
            progress = restore_states(states, engine)
        before, began = progress[0].seconds, time.monotonic()
        saved = began
        step = progress[0].step
        watcher.start(step, steps)
        try:
            while step < steps and going():
                count = min(engine.stride, steps_per_epoch - step % steps_per_epoch)
                sums = engine.advance(step + 1, count, steps)
                look_for_failures()
                step += count
                if not (now := going()):
                    break
                for one in progress:
                    one.step = one.step if one.failed else step
                for place in now:
                    one = progress[place]
                    for name, value in sums[place].items():
                        one.sums[name] = one.sums.get(name, 0.0) + value
                shown = progress[now[0]]
                means = {name: total / count for name, total in sums[now[0]].items()}
                watcher.step(step, summarise(models[now[0]], means))
                if step % steps_per_epoch == 0:
                    seconds = before + time.monotonic() - began
                    for place in now:
                        one, training = progress[place], trainings[place]
                        record = epoch_record(
                            models[place], one.sums, step, steps_per_epoch,
                            kl_weight=training.kl.at(step - steps_per_epoch, steps),
                            together=len(models),
                        )  # fmt: skip
                        one.history.append({**record, "seconds": round(seconds, 3)})
                        one.sums = {}
                        if record.get(LEFT_OUT) == steps_per_epoch:
                            fail(place, f"no gradient was finite in the epoch to step {step}")
                        elif validation is not None:
                            validate(place, validation)
                    last = step == steps or not going()
                    if last or time.monotonic() - saved >= saving / SAVING:
                        save()
                    if on_epoch is not None:
                        on_epoch(progress)
                    watcher.epoch(summarise(models[now[0]], shown.history[-1]))
                if interrupted.is_set():  # also after the last step, as other models may follow
                    save()
                    raise Interrupted(f"stopped after step {step} of {steps}")
        finally:
            watcher.finish()
            engine.write_back()
    for model, one in zip(models, progress, strict=True):
        if one.best:
            model.load_state_dict(one.best)
    return progress


def epoch_record(
    model: GenerativeModel,
    sums: Mapping[str, float],
    step: int,
    steps: int,
    *,
    kl_weight: float = 1.0,
    together: int = 1,
) -> dict[str, Any]:
    """Return the record of an epoch: the means of its terms, and what is unusual about it.

    Args:
        sums: sums of the terms over the steps of the epoch, and the number of steps without update.
        step: last step of the epoch, counted from the start of training.
        steps: number of steps of an epoch.
        kl_weight: weight of the KL divergence at the first step of the epoch.
        together: number of models that are trained as one program.
    """
    means = {name: total / steps for name, total in sums.items() if name != LEFT_OUT}
    record: dict[str, Any] = {"epoch": step // steps, "step": step, **means}
    if left_out := int(sums[LEFT_OUT]):
        record[LEFT_OUT] = left_out
    if not model.is_bound:
        record["is_bound"] = False
    if kl_weight != 1:
        record[KL_WEIGHT] = kl_weight
    record["together"] = together
    if complaint := model.diagnose(means):
        record["complaint"] = complaint
    return record


@contextmanager
def _interrupts() -> Iterator[threading.Event]:
    """Return an event that Ctrl-C or termination sets, so that the current step is completed.

    A second Ctrl-C stops immediately.
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
