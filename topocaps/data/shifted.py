"""Augmentation of sequences by random shifts."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from torch import Tensor

from topocaps.data.sequences import Batch, Sequences

SAMPLE = 200  #: largest number of sequences that `room_to_shift` examines
LARGEST = 0.1  #: the largest shift, as a share of the shorter side


def room_to_shift(sequences: Sequences) -> int:
    """Return the number of pixels by which to shift sequences of pictures.

    The content of a picture is its difference from the median frame. The result is twice the
    standard deviation of the content's position, but at least one pixel and at most a tenth of the
    shorter side.
    """
    order = sequences.order[:: -(-len(sequences) // SAMPLE)]
    x = sequences.show(order).x  # sequences time channels height width
    content = (x - x.flatten(0, 1).median(0).values).abs().mean((1, 2))  # sequences height width
    mass = content.sum((1, 2)).clamp_min(torch.finfo(x.dtype).tiny)
    centres = [
        (content.sum(other) * torch.arange(side, device=x.device)).sum(1) / mass
        for other, side in ((2, x.shape[-2]), (1, x.shape[-1]))
    ]
    spread = max(centre.std(correction=0).item() for centre in centres)
    return max(1, round(min(2 * spread, LARGEST * min(x.shape[-2:]))))


@dataclass(frozen=True)
class ShiftedSequences(Sequences):
    """Sequences of pictures, shifted at random by up to ``shift`` pixels along both axes.

    All frames of a sequence have the same shift, of whole pixels, and the edge is repeated. Fixed
    sets are not shifted. A script is (…, time, 3): the index of the image, and the row and column
    at which it begins.
    """

    shift: int = 0
    numbers: ClassVar[int] = Sequences.numbers + 2

    def choose(self, uniform: Tensor) -> Tensor:
        image = super().choose(uniform[..., :-2])  # … time
        begin = (uniform[..., -2:].double() * (2 * self.shift + 1)).long() - self.shift
        return torch.cat([image[..., None], begin[..., None, :].expand(*image.shape, 2)], -1)

    def fixed(self) -> Tensor:
        return torch.nn.functional.pad(self.order[..., None], (0, 2))

    def show(self, script: Tensor) -> Batch:
        batch = super().show(script[..., 0])
        x, begin = batch.x, script[..., 1:].to(batch.x.device)
        for axis, dim in ((0, -2), (1, -1)):
            side = x.shape[dim]
            index = begin[..., axis, None] + torch.arange(side, device=x.device)  # … time side
            index = index.clamp(0, side - 1)[..., None, :].unsqueeze(-1 if dim == -2 else -2)
            x = x.gather(dim, index.expand(x.shape))  # … time channels height width
        return replace(batch, x=x)

    def digest(self) -> str:
        return f"{super().digest()}-{self.shift}"
