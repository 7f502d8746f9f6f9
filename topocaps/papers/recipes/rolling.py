"""Rolling VAEs and what they are compared with: MNIST, sprites, letters, and two motions at once.

The recipes of MNIST and of sprites of 64 x 64 pixels are for a GPU. Those of letters and of small
sprites train for a few minutes on two cores. Recipes of one table have the same data, sizes of
networks and number of steps.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from topocaps.latents.motion import Grouped, Known, Unknown
from topocaps.latents.topography import Topography
from topocaps.models import VAE
from topocaps.models.priors import Laplace, StudentT
from topocaps.models.visible import Past, RandomFrames, Stretch
from topocaps.papers.recipes import letters
from topocaps.study.data import SOME, Letters, Mnist, Sprites
from topocaps.study.recipe import Recipe
from topocaps.study.rolling_recipe import RollingRecipe
from topocaps.training import Adam, KLWeight, Precision, Training

_BATCH = 32
#: 40,000 steps
_TRAINING = Training(
    optimiser=Adam(lr=1e-3, warmup=100),
    batch=_BATCH,
    epochs=100,
    epoch_size=400 * _BATCH,
    clip=100.0,
    precision=Precision.BF16,
)
_GRID = (-2.0, -1.0, 0.0, 1.0, 2.0)  # sites a frame
_WARM_UP = KLWeight(start=0.1, until=0.5)

MNIST = RollingRecipe(
    name="rolling/mnist",
    about="one code a sequence, direction given, convolutions",
    data=Mnist(),
    topography=Topography(capsules=18, shape=(18,)),
    hidden=(1024,),
    channels=(64, 128, 256),
    training=_TRAINING,
)
SPRITES = replace(
    MNIST,
    name="rolling/sprites",
    data=Sprites(),
    topography=Topography(capsules=30, shape=(15,)),
    hidden=(512,),
    channels=(32, 64, 128, 128),
)


def _changed(recipe: RollingRecipe, ending: str, about: str, **changes: Any) -> RollingRecipe:
    return replace(recipe, name=f"{recipe.name}-{ending}", about=about, **changes)


def _perceptrons(recipe: RollingRecipe) -> RollingRecipe:
    about = "the same with perceptrons"
    return _changed(recipe, "perceptrons", about, channels=None, hidden=None)


def _unknown(recipe: RollingRecipe) -> RollingRecipe:
    return _changed(recipe, "unknown", "direction ±1 unknown", motion=Unknown())


def _settings(recipe: RollingRecipe, frames: int) -> tuple[RollingRecipe, ...]:
    """The recipe with one setting changed at a time, except for that of the KL weight."""
    return (
        _changed(recipe, "grid", "velocity unknown: −2, −1, 0, 1 or 2", motion=Unknown(_GRID)),
        _changed(
            recipe, "random-frames", "trained with any 3 or more frames visible",
            visible=RandomFrames(3),
        ),
        _changed(
            recipe, "past", "trained with the first 3 or more frames visible", visible=Past(3)
        ),
        _changed(
            recipe, "all-visible", "trained with all frames visible", visible=Stretch(frames)
        ),
    )  # fmt: skip


def _kl(recipe: RollingRecipe, ending: str, about: str, kl: KLWeight) -> RollingRecipe:
    return _changed(recipe, ending, about, training=replace(recipe.training, kl=kl))


def _priors(recipe: RollingRecipe) -> tuple[RollingRecipe, ...]:
    """The recipe with another prior of the code."""
    return (
        _changed(
            recipe, "student-t", "Student-t prior of whole capsules, 3 degrees of freedom",
            prior=StudentT(3),
        ),
        _changed(recipe, "laplace", "Laplace prior", prior=Laplace()),
    )  # fmt: skip


def _baselines(recipe: RollingRecipe, window: int, reach: int) -> tuple[Recipe, ...]:
    """TVAE, Bubble and VAE with the same data, sizes, convolutions and number of steps."""
    over, training = f"{window} frames", replace(recipe.training, kl=KLWeight())
    shared = replace(recipe.topography, reach=(reach,), window=window, velocity=1.0)
    tvae = Recipe(
        name=f"{recipe.name}-tvae",
        about=f"shifting coherence over {over}, K = {reach}",
        data=recipe.data,
        topography=shared,
        centred=True,
        hidden=None if recipe.channels else recipe.hidden,
        training=training,
    )
    bubble = replace(
        tvae,
        name=f"{recipe.name}-bubble",
        about=f"stationary coherence over {over}, K = {reach}",
        topography=replace(shared, velocity=0.0),
    )
    vae = replace(
        tvae,
        name=f"{recipe.name}-vae",
        about="the plain VAE",
        model=VAE,
        centred=False,
        topography=replace(shared, window=1),
        unseen_window=window,
    )
    return tvae, bubble, vae


def _with_convolutions(recipes: tuple[Recipe, ...], rolling: RollingRecipe) -> tuple[Recipe, ...]:
    return tuple(
        replace(
            recipe,
            name=f"{recipe.name}-convolutions",
            about=f"{recipe.about}, the same convolutions",
            convolutional=True,
            channels=rolling.channels,
            hidden=rolling.hidden,
        )
        for recipe in recipes
    )


_OF_MNIST, _OF_SPRITES = _baselines(MNIST, 13, 3), _baselines(SPRITES, 13, 1)
_WARM_ABOUT = "KL weight from 0.1 to 1 over the first half"
_MIXED = Mnist(speeds=(-2, -1, 0, 1, 2))

MNIST_MODELS = (
    MNIST, _unknown(MNIST), _perceptrons(MNIST),
    *_OF_MNIST, *_with_convolutions(_OF_MNIST, MNIST),
)  # fmt: skip
MNIST_SETTINGS = (
    *_settings(MNIST, frames=18),
    _kl(MNIST, "kl-warm-up", _WARM_ABOUT, _WARM_UP),
    *_priors(MNIST),
)
SPRITES_MODELS = (
    SPRITES, _unknown(SPRITES), _perceptrons(SPRITES),
    *_OF_SPRITES, *_with_convolutions(_OF_SPRITES, SPRITES),
)  # fmt: skip
SPRITES_SETTINGS = (
    *_settings(SPRITES, frames=15),
    _kl(SPRITES, "kl-warm-up", _WARM_ABOUT, _WARM_UP),
)

#: Digits of any velocity from −2 to 2 levels a frame.
SPEEDS = (
    _changed(
        MNIST, "speeds", "velocity unknown: −2, −1, 0, 1 or 2",
        data=_MIXED, motion=Unknown(_GRID),
    ),
    _changed(MNIST, "speeds-known", "velocity taken for 1", data=_MIXED),
    *(
        replace(recipe, name=f"{MNIST.name}-speeds-{kind}", data=_MIXED)
        for kind, recipe in zip(
            ("tvae", "bubble", "vae"), _with_convolutions(_OF_MNIST, MNIST), strict=True
        )
    ),
)  # fmt: skip

_TOGETHER = replace(MNIST, name="rolling/combined", data=Mnist(motion="combined"))
_APART = Mnist(motion="combined", speeds=(-1, 1))
_GROUPS = Grouped((9, 9), (Unknown(), Unknown()))

#: Rotation and hue at once: as in Figure 1, and in directions that do not depend on each other.
COMBINED = (
    replace(_TOGETHER, motion=_GROUPS, about="two groups of capsules, each of unknown direction"),
    _changed(_TOGETHER, "known", "all capsules move alike, direction given", motion=Known(1)),
    *_with_convolutions(_baselines(_TOGETHER, 13, 3), MNIST),
    _changed(
        _TOGETHER, "directions", "independent directions: two groups of unknown direction",
        data=_APART, motion=_GROUPS,
    ),
    _changed(
        _TOGETHER, "directions-alike",
        "independent directions: all capsules alike, direction unknown",
        data=_APART, motion=Unknown(),
    ),
)  # fmt: skip

#: Sprites of 32 x 32 pixels, for two cores.
SMALL = replace(
    letters.ROLLING,
    name="rolling/sprites-small",
    about="one code a sequence, direction given",
    data=Sprites(resolution=32),
    training=letters.training(steps=12_000, epochs=12),
)


def _as_small(recipes: tuple[Recipe, ...]) -> tuple[Recipe, ...]:
    """The recipes with the optimiser of the paper's models of letters."""
    optimiser = letters.TVAE.training.optimiser
    return tuple(replace(r, training=replace(r.training, optimiser=optimiser)) for r in recipes)


