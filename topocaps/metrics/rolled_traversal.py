r"""The traversal gain: how well rolled latents predict frames that the encoder has not seen.

The gain compares the cost of :math:`x_l` under :math:`decode(Roll_l(t_0))` with its cost under the
mean frame of the sequence, which is the best prediction of an invariant model:

.. math:: gain = \frac{nats(orbit\ mean) - nats(rolled)}{nats(orbit\ mean) - nats(perfect)}

The gain is 1 for perfect predictions, 0 for the mean frame, and negative for worse predictions.
With ``rate=0`` it is the gain of t_0 without a roll, which is usually far below 0.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass

import torch
from torch import Tensor

from topocaps.device import seeded
from topocaps.errors import BadInput
from topocaps.latents.interface import TopographyLike
from topocaps.metrics.intervals import Interval, Mean
from topocaps.models.likelihoods import Likelihood
from topocaps.models.sequence import SequenceModel, check_topographic

EDGE = 1e-3  #: smallest distance from 0 and 1 of probabilities in mean and predicted frames


@dataclass(frozen=True)
class TraversalOptions:
    """Settings of a traversal that depend on the data rather than on the model.

    Args:
        window: number of frames around the rolled frame that do not count as unseen; by default the
            window of the model. Use the same number for all models that are compared.
        rate: sites per frame by which capsules should move for these data.
        closed: whether the first frame follows the last; by default whether the topography is
            cyclic.
    """

    window: int | None = None
    rate: float = 1.0
    closed: bool | None = None

    def plan(self, topography: TopographyLike, frames: int) -> TraversalPlan:
        """Return the plan for sequences of this many frames, or raise `BadInput`."""
        window = topography.window if self.window is None else self.window
        if not topography.window <= window <= frames:
            raise BadInput(
                f"window must be between the model's {topography.window} and the "
                f"{frames} frames of a sequence, not {window}"
            )
        closed = topography.cyclic if self.closed is None else self.closed
        return TraversalPlan(frames, window, closed, topography.causal)


@dataclass(frozen=True)
class TraversalPlan:
    """The rolled frame of a sequence, and the lags of all frames from it.

    Lags and frames are listed from the rolled frame on. After the last frame, the first follows.
    """

    frames: int
    window: int
    closed: bool
    causal: bool

    @property
    def start(self) -> int:
        """The index of the rolled frame. The sequence contains all frames of its window.

        It is the first frame of closed sequences, and the middle frame of open ones. For causal
        topographies, it is the last frame of the first window.
        """
        if self.causal:
            return self.window - 1
        return 0 if self.closed else self.frames // 2

    @property
    def lags(self) -> list[int]:
        """The number of frames from the rolled frame to every frame.

        Earlier frames of open sequences have negative lags.
        """
        return [
            lag if self.closed or self.start + lag < self.frames else lag - self.frames
            for lag in range(self.frames)
        ]

    @property
    def inside(self) -> list[int]:
        """The positions in the list of the frames inside the window of the rolled frame."""
        outside = unseen_lags(self.window, self.frames, self.causal)
        return [lag % self.frames for lag in range(outside.stop - self.frames, outside.start)]

    def unseen(self, x: Tensor) -> Tensor:
        """Return which frames are outside the window and differ from all inside: (batch, time).

        Args:
            x: frames (batch, time, *frame) that begin with the rolled frame.
        """
        outside = list(unseen_lags(self.window, self.frames, self.causal))
        unseen = torch.zeros(x.shape[:2], dtype=torch.bool, device=x.device)
        unseen[:, outside] = ~equal_frames(x[:, outside], x[:, self.inside]).any(2)
        return unseen

    def roll(
        self, model: SequenceModel, t: Tensor, rate: float | Tensor, axis: int | Tensor
    ) -> Tensor:
        """Return t of the rolled frame, rolled by every lag: (batch, time, capsules, *shape)."""
        start = t[:, self.start]
        return torch.stack([model.roll(start, rate * lag, axis) for lag in self.lags], 1)


def unseen_lags(window: int, frames: int, causal: bool = False) -> range:
    """Return the lags from a frame to the frames outside its window, in a closed sequence.

    >>> list(unseen_lags(window=13, frames=15))
    [7, 8]
    >>> list(unseen_lags(window=13, frames=15, causal=True))
    [1, 2]
    """
    if causal:
        return range(1, frames - window + 1)
    return range((window - 1) // 2 + 1, frames - window // 2)


def equal_frames(x: Tensor, others: Tensor | None = None) -> Tensor:
    """Return which frames of sequences are equal: booleans (batch, time, n).

    One of the other frames at a time is compared with all of ``x``, which saves memory.

    Args:
        x: frames (batch, time, *frame).
        others: frames (batch, n, *frame) to compare ``x`` with; by default ``x`` itself.
    """
    pixels, others = x.flatten(2), x if others is None else others
    same = [(frame[:, None] == pixels).all(2) for frame in others.flatten(2).unbind(1)]
    return torch.stack(same, 2)


def is_new(equal: Tensor, visible: Tensor) -> Tensor:
    """Return which frames are hidden and differ from all visible frames: (batch, time).

    Args:
        equal: `equal_frames` of the sequences.
        visible: booleans (batch, time).
    """
    return ~visible & ~(equal & visible[:, None]).any(2)


@dataclass(frozen=True, repr=False)
class Traversal:
    """The costs of predicted frames, (sequences, time), and which frames count.

    Frames are listed from the rolled frame on. Costs are nats, or squared errors if the decoder is
    Gaussian.
    """

    rolled: Tensor  #: cost of the frame under decode(Roll_l(t_0))
    orbit_mean: Tensor  #: cost of the frame under the mean frame of its sequence
    perfect: Tensor  #: cost of the frame under itself, its entropy; 0 for binary frames
    unseen: Tensor  #: True if the frame is outside the window and equal to no frame inside it
    moving: Tensor  #: (sequences, factor), True if the factor moves
    axis: Tensor  #: (sequences, capsules), axis of the roll

    @classmethod
    def join(cls, parts: Sequence[Traversal]) -> Traversal:
        """Concatenate the traversals of several batches."""
        names = cls.__dataclass_fields__
        return cls(**{name: torch.cat([getattr(p, name) for p in parts]) for name in names})

    def __repr__(self) -> str:
        sequences, frames = self.rolled.shape
        return f"Traversal({sequences} sequences of {frames} frames, overall={self.overall})"

    @property
    def by_factor(self) -> dict[int, float | None]:
        """The gain on unseen frames by factor column; None if the factor leaves none unseen."""
        columns = self.moving.any(0).nonzero().flatten().tolist()
        gains = {column: self.gain(column) for column in columns}
        return {column: None if gain is None else gain.value for column, gain in gains.items()}

    @property
    def by_lag(self) -> list[float]:
        """The mean cost of the rolled prediction at every lag."""
        return self.rolled.mean(0).tolist()

    @property
    def overall(self) -> float | None:
        """The mean gain over the factors that leave frames unseen; None if there are none."""
        gain = self.gain()
        return None if gain is None else gain.value

    def gain(self, column: int | None = None) -> Mean | None:
        """Return the gain on unseen frames, or None if there are no such frames.

        Args:
            column: only sequences in which this factor moves count; by default the gain is the
                mean over factors.
        """
        factors = self.moving if column is None else self.moving[:, [column]]
        rows = factors.any(1) & self.unseen.any(1)
        unseen, factors = self.unseen[rows], factors[rows]
        gained = (self.orbit_mean - self.rolled)[rows].mul(unseen).sum(1).double()
        possible = (self.orbit_mean - self.perfect)[rows].mul(unseen).sum(1).double()
        improvable = (possible[:, None] * factors).sum(0) > 0
        if not improvable.any():
            return None
        factors = factors[:, improvable]
        return Mean(gained[:, None] * factors, possible[:, None] * factors)

    def interval(self, column: int | None = None) -> Interval | None:
        """Return a 95 % bootstrap interval of ``gain(column)``."""
        gain = self.gain(column)
        return None if gain is None else gain.interval()


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
    """Encode the window around one frame, roll its t by every lag, decode, and measure the costs.

    Args:
        model: a topographic model.
        x: frames (batch, time, *frame).
        factors: factors of the frames, (batch, time, factor); by default one factor moves.
        rate, window, closed: as in `TraversalOptions`.
        seed: seed of the latents, which are drawn from the posterior. None draws them from
            PyTorch's global generator.
    """
    check_topographic(model, "traversals of single frames")
    model.check(x)
    topography = model.topography
    plan = TraversalOptions(window, rate, closed).plan(topography, x.shape[1])
    with nullcontext() if seed is None else seeded(seed):
        per_axis = model.encode_per_axis(x, sample=True)
    x = x.roll(-plan.start, 1)
    if factors is not None:
        factors = factors.roll(-plan.start, 1)
    several_axes = topography.axes != (None,)

    def cost_of_rolling(axis: Tensor) -> Tensor:
        t = model.select_axis(per_axis, axis)
        rolled = plan.roll(model, t, rate, axis if several_axes else 0)
        return model.likelihood.decoded_cost(model.x_given_t(rolled), x)

    axis = torch.zeros(len(x), topography.capsules, dtype=torch.int64, device=x.device)
    cost = cost_of_rolling(axis)
    for capsules, other in _other_axes(topography):
        candidate = axis.clone()
        candidate[:, capsules] = other
        candidate_cost = cost_of_rolling(candidate)
        better = candidate_cost[:, plan.inside].mean(1) < cost[:, plan.inside].mean(1)
        axis = torch.where(better[:, None], candidate, axis)
        cost = torch.where(better[:, None], candidate_cost, cost)
    return _compared(cost, x, plan.unseen(x), factors, model.likelihood, axis)


def _other_axes(topography: TopographyLike) -> Iterator[tuple[slice | int, int]]:
    """Yield the capsules and the axis of every change to try, starting from the first axis.

    Each axis is tried for all capsules and, unless the topography keeps axes apart, for one capsule
    at a time. Each sequence keeps the changes that lower the cost of the frames in its window.
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
    """Compare frames that any method predicted, as `traversal` compares rolled frames.

    Args:
        x: frames (batch, time, *frame).
        predicted: predictions of the frames, of the same shape.
        unseen: booleans (batch, time), True where the method has not seen the frame.
        factors: factors of the frames, (batch, time, factor); by default one factor moves.
        likelihood: "bernoulli" for costs in nats, with probabilities clamped to [0.001, 0.999],
            like those of the mean frame; "gaussian" for squared errors.

    >>> x = torch.eye(3).repeat(2, 1, 1)
    >>> round(prediction(x, x, unseen=torch.ones(2, 3, dtype=torch.bool)).overall, 2)
    1.0
    """
    if x.ndim < 3 or x.shape != predicted.shape or unseen.shape != x.shape[:2]:
        raise BadInput(
            "x and predicted must be (batch, time, *frame), and unseen (batch, time), not "
            f"{tuple(x.shape)}, {tuple(predicted.shape)} and {tuple(unseen.shape)}"
        )
    kind = Likelihood.of(likelihood)
    axis = torch.zeros(len(x), 1, dtype=torch.int64)
    return _compared(kind.cost(predicted, x, EDGE), x, unseen.bool(), factors, kind, axis)


def _compared(
    cost: Tensor,
    x: Tensor,
    unseen: Tensor,
    factors: Tensor | None,
    likelihood: Likelihood,
    axis: Tensor,
) -> Traversal:
    """Add the costs under the mean frame of each sequence and under the frames themselves."""
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
