"""The training loop. It records epochs, saves states, and resumes from them exactly."""

from __future__ import annotations

import math
import signal
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import chain
from typing import Any

from topocaps.data.sequences import SequenceSet
from topocaps.device import steady_arithmetic
from topocaps.errors import Interrupted
from topocaps.io import write_json
from topocaps.models.base import GenerativeModel
from topocaps.training.engine import LEFT_OUT, WORTH_COMPILING, Engine
from topocaps.training.settings import Training, for_each
from topocaps.training.store import Progress, RunFolder, restore_states, save_states
from topocaps.training.validation import VALIDATION, best_epoch, has_stopped, validation_bound
from topocaps.training.watching import KL_WEIGHT, Silent, Watcher, loggers, numbers, summarise

SAVING = 0.03  # largest share of the time for saving states


def train(
    models: Sequence[GenerativeModel],
    sequences: SequenceSet,
    training: Training | Sequence[Training],
    *,
    seeds: Sequence[int] = (0,),
    folders: Sequence[RunFolder] = (),
    validation: SequenceSet | None = None,
    watcher: Watcher | None = None,
) -> list[Progress]:
    """Train models as one program, on the device where they are, and return their progress.

    The sequences and noise of a model depend on its seed alone, so it trains the same with any
    other models. A model that is not finite is marked as ``failed`` in its progress and is not
    saved again; the others continue.

    Args:
        folders: run folder of each model. Records of the epochs are written to the folder and to
            its loggers, and the failure of a model to its folder. States are saved after the first
            and the last epoch, after other epochs as long as saving takes little of the time, and
            after the current step when the user interrupts. A run resumes from its state bit for
            bit.
        validation: sequences whose bound is recorded after every epoch. A model with ``patience``
            ends with the weights of its best epoch, and records nothing after it has ``stopped``.
            Training ends when all models have stopped.
    """
    trainings = for_each(training, len(models))
    with steady_arithmetic(), _interrupts() as interrupted:
        session = _Session(
            models, sequences, trainings, seeds, folders, validation, watcher or Silent()
        )
        session.run(interrupted)
    for model, progress in zip(models, session.progress, strict=True):
        if progress.best:
            model.load_state_dict(progress.best)
    return session.progress