SMALL_MODELS = (SMALL, _unknown(SMALL), *_as_small(_baselines(SMALL, 13, 1)))

_LETTERS = letters.ROLLING


LETTERS_MODELS = (
    _LETTERS,
    _unknown(_LETTERS),
    letters.TVAE,
    replace(
        letters.TVAE,
        name="letters/tvae-5",
        about="shifting coherence over 5 of 15 frames",
        topography=replace(letters.TVAE.topography, window=5),
    ),
    replace(
        letters.TVAE,
        name="letters/bubble",
        about="stationary coherence over 13 of 15 frames",
        topography=replace(letters.TVAE.topography, velocity=0.0),
    ),
    letters.PLAIN,
)
LETTERS_SETTINGS = (
    *_settings(_LETTERS, frames=15),
    _kl(
        _LETTERS, "kl-warm-up", "KL weight from 0.1 to 1 over all steps",
        KLWeight(start=0.1, until=1.0),
    ),
    _kl(_LETTERS, "kl-0.1", "KL weight 0.1 at every step: no bound", KLWeight(0.1, end=0.1)),
    *_priors(_LETTERS),
)  # fmt: skip

#: Letters that turn in either direction, or at any velocity from −2 to 2 turns of 24° a frame.
_EITHER, _ANY = Letters(speeds=(-1, 1)), Letters(speeds=(-2, -1, 0, 1, 2))
LETTERS_SPEEDS = (
    _changed(
        _LETTERS, "either", "either direction, inferred for each sequence",
        data=_EITHER, motion=Unknown(),
    ),
    _changed(_LETTERS, "either-known", "either direction, taken for forwards", data=_EITHER),
    replace(
        letters.TVAE, name="letters/tvae-either", about="either direction, velocity 1",
        data=_EITHER,
    ),
    _changed(
        _LETTERS, "speeds", "velocities −2, −1, 0, 1 and 2, inferred for each sequence",
        data=_ANY, motion=Unknown(_GRID),
    ),
)  # fmt: skip

