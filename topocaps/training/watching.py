"""Watchers, which show the progress of a training run, and loggers, which write into its folder."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Mapping
from typing import Any, Protocol

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

from topocaps.models.base import GenerativeModel
from topocaps.training.store import RunFolder
from topocaps.training.validation import VALIDATION

SUMMARY = "summary"
KL_WEIGHT = "kl_weight"  # at the first step of an epoch, if it was not 1


class Watcher(Protocol):
    """An object that training calls at its start, after every step and epoch, and at its end.

    ``terms`` and ``record`` map names to numbers. Their key ``summary`` holds the line to print.
    """

    def start(self, step: int, steps: int) -> None: ...
    def step(self, step: int, terms: dict[str, Any]) -> None: ...
    def epoch(self, record: dict[str, Any]) -> None: ...
    def finish(self) -> None: ...


class Logger(Protocol):
    """An object that writes the numbers of one run after every epoch."""

    def log(self, step: int, numbers: Mapping[str, float]) -> None: ...
    def finish(self) -> None: ...


#: Functions that return a logger, or ``None``, for the folder of a run. ``import topocaps`` adds
#: that of TensorBoard.
LOGGERS: list[Callable[[RunFolder], Logger | None]] = []


def loggers(folder: RunFolder) -> list[Logger]:
    """Return the loggers of a run."""
    candidates = [make(folder) for make in LOGGERS]
    return [logger for logger in candidates if logger is not None]


def numbers(record: Mapping[str, Any]) -> dict[str, float]:
    """Return the numbers in the record of an epoch, except the step."""
    return {
        name: value
        for name, value in record.items()
        if isinstance(value, int | float) and not isinstance(value, bool) and name != "step"
    }


class Silent:
    """A watcher that prints nothing."""

    def start(self, step: int, steps: int) -> None: ...
    def step(self, step: int, terms: dict[str, Any]) -> None: ...
    def epoch(self, record: dict[str, Any]) -> None: ...
    def finish(self) -> None: ...


class Bar:
    """A progress bar with the summary and the remaining time."""

    def __init__(self, label: str, console: Console) -> None:
        self._bar = Progress(
            TextColumn("{task.description}"),
            BarColumn(bar_width=12),
            TextColumn("{task.percentage:>3.0f}%"),
            TimeRemainingColumn(),
            TextColumn("{task.fields[terms]}"),
            console=console,
        )
        self._label = label

    def start(self, step: int, steps: int) -> None:
        self._task = self._bar.add_task(self._label, completed=step, total=steps, terms="")
        self._bar.start()

    def step(self, step: int, terms: dict[str, Any]) -> None:
        if step % 10 == 0:
            self._bar.update(self._task, completed=step, terms=terms[SUMMARY])

    def epoch(self, record: dict[str, Any]) -> None:
        self._bar.update(self._task, completed=record["step"], terms=record[SUMMARY])

    def finish(self) -> None:
        self._bar.stop()


class Lines:
    """A watcher that prints lines after epochs, and always after the last.

    Args:
        seconds: shortest time between two lines.
        patience: seconds without a line after which a line is printed within an epoch.
    """

    def __init__(
        self, label: str, console: Console, seconds: float = 10.0, patience: float = 60.0
    ) -> None:
        self._label, self._console = label, console
        self._seconds, self._patience = seconds, patience

    def start(self, step: int, steps: int) -> None:
        self._first, self._steps, self._began = step, steps, time.monotonic()
        self._last = self._began - self._seconds

    def step(self, step: int, terms: dict[str, Any]) -> None:
        if time.monotonic() - max(self._last, self._began) >= self._patience:
            self._print(f"step {step} of {self._steps}", step, terms)

    def epoch(self, record: dict[str, Any]) -> None:
        step = record["step"]
        if step == self._steps or time.monotonic() - self._last >= self._seconds:
            self._print(f"epoch {record['epoch']}", step, record)

    def _print(self, position: str, step: int, terms: dict[str, Any]) -> None:
        self._last = time.monotonic()
        left = (self._last - self._began) / (step - self._first) * (self._steps - step)
        self._console.print(
            f"{self._label}  {position}  {terms[SUMMARY]}  {left:.0f} s left",
            highlight=False,
            soft_wrap=True,
        )

    def finish(self) -> None: ...


def summarise(model: GenerativeModel, record: Mapping[str, Any]) -> dict[str, Any]:
    """Return the record with a ``summary``: that of the model, and what training adds to it."""
    validation = f", validation elbo {record[VALIDATION]:.2f}" if VALIDATION in record else ""
    if KL_WEIGHT in record:
        validation += f" (the objective has KL weight {record[KL_WEIGHT]:.2f}: no bound)"
    diagnosis = f"; {record['complaint']}" if "complaint" in record else ""
    return {**record, SUMMARY: f"{model.summary(record)}{validation}{diagnosis}"}


def on_terminal(label: str) -> Watcher:
    """Return a progress bar if standard error is a terminal, else a watcher that prints lines."""
    console = Console(file=sys.stderr, markup=False)
    return Bar(label, console) if console.is_terminal else Lines(label, console)
