"""Tables of predictions of hidden frames: rolling VAEs beside the papers' models."""

from __future__ import annotations

from typing import Any

from topocaps.papers.quantities import PROBES_OF_CODES, SPRITE_FACTORS, predictions
from topocaps.papers.recipes import letters, rolling
from topocaps.papers.table import Table
from topocaps.study.recipe import BaseRecipe

#: The section of the results page that explains these tables.
GUIDE = """<a id="hidden-frames"></a>

## How to read the tables of hidden frames

These tables compare rolling VAEs with TVAEs, Bubbles and VAEs.

- *n visible*: the gain on hidden frames if n contiguous frames of a held-out sequence, at a random
  position, are visible. All models predict the same frames. Hidden frames that equal a visible one
  do not count, except in the lines *all frames*. Codes are posterior means. Values of a single seed
  have 95 % intervals over at most 300 sequences.
- *log p(x) ≥*: lower bounds with K samples, in nats per frame. All frames are visible. If a model
  is given the motion, its bound is conditional on it. Frames of a VAE are independent, so its
  samples are weighted for each frame. This is also a bound on whole sequences, and tighter than
  with weights of whole sequences, which the other models need.
- *seconds*: training time, divided by the number of seeds that trained at the same time.
- *Training*: a rolling VAE sees some frames of a sequence in training, and decodes all of them. The
  same holds for a TVAE that is *trained to predict hidden frames*. Other TVAEs, Bubbles and VAEs
  are trained as in the paper, with all frames visible. Frames are hidden from them only when gains
  are measured. They predict a hidden frame by a roll of t of the nearest visible frame, by one site
  per frame.
- *Networks*: all models of a table have the same data, widths of networks and number of steps.
  TVAEs and Bubbles have a second encoder, for u. Convolutional networks and their initialisation
  are the same for all models. Perceptrons of rolling VAEs have SiLU and the initialisation of He et
  al. (2015). Perceptrons of TVAEs, Bubbles and VAEs have ReLU and PyTorch's initialisation, as in
  the paper.
- *Optimisers*: for MNIST and for sprites of 64 x 64 pixels, all models have the same optimiser. For
  letters, and in tables for two cores, optimisers differ. Rolling VAEs have Adam with a learning
  rate of 0.003, β = (0.9, 0.99) and a warm-up of 100 steps. TVAEs, Bubbles and VAEs have Adam with
  a learning rate of 0.002, β = (0.9, 0.95) and no warm-up. Rows *trained with Muon* have a learning
  rate of 0.005 and a warm-up of 100 steps.
- *A network that corrects the posterior*: see [rolling VAE](../docs/rolling.md#correction)."""
_READ = "[How to read it](#hidden-frames)."


def _predictions(
    title: str,
    recipes: tuple[BaseRecipe, ...],
    note: str = "",
    predicted: tuple[str, ...] = (),
    seeds: int = 3,
    **lines: Any,
) -> Table:
    """Return a table of gains on hidden frames, with ``lines`` as arguments of `predictions`."""
    return Table(
        title,
        recipes,
        predictions(**lines),
        picture="predicted",
        note=f"{note} {_READ}".strip(),
        seeds=seeds,
        predicted=predicted,
        one_by_one=True,
    )


def _beside(name: str, networks: str = "") -> tuple[str, ...]:
    """Return the names of a rolling VAE, and of the TVAE and the VAE of the same table."""
    return (name, *(f"{name}-{kind}{networks}" for kind in ("tvae", "vae")))


def _probed(title: str, recipes: tuple[BaseRecipe, ...], seeds: int) -> Table:
    """Return a table of linear probes of the class of digits."""
    return Table(
        title,
        recipes,
        PROBES_OF_CODES,
        picture="predicted",
        note="Test accuracy of a linear probe on moving digits in any pose and hue. The header "
        "states the number of labelled training sequences. *t*: the code. A rolling VAE infers it "
        "from all frames, a topographic model from the frames of a window, a VAE from one frame. "
        "*of one frame*: the code that a rolling VAE infers from one frame. *power*: the power of "
        "each frequency along the sites of every capsule, which no roll changes. *pixels*: those "
        f"of one frame. {_READ}",
        seeds=seeds,
        one_by_one=True,
    )


_LETTERS = tuple(recipe.name for recipe in letters.LETTERS)
_PROBED = ("mnist", "mnist-unknown", "tvae-convolutions", "vae-convolutions")
_OF_ALL_IMAGES = ("rolling/mnist", "rolling/mnist-tvae-convolutions")
_DIGITS = ("rotation", "scale", "hue")
_SPRITE_LINES: dict[str, Any] = {"factors": SPRITE_FACTORS, "repeated": ("scale",)}
_ONE_CHANGED = "The first row is the reference. Every other row differs from it in one setting."
_NO_EIGHTS = (
    "There is no image of an 8 or a 9 in training. Test sequences show only these two digits."
)
_SPEEDS = (
    "*speed n*: sequences that move by n levels per frame, forwards or backwards. Sequences that "
    "stand still have no frames to predict, so there is no line for speed 0."
)
_SCALE = (
    "Scale repeats every 5 frames. With 5 or more visible frames, its hidden frames equal visible "
    "ones. The first line of a model is then the mean over the other factors."
)

