"""MNIST sequences: the papers' models in every edition, and a fast recipe for the same models."""

from __future__ import annotations

from dataclasses import replace

from topocaps.latents.topography import Topography
from topocaps.models import VAE
from topocaps.models.networks import Fan, Norm
from topocaps.papers.recipes import editions
from topocaps.papers.recipes.columns import Columns, column, variant
from topocaps.papers.recipes.editions import CLIP
from topocaps.study.data import Mnist, StillMnist
from topocaps.study.recipe import Recipe
from topocaps.training import Adam, Precision, Training

_RELEASED, _LETTER, _SUBMISSION, _SUBMISSION_RELEASED = (
    Columns("mnist", Mnist(centre=edition.centre), 18, edition, unseen)
    for edition, unseen in zip(editions.MNIST.values(), (5, 5, 13, 13), strict=True)
)


#: A number in a paper and its standard deviation.
_Number = tuple[float, float]


def _published(log_px_paper: _Number, equivariance_error: _Number) -> dict[str, _Number]:
    """Return the numbers that a paper reports of a model."""
    return {"log_px_paper": log_px_paper, "equivariance_error": equivariance_error}


_TABLE_1 = {
    "tvae-1_2": _published((-186.8, 0.1), (574, 2)),
    "tvae-5_36": _published((-186.0, 0.7), (3247, 3)),
    "tvae-0": _published((-218.5, 0.9), (3217, 105)),
    "bubble-5_36": _published((-191.4, 0.5), (3370, 12)),
    "vae": _published((-189.0, 0.8), (13274, 1)),
}
_TABLE_4 = {
    "tvae-1_2": _published((-188.5, 1.1), (386.7, 1.1)),
    "tvae-13_36": _published((-187.1, 1.2), (990.6, 10.7)),
    "tvae-1_4": _published((-186.9, 0.6), (2045.7, 3.3)),
    "tvae-5_36": _published((-184.7, 0.7), (3149.6, 20.8)),
    "tvae-0": _published((-217.3, 1.3), (3047.8, 59.2)),
    "bubble-1_2": _published((-196.3, 1.1), (2066.5, 596.7)),
    "bubble-1_4": _published((-203.2, 2.1), (1005.3, 12.7)),
    "bubble-5_36": _published((-190.0, 0.3), (2522.5, 21.3)),
    "bubble-5_36-k3": _published((-190.4, 0.9), (3277.0, 15.6)),
    "vae": _published((-189.0, 0.8), (13273.9, 0.5)),
}
#: The rows of Table 3 that are not in Table 4.
_TABLE_3 = {
    "tvae-5_36-pgd": _published((-189.0, 0.1), (3196.7, 5.0)),
    "vae-pgd": _published((-209.1, 1.1), (13262.0, 0.5)),
    "vae-wn": _published((-192.5, 0.5), (13273.2, 1.4)),
}

FINAL = _RELEASED.table(_TABLE_1)  #: Table 1 with the settings of the released code
TO_THE_LETTER = _LETTER.table(_TABLE_1)  #: Table 1 with the settings of the paper's text
FIRST, FIRST_RELEASED = _SUBMISSION.table(_TABLE_4), _SUBMISSION_RELEASED.table(_TABLE_4)
NORMS, NORMS_RELEASED = _SUBMISSION.table(_TABLE_3), _SUBMISSION_RELEASED.table(_TABLE_3)

#: The model of B.4 and of Fig. 1, 18 and 19, with a window of 13 frames and no norm, trained on
#: single motions.
LONG = _RELEASED.column("tvae-13_36")

#: The same model, trained on factors that move together, at scale 1 (Fig. 1, 18 and 19).
TOGETHER = (
    replace(
        LONG,
        name=f"mnist/{editions.CAMERA_READY}/combined",
        about="rotation and hue move together (Fig. 1, 18)",
        data=Mnist(motion="combined", centre=_RELEASED.edition.centre),
    ),
    replace(
        LONG,
        name=f"mnist/{editions.CAMERA_READY}/perspective",
        about="a digit rotates in space while its hue moves (Fig. 19)",
        data=Mnist(motion="perspective"),
    ),
)


def _torus(edition: str, norm: Norm) -> Recipe:
    """Return the recipe of Figure 3: one capsule on a torus, and single images."""
    settings = editions.MNIST[edition]
    return Recipe(
        name=f"mnist/{edition}/torus",
        about="single images on an 18 x 18 torus of 5 x 5 neighbourhoods (Fig. 3)",
        edition=edition,
        data=StillMnist(),
        topography=Topography(capsules=1, shape=(18, 18), reach=(5, 5)),
        training=settings.torus,
        mu=settings.torus_mu,
        norm=norm,
        decoder_fan=settings.decoder_fan,
        epsilon=settings.epsilon,
    )


