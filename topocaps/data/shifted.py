"""Few clips, seen in more places than they were taken in."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from topocaps.data.sequences import Batch, Sequences

SEEN = 200  #: sequences that stand for all of them
FURTHEST = 0.1  #: of the shorter side


def room_to_shift(sequences: Sequences) -> int:
    """Pixels by which sequences of pictures may be shifted and still be where others are.

    Twice the standard deviation of where their content lies, which is what differs from the median
    frame; no further than a tenth of the shorter side, and at least one pixel.
    """
    order = sequences.order[:: -(-len(sequences) // SEEN)]
    x = sequences.show(order).x  # sequences time channels height width
    content = (x - x.flatten(0, 1).median(0).values).abs().mean((1, 2))  # sequences height width
    mass = content.sum((1, 2)).clamp_min(torch.finfo(x.dtype).tiny)
    centres = [
        (content.sum(other) * torch.arange(side, device=x.device)).sum(1) / mass
        for other, side in ((2, x.shape[-2]), (1, x.shape[-1]))
    ]
    apart = max(centre.std(correction=0).item() for centre in centres)
    return max(1, round(min(2 * apart, FURTHEST * min(x.shape[-2:]))))


@dataclass(frozen=True)
class ShiftedSequences(Sequences):
    """Sequences of pictures, each drawn with all its frames shifted by up to ``shift`` pixels.

    Up or down and left or right, by whole pixels; what comes in over an edge is that edge. As a
    fixed set, sequences are where they were. A script is (…, time, 3): the image, and the row and
    the column that it begins at.
    """

    shift: int = 0

    @property
    def numbers(self) -> int:
        return super().numbers + 2

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
            place = place.clamp(0, side - 1)[..., None, :]  # of all channels
            place = place[..., :, None] if dim == -2 else place[..., None, :]
            x = x.gather(dim, place.expand(x.shape))
        return replace(seen, x=x)

    def digest(self) -> str:
        return f"{super().digest()}-{self.shift}"
