"""The base of models in which a sequence has one code: its posterior, and the bounds."""

from __future__ import annotations

import math
from collections.abc import Hashable, Sequence
from typing import ClassVar

import torch
from torch import Tensor, nn
from torch.distributions import Distribution, Normal

from topocaps.errors import BadInput, whole_number
from topocaps.latents.capsule_motion import CapsuleMotion
from topocaps.latents.motion import Known, Motion
from topocaps.latents.topography import Topography
from topocaps.models.base import GenerativeModel, Noise
from topocaps.models.correction import PosteriorCorrection
from topocaps.models.evidence import RollingEvidence, chunks
from topocaps.models.experts import CodePosterior
from topocaps.models.likelihoods import Likelihood
from topocaps.models.networks import CONVOLUTIONS
from topocaps.models.priors import CodePrior, StandardNormal
from topocaps.models.visible import Stretch, VisibleFrames, visible_first


class OneCodeModel(GenerativeModel):
    """Base of models in which a sequence has one code, which every frame shows rolled.

    It defines the posterior of the code and the bounds. The arguments are those of `RollingVAE`.
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
        correction: int | None = None,
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
        self.correction = None
        if correction is not None:
            self.correction = PosteriorCorrection(
                topography.shape, self.motions.groups, correction, topography.cyclic
            )

    @property
    def kept(self) -> int:
        """Number of candidate motions of a sequence that are decoded."""
        return len(self.motions) if self.keep is None else min(self.keep, len(self.motions))

    @property
    def noise_shapes(self) -> list[tuple[int, ...]]:
        """Shapes of the noise for a frame: for the code, and for the choice of visible frames.

        The code of a sequence uses the noise of its first frame.
        """
        return [self._code_shape, (2,)]

    def evidence(
        self, x: Tensor, noise: Noise = torch.randn_like, mask: Tensor | None = None
    ) -> RollingEvidence:
        """Return the bound on all present frames, if ``visible`` chooses the visible ones."""
        code, numbers = (noise(x.new_empty(*x.shape[:2], *shape)) for shape in self.noise_shapes)
        present, uniform = all_frames(x) if mask is None else mask, torch.special.ndtr(numbers)
        visible = self.visible.choose(uniform, present)
        return self.evidence_from(x, visible, code[:, 0], mask, self.visible.most)

    def forward(self, x: Tensor, mask: Tensor | None = None) -> RollingEvidence:
        """Check the frames, and return the bound if all present frames are visible."""
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
        """Return the bound on all present frames, if the posterior is given ``visible`` frames.

        Args:
            visible: booleans (batch, time).
            noise: standard normal numbers (batch, capsules, *shape). They are drawn by default.
            mask: booleans (batch, time), True where a frame is present.
            most: largest number of visible frames of a sequence, if it is known.
        """
        posterior = self.posteriors(x, visible, most)
        q, candidate = posterior.q, posterior.candidate
        t = q.mean + q.stddev * (torch.randn_like(q.mean[0]) if noise is None else noise)
        log_px = self._log_px(x, t, candidate, mask)  # kept batch time
        if len(self.motions) == 1:
            kl = self.prior.kl(q, t, self._axes)
            return RollingEvidence.of_sequence(log_px[0], kl[0], mask)
        return RollingEvidence.of_motions(log_px, self._log_weights(posterior, t, log_px), mask)

    def posteriors(self, x: Tensor, visible: Tensor, most: int | None = None) -> CodePosterior:
        """Return q(t|x, v) at frame 0 for every candidate motion v, or for the ``keep`` likeliest.

        Args:
            visible: booleans (batch, time).
            most: largest number of visible frames of a sequence, if it is known. Only this many
                frames of each sequence are then encoded.
        """
        lag = torch.arange(x.shape[1], device=x.device)
        if most is not None and most < x.shape[1]:
            x, lag, visible = visible_first(x, visible, most)
        return CodePosterior.of(
            self.expert(x), self.motions, self.kept, lag, visible, self.correction
        )

    def expert(self, x: Tensor) -> Normal:
        """Return the experts on the codes that frames show, (batch, time, capsules, *shape)."""
        expert: Normal = self.z_given_x(x)
        given, needed = tuple(expert.mean.shape), (*x.shape[:2], *self._code_shape)
        if given != needed:
            raise BadInput(
                f"the encoder must return codes (batch, time, capsules, *shape) = {needed}, as the "
                f"topography states, not {given}"
            )
        return expert

    def capsule_nats(self, q: Normal) -> Tensor:
        """Return KL(q || p) of each capsule, or an upper bound on it: (…, capsules).

        Args:
            q: distribution of codes, (…, capsules, *shape).
        """
        # an axis of one capsule, so that the KL is not summed over capsules
        single = Normal(q.mean.unsqueeze(-self._axes), q.stddev.unsqueeze(-self._axes), False)
        return self.prior.kl_bound(single, self._axes)

    @property
    def _code_shape(self) -> tuple[int, ...]:
        return self.topography.capsules, *self.topography.shape

    @property
    def _axes(self) -> int:
        """Number of tensor axes that a code has."""
        return len(self._code_shape)

    def _log_px(self, x: Tensor, t: Tensor, candidate: Tensor, mask: Tensor | None) -> Tensor:
        """Return log p(x_l|t) of every frame, given t of each kept candidate.

        It is (…, kept, batch, time), and 0 for missing frames.
        """
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
            error.add_note(f"The decoder received codes {tuple(t.shape)}: (…, capsules, *shape).")
            raise
        if frames.batch_shape != t.shape[: -self._axes]:
            raise BadInput(
                "the decoder must return an Independent distribution whose events are whole frames:"
                f" for codes {tuple(t.shape)}, the batch shape must be "
                f"{tuple(t.shape[: -self._axes])}, not {tuple(frames.batch_shape)}"
            )
        return frames

    def at(self, t: Tensor, candidate: int | Tensor, lags: Sequence[int] | Tensor) -> Tensor:
        """Return codes of frame 0, rolled to other frames.

        Args:
            t: codes (…, capsules, *shape).
            candidate: index of a candidate motion, or a tensor that broadcasts with (…, lags).
            lags: distances from frame 0, in frames.

        Returns:
            (…, lags, capsules, *shape).
        """
        steps = torch.as_tensor(lags, device=t.device)
        return self.motions.roll(t.unsqueeze(-1 - self._axes), candidate, steps)

    def given(self, x: Tensor, mask: Tensor | None) -> tuple[Tensor, Tensor]:
        """Check frames and mask, and return the frames and which of them are present.

        Missing frames are replaced by zeros.
        """
        x = self.checked(x, mask)
        return x, all_frames(x) if mask is None else mask

    def check(self, x: Tensor, mask: Tensor | None = None) -> None:
        super().check(x, mask)
        if mask is not None and not mask.any(1).all():
            raise BadInput(
                "every sequence needs at least one frame that is present: the mask of a sequence "
                "has no True"
            )

    def stack_key(self) -> tuple[object, ...] | None:
        if not isinstance(self.prior, Hashable):
            return None  # priors of a user's class may not be comparable
        if any(isinstance(module, CONVOLUTIONS) for module in self.modules()):
            return None  # on a GPU, vmap over convolutions is slower than a stack for each model
        paths = tuple(self.motions.paths.velocities.shape)
        return self.visible, self.keep, self.prior, len(self.motions), paths

    @torch.no_grad()
    def log_px(self, x: Tensor, samples: int = 10, mask: Tensor | None = None) -> Tensor:
        """Return the importance-weighted bound on log p(x_1..S), in nats per frame: (batch,).

        The expectation does not decrease with the number of samples. A single sample gives the
        bound with a sampled KL. The arguments are those of ``GenerativeModel.log_px``.
        """
        samples = whole_number("samples", samples)
        x, present = self.given(x, mask)
        posterior = self.posteriors(x, present)
        q, log_weights = posterior.q, []
        for count in chunks(samples, x.numel() * self.kept):
            t = q.mean + q.stddev * torch.randn_like(q.mean.expand(count, *q.mean.shape))
            log_px = self._log_px(x, t, posterior.candidate, mask)
            log_weights.append(self._log_weights(posterior, t, log_px).logsumexp(1))
        bound = torch.cat(log_weights).logsumexp(0) - math.log(samples)
        return bound / present.sum(1)


def all_frames(x: Tensor) -> Tensor:
    """Return a mask that marks all frames as present: booleans (batch, time)."""
    return torch.ones(x.shape[:2], dtype=torch.bool, device=x.device)
