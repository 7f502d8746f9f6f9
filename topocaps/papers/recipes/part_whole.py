"""Recipes of the part-whole capsule model and of the VAE beside it (Smith et al. 2020)."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from topocaps.capsules import PartWholeSettings, Poses
from topocaps.latents.topography import Topography
from topocaps.models import VAE
from topocaps.papers.recipes.columns import AnyRecipe
from topocaps.study.data import MovedMnist, StillMnist
from topocaps.study.recipe import PartWholeRecipe, Recipe
from topocaps.training import Adam, Precision, Training


def _claimed(**rows: tuple[tuple[float, float], ...]) -> dict[str, Any]:
    """Return rows of the paper's Table 1 as claims.

    Args:
        rows: means and standard deviations for digits turned by up to 0, 45, 90, 135 and 180
            degrees.
    """
    angles = ("0", "45", "90", "135", "180")
    named = {"t": "presences", "t_A": "presences and poses", "vae": "posterior"}
    return {"accuracy": {named[k]: dict(zip(angles, row, strict=True)) for k, row in rows.items()}}


def _like(recipe: AnyRecipe, name: str, about: str, **changes: Any) -> AnyRecipe:
    """Return a recipe with other settings. It has no claims unless ``changes`` has them."""
    return replace(recipe, **{"name": f"capsules/{name}", "about": about, "claims": {}, **changes})


ANGLES = (45, 90, 135, 180)  #: in degrees, of Figure 4

TRAINING = Training(
    optimiser=Adam(lr=3e-3, warmup=500), batch=128, epochs=30, clip=10.0, precision=Precision.TF32
)
_LONGER = replace(TRAINING, epochs=60)  # better images, less accurate probes of upright digits

DIGITS = PartWholeRecipe(
    name="capsules/mnist",
    about="16 wholes of 16 parts, point poses: upright digits",
    data=StillMnist(),
    training=TRAINING,
    claims=_claimed(
        t=((0.96, 0.01), (0.78, 0.02), (0.56, 0.02), (0.47, 0.01), (0.44, 0.01)),
        t_A=((0.97, 0.0), (0.90, 0.01), (0.77, 0.01), (0.69, 0.01), (0.65, 0.01)),
    ),
)  # fmt: skip

SMALL = _like(
    DIGITS,
    "mnist-small",
    "8 wholes of 12 parts for two cores: upright digits",
    capsules=PartWholeSettings(sizes=(8, 12), width=64, depth=2),
    training=replace(TRAINING, batch=32, epochs=12, epoch_size=16_000),
    probed=5000,
)
NORMAL = _like(
    DIGITS,
    "mnist-normal",
    "Normal poses from the start, for as many epochs as mnist-tuned and its start: a bound",
    capsules=PartWholeSettings(poses_are=Poses.NORMAL),
    training=replace(TRAINING, epochs=DIGITS.training.epochs + TRAINING.epochs),
)
_AFTER_POINTS = "Normal poses, starting from the model with point poses"
TUNED = _like(NORMAL, "mnist-tuned", _AFTER_POINTS, training=TRAINING, start=DIGITS)

AFFNIST = _like(
    DIGITS,
    "affnist",
    "40 x 40 pixels, digits shifted by up to 6 pixels",
    data=MovedMnist(canvas=40, shift=6.0),
    capsules=PartWholeSettings(scale=0.3),
    training=_LONGER,
    claims={
        "accuracy": {
            "presences": {"affnist": (0.88, 0.03)},
            "presences and poses": {"affnist": (0.92, 0.03)},
        }
    },
)
ROTATED = tuple(
    _like(
        DIGITS,
        f"rotated-{angle}",
        f"trained on digits turned by up to {angle} degrees",
        data=MovedMnist(degrees=float(angle)),
    )
    for angle in ANGLES
)
TURNING = _like(
    DIGITS,
    "mnist-turns",
    f"{DIGITS.about}; scenes turned by multiples of 45 degrees (not in the paper)",
    capsules=PartWholeSettings(turns=8),
    training=_LONGER,
)

PLAIN = Recipe(
    name="capsules/vae",
    about="the plain VAE with 10 latents: upright digits",
    data=StillMnist(),
    model=VAE,
    topography=Topography(capsules=10, shape=(1,)),
    hidden=(128,),
    training=Training(optimiser=Adam(lr=1e-3, warmup=500), batch=128, epochs=100),
    claims=_claimed(vae=((0.94, 0.0), (0.69, 0.01), (0.44, 0.01), (0.35, 0.01), (0.34, 0.0))),
)

#: The paper does not state the number of latents of its VAE. With 32, its numbers are near.
PLAIN_LARGER = _like(
    PLAIN,
    "vae-32",
    "the plain VAE with 32 latents: upright digits",
    topography=Topography(capsules=32, shape=(1,)),
    claims=PLAIN.claims,
)
PLAIN_AFFNIST = _like(
    PLAIN,
    "vae-affnist",
    "the plain VAE: 40 x 40 pixels, digits shifted by up to 6 pixels",
    data=AFFNIST.data,
    claims={"accuracy": {"posterior": {"affnist": (0.40, 0.01)}}},
)
PLAIN_ROTATED = tuple(
    _like(PLAIN, f"vae-rotated-{angle}", f"the plain VAE, {turned.about}", data=turned.data)
    for angle, turned in zip(ANGLES, ROTATED, strict=True)
)

PART_WHOLE = (
    SMALL, DIGITS, NORMAL, TUNED, AFFNIST, *ROTATED, TURNING,
    PLAIN, PLAIN_LARGER, PLAIN_AFFNIST, *PLAIN_ROTATED,
)  # fmt: skip
