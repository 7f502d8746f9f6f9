"""The papers' dSprites models in both editions, on the rendered sprites."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from topocaps.models import VAE
from topocaps.networks import Norm
from topocaps.recipes.data import Sprites
from topocaps.recipes.mnist import HELD
from topocaps.recipes.recipe import Recipe
from topocaps.topography import Topography
from topocaps.training import Precision, Sgd, Training

CAPSULES = Topography(capsules=15, shape=(15,), reach=(1,), window=15, velocity=1.0)
WINDOWS = {"1_2": 15, "2_5": 12, "1_3": 10, "4_15": 8, "1_6": 5, "0": 1}  # frames that are 2L
UNSEEN = 10  # models that are compared must predict the same lags: those of L = 1/3 S

PAPER = Recipe(
    name="sprites/camera-ready/tvae-1_2",
    about="Table 2: shifting coherence over all 15 frames",
    data=Sprites(),
    topography=CAPSULES,
    training=Training(
        optimiser=Sgd(lr=1e-4, momentum=0.9),
        batch=8,
        epochs=100,
        epoch_size=50_625,  # the papers count images
        precision=Precision.BF16,
    ),
)


def _claims(x: float, y: float, orientation: float, scale: float, error: float) -> dict[str, Any]:
    capcorr = {"x": x, "y": y, "orientation": orientation, "scale": scale}
    return {"capcorr": capcorr, "equivariance_error": error}


def _column(
    edition: str, kind: str, length: str, reach: int, *claims: float, **changes: Any
) -> Recipe:
    """A topographic model of a table: its L, its K, what the paper found."""
    window = WINDOWS[length]
    velocity = {"tvae": 1.0, "bubble": 0.0}[kind]
    table = {"camera-ready": "Table 2", "submission": "Table 5"}[edition]
    frames = "1 frame" if window == 1 else f"{window} frames"
    return replace(
        PAPER,
        name=f"sprites/{edition}/{kind}-{length}",
        about=f"{table}: {frames}, K = {reach}",
        topography=replace(CAPSULES, window=window, reach=(reach,), velocity=velocity),
        unseen_window=None if window > UNSEEN else UNSEEN,
        claims=_claims(*claims),
        **changes,
    )


def _vae(edition: str, about: str, *claims: float) -> Recipe:
    return replace(
        PAPER,
        name=f"sprites/{edition}/vae",
        about=about,
        model=VAE,
        topography=replace(CAPSULES, window=1),
        unseen_window=UNSEEN,
        claims=_claims(*claims),
    )


_READY, _FIRST = "camera-ready", "submission"
_NORMED = {"norm": Norm.WEIGHT}

CAMERA_READY = (
    _column(_READY, "tvae", "1_2", 1, 1.0, 1.0, 1.0, 1.0, 344),
    _column(_READY, "tvae", "1_3", 1, 1.0, 1.0, 1.0, 1.0, 1034),
    _column(_READY, "tvae", "1_6", 1, 0.67, 0.66, 0.52, 0.42, 2549),
    _column(
        _READY, "tvae", "0", 3, 0.17, 0.21, 0.09, 0.51, 2971,
        training=replace(PAPER.training, clip=HELD),
    ),
    _column(_READY, "bubble", "1_3", 10, 0.13, 0.12, 0.10, 0.50, 1951),
    _vae(_READY, "Table 2: the plain VAE", 0.18, 0.16, 0.11, 0.52, 6934),
)  # fmt: skip

SUBMISSION = (
    _column(_FIRST, "tvae", "1_2", 1, 1.0, 1.0, 1.0, 1.0, 131, **_NORMED),
    _column(_FIRST, "tvae", "2_5", 1, 1.0, 1.0, 1.0, 1.0, 679, **_NORMED),
    _column(_FIRST, "tvae", "1_3", 1, 1.0, 1.0, 1.0, 1.0, 964, **_NORMED),
    _column(_FIRST, "tvae", "4_15", 1, 0.96, 0.97, 0.90, 0.97, 1298, **_NORMED),
    _column(_FIRST, "tvae", "1_6", 1, 0.68, 0.69, 0.57, 0.42, 2313, **_NORMED),
    _column(_FIRST, "tvae", "0", 10, 0.17, 0.17, 0.11, 0.52, 1075, **_NORMED),
    _column(_FIRST, "bubble", "1_2", 15, 0.17, 0.16, 0.12, 0.52, 3543, **_NORMED),
    _column(_FIRST, "bubble", "2_5", 12, 0.14, 0.14, 0.13, 0.53, 6922, **_NORMED),
    _column(_FIRST, "bubble", "1_3", 10, 0.13, 0.12, 0.10, 0.52, 2037, **_NORMED),
    _column(_FIRST, "bubble", "4_15", 8, 0.12, 0.12, 0.09, 0.49, 2420, **_NORMED),
    _column(_FIRST, "bubble", "1_6", 5, 0.07, 0.08, 0.05, 0.26, 1397, **_NORMED),
    _vae(_FIRST, "Table 5: the plain VAE", 0.24, 0.25, 0.09, 0.47, 6929),
)

DSPRITES = (*CAMERA_READY, *SUBMISSION)
