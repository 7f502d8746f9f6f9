"""Models in which a sequence has one code: the posterior of the code, and the bounds."""

from __future__ import annotations

import math
from collections.abc import Hashable, Sequence
from typing import ClassVar

import torch
from torch import Tensor, nn
from torch.distributions import Distribution, Normal

from topocaps.errors import BadInput, whole_number
from topocaps.latents.motion import CapsuleMotion, Known, Motion
from topocaps.latents.topography import Topography
from topocaps.models.base import GenerativeModel, Noise
from topocaps.models.evidence import RollingEvidence, chunks
from topocaps.models.experts import CodePosterior
from topocaps.models.likelihoods import Likelihood
from topocaps.models.priors import CodePrior, StandardNormal
from topocaps.models.visible import Stretch, VisibleFrames, visible_first


class OneCodeModel(GenerativeModel):
    """Base of models in which a sequence has one code, which every frame shows rolled.

    It holds the posterior of the code and the bounds. The arguments are those of `RollingVAE`.
    """

    terms: ClassVar = ("elbo", "log_px_given_t", "kl")

    def __init__(
        self,
        z_given_x: nn.Module,
        x_given_t: nn.Module,
        topography: Topography,
        motion: Motion = Known(),  # noqa: B008 (frozen)
        visible: VisibleFrames = Stretch(),  # noqa: B008 (frozen)
        keep: int | None = None,
        prior: CodePrior | str = StandardNormal(),  # noqa: B008 (frozen)
    ) -> None:
        super().__init__()
        self.z_given_x, self.x_given_t = z_given_x, x_given_t
        self.likelihood = getattr(x_given_t, "likelihood", Likelihood.BERNOULLI)
        self.frame_shape = getattr(x_given_t, "frame_shape", None)
        self.topography = topography
        if not isinstance(visible, VisibleFrames):
            raise BadInput(f"visible must be VisibleFrames such as Stretch(3), not {visible!r}")
        self.visible = visible
        self.keep = None if keep is None else whole_number("keep", keep)
        self.prior = CodePrior.of(prior)
        self.motion_kind = motion
        self.motions = CapsuleMotion(
            motion, topography.capsules, topography.shape, topography.cyclic
        )

    @property
    def kept(self) -> int:
        """Number of candidate motions that are decoded for a sequence."""
        return len(self.motions) if self.keep is None else min(self.keep, len(self.motions))

    @property
    def noise_shapes(self) -> list[tuple[int, ...]]:
        """Shapes of the noise for a frame: of the code, and of what chooses frames.

        The code of a sequence uses the noise of its first frame.
        """
        return [self._code_shape, (2,)]

    def evidence(
        self, x: Tensor, noise: Noise = torch.randn_like, mask: Tensor | None = None
    ) -> RollingEvidence:
        """Return the bound on all present frames, when only some of them are visible."""
        code, numbers = (noise(x.new_empty(*x.shape[:2], *shape)) for shape in self.noise_shapes)
        present, uniform = all_frames(x) if mask is None else mask, torch.special.ndtr(numbers)
        visible = self.visible.choose(uniform, present)
        return self.evidence_from(x, visible, code[:, 0], mask, self.visible.most)

    def forward(self, x: Tensor, mask: Tensor | None = None) -> RollingEvidence:
        """Check the frames, then return the bound with all present frames visible."""
        x, present = self.given(x, mask)
        return self.evidence_from(x, present, mask=mask)

    def evidence_from(
        self,
        x: Tensor,
        visible: Tensor,
        noise: Tensor | None = None,
        mask: Tensor | None = None,
        most: int | None = None,
    ) -> RollingEvidence:
        """Return the bound on all present frames, when ``visible`` frames are seen.

        Args:
            visible: booleans (batch, time).
            noise: standard normal numbers (batch, capsules, *shape); drawn by default.
            mask: booleans (batch, time), True where a frame is present.
            most: largest number of visible frames of a sequence, if it is known.
        """
        found = self.posteriors(x, visible, most)
        q, candidate = found.q, found.candidate
        t = q.mean + q.stddev * (torch.randn_like(q.mean[0]) if noise is None else noise)
        log_px = self._log_px(x, t, candidate, mask)  # kept batch time
        if len(self.motions) == 1:
            kl = self.prior.kl(q, t, self._axes)
            return RollingEvidence.of_sequence(log_px[0], kl[0], mask)
        return RollingEvidence.of_motions(log_px, self._log_weights(found, t, log_px), mask)

    def posteriors(self, x: Tensor, visible: Tensor, most: int | None = None) -> CodePosterior:
        """Return q(t|x, v) at frame 0 for every candidate motion v, or for the ``keep`` likeliest.

        Args:
            visible: booleans (batch, time).
            most: largest number of visible frames of a sequence, if it is known. Then no more
                frames are encoded.
        """
        lag = torch.arange(x.shape[1], device=x.device)
        if most is not None and most < x.shape[1]:
            x, lag, visible = visible_first(x, visible, most)
        return CodePosterior.of(self.expert(x), self.motions, self.kept, lag, visible)

    def expert(self, x: Tensor) -> Normal:
        """Return what frames say of the codes that they show, (batch, time, capsules, *shape)."""
        expert: Normal = self.z_given_x(x)
        given, wanted = tuple(expert.mean.shape), (*x.shape[:2], *self._code_shape)
        if given != wanted:
            raise BadInput(
                f"the encoder must return codes (batch, time, capsules, *shape) = {wanted}, as its "
                f"topography has them, not {given}"
            )
        return expert

    def capsule_nats(self, q: Normal) -> Tensor:
        """Return KL(q || p) of each capsule, or an upper bound on it: (…, capsules).

        Args:
            q: distribution of codes, (…, capsules, *shape).
        """
        alone = Normal(q.mean.unsqueeze(-self._axes), q.stddev.unsqueeze(-self._axes), False)
        return self.prior.kl_bound(alone, self._axes)

    @property
    def _code_shape(self) -> tuple[int, ...]:
        return self.topography.capsules, *self.topography.shape

    @property
    def _axes(self) -> int:
        """Number of tensor axes that a code has."""
        return len(self._code_shape)

    def _log_px(self, x: Tensor, t: Tensor, candidate: Tensor, mask: Tensor | None) -> Tensor:
        """Return log p(x_l|t) for each kept candidate and its t: (…, kept, batch, time)."""
        lags = torch.arange(x.shape[1], device=x.device)
        log_px = self.frames_given(self.at(t, candidate[..., None], lags)).log_prob(x)
        return log_px if mask is None else torch.where(mask, log_px, 0.0)

    def _log_weights(self, posterior: CodePosterior, t: Tensor, log_px: Tensor) -> Tensor:
        """Return log p(v) p(x, t|v) / q(t|x, v) of each kept candidate v: (…, kept, batch)."""
        ratio = self.prior.log_ratio(posterior.q, t, self._axes)
        return self.motions.log_prior[posterior.candidate] + log_px.sum(-1) + ratio

    def frames_given(self, t: Tensor) -> Distribution:
        """Return the decoder's distribution of frames: (…, capsules, *shape) to (…, *frame)."""
        try:
            frames: Distribution = self.x_given_t(t)
        except RuntimeError as error:
            error.add_note(f"The decoder was given codes {tuple(t.shape)}: (…, capsules, *shape).")
            raise
        if frames.batch_shape != t.shape[: -self._axes]:
            raise BadInput(
                "the decoder must return an Independent distribution whose events are whole frames:"
                f" for codes {tuple(t.shape)} its batch shape must be "
                f"{tuple(t.shape[: -self._axes])}, not {tuple(frames.batch_shape)}"
            )
        return frames

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
        x = self.checked(x, mask)
        return x, all_frames(x) if mask is None else mask

    def check(self, x: Tensor, mask: Tensor | None = None) -> None:
        super().check(x, mask)
        if mask is not None and not mask.any(1).all():
            raise BadInput("every sequence needs at least one visible frame: a mask hides them all")

    def stack_key(self) -> tuple[object, ...] | None:
        if not isinstance(self.prior, Hashable):
            return None  # a prior of your own that cannot be compared with those of other models
        if any(isinstance(module, nn.Conv2d) for module in self.modules()):
            return None  # a GPU runs mapped convolutions slower than several models side by side
        paths = tuple(self.motions.paths.velocities.shape)
        return self.visible, self.keep, self.prior, len(self.motions), paths

    @torch.no_grad()
    def log_px(self, x: Tensor, samples: int = 10, mask: Tensor | None = None) -> Tensor:
        """Return the importance-weighted bound on log p(x_1..S), nats a present frame: (batch,).

        Its expectation does not fall with the number of samples. A single sample gives the bound
        with a sampled KL.
        """
        samples = whole_number("samples", samples)
        x, present = self.given(x, mask)
        found = self.posteriors(x, present)
        q, weights = found.q, []
        for count in chunks(samples, x.numel() * self.kept):
            t = q.mean + q.stddev * torch.randn_like(q.mean.expand(count, *q.mean.shape))
            log_px = self._log_px(x, t, found.candidate, mask)
            weights.append(self._log_weights(found, t, log_px).logsumexp(1))
        bound = torch.cat(weights).logsumexp(0) - math.log(samples)
        return bound / present.sum(1)


def all_frames(x: Tensor) -> Tensor:
    return torch.ones(x.shape[:2], dtype=torch.bool, device=x.device)
