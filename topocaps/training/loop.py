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

SAVING = 0.03  # largest share of the time that saving states takes


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
    """Train models as one program, on the device where they are.

    The sequences and noise of a model depend on its seed alone, so it trains the same with any
    other models.

    With ``folders`` (one for each model), states are saved after the first and the last epoch,
    after other epochs as long as saving takes little of the time, and after the current step when
    the user interrupts. A run resumes from its state bit for bit. The records of the epochs are
    written to the folder and to its loggers, and the failure of a model to its folder.

    After every epoch the bound on ``validation`` sequences is recorded. A model with ``patience``
    ends with the weights of its best epoch, and records nothing after it has ``stopped``. Training
    ends when all models have stopped.

    A model that is not finite is marked as ``failed`` in its progress and is not saved again; the
    others continue.
    """
    trainings = for_each(training, len(models))
    with steady_arithmetic(), _interrupts() as interrupted:
        session = _Session(
            models, sequences, trainings, seeds, folders, validation, watcher or Silent()
        )
        session.run(interrupted)
    for model, one in zip(models, session.progress, strict=True):
        if one.best:
            model.load_state_dict(one.best)
    return session.progress


@dataclass(eq=False)
class _Session:
    """Models that train as one program: their engine, their progress, and when they are saved."""

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
        self.before, self.began = self.progress[0].seconds, time.monotonic()
        self.saved, self.saving = self.began, 0.0  # time of the last save, and its duration
        self.loggers = [loggers(folder) for folder in self.folders] or [[] for _ in self.models]
        for folder in self.folders:
            folder.state.parent.mkdir(parents=True, exist_ok=True)

    @property
    def seconds(self) -> float:
        """Seconds of training so far."""
        return self.before + time.monotonic() - self.began

    @property
    def going(self) -> list[int]:
        """Places of the models that have neither failed nor stopped."""
        return [n for n, one in enumerate(self.progress) if not (one.failed or one.stopped)]

    def run(self, interrupted: threading.Event) -> None:
        """Train until the last step, until no model goes on, or until the user interrupts."""
        self.watcher.start(self.step, self.steps)
        try:
            while self.step < self.steps and self.going:
                self._advance()
                if not (going := self.going):
                    break
                if self.step % self.steps_per_epoch == 0:
                    self._end_epoch(going)
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
        """Run some steps of an epoch, and add up the terms of the models that go on."""
        left = self.steps_per_epoch - self.step % self.steps_per_epoch
        count = min(self.engine.stride, left)
        sums = self.engine.advance(self.step + 1, count, self.steps)
        self._look_for_failures()
        self.step += count
        if not (going := self.going):
            return
        for one in self.progress:
            one.step = one.step if one.failed else self.step
        for place in going:
            total = self.progress[place].sums
            for name, value in sums[place].items():
                total[name] = total.get(name, 0.0) + value
        means = {name: total / count for name, total in sums[going[0]].items()}
        self.watcher.step(self.step, summarise(self.models[going[0]], means))

    def _end_epoch(self, going: Sequence[int]) -> None:
        """Record the epoch of the models that went on until its end; save if it is time to."""
        seconds = round(self.seconds, 3)
        for place in going:
            one = self.progress[place]
            record = epoch_record(
                self.models[place], one.sums, self.step, self.steps_per_epoch,
                kl_weight=self.trainings[place].kl.at(self.step - self.steps_per_epoch, self.steps),
                together=len(self.models),
            )  # fmt: skip
            one.history.append({**record, "seconds": seconds})
            one.sums = {}
            if record.get(LEFT_OUT) == self.steps_per_epoch:
                self._fail(place, f"no gradient was finite in the epoch to step {self.step}")
            elif self.validation is not None:
                self._validate(place, self.validation)
        last = self.step == self.steps or not self.going
        if last or time.monotonic() - self.saved >= self.saving / SAVING:
            self._save()
        self._write_histories()
        for place in going:
            for logger in self.loggers[place]:
                logger.log(self.step, numbers(self.progress[place].history[-1]))
        first = going[0]
        self.watcher.epoch(summarise(self.models[first], self.progress[first].history[-1]))

    def _validate(self, place: int, sequences: SequenceSet) -> None:
        """Record the validation bound, and keep the weights if it is the best so far."""
        model, one, training = self.models[place], self.progress[place], self.trainings[place]
        weights = self.engine.weights(place)
        model.load_state_dict(weights)  # the weights of its stack
        found = validation_bound(model, sequences, 4 * training.batch)
        if not math.isfinite(found):
            why = f"the bound on validation sequences is not finite at step {self.step}"
            self._fail(place, why)
            return
        one.history[-1][VALIDATION] = found
        if training.patience is not None and best_epoch(one.history) == len(one.history):
            one.best = {name: value.detach().cpu().clone() for name, value in weights.items()}
        one.stopped = has_stopped(one.history, training.patience)

    def _save(self) -> None:
        start, seconds = time.monotonic(), self.seconds
        self.engine.flag_nonfinite_weights()
        self._look_for_failures()
        for one in self.progress:
            one.seconds = seconds
        save_states(self.folders, self.progress, self.engine)
        self.saved = time.monotonic()
        self.saving = self.saved - start

    def _write_histories(self) -> None:
        for folder, one in zip(self.folders, self.progress, strict=False):
            folder.write_records(one.history)

    def _look_for_failures(self) -> None:
        for place, why in self.engine.failures().items():
            self._fail(place, why)

    def _fail(self, place: int, why: str) -> None:
        one = self.progress[place]
        if not (one.failed or one.stopped):
            one.failed = why
            if self.folders:
                failure = {"failure": why, "epochs": len(one.history)}
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
    previous = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}

    def restore() -> None:
        for number, handler in previous.items():
            signal.signal(number, handler)

    def ask(number: int, frame: object) -> None:
        event.set()
        restore()

    for number in previous:
        signal.signal(number, ask)
    try:
        yield event
    finally:
        restore()
