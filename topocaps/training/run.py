"""Train models with ``fit`` or ``fit_together``, and load trained models with ``load``."""

from __future__ import annotations

import gc
from collections.abc import Callable, Sequence
from contextlib import ExitStack, nullcontext
from dataclasses import dataclass, is_dataclass, replace
from pathlib import Path
from typing import Any

import torch

from topocaps.data.sequences import Sequences, SequenceSet
from topocaps.device import free_memory
from topocaps.errors import BadInput, NonFinite, check_seed, counted
from topocaps.io import read_json, read_weights, write_weights
from topocaps.models.base import GenerativeModel, build, check_values
from topocaps.references import references
from topocaps.training.loop import train
from topocaps.training.memory import plan, split
from topocaps.training.settings import Training, for_each
from topocaps.training.store import RunFolder, step_of
from topocaps.training.validation import best_epoch
from topocaps.training.watching import Watcher, on_terminal

CHECKED = 16  # number of sequences that a model is checked with before training


@dataclass(frozen=True)
class Run:
    """A trained model, the history of its training and, if it has one, its folder."""

    model: GenerativeModel
    history: list[dict[str, Any]]  #: a record of every epoch
    seconds: float  #: of training
    device: str
    folder: RunFolder | None
    failure: str | None = None  #: the value that was not finite, and the step

    def __repr__(self) -> str:
        outcome = self.failure or f"{counted(len(self.history), 'epoch')} in {self.seconds:.0f} s"
        folder = "" if self.folder is None else f", in {self.folder.path}"
        return f"Run({type(self.model).__name__}: {outcome} on {self.device}{folder})"

    @property
    def citations(self) -> tuple[str, ...]:
        """BibTeX entries of the model."""
        return references(self.model)

    @property
    def best_epoch(self) -> int | None:
        """Epoch with the highest bound on validation sequences, or None if there were none."""
        return best_epoch(self.history) or None


def fit(
    model: GenerativeModel,
    sequences: Any,
    *,
    training: Training = Training(),  # noqa: B008 (frozen)
    epochs: int | None = None,
    batch: int | None = None,
    validation: Any = None,
    patience: int | None = None,
    out: str | Path | None = None,
    seed: int = 0,
    device: str = "auto",
    watcher: Watcher | None = None,
    settings: dict[str, Any] | None = None,
) -> Run:
    """Train ``model`` on ``sequences`` and return the run.

    If a value is not finite, training stops and `NonFinite` is raised.

    Args:
        sequences: an array (sequences, time, *frame), or ``Sequences``.
        epochs, batch, patience: replace those of ``training``.
        validation: sequences whose bound is recorded after every epoch, always with the same noise.
            With ``patience``, training stops after that many epochs without a better bound, and the
            model gets the weights of its best epoch.
        out: run folder. The same call resumes an unfinished run in it, and does not repeat a
            finished one.
        seed: seed of sequences and noise, but not of the initial weights of ``model``.
        device: where to train. Afterwards the model is moved back to its own device.
        watcher: shows the progress; by default on the terminal.
        settings: recorded in the run folder.
    """
    training = replace(
        training,
        epochs=training.epochs if epochs is None else epochs,
        batch=training.batch if batch is None else batch,
        patience=training.patience if patience is None else patience,
    )
    outs = None if out is None else [out]
    (run,) = fit_together(
        [model], sequences, training=training, validation=validation, outs=outs, seeds=[seed],
        device=device, watcher=watcher, settings=[settings or {}],
    )  # fmt: skip
    if run.failure is not None:
        raise NonFinite(run.failure)
    return run


