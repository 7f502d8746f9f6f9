"""The rolling VAE: one code for a whole sequence, which every frame shows rolled."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any, ClassVar, Self

import torch
from torch import Tensor, nn
from torch.distributions import Categorical, Normal

from topocaps.errors import BadInput, whole_number
from topocaps.latents.masking import zero_missing
from topocaps.latents.motion import CapsuleMotion, Known, Motion, motion_from, motion_settings
from topocaps.latents.topography import KELLER_2021, Topography
from topocaps.models.base import GenerativeModel, Noise, family
from topocaps.models.evidence import kl_to_standard_normal, log_ratio_to_standard_normal
from topocaps.models.experts import perceptrons, product_of_experts, rolled_back
from topocaps.models.likelihoods import Likelihood
from topocaps.models.networks import paper_widths
from topocaps.models.prediction import PredictedFrames, chunks
from topocaps.models.rolling_evidence import RollingEvidence
from topocaps.models.rolling_stream import RollingStream
from topocaps.models.visible import Stretch, VisibleFrames, visible_from, visible_settings


@family
class RollingVAE(GenerativeModel):
    r"""A sequence has one code t, and frame l shows it rolled by the motion v of the sequence:

    .. math:: t \sim N(0, I), \qquad p(x_l | t) = p(x | \mathrm{decode}(\mathrm{Roll}_{v l} t))

    The posterior is a product of experts over the visible frames: each gives a mean m and a
    precision p, which are rolled back to frame 0:

    .. math::

        P = 1 + \sum_l \mathrm{Roll}_{-vl}\, p_l, \qquad
        M = \frac1P \sum_l \mathrm{Roll}_{-vl}\, p_l \; \mathrm{Roll}_{-vl}\, m_l, \qquad
        q(t | x) = N(M, 1/P)

    It bounds the evidence of all frames, whichever of them are visible. In training, ``visible``
    chooses them anew for every sequence, and all present frames are asked for.

    A motion with several candidates is summed out. The weights of the candidates are sampled,
    p(x, t) / q(t): with an exact KL inside the logarithm of a sum there would be no bound.

    The code of every frame is that of the first, rolled, so the equivariance error is 0 by
    construction, and says nothing about this model.

    Args:
        z_given_x: encoder of frames, (…, *frame), that returns a Normal (…, capsules, *shape).
        x_given_t: decoder of codes that returns a distribution over frames.
        topography: capsules and their sites, which must be rings; nothing else of it is used.
        motion: how codes move.
        visible: which frames are visible in training.

    >>> capsules = Topography(capsules=4, shape=(5,))
    >>> model = RollingVAE.mlp(frame_shape=(1, 8, 8), topography=capsules)
    >>> x = torch.rand(2, 5, 1, 8, 8)  # batch, time, *frame
    >>> model(x).elbo.shape, model.encode(x).shape
    (torch.Size([2, 5]), torch.Size([2, 5, 4, 5]))
    >>> model.predict(x, lags=range(5, 8)).mean.shape  # the three frames that come next
    torch.Size([2, 3, 1, 8, 8])
    """

    terms: ClassVar = ("elbo", "log_px_given_t", "kl")
    citations = (KELLER_2021,)
    supports_vmap = True

    def __init__(
        self,
        z_given_x: nn.Module,
        x_given_t: nn.Module,
        topography: Topography,
        motion: Motion | None = None,
        visible: VisibleFrames | None = None,
    ) -> None:
        super().__init__()
        if not topography.cyclic:
            raise BadInput("a RollingVAE needs capsules that are rings: cyclic=True")
        self.z_given_x, self.x_given_t = z_given_x, x_given_t
        self.likelihood = getattr(x_given_t, "likelihood", Likelihood.BERNOULLI)
        self.frame_shape = getattr(x_given_t, "frame_shape", None)
        self.topography = topography
        self.visible = Stretch() if visible is None else visible
        self.motions = CapsuleMotion(motion or Known(), topography.capsules, topography.shape)

    @classmethod
    def mlp(
        cls,
        frame_shape: tuple[int, ...],
        topography: Topography,
        hidden: int | tuple[int, ...] | None = None,
        motion: Motion | None = None,
        visible: VisibleFrames | None = None,
        likelihood: Likelihood | str = Likelihood.BERNOULLI,
    ) -> Self:
        """Build the model with multilayer perceptrons, with SiLU between their layers.

        Args:
            frame_shape: shape of one frame, such as (channels, height, width).
            topography: capsules and their sites, which must be rings.
            hidden: widths of the encoder's hidden layers; the decoder has them in reverse order.
                By default they are the widths of the topographic models.
            motion: how codes move; by default ``Known(1)``, one site a frame.
            visible: which frames are visible in training; by default ``Stretch(3)``, three or more
                contiguous ones.
            likelihood: what the decoder's outputs mean.
        """
        motion, visible = motion or Known(), visible or Stretch()
        _, *widths = paper_widths(tuple(frame_shape), topography.latents)
        if hidden is not None:
            widths = list(hidden) if isinstance(hidden, Iterable) else [hidden]
        widths = [whole_number("hidden", width) for width in widths]
        latent, kind = (topography.capsules, *topography.shape), Likelihood.of(likelihood)
        networks = perceptrons(tuple(frame_shape), latent, widths, kind)
        model = cls(*networks, topography, motion, visible)
        settings = motion_settings(motion), visible_settings(visible)
        if None not in settings and topography.is_plain:
            model.config = {
                "kind": cls.__name__,
                "frame_shape": list(frame_shape),
                "topography": topography.settings(),
                "hidden": widths,
                "motion": settings[0],
                "visible": settings[1],
                "likelihood": kind.value,
            }
        return model

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> Self:
        topography = config["topography"]
        sides = {name: tuple(topography[name]) for name in ("shape", "reach")}
        return cls.mlp(
            tuple(config["frame_shape"]),
            Topography(**topography | sides),
            tuple(config["hidden"]),
            motion_from(config["motion"]),
            visible_from(config["visible"]),
            config["likelihood"],
        )

    @property
    def noise_shapes(self) -> list[tuple[int, ...]]:
        """Shapes of the noise for a frame: of the code, and of what chooses visible frames.

        The code of a sequence uses the noise of its first frame.
        """
        return [(self.topography.capsules, *self.topography.shape), (2,)]

    def evidence(
        self, x: Tensor, noise: Noise = torch.randn_like, mask: Tensor | None = None
    ) -> RollingEvidence:
        """Return the bound on all present frames, when the frames that ``visible`` draws are seen.

        Args:
            noise: function that returns standard normal numbers in the shape of its argument.
            mask: booleans (batch, time), True where a frame is present.
        """
        code, numbers = (noise(x.new_empty(*x.shape[:2], *shape)) for shape in self.noise_shapes)
        present = _all_frames(x) if mask is None else mask
        visible = self.visible.choose(torch.special.ndtr(numbers), present)
        return self.evidence_from(x, visible, code[:, 0], mask)

    def forward(self, x: Tensor, mask: Tensor | None = None) -> RollingEvidence:
        """Check the frames, then return the bound with all present frames visible."""
        x, present = self.given(x, mask)
        return self.evidence_from(x, present, mask=mask)

    def evidence_from(
        self, x: Tensor, visible: Tensor, noise: Tensor | None = None, mask: Tensor | None = None
    ) -> RollingEvidence:
        """Return the bound on all present frames, when ``visible`` frames are seen.

        Args:
            visible: booleans (batch, time).
            noise: standard normal numbers (batch, capsules, *shape); drawn by default.
            mask: booleans (batch, time), True where a frame is present.
        """
        q = self.posteriors(x, visible)
        t = q.mean + q.stddev * (torch.randn_like(q.mean[0]) if noise is None else noise)
        log_px = self._log_px(x, t, mask)  # candidates batch time
        if len(self.motions) == 1:
            kl = kl_to_standard_normal(q, self._axes)
            return RollingEvidence.of_sequence(log_px[0], kl[0], mask)
        return RollingEvidence.of_motions(log_px, self._log_weights(q, t, log_px), mask)

    def posteriors(self, x: Tensor, visible: Tensor) -> Normal:
        """Return q(t|x) at frame 0 for every candidate motion: (candidates, batch, capsules, …)."""
        lag = torch.arange(x.shape[1], device=x.device)
        experts = rolled_back(self.z_given_x(x), self.motions, self._candidates, lag)
        seen = visible.reshape(*visible.shape, *(1,) * self._axes)
        return product_of_experts(*(torch.where(seen, one, 0.0).sum(2) for one in experts))

    @property
    def _candidates(self) -> Tensor:
        """Indices of all candidate motions, to broadcast with (batch, time)."""
        return torch.arange(len(self.motions), device=self.motions.log_prior.device)[:, None, None]

    @property
    def _axes(self) -> int:
        """Number of tensor axes that a code has."""
        return 1 + len(self.topography.shape)

    def _log_px(self, x: Tensor, t: Tensor, mask: Tensor | None) -> Tensor:
        """Return log p(x_l|t) for each candidate motion and its t: (…, candidates, batch, time)."""
        lags = torch.arange(x.shape[1], device=x.device)
        log_px = self.x_given_t(self.at(t, self._candidates, lags)).log_prob(x)
        return log_px if mask is None else torch.where(mask, log_px, 0.0)

    def _log_weights(self, q: Normal, t: Tensor, log_px: Tensor) -> Tensor:
        """Return log p(v) p(x, t|v) / q(t|v) of each candidate motion v: (…, candidates, batch)."""
        ratio = log_ratio_to_standard_normal(q, t, self._axes)
        return self.motions.log_prior[:, None] + log_px.sum(-1) + ratio

    def at(self, t: Tensor, candidate: int | Tensor, lags: Sequence[int] | Tensor) -> Tensor:
        """Return codes of frame 0 as other frames show them.

        Args:
            t: (…, capsules, *shape).
            candidate: index of a candidate motion, or a tensor that broadcasts with (…, lags).
            lags: distances from frame 0, in frames.

        Returns:
            (…, lags, capsules, *shape).
        """
        steps = torch.as_tensor(lags, device=t.device)
        return self.motions.roll(t.unsqueeze(-1 - self._axes), candidate, steps)

    def given(self, x: Tensor, mask: Tensor | None) -> tuple[Tensor, Tensor]:
        """Check frames and mask; return the frames, zero where missing, and which are present."""
        x = zero_missing(x, mask)
        self.check(x, mask)
        return x, _all_frames(x) if mask is None else mask

    def check(self, x: Tensor, mask: Tensor | None = None) -> None:
        super().check(x, mask)
        if mask is not None and not mask.any(1).all():
            raise BadInput("every sequence needs at least one visible frame: a mask hides them all")

    def stack_key(self) -> tuple[object, ...]:
        return self.visible, len(self.motions)

    @torch.no_grad()
    def log_px(self, x: Tensor, samples: int = 10, mask: Tensor | None = None) -> Tensor:
        """Return the importance-weighted bound on log p(x_1..S), nats a present frame: (batch,).

        Its expectation does not fall with the number of samples. A single sample gives the bound
        with a sampled KL.
        """
        samples = whole_number("samples", samples)
        x, present = self.given(x, mask)
        q = self.posteriors(x, present)
        weights = []
        for count in chunks(samples, x.numel() * len(self.motions)):
            t = q.mean + q.stddev * torch.randn_like(q.mean.expand(count, *q.mean.shape))
            weights.append(self._log_weights(q, t, self._log_px(x, t, mask)).logsumexp(1))
        bound = torch.cat(weights).logsumexp(0) - math.log(samples)
        return bound / present.sum(1)

    @torch.no_grad()
    def motion(self, x: Tensor, mask: Tensor | None = None) -> Categorical:
        """Return the posterior over candidate motions of every sequence, given present frames.

        The evidence of a candidate is approximated by its bound, with log p(x|t) taken at the mean
        of t: so the result needs no random numbers.
        """
        x, present = self.given(x, mask)
        return self.motion_of(x, self.posteriors(x, present), mask)

    def motion_of(self, x: Tensor, q: Normal, mask: Tensor | None = None) -> Categorical:
        """Return the posterior over candidate motions, given q(t|x) of each candidate."""
        log_prior = self.motions.log_prior.expand(len(x), -1)
        if len(self.motions) == 1:
            return Categorical(logits=log_prior, validate_args=False)
        bound = self._log_px(x, q.mean, mask).sum(-1) - kl_to_standard_normal(q, self._axes)
        return Categorical(logits=log_prior + bound.mT, validate_args=False)

    def posterior(self, x: Tensor, mask: Tensor | None = None) -> Normal:
        """Return q(t|x) at frame 0, (batch, capsules, *shape), of the likeliest motion."""
        return self._likeliest(x, mask)[0]

    def _likeliest(self, x: Tensor, mask: Tensor | None) -> tuple[Normal, Tensor]:
        x, present = self.given(x, mask)
        q = self.posteriors(x, present)
        with torch.no_grad():
            candidate = self.motion_of(x, q, mask).logits.argmax(-1)
        each = candidate, torch.arange(len(x), device=x.device)
        return Normal(q.mean[each], q.stddev[each], validate_args=False), candidate

    def encode(self, x: Tensor, mask: Tensor | None = None, sample: bool = False) -> Tensor:
        """Return t of every frame, (batch, time, capsules, *shape): that of frame 0, rolled.

        Args:
            mask: booleans (batch, time), True where a frame is present. Missing frames have a code,
                too.
            sample: draw the code from its posterior, instead of its mean.
        """
        q, candidate = self._likeliest(x, mask)
        return self.at(q.rsample() if sample else q.mean, candidate[:, None], range(x.shape[1]))

    def decode(self, t: Tensor) -> Tensor:
        """Return the expected frame of every t: (…, capsules, *shape) to (…, *frame)."""
        return self.x_given_t(t).mean

    @torch.no_grad()
    def predict(
        self,
        x: Tensor,
        mask: Tensor | None = None,
        lags: Sequence[int] | None = None,
        samples: int = 100,
    ) -> PredictedFrames:
        """Return the distribution of frames, given the present ones.

        Args:
            mask: booleans (batch, time), True where a frame is present.
            lags: frames to predict, counted from the first frame of x, which is 0. They may lie
                before it or after the last one. By default they are all frames of x.
            samples: number of samples of t that ``log_prob`` averages over.
        """
        x, present = self.given(x, mask)
        q = self.posteriors(x, present)
        lags = range(x.shape[1]) if lags is None else lags
        return PredictedFrames(self, q, self.motion_of(x, q, mask), lags, samples)

    def fill(self, x: Tensor, mask: Tensor) -> Tensor:
        """Return the sequences with their missing frames predicted from all that are present."""
        predicted = self.predict(x, mask).mean
        return torch.where(mask.reshape(*mask.shape, *(1,) * (x.ndim - 2)), x, predicted)

    def stream(self) -> RollingStream:
        """Return a `RollingStream`, which encodes frames one at a time."""
        return RollingStream(self)

    @torch.no_grad()
    def sample(self, n: int, frames: int) -> Tensor:
        """Draw n codes and motions from the prior and decode them: (n, frames, *frame)."""
        like = self.motions.log_prior
        t = torch.randn(n, *self.noise_shapes[0], dtype=like.dtype, device=like.device)
        candidate = Categorical(logits=like).sample(torch.Size((n,)))
        return self.decode(self.at(t, candidate[:, None], range(frames)))


def _all_frames(x: Tensor) -> Tensor:
    return torch.ones(x.shape[:2], dtype=torch.bool, device=x.device)
