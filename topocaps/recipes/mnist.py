"""MNIST sequences: the papers' models in both editions, and a fast recipe for the same models."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from topocaps.latents.topography import Topography
from topocaps.networks import Norm
from topocaps.recipes.data import Mnist, StillMnist
from topocaps.recipes.papers import CAMERA_READY, HELD, SUBMISSION, TRAINING, Columns
from topocaps.recipes.recipe import Recipe
from topocaps.training import Adam, Precision, Sgd, Training

_COLUMNS = Columns(
    base=Recipe(
        name="mnist",
        about="",
        data=Mnist(),
        topography=Topography(capsules=18, shape=(18,), reach=(3,), window=18, velocity=1.0),
        training=TRAINING,
    ),
    windows={"1_2": 18, "13_36": 13, "1_4": 9, "5_36": 5, "0": 1},
    unseen={CAMERA_READY: 5, SUBMISSION: 13},
)


def _found(log_px_paper: Any, equivariance_error: Any) -> dict[str, Any]:
    """What a paper reports, with its standard deviation where it is given."""
    return {"log_px_paper": log_px_paper, "equivariance_error": equivariance_error}


_column, _vae = _COLUMNS.topographic, _COLUMNS.vae
_CLIPPED = replace(TRAINING, clip=HELD)

FINAL = (
    _column(CAMERA_READY, "tvae-1_2", 3, _found((-186.8, 0.1), (574, 2))),
    _column(CAMERA_READY, "tvae-5_36", 3, _found((-186.0, 0.7), (3247, 3))),
    _column(
        CAMERA_READY, "tvae-0", 3, _found((-218.5, 0.9), (3217, 105)),
        training=_CLIPPED,
    ),
    _column(CAMERA_READY, "bubble-5_36", 3, _found((-191.4, 0.5), (3370, 12))),
    _vae(CAMERA_READY, _found((-189.0, 0.8), (13274, 1))),
)  # fmt: skip

FIRST = (
    _column(SUBMISSION, "tvae-1_2", 3, _found((-188.5, 1.1), (386.7, 1.1))),
    _column(SUBMISSION, "tvae-13_36", 3, _found((-187.1, 1.2), (990.6, 10.7))),
    _column(SUBMISSION, "tvae-1_4", 3, _found((-186.9, 0.6), (2045.7, 3.3))),
    _column(SUBMISSION, "tvae-5_36", 3, _found((-184.7, 0.7), (3149.6, 20.8))),
    _column(SUBMISSION, "tvae-0", 9, _found((-217.3, 1.3), (3047.8, 59.2)), training=_CLIPPED),
    _column(SUBMISSION, "bubble-1_2", 18, _found((-196.3, 1.1), (2066.5, 596.7))),
    _column(SUBMISSION, "bubble-1_4", 9, _found((-203.2, 2.1), (1005.3, 12.7))),
    _column(SUBMISSION, "bubble-5_36", 5, _found((-190.0, 0.3), (2522.5, 21.3))),
    _column(SUBMISSION, "bubble-5_36-k3", 3, _found((-190.4, 0.9), (3277.0, 15.6))),
    _vae(SUBMISSION, _found((-189.0, 0.8), (13273.9, 0.5))),
)

NORMS = (
    _column(
        SUBMISSION, "tvae-5_36-pgd", 3, _found((-189.0, 0.1), (3196.7, 5.0)), norm=Norm.PROJECTED
    ),
    _vae(SUBMISSION, _found((-209.1, 1.1), (13262.0, 0.5)), "vae-pgd", norm=Norm.PROJECTED),
    _vae(SUBMISSION, _found((-192.5, 0.5), (13273.2, 1.4)), "vae-wn", norm=Norm.WEIGHT),
)

#: Fig. 1 and 18, 19: factors that move together.
TOGETHER = tuple(
    replace(
        _column(SUBMISSION, "tvae-13_36", 3, {}),
        name=f"mnist/submission/{motion}",
        about=about,
        data=Mnist(motion=motion),
    )
    for motion, about in (
        ("combined", "rotation and hue move together (Fig. 1, 18)"),
        ("perspective", "a digit leans round in space while its hue moves (Fig. 19)"),
    )
)

#: Fig. 3: one capsule on a torus, no coherence in time.
TORUS = Recipe(
    name="mnist/submission/torus",
    about="single images on an 18 x 18 torus of 5 x 5 neighbourhoods (Fig. 3)",
    data=StillMnist(),
    topography=Topography(capsules=1, shape=(18, 18), reach=(5, 5)),
    training=replace(TRAINING, optimiser=Sgd(lr=1e-3, momentum=0.9), batch=128),
    mu=-5.0,
    norm=Norm.WEIGHT,
)
PLAIN_TORUS = replace(
    TORUS, name=f"{TORUS.name}-none", about=f"{TORUS.about}, no norm", norm=Norm.NONE
)

#: What may explain where Table 1 and its paper differ: the released code's W has no corners, and
#: L = 0 may have kept the submission's K.
CAUSES = (
    *(
        replace(
            recipe,
            name=recipe.name.replace(CAMERA_READY, "released"),
            about=f"{recipe.about}, W without its corners",
            topography=replace(recipe.topography, corners=False),
        )
        for recipe in FINAL[:2]
    ),
    _column(CAMERA_READY, "tvae-0-k9", 9, FINAL[2].claims, training=_CLIPPED),
)

#: Chosen on validation images: Adam, large batches, and a decoder that sees t less its prior mean.
_FAST = Training(
    optimiser=Adam(lr=8e-4, betas=(0.9, 0.99)), batch=128, epochs=40, precision=Precision.BF16
)

FAST = tuple(
    replace(
        recipe,
        name=recipe.name.replace(CAMERA_READY, "fast"),
        about=f"{recipe.about}, trained fast",
        training=replace(_FAST, clip=recipe.training.clip),
        centred=True,
        claims={},
    )
    for recipe in FINAL
)

MNIST = (*FINAL, *FIRST, *NORMS, *TOGETHER, TORUS, PLAIN_TORUS, *CAUSES, *FAST)