ROLLING_TABLES = {
    "rolling-mnist": _predictions(
        "Rolling VAE: MNIST sequences",
        rolling.MNIST_MODELS,
        factors=_DIGITS,
        predicted=_beside("rolling/mnist", "-convolutions"),
    ),
    "rolling-mnist-settings": _predictions(
        "Rolling VAE: MNIST sequences, one setting changed",
        (rolling.MNIST, *rolling.MNIST_SETTINGS),
        _ONE_CHANGED,
        factors=_DIGITS,
        seeds=1,
    ),
    "rolling-sprites": _predictions(
        "Rolling VAE: sprites of 64 x 64 pixels",
        rolling.SPRITES_MODELS,
        _SCALE,
        **_SPRITE_LINES,
        predicted=_beside("rolling/sprites", "-convolutions"),
    ),
    "rolling-sprites-settings": _predictions(
        "Rolling VAE: sprites, one setting changed",
        (rolling.SPRITES, *rolling.SPRITES_SETTINGS),
        f"{_ONE_CHANGED} {_SCALE}",
        **_SPRITE_LINES,
        seeds=1,
    ),
    "rolling-speeds": _predictions(
        "Rolling VAE: digits of different velocities",
        rolling.SPEEDS,
        "The velocity of a sequence is one of −2, −1, 0, 1 and 2 levels per frame. The first model "
        f"infers it, the others assume 1. {_SPEEDS} At speed 2 a sequence repeats after 9 frames, "
        "so with 9 visible frames all hidden ones equal visible ones.",
        factors=_DIGITS,
        speeds=(1, 2),
        returning=(2,),
    ),
    "rolling-combined": _predictions(
        "Rolling VAE: rotation and hue together",
        rolling.COMBINED,
        "Digits turn and change hue as in Figure 1. *independent directions*: each of the two "
        "motions goes forwards or backwards. These rows have other test sequences than the rows "
        "above them.",
        predicted=_beside("rolling/combined", "-convolutions"),
    ),
    "rolling-small": _predictions(
        "Rolling VAE: sprites of 32 x 32 pixels, for two cores",
        rolling.SMALL_MODELS,
        _SCALE,
        **_SPRITE_LINES,
        predicted=_beside("rolling/sprites-small"),
        seeds=1,
    ),
    "rolling-convolutions-small": _predictions(
        "Rolling VAE: MNIST sequences with small convolutions, for two cores",
        rolling.DIGITS_CONVOLUTIONS_MODELS,
        "All models but that of the second row are trained with Muon. Its learning rate was chosen "
        "for the rolling VAE, on validation images.",
        factors=_DIGITS,
        predicted=_beside("rolling/mnist-small-convolutions"),
        seeds=1,
    ),
    "letters-models": _predictions(
        "Rolling VAE: letters that turn, for two cores",
        rolling.LETTERS_MODELS,
        "Letters are held out in all faces.",
        predicted=_LETTERS,
    ),
    "letters-settings": _predictions(
        "Rolling VAE: letters, one setting changed",
        (rolling.LETTERS_MODELS[0], *rolling.LETTERS_SETTINGS),
        _ONE_CHANGED,
        seeds=1,
    ),
    "letters-speeds": _predictions(
        "Rolling VAE: letters that turn in either direction, or at any speed",
        rolling.LETTERS_SPEEDS,
        "Half of the sequences turn backwards. In the last row, each of five velocities has a "
        f"fifth of the sequences. {_SPEEDS}",
        seeds=1,
        speeds=(1, 2),
    ),
    "letters-few": _predictions(
        "Rolling VAE: letters, from fewer glyphs",
        (*letters.LETTERS, *rolling.LETTERS_FEW),
        "A glyph is a letter in a face. Models are trained on 10 %, 30 % or all of the 588 glyphs, "
        "for the same number of steps.",
        seeds=1,
    ),
    "letters-arc": _predictions(
        "Rolling VAE: letters, trained on a slice of the circle",
        rolling.LETTERS_ARC,
        "In a training sequence, 8 of 15 frames are present: those in which the letter is within "
        "96° of upright. Held-out letters turn by the whole circle, and their visible frames are "
        "in the slice. *in the slice*, *outside*: gains on hidden frames there. Training has no "
        "letter outside the slice, but strokes on every side of the centre. Some letters outside "
        "the slice look like others inside it: half a turn does not change o and s, and makes n a "
        "u.",
        predicted=tuple(f"{name}-arc" for name in _LETTERS),
        seeds=1,
        poses={"in the slice": "in_training", "outside": "not_in_training"},
    ),
    "rolling-unseen": _predictions(
        "Rolling VAE: trained on digits 0 to 7, tested on 8 and 9",
        rolling.UNSEEN,
        _NO_EIGHTS,
        factors=_DIGITS,
        predicted=_beside("rolling/mnist-unseen"),
        seeds=1,
    ),
    "rolling-unseen-small": _predictions(
        "Rolling VAE: trained on digits 0 to 7, tested on 8 and 9, for two cores",
        rolling.UNSEEN_SMALL,
        _NO_EIGHTS,
        factors=_DIGITS,
        predicted=_beside("rolling/mnist-unseen-small"),
        seeds=1,
    ),
    "rolling-images": _predictions(
        "Rolling VAE: MNIST sequences, from fewer images",
        (*(r for r in rolling.MNIST_MODELS if r.name in _OF_ALL_IMAGES), *rolling.IMAGES),
        "Models are trained on the first 100, 1,000 or 10,000 of the 48,000 images, equally many "
        "of each digit, or on all of them, for the same number of steps. Every step moves the "
        "images anew.",
        factors=_DIGITS,
        seeds=1,
    ),
    "rolling-digits": _probed(
        "Rolling VAE: linear probes of the digit",
        tuple(r for r in rolling.MNIST_MODELS if r.name.endswith(_PROBED)),
        seeds=3,
    ),
    "rolling-digits-small": _probed(
        "Rolling VAE: linear probes of the digit, for two cores",
        rolling.DIGITS_SMALL_MODELS,
        seeds=1,
    ),
}  # fmt: skip
