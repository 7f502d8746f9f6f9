"""The data of recipes: training, validation and held-out sequences."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, ClassVar, get_args

import torch

from topocaps.data.importing.read import read
from topocaps.data.importing.split import Imported, split
from topocaps.data.letter_images import FRAMES, letters
from topocaps.data.mnist_files import LECUN_1998, SIDE, Digits, digit_splits
from topocaps.data.moved import MovedDigits, Moves, check_moves
from topocaps.data.sequences import Sequences, SequenceSet
from topocaps.data.shifted import ShiftedSequences
from topocaps.data.sprite_images import MATTHEY_2017, growing_sprites, sprites
from topocaps.data.subsets import (
    at_speeds,
    from_slice,
    in_slice,
    some_glyphs,
    some_images,
    split_by_digit,
    without_others,
)
from topocaps.data.transforms import MOTIONS, TransformedImages, check_centre
from topocaps.errors import BadInput, whole_number
from topocaps.study.changes import Check, check_fields, optional
from topocaps.study.fingerprint import pairs, stable

SOME = 500  # sequences of every factor that are measured, if not all are


@dataclass(frozen=True)
class Splits:
    """Training sequences, and held-out sequences for evaluation."""

    train: SequenceSet
    held_out: SequenceSet
    source: str  #: origin of the frames
    name: str  #: name of the held-out sequences in reports
    each: int | None  #: number of held-out sequences of every factor that are measured [all]
    validation: SequenceSet | None = None  #: sequences for the choice of settings and epochs
    whole_train: SequenceSet | None = None  #: ``train`` with all frames, if ``train`` lacks some

    @property
    def measured_train(self) -> SequenceSet:
        """Training sequences with all frames, on which numbers for training are measured."""
        return self.train if self.whole_train is None else self.whole_train


@dataclass(frozen=True)
class Sprites:
    """Rendered sprites, or dSprites if the folder of data has its file.

    A fifth of the orbits is held out.
    """

    citations: ClassVar[tuple[str, ...]] = (MATTHEY_2017,)
    resolution: int = 64
    speed: float = 1.0
    moving: tuple[str, ...] = ()  #: factors that move [all]

    def __post_init__(self) -> None:
        check_fields(self, resolution=_resolution, moving=several(str, "names of factors"))
        if self.speed not in (0.5, 1, 2):
            raise BadInput(f"speed must be 0.5, 1 or 2, not {self.speed!r}")

    def identity(self) -> dict[str, Any]:
        return stable(
            "sprites",
            resolution=(self.resolution, None),
            speed=(float(self.speed), 1.0),
            moving=(self.moving, ()),
        )

    def load(self, folder: Path | None = None) -> Splits:
        archive = self._archive(folder)
        source = "dSprites" if archive else "sprites (rendered)"
        train, held_out = sprites(self.resolution, archive, self.speed, self.moving)
        return Splits(train, held_out, source, "held-out orbits", SOME)

    def _archive(self, folder: Path | None) -> Path | None:
        """Return the file of dSprites in the folder of data, or None."""
        location = folder or os.environ.get("TOPOCAPS_DATA")
        if self.resolution != 64 or self.speed == 0.5 or location is None:
            return None
        return next(iter(sorted(Path(location).glob("dsprites*.npz"))), None)


@dataclass(frozen=True)
class GrowingSprites:
    """Sprites that grow, in sequences that are not closed. A fifth of the sprites is held out."""

    citations: ClassVar[tuple[str, ...]] = (MATTHEY_2017,)
    resolution: int = 32

    def __post_init__(self) -> None:
        check_fields(self, resolution=_resolution)

    def identity(self) -> dict[str, Any]:
        return stable("growing-sprites", **pairs(self, resolution=None))

    def load(self, folder: Path | None = None) -> Splits:
        train, held_out = growing_sprites(self.resolution)
        return Splits(train, held_out, "sprites (rendered)", "held-out sprites", SOME)


def _resolution(name: str, value: Any) -> int:
    if not isinstance(value, int) or not 8 <= value <= 256:
        raise BadInput(f"{name} must be a whole number from 8 to 256, not {value!r}")
    return value


@dataclass(frozen=True)
class Mnist:
    """MNIST digits that turn, grow or change colour.

    MNIST's training set gives 48,000 training images and 12,000 validation images. The test set is
    held out. Digits that are ``unseen`` are left out of training and validation, and the test set
    then has these digits alone.
    """

    citations: ClassVar[tuple[str, ...]] = (LECUN_1998,)
    evaluated: int | None = None  #: number of test sequences of each factor [all images]
    motion: str = "single"  #: which factors move together
    #: row and column of the pixel about which digits turn and scale [the middle of the image]
    centre: float | None = None
    speeds: tuple[int, ...] = (1,)  #: levels per frame; every moving factor gets one at random
    unseen: tuple[int, ...] = ()  #: digits that are held out, such as (8, 9)
    #: number of training images, taken from the first images of every digit [all]
    images: int | None = None

    def __post_init__(self) -> None:
        if self.motion not in MOTIONS:
            raise BadInput(f"motion must be one of {', '.join(MOTIONS)}, not {self.motion!r}")
        check_fields(
            self,
            evaluated=optional(whole_number),
            centre=lambda _, value: check_centre(value, MOTIONS[self.motion], SIDE, SIDE),
            speeds=_speeds,
            unseen=_some_digits,
            images=optional(whole_number),
        )

    def identity(self) -> dict[str, Any]:
        return stable(
            "mnist-sequences",
            measured=(self.evaluated, None),
            **pairs(self, motion="single", centre=None, speeds=(1,), unseen=(), images=None),
        )

    def load(self, folder: Path | None = None) -> Splits:
        motion = MOTIONS[self.motion]
        if self.speeds != motion.speeds:
            motion = replace(motion, speeds=self.speeds)

        def sequences(part: Digits) -> TransformedImages:
            return TransformedImages(part.images, motion, centre=self.centre)

        parts = digit_splits(folder)
        name = "test images"
        if self.unseen:
            parts = split_by_digit(parts, self.unseen)
            name = f"test images of {', '.join(map(str, self.unseen))}"
        if self.images is not None:
            parts = (some_images(parts[0], self.images), *parts[1:])
        return _of_mnist(parts, sequences, self.evaluated, name)


@dataclass(frozen=True)
class StillMnist:
    """MNIST digits as they are, grey and upright: sequences of one frame, with their class."""

    citations: ClassVar[tuple[str, ...]] = (LECUN_1998,)

    def identity(self) -> dict[str, Any]:
        return stable("mnist-images")

    def load(self, folder: Path | None = None) -> Splits:
        return _of_mnist(digit_splits(folder), _still)


@dataclass(frozen=True)
class MovedMnist:
    """MNIST digits that are moved at random within bounds, anew whenever they are shown."""

    citations: ClassVar[tuple[str, ...]] = (LECUN_1998,)
    degrees: float = 0.0
    canvas: int = 28
    shift: float | None = 0.0  #: pixels; None: any shift that leaves all ink on the canvas
    shear: float = 0.0
    scale: tuple[float, float] = (1.0, 1.0)

    def __post_init__(self) -> None:
        if not isinstance(self.scale, tuple | list) or len(self.scale) != 2:
            raise BadInput(
                f"scale must be two numbers, the least and the greatest, not {self.scale!r}"
            )
        object.__setattr__(self, "scale", tuple(self.scale))
        check_moves(self.moves)

    @property
    def moves(self) -> Moves:
        return Moves(**asdict(self))

    def identity(self) -> dict[str, Any]:
        return stable(
            "mnist-images-moved",
            **pairs(self, degrees=0.0, canvas=None),
            shift=("ink stays on the canvas" if self.shift is None else self.shift, 0.0),
            **pairs(self, shear=0.0, scale=(1.0, 1.0)),
        )

    def load(self, folder: Path | None = None) -> Splits:
        return _of_mnist(
            digit_splits(folder), lambda part: MovedDigits(part.images, part.classes, self.moves)
        )


@dataclass(frozen=True)
class Letters:
    """Letters that turn. Every fifth letter is held out in all faces.

    With ``arc=n``, only n frames of a training sequence are present. They form a slice of the
    circle that is centred on upright, with 24 degrees from frame to frame. Held-out sequences have
    all frames and start with the slice, so measures of hidden frames show frames of the slice only.
    """

    citations: ClassVar[tuple[str, ...]] = ()
    share: float = 1.0  #: share of the training glyphs (letters in a face) that is used
    speeds: tuple[int, ...] = (1,)  #: turns of 24 degrees per frame; every sequence has one of them
    arc: int | None = None  #: number of frames of a training sequence that are present [all]

    def __post_init__(self) -> None:
        check_fields(self, speeds=_speeds)
        if not (isinstance(self.share, int | float) and 0 < self.share <= 1):
            raise BadInput(f"share must be a number above 0 and at most 1, not {self.share!r}")
        if self.arc is None:
            return
        if type(self.arc) is not int or not 3 <= self.arc < FRAMES:
            raise BadInput(
                f"arc must be a number of frames from 3 to {FRAMES - 1}, or None, not {self.arc!r}"
            )
        if self.speeds != (1,):
            raise BadInput("arc needs letters that turn by 24 degrees per frame: leave out speeds")

    def identity(self) -> dict[str, Any]:
        share = (float(self.share), 1.0)
        return stable("letters", share=share, **pairs(self, speeds=(1,), arc=None))

    def load(self, folder: Path | None = None) -> Splits:
        train, held_out = letters()
        if self.share < 1:
            train = some_glyphs(train, self.share)
        whole_train = None
        if self.arc is not None:
            inside = in_slice(train, self.arc)
            whole_train = from_slice(train, inside)
            train = without_others(train, inside)
            held_out = from_slice(held_out, in_slice(held_out, self.arc))
        elif self.speeds != (1,):
            train, held_out = at_speeds(train, self.speeds), at_speeds(held_out, self.speeds)
        name = "letters never seen"
        return Splits(train, held_out, "letters (drawn)", name, None, whole_train=whole_train)


@dataclass(frozen=True)
class OwnSequences:
    """Sequences of your own, as ``topocaps.data.read`` reads them. A fifth is held out.

    Training shifts pictures that fit into memory by up to ``shift`` pixels, all frames of a
    sequence alike. So a model of few clips does not memorise positions. In ``closed`` sequences the
    last frame is followed by the first, and training starts them at any frame.
    """

    citations: ClassVar[tuple[str, ...]] = ()
    path: str
    frames: int | None = None
    stride: int | None = None
    size: tuple[int, int] | int | None = None
    grey: bool | None = None
    layout: str | None = None
    skip_bad: bool = False
    at_most: int | None = None  #: largest shorter side of frames in pixels, if size is not given
    shift: int = 0
    closed: bool = False

    def __post_init__(self) -> None:
        if isinstance(self.size, list):
            object.__setattr__(self, "size", tuple(self.size))
        if isinstance(self.shift, bool) or not isinstance(self.shift, int) or self.shift < 0:
            raise BadInput(
                f"shift must be a whole number of pixels of at least 0, not {self.shift!r}"
            )

    def read(self, say: Callable[[str], None] = lambda line: None) -> Imported:
        """Read the sequences. ``say`` is called with every line of progress."""
        settings = asdict(self)
        del settings["shift"], settings["closed"]
        return read(settings.pop("path"), **settings, say=say)

    def identity(self) -> dict[str, Any]:
        return stable(
            "files",
            **pairs(self, path=None, frames=None, stride=None, size=None, grey=None, layout=None),
            **pairs(self, skip_bad=False, at_most=None, shift=0, closed=False),
        )

    def load(self, folder: Path | None = None) -> Splits:
        return self.splits(self.read())

    def splits(self, imported: Imported) -> Splits:
        """Return the splits of sequences that ``read`` returned."""
        train, held_out = split(imported)
        if isinstance(train, Sequences):
            train = replace(train, cyclic=self.closed)
            if self.shift and len(train.frame_shape) == 3:
                train = ShiftedSequences(
                    train.images, train.order, cyclic=self.closed, shift=self.shift
                )
        return Splits(train, held_out, self.path, "held-out sequences", None)


def _of_mnist(
    parts: tuple[Digits, Digits, Digits],
    make: Callable[[Digits], SequenceSet],
    each: int | None = None,
    name: str = "test images",
) -> Splits:
    train, validation, test = (replace(make(part), citations=part.citations) for part in parts)
    return Splits(train, test, parts[0].source, name, each, validation)


def _still(part: Digits) -> Sequences:
    order, classes = torch.arange(len(part.images))[:, None], part.classes[:, None].long()
    return Sequences(part.images[:, None], order, classes, ("class",))


def several(kind: type, noun: str) -> Check:
    """Return a check that makes one or several values of a type a tuple.

    Args:
        kind: type of the values.
        noun: name of valid values in the error message.
    """

    def check(name: str, value: Any) -> tuple[Any, ...]:
        single = isinstance(value, str) or not isinstance(value, Iterable)
        values = (value,) if single else tuple(value)
        if not all(type(item) is kind for item in values):
            raise BadInput(f"{name} must be {noun}, not {value!r}")
        return values

    return check


def _some_digits(name: str, value: Any) -> tuple[int, ...]:
    """Return digits as a sorted tuple, or raise `BadInput` for wrong ones or all ten."""
    rule = "some, not all, of the digits 0 to 9"
    digits = {*several(int, rule)(name, value)}
    if not digits <= {*range(10)} or len(digits) == 10:
        raise BadInput(f"{name} must be {rule}, not {value!r}")
    return tuple(sorted(digits))


def _speeds(name: str, value: Any) -> tuple[int, ...]:
    speeds = several(int, "whole numbers of levels")(name, value)
    if not speeds:
        raise BadInput(f"{name} must be whole numbers of levels, not {value!r}")
    return speeds


def comes_round(data: Data) -> bool:
    """Return whether the last frame of the sequences is followed by the first."""
    return data.closed if isinstance(data, OwnSequences) else not isinstance(data, GrowingSprites)


Data = Sprites | GrowingSprites | Letters | Mnist | StillMnist | MovedMnist | OwnSequences
DATA: dict[str, type[Data]] = {kind.__name__: kind for kind in get_args(Data)}