#: Figure 3 with weight norm, without a norm, and with the settings of the released code.
TORUS = _torus(editions.SUBMISSION, Norm.WEIGHT)
PLAIN_TORUS = variant(TORUS, "none", "no norm", norm=Norm.NONE)
RELEASED_TORUS = replace(
    _torus(editions.CAMERA_READY, Norm.NONE), about=f"{TORUS.about}, as released, no norm"
)


def _one_changed(recipe: Recipe) -> tuple[Recipe, ...]:
    """Return the recipe with fan-in for its decoder, and the recipe with products in fp32."""
    fp32 = replace(recipe.training, precision=Precision.FP32)
    return (
        variant(recipe, "fan-in", "decoder initialised by fan-in", decoder_fan=Fan.IN),
        variant(recipe, "fp32", "products in fp32", training=fp32),
    )


def _with_corners(recipe: Recipe, corners: bool) -> Recipe:
    """Return the recipe with or without the corners of W."""
    ending = "full-w" if corners else "corners-cut"
    about = "W with corners" if corners else "W without its corners"
    return variant(recipe, ending, about, topography=replace(recipe.topography, corners=corners))


def _of_zero() -> tuple[Recipe, ...]:
    """Return recipes for L = 0 whose settings may explain the numbers of Table 1."""
    recipe = column(FINAL, "tvae-0")
    clipped = replace(recipe.training, clip=CLIP)
    wide = _RELEASED.column("tvae-0-k9", recipe.claims)
    return (
        variant(recipe, "clip", "gradients clipped", training=clipped),
        variant(recipe, "epsilon-1e-3", "epsilon 1e-3", epsilon=1e-3),
        variant(recipe, "norm", "weight norm", norm=Norm.WEIGHT),
        wide,
        variant(wide, "clip", "gradients clipped", training=clipped),
        variant(wide, "norm", "weight norm", norm=Norm.WEIGHT),
    )


#: Table 1 as released, except that digits turn and scale about the middle of the image.
ABOUT_THE_MIDDLE = tuple(
    variant(recipe, "middle", "rotation about the middle", data=Mnist()) for recipe in FINAL
)
_SHORT = column(FINAL, "tvae-5_36")
#: Table 1 as released with one setting changed, and two models of the text without corners of W.
SETTINGS = (
    *_one_changed(_SHORT),
    variant(_SHORT, "no-epsilon", "epsilon 0", epsilon=0.0),
    _with_corners(_SHORT, True),
    *_one_changed(column(FINAL, "vae")),
    _with_corners(column(FINAL, "tvae-1_2"), True),
    *(_with_corners(recipe, False) for recipe in TO_THE_LETTER[:2]),
)
ZERO = (*_of_zero(), _LETTER.column("tvae-0-k9", column(FINAL, "tvae-0").claims))

#: Settings that were chosen on validation images: Adam, large batches and ``centred`` decoders.
_FAST = Training(
    optimiser=Adam(lr=8e-4, betas=(0.9, 0.99)), batch=128, epochs=40, precision=Precision.BF16
)

FAST = tuple(
    replace(
        recipe,
        name=recipe.name.replace(editions.LETTER, "fast"),
        about=f"{recipe.about}, trained fast",
        edition=Recipe.edition,
        training=replace(_FAST, clip=recipe.training.clip),
        centred=recipe.model is not VAE,
        claims={},
    )
    for recipe in TO_THE_LETTER
)

MNIST = (
    *FINAL, LONG, *TOGETHER, *ABOUT_THE_MIDDLE, *SETTINGS, *ZERO, *TO_THE_LETTER,
    *FIRST, *NORMS, *FIRST_RELEASED, *NORMS_RELEASED,
    TORUS, PLAIN_TORUS, RELEASED_TORUS, *FAST,
)  # fmt: skip

#: Models with the other values of K and mu that the submission discusses (A.2, A.5).
_MODEL = column(FIRST, "tvae-5_36")
SINGLE_SITE = variant(
    _MODEL,
    "k1",
    "but K = 1",
    claims={},
    topography=replace(_MODEL.topography, reach=(1,)),
    training=replace(_MODEL.training, clip=CLIP),  # each energy sums few squares
)
MU_FROM_0 = variant(_MODEL, "mu0", "mu from 0", claims={}, mu=0.0)
