"""Tables of what models predict of hidden frames: rolling VAEs beside the papers' models."""

from __future__ import annotations

from typing import Any

from topocaps.papers.quantities import PROBES_OF_CODES, SPRITE_FACTORS, predictions
from topocaps.papers.recipes import letters, rolling
from topocaps.papers.table import Table
from topocaps.study.recipe import BaseRecipe

#: Section of the page that explains these tables.
GUIDE = """<a id="hidden-frames"></a>

## How to read the tables of hidden frames

These are the tables of rolling VAEs and of what they are compared with.

- *n visible*: the gain on hidden frames when n contiguous frames of a held-out sequence are shown,
  from a place that is drawn. All models are asked for the same frames. Hidden frames that equal a
  visible one do not count, except in the lines *all frames*. Codes are posterior means. The values
  of a single seed have 95 % intervals over at most 300 sequences.
- *log p(x) ≥*: bounds with K samples, nats a frame. All frames are visible, and the bound of a
  model with a given motion is conditional on it. Samples of a VAE are weighted frame by frame: its
  frames are independent, so this is a bound on whole sequences, and tighter than with the weights
  of whole sequences that the other models need.
- *seconds*: of training, divided by the number of seeds that trained at the same time.
- *Training*: the rolling VAE is shown some frames and asked for all, and so is a TVAE that is
  *trained to predict hidden frames*. The other TVAEs, Bubble and VAE are trained as in the paper,
  with all frames visible; frames are hidden from them only when gains are measured. They predict a
  hidden frame by a roll of t of the nearest visible frame, one site a frame.
- *Networks*: all models of a table have the same data, widths of networks and number of steps. TVAE
  and Bubble have a second encoder, for u. Convolutional networks are alike in all models, and so is
  their initialisation. Perceptrons of the rolling VAE have SiLU and are initialised as He et al.
  (2015) propose. Those of TVAE, Bubble and VAE have ReLU and PyTorch's initialisation, as in the
  paper.
- *Optimisers*: of MNIST and of sprites of 64 x 64 pixels, the same for all models. Of letters, and
  in tables for two cores, they differ: Adam with a learning rate of 0.003, β = (0.9, 0.99) and a
  warm-up of 100 steps for the rolling VAE; with 0.002, (0.9, 0.95) and no warm-up for TVAE, Bubble
  and VAE."""
_READ = "[How to read it](#hidden-frames)."


def _predictions(
    title: str,
    recipes: tuple[BaseRecipe, ...],
    note: str = "",
    predicted: tuple[str, ...] = (),
    seeds: int = 3,
    **lines: Any,
) -> Table:
    """Return a table of gains on hidden frames; ``lines`` are arguments of `predictions`."""
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
    """Return the names of a rolling VAE and of the TVAE and the VAE that it is compared with."""
    return (name, *(f"{name}-{kind}{networks}" for kind in ("tvae", "vae")))


def _probed(title: str, recipes: tuple[BaseRecipe, ...], seeds: int) -> Table:
    return Table(
        title,
        recipes,
        PROBES_OF_CODES,
        picture="predicted",
        note="Test accuracy of a linear probe on moving digits in any pose and hue. The header "
        "states the number of labelled training sequences. *t*: the code; a rolling VAE infers it "
        "from all frames, a topographic model from the frames of a window, a VAE from one frame. "
        "*of one frame*: the code of a rolling VAE that sees one frame. *power*: the power of each "
        "frequency along the sites of every capsule, which no roll changes. *pixels*: one frame. "
        f"{_READ}",
        seeds=seeds,
        one_by_one=True,
    )


_LETTERS = tuple(recipe.name for recipe in letters.LETTERS)
_PROBED = ("mnist", "mnist-unknown", "tvae-convolutions", "vae-convolutions")
_OF_ALL_IMAGES = ("rolling/mnist", "rolling/mnist-tvae-convolutions")
_DIGITS = ("rotation", "scale", "hue")
_SPRITE_LINES: dict[str, Any] = {"factors": SPRITE_FACTORS, "repeated": ("scale",)}
_ONE_CHANGED = "The first row is the reference. Each other row differs from it in one setting."
_NO_EIGHTS = (
    "Training has no image of an 8 or a 9. Test sequences show images of these two digits alone."
)
_SPEEDS = (
    "*speed n*: sequences that move by n levels a frame, forwards or backwards. What stands still "
    "leaves no frames to predict, so speed 0 has no line."
)
_SCALE = (
    "Scale repeats every 5 frames. With 5 or more visible frames it has no new frames to predict, "
    "so the first line of a model is then the mean over the other factors."
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
        "The velocity of a sequence is one of −2, −1, 0, 1 and 2 levels a frame. Models other than "
        f"the first take it for 1. {_SPEEDS} At speed 2 a sequence repeats after 9 frames, so "
        "9 visible ones leave no new frames.",
        factors=_DIGITS,
        speeds=(1, 2),
        returning=(2,),
    ),
    "rolling-combined": _predictions(
        "Rolling VAE: rotation and hue together",
        rolling.COMBINED,
        "Digits turn and change hue as in Figure 1. *Independent directions*: each of the two "
        "motions goes forwards or backwards. Test sequences of the two kinds differ.",
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
        "Half of the sequences turn backwards; in the last row, a fifth has each velocity. "
        f"{_SPEEDS}",
        seeds=1,
        speeds=(1, 2),
    ),
    "letters-few": _predictions(
        "Rolling VAE: letters, from fewer glyphs",
        (*letters.LETTERS, *rolling.LETTERS_FEW),
        "A glyph is a letter in a face; models train on 10 %, 30 % or all of the 588, for as many "
        "steps.",
        seeds=1,
    ),
    "letters-arc": _predictions(
        "Rolling VAE: letters, trained on a slice of the circle",
        rolling.LETTERS_ARC,
        "A training sequence has 8 of its 15 frames: those in which the letter is within 96° of "
        "upright. The others are missing. Held-out letters turn by the whole circle; visible "
        "frames are in the slice. *in the slice*, *outside*: hidden frames there. Training shows "
        "no letter outside the slice, but strokes on every side of the centre. Some letters look "
        "outside it as others do inside: o and s do not change by half a turn, and n becomes u.",
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
        "Models train on the first 100, 1,000 or 10,000 of the 48,000 images, of each digit "
        "equally many, or on all, for as many steps. Every step moves images anew.",
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
