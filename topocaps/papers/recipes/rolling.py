"""Rolling VAEs and what they are compared with: MNIST, sprites, letters, and two motions at once.

The recipes of MNIST and of sprites of 64 x 64 pixels are for a GPU. Those of letters and of small
sprites train for a few minutes on two cores. Recipes of one table have the same data, sizes of
networks and number of steps.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from topocaps.latents.motion import Grouped, Known, Unknown
from topocaps.latents.topography import Topography
from topocaps.models.priors import Laplace, StudentT
from topocaps.models.visible import Past, RandomFrames, Stretch
from topocaps.papers.recipes import letters
from topocaps.papers.recipes.columns import bubble_of, renamed, vae_of, variant
from topocaps.study.data import SOME, Letters, Mnist, Sprites
from topocaps.study.recipe import Recipe
from topocaps.study.rolling_recipe import RollingRecipe
from topocaps.training import Adam, KLWeight, Muon, Precision, Training

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
_WINDOW = 13  # frames of TVAEs and Bubbles
_MUON = Muon(warmup=100)
_CORRECTION = 64  # channels of the network that corrects the posterior
_GRID = (-2.0, -1.0, 0.0, 1.0, 2.0)  # sites per frame

MNIST = RollingRecipe(
    name="rolling/mnist",
    about="one code per sequence, direction given, convolutions",
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


def _unknown(recipe: RollingRecipe) -> RollingRecipe:
    return renamed(recipe, "unknown", "direction ±1 unknown", motion=Unknown())


def _perceptrons(recipe: RollingRecipe) -> RollingRecipe:
    about = "the same with perceptrons"
    return renamed(recipe, "perceptrons", about, channels=None, hidden=None)


def _settings(
    recipe: RollingRecipe, frames: int, kl: Mapping[str, tuple[str, KLWeight]]
) -> tuple[RollingRecipe, ...]:
    """Return the recipe with one setting changed at a time; ``kl`` has the weights of the KL."""
    changes: dict[str, tuple[str, dict[str, Any]]] = {
        "grid": ("velocity unknown: −2, −1, 0, 1 or 2", {"motion": Unknown(_GRID)}),
        "random-frames": (
            "trained with any 3 or more frames visible", {"visible": RandomFrames(3)},
        ),
        "past": ("trained with the first 3 or more frames visible", {"visible": Past(3)}),
        "all-visible": ("trained with all frames visible", {"visible": Stretch(frames)}),
        "corrected": ("with a network that corrects the posterior", {"correction": _CORRECTION}),
        "muon": ("trained with Muon", {"training": replace(recipe.training, optimiser=_MUON)}),
    }  # fmt: skip
    for ending, (about, weight) in kl.items():
        changes[ending] = about, {"training": replace(recipe.training, kl=weight)}
    return tuple(renamed(recipe, end, about, **new) for end, (about, new) in changes.items())


def _priors(recipe: RollingRecipe) -> tuple[RollingRecipe, ...]:
    """Return the recipe with another prior of the code."""
    about = "Student-t prior of whole capsules, 3 degrees of freedom"
    return (
        renamed(recipe, "student-t", about, prior=StudentT(3)),
        renamed(recipe, "laplace", "Laplace prior", prior=Laplace()),
    )


def _baselines(recipe: RollingRecipe, reach: int) -> tuple[Recipe, ...]:
    """TVAE, Bubble and VAE with the same data, sizes of networks and number of steps."""
    over = f"{_WINDOW} frames, K = {reach}"
    tvae = Recipe(
        name=f"{recipe.name}-tvae",
        about=f"shifting coherence over {over}",
        data=recipe.data,
        topography=replace(recipe.topography, reach=(reach,), window=_WINDOW, velocity=1.0),
        centred=True,
        hidden=None if recipe.channels else recipe.hidden,
        training=recipe.training,
    )
    return (
        tvae,
        bubble_of(tvae, f"{recipe.name}-bubble", f"stationary coherence over {over}"),
        vae_of(tvae, f"{recipe.name}-vae", "the plain VAE"),
    )


def _with_convolutions(recipes: tuple[Recipe, ...], rolling: RollingRecipe) -> tuple[Recipe, ...]:
    networks = {"convolutional": True, "channels": rolling.channels, "hidden": rolling.hidden}
    return tuple(
        variant(recipe, "convolutions", "the same convolutions", **networks) for recipe in recipes
    )


def _hidden(tvae: Recipe) -> Recipe:
    """The same TVAE, trained as rolling VAEs are."""
    return variant(tvae, "hidden", "trained to predict hidden frames", visible=Stretch(3))


_OF_MNIST, _OF_SPRITES = _baselines(MNIST, reach=3), _baselines(SPRITES, reach=1)
_CONVOLUTIONAL = _with_convolutions(_OF_MNIST, MNIST)
_TVAE, _, _VAE = _CONVOLUTIONAL
_WARM_UP = {
    "kl-warm-up": (
        "KL weight from 0.1 to 1 over the first half", KLWeight(start=0.1, until=0.5),
    ),
}  # fmt: skip
_MIXED = Mnist(speeds=(-2, -1, 0, 1, 2))

MNIST_MODELS = (
    MNIST, _unknown(MNIST), _perceptrons(MNIST), *_OF_MNIST, *_CONVOLUTIONAL, _hidden(_TVAE),
)  # fmt: skip
MNIST_SETTINGS = (*_settings(MNIST, 18, _WARM_UP), *_priors(MNIST))
_CONVOLUTIONAL_SPRITES = _with_convolutions(_OF_SPRITES, SPRITES)
SPRITES_MODELS = (
    SPRITES, _unknown(SPRITES), _perceptrons(SPRITES),
    *_OF_SPRITES, *_CONVOLUTIONAL_SPRITES, _hidden(_CONVOLUTIONAL_SPRITES[0]),
)  # fmt: skip
SPRITES_SETTINGS = _settings(SPRITES, 15, _WARM_UP)

#: Digits of any velocity from −2 to 2 levels a frame.
SPEEDS = (
    renamed(
        MNIST, "speeds", "velocity unknown: −2, −1, 0, 1 or 2", data=_MIXED, motion=Unknown(_GRID)
    ),
    renamed(MNIST, "speeds-known", "velocity taken for 1", data=_MIXED),
    *(
        replace(recipe, name=f"{MNIST.name}-speeds-{kind}", data=_MIXED)
        for kind, recipe in zip(("tvae", "bubble", "vae"), _CONVOLUTIONAL, strict=True)
    ),
)

_TOGETHER = replace(MNIST, name="rolling/combined", data=Mnist(motion="combined"))
_APART = {"data": Mnist(motion="combined", speeds=(-1, 1))}
_GROUPS = Grouped((9, 9), (Unknown(), Unknown()))
_DIRECTIONS = "independent directions:"

#: Rotation and hue at once: as in Figure 1, and in directions that do not depend on each other.
COMBINED = (
    replace(_TOGETHER, motion=_GROUPS, about="two groups of capsules, each of unknown direction"),
    renamed(_TOGETHER, "known", "all capsules move alike, direction given", motion=Known(1)),
    *_with_convolutions(_baselines(_TOGETHER, reach=3), MNIST),
    renamed(
        _TOGETHER, "directions", f"{_DIRECTIONS} two groups of unknown direction",
        **_APART, motion=_GROUPS,
    ),
    renamed(
        _TOGETHER, "directions-alike", f"{_DIRECTIONS} all capsules alike, direction unknown",
        **_APART, motion=Unknown(),
    ),
)  # fmt: skip

#: Sprites of 32 x 32 pixels, for two cores.
SMALL = replace(
    letters.ROLLING,
    name="rolling/sprites-small",
    about="one code per sequence, direction given",
    data=Sprites(resolution=32),
    training=letters.training(steps=12_000, epochs=12),
)


def _as_small(recipes: tuple[Recipe, ...]) -> tuple[Recipe, ...]:
    """The recipes with the optimiser of the paper's models of letters."""
    optimiser = letters.TVAE.training.optimiser
    return tuple(replace(r, training=replace(r.training, optimiser=optimiser)) for r in recipes)


