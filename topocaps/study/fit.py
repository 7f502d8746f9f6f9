"""A model for sequences of your own: its recipe is chosen from their shape, and reported."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from enum import StrEnum
from pathlib import Path
from typing import Any

from topocaps.data.importing.split import Imported, split
from topocaps.data.sequences import Sequences
from topocaps.data.shifted import room_to_shift
from topocaps.errors import BadInput, counted, finite_number, one_of, whole_number
from topocaps.latents.motion import Known, Motion, Unknown
from topocaps.latents.topography import Topography
from topocaps.models.likelihoods import Likelihood
from topocaps.models.rolling import RollingVAE
from topocaps.study.data import OwnSequences, Splits
from topocaps.study.evaluation.rolling import motion_names, motion_share
from topocaps.study.finished import Finished, recipe_of
from topocaps.study.recipe import BaseRecipe, Recipe
from topocaps.study.rolling_recipe import RollingRecipe
from topocaps.study.runs import Job, Say, run_job, train_jobs
from topocaps.training import Adam, Precision, RunFolder, Training, load

FEWEST = 4  # frames of a sequence: some to see, and some others to predict
CAPSULES = 12
BATCH, STEPS = 16, 500  # sequences of a batch, batches of an epoch
SIDE = 32  # pixels: larger pictures are resized to this shorter side by default
LONGEST, CUT = 32, 24  # frames: longer clips are cut into windows of 24 by default
FEW = 5000  # sequences of pictures: so many or fewer are augmented by shifts
DIRECTIONS = (-1.0, 1.0)  # sites a frame: the motions that are tried by default
TRIAL = 0.15  # share of the epochs in which the motion is chosen
SURE = 0.95  # share of the training sequences above which all are said to move alike
_MANY = 64 * 64 * 3  # values of a frame above which networks are convolutional


class Kind(StrEnum):
    """The family of models that ``fit`` trains."""

    ROLLING = "rolling"  #: a `RollingVAE`, one code for a sequence
    TVAE = "tvae"  #: the paper's `TopographicVAE`


EPOCHS = {Kind.ROLLING: 16, Kind.TVAE: 18}


@dataclass(frozen=True)
class Choices:
    """What the user chooses of a model; what is None is chosen from the data.

    Args:
        model: family of the model; by default that of the run folder, or a rolling VAE.
        epochs: number of epochs.
        patience: epochs to go on without a better bound on held-out sequences.
        closed: whether the last frame is followed by the first.
        window: frames that share variances; of a TVAE alone.
        speeds: candidate velocities, in sites a frame; of a rolling VAE alone.
        changes: ``key=value`` settings of the recipe.
    """

    model: Kind | None = None
    epochs: int | None = None
    patience: int | None = None
    closed: bool = False
    window: int | None = None
    speeds: tuple[float, ...] | None = None
    changes: tuple[str, ...] = field(default=())

    def __post_init__(self) -> None:
        if self.model is None:
            return
        object.__setattr__(self, "model", one_of(Kind, "model", self.model))
        if self.model is Kind.ROLLING and self.window is not None:
            raise BadInput("window is a choice of model=tvae: a rolling VAE has one code for all")
        if self.model is Kind.TVAE and self.speeds is not None:
            raise BadInput("speeds is a choice of model=rolling: a TVAE has one velocity")
        if self.speeds is not None:
            speeds = tuple(finite_number("a velocity", speed) for speed in self.speeds)
            if not speeds:
                raise BadInput("speeds needs at least one velocity, such as (-1, 1)")
            object.__setattr__(self, "speeds", speeds)

    def in_folder(self, out: Path) -> Choices:
        """Return the choices with a family of models: that of the run in a folder, if it has one.

        So a run of an earlier version resumes as what it is.
        """
        if self.model is not None:
            return self
        folder = RunFolder(out)
        begun = folder.recipe.exists() and isinstance(recipe_of(folder), Recipe)
        return replace(self, model=Kind.TVAE if begun else Kind.ROLLING)

    @property
    def training(self) -> Training:
        """The training of a perceptron of the size that ``fit`` chooses."""
        model = self.model or Kind.ROLLING
        rolling = model is Kind.ROLLING
        return Training(
            optimiser=Adam(lr=3e-3, betas=(0.9, 0.99 if rolling else 0.95), warmup=100),
            batch=BATCH,
            epochs=EPOCHS[model] if self.epochs is None else self.epochs,
            epoch_size=BATCH * STEPS,
            clip=100.0 if rolling else None,
            precision=Precision.BF16 if rolling else Precision.FP32,
            patience=self.patience,
        )


def fit_own(
    data: OwnSequences,
    out: Path,
    choices: Choices = Choices(),  # noqa: B008 (frozen)
    *,
    seed: int = 0,
    device: str = "auto",
    say: Say = lambda line: None,
) -> Finished[Any]:
    """Read sequences, choose a recipe, train, evaluate without factors, and write a report."""
    choices = choices.in_folder(out)
    data = replace(data, closed=choices.closed and choices.model is Kind.ROLLING)
    data = data if data.size is not None else replace(data, at_most=SIDE)
    own = data.read(say)
    if own.summary.get("shrunk"):
        say(f"pictures are resized to a shorter side of {SIDE} pixels: --size changes this")
    if data.frames is None and (long := own.sequences.frames) > LONGEST:
        say(f"clips are cut into windows of {CUT} frames: --frames {long} keeps them whole")
        data = replace(data, frames=CUT, stride=CUT // 2)
        own = own.cut(CUT, CUT // 2)
        say(str(own))
    recipe: BaseRecipe = recipe_for(own, data, choices).change(choices.changes)
    say(explain(recipe))
    splits = None
    if isinstance(recipe.data, OwnSequences) and replace(recipe.data, shift=data.shift) == data:
        splits = recipe.data.splits(own)  # not if ``changes`` ask for other frames
    if isinstance(recipe, RollingRecipe) and isinstance(recipe.motion, Unknown):
        recipe = with_motion(recipe, out, seed, device, say, splits or recipe.data.load())
    return run_job(Job(recipe, out, seed, evaluate_start=False), device, say, splits)


def recipe_for(own: Imported, data: OwnSequences, choices: Choices) -> Recipe | RollingRecipe:
    """Return a recipe for sequences that were read.

    Small sets of pictures are augmented by shifts. Large frames get convolutional networks.
    """
    frames, shape = own.sequences.frames, own.sequences.frame_shape
    if frames < FEWEST:
        alone = (
            ". Put the pictures of a sequence into one subfolder, or cut those of a folder into "
            "sequences with --frames N; tc.data.from_images makes sequences of single pictures"
        )
        raise BadInput(
            f"sequences of {counted(frames, 'frame')} are too short to learn motion from: "
            f"{FEWEST} or more are needed{alone * (frames == 1)}"
        )
    pictures = len(shape) == 3 and min(shape[1:]) >= 28
    convolutional = pictures and math.prod(shape) > _MANY
    few = split(own)[0]
    if isinstance(few, Sequences) and len(few) <= FEW and len(shape) == 3 and not data.shift:
        data = replace(data, shift=room_to_shift(few))
    settings: dict[str, Any] = {
        "name": Path(data.path).resolve().stem or "own",
        "about": f"sequences of {frames} frames from {data.path}",
        "data": data,
        "likelihood": Likelihood.of(own.likelihood),
        "training": choices.training,
    }
    if choices.model is Kind.TVAE:
        return _tvae(frames, convolutional, choices, settings)
    return _rolling(frames, convolutional, choices, settings)


def _rolling(
    frames: int, convolutional: bool, choices: Choices, settings: dict[str, Any]
) -> RollingRecipe:
    """Return a recipe of a rolling VAE, whose motion is unknown.

    The rings of ``closed`` sequences have as many sites as frames. Otherwise they have more than
    twice as many sites as a code moves, so that no frame comes round. The number is odd, as rolls
    by fractions need.
    """
    speeds = DIRECTIONS if choices.speeds is None else choices.speeds
    fastest = max(1.0, *map(abs, speeds))
    sites = frames if choices.closed else 2 * math.ceil(fastest * frames) + 1
    return RollingRecipe(
        topography=Topography(capsules=CAPSULES, shape=(sites,)),
        motion=Unknown(speeds) if len(speeds) > 1 else Known(speeds[0]),
        hidden=(256,) if convolutional else (400,),
        channels=(32, 64, 128) if convolutional else None,
        **settings,
    )


def _tvae(frames: int, convolutional: bool, choices: Choices, settings: dict[str, Any]) -> Recipe:
    """Return a recipe of a TVAE.

    The default window leaves out a tenth of the frames at either end, which remain to be predicted.
    In ``closed`` sequences capsules have as many sites as frames. Otherwise time and capsules have
    open ends. A value that rolls out over an end is lost, so there are twice as many sites.
    """
    left = 2 * max(1, frames // 10)
    window = frames - left if choices.window is None else whole_number("window", choices.window)
    if window > frames:
        raise BadInput(f"a window of {window} frames is longer than sequences of {frames}")
    sites = frames if choices.closed else max(frames, min(2 * frames, 2 * LONGEST))
    return Recipe(
        topography=Topography(
            capsules=CAPSULES, shape=(sites,), window=window, cyclic=choices.closed
        ),
        hidden=None if convolutional else (300, 200),
        convolutional=convolutional,
        centred=True,
        closed=choices.closed,
        **settings,
    )


def with_motion(
    recipe: RollingRecipe, out: Path, seed: int, device: str, say: Say, splits: Splits
) -> RollingRecipe:
    """Train a short trial with every candidate motion, and keep those that sequences have.

    If nearly all training sequences move by one candidate, it is taken as known. The model starts
    from the weights of the trial, which is in the folder ``start`` of the run.
    """
    epochs = max(1, round(TRIAL * recipe.training.epochs))
    trial = replace(
        recipe,
        name=f"{recipe.name}, choice of motion",
        training=replace(recipe.training, epochs=epochs, patience=None),
    )
    job = Job(trial, out / "start", seed)
    train_jobs([job], None, device, say, splits=splits)
    model = load(job.out)
    assert isinstance(model, RollingVAE)
    share = motion_share(model, splits.train)
    names = motion_names(model)
    best = int(share.argmax())
    order = [int(n) for n in share.argsort(descending=True) if share[n] > 0]
    found = ", ".join(f"{names[n]} sites a frame in {share[n]:.0%}" for n in order)
    found = f"motion in a trial: {found} of the training sequences, so it is "
    found += "inferred for each of them" if share[best] < SURE else "taken as known"
    say(found)
    recipe = replace(recipe, about=f"{recipe.about}; {found}", start=trial)
    if share[best] < SURE:
        return recipe
    velocity = model.motions.velocities[best, 0]  # of a capsule, along each axis
    axis = int(velocity.abs().argmax())
    return replace(recipe, motion=Known(float(velocity[axis]), axis))


def explain(recipe: BaseRecipe) -> str:
    """Return a sentence that states the choices of a recipe."""
    assert isinstance(recipe, Recipe | RollingRecipe)
    topography, training = recipe.topography, recipe.training
    epochs = counted(training.epochs, "epoch")
    if training.patience is not None:
        epochs = f"up to {epochs} (stops after {training.patience} without a better bound)"
    shift = getattr(recipe.data, "shift", 0)
    shown = f", shifted by up to {counted(shift, 'pixel')}" if shift else ""
    if isinstance(recipe, RollingRecipe):
        closed = isinstance(recipe.data, OwnSequences) and recipe.data.closed
        convolutional, ends = recipe.channels is not None, "closed time" if closed else "open time"
        moves = f"a motion of {_velocity(recipe.motion)} sites a frame"
    else:
        convolutional, ends = recipe.convolutional, "closed time" if recipe.closed else "open ends"
        moves = f"a window of {topography.window} frames"
    networks = "convolutional networks" if convolutional else "multilayer perceptrons"
    return (
        f"chosen: {topography.capsules} capsules of {topography.shape[0]} sites, {moves}, "
        f"{ends}, {networks}, a {recipe.likelihood.value} decoder, "
        f"{epochs} of {training.epoch_size or 0:,} sequences{shown}"
    )


def _velocity(motion: Motion) -> str:
    if isinstance(motion, Known):
        return f"{motion.velocity:g}"
    assert isinstance(motion, Unknown)
    *first, last = (f"{velocity:+g}".replace("-", "−") for velocity in motion.velocities)
    return f"{', '.join(first)} or {last}" if first else last
