"""A run and its folder; ``fit`` trains a model into one, ``load`` takes a model out of one."""

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

LOOKED_AT = 16  # sequences, before training


@dataclass(frozen=True)
class Run:
    """A trained model, how its training went and, where it was asked for, its folder."""

    model: GenerativeModel
    history: list[dict[str, Any]]
    seconds: float
    device: str
    folder: RunFolder | None
    failure: str | None = None  #: why the model is no longer finite; the others went on

    def __repr__(self) -> str:
        went = self.failure or f"{counted(len(self.history), 'epoch')} in {self.seconds:.0f} s"
        where = "" if self.folder is None else f", in {self.folder.path}"
        return f"Run({type(self.model).__name__}: {went} on {self.device}{where})"

    @property
    def citations(self) -> tuple[str, ...]:
        """BibTeX entries of the model."""
        return references(self.model)

    @property
    def best_epoch(self) -> int | None:
        """After which the bound on validation sequences was highest, where there were any."""
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
    """Train ``model`` on ``sequences``: an array (sequences, time, *frame), or ``Sequences``.

    ``epochs``, ``batch`` and ``patience`` are short for those of ``training``. With ``out``, a run
    folder is written, and the same call goes on where an unfinished one there was stopped.
    ``settings`` are recorded with the run. Training is done on ``device``; the model is then back
    where it was.

    The bound on ``validation`` sequences, with the same noise every time, is recorded after every
    epoch. With ``patience``, training stops after so many epochs without a better one, and the
    model has the weights of its best epoch.
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
    """Train several models as one program; each as ``fit`` would.

    Training is done on ``device``; the models are then back where they came from. Models of one
    architecture, which may differ in topography and mu, are one stack; stacks run side by side.
    Each model has its own seed, its own ``training`` where there are several (of the same batch
    and epochs) and, with ``outs``, its own run folder. Those that were stopped go
    on, together with those that were stopped at the same step. What does not fit into memory
    together is trained one part after the other. A model that is no longer finite has a
    ``failure``, and the others go on. Each model has its own ``patience``, and its own best epoch.
    """
    for name, each in (("seeds", seeds), ("outs", outs), ("settings", settings)):
        if each is not None and len(each) != len(models):
            raise BadInput(f"there are {counted(len(models), 'model')} and {len(each)} {name}")
    if len({id(model) for model in models}) < len(models):
        raise BadInput("a model is trained once: give as many models as there are seeds")
    trainings = for_each(training, len(models))
    if validation is None and any(one.patience for one in trainings):
        raise BadInput("patience is with the bound on validation sequences: give some")
    sequences = Sequences.of(sequences)
    validation = None if validation is None else Sequences.of(validation)
    for model in models:
        check(model, sequences)
        if validation is not None:
            check(model, validation)
    for seed in seeds:
        check_seed(seed)
    where = choose_device(device)
    told = {**_identity(sequences), "device": describe_device(where)}
    if validation is not None:
        told["validation"] = _identity(validation)
    folders = [None] * len(models) if outs is None else [RunFolder(Path(out)) for out in outs]
    members = [_Member(*one) for one in zip(models, seeds, trainings, folders, strict=True)]
    for member, given in zip(members, settings or [{}] * len(members), strict=True):
        if member.folder is not None:
            member.folder.begin({**given, **told, **member.settings(where)})
    trainer = _Trainer(
        sequences.to(where), None if validation is None else validation.to(where), where,
        watcher or on_terminal("training"), say,
    )  # fmt: skip
    with ExitStack() as held:
        for member in members:
            if member.folder is not None and not member.is_finished:
                held.enter_context(member.folder.alone())
        return trainer.runs(members)


def _identity(sequences: SequenceSet) -> dict[str, Any]:
    """What is recorded of the sequences of a run."""
    return {"sequences": len(sequences), "digest": sequences.digest()}


@dataclass(frozen=True, eq=False)
class _Member:
    """A model that is trained with others, and where its run is written."""

    model: GenerativeModel
    seed: int
    training: Training
    folder: RunFolder | None

    def settings(self, device: torch.device) -> dict[str, Any]:
        """What decides the run, apart from the sequences."""
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
        """Trained to the end, or as far as numbers were finite."""
        files = (self.folder.weights, self.folder.failure) if self.folder else ()
        return any(file.exists() for file in files)

    @property
    def step(self) -> int:
        """The step that training goes on from."""
        return 0 if self.folder is None else step_of(self.folder)

    def finished(self) -> Run:
        """The run that is in the folder already, wherever it was trained."""
        assert self.folder is not None
        device = self.folder.settings()["device"]
        if self.folder.failure.exists():
            why = read_json(self.folder.failure)["failure"]
            return Run(self.model, [], 0.0, device, self.folder, why)
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
        ]  # where they are: not yet on the device
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
                raise BadInput("there is not enough memory for one model: take a smaller batch")
            for member, values in zip(part, before, strict=True):
                member.model.load_state_dict(values)
            return None
        device = describe_device(self.device)
        for member, one in zip(part, progress, strict=True):
            if member.folder is not None and not one.failed:
                write_weights(member.folder.weights, member.model)
        return [
            Run(member.model, one.history, one.seconds, device, member.folder, one.failed)
            for member, one in zip(part, progress, strict=True)
        ]


def load(run: str | Path, model: GenerativeModel | None = None) -> GenerativeModel:
    """The model of a finished run; ``model`` where its networks were your own."""
    folder = RunFolder(Path(run))
    settings = folder.settings()
    if not folder.weights.exists():
        raise BadInput(f"{run} is not finished: run the command that began it again to go on")
    if model is None:
        if settings.get("model") is None:
            raise BadInput(f"{run} has networks of your own: pass a model to load the weights into")
        model = build(settings["model"])
    read_weights(folder.weights, model)
    return model.eval()


def check(model: GenerativeModel, sequences: SequenceSet) -> None:
    """Refuse, before anything is written, sequences that the model cannot be trained on."""
    first = next(sequences.batches(LOOKED_AT))
    # they meet on the device of the training
    model.check(first.x.to(next(model.parameters()).device), first.mask)
    wanted = model.frame_shape or sequences.frame_shape
    if tuple(sequences.frame_shape) != tuple(wanted):
        raise BadInput(
            f"these are sequences of frames {tuple(sequences.frame_shape)}, and the model's are "
            f"{tuple(wanted)}: single images are sequences of one, x[:, None]"
        )
    if sequences.images.is_floating_point():
        check_values(sequences.images, model.likelihood)


def choose_device(device: str) -> torch.device:
    """``auto`` is CUDA's GPU where there is one; Apple's, ``mps``, is taken where it is named."""
    if device == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    if device == "mps" and not torch.backends.mps.is_available():
        raise BadInput("device 'mps' cannot be used here: it is the GPU of Apple's computers")
    try:
        where = torch.device(device)
        torch.zeros(1, device=where).item()
    except (RuntimeError, AssertionError, NotImplementedError) as error:
        why = str(error).splitlines()[0]
        if "device type" in why:  # PyTorch lists two dozen
            why = "devices are cpu, cuda, cuda:N, mps and auto"
        raise BadInput(f"device {device!r} cannot be used here: {why}") from None
    return where


def describe_device(where: torch.device) -> str:
    if where.type == "cuda":
        return torch.cuda.get_device_name(where)
    return f"{where.type}, {counted(torch.get_num_threads(), 'thread')}"


def described(model: GenerativeModel) -> dict[str, Any]:
    """What is known of a model with networks of your own: layers, topography, settings."""
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
    own = {"kind": type(model).__name__, "likelihood": str(model.likelihood)}
    return {**own, **settings, "layers": layers}
