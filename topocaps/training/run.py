"""A run and its folder; ``fit`` trains a model into one, ``load`` takes a model out of one."""

from __future__ import annotations

import gc
import json
from collections.abc import Callable, Sequence
from contextlib import ExitStack, nullcontext
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch

from topocaps.data.sequences import Sequences, SequenceSet
from topocaps.errors import BadInput, NonFinite, check_seed
from topocaps.files import read_json, read_weights, write_atomically, write_json, write_weights
from topocaps.latents.topography import Topography
from topocaps.machine import free_memory
from topocaps.models.base import GenerativeModel, build, check_values
from topocaps.references import references
from topocaps.training.checkpoint import Progress, step_of
from topocaps.training.folder import RunFolder
from topocaps.training.loop import train
from topocaps.training.memory import plan, split
from topocaps.training.settings import Training, for_each
from topocaps.training.validation import best_epoch
from topocaps.training.watching import EpochLog, Watcher, on_terminal
from topocaps.wording import counted

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
    sequences = Sequences.of(sequences)
    validation = None if validation is None else Sequences.of(validation)
    for name, each in (("seeds", seeds), ("outs", outs), ("settings", settings)):
        if each is not None and len(each) != len(models):
            raise BadInput(f"there are {counted(len(models), 'model')} and {len(each)} {name}")
    if len({id(model) for model in models}) < len(models):
        raise BadInput("a model is trained once: give as many models as there are seeds")
    trainings = for_each(training, len(models))
    if validation is None and any(one.patience for one in trainings):
        raise BadInput("patience is with the bound on validation sequences: give some")
    for model in models:
        check(model, sequences)
        if validation is not None:
            check(model, validation)
    for seed in seeds:
        check_seed(seed)
    where = choose_device(device)
    told: dict[str, Any] = {
        "sequences": len(sequences),
        "digest": sequences.digest(),
        "device": describe_device(where),
    }
    if validation is not None:
        told["validation"] = {"sequences": len(validation), "digest": validation.digest()}
    members = [
        _Member(model, seed, trainings[n], None if outs is None else RunFolder(Path(outs[n])))
        for n, (model, seed) in enumerate(zip(models, seeds, strict=True))
    ]
    for n, member in enumerate(members):
        if member.folder is not None:
            config = member.model.config
            own = {
                "model": config,
                **({} if config else {"networks": described(member.model)}),
                "seed": member.seed,
                "training": describe_training(member.training),
                "products": member.training.precision.on(where).value,
            }
            member.folder.begin({**(settings[n] if settings else {}), **told, **own})
    sequences = sequences.to(where)
    validation = None if validation is None else validation.to(where)
    watcher = watcher or on_terminal("training")
    runs = {id(m): m.finished() for m in members if m.is_finished}
    left = [m for m in members if id(m) not in runs]
    with ExitStack() as held:
        for member in left:
            if member.folder is not None:
                held.enter_context(member.folder.alone())
        for group in _by_step(left).values():
            gc.collect()  # engines of the past
            free = free_memory(where)
            models = [member.model for member in group]
            for places in split(models, sequences, [m.training for m in group], free):
                part = [group[n] for n in places]
                needs = plan([m.model for m in part], sequences, [m.training for m in part])
                count = counted(len(part), "model")
                say(f"{count} as one program: {needs} of {free / 2**30:.0f} GB free")
                trained = _train_group(part, sequences, validation, where, watcher)
                for member, run in zip(part, trained, strict=True):
                    runs[id(member)] = run
    return [runs[id(member)] for member in members]


@dataclass(frozen=True, eq=False)
class _Member:
    model: GenerativeModel
    seed: int
    training: Training
    folder: RunFolder | None

    @property
    def is_finished(self) -> bool:
        """Trained to the end, or as far as numbers were finite."""
        files = (self.folder.weights, self.folder.failure) if self.folder else ()
        return any(file.exists() for file in files)

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

    def write_history(self, progress: Progress) -> None:
        if self.folder is not None:
            lines = "".join(json.dumps(record) + "\n" for record in progress.history)
            write_atomically(self.folder.history, lines)