def fit_together(
    models: Sequence[GenerativeModel],
    sequences: Any,
    *,
    seeds: Sequence[int],
    training: Training | Sequence[Training] = Training(),  # noqa: B008 (frozen)
    validation: Any = None,
    outs: Sequence[str | Path] | None = None,
    device: str = "auto",
    watcher: Watcher | None = None,
    settings: Sequence[dict[str, Any]] | None = None,
    say: Callable[[str], None] = lambda line: None,
) -> list[Run]:
    """Train several models as one program, each as ``fit`` would, and return their runs.

    Models of one architecture, which may differ in topography and mu, are one stack. Stacks run
    side by side. Models that do not fit into memory together are trained one part after the other.
    Interrupted models resume together with those that were stopped at the same step.

    If a value of a model is not finite, its run has a ``failure``, and the others continue.

    Args:
        sequences: an array (sequences, time, *frame), or ``Sequences``, for all models.
        seeds: seed of each model's sequences and noise.
        training: settings of all models, or of each. Batch, epochs and epoch size must agree;
            patience may differ, and each model has its own best epoch.
        validation: sequences whose bound is recorded after every epoch.
        outs: run folder of each model.
        device: where to train. Afterwards each model is moved back to its own device.
        watcher: shows the progress of the first model that has not ended; by default on the
            terminal.
        settings: recorded in each run folder.
        say: called with a line about the memory of each part.
    """
    for name, values in (("seeds", seeds), ("outs", outs), ("settings", settings)):
        if values is not None and len(values) != len(models):
            raise BadInput(
                f"there are {counted(len(models), 'model')} and {len(values)} {name}: pass as many "
                f"{name} as models"
            )
    if len({id(model) for model in models}) < len(models):
        raise BadInput("one model is in the list twice: build a model for each seed")
    trainings = for_each(training, len(models))
    if validation is None and any(setting.patience for setting in trainings):
        raise BadInput("patience needs validation sequences: pass validation=…")
    sequences = Sequences.of(sequences)
    validation = None if validation is None else Sequences.of(validation)
    for model in models:
        check(model, sequences)
        if validation is not None:
            check(model, validation)
    for seed in seeds:
        check_seed(seed)
    place = choose_device(device)
    common = {**_identity(sequences), "device": describe_device(place)}
    if validation is not None:
        common["validation"] = _identity(validation)
    folders = [None] * len(models) if outs is None else [RunFolder(Path(out)) for out in outs]
    members = [
        _Member(model, seed, training, folder)
        for model, seed, training, folder in zip(models, seeds, trainings, folders, strict=True)
    ]
    for member, extra in zip(members, settings or [{}] * len(members), strict=True):
        if member.folder is not None:
            member.folder.begin({**extra, **common, **member.settings(place)})
    trainer = _Trainer(
        sequences.to(place), None if validation is None else validation.to(place), place,
        watcher or on_terminal("training"), say,
    )  # fmt: skip
    with ExitStack() as locks:
        for member in members:
            if member.folder is not None and not member.is_finished:
                locks.enter_context(member.folder.alone())
        return trainer.runs(members)


def _identity(sequences: SequenceSet) -> dict[str, Any]:
    """Return the number and the digest of sequences, by which a run folder knows them."""
    return {"sequences": len(sequences), "digest": sequences.digest()}


@dataclass(frozen=True, eq=False)
class _Member:
    """A model that is trained with others: its seed, its settings and its run folder."""

    model: GenerativeModel
    seed: int
    training: Training
    folder: RunFolder | None

    def settings(self, device: torch.device) -> dict[str, Any]:
        """Return the settings that decide the run, except for the sequences."""
        config = self.model.config
        return {
            "model": config,
            **({} if config else {"networks": described(self.model)}),
            "seed": self.seed,
            "training": self.training.to_json(),
            "products": self.training.precision.on(device).value,
        }

    @property
    def is_finished(self) -> bool:
        """Whether the folder holds the final weights, or a failure."""
        files = (self.folder.weights, self.folder.failure) if self.folder else ()
        return any(file.exists() for file in files)

    @property
    def step(self) -> int:
        """The step from which training resumes."""
        return 0 if self.folder is None else step_of(self.folder)

    def finished(self) -> Run:
        """Return the finished run of the folder, which any machine may have trained."""
        assert self.folder is not None
        device = self.folder.settings()["device"]
        if self.folder.failure.exists():
            failure = read_json(self.folder.failure)["failure"]
            return Run(self.model, [], 0.0, device, self.folder, failure)
        load(self.folder.path, self.model)
        history = self.folder.records()
        return Run(self.model, history, history[-1]["seconds"], device, self.folder)


