"""The part-whole capsule model (Smith et al. 2020): density, inference and bound."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import pairwise
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from topocaps.capsules import concrete, poses
from topocaps.capsules.encoders import PartEncoder, WholeEncoder
from topocaps.capsules.layers import Capsules, Connection, LayerPosterior, log_normal
from topocaps.capsules.settings import PartWholeSettings, Poses, whole_numbers
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
    """A sample of the generative model."""

    layers: tuple[Capsules, ...]  #: of all layers, wholes first
    selected: tuple[Tensor, ...]  #: s of every layer but the first, (…, capsules); 0 is the dummy
    rotation: Tensor  #: of the scene, (…, 6)
    x: Tensor  #: the image, (…, *frame)


@dataclass(frozen=True)
class CapsuleEvidence:
    """Terms of the bound (Eq. 8) in nats, and monitors of collapse: each (batch, time).

    With Delta poses, ``elbo`` omits the entropy of q(A) and does not bound log p(x).
    """

    log_px_given_t: Tensor
    kl_parts: Tensor  #: log q - log p of all layers below the wholes, for one sample
    kl_wholes: Tensor
    presence_nats: Tensor  #: the part of ``kl_wholes`` that is due to presences
    logit_spread: Tensor  #: standard deviation over images of the logits of q(t⁰), mean of wholes
    #: largest share of one parent in the children that do not belong to the dummy, over all layers
    largest_share: Tensor
    clutter: Tensor  #: largest share of the dummy in the children of a layer
    wholes_on: Tensor  #: sum of the presences of wholes
    parts_on: Tensor  #: sum of the presences of parts

    @property
    def elbo(self) -> Tensor:
        """log p(x|t) - KL of parts - KL of wholes (Eq. 8)."""
        return self.log_px_given_t - self.kl_parts - self.kl_wholes

    @property
    def objective(self) -> Tensor:
        """Quantity that training maximises: ``elbo``."""
        return self.elbo


@family
class PartWhole(GenerativeModel):
    """Capsule model of wholes and parts: an affine map of a whole moves its parts.

    Images x are (batch, time, *frame), and every frame is an independent image.

    With ``turns`` above 1 (not in the paper), a scene has one of ``turns`` rotations, all equally
    probable. The model encodes the image in every rotation and keeps the one with the highest
    bound. So a rotated object keeps its wholes and parts. Without turns, other templates may draw
    its strokes.

    Args:
        frame_shape: (channels, height, width).
        settings: sizes, priors and initial values.
        **changes: settings to change, by name.
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
        # the pose of a part is A, and that of an object in a layer above is I + A
        base, zero = poses.scaled(settings.scale), torch.zeros(poses.NUMBERS)
        bases = [zero] * (len(self.sizes) - 2) + [base]
        between = list(zip(pairwise(self.sizes), bases, strict=True))
        self.connections = nn.ModuleList(
            Connection(above, below, base, settings, stand=n < len(between))
            for n, ((above, below), base) in enumerate(between, 1)
        )
        self.templates = Templates(self.sizes[-1], settings.template, self.frame_shape)
        delta = self.poses_are is Poses.DELTA
        self.part_encoder = PartEncoder(self.sizes[-1], self.frame_shape, base, delta)
        self.whole_encoders = nn.ModuleList(
            WholeEncoder(below, above, base, settings.width, settings.depth, delta)
            for (above, below), base in between
        )

    @property
    def links(self) -> list[Connection]:
        """Connections between layers, the uppermost first."""
        return [link for link in self.connections if isinstance(link, Connection)]

    def log_density(
        self, layers: Sequence[Capsules], x: Tensor, rotation: Tensor | None = None
    ) -> Tensor:
        """Return log p(x, t, A), with selections summed out: (…).

        Presences of 0 and 1 count with their probability.

        Args:
            layers: values of all layers, wholes first.
            x: images (…, *frame).
            rotation: rotations (…, 6) of the scenes. Models with ``turns`` above 1 need it.
        """
        if rotation is None and self.turns > 1:
            raise BadInput(
                f"log_density of a model with turns={self.turns} needs the rotation of the scenes"
            )
        pairs = zip(self.links, pairwise(layers), strict=True)
        connected = sum(link.log_density(*pair) for link, pair in pairs)
        prior = self.log_prior(layers[0]) - math.log(self.turns)
        return prior + connected + self.log_likelihood(layers[-1].rotated(rotation), x)

    def log_prior(self, wholes: Capsules) -> Tensor:
        """Return log p(t⁰, A⁰) of wholes (Eq. 1, 2): (…)."""
        prior = torch.full_like(wholes.logits, self.prior_logit)
        presences = concrete.log_prob(wholes.logits, prior, self.temperature)
        return (presences + log_normal(wholes.poses, 0.0, 1.0)).sum(-1)

    def log_likelihood(self, parts: Capsules, x: Tensor) -> Tensor:
        """Return log p(x | parts) (Eq. 7): (…). The poses of parts are those in the image."""
        standard = ((x - self.templates(parts)) / self.noise).flatten(-3)
        norm = math.log(self.noise) + 0.5 * math.log(2 * math.pi)
        return -0.5 * standard.square().sum(-1) - standard.shape[-1] * norm

    @torch.no_grad()
    def sample(self, n: int, relaxed: bool = False) -> Scene:
        """Draw n scenes from the wholes down (Eq. 1-7), without the noise of pixels.

        Args:
            n: number of scenes.
            relaxed: draw presences between 0 and 1, as in the bound. By default they are 0 or 1.
        """
        n = whole_number("n", n)
        like = next(self.parameters())
        prior = like.new_full((n, self.sizes[0]), self.prior_logit)
        logits = concrete.sample(prior, self.temperature, relaxed)
        pose = torch.randn(n, self.sizes[0], poses.NUMBERS, dtype=like.dtype, device=like.device)
        rotation = self.rotations[torch.randint(self.turns, (n,), device=like.device)]
        layers, selected = [Capsules(logits, pose)], []
        for link in self.links:
            children, parents = link.sample(layers[-1], relaxed)
            layers.append(children)
            selected.append(parents)
        x = self.templates(layers[-1].rotated(rotation)).clamp(0, 1)  # rounded sums may exceed 1
        return Scene(tuple(layers), tuple(selected), rotation, x)

    def infer_rotation(self, x: Tensor) -> Tensor | None:
        """Return the rotation (…, 6) of each scene that has the highest bound.

        The result is None if ``turns`` is 1.
        """
        if self.turns == 1:
            return None
        with torch.no_grad():
            rotations = self.rotations.reshape(-1, *(1,) * (x.ndim - 3), poses.NUMBERS)
            rotations = rotations.expand(-1, *x.shape[:-3], -1)
            views = x.expand(self.turns, *x.shape)
            posteriors, modes = self._infer(views, rotations, self._mode)
            best = self.bound(views, posteriors, modes, rotations).elbo.argmax(0)
        return self.rotations[best]

    def encode(self, x: Tensor, rotation: Tensor | None = None) -> tuple[LayerPosterior, ...]:
        """Return q of every layer, wholes first, each given the mode of the layer below.

        Poses are those before the rotation of the scene.

        Args:
            x: images (…, *frame).
            rotation: rotations (…, 6) of the scenes; inferred by default.
        """
        self.check(x)
        rotation = self.infer_rotation(x) if rotation is None else rotation
        return tuple(self._infer(x, rotation, self._mode)[0])

    def evidence(
        self, x: Tensor, noise: Noise = torch.randn_like, mask: Tensor | None = None
    ) -> CapsuleEvidence:
        """Return the terms of Eq. 8 for one sample of q, drawn from the parts up (Figure 2).

        Images are not checked, because the check would make the host wait for the GPU.
        """
        _refuse(mask)
        rotation = self.infer_rotation(x)
        posteriors, layers = self._infer(x, rotation, lambda q: q.draw(noise, self.temperature))
        return self.bound(x, posteriors, layers, rotation)

    def bound(
        self,
        x: Tensor,
        posteriors: Sequence[LayerPosterior],
        layers: Sequence[Capsules],
        rotation: Tensor | None = None,
        drawn_kl: bool = False,
    ) -> CapsuleEvidence:
        """Return the terms of Eq. 8 for values drawn from posteriors.

        Args:
            x: images (…, *frame).
            posteriors: q of every layer, wholes first.
            layers: values of every layer, drawn from ``posteriors``.
            rotation: rotations (…, 6) of the scenes, if ``turns`` is above 1.
            drawn_kl: whether to estimate the KL of wholes from the sample, as Pyro does (supplement
                A). The estimate has the expectation of the exact KL, and a higher variance.
        """
        pairs = zip(self.links, pairwise(layers), strict=True)
        joints = [link.log_joint(*pair, relaxed=True) for link, pair in pairs]
        kl_parts = sum(
            q.log_density(values, self.temperature) - joint.logsumexp(-2).sum(-1)
            for q, values, joint in zip(posteriors[1:], layers[1:], joints, strict=True)
        )
        shares = [_shares(*pair) for pair in zip(joints, layers[1:], strict=True)]
        # a single parent beside the dummy always has all children, which is no collapse
        of_several_parents = [share for share in shares if len(share) > 2] or shares
        largest = torch.stack([_largest(share) for share in of_several_parents]).max()
        clutter = torch.stack([share[0] for share in shares]).max()
        wholes = posteriors[0]
        logit_spread = wholes.logits.flatten(0, -2).std(0, correction=0).mean()
        kl_presences = concrete.kl(wholes.logits, self.prior_logit).sum(-1)
        kl_wholes = kl_presences + wholes.kl_of_poses()
        if drawn_kl:
            log_q = wholes.log_density(layers[0], self.temperature)
            kl_wholes = log_q - self.log_prior(layers[0])
        leading = x.shape[:-3]
        return CapsuleEvidence(
            log_px_given_t=self.log_likelihood(layers[-1].rotated(rotation), x),
            kl_parts=torch.as_tensor(kl_parts),
            kl_wholes=kl_wholes + math.log(self.turns),
            presence_nats=kl_presences.detach(),
            logit_spread=logit_spread.detach().expand(leading),
            largest_share=largest.detach().expand(leading),
            clutter=clutter.detach().expand(leading),
            wholes_on=layers[0].presences.sum(-1).detach(),
            parts_on=layers[-1].presences.sum(-1).detach(),
        )

    def draw(self, posteriors: Sequence[LayerPosterior]) -> tuple[Capsules, ...]:
        """Draw every layer from its own q, independently of the other layers."""
        return tuple(q.draw(torch.randn_like, self.temperature) for q in posteriors)

    def parts_of(self, x: Tensor) -> Capsules:
        """Return the most probable parts, with their poses in the image: (…, parts)."""
        self.check(x)
        rotation = self.infer_rotation(x)
        return self._mode(self.part_encoder(self._unrotated(x, rotation))).rotated(rotation)

    def reconstruct(self, x: Tensor) -> Tensor:
        """Return the images that the most probable parts draw: (…, *frame)."""
        return self.templates(self.parts_of(x))

    def _infer(
        self, x: Tensor, rotation: Tensor | None, value_of: Callable[[LayerPosterior], Capsules]
    ) -> tuple[list[LayerPosterior], list[Capsules]]:
        """Return q and values of every layer, wholes first.

        The parts are encoded from the image, and every other layer from the values of the layer
        below it.

        Args:
            value_of: function from q of a layer to its values: the mode, or a draw.
        """
        posteriors = [self.part_encoder(self._unrotated(x, rotation))]
        values = [value_of(posteriors[0])]
        for encoder in reversed(self.whole_encoders):
            posteriors.append(encoder(values[-1]))
            values.append(value_of(posteriors[-1]))
        return posteriors[::-1], values[::-1]

    def _mode(self, q: LayerPosterior) -> Capsules:
        return q.mode(self.temperature)

    def _unrotated(self, x: Tensor, rotation: Tensor | None) -> Tensor:
        """Return the images with the rotations of their scenes undone."""
        if rotation is None:
            return x
        return geometry.warp(x, geometry.apply(poses.as_matrix(rotation), self.templates.grid))

    @property
    def noise_shapes(self) -> list[tuple[int, ...]]:
        normal = [(poses.NUMBERS,)] if self.poses_are is Poses.NORMAL else []
        return [(size, *last) for size in reversed(self.sizes) for last in ((), *normal)]

    @property
    def is_bound(self) -> bool:
        return self.poses_are is Poses.NORMAL

    def lr_scale(self, name: str) -> float:
        return self.settings.slower if name.startswith("whole_encoders") else 1.0

    def diagnose(self, means: Mapping[str, float]) -> str | None:
        """Return the collapses that the means of the monitors show, or None."""
        collapses = []
        if means["logit_spread"] < DEAD:
            collapses.append(
                "collapsed, or not yet trained enough: presences of wholes hardly vary over images "
                f"(logit spread {means['logit_spread']:.3f}); if this persists, use another seed "
                "or a lower lr"
            )
        if means["clutter"] > ALL:
            collapses.append(f"collapsed: {means['clutter']:.0%} of the parts belong to no whole")
        elif means["largest_share"] > ALL and max(self.sizes[:-1]) > 1:
            share = f"{means['largest_share']:.0%}"
            collapses.append(
                f"collapsed: one whole has {share} of the parts that belong to a whole; reduce "
                "tight, the initial c"
            )
        return "; ".join(collapses) or None

    def check(self, x: Tensor, mask: Tensor | None = None) -> None:
        _refuse(mask)
        if not isinstance(x, Tensor):
            raise BadInput(
                f"images must be a tensor, not a {type(x).__name__}: convert with "
                "torch.as_tensor(x)"
            )
        if x.ndim < 4 or tuple(x.shape[-3:]) != self.frame_shape:
            raise BadInput(
                f"images must be (…, *frame) with frame {self.frame_shape}, not {tuple(x.shape)}"
            )
        check_values(x, self.likelihood)
        check_place(x, self)


