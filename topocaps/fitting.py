"""Sequences of your own: what model suits them, chosen from their shape alone, and said."""

from __future__ import annotations

import math
from pathlib import Path

from topocaps.data.own import Own
from topocaps.errors import BadInput, whole_number
from topocaps.recipes.data import OwnSequences
from topocaps.recipes.recipe import Recipe
from topocaps.study import Finished, Job, Say, run_jobs
from topocaps.topography import Topography
from topocaps.training import Adam, Training

FEWEST = 4  # frames: a window, and some outside it to predict
CAPSULES = 12
BATCH, STEPS = 16, 500  # of an epoch
EPOCHS = 8
_MANY = 64 * 64 * 3  # numbers of a frame beyond which convolutions are the smaller networks


def fit_own(
    data: OwnSequences,
    out: Path,
    *,
    epochs: int = EPOCHS,
    window: int | None = None,
    closed: bool = False,
    seed: int = 0,
    device: str = "auto",
    changes: tuple[str, ...] = (),
    say: Say = lambda line: None,
) -> Finished:
    """Read, choose, train, evaluate what can be without factors, write a run folder and report."""
    own = data.read(say)
    recipe = recipe_for(own, data, epochs=epochs, window=window, closed=closed).change(changes)
    say(explain(recipe))
    (finished,) = run_jobs([Job(recipe, out, seed)], device=device, say=say)
    return finished


def recipe_for(
    own: Own,
    data: OwnSequences,
    *,
    epochs: int = EPOCHS,
    window: int | None = None,
    closed: bool = False,
) -> Recipe:
    """A recipe for sequences that were read.

    As many sites as frames, so that a capsule can tell every frame from the others; a window over
    all but a fifth of them, which is left to predict. Unless sequences are ``closed`` (the last
    frame is followed by the first), time and capsules have open ends.
    """
    frames, shape = own.sequences.frames, own.sequences.frame_shape
    if frames < FEWEST:
        raise BadInput(
            f"sequences of {frames} frame{'s' * (frames != 1)} are too short to learn motion from: "
            f"{FEWEST} or more are needed"
        )
    left = max(2, round(frames / 5))
    window = frames - left if window is None else whole_number("window", window)
    pictures = len(shape) == 3 and min(shape[1:]) >= 28
    return Recipe(
        name=Path(data.path).resolve().stem or "own",
        about=f"sequences of {frames} frames from {data.path}",
        data=data,
        topography=Topography(
            capsules=CAPSULES, shape=(frames,), window=min(window, frames), cyclic=closed
        ),
        hidden=(300, 200),
        convolutional=pictures and math.prod(shape) > _MANY,
        likelihood=own.likelihood,  # type: ignore[arg-type]
        centred=True,
        closed=closed,
        training=Training(
            optimiser=Adam(lr=2e-3, betas=(0.9, 0.95)),
            batch=BATCH,
            epochs=epochs,
            epoch_size=BATCH * STEPS,
        ),
    )


def explain(recipe: Recipe) -> str:
    """What was chosen, in a sentence."""
    topography = recipe.topography
    networks = "convolutional networks" if recipe.convolutional else "multilayer perceptrons"
    ends = "closed time" if recipe.closed else "open ends"
    return (
        f"chosen: {topography.capsules} capsules of {topography.shape[0]} sites, a window of "
        f"{topography.window} frames, {ends}, {networks}, a {recipe.likelihood.value} decoder, "
        f"{recipe.training.epochs} epochs of {recipe.training.epoch_size:,} sequences"
    )
