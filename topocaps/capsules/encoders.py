"""Amortised inference: parts from an image, wholes from parts (section 4, supplement B)."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention, softplus

from topocaps.capsules import poses
from topocaps.capsules.layers import Belief, Capsules
from topocaps.data import geometry

_CLOSE = 0.03  # where the spread of a pose starts
HEADS = 4
_LOUD = 4.0  # what the numbers of parts are multiplied with for wholes to hear them


def _spread(raw: Tensor) -> Tensor:
    return softplus(raw + math.log(math.expm1(_CLOSE)))


class PartEncoder(nn.Module):
    """q(t, A of parts | x): four convolutions, and for every part a look at where it matters.

    Attentive pooling (Kosiorek et al. 2019): each part has its own weights over places, which add
    up to 1, for its own numbers. Numbers also see where a place is (not the paper's), since a
    weighted mean does not know it.
    """

    base: Tensor
    places: Tensor

    def __init__(
        self, parts: int, frame_shape: tuple[int, ...], base: Tensor, width: int = 32
    ) -> None:
        super().__init__()
        channels = frame_shape[0]
        steps = ((channels, 2), (width, 2), (width, 1), (width, 1))
        layers = [
            (nn.Conv2d(wide, width, 3, stride, padding=1), nn.ELU()) for wide, stride in steps
        ]
        self.look = nn.Sequential(*(layer for pair in layers for layer in pair))
        #: of every part: a presence, a pose, the spread of a pose, a weight
        self.numbers = 2 + 2 * poses.NUMBERS
        self.read = nn.Conv2d(width + 2, parts * self.numbers, 1)
        self.parts = parts
        self.register_buffer("base", base)
        height, width = (-(-side // 4) for side in frame_shape[1:])
        places = geometry.grid(height, width).permute(2, 0, 1)
        self.register_buffer("places", places, persistent=False)

    def forward(self, x: Tensor) -> Belief:
        front = x.shape[:-3]
        seen = self.look(x.flatten(0, -4))
        seen = torch.cat([seen, self.places.expand(len(seen), -1, -1, -1)], 1)
        found = self.read(seen).unflatten(1, (self.parts, self.numbers)).flatten(3)
        weights = found[:, :, -1:].softmax(-1)
        pooled = (weights * found[:, :, :-1]).sum(-1).unflatten(0, front)
        logits, where, raw = pooled.split([1, poses.NUMBERS, poses.NUMBERS], -1)
        return Belief(logits[..., 0], self.base + where, _spread(raw))


class _Attention(nn.Module):
    """Queries attend to a set, layer norms first; then each by itself (Lee et al. 2019).

    Queries (1, …) are the same for every set, and are looked at once.
    """

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.before, self.about = nn.LayerNorm(width), nn.LayerNorm(width)
        self.query, self.out = nn.Linear(width, width), nn.Linear(width, width)
        self.key_value = nn.Linear(width, 2 * width)
        self.alone = nn.Sequential(
            nn.LayerNorm(width), nn.Linear(width, width), nn.ELU(), nn.Linear(width, width)
        )

    def forward(self, queries: Tensor, items: Tensor) -> Tensor:
        query = self._by_head(self.query(self.before(queries)))
        key, value = self.key_value(self.about(items)).chunk(2, -1)
        query = query.expand(len(items), -1, -1, -1)
        found = scaled_dot_product_attention(query, self._by_head(key), self._by_head(value))
        queries = queries + self.out(found.transpose(1, 2).flatten(2))
        return queries + self.alone(queries)

    def _by_head(self, items: Tensor) -> Tensor:
        return items.unflatten(-1, (self.heads, -1)).transpose(1, 2)


class _InducedAttention(nn.Module):
    """ISAB: a set attends to itself through a few learned points."""

    def __init__(self, width: int, heads: int, points: int) -> None:
        super().__init__()
        self.points = nn.Parameter(torch.randn(points, width) / width**0.5)
        self.gather, self.spread = _Attention(width, heads), _Attention(width, heads)

    def forward(self, items: Tensor) -> Tensor:
        return self.spread(items, self.gather(self.points[None], items))


class WholeEncoder(nn.Module):
    """q(t, A of wholes | t, A of parts): a set transformer.

    Parts are told by their poses less the base pose, by the same where they are there, by their
    presences and by an embedding of which part it is; made loud, since a set transformer that
    hears too little never wakes up.
    """

    base: Tensor

    def __init__(
        self,
        parts: int,
        wholes: int,
        base: Tensor,
        width: int = 128,
        depth: int = 4,
        heads: int = HEADS,
        points: int = 32,
        code: int = 32,
        name: int = 16,
    ) -> None:
        super().__init__()
        self.names = nn.Parameter(torch.randn(parts, name))
        self.enter = nn.Linear(2 * poses.NUMBERS + 1 + name, width)
        self.among = nn.Sequential(*(_InducedAttention(width, heads, points) for _ in range(depth)))
        self.seed = nn.Parameter(torch.randn(1, width) / width**0.5)
        self.pool = _Attention(width, heads)
        self.code = nn.Sequential(nn.LayerNorm(width), nn.Linear(width, code))

        def head(numbers: int) -> nn.Module:
            return nn.Sequential(nn.Linear(code, width), nn.ELU(), nn.Linear(width, numbers))

        self.presence = head(wholes)
        self.pose, self.spread = (head(wholes * poses.NUMBERS) for _ in range(2))
        self.register_buffer("base", base)

    def forward(self, parts: Capsules) -> Belief:
        front = parts.logits.shape[:-1]
        there = parts.presences[..., None]
        where = _LOUD * (parts.poses - self.base)
        names = self.names.expand(*front, -1, -1)
        items = torch.cat([where, where * there, _LOUD * (there - 0.5), names], -1)
        items = self.among(self.enter(items).flatten(0, -3))
        pooled = self.pool(self.seed[None], items)[:, 0]
        code = self.code(pooled).unflatten(0, front)
        numbers = (-1, poses.NUMBERS)
        spread = _spread(self.spread(code).unflatten(-1, numbers))
        return Belief(self.presence(code), self.pose(code).unflatten(-1, numbers), spread)