@dataclass(eq=False)
class _Session:
    """Models that train as one program, with their engine, their progress and their folders."""

    models: Sequence[GenerativeModel]
    sequences: SequenceSet
    trainings: Sequence[Training]
    seeds: Sequence[int]
    folders: Sequence[RunFolder]
    validation: SequenceSet | None
    watcher: Watcher

    def __post_init__(self) -> None:
        training, sequences = self.trainings[0], self.sequences
        self.steps_per_epoch = training.steps_per_epoch(sequences)
        self.steps = training.epochs * self.steps_per_epoch
        on_gpu = sequences.images.is_cuda and not sequences.on_host
        compiling = on_gpu and self.steps >= WORTH_COMPILING
        self.engine = Engine(
            self.models, sequences, self.seeds, self.trainings, compiling=compiling
        )
        self.progress = [Progress() for _ in self.models]
        if self.folders and all(folder.state.exists() for folder in self.folders):
            self.progress = restore_states(self.folders, self.engine)
        self.step = self.progress[0].step
        self.seconds_before, self.began = self.progress[0].seconds, time.monotonic()
        self.saved, self.saving = self.began, 0.0  # time of the last save, and its duration
        self.loggers = [loggers(folder) for folder in self.folders] or [[] for _ in self.models]
        for folder in self.folders:
            folder.state.parent.mkdir(parents=True, exist_ok=True)

    @property
    def seconds(self) -> float:
        """Seconds of training so far."""
        return self.seconds_before + time.monotonic() - self.began

    @property
    def active(self) -> list[int]:
        """Indices of the models that have neither failed nor stopped."""
        return [
            place
            for place, progress in enumerate(self.progress)
            if not (progress.failed or progress.stopped)
        ]

    def run(self, interrupted: threading.Event) -> None:
        """Train until the last step, until no model is active, or until the user interrupts."""
        self.watcher.start(self.step, self.steps)
        try:
            while self.step < self.steps and self.active:
                self._advance()
                if not (active := self.active):
                    break
                if self.step % self.steps_per_epoch == 0:
                    self._end_epoch(active)
                if interrupted.is_set():  # also after the last step, as other models may follow
                    self._save()
                    raise Interrupted(f"stopped after step {self.step} of {self.steps}")
            self._write_histories()
        finally:
            for logger in chain.from_iterable(self.loggers):
                logger.finish()
            self.watcher.finish()
            self.engine.write_back()

    def _advance(self) -> None:
        """Run some steps of an epoch, and add up the terms of the active models."""
        left = self.steps_per_epoch - self.step % self.steps_per_epoch
        count = min(self.engine.stride, left)
        sums = self.engine.advance(self.step + 1, count, self.steps)
        self._note_failures()
        self.step += count
        if not (active := self.active):
            return
        for progress in self.progress:
            if not progress.failed:
                progress.step = self.step
        for place in active:
            total = self.progress[place].sums
            for name, value in sums[place].items():
                total[name] = total.get(name, 0.0) + value
        first = active[0]
        means = {name: total / count for name, total in sums[first].items()}
        self.watcher.step(self.step, summarise(self.models[first], means))

    def _end_epoch(self, active: Sequence[int]) -> None:
        """Record the epoch of the active models; save if the time of saving permits it."""
        seconds = round(self.seconds, 3)
        for place in active:
            progress = self.progress[place]
            record = epoch_record(
                self.models[place], progress.sums, self.step, self.steps_per_epoch,
                kl_weight=self.trainings[place].kl.at(self.step - self.steps_per_epoch, self.steps),
                together=len(self.models),
            )  # fmt: skip
            progress.history.append({**record, "seconds": seconds})
            progress.sums = {}
            if record.get(LEFT_OUT) == self.steps_per_epoch:
                self._fail(place, f"no gradient was finite in the epoch to step {self.step}")
            elif self.validation is not None:
                self._validate(place, self.validation)
        last = self.step == self.steps or not self.active
        if last or time.monotonic() - self.saved >= self.saving / SAVING:
            self._save()
        self._write_histories()
        for place in active:
            for logger in self.loggers[place]:
                logger.log(self.step, numbers(self.progress[place].history[-1]))
        first = active[0]
        self.watcher.epoch(summarise(self.models[first], self.progress[first].history[-1]))

    def _validate(self, place: int, sequences: SequenceSet) -> None:
        """Record the validation bound, and keep the weights if it is the best so far."""
        model, progress, training = self.models[place], self.progress[place], self.trainings[place]
        weights = self.engine.weights(place)
        model.load_state_dict(weights)  # a stack trains its own copy of the weights
        bound = validation_bound(model, sequences, 4 * training.batch)
        if not math.isfinite(bound):
            reason = f"the bound on validation sequences is not finite at step {self.step}"
            self._fail(place, reason)
            return
        history = progress.history
        history[-1][VALIDATION] = bound
        if training.patience is not None and best_epoch(history) == len(history):
            progress.best = {name: value.detach().cpu().clone() for name, value in weights.items()}
        progress.stopped = has_stopped(history, training.patience)

    def _save(self) -> None:
        start, seconds = time.monotonic(), self.seconds
        self.engine.flag_nonfinite_weights()
        self._note_failures()
        for progress in self.progress:
            progress.seconds = seconds
        save_states(self.folders, self.progress, self.engine)
        self.saved = time.monotonic()
        self.saving = self.saved - start

    def _write_histories(self) -> None:
        for folder, progress in zip(self.folders, self.progress, strict=False):
            folder.write_records(progress.history)

    def _note_failures(self) -> None:
        for place, reason in self.engine.failures().items():
            self._fail(place, reason)

    def _fail(self, place: int, reason: str) -> None:
        """Mark an active model as failed, and write the reason to its folder."""
        progress = self.progress[place]
        if not (progress.failed or progress.stopped):
            progress.failed = reason
            if self.folders:
                failure = {"failure": reason, "epochs": len(progress.history)}
                write_json(self.folders[place].failure, failure)


def epoch_record(
    model: GenerativeModel,
    sums: Mapping[str, float],
    step: int,
    steps: int,
    *,
    kl_weight: float = 1.0,
    together: int = 1,
) -> dict[str, Any]:
    """Return the record of an epoch: the means of its terms, and anything unusual.

    Unusual are steps whose gradient was not finite, a value that is no bound, a KL weight other
    than 1, and a diagnosis of the model.

    Args:
        sums: sums of the terms over the steps of the epoch, and the number of ``left_out`` steps.
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
    if diagnosis := model.diagnose(means):
        record["complaint"] = diagnosis
    return record


@contextmanager
def _interrupts() -> Iterator[threading.Event]:
    """Yield an event that Ctrl-C or termination sets, so that the current step is completed.

    A second Ctrl-C stops immediately.
    """
    event = threading.Event()
    if threading.current_thread() is not threading.main_thread():
        yield event
        return
    previous = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}

    def restore() -> None:
        for number, handler in previous.items():
            signal.signal(number, handler)

    def interrupt(number: int, frame: object) -> None:
        event.set()
        restore()

    for number in previous:
        signal.signal(number, interrupt)
    try:
        yield event
    finally:
        restore()
