"""Capsules of two layers: which part belongs to which whole, is it there, and where (Eq. 3-6)."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn.functional import logsigmoid, softplus

from topocaps.capsules import concrete, poses

TIGHTEST = 0.1  #: the least c (supplement B)
_LOG_2PI = math.log(2 * math.pi)


@dataclass(frozen=True)
class Capsules:
    """Values of a layer: whether objects are there and where."""

    logits: Tensor  #: of the presences t, (…, capsules)
    poses: Tensor  #: A, (…, capsules, 6)

    @property
    def presences(self) -> Tensor:
        return self.logits.sigmoid()


@dataclass(frozen=True)
class Belief:
    """q of a layer: Concrete presences; poses are Normal or, without ``spread``, a Delta each."""

    logits: Tensor  #: of the presences, (…, capsules)
    poses: Tensor  #: means, (…, capsules, 6)
    spread: Tensor | None  #: standard deviations, (…, capsules, 6)

    def values(self, temperature: float) -> Capsules:
        """What is most to be expected, without drawing."""
        return Capsules(self.logits / temperature, self.poses)

    def draw(self, presence: Tensor, pose: Tensor | None, temperature: float) -> Capsules:
        """From standard normal numbers, shaped as ``logits`` and ``poses``."""
        where = self.poses
        if self.spread is not None:
            assert pose is not None
            where = where + self.spread * pose
        return Capsules(concrete.draw(self.logits, presence, temperature), where)

    def log_density(self, values: Capsules, temperature: float) -> Tensor:
        """Summed over capsules: (…). Poses that are Deltas have no density: theirs is left out."""
        found = concrete.log_density(values.logits, self.logits, temperature).sum(-1)
        if self.spread is not None:
            found = found + log_normal(values.poses, self.poses, self.spread).sum(-1)
        return found


def log_normal(value: Tensor, mean: Tensor | float, spread: Tensor | float) -> Tensor:
    """log N of poses (…, 6), summed over their numbers."""
    apart = (value - mean) / spread
    if isinstance(spread, Tensor):
        logs: Tensor | float = spread.log().expand(apart.shape).sum(-1)
    else:
        logs = poses.NUMBERS * math.log(spread)
    return -0.5 * apart.square().sum(-1) - logs - 0.5 * poses.NUMBERS * _LOG_2PI


def certainly(there: Tensor, like: Tensor) -> Tensor:
    """Logits of presences that are 1 where something is ``there``, and 0 elsewhere."""
    return torch.where(there, torch.inf, -torch.inf).to(like)


class Connection(nn.Module):
    r"""p(t, A of children | t, A of parents), with a dummy parent 0 that is always there.

    A child selects one parent, :math:`s_j \sim \mathrm{Cat}(\rho_{ij} t_i)` (3); is there with
    probability :math:`\gamma_{ij}` (4); and is at :math:`N((I + A_i) M_{ij}, c_{ij})` (5) or, being
    absent, at :math:`N(0, \lambda)` (6). With t between 0 and 1, a pose has the mixture of both
    densities with weights t and 1 - t, which is a density for every t. c and λ are standard
    deviations. The dummy expects children at ``base``, within ``loose`` of it: clutter.

    Children that have children of their own ``stand`` at I + A, as wholes do: they are expected at
    :math:`(I + A_i) M_{ij} - I`, so that a map of a whole goes all the way down. (The paper writes
    two layers, and Eq. 5 is theirs.)
    """

    base: Tensor
    stands_at: Tensor

    def __init__(
        self,
        parents: int,
        children: int,
        base: Tensor,
        *,
        stand: bool = False,
        scatter: float = 0.2,
        tightest: float = TIGHTEST,
        tight: float = 0.12,
        loose: float = 1.0,
        absent: float = 1.0,
        clutter: float = 1.0,
        temperature: float = 1.0,
    ) -> None:
        super().__init__()
        self.tightest, self.loose, self.absent = tightest, loose, absent
        self.clutter, self.temperature = clutter, temperature
        self.affinity = nn.Parameter(torch.zeros(parents, children))  # logits of rho
        self.presence = nn.Parameter(torch.zeros(parents + 1, children))  # logits of gamma
        identity = poses.scaled(1.0) if stand else torch.zeros(poses.NUMBERS)
        self.register_buffer("stands_at", identity)
        scattered = scatter * torch.randn(parents, children, poses.NUMBERS)
        self.offsets = nn.Parameter(identity + base + scattered)  # M
        start = math.log(math.expm1(tight - tightest))
        self.spread = nn.Parameter(torch.full((parents, children), start))
        self.register_buffer("base", base)

    @property
    def c(self) -> Tensor:
        r""":math:`c_{ij}`, at least ``tightest``: (parents, children)."""
        return self.tightest + softplus(self.spread)

    def log_selection(self, parents: Capsules) -> Tensor:
        """log p(s_j = i | t), the dummy first: (…, 1 + parents, children) (Eq. 3)."""
        weights = logsigmoid(self.affinity) + logsigmoid(parents.logits)[..., None]
        dummy = torch.full_like(weights[..., :1, :], math.log(self.clutter))
        return torch.cat([dummy, weights], -2).log_softmax(-2)

    def means(self, parents: Capsules) -> Tensor:
        """Where each parent expects each child, the dummy first: (…, 1 + parents, children, 6)."""
        found = poses.expected(parents.poses, self.offsets) - self.stands_at
        return torch.cat([self.base.expand_as(found[..., :1, :, :]), found], -3)

    def spreads(self) -> Tensor:
        """c with the dummy's: (1 + parents, children)."""
        return torch.cat([torch.full_like(self.spread[:1], self.loose), self.c])

    def log_joint(self, parents: Capsules, children: Capsules, relaxed: bool = False) -> Tensor:
        """log p(s_j = i, t_j, A_j | parents), the dummy first: (…, 1 + parents, children).

        Presences may also be certain, as drawn without being relaxed: these have a probability
        (Eq. 4) and no density. ``relaxed``, none is, and less is to be computed.
        """
        logits, where = children.logits[..., None, :], children.poses[..., None, :, :]
        density = concrete.log_density if relaxed else concrete.log_chance
        presence = density(logits, self.presence, self.temperature)
        there = log_normal(where, self.means(parents), self.spreads()[..., None])
        off = log_normal(where, 0.0, self.absent)
        pose = torch.logaddexp(logsigmoid(logits) + there, logsigmoid(-logits) + off)
        return self.log_selection(parents) + pose + presence

    def log_density(self, parents: Capsules, children: Capsules) -> Tensor:
        """log p(t, A of children | parents): selections are summed out (Eq. 9), (…)."""
        return self.log_joint(parents, children).logsumexp(-2).sum(-1)

    def routing(self, parents: Capsules, children: Capsules) -> Tensor:
        """p(s_j = i | everything else) (supplement D), the dummy first: (…, 1 + parents, children).

        Summed over children it is the expected number of them that a parent has.
        """
        return self.log_joint(parents, children).softmax(-2)

    def sample(self, parents: Capsules, relaxed: bool) -> tuple[Capsules, Tensor]:
        """Children of parents, and whom they selected (0 is the dummy)."""
        chosen = torch.distributions.Categorical(logits=self.log_selection(parents).mT).sample()
        pick = chosen[..., None, :]
        gamma = self.presence.expand(*chosen.shape[:-1], -1, -1).gather(-2, pick)[..., 0, :]
        logits = concrete.draw(gamma, torch.randn_like(gamma), self.temperature)
        if not relaxed:
            logits = certainly(torch.rand_like(gamma) < gamma.sigmoid(), gamma)
        mean = self.means(parents)
        mean = mean.gather(-3, pick[..., None].expand(*pick.shape, poses.NUMBERS))[..., 0, :, :]
        spread = self.spreads().expand(*chosen.shape[:-1], -1, -1).gather(-2, pick)[..., 0, :]
        there = (torch.rand_like(logits) < logits.sigmoid())[..., None]
        noise = torch.randn_like(mean)
        where = torch.where(there, mean + spread[..., None] * noise, self.absent * noise)
        return Capsules(logits, where), chosen
