"""Which data a recipe trains on, and which it is measured on."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

import torch

from topocaps.data.mnist import VALIDATION, Digits, digits, mnist
from topocaps.data.sequences import Sequences, SequenceSet
from topocaps.data.sprites import growing_sprites, sprites
from topocaps.data.transforms import MOTIONS, TransformedImages
from topocaps.errors import BadInput, whole_number

SOME = 500  # sequences of every factor, where not all are measured


@dataclass(frozen=True)
class Splits:
    """Sequences to train on and sequences that are held out for measuring."""

    train: SequenceSet
    held_out: SequenceSet
    source: str  #: of the frames
    name: str  #: of what is held out
    each: int | None  #: how many of every factor are measured; all where None


@dataclass(frozen=True)
class Sprites:
    """Sprites, or dSprites where its file is given; a fifth of the orbits is held out."""

    resolution: int = 64
    speed: float = 1.0
    moving: tuple[str, ...] = ()  #: factors that do; all where empty

    def __post_init__(self) -> None:
        _check_resolution(self.resolution)
        if self.speed not in (0.5, 1, 2):
            raise BadInput(f"speed must be 0.5, 1 or 2, not {self.speed!r}")
        moving = (self.moving,) if isinstance(self.moving, str) else tuple(self.moving)
        if not all(isinstance(name, str) for name in moving):
            raise BadInput(f"moving must be names of factors, not {self.moving!r}")
        object.__setattr__(self, "moving", moving)

    def load(self, folder: Path | None = None) -> Splits:
        archive = self._archive(folder)
        source = "dSprites" if archive else "sprites (rendered)"
        found = sprites(self.resolution, archive, self.speed, self.moving)
        return Splits(*found, source, "held-out orbits", SOME)

    def _archive(self, folder: Path | None) -> Path | None:
        """dSprites' own file where there is one in the folder of data."""
        given = folder or os.environ.get("TOPOCAPS_DATA")
        if self.resolution != 64 or self.speed == 0.5 or given is None:
            return None
        return next(iter(sorted(Path(given).glob("dsprites*.npz"))), None)


@dataclass(frozen=True)
class GrowingSprites:
    """Sprites that grow, and do not come round; a fifth of them is held out."""

    resolution: int = 32

    def __post_init__(self) -> None:
        _check_resolution(self.resolution)

    def load(self, folder: Path | None = None) -> Splits:
        found = growing_sprites(self.resolution)
        return Splits(*found, "sprites (rendered)", "held-out sprites", SOME)


def _check_resolution(resolution: object) -> None:
    if not isinstance(resolution, int) or not 8 <= resolution <= 256:
        raise BadInput(f"resolution must be a whole number from 8 to 256, not {resolution!r}")


@dataclass(frozen=True)
class Mnist:
    """Digits that turn, grow or change colour: 48,000 training images, measured on the test set.

    The other 12,000 training images are for choices; see ``topocaps.data.mnist``.
    """

    evaluated: int | None = None  #: test sequences of each factor; all images where None
    motion: str = "single"  #: which factors move together

    def __post_init__(self) -> None:
        if self.evaluated is not None:
            whole_number("evaluated", self.evaluated)
        if self.motion not in MOTIONS:
            raise BadInput(f"motion must be one of {', '.join(MOTIONS)}, not {self.motion!r}")

    def load(self, folder: Path | None = None) -> Splits:
        train, _, test = mnist(folder)
        motion = MOTIONS[self.motion]
        train, test = (TransformedImages(part.images, motion) for part in (train, test))
        return Splits(train, test, "MNIST", "test images", self.evaluated)


@dataclass(frozen=True)
class StillMnist:
    """Digits as they are, grey and upright: sequences of one frame, with their class."""

    def load(self, folder: Path | None = None) -> Splits:
        train, test = digits(folder)
        return Splits(_still(train, VALIDATION), _still(test), "MNIST", "test images", None)


def _still(part: Digits, left_out: int = 0) -> Sequences:
    count = len(part.images) - left_out
    classes = part.classes[:count, None].long()
    return Sequences(part.images[:count, None], torch.arange(count)[:, None], classes, ("class",))


Data = Sprites | GrowingSprites | Mnist | StillMnist
DATA: dict[str, type[Data]] = {
    kind.__name__: kind for kind in (Sprites, GrowingSprites, Mnist, StillMnist)
}
