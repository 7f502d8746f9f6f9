"""Training that others can follow: every epoch's numbers to TensorBoard, W&B or trackio.

A run with a folder writes TensorBoard's files there by itself, where that is installed; what is
here is for runs without one, and for the others.

::

    fit(model, sequences, watcher=track(on_terminal("training"), TensorBoard("runs/mine")))
"""

from __future__ import annotations

import importlib
import importlib.util
import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from topocaps.errors import BadInput

if TYPE_CHECKING:
    from topocaps.training.watching import Watcher


class Tracker(Protocol):
    """Where numbers go: told the settings first, then numbers by step."""

    def start(self, settings: Mapping[str, Any]) -> None: ...
    def log(self, step: int, numbers: Mapping[str, float]) -> None: ...
    def finish(self) -> None: ...


class TensorBoard:
    """Event files in a folder, for ``tensorboard --logdir``."""

    def __init__(self, folder: str | Path = "runs") -> None:
        self._folder = folder
        self._tensorboard = _package("torch.utils.tensorboard", "tensorboard", "")

    def start(self, settings: Mapping[str, Any]) -> None:
        self._writer = self._tensorboard.SummaryWriter(str(self._folder))
        if settings:
            told = json.dumps(settings, indent=2, default=str)
            self._writer.add_text("settings", f"```json\n{told}\n```")

    def log(self, step: int, numbers: Mapping[str, float]) -> None:
        for name, value in numbers.items():
            self._writer.add_scalar(name, value, step)
        self._writer.flush()

    def finish(self) -> None:
        self._writer.close()


class Service:
    """W&B or trackio, whose functions are the same: ``options`` are those of their ``init``."""

    def __init__(self, package: str, project: str, **options: Any) -> None:
        self._service = _package(package, package, f" {package}")
        self._options = {"project": project, **options}

    def start(self, settings: Mapping[str, Any]) -> None:
        self._service.init(config=dict(settings), **self._options)

    def log(self, step: int, numbers: Mapping[str, float]) -> None:
        self._service.log(dict(numbers), step=step)

    def finish(self) -> None:
        self._service.finish()


def wandb(project: str, **options: Any) -> Service:
    """Weights & Biases."""
    return Service("wandb", project, **options)


def trackio(project: str, **options: Any) -> Service:
    """trackio, which keeps its numbers on this machine unless told otherwise."""
    return Service("trackio", project, **options)


class Tracked:
    """A watcher that is told everything, and a tracker that is told the numbers of epochs."""

    def __init__(self, watcher: Watcher, tracker: Tracker, settings: Mapping[str, Any]) -> None:
        self._watcher, self._tracker, self._settings = watcher, tracker, settings

    def start(self, step: int, steps: int) -> None:
        self._tracker.start(self._settings)
        self._watcher.start(step, steps)

    def step(self, step: int, terms: dict[str, float]) -> None:
        self._watcher.step(step, terms)

    def epoch(self, record: dict[str, Any]) -> None:
        self._watcher.epoch(record)
        self._tracker.log(record["step"], numbers(record))

    def finish(self) -> None:
        try:
            self._watcher.finish()
        finally:
            self._tracker.finish()


def track(
    watcher: Watcher, tracker: Tracker | None = None, settings: Mapping[str, Any] | None = None
) -> Watcher:
    """``watcher``, and a ``tracker`` beside it: TensorBoard unless given.

    ``settings`` are what the tracker shows of the run. Of models that are trained together, a
    watcher is told of the first that goes on.
    """
    return Tracked(watcher, tracker or TensorBoard(), settings or {})


def events_in(folder: Path) -> TensorBoard | None:
    """Files for TensorBoard in a run's folder, where it is installed."""
    if importlib.util.find_spec("tensorboard") is None:
        return None
    tracker = TensorBoard(folder)
    tracker.start({})
    return tracker


def numbers(record: Mapping[str, Any]) -> dict[str, float]:
    """What can be drawn of a record: its numbers, but for the step they are drawn over."""
    return {
        name: value
        for name, value in record.items()
        if isinstance(value, int | float) and not isinstance(value, bool) and name != "step"
    }


def _package(module: str, package: str, beside: str) -> Any:
    """A module when it is needed; of services, the extra installs none."""
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise BadInput(
            f"tracking needs the package {package}: pip install 'topocaps[track]'{beside}"
        ) from error
