"""Augmentation of few clips by random shifts."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from torch import Tensor

from topocaps.data.sequences import Batch, Sequences

SAMPLE = 200  #: sequences that are examined, at most
LARGEST = 0.1  #: the largest shift, as a share of the shorter side


def room_to_shift(sequences: Sequences) -> int:
    """Return the number of pixels by which to shift sequences of pictures.

    This is twice the standard deviation of the position of their content, which is the difference
    from the median frame, but at least one pixel and at most a tenth of the shorter side.
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
    """Sequences of pictures that a draw shifts by up to ``shift`` pixels, all frames alike.

    Shifts are whole pixels along both axes, and the edge is repeated. A fixed set is not shifted. A
    script is (…, time, 3): the image, and the row and column that it begins at.
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
        seen = super().show(script[..., 0])
        x, begin = seen.x, script[..., 1:].to(seen.x.device)
        for axis, dim in ((0, -2), (1, -1)):
            side = x.shape[dim]
            place = begin[..., axis, None] + torch.arange(side, device=x.device)  # … time side
            place = place.clamp(0, side - 1)[..., None, :].unsqueeze(-1 if dim == -2 else -2)
            x = x.gather(dim, place.expand(x.shape))  # … time channels height width
        return replace(seen, x=x)

    def digest(self) -> str:
        return f"{super().digest()}-{self.shift}"
