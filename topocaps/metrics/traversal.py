r"""traversal_gain: the commutative diagram in pixels, on frames the encoder has not seen.

How well :math:`decode(Roll_l(t_0))` predicts :math:`x_l`, against the sequence's own mean frame
(the best that an invariant model can do):

.. math:: gain = \frac{nats(orbit\ mean) - nats(rolled)}{nats(orbit\ mean) - nats(perfect)}

1 is perfect, 0 is that mean frame, below 0 is worse than it. At ``rate=0`` it is the gain of t_0
that is held: what not rolling would do, mostly far below 0.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass

import torch
from torch import Tensor

from topocaps.arithmetic import seeded
from topocaps.errors import BadInput
from topocaps.latents.interface import TopographyLike
from topocaps.metrics.intervals import Interval, Mean
from topocaps.models.likelihoods import Likelihood
from topocaps.models.sequence import SequenceModel

EDGE = 1e-3  # probabilities that are given, or means, are kept this far from 0 and 1


@dataclass(frozen=True, repr=False)
class Traversal:
    """Costs of every frame, (sequences, time), and which of them count.

    Costs are nats, or squared errors for a Gaussian decoder.
    """

    rolled: Tensor  # of decode(Roll_l(t_0))
    orbit_mean: Tensor  # of the sequence's own mean frame
    perfect: Tensor  # the frame's own entropy: 0 for binary frames
    unseen: Tensor  # not in the window around the frame that is rolled, nor shown there
    moving: Tensor  # (sequences, factor) which factors move
    axis: Tensor  # (sequences, capsules) that was rolled along

    @classmethod
    def join(cls, parts: Sequence[Traversal]) -> Traversal:
        """One traversal of several batches."""
        names = cls.__dataclass_fields__
        return cls(**{name: torch.cat([getattr(p, name) for p in parts]) for name in names})

    def __repr__(self) -> str:
        sequences, frames = self.rolled.shape
        return f"Traversal({sequences} sequences of {frames} frames, overall={self.overall})"

    @property
    def by_factor(self) -> dict[int, float | None]:
        """{factor column: gain on unseen frames}; None where a factor leaves none unseen."""
        columns = self.moving.any(0).nonzero().flatten().tolist()
        found = {column: self.gain(column) for column in columns}
        return {column: None if gain is None else gain.value for column, gain in found.items()}

    @property
    def by_lag(self) -> list[float]:
        """Mean cost of the rolled frame at every lag."""
        return self.rolled.mean(0).tolist()

    @property
    def overall(self) -> float | None:
        """Mean gain of the factors that have unseen frames."""
        gain = self.gain()
        return None if gain is None else gain.value

    def gain(self, column: int | None = None) -> Mean | None:
        """Of the sequences in which a factor moves, or the mean over factors: what rolling gained
        over the orbit mean, and what could be gained, on unseen frames. None where there are none.
        """
        factors = self.moving if column is None else self.moving[:, [column]]
        rows = factors.any(1) & self.unseen.any(1)
        unseen, factors = self.unseen[rows], factors[rows]
        gained = (self.orbit_mean - self.rolled)[rows].mul(unseen).sum(1).double()
        possible = (self.orbit_mean - self.perfect)[rows].mul(unseen).sum(1).double()
        can = (possible[:, None] * factors).sum(0) > 0
        if not can.any():
            return None
        factors = factors[:, can]
        return Mean(gained[:, None] * factors, possible[:, None] * factors)

    def interval(
        self, column: int | None = None, draws: int = 1000, seed: int = 0
    ) -> Interval | None:
        """A 95 % bootstrap interval of a factor's gain, or of the mean over factors."""
        gain = self.gain(column)
        return None if gain is None else gain.interval(draws, seed)