#: Letters from a share of the glyphs; all of them train for as many steps.
LETTERS_FEW = tuple(
    replace(
        recipe,
        name=f"{recipe.name}-{percent}-percent",
        about=f"{recipe.about}; {percent} % of the glyphs",
        data=Letters(share=percent / 100),
    )
    for recipe in (_LETTERS, LETTERS_MODELS[2], LETTERS_MODELS[-1])
    for percent in (10, 30)
)

#: Digits for two cores.
DIGITS_SMALL = replace(
    SMALL,
    name="rolling/mnist-small",
    data=Mnist(evaluated=SOME),
    topography=Topography(capsules=12, shape=(18,)),
    training=letters.training(steps=4_000, epochs=4),
)
DIGITS_SMALL_MODELS = (DIGITS_SMALL, *_as_small(_baselines(DIGITS_SMALL, 13, 3)))

_TVAE, _, _VAE = _with_convolutions(_OF_MNIST, MNIST)

#: Digits 0 to 7, measured on 8 and 9: on a GPU, and for two cores.
_UNSEEN = (8, 9)
UNSEEN = (
    _changed(MNIST, "unseen", MNIST.about, data=Mnist(unseen=_UNSEEN)),
    replace(_TVAE, name=f"{MNIST.name}-unseen-tvae", data=Mnist(unseen=_UNSEEN)),
    replace(_VAE, name=f"{MNIST.name}-unseen-vae", data=Mnist(unseen=_UNSEEN)),
)
_FEW_SMALL = replace(
    DIGITS_SMALL, name="rolling/mnist-unseen-small", data=Mnist(evaluated=SOME, unseen=_UNSEEN)
)
_SMALL_TVAE, _, _SMALL_VAE = _as_small(_baselines(_FEW_SMALL, 13, 3))
UNSEEN_SMALL = (_FEW_SMALL, _SMALL_TVAE, _SMALL_VAE)

#: Digits from few training images; all of them train for as many steps.
IMAGES = tuple(
    replace(
        recipe,
        name=f"{MNIST.name}-{count}{ending}",
        about=f"{recipe.about}; {count:,} training images",
        data=Mnist(images=count),
    )
    for recipe, ending in ((MNIST, ""), (_TVAE, "-tvae"))
    for count in (100, 1_000, 10_000)
)

#: Letters in a slice of the circle, 8 of 15 frames wide, measured on the whole circle.
LETTERS_ARC = tuple(
    replace(recipe, name=f"{recipe.name}-arc", data=Letters(arc=8))
    for recipe in (_LETTERS, letters.TVAE, letters.PLAIN)
)

ROLLING = (
    *MNIST_MODELS, *MNIST_SETTINGS, *SPRITES_MODELS, *SPRITES_SETTINGS, *SPEEDS, *COMBINED,
    *SMALL_MODELS, *DIGITS_SMALL_MODELS, *LETTERS_MODELS[1:], *LETTERS_SETTINGS,
    *LETTERS_SPEEDS, *LETTERS_FEW, *UNSEEN, *UNSEEN_SMALL, *IMAGES, *LETTERS_ARC,
)  # fmt: skip
