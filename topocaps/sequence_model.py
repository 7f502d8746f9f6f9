"""What models of sequences share: bounds, encoding, rolling, filling in."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from typing import ClassVar

import torch
from torch import Tensor, nn
from torch.distributions import Distribution

from topocaps.errors import BadInput
from topocaps.evidence import (
    Draws,
    Evidence,
    Posterior,
    kl_to_standard_normal,
    log_ratio_to_standard_normal,
    summed_out,
)
from topocaps.generative import GenerativeModel, Noise, check_place, check_values
from topocaps.latents.interface import TopographyLike
from topocaps.latents.masking import zero_missing
from topocaps.latents.topography import chosen
from topocaps.networks import Likelihood, Linear
from topocaps.streaming import Stream


class SequenceModel(GenerativeModel):
    """Frames x: (batch, time, *frame), latents t: (batch, time, capsules, *shape).

    What the two models share. A model knows its posterior, how z and u become t, and its prior.
    """

    terms: ClassVar = ("elbo", "log_px_given_t", "kl_z", "kl_u")
    topography: TopographyLike
    shares: ClassVar = True  #: u, over a window of frames
    sparsity = 0.0  #: nats for each unit of what capsules stand out by (not the papers')

    def __init__(self, x_given_t: nn.Module, topography: TopographyLike) -> None:
        super().__init__()
        self.x_given_t = x_given_t
        self.topography = topography

    @property
    def drawn(self) -> list[tuple[int, ...]]:
        """Shapes of what is drawn for a frame: z, and u where there is one."""
        return [(self.topography.capsules, *self.topography.shape)]

    @abstractmethod
    def posterior(self, x: Tensor) -> Posterior:
        """q(z|x), q(u|x)."""

    @abstractmethod
    def latents(self, z: Tensor, u: Tensor | None) -> Tensor:
        """t from z and u."""

    def ways(self, z: Tensor, u: Tensor | None) -> list[Tensor]:
        """t for every way that a sequence may go: one, or one for each axis that is kept apart."""
        return [self.latents(z, u)]

    @abstractmethod
    def prior(self, frames: int) -> Distribution:
        """p(t) over a sequence."""

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Evidence:
        """The terms of the bound for frames that are checked first.

        ``mask`` (batch, time) is True where a frame is there; the others, whatever they hold, take
        no part: their terms are 0, and the sum is a bound on the evidence of those that are.
        """
        x = zero_missing(x, mask)
        self.check(x)
        return self.evidence(x, mask=mask)

    def evidence(
        self, x: Tensor, noise: Noise = torch.randn_like, mask: Tensor | None = None
    ) -> Evidence:
        """The terms of Eq. 12 with one sample of the posterior; the KLs are exact.

        ``noise`` gives standard normal numbers shaped like what it is shown.
        """
        q = self._posterior(x, mask)
        z = q.z.mean + q.z.stddev * noise(q.z.mean)
        ways = self.ways(z, q.u.mean + q.u.stddev * noise(q.u.mean) if q.u else None)
        log_px_given_t, shares = summed_out(self._log_px(x, ways, mask), mask)
        kl_u = kl_to_standard_normal(q.u, self._axes) if q.u else torch.zeros_like(log_px_given_t)
        penalty = None
        if self.sparsity:
            spread = torch.stack([spread_of_capsules(t, self._axes) for t in ways])
            penalty = self.sparsity * (shares[..., None] * spread).sum(0)
            penalty = penalty if mask is None else torch.where(mask, penalty, 0.0)
        return Evidence(log_px_given_t, kl_to_standard_normal(q.z, self._axes), kl_u, penalty)

    def _log_px(self, x: Tensor, ways: Sequence[Tensor], mask: Tensor | None = None) -> Tensor:
        """log p(x|t) of every frame that is there: (ways, …, time)."""
        log_px = torch.stack([self.x_given_t(t).log_prob(x) for t in ways])
        return log_px if mask is None else torch.where(mask, log_px, 0.0)

    def draw(
        self, x: Tensor, posterior: Posterior, samples: int, mask: Tensor | None = None
    ) -> Draws:
        """Samples of the posterior and their importance weights."""
        z = posterior.z.rsample(torch.Size((samples,)))  # samples batch time capsules *shape
        u = posterior.u.rsample(torch.Size((samples,))) if posterior.u else None
        log_px_given_t, _ = summed_out(self._log_px(x, self.ways(z, u), mask), mask)
        ratio_z = log_ratio_to_standard_normal(posterior.z, z, self._axes)
        ratio_u = (
            log_ratio_to_standard_normal(posterior.u, u, self._axes)
            if posterior.u and u is not None
            else torch.zeros_like(ratio_z)
        )
        return Draws(log_px_given_t, ratio_z, ratio_u)

    def encode(self, x: Tensor, sample: bool = False, mask: Tensor | None = None) -> Tensor:
        """t of every frame: drawn, or from z = mean and u² = mean² + variance.

        (With the bare mean of u, an untrained t would come out many times too large.) Where axes
        are kept apart, it is that of the axis which a sequence went along, as far as it is told by
        its frames; in causal models, by those up to each.
        """
        return self.settle(zero_missing(x, mask), self.encode_ways(x, sample, mask), mask)

    def encode_ways(
        self, x: Tensor, sample: bool = False, mask: Tensor | None = None
    ) -> list[Tensor]:
        """The same for every way that a sequence may go."""
        x = zero_missing(x, mask)
        self.check(x)
        q = self._posterior(x, mask)
        if sample:
            return self.ways(q.z.rsample(), q.u.rsample() if q.u else None)
        return self.ways(q.z.mean, (q.u.mean.square() + q.u.variance).sqrt() if q.u else None)

    def settle(self, x: Tensor, ways: Sequence[Tensor], mask: Tensor | None = None) -> Tensor:
        """The t of the way that is the likelier."""
        if len(ways) == 1:
            return ways[0]
        return chosen(ways, self.taken(x, ways, mask)[..., None], self._axes - 1)

    def taken(self, x: Tensor, ways: Sequence[Tensor], mask: Tensor | None = None) -> Tensor:
        """Which one that is: (batch, 1), or (batch, time) where only the past is known."""
        log_px = self._log_px(x, ways, mask)
        so_far = log_px.cumsum(-1) if self.topography.causal else log_px.sum(-1, keepdim=True)
        return so_far.argmax(0)

    def decode(self, t: Tensor) -> Tensor:
        """The expected frame of every t: (…, capsules, *shape) to (…, *frame)."""
        return self.x_given_t(t).mean

    def roll(
        self, t: Tensor, steps: float | Tensor, axis: int | Sequence[int] | Tensor = 0
    ) -> Tensor:
        """Every capsule moved on, as ``Topography.roll`` does; over an open end comes what the
        prior expects."""
        fill = 0.0
        if not self.topography.cyclic:
            expected = self.prior(self.topography.window).mean.mean().nan_to_num()
            fill = expected.item()
        return self.topography.roll(t, steps, axis, fill)

    @torch.no_grad()
    def fill(
        self,
        x: Tensor,
        mask: Tensor,
        rate: float | None = None,
        axis: int | Sequence[int] | Tensor | None = None,
        closed: bool | None = None,
    ) -> Tensor:
        """The sequence with its missing frames, where ``mask`` is False, filled in.

        A missing frame is decoded from the t of the nearest frame that is there, rolled ``rate``
        sites along ``axis`` for each frame between them: the topography's velocity unless given.
        Capsules that move along several axes have to be told which, all the same or each its own:
        (capsules,), or (batch, capsules); unless they are kept apart, where the frames that are
        there tell. Where sequences are ``closed``
        (as the topography's time is, unless it is said), the nearest may be round their ends.
        """
        zero_missing(x, mask)
        if not mask.any(1).all():
            raise BadInput("a sequence of which no frame is there cannot be filled")
        own = self.rate if rate is None else rate
        ways = self.encode_ways(x, mask=mask)
        if self.topography.apart and axis is None:
            axis = self.taken(zero_missing(x, mask), ways, mask)[:, -1:]
        axes = self.axes_to_roll(axis, len(x)).to(x.device)
        t = self.way(ways, axes)
        closed = self.topography.cyclic and not self.topography.causal if closed is None else closed
        distance = _distances(x.shape[1], closed).to(x.device)  # from column to row, in frames
        far = distance.abs().where(mask[:, None, :], x.shape[1] + 1)  # batch missing there
        nearest = far.argmin(2)
        lag = distance.expand_as(far).gather(2, nearest[..., None])[..., 0]
        found = t.gather(1, nearest.reshape(*nearest.shape, *(1,) * (t.ndim - 2)).expand_as(t))
        filled = zero_missing(x, mask)
        for steps in lag[~mask].unique().tolist():
            here = ~mask & (lag == steps)
            along = axes[here.nonzero()[:, 0]]
            filled[here] = self.decode(self.roll(found[here], own * steps, along)).to(x.dtype)
        return filled

    @property
    def rate(self) -> float | Tensor:
        """Sites a frame that t is expected to move: of each capsule, where these are learned."""
        return self.topography.rate

    def axes_to_roll(self, axis: int | Sequence[int] | Tensor | None, batch: int) -> Tensor:
        """For every capsule of every sequence, (batch, capsules): one for all, one for each capsule
        or all of them. The first, unless capsules move along several: it has to be said then."""
        if axis is None and len(self.topography.axes) > 1:
            any_of = " or ".join(map(str, self.topography.axes))
            raise BadInput(f"these capsules move along several axes: give axis={any_of}")
        axes = self.topography.axis_of_each(0 if axis is None else axis)
        capsules = self.topography.capsules
        if tuple(axes.shape) not in ((), (capsules,), (batch, capsules), (batch, 1)):
            raise BadInput(
                f"axes are one for all, ({capsules},) or {(batch, capsules)}: a capsule's own; "
                f"not {tuple(axes.shape)}"
            )
        return axes.expand(batch, capsules)

    def way(self, ways: Sequence[Tensor], axes: Tensor) -> Tensor:
        """Of t for every way, that of sequences that went along these ``axes``, (batch, capsules),
        where they are kept apart; there is one else."""
        return ways[0] if len(ways) == 1 else chosen(ways, axes[:, None], self._axes - 1)

    def stream(self) -> Stream:
        """Takes frames one at a time, where the topography is causal."""
        return Stream(self)

    def _posterior(self, x: Tensor, mask: Tensor | None) -> Posterior:
        q = self.posterior(x)
        return q if mask is None else q.where(mask)

    def sample(self, n: int, frames: int) -> Tensor:
        """n sequences from the prior, decoded: (n, frames, *frame)."""
        return self.decode(self.prior(frames).sample(torch.Size((n,))))

    def project(self) -> None:
        """What follows each optimiser step: projected rows where the norm asks for it."""
        for module in self.modules():
            if isinstance(module, Linear):
                module.project()

    @property
    def _axes(self) -> int:
        """Of the latents of one frame."""
        return 1 + len(self.topography.shape)

    @property
    def likelihood(self) -> Likelihood:  # type: ignore[override]
        return getattr(self.x_given_t, "likelihood", Likelihood.BERNOULLI)

    def check(self, x: Tensor, whole: bool = True) -> None:
        """Refuse frames this model cannot take, with a sentence; a window of them, if ``whole``."""
        if not isinstance(x, Tensor):
            raise BadInput(f"frames must be a tensor, not a {type(x).__name__}: torch.as_tensor(x)")
        frame_shape = getattr(self.x_given_t, "frame_shape", None)
        if frame_shape is not None and (x.ndim < 3 or tuple(x.shape[2:]) != tuple(frame_shape)):
            grey = tuple(frame_shape) == (1, *x.shape[2:])
            raise BadInput(
                f"frames must be (batch, time, *frame) with frame {tuple(frame_shape)}, "
                f"not {tuple(x.shape)}{': grey ones need a channel, x[:, :, None]' * grey}"
            )
        if whole and self.shares:
            self.topography.check(x.shape[1])
        check_values(x, self.likelihood)
        check_place(x, self)


def _distances(frames: int, closed: bool) -> Tensor:
    """Frames from one (column) to another (row), the short way round where time is closed."""
    frame = torch.arange(frames)
    distance = frame[:, None] - frame
    return (distance + frames // 2) % frames - frames // 2 if closed else distance


def spread_of_capsules(t: Tensor, axes: int) -> Tensor:
    """How far the sites of capsules lie apart, summed over capsules: (…, capsules, *shape) to (…).

    A group lasso: where it is paid for, few capsules stand out and the others are level.
    """
    sites = t.flatten(1 - axes)
    apart = sites - sites.mean(-1, keepdim=True)
    return (apart.square().sum(-1) + 1e-6).sqrt().sum(-1)
