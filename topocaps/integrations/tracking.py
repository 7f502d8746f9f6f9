"""Send the numbers of every epoch to TensorBoard, W&B or trackio.

::

    fit(model, sequences, watcher=track(on_terminal("training"), TensorBoard("runs/mine")))

A run with a folder needs no tracker for TensorBoard. If TensorBoard is installed, ``fit`` writes
event files into the folder.
"""

from __future__ import annotations

import importlib.util
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from topocaps.errors import optional
from topocaps.training.store import RunFolder
from topocaps.training.watching import Logger, Watcher, numbers


class Tracker(Logger, Protocol):
    """A logger that also records the settings of the run, before its first epoch."""

    def start(self, settings: Mapping[str, Any]) -> None: ...


class TensorBoard:
    """A tracker that writes event files into a folder, for ``tensorboard --logdir``."""

    def __init__(self, folder: str | Path = "runs") -> None:
        self._folder = folder
        self._tensorboard = optional(
            "torch.utils.tensorboard", "tracking needs the package tensorboard", "'topocaps[track]'"
        )

    def start(self, settings: Mapping[str, Any]) -> None:
        self._writer = self._tensorboard.SummaryWriter(str(self._folder))
        if settings:
            text = json.dumps(settings, indent=2, default=str)
            self._writer.add_text("settings", f"```json\n{text}\n```")

    def log(self, step: int, numbers: Mapping[str, float]) -> None:
        for name, value in numbers.items():
            self._writer.add_scalar(name, value, step)
        self._writer.flush()

    def finish(self) -> None:
        self._writer.close()


class Service:
    """A tracker that uses W&B or trackio, which have the same functions.

    Args:
        package: ``wandb`` or ``trackio``.
        options: arguments of its ``init``.
    """

    def __init__(self, package: str, project: str, **options: Any) -> None:
        needs = f"tracking needs the package {package}"
        # the extra installs neither of the two packages
        self._service = optional(package, needs, f"'topocaps[track]' {package}")
        self._options = {"project": project, **options}

    def start(self, settings: Mapping[str, Any]) -> None:
        self._service.init(config=dict(settings), **self._options)

    def log(self, step: int, numbers: Mapping[str, float]) -> None:
        self._service.log(dict(numbers), step=step)

    def finish(self) -> None:
        self._service.finish()


def wandb(project: str, **options: Any) -> Service:
    """Return a tracker for Weights & Biases; ``options`` are those of ``wandb.init``."""
    return Service("wandb", project, **options)


def trackio(project: str, **options: Any) -> Service:
    """Return a tracker for trackio, which by default stores its numbers on this machine.

    ``options`` are those of ``trackio.init``.
    """
    return Service("trackio", project, **options)


@dataclass
class Tracked:
    """A watcher that also passes the numbers of every epoch to a tracker."""

    watcher: Watcher
    tracker: Tracker
    settings: Mapping[str, Any]

    def start(self, step: int, steps: int) -> None:
        self.tracker.start(self.settings)
        self.watcher.start(step, steps)

    def step(self, step: int, terms: dict[str, Any]) -> None:
        self.watcher.step(step, terms)

    def epoch(self, record: dict[str, Any]) -> None:
        self.watcher.epoch(record)
        self.tracker.log(record["step"], numbers(record))

    def finish(self) -> None:
        try:
            self.watcher.finish()
        finally:
            self.tracker.finish()


def track(
    watcher: Watcher, tracker: Tracker | None = None, settings: Mapping[str, Any] | None = None
) -> Watcher:
    """Return a watcher that calls ``watcher`` and passes the numbers of epochs to ``tracker``.

    If several models are trained together, both follow the first one that has not ended.

    Args:
        tracker: by default `TensorBoard`.
        settings: recorded by the tracker.
    """
    return Tracked(watcher, tracker or TensorBoard(), settings or {})


def events_in(folder: RunFolder) -> TensorBoard | None:
    """Return a logger that writes TensorBoard's event files into the folder of a run.

    Return ``None`` if TensorBoard is not installed.
    """
    if importlib.util.find_spec("tensorboard") is None:
        return None
    tracker = TensorBoard(folder.events)
    tracker.start({})
    return tracker
