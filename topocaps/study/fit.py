"""``topocaps fit``: choose a recipe for sequences of your own, train it, and write a report."""

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

FEWEST = 4  # smallest number of frames of a sequence: some are visible, others are predicted
CAPSULES = 12
CORRECTION = 64  # channels of the network that corrects the posterior of a rolling VAE
BATCH, STEPS = 16, 500  # sequences per batch, batches per epoch
SIDE = 32  # pixels: larger pictures are resized to this shorter side by default
LONGEST, CUT = 32, 24  # frames: clips longer than LONGEST are cut into windows of CUT by default
FEW = 5000  # largest number of sequences that are augmented by shifts
DIRECTIONS = (-1.0, 1.0)  # default candidate velocities, in sites per frame
TRIAL = 0.15  # epochs of the trial that chooses the motion, as a share of all epochs
START = "start"  # folder of that trial, inside the run folder
SURE = 0.95  # the motion is known if at least this share of the training sequences has it
_MANY = 64 * 64 * 3  # values of a frame above which networks are convolutional


class Kind(StrEnum):
    """The family of models that ``fit`` trains."""

    ROLLING = "rolling"  #: a `RollingVAE`, which has one code for a sequence
    TVAE = "tvae"  #: the paper's `TopographicVAE`


EPOCHS = {Kind.ROLLING: 16, Kind.TVAE: 18}


