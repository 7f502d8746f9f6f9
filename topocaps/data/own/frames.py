"""Frames as they are stored, and as models take them: axes, kinds of numbers, colour, size."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.functional import interpolate

from topocaps.errors import BadInput, whole_number

Stored = NDArray[Any] | Tensor

CHANNELS = (1, 3, 4)  #: grey, colour, colour and alpha
LUMINANCE = (0.299, 0.587, 0.114)
_AXES = "NTCHWD"  # sequences, time, channels, height, width; vectors
_FRAMES = ({"D"}, {"H", "W"}, {"C", "H", "W"})
_COLOURLESS = 4  # of 255, between channels
_AT_ONCE = 2**24  # numbers that are resized together


@dataclass(frozen=True)
class Look:
    """How frames are stored (``layout``), and how they are wanted: None is as they are.

    Pictures become (channels, height, width), vectors stay what they are. ``size`` is a side or
    (height, width); without it, pictures whose shorter side is longer than ``at_most`` are made as
    small as that. ``grey`` has one channel, not ``grey`` three.
    """

    size: int | Sequence[int] | None = None
    grey: bool | None = None
    layout: str | None = None
    at_most: int | None = None
    #: axes that arrays were taken to have, and sizes that were too large, to be told
    chosen: set[str] = field(default_factory=set, compare=False, repr=False)
    shrunk: set[str] = field(default_factory=set, compare=False, repr=False)

    @property
    def height_and_width(self) -> tuple[int, int] | None:
        if self.size is None:
            return None
        sides = list(self.size) if isinstance(self.size, Sequence) else [self.size] * 2
        if len(sides) != 2:
            raise BadInput(f"size must be a side or (height, width), not {self.size!r}")
        return whole_number("size", sides[0]), whole_number("size", sides[1])

    def wanted(self, x: Tensor) -> Tensor:
        """Frames (…, channels, height, width) in the wanted colour and size; bytes stay bytes."""
        size = self.height_and_width or self._small_enough(x)
        if self.grey is None and size is None:
            return x
        if x.ndim < 4:
            raise BadInput("vectors have neither colour nor size: leave out grey= and size=")
        flat = x.flatten(0, -4)
        parts = flat.split(max(1, _AT_ONCE // flat[0].numel()))
        seen = torch.cat([_sized(_coloured(part, self.grey), size) for part in parts])
        return seen.unflatten(0, x.shape[:-3])

    def _small_enough(self, x: Tensor) -> tuple[int, int] | None:
        """What size pictures have to be made, if they are too large."""
        if self.at_most is None or x.ndim < 4 or min(x.shape[-2:]) <= self.at_most:
            return None
        height, width = x.shape[-2:]
        self.shrunk.add(f"{height} x {width}")
        scale = whole_number("at_most", self.at_most) / min(height, width)
        return round(height * scale), round(width * scale)

    def arranged(self, array: Stored, lead: str, name: str) -> Any:
        """A view of the array with the axes ``lead`` in front, then those of a frame."""
        given = f"{name} has the shape {tuple(array.shape)}"
        if 0 in array.shape:
            raise BadInput(f"{given}: there are no frames in it")
        if self.layout is None:
            axes = self._by_sizes(array.shape, lead, given)
        else:
            axes = self._stated(array.ndim, lead, given)
        self.chosen.add(axes)
        return _in_order(array, axes, lead)

    def _by_sizes(self, shape: Sequence[int], lead: str, given: str) -> str:
        """A letter for each axis: channels are 1, 3 or 4, and fewer than pixels."""
        frame = shape[len(lead) :]
        if not frame:
            wanted = "(sequences, time, *frame)" if lead == "NT" else "(time, *frame)"
            advice = "; if it is one sequence of vectors, say layout='TD'" * (len(shape) == 2)
            raise BadInput(f"{given}, and must be {wanted}{advice}")
        colour = frame[-1] in CHANNELS and frame[-1] < min(shape[-3:-1])
        if len(frame) == 2 and lead == "NT" and colour:
            raise BadInput(
                f"{given}, which may be one sequence in colour or sequences in grey: say "
                "layout='THWC' or layout='NTHW'"
            )
        if len(frame) <= 2:
            return lead + ("D", "HW")[len(frame) - 1]
        if len(frame) > 3:
            if lead != "NT" or self.size is not None or self.grey is not None:
                raise BadInput(f"{given}, too many axes for a sequence of pictures or vectors")
            return lead
        first = frame[0] in CHANNELS and frame[0] < min(frame[1:])
        if first == colour:
            raise BadInput(
                f"{given}, in which channels cannot be told from pixels: say "
                f"layout='{lead}CHW' or layout='{lead}HWC'"
            )
        return lead + ("CHW" if first else "HWC")

    def _stated(self, axes: int, lead: str, given: str) -> str:
        letters = str(self.layout).upper()
        letters = letters if "T" in letters else lead + letters
        frame = set(letters) - {"N", "T"}
        known = frame in _FRAMES and len(set(letters)) == len(letters)
        if not known or ("N" in letters and "N" not in lead):
            rule = "N sequences of T frames" if "N" in lead else "T frames, of one sequence"
            raise BadInput(
                f"layout must name axes, such as {lead}HWC, {lead}CHW, {lead}HW or {lead}D "
                f"({rule}), not {self.layout!r}"
            )
        if len(letters) != axes:
            raise BadInput(f"{given}, and the layout {letters} has {len(letters)} axes")
        return letters


def _in_order(array: Stored, axes: str, lead: str) -> Any:
    """Axes in order, and one of channels where pictures have none."""
    order = [axes.index(axis) for axis in _AXES if axis in axes]
    order += range(len(order), array.ndim)
    array = array.permute(order) if isinstance(array, Tensor) else array.transpose(order)
    if "H" in axes and "C" not in axes:
        array = array[..., None, :, :]
    return array[None] if "N" in lead and "N" not in axes else array


def held(array: Any, name: str) -> Tensor:
    """Bytes (255 is 1) or single precision; bool becomes bytes, 16-bit numbers are n / 65535."""
    if not isinstance(array, Tensor):
        array = np.asarray(array)
        array = array.astype(array.dtype.newbyteorder("="), copy=False)
        if array.dtype.kind not in "fbu" or array.dtype.itemsize > 8:
            raise _wrong_kind(name, array.dtype)
        plain = array.flags.writeable and min(array.strides, default=0) >= 0
        array = torch.from_numpy(array if plain else np.array(array, order="C"))
    x: Tensor = array.detach()
    if x.dtype == torch.uint8:
        return x
    if x.dtype == torch.bool:
        return x.to(torch.uint8) * 255
    if x.dtype == torch.uint16:
        return x.float() / 65535
    if not x.is_floating_point():
        raise _wrong_kind(name, str(x.dtype).removeprefix("torch."))
    return x.float()


def _wrong_kind(name: str, kind: object) -> BadInput:
    return BadInput(
        f"{name} holds {kind}: make it bytes (uint8, 0-255), bool, uint16 or floating point"
    )


def likelihood_of(x: Tensor, name: str) -> str:
    """What frames (frames, *frame), all finite, can be modelled by: within [0, 1], or any."""
    low, high = (value.item() for value in x.aminmax())
    if x.dtype == torch.uint8:
        if high == 1:
            raise BadInput(
                f"{name} holds bytes, which mean 0-255, that are all 0 or 1: make them bool, or "
                "multiply them by 255"
            )
        return "bernoulli"
    if low >= 0 and high <= 1:
        return "bernoulli"
    pictures = x.ndim == 4 and low >= 0 and high <= 255
    if pictures and (high > 100 or (x[:: max(1, len(x) // 256)].frac() == 0).all()):
        raise BadInput(
            f"{name} holds floating point values from {low:g} to {high:g}, which look like bytes: "
            "divide them by 255"
        )
    return "gaussian"


def is_grey(images: Tensor) -> bool:
    """Whether bytes (…, 3, height, width) have no colour but what a video's code adds to grey."""
    if images.dtype != torch.uint8 or images.ndim != 4 or images.shape[1] != 3:
        return False
    return all(
        ((part.amax(1).short() - part.amin(1).short()) <= _COLOURLESS).all()
        for part in images.split(1000)
    )


def _coloured(x: Tensor, grey: bool | None) -> Tensor:
    channels = x.shape[-3]
    if grey is None or channels == (1 if grey else 3):
        return x
    if channels not in CHANNELS:
        raise BadInput(f"frames of {channels} channels are neither grey nor colour: leave out grey")
    if not grey:
        return x[:, :3] if channels == 4 else x.expand(-1, 3, -1, -1)
    weights = torch.tensor(LUMINANCE, device=x.device)[:, None, None]
    return _like(x, (x[:, :3] * weights).sum(-3, keepdim=True))


def _sized(x: Tensor, size: tuple[int, int] | None) -> Tensor:
    """Means of areas where frames shrink, bilinear where they grow."""
    if size is None or size == tuple(x.shape[-2:]):
        return x
    shrinks = size[0] <= x.shape[-2] and size[1] <= x.shape[-1]
    if shrinks:
        return _like(x, interpolate(x.float(), size, mode="area"))
    return _like(x, interpolate(x.float(), size, mode="bilinear", antialias=True))


def _like(x: Tensor, values: Tensor) -> Tensor:
    return values.round().to(torch.uint8) if x.dtype == torch.uint8 else values
