"""The papers' dSprites models in both editions, on the rendered sprites."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from topocaps.recipes.data import Sprites
from topocaps.recipes.papers import CAMERA_READY, HELD, SUBMISSION, TRAINING, Columns
from topocaps.recipes.recipe import Recipe
from topocaps.topography import Topography

_COLUMNS = Columns(
    base=Recipe(
        name="sprites",
        about="",
        data=Sprites(),
        topography=Topography(capsules=15, shape=(15,), reach=(1,), window=15, velocity=1.0),
        training=replace(TRAINING, epoch_size=50_625),  # the papers count images
    ),
    windows={"1_2": 15, "2_5": 12, "1_3": 10, "4_15": 8, "1_6": 5, "0": 1},
    unseen={CAMERA_READY: 10, SUBMISSION: 12},
    held=HELD,
)


def _found(x: float, y: float, orientation: float, scale: float, error: float) -> dict[str, Any]:
    """What a paper reports."""
    capcorr = {"x": x, "y": y, "orientation": orientation, "scale": scale}
    return {"capcorr": capcorr, "equivariance_error": error}


_column, _vae = _COLUMNS.topographic, _COLUMNS.vae

FINAL = (
    _column(CAMERA_READY, "tvae-1_2", 1, _found(1.0, 1.0, 1.0, 1.0, 344)),
    _column(CAMERA_READY, "tvae-1_3", 1, _found(1.0, 1.0, 1.0, 1.0, 1034)),
    _column(CAMERA_READY, "tvae-1_6", 1, _found(0.67, 0.66, 0.52, 0.42, 2549)),
    _column(CAMERA_READY, "tvae-0", 3, _found(0.17, 0.21, 0.09, 0.51, 2971)),
    _column(CAMERA_READY, "bubble-1_3", 10, _found(0.13, 0.12, 0.10, 0.50, 1951)),
    _vae(CAMERA_READY, _found(0.18, 0.16, 0.11, 0.52, 6934)),
)

FIRST = (
    _column(SUBMISSION, "tvae-1_2", 1, _found(1.0, 1.0, 1.0, 1.0, 131)),
    _column(SUBMISSION, "tvae-2_5", 1, _found(1.0, 1.0, 1.0, 1.0, 679)),
    _column(SUBMISSION, "tvae-1_3", 1, _found(1.0, 1.0, 1.0, 1.0, 964)),
    _column(SUBMISSION, "tvae-4_15", 1, _found(0.96, 0.97, 0.90, 0.97, 1298)),
    _column(SUBMISSION, "tvae-1_6", 1, _found(0.68, 0.69, 0.57, 0.42, 2313)),
    _column(SUBMISSION, "tvae-0", 10, _found(0.17, 0.17, 0.11, 0.52, 1075)),
    _column(SUBMISSION, "bubble-1_2", 15, _found(0.17, 0.16, 0.12, 0.52, 3543)),
    _column(SUBMISSION, "bubble-2_5", 12, _found(0.14, 0.14, 0.13, 0.53, 6922)),
    _column(SUBMISSION, "bubble-1_3", 10, _found(0.13, 0.12, 0.10, 0.52, 2037)),
    _column(SUBMISSION, "bubble-4_15", 8, _found(0.12, 0.12, 0.09, 0.49, 2420)),
    _column(SUBMISSION, "bubble-1_6", 5, _found(0.07, 0.08, 0.05, 0.26, 1397)),
    _vae(SUBMISSION, _found(0.24, 0.25, 0.09, 0.47, 6929)),
)

DSPRITES = (*FINAL, *FIRST)