@dataclass(frozen=True)
class Choices:
    """Settings that the user chooses. ``fit_own`` chooses those that are None.

    Args:
        model: family of the model; by default that of the run folder, or else a rolling VAE.
        epochs: number of epochs.
        patience: number of epochs without a better bound on held-out sequences after which
            training stops.
        closed: whether the last frame is followed by the first.
        window: number of frames that share variances, for a TVAE.
        speeds: candidate velocities in sites per frame, for a rolling VAE.
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
            raise BadInput("window needs model=tvae: a rolling VAE has one code for all frames")
        if self.model is Kind.TVAE and self.speeds is not None:
            raise BadInput("speeds needs model=rolling: a TVAE has one velocity")
        if self.speeds is not None:
            speeds = tuple(finite_number("a velocity", speed) for speed in self.speeds)
            if not speeds:
                raise BadInput("speeds needs at least one velocity, such as (-1, 1)")
            object.__setattr__(self, "speeds", speeds)

    def in_folder(self, out: Path) -> Choices:
        """Return the choices with the family of the run in a folder, if ``model`` is None.

        So a TVAE resumes as a TVAE, although a rolling VAE is the default, and a rolling VAE of an
        earlier version resumes without a correction of its posterior.
        """
        folders = (RunFolder(out), RunFolder(out / START))
        begun = next((recipe_of(folder) for folder in folders if folder.recipe.exists()), None)
        model = self.model or (Kind.TVAE if isinstance(begun, Recipe) else Kind.ROLLING)
        changes = self.changes
        if isinstance(begun, RollingRecipe) and begun.correction is None and model is Kind.ROLLING:
            changes = ("correction=none", *changes)
        return replace(self, model=model, changes=changes)

    @property
    def training(self) -> Training:
        """Settings of the training."""
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
    """Read sequences, choose a recipe, train and evaluate the model, and write a report.

    Args:
        data: where the sequences are, and how they are read.
        out: run folder.
        choices: settings that the user chooses.
        say: called with every line of progress.
    """
    choices = choices.in_folder(out)
    data = replace(data, closed=choices.closed and choices.model is Kind.ROLLING)
    data = data if data.size is not None else replace(data, at_most=SIDE)
    imported = data.read(say)
    if imported.summary.get("shrunk"):
        say(f"pictures are resized to a shorter side of {SIDE} pixels: --size changes this")
    if data.frames is None and (frames := imported.sequences.frames) > LONGEST:
        say(f"clips are cut into windows of {CUT} frames: --frames {frames} keeps them whole")
        data = replace(data, frames=CUT, stride=CUT // 2)
        imported = imported.cut(CUT, CUT // 2)
        say(str(imported))
    recipe: BaseRecipe = recipe_for(imported, data, choices).change(choices.changes)
    say(explain(recipe))
    splits = None
    if isinstance(recipe.data, OwnSequences) and replace(recipe.data, shift=data.shift) == data:
        splits = recipe.data.splits(imported)  # ``changes`` do not require other frames
    if isinstance(recipe, RollingRecipe) and isinstance(recipe.motion, Unknown):
        recipe = with_motion(recipe, out, seed, device, say, splits or recipe.data.load())
    return run_job(Job(recipe, out, seed, evaluate_start=False), device, say, splits)


def recipe_for(imported: Imported, data: OwnSequences, choices: Choices) -> Recipe | RollingRecipe:
    """Return a recipe for sequences that were read, or raise `BadInput` if they are too short.

    Small sets of pictures are augmented by shifts. Large frames get convolutional networks.
    """
    frames, shape = imported.sequences.frames, imported.sequences.frame_shape
    if frames < FEWEST:
        advice_for_pictures = (
            ". Put the pictures of a sequence into one subfolder, or cut the pictures of a folder "
            "into sequences with --frames N; tc.data.from_images makes sequences of single pictures"
        )
        raise BadInput(
            f"sequences of {counted(frames, 'frame')} are too short to learn motion from: "
            f"{FEWEST} or more are needed{advice_for_pictures * (frames == 1)}"
        )
    are_large_pictures = len(shape) == 3 and min(shape[1:]) >= 28
    convolutional = are_large_pictures and math.prod(shape) > _MANY
    train = split(imported)[0]
    if isinstance(train, Sequences) and len(train) <= FEW and len(shape) == 3 and not data.shift:
        data = replace(data, shift=room_to_shift(train))
    settings: dict[str, Any] = {
        "name": Path(data.path).resolve().stem or "own",
        "about": f"sequences of {frames} frames from {data.path}",
        "data": data,
        "likelihood": Likelihood.of(imported.likelihood),
        "training": choices.training,
    }
    if choices.model is Kind.TVAE:
        return _tvae(frames, convolutional, choices, settings)
    return _rolling(frames, convolutional, choices, settings)


def _rolling(
    frames: int, convolutional: bool, choices: Choices, settings: dict[str, Any]
) -> RollingRecipe:
    """Return a recipe of a rolling VAE, whose motion is unknown.

    For ``closed`` sequences a capsule has as many sites as a sequence has frames. Otherwise it has
    more than twice as many sites as a code can roll, so that no two rolls, forwards or backwards,
    coincide. The number is odd, since rolls by fractions of a site need an odd number.
    """
    speeds = DIRECTIONS if choices.speeds is None else choices.speeds
    fastest = max(1.0, *map(abs, speeds))
    sites = frames if choices.closed else 2 * math.ceil(fastest * frames) + 1
    return RollingRecipe(
        topography=Topography(capsules=CAPSULES, shape=(sites,)),
        motion=Unknown(speeds) if len(speeds) > 1 else Known(speeds[0]),
        hidden=(256,) if convolutional else (400,),
        channels=(32, 64, 128) if convolutional else None,
        correction=CORRECTION,
        **settings,
    )


def _tvae(frames: int, convolutional: bool, choices: Choices, settings: dict[str, Any]) -> Recipe:
    """Return a recipe of a TVAE.

    The default window leaves out a tenth of the frames at each end, which are then predicted. For
    ``closed`` sequences a capsule has as many sites as a sequence has frames. Otherwise time and
    capsules have open ends. A value that rolls beyond an end is lost, so there are twice as many
    sites.
    """
    outside = 2 * max(1, frames // 10)
    window = frames - outside if choices.window is None else whole_number("window", choices.window)
    if window > frames:
        raise BadInput(
            f"a window of {window} frames is longer than sequences of {frames}: choose a window of "
            f"at most {frames}"
        )
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
    """Return the recipe with a known motion if a short trial finds one for nearly all sequences.

    The trial infers the motion of each training sequence from the candidates. Its run is in the
    folder ``start`` of the run, and the returned recipe starts from its weights.
    """
    epochs = max(1, round(TRIAL * recipe.training.epochs))
    trial = replace(
        recipe,
        name=f"{recipe.name}, choice of motion",
        training=replace(recipe.training, epochs=epochs, patience=None),
    )
    job = Job(trial, out / START, seed)
    train_jobs([job], None, device, say, splits=splits)
    model = load(job.out)
    assert isinstance(model, RollingVAE)
    share = motion_share(model, splits.train)
    names = motion_names(model)
    best = int(share.argmax())
    order = [int(n) for n in share.argsort(descending=True) if share[n] > 0]
    shares = ", ".join(f"{names[n]} sites per frame in {share[n]:.0%}" for n in order)
    decision = "inferred for each of them" if share[best] < SURE else "taken as known"
    sentence = f"motion in a trial: {shares} of the training sequences, so it is {decision}"
    say(sentence)
    recipe = replace(recipe, about=f"{recipe.about}; {sentence}", start=trial)
    if share[best] < SURE:
        return recipe
    velocity = model.motions.velocities[best, 0]  # of a capsule, along each axis
    axis = int(velocity.abs().argmax())
    return replace(recipe, motion=Known(float(velocity[axis]), axis))


def explain(recipe: BaseRecipe) -> str:
    """Return a sentence that states the chosen settings of a recipe."""
    assert isinstance(recipe, Recipe | RollingRecipe)
    topography, training = recipe.topography, recipe.training
    epochs = counted(training.epochs, "epoch")
    if training.patience is not None:
        epochs = f"up to {epochs} (training stops after {training.patience} without a better bound)"
    shift = getattr(recipe.data, "shift", 0)
    shifted = f", shifted by up to {counted(shift, 'pixel')}" if shift else ""
    if isinstance(recipe, RollingRecipe):
        closed = isinstance(recipe.data, OwnSequences) and recipe.data.closed
        convolutional, ends = recipe.channels is not None, "closed time" if closed else "open time"
        coherence = f"a motion of {_velocity(recipe.motion)} sites per frame"
    else:
        convolutional, ends = recipe.convolutional, "closed time" if recipe.closed else "open ends"
        coherence = f"a window of {topography.window} frames"
    networks = "convolutional networks" if convolutional else "multilayer perceptrons"
    return (
        f"chosen: {topography.capsules} capsules of {topography.shape[0]} sites, {coherence}, "
        f"{ends}, {networks}, a {recipe.likelihood.value} decoder, "
        f"{epochs} of {training.epoch_size or 0:,} sequences{shifted}"
    )


def _velocity(motion: Motion) -> str:
    if isinstance(motion, Known):
        return f"{motion.velocity:g}"
    assert isinstance(motion, Unknown)
    *first, last = (f"{velocity:+g}".replace("-", "−") for velocity in motion.velocities)
    return f"{', '.join(first)} or {last}" if first else last
