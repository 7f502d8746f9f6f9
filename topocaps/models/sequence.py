"""The base of `TopographicVAE` and `VAE`: bounds, encoding, rolling, filling in frames."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from typing import ClassVar

import torch
from torch import Tensor, nn
from torch.distributions import Distribution

from topocaps.errors import BadInput
from topocaps.latents.interface import TopographyLike
from topocaps.latents.masking import zero_missing
from topocaps.latents.rolling import chosen
from topocaps.latents.stack import TopographyStack, lattice
from topocaps.latents.topography import Topography
from topocaps.models.base import GenerativeModel, Noise
from topocaps.models.evidence import (
    Evidence,
    Posterior,
    joint_bound,
    kl_to_standard_normal,
    log_ratio_to_standard_normal,
    summed_out,
)
from topocaps.models.likelihoods import Likelihood
from topocaps.models.stream import Stream
from topocaps.models.visible import VisibleFrames


class SequenceModel(GenerativeModel):
    """Base of models that encode each frame of a sequence as capsules.

    Frames x are (batch, time, *frame) and latents t are (batch, time, capsules, *shape). A subclass
    defines the posterior of z and u, how they make t, and the prior of t.
    """

    terms: ClassVar = ("elbo", "log_px_given_t", "kl_z", "kl_u")
    topography: TopographyLike
    couples_frames: ClassVar = True  #: whether t of a frame depends on the frames of its window
    sparsity = 0.0  #: penalty in nats per unit of `spread_of_capsules` (not in the papers)
    #: frames that are visible to the encoders in training; None for all (not in the papers)
    visible: VisibleFrames | None = None

    def __init__(self, x_given_t: nn.Module, topography: TopographyLike) -> None:
        super().__init__()
        self.x_given_t = x_given_t
        self.topography = topography
        self.likelihood = getattr(x_given_t, "likelihood", Likelihood.BERNOULLI)
        self.frame_shape = getattr(x_given_t, "frame_shape", None)

    @property
    def noise_shapes(self) -> list[tuple[int, ...]]:
        chooses = [] if self.visible is None else [(2,)]
        return [*chooses, (self.topography.capsules, *self.topography.shape)]

    @property
    def frames_are_independent(self) -> bool:
        """Whether the latents of frames are independent under the prior and the posterior."""
        return self.topography.window == 1 or not self.couples_frames

    @abstractmethod
    def posterior(self, x: Tensor) -> Posterior:
        """Return q(z|x) and, if the model has u, q(u|x)."""

    @abstractmethod
    def latents(self, z: Tensor, u: Tensor | None) -> Tensor:
        """Return t from z and u."""

    def t_per_axis(self, z: Tensor, u: Tensor | None) -> list[Tensor]:
        """Return t for every axis that a whole sequence may move along.

        The list has one entry unless the topography keeps axes apart.
        """
        return [self.latents(z, u)]

    @abstractmethod
    def prior(self, frames: int) -> Distribution:
        """Return p(t) of a sequence with this number of frames."""

    def evidence(
        self, x: Tensor, noise: Noise = torch.randn_like, mask: Tensor | None = None
    ) -> Evidence:
        """Return the terms of Eq. 12, estimated with one sample of the posterior and exact KLs.

        If ``visible`` is set, the z and u of hidden frames are drawn from the prior.
        """
        if self.visible is None:
            return self._evidence(x, self._posterior(x, mask), noise, mask)
        q = self.posterior(x)
        like = q.z.mean.flatten(-self._axes)[..., 0]  # batch time, or with models in front
        present = torch.ones_like(like, dtype=torch.bool) if mask is None else mask
        uniform = torch.special.ndtr(noise(like.new_empty(*like.shape, 2)))
        return self._evidence(x, q.where(self.visible.choose(uniform, present)), noise, mask)

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Evidence:
        """Check the frames, and return their ``evidence`` if all present frames are visible."""
        x = self.checked(x, mask)
        return self._evidence(x, self._posterior(x, mask), torch.randn_like, mask)

    def _evidence(self, x: Tensor, q: Posterior, noise: Noise, mask: Tensor | None) -> Evidence:
        z = q.z.mean + q.z.stddev * noise(q.z.mean)
        u = q.u.mean + q.u.stddev * noise(q.u.mean) if q.u else None
        per_axis = self.t_per_axis(z, u)
        log_px_given_t, p_axis = summed_out(self._log_px(x, per_axis, mask), mask)
        kl_u = kl_to_standard_normal(q.u, self._axes) if q.u else torch.zeros_like(log_px_given_t)
        penalty = None
        if self.sparsity:
            spread = torch.stack([spread_of_capsules(t, self._axes) for t in per_axis])
            penalty = self.sparsity * (p_axis[..., None] * spread).sum(0)
            penalty = penalty if mask is None else torch.where(mask, penalty, 0.0)
        return Evidence(log_px_given_t, kl_to_standard_normal(q.z, self._axes), kl_u, penalty)

    def _log_px(self, x: Tensor, per_axis: Sequence[Tensor], mask: Tensor | None = None) -> Tensor:
        """Return log p(x|t) of every frame, (axes, …, time), and 0 for missing frames."""
        log_px = torch.stack([self.x_given_t(t).log_prob(x) for t in per_axis])
        return log_px if mask is None else torch.where(mask, log_px, 0.0)

    def log_weights(
        self, x: Tensor, posterior: Posterior, samples: int, mask: Tensor | None = None
    ) -> Tensor:
        """Return log p(x, z, u) / q(z, u|x) for samples of q, in nats: (samples, batch, time)."""
        z = posterior.z.rsample(torch.Size((samples,)))  # samples batch time capsules *shape
        u = posterior.u.rsample(torch.Size((samples,))) if posterior.u else None
        log_px_given_t, _ = summed_out(self._log_px(x, self.t_per_axis(z, u), mask), mask)
        weights = log_px_given_t + log_ratio_to_standard_normal(posterior.z, z, self._axes)
        if posterior.u is None or u is None:
            return weights
        return weights + log_ratio_to_standard_normal(posterior.u, u, self._axes)

    def log_px(self, x: Tensor, samples: int = 10, mask: Tensor | None = None) -> Tensor:
        return joint_bound(self, x, samples, mask)

    def encode(self, x: Tensor, sample: bool = False, mask: Tensor | None = None) -> Tensor:
        """Return t of every frame.

        If the topography keeps axes apart, t is that of ``inferred_axis``.

        Args:
            sample: whether to draw z and u from the posterior. By default z is its mean, and u² is
                the mean of u²: the squared mean plus the variance. (With the squared mean alone,
                the t of an untrained model is many times too large.)
            mask: as in ``evidence``.
        """
        per_axis = self.encode_per_axis(x, sample, mask)
        return self.most_likely(zero_missing(x, mask), per_axis, mask)

    def encode_per_axis(
        self, x: Tensor, sample: bool = False, mask: Tensor | None = None
    ) -> list[Tensor]:
        """Return t of every frame, for every axis that a whole sequence may move along."""
        q = self._posterior(self.checked(x, mask), mask)
        if sample:
            return self.t_per_axis(q.z.rsample(), q.u.rsample() if q.u else None)
        u = (q.u.mean.square() + q.u.variance).sqrt() if q.u else None
        return self.t_per_axis(q.z.mean, u)

    def most_likely(
        self, x: Tensor, per_axis: Sequence[Tensor], mask: Tensor | None = None
    ) -> Tensor:
        """Return, of the t for every axis, the one under which the frames are most likely."""
        if len(per_axis) == 1:
            return per_axis[0]
        return chosen(per_axis, self.inferred_axis(x, per_axis, mask)[..., None], self._axes - 1)

    def inferred_axis(
        self, x: Tensor, per_axis: Sequence[Tensor], mask: Tensor | None = None
    ) -> Tensor:
        """Return the index of the axis under which the frames are most likely.

        It is (batch, 1), inferred from the whole sequence. In causal models it is (batch, time),
        inferred for each frame from the frames up to it.
        """
        log_px = self._log_px(x, per_axis, mask)
        so_far = log_px.cumsum(-1) if self.topography.causal else log_px.sum(-1, keepdim=True)
        return so_far.argmax(0)

    def select_axis(self, per_axis: Sequence[Tensor], axes: Tensor) -> Tensor:
        """Return the t of every capsule for its own axis.

        Args:
            per_axis: t for every axis that a sequence may move along.
            axes: axis of every capsule, (batch, capsules) or (batch, 1).
        """
        return chosen(per_axis, axes[:, None], self._axes - 1)

    def decode(self, t: Tensor) -> Tensor:
        """Return the expected frame of every t: (…, capsules, *shape) to (…, *frame)."""
        return self.x_given_t(t).mean

    def roll(
        self, t: Tensor, steps: float | Tensor, axis: int | Sequence[int] | Tensor = 0
    ) -> Tensor:
        """Move every capsule as ``Topography.roll`` does.

        Sites that enter over an open end hold the mean of t under the prior.
        """
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
        """Return the sequences, with their missing frames filled in.

        A missing frame is decoded from the t of the nearest present frame, rolled by ``rate`` sites
        per frame of distance.

        Args:
            mask: booleans (batch, time), True where a frame is present.
            rate: sites per frame; by default ``rate`` of the model.
            axis: axis to roll along: one for all, (capsules,) or (batch, capsules). It is required
                if capsules move along several axes, unless the topography keeps axes apart: then
                it is inferred from the present frames.
            closed: whether the last frame is followed by the first, so that the nearest frame may
                be at the other end. By default this is so if time is cyclic in the topography.
        """
        if mask is None:
            raise BadInput("fill needs a mask (batch, time), True where a frame is present")
        filled = zero_missing(x, mask)
        if not mask.any(1).all():
            raise BadInput(
                "every sequence needs at least one frame that is present: the mask of a sequence "
                "has no True"
            )
        sites_per_frame = self.rate if rate is None else rate
        per_axis = self.encode_per_axis(x, mask=mask)
        if self.topography.apart and axis is None:
            axis = self.inferred_axis(filled, per_axis, mask)[:, -1:]
        axes = self.axes_to_roll(axis, len(x)).to(x.device)
        t = self.select_axis(per_axis, axes)
        closed = self.topography.cyclic and not self.topography.causal if closed is None else closed
        distance = _distances(x.shape[1], closed).to(x.device)  # from column to row, in frames
        far = distance.abs().where(mask[:, None, :], x.shape[1] + 1)  # batch missing present
        nearest = far.argmin(2)
        lag = distance.expand_as(far).gather(2, nearest[..., None])[..., 0]
        t = t.gather(1, nearest.reshape(*nearest.shape, *(1,) * (t.ndim - 2)).expand_as(t))
        for steps in lag[~mask].unique().tolist():
            here = ~mask & (lag == steps)
            rolled = self.roll(t[here], sites_per_frame * steps, axes[here.nonzero()[:, 0]])
            filled[here] = self.decode(rolled).to(x.dtype)
        return filled

    @property
    def rate(self) -> float | Tensor:
        """Sites by which t is expected to move per frame; learned velocities are (capsules,)."""
        return self.topography.rate

    def axes_to_roll(self, axis: int | Sequence[int] | Tensor | None, batch: int) -> Tensor:
        """Return the axis to roll along for every capsule of every sequence: (batch, capsules).

        Args:
            axis: one for all, or (capsules,), (batch, capsules) or (batch, 1). None means the first
                axis; it raises `BadInput` if capsules move along several axes.
        """
        if axis is None and len(self.topography.axes) > 1:
            choices = " or ".join(map(str, self.topography.axes))
            raise BadInput(f"these capsules move along several axes: pass axis={choices}")
        axes = self.topography.axis_of_each(0 if axis is None else axis)
        capsules = self.topography.capsules
        if tuple(axes.shape) not in ((), (capsules,), (batch, capsules), (batch, 1)):
            raise BadInput(
                f"axis must be an integer, or of shape ({capsules},), {(batch, capsules)} or "
                f"{(batch, 1)}, not {tuple(axes.shape)}"
            )
        return axes.expand(batch, capsules)

    def stream(self) -> Stream:
        """Return a `Stream`, which encodes frames as they arrive. It needs a causal topography."""
        return Stream(self)

    def _posterior(self, x: Tensor, mask: Tensor | None) -> Posterior:
        return self.posterior(x).where(mask)

    def sample(self, n: int, frames: int) -> Tensor:
        """Draw n sequences of t from the prior and decode them: (n, frames, *frame)."""
        return self.decode(self.prior(frames).sample(torch.Size((n,))))

    @property
    def _axes(self) -> int:
        """Number of tensor axes of the latents of one frame."""
        return 1 + len(self.topography.shape)

    def stack_key(self) -> tuple[object, ...] | None:
        topography = self.topography
        if isinstance(topography, Topography) and not topography.is_plain:
            return None
        return (*lattice(topography), self.visible)

    def join(self, members: Sequence[GenerativeModel], frames: int) -> None:
        topographies = [model.topography for model in members if isinstance(model, SequenceModel)]
        self.topography = TopographyStack(topographies, frames).to(next(self.parameters()))

    def make_compilable(self, frames: int) -> None:
        w = self.topography
        if isinstance(w, Topography) and w.is_plain and w.is_small(frames):
            self.topography = TopographyStack([w], frames).to(next(self.parameters()))

    def check(self, x: Tensor, mask: Tensor | None = None, *, whole: bool = True) -> None:
        """Raise `BadInput` if this model does not support these frames.

        Args:
            whole: whether x holds whole sequences, which must not be shorter than the window.
        """
        super().check(x, mask)
        if whole and self.couples_frames:
            self.topography.check(x.shape[1])


def check_topographic(model: object, use: str) -> None:
    """Raise `BadInput` unless the model encodes each frame as t, which ``use`` needs."""
    if not isinstance(model, SequenceModel):
        raise BadInput(f"{type(model).__name__} does not support {use}")


def _distances(frames: int, closed: bool) -> Tensor:
    """Return the signed distance, in frames, from every frame (column) to every frame (row).

    Args:
        frames: number of frames.
        closed: whether the last frame is followed by the first. The distance is then the shorter
            one of both directions.
    """
    frame = torch.arange(frames)
    distance = frame[:, None] - frame
    return (distance + frames // 2) % frames - frames // 2 if closed else distance


def spread_of_capsules(t: Tensor, axes: int) -> Tensor:
    """Return how far the sites of capsules deviate from their mean: (…, capsules, *shape) to (…).

    It is the root of the summed squared deviations, added over capsules. As a penalty it is a group
    lasso: few capsules vary, and the others are constant.

    Args:
        t: latents, (…, capsules, *shape).
        axes: number of tensor axes of a frame's latents.
    """
    sites = t.flatten(1 - axes)
    deviations = sites - sites.mean(-1, keepdim=True)
    return (deviations.square().sum(-1) + 1e-6).sqrt().sum(-1)
