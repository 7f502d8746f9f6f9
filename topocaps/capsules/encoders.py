"""Amortised inference: parts from an image, wholes from parts (section 4, supplement B)."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention, softplus

from topocaps.capsules import poses
from topocaps.capsules.layers import Capsules, LayerPosterior
from topocaps.capsules.settings import HEADS
from topocaps.data import geometry

# Sizes of supplement B. The embedding of parts is not in the paper.
_CHANNELS = 32
_INDUCING_POINTS = 32
_CODE = 32
_EMBEDDING = 16
_INITIAL_SPREAD = 0.03  # standard deviation of Normal poses
_INPUT_SCALE = 4.0  # with small inputs, the output of the set transformer stays constant


def _spread(raw: Tensor) -> Tensor:
    """Map outputs of a network to standard deviations; 0 maps to the initial spread."""
    return softplus(raw + math.log(math.expm1(_INITIAL_SPREAD)))


class PartEncoder(nn.Module):
    """q(t, A of parts | x): four convolutions, and attentive pooling for each part.

    Each part has its own softmax weights over positions (Kosiorek et al. 2019). The coordinates of
    a position are additional features, because a weighted mean contains no position (not in the
    paper).

    Args:
        parts: number of parts.
        frame_shape: (channels, height, width).
        base: pose (6,) that is added to the output.
        delta: whether poses are points, without a spread.
    """

    base: Tensor
    places: Tensor

    def __init__(self, parts: int, frame_shape: tuple[int, ...], base: Tensor, delta: bool) -> None:
        super().__init__()
        self.parts, self.delta = parts, delta
        layers: list[nn.Module] = []
        for inputs, stride in ((frame_shape[0], 2), *((_CHANNELS, s) for s in (2, 1, 1))):
            layers += [nn.Conv2d(inputs, _CHANNELS, 3, stride, padding=1), nn.ELU()]
        self.look = nn.Sequential(*layers)
        #: numbers of each part: logit of presence, pose, spread of the pose, attention logit
        self.numbers = 2 + 2 * poses.NUMBERS
        self.read = nn.Conv2d(_CHANNELS + 2, parts * self.numbers, 1)
        self.register_buffer("base", base)
        height, width = (-(-side // 4) for side in frame_shape[1:])
        places = geometry.grid(height, width).permute(2, 0, 1)
        self.register_buffer("places", places, persistent=False)

    def forward(self, x: Tensor) -> LayerPosterior:
        """Return q of the parts of images (…, *frame)."""
        features = self.look(x.flatten(0, -4))
        features = torch.cat([features, self.places.expand(len(features), -1, -1, -1)], 1)
        numbers = self.read(features).unflatten(1, (self.parts, self.numbers)).flatten(3)
        weights = numbers[:, :, -1:].softmax(-1)
        pooled = (weights * numbers[:, :, :-1]).sum(-1).unflatten(0, x.shape[:-3])
        logits, pose, raw = pooled.split([1, poses.NUMBERS, poses.NUMBERS], -1)
        spread = None if self.delta else _spread(raw)
        return LayerPosterior(logits[..., 0], self.base + pose, spread)


class _Attention(nn.Module):
    """Attention of queries to a set, and a residual MLP, both after layer norm (Lee et al. 2019).

    Queries are (sets, queries, width), or (1, queries, width) if they are the same for every set.
    """

    def __init__(self, width: int) -> None:
        super().__init__()
        self.before, self.about = nn.LayerNorm(width), nn.LayerNorm(width)
        self.query, self.out = nn.Linear(width, width), nn.Linear(width, width)
        self.key_value = nn.Linear(width, 2 * width)
        self.alone = nn.Sequential(
            nn.LayerNorm(width), nn.Linear(width, width), nn.ELU(), nn.Linear(width, width)
        )

    def forward(self, queries: Tensor, items: Tensor) -> Tensor:
        query = _by_head(self.query(self.before(queries)))
        key, value = self.key_value(self.about(items)).chunk(2, -1)
        query = query.expand(len(items), -1, -1, -1)
        attended = scaled_dot_product_attention(query, _by_head(key), _by_head(value))
        queries = queries + self.out(attended.transpose(1, 2).flatten(2))
        return queries + self.alone(queries)


def _by_head(items: Tensor) -> Tensor:
    """Divide features among heads: (sets, items, width) to (sets, heads, items, width / heads)."""
    return items.unflatten(-1, (HEADS, -1)).transpose(1, 2)


class _InducedAttention(nn.Module):
    """ISAB: self-attention of a set through learned inducing points (Lee et al. 2019)."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.points = nn.Parameter(torch.randn(_INDUCING_POINTS, width) / width**0.5)
        self.gather, self.spread = _Attention(width), _Attention(width)

    def forward(self, items: Tensor) -> Tensor:
        return self.spread(items, self.gather(self.points[None], items))


class WholeEncoder(nn.Module):
    """q(t, A of wholes | t, A of parts): a set transformer.

    The features of a part are its pose relative to ``base``, that pose times the presence, the
    presence, and a learned embedding of the index.

    Args:
        parts: number of parts.
        wholes: number of wholes.
        base: pose (6,) about which the poses of parts vary.
        width: width of the set transformer.
        depth: number of ISAB layers.
        delta: whether poses are points, without a spread.
    """

    base: Tensor

    def __init__(
        self, parts: int, wholes: int, base: Tensor, width: int, depth: int, delta: bool
    ) -> None:
        super().__init__()
        self.delta = delta
        self.names = nn.Parameter(torch.randn(parts, _EMBEDDING))
        self.enter = nn.Linear(2 * poses.NUMBERS + 1 + _EMBEDDING, width)
        self.among = nn.Sequential(*(_InducedAttention(width) for _ in range(depth)))
        self.seed = nn.Parameter(torch.randn(1, width) / width**0.5)
        self.pool = _Attention(width)  # PMA
        self.code = nn.Sequential(nn.LayerNorm(width), nn.Linear(width, _CODE))

        def head(numbers: int) -> nn.Module:
            return nn.Sequential(nn.Linear(_CODE, width), nn.ELU(), nn.Linear(width, numbers))

        self.presence = head(wholes)
        self.pose, self.spread = (head(wholes * poses.NUMBERS) for _ in range(2))
        self.register_buffer("base", base)

    def forward(self, parts: Capsules) -> LayerPosterior:
        """Return q of the wholes, given values of parts (…, parts)."""
        leading = parts.logits.shape[:-1]
        presence = parts.presences[..., None]
        pose = _INPUT_SCALE * (parts.poses - self.base)
        names = self.names.expand(*leading, -1, -1)
        items = torch.cat([pose, pose * presence, _INPUT_SCALE * (presence - 0.5), names], -1)
        items = self.among(self.enter(items).flatten(0, -3))
        pooled = self.pool(self.seed[None], items)[:, 0]
        code = self.code(pooled).unflatten(0, leading)
        shape = (-1, poses.NUMBERS)
        spread = None if self.delta else _spread(self.spread(code).unflatten(-1, shape))
        return LayerPosterior(self.presence(code), self.pose(code).unflatten(-1, shape), spread)
