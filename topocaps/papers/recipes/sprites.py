"""Small models of small sprites, for two cores and a few minutes."""

from __future__ import annotations

from dataclasses import replace

from topocaps.latents.topography import Topography
from topocaps.models import VAE
from topocaps.study.data import Sprites
from topocaps.study.recipe import Recipe
from topocaps.training import Adam, Training

CAPSULES = Topography(capsules=10, shape=(15,), reach=(1,), window=13, velocity=1.0)

TVAE = Recipe(
    name="sprites/tvae",
    about="shifting coherence over 13 of 15 frames: learns to roll",
    data=Sprites(resolution=32),
    topography=CAPSULES,
    hidden=(300, 200),
    centred=True,
    training=Training(
        optimiser=Adam(lr=2e-3, betas=(0.9, 0.95)), batch=16, epochs=9, epoch_size=8000
    ),
)

BUBBLE = replace(
    TVAE,
    name="sprites/bubble",
    about="stationary coherence over the same 13 frames: learns invariance",
    topography=replace(CAPSULES, velocity=0.0),
)

PLAIN = replace(
    TVAE,
    name="sprites/vae",
    about="the plain VAE of the same size: reconstructs best, rolls nowhere",
    model=VAE,
    centred=False,
    topography=replace(CAPSULES, window=1),
    unseen_window=CAPSULES.window,
)

SPRITES = (TVAE, BUBBLE, PLAIN)
