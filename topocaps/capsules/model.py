"""The part-whole capsule model (Smith et al. 2020): its density, its bound, its networks."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import pairwise
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from topocaps.capsules import concrete, poses
from topocaps.capsules.encoders import PartEncoder, WholeEncoder
from topocaps.capsules.layers import (
    Belief,
    Capsules,
    Connection,
    certainly,
    log_normal,
)
from topocaps.capsules.settings import PartWholeSettings, Poses
from topocaps.capsules.templates import Templates
from topocaps.data import geometry
from topocaps.errors import BadInput, whole_number
from topocaps.models.base import GenerativeModel, Noise, check_place, check_values, family
from topocaps.models.likelihoods import Likelihood

SMITH_2020 = """\
@article{smith2020capsule,
  title = {Capsule Networks - A Probabilistic Perspective},
  author = {Smith, Lewis and Schut, Lisa and Gal, Yarin and van der Wilk, Mark},
  journal = {arXiv preprint arXiv:2004.03553},
  year = {2020},
  url = {https://arxiv.org/abs/2004.03553},
}"""


@dataclass(frozen=True)
class Scene:
    """A drawing of the generative model: capsules of all layers, whom they selected, the image."""

    layers: tuple[Capsules, ...]
    selected: tuple[Tensor, ...]  #: of every layer but the first; 0 is the dummy
    turn: Tensor  #: the map of the whole scene, (…, 6)
    x: Tensor


@dataclass(frozen=True)
class CapsuleEvidence:
    """The terms of the bound (Eq. 8) in nats and what tells whether it is alive: (batch, time).

    With Delta poses the entropy of q(A) is missing, and ``elbo`` is no bound.
    """

    log_px_given_t: Tensor
    kl_parts: Tensor  #: of all layers but the top: log q - log p, drawn
    kl_wholes: Tensor
    presence_nats: Tensor  #: of wholes, within ``kl_wholes``: how far they are from their prior
    logit_spread: Tensor  #: how far the presences of wholes vary over images; 0 is dead
    largest_share: Tensor  #: of the parts that wholes take, of the one that takes most
    clutter: Tensor  #: the dummy's share of all; both are of the layers where they are greatest
    wholes_on: Tensor
    parts_on: Tensor

    @property
    def elbo(self) -> Tensor:
        return self.log_px_given_t - self.kl_parts - self.kl_wholes

    @property
    def objective(self) -> Tensor:
        return self.elbo


@family
class PartWhole(GenerativeModel):
    """Wholes are made of parts, and parts of templates; poses go down by affine maps.

    ``sizes`` are capsules of every layer, wholes first. Images x: (batch, time, *frame); every
    frame is an image of its own.

    ``turns`` (not the paper's) gives the scene a pose of its own: one of so many rotations, each as
    probable as the others, by which everything in it is turned. Which it is, is inferred: images
    are looked at in every rotation, and the one that is worth most is kept. So an object that is
    turned is the same wholes and parts, where without it (1) other templates may take its strokes.
    """

    citations = (SMITH_2020,)
    terms: ClassVar = ("elbo", "log_px_given_t", "kl_parts", "kl_wholes")
    monitors: ClassVar = (
        "presence_nats", "logit_spread", "largest_share", "clutter", "wholes_on", "parts_on",
    )  # fmt: skip
    likelihood = Likelihood.BERNOULLI  # images lie in [0, 1], though their noise is Gaussian
    supports_vmap = True
    frame_shape: tuple[int, ...]
    rotations: Tensor

    def __init__(
        self,
        frame_shape: tuple[int, ...],
        settings: PartWholeSettings = PartWholeSettings(),  # noqa: B008 (frozen)
        **changes: Any,
    ) -> None:
        """``changes`` are to the settings, by name."""
        super().__init__()
        self.settings = settings = replace(settings, **changes)
        self.frame_shape, self.sizes = _checked_frame(frame_shape), settings.sizes
        self.config = {"kind": "PartWhole", "frame_shape": list(self.frame_shape)}
        self.config |= asdict(settings) | {"poses_are": settings.poses_are.value}
        self.noise, self.temperature = settings.noise, settings.temperature
        self.poses_are, self.turns = settings.poses_are, settings.turns
        self.prior_logit = math.log(settings.prior / (1 - settings.prior))
        aspect = self.frame_shape[2] / self.frame_shape[1]
        angles = [poses.rotated(2 * math.pi * n / self.turns, aspect) for n in range(self.turns)]
        self.register_buffer("rotations", torch.stack(angles), persistent=False)
        # parts are drawn by their poses; objects above them stand where they are by default
        drawn_at, standing = poses.scaled(settings.scale), torch.zeros(poses.NUMBERS)
        bases = [standing] * (len(self.sizes) - 2) + [drawn_at]
        between = list(zip(pairwise(self.sizes), bases, strict=True))
        names = ("temperature", "clutter", "loose", "absent", "tight", "scatter")
        how = {name: getattr(settings, name) for name in names}
        self.connections = nn.ModuleList(
            Connection(above, below, base, stand=n < len(between), **how)
            for n, ((above, below), base) in enumerate(between, 1)
        )
        self.templates = Templates(self.sizes[-1], settings.template, self.frame_shape)
        self.part_encoder = PartEncoder(self.sizes[-1], self.frame_shape, bases[-1])
        self.whole_encoders = nn.ModuleList(
            WholeEncoder(below, above, base, width=settings.width, depth=settings.depth)
            for (above, below), base in between
        )

    @property
    def links(self) -> list[Connection]:
        """Between layers, the uppermost first."""
        return list(self.connections)  # type: ignore[arg-type]

    def log_density(
        self, layers: Sequence[Capsules], x: Tensor, turn: Tensor | None = None
    ) -> Tensor:
        """log p(x, t, A of all layers, wholes first), selections summed out: (…) (Eq. 8).

        Where scenes turn, also of the ``turn``. Presences that are certain count as probabilities.
        """
        if turn is None and self.turns > 1:
            raise BadInput("scenes of this model turn: give the turn, too")
        below = zip(self.links, pairwise(layers), strict=True)
        connected = sum(link.log_density(*two) for link, two in below)
        parts = in_image(layers[-1], turn)
        prior = self.log_prior(layers[0]) - math.log(self.turns)
        return prior + connected + self.log_likelihood(parts, x)

    def log_prior(self, wholes: Capsules) -> Tensor:
        """Eq. 1 and 2: (…)."""
        prior = torch.full_like(wholes.logits, self.prior_logit)
        presences = concrete.log_chance(wholes.logits, prior, self.temperature)
        return (presences + log_normal(wholes.poses, 0.0, 1.0)).sum(-1)

    def log_likelihood(self, parts: Capsules, x: Tensor) -> Tensor:
        """log N(x; the drawn image, noise) (Eq. 7): (…)."""
        apart = ((x - self.templates(parts)) / self.noise).flatten(-3)
        norm = math.log(self.noise) + 0.5 * math.log(2 * math.pi)
        return -0.5 * apart.square().sum(-1) - apart.shape[-1] * norm

    @torch.no_grad()
    def sample(self, n: int, relaxed: bool = False) -> Scene:
        """n images from wholes down (Eq. 1-7), without pixel noise; things are there or not.

        ``relaxed``, presences lie between 0 and 1, as in the model that the bound is of.
        """
        n = whole_number("a number of images", n)
        like = next(self.parameters())
        top = like.new_full((n, self.sizes[0]), self.prior_logit)
        logits = concrete.draw(top, torch.randn_like(top), self.temperature)
        if not relaxed:
            logits = certainly(torch.rand_like(top) < top.sigmoid(), top)
        where = torch.randn(n, self.sizes[0], poses.NUMBERS, dtype=like.dtype, device=like.device)
        which = torch.randint(self.turns, (n,), device=like.device)
        layers, selected = [Capsules(logits, where)], []
        for link in self.links:
            below, chosen = link.sample(layers[-1], relaxed)
            layers.append(below)
            selected.append(chosen)
        drawn = self.templates(in_image(layers[-1], self.rotations[which])).clamp(0, 1)  # rounded
        return Scene(tuple(layers), tuple(selected), self.rotations[which], drawn)

    def upright(self, x: Tensor) -> Tensor | None:
        """The turn of every scene that its image is worth most with: (…, 6); None if none turn."""
        if self.turns == 1:
            return None
        with torch.no_grad():
            turns = self.rotations.reshape(-1, *(1,) * (x.ndim - 3), poses.NUMBERS)
            turns = turns.expand(-1, *x.shape[:-3], -1)
            views = x.expand(self.turns, *x.shape)
            beliefs = self._believe(views, turns)
            values = [belief.values(self.temperature) for belief in beliefs]
            best = self.bound(views, beliefs, values, turns).elbo.argmax(0)
        return self.rotations[best]

    def believe(self, x: Tensor, turn: Tensor | None = None) -> tuple[Belief, ...]:
        """q of every layer, wholes first, each from what is most to be expected below it.

        Poses are those before the ``turn`` of the scene, which where scenes turn is ``upright(x)``
        unless it is given.
        """
        self.check(x)
        return self._believe(x, self.upright(x) if turn is None else turn)

    def _believe(self, x: Tensor, turn: Tensor | None) -> tuple[Belief, ...]:
        beliefs = [self._as_asked(self.part_encoder(self._turned_back(x, turn)))]
        for encoder in reversed(list(self.whole_encoders)):
            beliefs.append(self._as_asked(encoder(beliefs[-1].values(self.temperature))))
        return tuple(reversed(beliefs))

    def evidence(
        self, x: Tensor, noise: Noise = torch.randn_like, mask: Tensor | None = None
    ) -> CapsuleEvidence:
        """The terms of Eq. 8 with one draw of q; layers are drawn from below (Figure 2).

        Images are not looked at first, which a GPU would have to wait for: the model itself,
        called, does.
        """
        _refuse(mask)
        turn = self.upright(x)
        belief = self._as_asked(self.part_encoder(self._turned_back(x, turn)))
        beliefs, layers = [belief], [self._draw(belief, noise)]
        for encoder in reversed(list(self.whole_encoders)):
            belief = self._as_asked(encoder(layers[-1]))
            beliefs.append(belief)
            layers.append(self._draw(belief, noise))
        return self.bound(x, beliefs[::-1], layers[::-1], turn)

    def bound(
        self,
        x: Tensor,
        beliefs: Sequence[Belief],
        layers: Sequence[Capsules],
        turn: Tensor | None = None,
        drawn_kl: bool = False,
    ) -> CapsuleEvidence:
        """The terms for ``layers`` that were drawn from ``beliefs``, wholes first.

        The KL of wholes is exact; or, with ``drawn_kl``, log q - log p of what was drawn, as that
        of parts is and as Pyro has it: the same in expectation, and with more noise.
        """
        shape = x.shape[:-3]
        below = zip(self.links, pairwise(layers), strict=True)
        joints = [link.log_joint(*two, relaxed=True) for link, two in below]
        kl_parts = sum(
            belief.log_density(values, self.temperature) - joint.logsumexp(-2).sum(-1)
            for belief, values, joint in zip(beliefs[1:], layers[1:], joints, strict=True)
        )
        shares = [_shares(*two) for two in zip(joints, layers[1:], strict=True)]
        several = [share for share in shares if len(share) > 2] or shares
        wholes = beliefs[0].logits
        spread = wholes.flatten(0, -2).std(0, correction=0).mean()
        kl_presences = self._kl_of_presences(beliefs[0])
        kl_wholes = kl_presences + _kl_of_poses(beliefs[0])
        if drawn_kl:
            log_q = beliefs[0].log_density(layers[0], self.temperature)
            kl_wholes = log_q - self.log_prior(layers[0])
        return CapsuleEvidence(
            log_px_given_t=self.log_likelihood(in_image(layers[-1], turn), x),
            kl_parts=torch.as_tensor(kl_parts),
            kl_wholes=kl_wholes + math.log(self.turns),
            presence_nats=kl_presences.detach(),
            logit_spread=spread.detach().expand(shape),
            largest_share=torch.stack([_largest(s) for s in several]).max().detach().expand(shape),
            clutter=torch.stack([s[0] for s in shares]).max().detach().expand(shape),
            wholes_on=layers[0].presences.sum(-1).detach(),
            parts_on=layers[-1].presences.sum(-1).detach(),
        )

    def draw(
        self, beliefs: Sequence[Belief], noise: Noise = torch.randn_like
    ) -> tuple[Capsules, ...]:
        """A value of every layer, each from its own q."""
        return tuple(self._draw(belief, noise) for belief in beliefs)

    def parts_of(self, x: Tensor) -> Capsules:
        """Parts as they are most to be expected, where they are in the image."""
        self.check(x)
        turn = self.upright(x)
        found = self.part_encoder(self._turned_back(x, turn)).values(self.temperature)
        return in_image(found, turn)

    def reconstruct(self, x: Tensor) -> Tensor:
        """The image that these draw: (…, *frame)."""
        return self.templates(self.parts_of(x))

    def _kl_of_presences(self, wholes: Belief) -> Tensor:
        prior = torch.full_like(wholes.logits, self.prior_logit)
        return concrete.kl(wholes.logits, prior).sum(-1)

    def _turned_back(self, x: Tensor, turn: Tensor | None) -> Tensor:
        """What the encoder looks at."""
        if turn is None:
            return x
        return geometry.warp(x, geometry.apply(poses.rows(turn), self.templates.grid))

    def _as_asked(self, belief: Belief) -> Belief:
        delta = self.poses_are is Poses.DELTA
        return Belief(belief.logits, belief.poses, None) if delta else belief

    def _draw(self, belief: Belief, noise: Noise) -> Capsules:
        presence = noise(belief.logits)
        pose = None if belief.spread is None else noise(belief.poses)
        return belief.draw(presence, pose, self.temperature)

    @property
    def noise_shapes(self) -> list[tuple[int, ...]]:
        found: list[tuple[int, ...]] = []
        for size in reversed(self.sizes):
            found.append((size,))
            if self.poses_are is Poses.NORMAL:
                found.append((size, poses.NUMBERS))
        return found

    @property
    def is_bound(self) -> bool:
        return self.poses_are is Poses.NORMAL

    def lr_scale(self, name: str) -> float:
        return self.settings.slower if name.startswith("whole_encoders") else 1.0

    def diagnose(self, means: Mapping[str, float]) -> str | None:
        """Which collapses the means of an epoch's terms show, if any."""
        found = []
        if means["logit_spread"] < DEAD:
            found.append(
                "collapsed, or not yet awake: presences of wholes hardly vary over images (logit "
                f"spread {means['logit_spread']:.3f}); if they stay so, take another seed or a "
                "lower lr"
            )
        if means["clutter"] > ALL:
            found.append(f"collapsed: {means['clutter']:.0%} of the parts belong to no whole")
        elif means["largest_share"] > ALL and max(self.sizes[:-1]) > 1:
            share = f"{means['largest_share']:.0%}"
            found.append(
                f"collapsed: one whole takes {share} of the parts that any takes; start c tighter"
            )
        return "; ".join(found) or None

    def check(self, x: Tensor, mask: Tensor | None = None) -> None:
        _refuse(mask)
        if not isinstance(x, Tensor):
            raise BadInput(f"images must be a tensor, not a {type(x).__name__}: torch.as_tensor(x)")
        if x.ndim < 4 or tuple(x.shape[-3:]) != self.frame_shape:
            raise BadInput(
                f"images must be (…, *frame) with frame {self.frame_shape}, not {tuple(x.shape)}"
            )
        check_values(x, self.likelihood)
        check_place(x, self)


def _refuse(mask: Tensor | None) -> None:
    if mask is not None:
        raise BadInput("PartWhole does not support masks")


def _kl_of_poses(wholes: Belief) -> Tensor:
    """From N(0, I), in closed form; of Deltas, -log p: (…)."""
    if wholes.spread is None:
        return -log_normal(wholes.poses, 0.0, 1.0).sum(-1)
    variance = wholes.spread.square()
    kl = 0.5 * (wholes.poses.square() + variance - 1) - wholes.spread.log()
    return kl.sum((-1, -2))


def _shares(joint: Tensor, below: Capsules) -> Tensor:
    """Of objects ``below`` that are there, what each above takes, the dummy first: (1 + above,)."""
    there = below.presences[..., None, :]
    taken = (joint.softmax(-2) * there).sum(-1).flatten(0, -2).sum(0)
    return taken / there.sum().clamp_min(_NOTHING)


def _largest(shares: Tensor) -> Tensor:
    """Of what those above take, without the dummy, the share of the one that takes most."""
    return shares[1:].max() / shares[1:].sum().clamp_min(_NOTHING)


def in_image(parts: Capsules, turn: Tensor | None) -> Capsules:
    """Parts where they are once the scene is turned, (…, 6)."""
    if turn is None:
        return parts
    return Capsules(parts.logits, poses.after(parts.poses, turn[..., None, :]))


DEAD = 0.06  # spread of the logits of t⁰ that is none: .01 to .04 untrained, .08 and more alive
ALL = 0.9  # of the parts
_NOTHING = 1e-30  # parts


def _checked_frame(frame_shape: Sequence[int]) -> tuple[int, ...]:
    try:
        shape = tuple(whole_number("a side", side) for side in frame_shape)
    except (BadInput, TypeError):
        shape = ()
    if len(shape) != 3 or min(shape[1:]) < 4:
        raise BadInput(
            "frames must be whole numbers (channels, height, width), 4 pixels at least, not "
            f"{frame_shape!r}"
        )
    return shape