def unseen_lags(window: int, frames: int, causal: bool = False) -> range:
    """Lags from a frame that its window does not reach, round the sequence.

    >>> list(unseen_lags(window=13, frames=15))
    [7, 8]
    >>> list(unseen_lags(window=13, frames=15, causal=True))
    [1, 2]
    """
    if causal:
        return range(1, frames - window + 1)
    return range((window - 1) // 2 + 1, frames - window // 2)


def start_of(topography: TopographyLike, window: int, frames: int, closed: bool) -> int:
    """The frame that is rolled: one whose whole window is there, where time has ends."""
    if topography.causal:
        return window - 1
    return 0 if closed else frames // 2


def lags_from(start: int, frames: int, closed: bool) -> list[int]:
    """How far every frame is from ``start``, from that one on, round; in open time what comes round
    is the past."""
    return [lag if closed or start + lag < frames else lag - frames for lag in range(frames)]


def roll_to_all(
    model: SequenceModel, t: Tensor, start: int, rate: float, axis: int | Tensor, closed: bool
) -> Tensor:
    """The t of frame ``start`` rolled to every frame, from that one on, round: (batch, time, …)."""
    lags = lags_from(start, t.shape[1], closed)
    return torch.stack([model.roll(t[:, start], rate * lag, axis) for lag in lags], 1)


@torch.no_grad()
def traversal(
    model: SequenceModel,
    x: Tensor,
    factors: Tensor | None = None,
    rate: float = 1.0,
    window: int | None = None,
    seed: int | None = 0,
    closed: bool | None = None,
) -> Traversal:
    """Encode the window around a frame, roll, decode, and compare with the frames that came.

    The frame is the first, where sequences are closed; in the middle, where they have ends; the
    last of the first window, where only the past is seen. Lags count from it.

    ``rate`` is the sites a frame that the data ask for. ``window`` decides which frames count as
    unseen: the model's own unless given; models that are compared must be given the same.
    Latents are drawn, from ``seed`` (None leaves PyTorch's generator as it is). Sequences are taken
    to be ``closed`` where the topography is cyclic, unless it is said.
    """
    model.check(x)
    frames = x.shape[1]
    window = model.topography.window if window is None else window
    if not model.topography.window <= window <= frames:
        raise BadInput(
            f"window must lie between the model's {model.topography.window} and the "
            f"{frames} frames, not {window}"
        )
    topography = model.topography
    with nullcontext() if seed is None else seeded(seed):
        per_axis = model.encode_per_axis(x, sample=True)
    closed = topography.cyclic if closed is None else closed
    start = start_of(topography, window, frames, closed)
    x = x.roll(-start, 1)
    if factors is not None:
        factors = factors.roll(-start, 1)
    unseen = torch.zeros(x.shape[:2], dtype=torch.bool, device=x.device)
    lags = unseen_lags(window, frames, topography.causal)
    unseen[:, lags.start : lags.stop] = True
    window_frames = [lag % frames for lag in range(lags.stop - frames, lags.start)]
    for lag in lags:
        shown = (x[:, lag, None] == x[:, window_frames]).flatten(2).all(2).any(1)
        unseen[:, lag] &= ~shown

    def cost_of_rolling(axis: Tensor) -> Tensor:
        t = model.select_axis(per_axis, axis)
        rolled = roll_to_all(model, t, start, rate, axis if several else 0, closed)
        return model.likelihood.decoded_cost(model.x_given_t(rolled), x)

    several = topography.axes != (None,)
    axis = torch.zeros(len(x), topography.capsules, dtype=torch.int64, device=x.device)
    cost = cost_of_rolling(axis)
    for capsules, other in _other_axes(topography):
        tried = axis.clone()
        tried[:, capsules] = other
        cost_then = cost_of_rolling(tried)
        better = cost_then[:, window_frames].mean(1) < cost[:, window_frames].mean(1)
        axis, cost = (
            torch.where(better[:, None], *pair) for pair in ((tried, axis), (cost_then, cost))
        )
    return _compared(cost, x, unseen, factors, model.likelihood, axis)


def _other_axes(topography: TopographyLike) -> Iterator[tuple[slice | int, int]]:
    """Which capsules to try along which axis, where there are several: all of them, then each,
    unless axes are kept apart.

    Every sequence keeps what shows best what was seen of it.
    """
    if topography.axes == (None,):
        return
    axes = range(len(topography.shape))
    for axis in axes[1:]:
        yield slice(None), axis
    if topography.capsules > 1 and not topography.apart:
        yield from itertools.product(range(topography.capsules), axes)


def prediction(
    x: Tensor,
    predicted: Tensor,
    unseen: Tensor,
    factors: Tensor | None = None,
    likelihood: Likelihood | str = Likelihood.BERNOULLI,
) -> Traversal:
    """The same comparison for frames that anything predicted: both (batch, time, *frame).

    ``unseen`` says which of them it had not seen, (batch, time). Costs are nats where frames are
    probabilities ("bernoulli", kept 0.001 from 0 and 1 as the mean is), else squared errors.

    >>> x = torch.eye(3).repeat(2, 1, 1)
    >>> round(prediction(x, x, unseen=torch.ones(2, 3, dtype=torch.bool)).overall, 2)
    1.0
    """
    kind = Likelihood.of(likelihood)
    if x.ndim < 3 or x.shape != predicted.shape or unseen.shape != x.shape[:2]:
        raise BadInput(
            f"predictions are (batch, time, *frame) as frames are, and unseen is (batch, time), "
            f"not {tuple(predicted.shape)}, {tuple(x.shape)} and {tuple(unseen.shape)}"
        )
    alone = torch.zeros(len(x), 1, dtype=torch.int64)
    return _compared(kind.cost(predicted, x, EDGE), x, unseen.bool(), factors, kind, alone)


def _compared(
    cost: Tensor,
    x: Tensor,
    unseen: Tensor,
    factors: Tensor | None,
    likelihood: Likelihood,
    axis: Tensor,
) -> Traversal:
    """The cost of every frame beside that of the sequence's mean, and of the frame itself."""
    moving = torch.ones(len(x), 1, dtype=torch.bool)
    if factors is not None:
        moving = (factors != factors[:, :1]).any(1)
    return Traversal(
        rolled=cost.cpu(),
        orbit_mean=likelihood.cost(x.mean(1, keepdim=True), x, EDGE).cpu(),
        perfect=likelihood.cost(x, x).cpu(),
        unseen=unseen.cpu(),
        moving=moving.cpu(),
        axis=axis.cpu(),
    )