@dataclass(frozen=True)
class _Trainer:
    """Trains members on a device, in parts that fit into its memory."""

    sequences: SequenceSet
    validation: SequenceSet | None
    device: torch.device
    watcher: Watcher
    say: Callable[[str], None]

    def runs(self, members: Sequence[_Member]) -> list[Run]:
        """Train the unfinished members, and return all runs.

        Members at the same step are trained together. If memory runs out although a part was
        estimated to fit, its halves go on from their last states.
        """
        runs = {id(member): member.finished() for member in members if member.is_finished}
        groups: dict[int, list[_Member]] = {}
        for member in members:
            if id(member) not in runs:
                groups.setdefault(member.step, []).append(member)
        for group in groups.values():
            trainings = [member.training for member in group]
            needs = plan([member.model for member in group], self.sequences, trainings)
            for places in split(needs, free_memory(self.device), trainings[0].batch):
                part, free = [group[n] for n in places], free_memory(self.device)
                need = sum((needs[n] for n in places[1:]), needs[places[0]])
                count = counted(len(part), "model")
                self.say(f"{count} as one program: {need} of {free / 2**30:.0f} GB free")
                trained = self._train(part)
                gc.collect()  # frees the engine, which is in reference cycles
                if trained is None:
                    half = -(-len(part) // 2)
                    trained = self.runs(part[:half]) + self.runs(part[half:])
                runs |= {id(member): run for member, run in zip(part, trained, strict=True)}
        return [runs[id(member)] for member in members]

    def _train(self, part: Sequence[_Member]) -> list[Run] | None:
        """Train members as one program; restore them and return None if memory runs out."""
        homes = [next(member.model.parameters()).device for member in part]
        before = [
            {name: value.detach().clone() for name, value in member.model.state_dict().items()}
            for member in part
        ]  # on the models' own devices, to save the memory of the training device
        folders = [member.folder for member in part if member.folder is not None]
        on_gpu = self.device.type == "cuda"
        try:
            with torch.cuda.device(self.device) if on_gpu else nullcontext():
                progress = train(
                    [member.model.to(self.device) for member in part],
                    self.sequences,
                    [member.training for member in part],
                    seeds=[member.seed for member in part],
                    folders=folders,
                    validation=self.validation,
                    watcher=self.watcher,
                )
        except torch.OutOfMemoryError:
            progress = None
        finally:
            for member, home in zip(part, homes, strict=True):
                member.model.to(home)
        if progress is None:
            if len(part) == 1:
                raise BadInput("there is not enough memory for one model: use a smaller batch")
            for member, values in zip(part, before, strict=True):
                member.model.load_state_dict(values)
            return None
        device = describe_device(self.device)
        runs = []
        for member, done in zip(part, progress, strict=True):
            if member.folder is not None and not done.failed:
                write_weights(member.folder.weights, member.model)
            runs.append(
                Run(member.model, done.history, done.seconds, device, member.folder, done.failed)
            )
        return runs


def load(run: str | Path, model: GenerativeModel | None = None) -> GenerativeModel:
    """Load the model of a finished run.

    Args:
        run: the run folder.
        model: model to load the weights into. It is needed for networks of your own, which a run
            folder cannot rebuild.
    """
    folder = RunFolder(Path(run))
    settings = folder.settings()
    if not folder.weights.exists():
        raise BadInput(f"{run} is not finished: repeat the command that began it, to resume it")
    if model is None:
        if settings.get("model") is None:
            raise BadInput(f"{run} has networks of your own: pass a model to load the weights into")
        model = build(settings["model"])
    read_weights(folder.weights, model)
    return model.eval()


def check(model: GenerativeModel, sequences: SequenceSet) -> None:
    """Raise `BadInput` if the model cannot be trained on these sequences."""
    first = next(sequences.batches(CHECKED))
    # frames and model are compared on one device, as both will be moved to that of the training
    model.check(first.x.to(next(model.parameters()).device), first.mask)
    wanted = model.frame_shape or sequences.frame_shape
    if tuple(sequences.frame_shape) != tuple(wanted):
        raise BadInput(
            f"frames have the shape {tuple(sequences.frame_shape)}, and the model takes "
            f"{tuple(wanted)}: single images are sequences of one, x[:, None]"
        )
    if sequences.images.is_floating_point():
        check_values(sequences.images, model.likelihood)


def choose_device(device: str) -> torch.device:
    """Return the device of this name, or raise `BadInput` if it cannot be used.

    ``auto`` is CUDA's GPU if there is one, else the CPU. It never chooses Apple's GPU, ``mps``.
    """
    if device == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    if device == "mps" and not torch.backends.mps.is_available():
        raise BadInput("device 'mps' cannot be used here: it is the GPU of Apple's computers")
    try:
        usable = torch.device(device)
        torch.zeros(1, device=usable).item()
    except (RuntimeError, AssertionError, NotImplementedError) as error:
        reason = str(error).splitlines()[0]
        if "device type" in reason:  # the message of PyTorch lists two dozen
            reason = "devices are cpu, cuda, cuda:N, mps and auto"
        raise BadInput(f"device {device!r} cannot be used here: {reason}") from None
    return usable


def describe_device(device: torch.device) -> str:
    """Return the name of a GPU, or the type of another device and its number of threads."""
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    return f"{device.type}, {counted(torch.get_num_threads(), 'thread')}"


def described(model: GenerativeModel) -> dict[str, Any]:
    """Return the layers, the topography and the settings of a model without ``config``.

    A run folder records them to recognise networks of your own, which it cannot rebuild.
    """
    settings = {
        name: repr(value)
        for name, value in vars(model).items()
        if (isinstance(value, str | int | float | bool) or is_dataclass(value)) and name[0] != "_"
    }
    layers = {
        name: repr(module)
        for name, module in model.named_modules()
        if name and not any(True for _ in module.children())
    }
    family = {"kind": type(model).__name__, "likelihood": str(model.likelihood)}
    return {**family, **settings, "layers": layers}