_BESIDE_SMALL = _as_small(_baselines(SMALL, reach=1))
_CORRECTED_SMALL = renamed(
    SMALL, "corrected", "with a network that corrects the posterior", correction=_CORRECTION
)
SMALL_MODELS = (
    SMALL, _CORRECTED_SMALL, _unknown(SMALL), *_BESIDE_SMALL, _hidden(_BESIDE_SMALL[0]),
)  # fmt: skip

_LETTERS, _TVAE_OF_LETTERS = letters.ROLLING, letters.TVAE
LETTERS_MODELS = (
    _LETTERS,
    _unknown(_LETTERS),
    _TVAE_OF_LETTERS,
    renamed(
        _TVAE_OF_LETTERS, "5", "shifting coherence over 5 of 15 frames",
        topography=replace(_TVAE_OF_LETTERS.topography, window=5),
    ),
    letters.HIDDEN_FRAMES,
    bubble_of(_TVAE_OF_LETTERS, "letters/bubble", "stationary coherence over 13 of 15 frames"),
    letters.PLAIN,
)  # fmt: skip
_KL_OF_LETTERS = {
    "kl-warm-up": ("KL weight from 0.1 to 1 over all steps", KLWeight(start=0.1, until=1.0)),
    "kl-0.1": ("KL weight 0.1 at every step: no bound", KLWeight(0.1, end=0.1)),
}
LETTERS_SETTINGS = (*_settings(_LETTERS, 15, _KL_OF_LETTERS), *_priors(_LETTERS))

