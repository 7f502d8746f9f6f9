"""A model for sequences of your own: its recipe is chosen from their shape, and reported."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

from topocaps.data.importing.split import Imported, split
from topocaps.data.sequences import Sequences
from topocaps.data.shifted import room_to_shift
from topocaps.errors import BadInput, counted, whole_number
from topocaps.latents.topography import Topography
from topocaps.study.data import OwnSequences
from topocaps.study.finished import Finished
from topocaps.study.recipe import Recipe
from topocaps.study.runs import Job, Say, run_job
from topocaps.training import Adam, Training

FEWEST = 4  # frames of a sequence: a window, and some frames outside it to predict
CAPSULES = 12
BATCH, STEPS = 16, 500  # sequences of a batch, batches of an epoch
EPOCHS = 18
SIDE = 32  # pixels: larger pictures are resized to this shorter side by default
LONGEST, CUT = 32, 24  # frames: longer clips are cut into windows of 24 by default
FEW = 5000  # sequences of pictures: so many or fewer are augmented by shifts
_MANY = 64 * 64 * 3  # values of a frame above which convolutional networks are smaller


def fit_own(
    data: OwnSequences,
    out: Path,
    *,
    epochs: int = EPOCHS,
    patience: int | None = None,
    window: int | None = None,
    closed: bool = False,
    seed: int = 0,
    device: str = "auto",
    changes: tuple[str, ...] = (),
    say: Say = lambda line: None,
) -> Finished[Any]:
    """Read sequences, choose a recipe, train, evaluate without factors, and write a report."""
    data = data if data.size is not None else replace(data, at_most=SIDE)
    own = data.read(say)
    if own.summary.get("shrunk"):
        say(f"pictures are resized to a shorter side of {SIDE} pixels: --size changes this")
    if data.frames is None and (long := own.sequences.frames) > LONGEST:
        say(f"clips are cut into windows of {CUT} frames: --frames {long} keeps them whole")
        data = replace(data, frames=CUT, stride=CUT // 2)
        own = own.cut(CUT, CUT // 2)
        say(str(own))
    recipe = recipe_for(
        own, data, epochs=epochs, patience=patience, window=window, closed=closed
    ).change(changes)
    say(explain(recipe))
    splits = None
    if isinstance(recipe.data, OwnSequences) and replace(recipe.data, shift=data.shift) == data:
        splits = recipe.data.splits(own)  # not if ``changes`` ask for other frames
    return run_job(Job(recipe, out, seed), device, say, splits)


_ALONE = (
    ". Put the pictures of a sequence into one subfolder, or cut those of a folder into sequences "
    "with --frames N; tc.data.from_images makes sequences of single pictures"
)


def recipe_for(
    own: Imported,
    data: OwnSequences,
    *,
    epochs: int = EPOCHS,
    patience: int | None = None,
    window: int | None = None,
    closed: bool = False,
) -> Recipe:
    """Return a recipe for sequences that were read.

    The default window leaves out a tenth of the frames at either end, which remain to be predicted.
    In ``closed`` sequences the first frame follows the last, and capsules have as many sites as
    frames. Otherwise time and capsules have open ends. A value that rolls out over an end is lost,
    so there are twice as many sites as frames. Small sets of pictures are augmented by shifts.
    """
    frames, shape = own.sequences.frames, own.sequences.frame_shape
    if frames < FEWEST:
        raise BadInput(
            f"sequences of {counted(frames, 'frame')} are too short to learn motion from: "
            f"{FEWEST} or more are needed{_ALONE * (frames == 1)}"
        )
    left = 2 * max(1, frames // 10)
    window = frames - left if window is None else whole_number("window", window)
    if window > frames:
        raise BadInput(f"a window of {window} frames is longer than sequences of {frames}")
    sites = frames if closed else max(frames, min(2 * frames, 2 * LONGEST))
    pictures = len(shape) == 3 and min(shape[1:]) >= 28
    convolutional = pictures and math.prod(shape) > _MANY
    few = split(own)[0]
    if isinstance(few, Sequences) and len(few) <= FEW and len(shape) == 3 and not data.shift:
        data = replace(data, shift=room_to_shift(few))
    return Recipe(
        name=Path(data.path).resolve().stem or "own",
        about=f"sequences of {frames} frames from {data.path}",
        data=data,
        topography=Topography(capsules=CAPSULES, shape=(sites,), window=window, cyclic=closed),
        hidden=None if convolutional else (300, 200),
        convolutional=convolutional,
        likelihood=own.likelihood,  # type: ignore[arg-type]
        centred=True,
        closed=closed,
        training=Training(
            optimiser=Adam(lr=3e-3, betas=(0.9, 0.95), warmup=100),
            batch=BATCH,
            epochs=epochs,
            epoch_size=BATCH * STEPS,
            patience=patience,
        ),
    )


def explain(recipe: Recipe) -> str:
    """Return a sentence that states the choices of a recipe."""
    topography = recipe.topography
    networks = "convolutional networks" if recipe.convolutional else "multilayer perceptrons"
    epochs = counted(recipe.training.epochs, "epoch")
    if recipe.training.patience is not None:
        epochs = f"up to {epochs} (stops after {recipe.training.patience} without a better bound)"
    ends = "closed time" if recipe.closed else "open ends"
    shift = getattr(recipe.data, "shift", 0)
    pixels = counted(shift, "pixel")
    shown = f", shifted by up to {pixels}" if shift else ""
    return (
        f"chosen: {topography.capsules} capsules of {topography.shape[0]} sites, a window of "
        f"{topography.window} frames, {ends}, {networks}, a {recipe.likelihood.value} decoder, "
        f"{epochs} of {recipe.training.epoch_size:,} sequences{shown}"
    )
