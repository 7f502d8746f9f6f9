"""Policies that choose the frames which are visible to a model in training."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor

from topocaps.errors import BadInput, whole_number


@dataclass(frozen=True)
class VisibleFrames(ABC):
    """Choice of between ``least`` and ``most`` of the present frames of a sequence.

    Every number of frames is equally likely. The model sees the chosen frames, and the bound is on
    all present frames.

    Args:
        least: smallest number of visible frames. If fewer are present, all of them are visible.
        most: largest number of visible frames; by default all present frames.
    """

    least: int = 3
    most: int | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "least", whole_number("least", self.least))
        if self.most is not None:
            object.__setattr__(self, "most", whole_number("most", self.most))
            if self.most < self.least:
                raise BadInput(f"most must be at least least={self.least}, not {self.most}")

    def choose(self, uniform: Tensor, present: Tensor) -> Tensor:
        """Return booleans (…, time), True for the present frames that are visible.

        Args:
            uniform: random numbers in [0, 1], (…, time, 2).
            present: booleans (…, time).
        """
        total = present.sum(-1, keepdim=True)
        most = total if self.most is None else total.clamp(max=self.most)
        least = total.clamp(max=self.least)
        count = least + _up_to(uniform[..., :1, 0], most - least)
        return present & self.among(uniform[..., 1], present, count)

    @abstractmethod
    def among(self, uniform: Tensor, present: Tensor, count: Tensor) -> Tensor:
        """Return booleans (…, time) that are True for ``count`` of the present frames.

        Args:
            uniform: random numbers in [0, 1], (…, time).
            present: booleans (…, time); values for other frames are not used.
            count: number of frames to choose, (…, 1).
        """


@dataclass(frozen=True)
class Stretch(VisibleFrames):
    """A contiguous stretch of the present frames, at a random position.

    >>> present = torch.ones(8, dtype=torch.bool)
    >>> Stretch(3, 3).choose(torch.full((8, 2), 0.5), present).int()
    tensor([0, 0, 0, 1, 1, 1, 0, 0], dtype=torch.int32)
    """

    def among(self, uniform: Tensor, present: Tensor, count: Tensor) -> Tensor:
        first = _up_to(uniform[..., :1], present.sum(-1, keepdim=True) - count)
        rank = present.cumsum(-1) - 1
        return (rank >= first) & (rank < first + count)


@dataclass(frozen=True)
class RandomFrames(VisibleFrames):
    """Any of the present frames, at random."""

    def among(self, uniform: Tensor, present: Tensor, count: Tensor) -> Tensor:
        order = torch.where(present, uniform, 2.0).argsort(-1).argsort(-1)
        return order < count


@dataclass(frozen=True)
class Past(VisibleFrames):
    """The first of the present frames, so that the model learns to predict later ones."""

    def among(self, uniform: Tensor, present: Tensor, count: Tensor) -> Tensor:
        return present.cumsum(-1) <= count


def visible_first(x: Tensor, visible: Tensor, count: int) -> tuple[Tensor, Tensor, Tensor]:
    """Return ``count`` frames of each sequence, the visible ones first.

    The result is the frames, (batch, count, *frame), their indices, (batch, count), and which of
    them are visible, (batch, count).

    >>> x, visible = torch.arange(4.0)[None, :, None], torch.tensor([[False, True, False, True]])
    >>> visible_first(x, visible, 3)[1:]
    (tensor([[1, 3, 0]]), tensor([[ True,  True, False]]))
    """
    index = visible.to(torch.uint8).argsort(stable=True, dim=-1, descending=True)[..., :count]
    of_values = index.reshape(*index.shape, *(1,) * (x.ndim - 2)).expand(-1, -1, *x.shape[2:])
    return x.gather(1, of_values), index, visible.gather(-1, index)


def _up_to(uniform: Tensor, last: Tensor) -> Tensor:
    """Turn uniform numbers in [0, 1] into whole numbers from 0 to ``last``."""
    return torch.minimum((uniform * (last + 1)).long(), last)


_KINDS: dict[str, type[VisibleFrames]] = {
    kind.__name__: kind for kind in (Stretch, RandomFrames, Past)
}


def visible_settings(visible: VisibleFrames) -> dict[str, Any] | None:
    """Return the settings that `visible_from` takes, or None for a policy of another class."""
    if type(visible) not in _KINDS.values():
        return None
    return {"kind": type(visible).__name__, **asdict(visible)}


def visible_from(settings: dict[str, Any]) -> VisibleFrames:
    """Return the policy of these settings.

    >>> visible_from({"kind": "Past", "least": 2, "most": None})
    Past(least=2, most=None)
    """
    values = {name: value for name, value in settings.items() if name != "kind"}
    if settings.get("kind") not in _KINDS:
        raise BadInput(
            f"this version knows no visible frames of kind {settings.get('kind')!r}, only "
            f"{', '.join(_KINDS)}"
        )
    return _KINDS[settings["kind"]](**values)
