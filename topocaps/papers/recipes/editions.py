"""Editions: complete sets of settings for the experiments of Keller and Welling (2021).

The paper exists in two texts, the submission and the camera-ready, and in the released code. They
differ in settings that decide the numbers. An ``Edition`` states all of these settings for one
data set, and a table states its edition.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from topocaps.models.networks import Fan, Norm
from topocaps.training import Precision, Sgd, Training


@dataclass(frozen=True, kw_only=True)
class Edition:
    """All settings that an edition fixes, for one data set.

    L is half the window of W. "L = 0" is a window of one frame.
    """

    name: str  #: second part of the names of its recipes
    source: str  #: source of the settings
    encoder_fan: Fan = Fan.IN  #: which side of a layer bounds the encoders' initial weights
    decoder_fan: Fan = Fan.IN  #: the same for the decoder
    epsilon: float = 0.0  #: number added to every energy if L > 0, and in Bubbles
    epsilon_single: float = 0.0  #: number added to every energy if L = 0
    corners: bool = True  #: whether W has the full K at the ends of the window (Eq. 9)
    norm: Norm = Norm.NONE  #: normalisation of the weights of topographic models
    reach: int  #: K of TVAEs with L > 0
    reach_single: int  #: K of TVAEs with L = 0
    whole_bubbles: bool = False  #: whether K of a Bubble is its window instead of ``reach``
    clip: float | None = None  #: largest norm of the gradient of TVAEs with L > 0
    clip_single: float | None = None  #: largest norm of the gradient of TVAEs with L = 0
    #: row and column of the pixel about which digits turn and scale [the middle of the image]
    centre: float | None = None
    training: Training  #: training of all models but the torus; its clip is for Bubbles and VAEs
    torus: Training  #: training of the torus of Figure 3
    torus_mu: float  #: initial mu of the torus
    mu: float = -30.0  #: initial mu of the other models, in the sign of Eq. 6


CAMERA_READY, LETTER = "camera-ready", "letter"
SUBMISSION, SUBMISSION_RELEASED = "submission", "submission-released"

#: Largest norm of the gradient of models that often diverge without gradient clipping: those with
#: L = 0, and TVAEs of sprites (benchmarks/results/divergence-h200.json).
CLIP = 1000.0

#: A.1: SGD, batches of 8 sequences, 100 epochs. Products are in bf16, which the papers did not use.
_TRAINING = Training(
    optimiser=Sgd(lr=1e-4, momentum=0.9), batch=8, epochs=100, precision=Precision.BF16
)

_LETTER = Edition(
    name=LETTER,
    source="the camera-ready's text, to the letter",
    reach=3,
    reach_single=3,
    clip_single=CLIP,
    training=_TRAINING,
    torus=replace(_TRAINING, optimiser=Sgd(lr=1e-3, momentum=0.9), batch=128),
    torus_mu=-5.0,
)

_RELEASED = replace(
    _LETTER,
    name=CAMERA_READY,
    source="the released code",
    decoder_fan=Fan.OUT,
    epsilon=1e-6,
    epsilon_single=1e-6,
    corners=False,
    clip_single=None,
    centre=14.0,
    torus=replace(_TRAINING, batch=128, epochs=250),
    torus_mu=-10.0,
)

_SUBMISSION = replace(
    _LETTER,
    name=SUBMISSION,
    source="the submission's text, to the letter",
    norm=Norm.WEIGHT,
    reach_single=9,
    whole_bubbles=True,
)

_SUBMISSION_RELEASED = replace(
    _RELEASED,
    name=SUBMISSION_RELEASED,
    source="the submission's text, and the released code for what the text does not state",
    norm=Norm.WEIGHT,
    reach_single=9,
    whole_bubbles=True,
)

MNIST: Mapping[str, Edition] = {
    edition.name: edition for edition in (_RELEASED, _LETTER, _SUBMISSION, _SUBMISSION_RELEASED)
}


def _of_sprites(edition: Edition, **changes: Any) -> Edition:
    """Return an edition for sprites: K = 1, and epochs of as many sequences as there are images."""
    training = replace(edition.training, epoch_size=50_625)
    return replace(edition, reach=1, whole_bubbles=True, centre=None, training=training, **changes)


SPRITES: Mapping[str, Edition] = {
    edition.name: edition
    for edition in (
        _of_sprites(_RELEASED, epsilon_single=1e-3),
        _of_sprites(_LETTER, clip=CLIP),
        _of_sprites(_SUBMISSION, reach_single=10, clip=CLIP),
        _of_sprites(_SUBMISSION_RELEASED, epsilon_single=1e-3, reach_single=10),
    )
}
