"""Models of letters that turn, for two cores and a few minutes."""

from __future__ import annotations

from dataclasses import replace

from topocaps.latents.topography import Topography
from topocaps.models.visible import Stretch
from topocaps.papers.recipes.columns import vae_of
from topocaps.study.data import Letters
from topocaps.study.recipe import Recipe
from topocaps.study.rolling_recipe import RollingRecipe
from topocaps.training import Adam, Precision, Training

_CAPSULES = Topography(capsules=12, shape=(15,))
_HIDDEN = (400,)
_BATCH = 16


def training(steps: int, epochs: int) -> Training:
    """Return the training of a rolling VAE on two cores."""
    return Training(
        optimiser=Adam(lr=3e-3, betas=(0.9, 0.99), warmup=100),
        batch=_BATCH,
        epochs=epochs,
        epoch_size=steps * _BATCH // epochs,
        clip=100.0,
        precision=Precision.BF16,
    )


ROLLING = RollingRecipe(
    name="letters/rolling",
    about="one code per sequence, rolled: predicts letters that it never saw",
    data=Letters(),
    topography=_CAPSULES,
    hidden=_HIDDEN,
    training=training(steps=5_000, epochs=5),
)

TVAE = Recipe(
    name="letters/tvae",
    about="the paper's TVAE of the same size: shifting coherence over 13 of 15 frames",
    data=Letters(),
    topography=replace(_CAPSULES, reach=(1,), window=13, velocity=1.0),
    hidden=_HIDDEN,
    centred=True,
    training=replace(training(5_000, 5), optimiser=Adam(2e-3, (0.9, 0.95))),
)

PLAIN = vae_of(
    TVAE, "letters/vae", "the plain VAE of the same size: every frame has a code of its own"
)

HIDDEN_FRAMES = replace(
    TVAE,
    name="letters/tvae-hidden",
    about="the same TVAE, trained to predict hidden frames, as the rolling VAE is",
    visible=Stretch(3),
)

LETTERS = (ROLLING, TVAE, PLAIN)