def _by_step(members: Sequence[_Member]) -> dict[int, list[_Member]]:
    """Members that can be trained together: those that stand at the same step."""
    groups: dict[int, list[_Member]] = {}
    for member in members:
        step = 0 if member.folder is None else step_of(member.folder.state)
        groups.setdefault(step, []).append(member)
    return groups


def _train_group(
    group: Sequence[_Member],
    sequences: SequenceSet,
    validation: SequenceSet | None,
    where: torch.device,
    watcher: Watcher,
) -> list[Run]:
    def on_epoch(progress: list[Progress]) -> None:
        for member, one, log in zip(group, progress, logs, strict=True):
            member.write_history(one)
            if one.history and one.history[-1]["step"] == one.step:
                log.write(one.history[-1])

    def on_failure(place: int, one: Progress) -> None:
        folder = group[place].folder
        if folder is not None:
            write_json(folder.failure, {"failure": one.failed, "epochs": len(one.history)})

    logs = [EpochLog(member.folder) for member in group]
    homes = [next(member.model.parameters()).device for member in group]
    before = [
        {name: value.detach().clone() for name, value in member.model.state_dict().items()}
        for member in group
    ]  # where they are: not yet on the device
    progress: list[Progress] | None = None
    gc.collect()  # what an earlier part held
    with torch.cuda.device(where) if where.type == "cuda" else nullcontext():
        if where.type == "cuda":
            torch.cuda.empty_cache()
        try:
            progress = train(
                [member.model.to(where) for member in group],
                sequences,
                [member.training for member in group],
                seeds=[member.seed for member in group],
                states=[member.folder.state for member in group if member.folder is not None],
                validation=validation,
                watcher=watcher,
                on_epoch=on_epoch,
                on_failure=on_failure,
            )
        except torch.OutOfMemoryError:
            if len(group) == 1:
                raise BadInput(
                    "there is not enough memory for one model: take a smaller batch"
                ) from None
        finally:
            for member, home, log in zip(group, homes, logs, strict=True):
                member.model.to(home)
                log.finish()
    if progress is None:
        # another program has taken what was free: go on in halves, from the last states
        for member, values in zip(group, before, strict=True):
            member.model.load_state_dict(values)
        found = {id(m): m.finished() for m in group if m.is_finished}  # some may have failed
        for some in _by_step([m for m in group if id(m) not in found]).values():
            middle = -(-len(some) // 2) if len(some) == len(group) else len(some)
            for half in filter(None, (some[:middle], some[middle:])):
                trained = _train_group(half, sequences, validation, where, watcher)
                found |= {id(m): run for m, run in zip(half, trained, strict=True)}
        return [found[id(member)] for member in group]
    runs = []
    for member, one in zip(group, progress, strict=True):
        if member.folder is not None and one.failed:
            member.write_history(one)
        elif member.folder is not None:
            member.write_history(one)
            write_weights(member.folder.weights, member.model)
        device = describe_device(where)
        runs.append(Run(member.model, one.history, one.seconds, device, member.folder, one.failed))
    return runs


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
    images = sequences.images
    first = next(sequences.batches(LOOKED_AT))
    x, mask = first.x, first.mask
    for parameter in model.parameters():
        x = x.to(parameter.device)  # they meet on the device of the training
        break
    model.check(x, mask)
    wanted = model.frame_shape or sequences.frame_shape
    if tuple(sequences.frame_shape) != tuple(wanted):
        raise BadInput(
            f"these are sequences of frames {tuple(sequences.frame_shape)}, and the model's are "
            f"{tuple(wanted)}: single images are sequences of one, x[:, None]"
        )
    if images.is_floating_point():
        check_values(images, model.likelihood)


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
    told = {
        name: repr(value)
        for name, value in vars(model).items()
        if isinstance(value, str | int | float | bool | Topography) and name[0] != "_"
    }
    layers = {
        name: repr(module)
        for name, module in model.named_modules()
        if name and not any(True for _ in module.children())
    }
    own = {"kind": type(model).__name__, "likelihood": str(model.likelihood)}
    return {**own, **told, "layers": layers}


def describe_training(training: Training) -> dict[str, Any]:
    """Settings as plain data, the optimiser with its name."""
    optimiser = {"kind": type(training.optimiser).__name__, **asdict(training.optimiser)}
    return {**asdict(training), "optimiser": optimiser}