def _refuse(mask: Tensor | None) -> None:
    if mask is not None:
        raise BadInput("PartWhole does not support masks")


def _shares(joint: Tensor, children: Capsules) -> Tensor:
    """Return the share of each parent in the present children, the dummy first: (1 + parents,)."""
    presences = children.presences[..., None, :]
    children_of = (joint.softmax(-2) * presences).sum(-1).flatten(0, -2).sum(0)
    return children_of / presences.sum().clamp_min(_TINY)


def _largest(shares: Tensor) -> Tensor:
    """Return the largest share of a parent in the children that do not belong to the dummy."""
    return shares[1:].max() / shares[1:].sum().clamp_min(_TINY)


DEAD = 0.06  # logit spread: untrained models have 0.01 to 0.04, healthy ones at least 0.08
ALL = 0.9  # share of the parts above which one whole, or the dummy, counts as having all of them
_TINY = 1e-30


def _checked_frame(frame_shape: Sequence[int]) -> tuple[int, ...]:
    """Return the shape of a frame as a tuple, or raise `BadInput`."""
    shape = whole_numbers(frame_shape)
    if len(shape) != 3 or min(shape[1:]) < 4:
        raise BadInput(
            "frame_shape must be (channels, height, width) with sides of at least 4 pixels, not "
            f"{frame_shape!r}"
        )
    return shape
