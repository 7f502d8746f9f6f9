"""Experts of single frames on the code of their sequence, and the product of these experts."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

import torch
from torch import Tensor
from torch.distributions import Categorical, Normal

from topocaps.latents.capsule_motion import CapsuleMotion
from topocaps.latents.paths import Paths
from topocaps.models.correction import PosteriorCorrection
from topocaps.models.networks import GaussianEncoder

LARGEST = 8.0  # largest magnitude of the log-precision of an expert


class ExpertEncoder(GaussianEncoder):
    """Encoder from a frame to its expert: a Gaussian over the code that the frame shows.

    The network returns the means and the log-precisions, which are clamped to [-8, 8].
    """

    def distribution(self, outputs: Tensor) -> Normal:
        mean, log_precision = outputs.chunk(2, -1)
        return Normal(
            mean.unflatten(-1, self.latent_shape),
            log_precision.clamp(-LARGEST, LARGEST).mul(-0.5).exp().unflatten(-1, self.latent_shape),
            validate_args=False,
        )


def rolled_back(
    expert: Normal, paths: Paths, shifts: Tensor, visible: Tensor
) -> tuple[Tensor, Tensor]:
    """Return the experts on the code of frame 0, if frames show it rolled by ``shifts``.

    The result is their precisions, and the products of precisions and means. Both add up over
    frames. They are 0 for frames that are not visible.

    Args:
        expert: the experts on the codes that the frames show, (batch, time, capsules, *shape).
        paths: the rolls.
        shifts: sites, (…, batch, time, capsules, axes), or with 1 in place of batch or capsules.
        visible: booleans (batch, time).
    """
    precision = paths.roll_precision(expert.variance.reciprocal(), -shifts)
    weighted = precision * paths.roll(expert.mean, -shifts)
    seen = visible.reshape(*visible.shape, *(1,) * (1 + len(paths.shape)))
    return torch.where(seen, precision, 0.0), torch.where(seen, weighted, 0.0)


def weighted_squares(precision: Tensor, weighted_mean: Tensor) -> Tensor:
    """Return the products of precisions and squared means, from the products with the means."""
    return torch.where(precision > 0, weighted_mean.square() / precision, 0.0)


def product_of_experts(precision: Tensor, weighted_mean: Tensor) -> Normal:
    """Return the product of N(0, 1) and of experts.

    Args:
        precision: sum of the precisions of the experts.
        weighted_mean: sum of the products of their precisions and means.

    >>> q = product_of_experts(torch.tensor([3.0]), torch.tensor([8.0]))
    >>> q.mean, q.stddev
    (tensor([2.]), tensor([0.5000]))
    """
    total = 1 + precision
    return Normal(weighted_mean / total, total.rsqrt(), validate_args=False)


@dataclass(frozen=True)
class CodePosterior:
    """q(t|x, v) at frame 0, for some candidate motions v of every sequence."""

    q: Normal  #: (kept, batch, capsules, *shape)
    candidate: Tensor  #: index of each candidate, (kept, batch), or (kept, 1) if all are kept

    @classmethod
    def of(
        cls,
        expert: Normal,
        motions: CapsuleMotion,
        keep: int,
        lag: Tensor,
        visible: Tensor,
        correction: PosteriorCorrection | None = None,
    ) -> Self:
        """Return the posterior of the code, given the visible frames.

        Args:
            expert, lag, visible: as in ``PathSums.of``.
            motions: the candidate motions.
            keep: number of candidates that are kept: those that agree best with the experts.
            correction: network that corrects the product of the experts; none by default.
        """
        candidate = motions.all_candidates
        if keep < len(motions):
            with torch.no_grad():
                sums = PathSums.of(expert, motions.paths, lag, visible)
                candidate = sums.likeliest(motions, keep)
        shifts = motions.shifts(candidate[..., None], lag)
        precision, weighted = rolled_back(expert, motions.paths, shifts, visible)
        q = product_of_experts(precision.sum(2), weighted.sum(2))
        if correction is not None:
            q = correction(q, weighted_squares(precision, weighted).sum(2))
        return cls(q, candidate)

    def pick(self, place: Tensor) -> tuple[Normal, Tensor]:
        """Return the posterior and the candidate of each sequence at ``place``.

        Args:
            place: index among the kept candidates, (…, batch).
        """
        sequence = torch.arange(place.shape[-1], device=place.device).expand(place.shape)
        q = Normal(self.q.mean[place, sequence], self.q.stddev[place, sequence], False)
        return q, self.candidate.expand(-1, place.shape[-1])[place, sequence]

    def among_all(self, kept: Categorical, candidates: int) -> Categorical:
        """Extend a distribution over the kept candidates to all, with probability 0 for others."""
        logits = kept.logits.new_full((len(kept.logits), candidates), -torch.inf)
        index = self.candidate.mT.expand_as(kept.logits)
        return Categorical(logits=logits.scatter(1, index, kept.logits), validate_args=False)


@dataclass(frozen=True)
class PathSums:
    """Sums over visible frames of the experts on the code of frame 0, for every path of a capsule.

    The sums of a capsule depend only on its own path. So they determine the probability of every
    combination of paths.
    """

    precision: Tensor  #: (paths, batch, capsules, *shape)
    weighted_mean: Tensor  #: products of precisions and means, (paths, batch, capsules, *shape)
    weighted_square: Tensor  #: products of precisions and squared means, of the same shape

    @classmethod
    def of(cls, expert: Normal, paths: Paths, lag: Tensor, visible: Tensor) -> Self:
        """Return the sums over the visible frames.

        Args:
            expert: the experts on the codes that the frames show, (batch, time, capsules, *shape).
            paths: the paths, and the rolls along them.
            lag: distances from frame 0, (time,) or (batch, time).
            visible: booleans (batch, time).
        """
        path = torch.arange(len(paths), device=lag.device)[:, None, None]
        shifts = paths.shifts(path, lag)[..., None, :]  # paths, 1 or batch, time, 1, axes
        precision, weighted = rolled_back(expert, paths, shifts, visible)
        squares = weighted_squares(precision, weighted)
        return cls(precision.sum(2), weighted.sum(2), squares.sum(2))

    def __add__(self, other: PathSums) -> PathSums:
        return PathSums(
            self.precision + other.precision,
            self.weighted_mean + other.weighted_mean,
            self.weighted_square + other.weighted_square,
        )

    def log_weights(self, motions: CapsuleMotion) -> Tensor:
        r"""Return the log-probability of every candidate motion, up to a constant.

        It is (candidates, batch). An expert counts as an observation of the code, with Gaussian
        noise. The evidence of all observations is

        .. math:: \tfrac12 \sum_{\mathrm{sites}} (P M^2 - \log P - \sum_l p_l m_l^2)

        No frame is decoded. The prior of the code counts as N(0, I), also if the model has another
        prior: the result is only used to rank candidates.
        """
        sites, total = len(motions.paths.shape), 1 + self.precision
        explained = self.weighted_mean.square() / total - total.log()
        evidence = 0.5 * explained.flatten(-sites).sum(-1)  # paths batch capsules
        # With whole rolls, the sum of p m² is equal for all paths and can be left out. This holds
        # for open ends, too: sites that a roll leaves without a code have t = 0, and cost p m².
        if any(motions.paths.fractional):
            evidence = evidence - 0.5 * self.weighted_square.flatten(-sites).sum(-1)
        capsule = torch.arange(evidence.shape[-1], device=evidence.device)
        by_capsule = evidence.mT[motions.path_of, capsule]  # candidates capsules batch
        return motions.log_prior[:, None] + by_capsule.sum(1)

    def likeliest(self, motions: CapsuleMotion, keep: int) -> Tensor:
        """Return the most probable candidate motions of each sequence: (keep, batch).

        Among equally probable candidates, the first ones are returned.
        """
        return self.log_weights(motions).argsort(stable=True, dim=0, descending=True)[:keep]

    def posterior(
        self, motions: CapsuleMotion, keep: int, correction: PosteriorCorrection | None = None
    ) -> CodePosterior:
        """Return the posterior of the code under the ``keep`` most probable candidates.

        Args:
            correction: network that corrects the product of the experts; none by default.
        """
        candidate = motions.all_candidates
        if keep < len(motions):
            candidate = self.likeliest(motions, keep)
        batch, capsules = self.precision.shape[1:3]
        path = motions.path_of[candidate]  # kept, batch or 1, capsules
        sequence = torch.arange(batch, device=path.device)[:, None]
        capsule = torch.arange(capsules, device=path.device)
        at = path, sequence, capsule
        q = product_of_experts(self.precision[at], self.weighted_mean[at])
        if correction is not None:
            q = correction(q, self.weighted_square[at])
        return CodePosterior(q, candidate)
