"""Layers of capsules: values, posterior, and the connection of two layers (Eq. 3-6)."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn.functional import logsigmoid, softplus

from topocaps.capsules import concrete, poses
from topocaps.capsules.settings import TIGHTEST, PartWholeSettings
from topocaps.models.base import Noise

_LOG_2PI = math.log(2 * math.pi)


@dataclass(frozen=True)
class Capsules:
    """Values of one layer: presences and poses of its objects."""

    logits: Tensor  #: of the presences t, (…, capsules); infinite where t is 0 or 1
    poses: Tensor  #: A, (…, capsules, 6)

    @property
    def presences(self) -> Tensor:
        """Presences t in [0, 1], (…, capsules)."""
        return self.logits.sigmoid()

    def rotated(self, rotation: Tensor | None) -> Capsules:
        """Return the parts, with the rotations (…, 6) of the scenes applied to their poses.

        None stands for scenes without a rotation.
        """
        if rotation is None:
            return self
        return Capsules(self.logits, poses.compose(self.poses, rotation[..., None, :]))


@dataclass(frozen=True)
class LayerPosterior:
    """q of one layer: presences are Concrete; poses are Normal, or points if ``spread`` is None."""

    logits: Tensor  #: of the presences, (…, capsules)
    poses: Tensor  #: means, (…, capsules, 6)
    spread: Tensor | None  #: standard deviations, (…, capsules, 6)

    def mode(self, temperature: float) -> Capsules:
        """Return the modes of the logits of presences, and of poses."""
        return Capsules(self.logits / temperature, self.poses)

    def draw(self, noise: Noise, temperature: float) -> Capsules:
        """Draw presences, then poses, from standard normal ``noise``."""
        logits = concrete.draw(self.logits, noise(self.logits), temperature)
        if self.spread is None:
            return Capsules(logits, self.poses)
        return Capsules(logits, self.poses + self.spread * noise(self.poses))

    def log_density(self, values: Capsules, temperature: float) -> Tensor:
        """Return log q, summed over capsules: (…). Poses that are points contribute 0."""
        log_q = concrete.log_density(values.logits, self.logits, temperature).sum(-1)
        if self.spread is not None:
            log_q = log_q + log_normal(values.poses, self.poses, self.spread).sum(-1)
        return log_q

    def kl_of_poses(self) -> Tensor:
        """Return KL(q || N(0, I)) of poses (Eq. 2): (…). For points it is -log p."""
        if self.spread is None:
            return -log_normal(self.poses, 0.0, 1.0).sum(-1)
        variance = self.spread.square()
        kl = 0.5 * (self.poses.square() + variance - 1) - self.spread.log()
        return kl.sum((-1, -2))


def log_normal(value: Tensor, mean: Tensor | float, spread: Tensor | float) -> Tensor:
    """Return log N(value; mean, spread²) of poses (…, 6), summed over their numbers: (…)."""
    standard = (value - mean) / spread
    if isinstance(spread, Tensor):
        log_spread: Tensor | float = spread.log().expand(standard.shape).sum(-1)
    else:
        log_spread = poses.NUMBERS * math.log(spread)
    return -0.5 * standard.square().sum(-1) - log_spread - 0.5 * poses.NUMBERS * _LOG_2PI


class Connection(nn.Module):
    r"""p(t, A of children | t, A of parents). Parent 0 is a dummy that is always present.

    A child selects one parent, :math:`s_j \sim \mathrm{Cat}(\rho_{ij} t_i)` (Eq. 3). It is present
    with probability :math:`\gamma_{ij}` (Eq. 4). Its pose is :math:`N((I + A_i) M_{ij}, c_{ij})` if
    it is present (Eq. 5) and :math:`N(0, \lambda)` if it is absent (Eq. 6); c and λ are standard
    deviations. For t between 0 and 1, the density of the pose is the mixture of both with the
    weights t and 1 - t. Children of the dummy are clutter; their expected pose is ``base``.

    The paper does not specify models of more than two layers. Here, children that are parents
    themselves have the pose I + A, as wholes do, and the expected A is
    :math:`(I + A_i) M_{ij} - I`. So an affine map of a whole moves all layers below it.

    Args:
        parents: number of parents, without the dummy.
        children: number of children.
        base: pose (6,) about which the initial M varies, and expected pose of clutter.
        settings: priors and initial values.
        stand: whether the children are parents themselves.
    """

    base: Tensor
    stands_at: Tensor

    def __init__(
        self, parents: int, children: int, base: Tensor, settings: PartWholeSettings, stand: bool
    ) -> None:
        super().__init__()
        self.loose, self.absent = settings.loose, settings.absent
        self.clutter, self.temperature = settings.clutter, settings.temperature
        self.affinity = nn.Parameter(torch.zeros(parents, children))  # logits of rho
        self.presence = nn.Parameter(torch.zeros(parents + 1, children))  # logits of gamma
        identity = poses.scaled(1.0) if stand else torch.zeros(poses.NUMBERS)
        self.register_buffer("stands_at", identity)
        scattered = settings.scatter * torch.randn(parents, children, poses.NUMBERS)
        self.offsets = nn.Parameter(identity + base + scattered)  # M
        start = math.log(math.expm1(settings.tight - TIGHTEST))
        self.spread = nn.Parameter(torch.full((parents, children), start))
        self.register_buffer("base", base)

    @property
    def c(self) -> Tensor:
        r"""Standard deviations :math:`c_{ij}` of Eq. 5, above 0.1: (parents, children)."""
        return TIGHTEST + softplus(self.spread)

    def log_selection(self, parents: Capsules) -> Tensor:
        """Return log p(s_j = i | t) (Eq. 3), the dummy first: (…, 1 + parents, children)."""
        weights = logsigmoid(self.affinity) + logsigmoid(parents.logits)[..., None]
        dummy = torch.full_like(weights[..., :1, :], math.log(self.clutter))
        return torch.cat([dummy, weights], -2).log_softmax(-2)

    def means(self, parents: Capsules) -> Tensor:
        """Return the expected poses of children, the dummy first: (…, 1 + parents, children, 6)."""
        predicted = poses.expected(parents.poses, self.offsets) - self.stands_at
        return torch.cat([self.base.expand_as(predicted[..., :1, :, :]), predicted], -3)

    def spreads(self) -> Tensor:
        """Return c of all parents, the dummy first: (1 + parents, children)."""
        return torch.cat([torch.full_like(self.spread[:1], self.loose), self.c])

    def log_joint(self, parents: Capsules, children: Capsules, relaxed: bool = False) -> Tensor:
        """Return log p(s_j = i, t_j, A_j | parents): (…, 1 + parents, children).

        The dummy comes first. Presences of 0 and 1 count with their probability (Eq. 4).

        Args:
            relaxed: whether no presence is 0 or 1, which saves work.
        """
        logits, pose = children.logits[..., None, :], children.poses[..., None, :, :]
        log_density = concrete.log_density if relaxed else concrete.log_prob
        log_presence = log_density(logits, self.presence, self.temperature)
        on = log_normal(pose, self.means(parents), self.spreads()[..., None])
        off = log_normal(pose, 0.0, self.absent)
        log_pose = torch.logaddexp(logsigmoid(logits) + on, logsigmoid(-logits) + off)
        return self.log_selection(parents) + log_pose + log_presence

    def log_density(self, parents: Capsules, children: Capsules) -> Tensor:
        """Return log p(t, A of children | parents), with selections summed out (Eq. 9): (…)."""
        return self.log_joint(parents, children).logsumexp(-2).sum(-1)

    def routing(self, parents: Capsules, children: Capsules) -> Tensor:
        """Return p(s_j = i | t, A) (supplement D), the dummy first: (…, 1 + parents, children).

        The sum over children is the expected number of children of a parent.
        """
        return self.log_joint(parents, children).softmax(-2)

    def sample(self, parents: Capsules, relaxed: bool) -> tuple[Capsules, Tensor]:
        """Draw children, and the index of the parent that each selects, where 0 is the dummy."""
        selected = torch.distributions.Categorical(logits=self.log_selection(parents).mT).sample()
        child = torch.arange(selected.shape[-1], device=selected.device)
        gamma, spread = self.presence[selected, child], self.spreads()[selected, child]
        logits = concrete.sample(gamma, self.temperature, relaxed)
        mean = self.means(parents).take_along_dim(selected[..., None, :, None], -3)[..., 0, :, :]
        present = (torch.rand_like(logits) < logits.sigmoid())[..., None]
        noise = torch.randn_like(mean)
        pose = torch.where(present, mean + spread[..., None] * noise, self.absent * noise)
        return Capsules(logits, pose), selected
