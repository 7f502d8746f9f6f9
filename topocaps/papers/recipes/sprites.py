"""Small models of small sprites, which train on two cores.

They are the TVAE, the Bubble and the VAE, and the extensions that the paper proposes in appendix C
and section 7. Tables show the extensions beside the TVAE.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from topocaps.latents.learned import Learned
from topocaps.latents.topography import Topography
from topocaps.papers.recipes.columns import bubble_of, vae_of
from topocaps.study.data import GrowingSprites, Sprites
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

BUBBLE = bubble_of(
    TVAE,
    "sprites/bubble",
    "stationary coherence over the same 13 frames: learns invariance",
)
PLAIN = vae_of(
    TVAE, "sprites/vae", "the plain VAE of the same size: reconstructs best, does not roll"
)


def _recipe(name: str, about: str, topography: dict[str, Any], **changes: Any) -> Recipe:
    """Return the TVAE with changes of its topography and of other settings."""
    return replace(
        TVAE,
        name=f"sprites/{name}",
        about=about,
        topography=replace(CAPSULES, **topography),
        **changes,
    )


_SLOW: dict[str, Any] = {"data": Sprites(resolution=32, speed=0.5), "rate": 0.5}
_FAST: dict[str, Any] = {"data": Sprites(resolution=32, speed=2), "rate": 2.0}

#: C.1: sequences of 30 frames that move half a site per frame, and of 15 that move two.
SPEED = (
    _recipe(
        "slow",
        "sprites move half a site per frame, velocity 0.5",
        {"window": 26, "velocity": 0.5},
        **_SLOW,
    ),
    _recipe(
        "slow-wrong", "sprites move half a site per frame, velocity 1", {"window": 26}, **_SLOW
    ),
    _recipe("quick", "sprites move two sites per frame, velocity 2", {"velocity": 2.0}, **_FAST),
    _recipe("quick-wrong", "sprites move two sites per frame, velocity 1", {}, **_FAST),
)

_GROWING: dict[str, Any] = {"data": GrowingSprites(resolution=32), "closed": False}

#: C.2: sprites that grow, in sequences that are not closed.
OPEN = (
    _recipe(
        "open",
        "capsules with open ends, window of 9 of 15 frames",
        {"window": 9, "cyclic": False},
        **_GROWING,
    ),
    _recipe("open-cyclic", "cyclic capsules, window of 9 of 15 frames", {"window": 9}, **_GROWING),
)

#: C.4: a causal window, and a centred one of as many frames.
CAUSAL = (
    _recipe("causal", "causal window of 11 of 15 frames", {"window": 11, "causal": True}),
    _recipe("centred", "centred window of 11 of 15 frames", {"window": 11}),
)

_XY: dict[str, Any] = {
    "data": Sprites(resolution=32, moving=("x", "y")),
    "training": replace(TVAE.training, epochs=18),
}

_SQUARE: dict[str, Any] = {"capsules": 1, "shape": (15, 15)}

#: C.3: a capsule with two axes, for two factors.
AXES = (
    _recipe("axes", "one capsule of 15 x 15 sites, both axes at once (Eq. 21)", _SQUARE, **_XY),
    _recipe(
        "axes-apart", "one capsule of 15 x 15 sites, axes apart", {**_SQUARE, "apart": True}, **_XY
    ),
    _recipe("axes-one", "10 capsules of 15 sites, the same data", {}, **_XY),
)

_VELOCITY = {"learned": Learned.VELOCITY}

#: Section 7: learned W and learned velocities.
LEARNED = (
    TVAE,
    _recipe("learned", "W learned, starting from that of the TVAE", {}, learned=Learned.WEIGHTS),
    _recipe(
        "learned-identity",
        "W learned, starting from the identity",
        {},
        learned=Learned.FROM_IDENTITY,
    ),
    _recipe(
        "learned-velocity", "velocities learned, starting from 0.5", {"velocity": 0.5}, **_VELOCITY
    ),
)

#: Section 7: a penalty on the spread of capsules, so that each may specialise on some motions.
SPARSE = (
    TVAE,
    *(
        _recipe(f"sparse-{weight:g}", f"sparsity {weight:g} between capsules", {}, sparsity=weight)
        for weight in (0.1, 0.3, 1.0)
    ),
)

SPRITES = (
    TVAE, BUBBLE, PLAIN, *SPEED, *OPEN, *CAUSAL, *AXES, *LEARNED[1:], *SPARSE[1:],
)  # fmt: skip
