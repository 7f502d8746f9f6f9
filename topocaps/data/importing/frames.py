"""Conversion of frames to the order of axes, data type, colour and size that models take."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.functional import interpolate

from topocaps.errors import BadInput, counted, whole_number

Stored = NDArray[Any] | Tensor

CHANNELS = (1, 3, 4)  #: grey, colour, colour and alpha
LUMINANCE = (0.299, 0.587, 0.114)
_AXES = "NTCHWD"  # sequences, time, channels, height, width; values of a vector
_FRAMES = ({"D"}, {"H", "W"}, {"C", "H", "W"})
_GREY_TOLERANCE = 4  # largest difference between channels of grey bytes, due to video codecs
_RESIZED_TOGETHER = 2**24  # values; more at once would need too much memory


@dataclass(frozen=True)
class Look:
    """The axes of stored frames, and the colour and size to convert them to.

    Pictures become (channels, height, width); vectors stay vectors.

    Args:
        size: the side or (height, width) of converted pictures. None keeps their size.
        grey: True converts to one channel, False to three. None keeps the channels.
        layout: the order of the axes, such as NTHWC. None infers it from their sizes.
        at_most: without ``size``, larger pictures are shrunk until their shorter side is this long.
    """

    size: int | Sequence[int] | None = None
    grey: bool | None = None
    layout: str | None = None
    at_most: int | None = None
    #: the layouts of the converted arrays, and the former sizes of shrunk pictures, for messages
    layouts: set[str] = field(default_factory=set, compare=False, repr=False)
    shrunk: set[str] = field(default_factory=set, compare=False, repr=False)

    @property
    def height_and_width(self) -> tuple[int, int] | None:
        if self.size is None:
            return None
        sides = list(self.size) if isinstance(self.size, Sequence) else [self.size] * 2
        if len(sides) != 2:
            raise BadInput(f"size must be a side or (height, width), not {self.size!r}")
        return whole_number("size", sides[0]), whole_number("size", sides[1])

    def clip(self, array: Stored, name: str) -> Tensor:
        """Convert an array (time, *frame)."""
        return self.convert(to_tensor(self.arrange(array, "T", name), name))

    def convert(self, x: Tensor) -> Tensor:
        """Convert the colour and the size of frames (…, channels, height, width).

        Bytes stay bytes.
        """
        size = self.height_and_width or self._limited_size(x)
        if self.grey is None and size is None:
            return x
        if x.ndim < 4:
            raise BadInput("vectors have neither colour nor size: leave out grey= and size=")
        flat = x.flatten(0, -4)
        parts = flat.split(max(1, _RESIZED_TOGETHER // flat[0].numel()))
        converted = torch.cat([_resize(_set_colour(part, self.grey), size) for part in parts])
        return converted.unflatten(0, x.shape[:-3])

    def _limited_size(self, x: Tensor) -> tuple[int, int] | None:
        """Return the size that ``at_most`` shrinks these pictures to, or None."""
        if self.at_most is None or x.ndim < 4 or min(x.shape[-2:]) <= self.at_most:
            return None
        height, width = x.shape[-2:]
        self.shrunk.add(f"{height} x {width}")
        scale = whole_number("at_most", self.at_most) / min(height, width)
        return round(height * scale), round(width * scale)

    def arrange(self, array: Stored, lead: str, name: str) -> Any:
        """Return a view of an array with the axes of sequences first, then those of a frame.

        Args:
            array: the array.
            lead: the axes of sequences: "T" for one sequence, "NT" for several.
            name: the name of the array in messages.
        """
        given = f"{name} has the shape {tuple(array.shape)}"
        if 0 in array.shape:
            raise BadInput(f"{given}: there are no frames in it")
        if self.layout is None:
            axes = self._infer_axes(array.shape, lead, given)
        else:
            axes = self._check_layout(array.ndim, lead, given)
        self.layouts.add(axes)
        order = [axes.index(axis) for axis in _AXES if axis in axes]
        order += range(len(order), array.ndim)
        view = array.permute(order) if isinstance(array, Tensor) else array.transpose(order)
        if "H" in axes and "C" not in axes:
            view = view[..., None, :, :]
        return view[None] if "N" in lead and "N" not in axes else view

    def _infer_axes(self, shape: Sequence[int], lead: str, given: str) -> str:
        """Return a letter for each axis, inferred from the sizes.

        An axis of channels has size 1, 3 or 4, and is smaller than the axes of pixels.
        """
        frame = shape[len(lead) :]
        if not frame:
            wanted = "(sequences, time, *frame)" if lead == "NT" else "(time, *frame)"
            advice = "; if it is one sequence of vectors, say layout='TD'" * (len(shape) == 2)
            raise BadInput(f"{given}, and must be {wanted}{advice}")
        last = frame[-1] in CHANNELS and frame[-1] < min(shape[-3:-1])
        if len(frame) == 2 and lead == "NT" and last:
            raise BadInput(
                f"{given}, which may be one sequence in colour or several in grey: say "
                "layout='THWC' or layout='NTHW'"
            )
        if len(frame) <= 2:
            return lead + ("D", "HW")[len(frame) - 1]
        if len(frame) > 3:
            if lead != "NT" or self.size is not None or self.grey is not None:
                raise BadInput(
                    f"{given}, too many axes for pictures or vectors: give frames of up to 3 axes"
                )
            return lead
        first = frame[0] in CHANNELS and frame[0] < min(frame[1:])
        if first == last:
            raise BadInput(
                f"{given}, in which channels cannot be told from pixels: say "
                f"layout='{lead}CHW' or layout='{lead}HWC'"
            )
        return lead + ("CHW" if first else "HWC")

    def _check_layout(self, axes: int, lead: str, given: str) -> str:
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
            raise BadInput(
                f"{given}, and the layout {letters} has {len(letters)} axes: name every axis"
            )
        return letters


def to_tensor(array: Stored, name: str) -> Tensor:
    """Convert an array to bytes (255 is 1) or float32.

    Booleans become bytes, and a uint16 n becomes n / 65535.
    """
    if not isinstance(array, Tensor):
        array = np.asarray(array)
        array = array.astype(array.dtype.newbyteorder("="), copy=False)
        if array.dtype.kind not in "fbu" or array.dtype.itemsize > 8:
            raise _unsupported(name, array.dtype)
        plain = array.flags.writeable and min(array.strides, default=0) >= 0
        array = torch.from_numpy(array if plain else np.array(array, order="C"))
    x = array.detach()
    if x.dtype == torch.uint8:
        return x
    if x.dtype == torch.bool:
        return x.to(torch.uint8) * 255
    if x.dtype == torch.uint16:
        return x.float() / 65535
    if not x.is_floating_point():
        raise _unsupported(name, dtype_name(x))
    return x.float()


def dtype_name(x: Stored) -> str:
    """Return the name of the data type of an array or a tensor, such as float32."""
    return str(x.dtype).removeprefix("torch.")


def _unsupported(name: str, dtype: object) -> BadInput:
    return BadInput(
        f"{name} holds {dtype}: make it bytes (uint8, 0-255), bool, uint16 or floating point"
    )


def likelihood_of(x: Tensor, name: str) -> str:
    """Return the likelihood of frames: "bernoulli" for values in [0, 1], else "gaussian".

    Args:
        x: finite frames (frames, *frame).
        name: their name in messages.
    """
    low, high = (value.item() for value in x.aminmax())
    if x.dtype == torch.uint8:
        if high == 1:
            raise BadInput(
                f"{name} holds bytes, which must be 0-255 but are all 0 or 1: make them bool, or "
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
    """Return whether pictures (images, 3, height, width) are grey.

    They are grey if they are bytes with equal channels, up to the error of a video codec.
    """
    if images.dtype != torch.uint8 or images.ndim != 4 or images.shape[1] != 3:
        return False
    return all(
        ((part.amax(1).short() - part.amin(1).short()) <= _GREY_TOLERANCE).all()
        for part in images.split(1000)
    )


def check_alike(first: Tensor, name: str, x: Tensor, other: str) -> None:
    """Raise `BadInput` if the frames of a clip differ in shape or data type from the first clip's.

    Args:
        first: the first clip.
        name: its name in messages.
        x: another clip.
        other: the name of the other clip.
    """
    shape, other_shape = tuple(first.shape[1:]), tuple(x.shape[1:])
    pictures = len(shape) == len(other_shape) == 3
    if pictures and shape[-2:] != other_shape[-2:]:
        raise BadInput(
            f"{name} has frames of {shape[1]} x {shape[2]} and {other} of {other_shape[1]} x "
            f"{other_shape[2]}: say which size= all should have, such as size=64"
        )
    if pictures and shape != other_shape:
        raise BadInput(
            f"{name} has {counted(shape[0], 'channel')} and {other} {other_shape[0]}: say "
            "grey=True or grey=False"
        )
    if shape != other_shape:
        raise BadInput(
            f"{name} has frames of {shape} and {other} of {other_shape}: make them the same"
        )
    if first.dtype != x.dtype:
        raise BadInput(
            f"{name} holds {dtype_name(first)} and {other} {dtype_name(x)}: make them the same"
        )


def check_ranges(clips: Sequence[Tensor], names: Sequence[str]) -> None:
    """Raise `BadInput` if some clips of pictures are in [0, 1] and others look like bytes."""
    if not clips[0].is_floating_point() or clips[0].ndim != 4:
        return
    highest = [x.nan_to_num(0.0, 0.0).amax().item() for x in clips]
    small = next((n for n, high in enumerate(highest) if high <= 1), None)
    large = next((n for n, high in enumerate(highest) if 100 < high <= 255), None)
    if small is not None and large is not None and clips[large].amin() >= 0:
        raise BadInput(
            f"{names[small]} holds values up to {highest[small]:g} and {names[large]} up to "
            f"{highest[large]:g}, which look like bytes: divide those by 255"
        )


def nonfinite_clips(images: Tensor, lengths: Tensor) -> list[int]:
    """Return the indices of clips with NaN or infinite values.

    Args:
        images: the frames of all clips, concatenated.
        lengths: the number of frames of every clip, (clips,).
    """
    if not images.is_floating_point() or all(v.isfinite() for v in images.aminmax()):
        return []
    frames = ~images.flatten(1).isfinite().all(1)
    clips = torch.arange(len(lengths)).repeat_interleave(lengths)
    return clips[frames.cpu()].unique().tolist()


def _set_colour(x: Tensor, grey: bool | None) -> Tensor:
    channels = x.shape[-3]
    if grey is None or channels == (1 if grey else 3):
        return x
    if channels not in CHANNELS:
        raise BadInput(
            f"frames of {channels} channels are neither grey nor coloured: leave out grey="
        )
    if not grey:
        return x[:, :3] if channels == 4 else x.expand(-1, 3, -1, -1)
    weights = torch.tensor(LUMINANCE, device=x.device)[:, None, None]
    return _in_dtype_of(x, (x[:, :3] * weights).sum(-3, keepdim=True))


def _resize(x: Tensor, size: tuple[int, int] | None) -> Tensor:
    """Resize frames: average over areas if they shrink, else interpolate bilinearly."""
    if size is None or size == tuple(x.shape[-2:]):
        return x
    shrinks = size[0] <= x.shape[-2] and size[1] <= x.shape[-1]
    if shrinks:
        return _in_dtype_of(x, interpolate(x.float(), size, mode="area"))
    return _in_dtype_of(x, interpolate(x.float(), size, mode="bilinear", antialias=True))


def _in_dtype_of(x: Tensor, values: Tensor) -> Tensor:
    return values.round().to(torch.uint8) if x.dtype == torch.uint8 else values
