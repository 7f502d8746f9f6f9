"""The papers' dSprites models in both editions, on the rendered sprites."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from topocaps.latents.topography import Topography
from topocaps.recipes.data import Sprites
from topocaps.recipes.papers import CAMERA_READY, HELD, SUBMISSION, TRAINING, Columns
from topocaps.recipes.recipe import Recipe

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


def _found(means: Sequence[float], spreads: Sequence[float]) -> dict[str, Any]:
    """What a paper reports: CapCorr of every factor, then E_eq."""
    *capcorr, error = zip(means, spreads, strict=True)
    factors = ("x", "y", "orientation", "scale")
    return {"capcorr": dict(zip(factors, capcorr, strict=True)), "equivariance_error": error}


_column, _vae = _COLUMNS.topographic, _COLUMNS.vae

FINAL = (
    _column(CAMERA_READY, "tvae-1_2", 1, _found((1.0, 1.0, 1.0, 1.0, 344), (0, 0, 0, 0, 5))),
    _column(CAMERA_READY, "tvae-1_3", 1, _found((1.0, 1.0, 1.0, 1.0, 1034), (0, 0, 0, 0, 6))),
    _column(
        CAMERA_READY,
        "tvae-1_6",
        1,
        _found((0.67, 0.66, 0.52, 0.42, 2549), (0.02, 0.02, 0.01, 0.01, 38)),
    ),
    _column(
        CAMERA_READY,
        "tvae-0",
        3,
        _found((0.17, 0.21, 0.09, 0.51, 2971), (0.03, 0.02, 0.01, 0.01, 9)),
    ),
    _column(
        CAMERA_READY,
        "bubble-1_3",
        10,
        _found((0.13, 0.12, 0.1, 0.5, 1951), (0.01, 0.01, 0.01, 0, 34)),
    ),
    _vae(CAMERA_READY, _found((0.18, 0.16, 0.11, 0.52, 6934), (0.01, 0.01, 0, 0, 0))),
)

FIRST = (
    _column(SUBMISSION, "tvae-1_2", 1, _found((1.0, 1.0, 1.0, 1.0, 131), (0, 0, 0, 0, 0))),
    _column(SUBMISSION, "tvae-2_5", 1, _found((1.0, 1.0, 1.0, 1.0, 679), (0, 0, 0, 0, 4))),
    _column(SUBMISSION, "tvae-1_3", 1, _found((1.0, 1.0, 1.0, 1.0, 964), (0, 0, 0, 0, 9))),
    _column(
        SUBMISSION, "tvae-4_15", 1, _found((0.96, 0.97, 0.9, 0.97, 1298), (0.01, 0.01, 0.01, 0, 5))
    ),
    _column(
        SUBMISSION,
        "tvae-1_6",
        1,
        _found((0.68, 0.69, 0.57, 0.42, 2313), (0.02, 0.02, 0.01, 0.01, 33)),
    ),
    _column(
        SUBMISSION,
        "tvae-0",
        10,
        _found((0.17, 0.17, 0.11, 0.52, 1075), (0.03, 0.04, 0.02, 0.01, 20)),
    ),
    _column(
        SUBMISSION,
        "bubble-1_2",
        15,
        _found((0.17, 0.16, 0.12, 0.52, 3543), (0.01, 0.01, 0.03, 0, 441)),
    ),
    _column(
        SUBMISSION, "bubble-2_5", 12, _found((0.14, 0.14, 0.13, 0.53, 6922), (0.01, 0, 0.01, 0, 6))
    ),
    _column(
        SUBMISSION,
        "bubble-1_3",
        10,
        _found((0.13, 0.12, 0.1, 0.52, 2037), (0.02, 0.01, 0.01, 0.02, 924)),
    ),
    _column(
        SUBMISSION,
        "bubble-4_15",
        8,
        _found((0.12, 0.12, 0.09, 0.49, 2420), (0.03, 0.02, 0.01, 0.03, 1192)),
    ),
    _column(
        SUBMISSION,
        "bubble-1_6",
        5,
        _found((0.07, 0.08, 0.05, 0.26, 1397), (0.02, 0.01, 0.01, 0, 29)),
    ),
    _vae(SUBMISSION, _found((0.24, 0.25, 0.09, 0.47, 6929), (0.01, 0, 0.01, 0, 1))),
)

DSPRITES = (*FINAL, *FIRST)