#: Letters that turn in either direction, or at any velocity from −2 to 2 turns of 24° per frame.
_EITHER, _ANY = Letters(speeds=(-1, 1)), Letters(speeds=(-2, -1, 0, 1, 2))
LETTERS_SPEEDS = (
    renamed(
        _LETTERS, "either", "either direction, inferred for each sequence",
        data=_EITHER, motion=Unknown(),
    ),
    renamed(_LETTERS, "either-known", "either direction, taken for forwards", data=_EITHER),
    renamed(_TVAE_OF_LETTERS, "either", "either direction, velocity 1", data=_EITHER),
    renamed(
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
    for recipe in letters.LETTERS
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
DIGITS_SMALL_MODELS = (DIGITS_SMALL, *_as_small(_baselines(DIGITS_SMALL, reach=3)))

#: Digits for two cores, with small convolutions.
DIGITS_CONVOLUTIONS = replace(
    DIGITS_SMALL,
    name="rolling/mnist-small-convolutions",
    about="one code per sequence, direction given, small convolutions, trained with Muon",
    hidden=(256,),
    channels=(16, 32, 64),
    training=replace(DIGITS_SMALL.training, optimiser=_MUON),
)
_TVAE_SMALL, _, _VAE_SMALL = _with_convolutions(
    _baselines(DIGITS_CONVOLUTIONS, reach=3), DIGITS_CONVOLUTIONS
)
DIGITS_CONVOLUTIONS_MODELS = (
    DIGITS_CONVOLUTIONS,
    renamed(
        DIGITS_CONVOLUTIONS, "adam", "the same, trained with Adam",
        training=replace(DIGITS_SMALL.training, optimiser=_TRAINING.optimiser),
    ),
    renamed(
        DIGITS_CONVOLUTIONS, "corrected", "with a network that corrects the posterior",
        correction=_CORRECTION,
    ),
    *(replace(r, name=r.name.removesuffix("-convolutions")) for r in (_TVAE_SMALL, _VAE_SMALL)),
)  # fmt: skip

#: Digits 0 to 7, measured on 8 and 9: on a GPU, and for two cores.
_UNSEEN = (8, 9)
UNSEEN = tuple(
    replace(recipe, name=f"{MNIST.name}-unseen{ending}", data=Mnist(unseen=_UNSEEN))
    for recipe, ending in ((MNIST, ""), (_TVAE, "-tvae"), (_VAE, "-vae"))
)
UNSEEN_SMALL = tuple(
    replace(
        recipe,
        name=recipe.name.replace("small", "unseen-small"),
        data=Mnist(evaluated=SOME, unseen=_UNSEEN),
    )
    for recipe in (*DIGITS_SMALL_MODELS[:2], DIGITS_SMALL_MODELS[-1])
)

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
    replace(recipe, name=f"{recipe.name}-arc", data=Letters(arc=8)) for recipe in letters.LETTERS
)

ROLLING = (
    *MNIST_MODELS, *MNIST_SETTINGS, *SPRITES_MODELS, *SPRITES_SETTINGS, *SPEEDS, *COMBINED,
    *SMALL_MODELS, *DIGITS_SMALL_MODELS, *DIGITS_CONVOLUTIONS_MODELS, *LETTERS_MODELS[1:],
    *LETTERS_SETTINGS,
    *LETTERS_SPEEDS, *LETTERS_FEW, *UNSEEN, *UNSEEN_SMALL, *IMAGES, *LETTERS_ARC,
)  # fmt: skip
