"""What wholes tell of classes, and whether templates are more than copies of each other.

Features of wholes are read by the linear probes of ``topocaps.metrics.probes``.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import adaptive_avg_pool2d, pad

from topocaps.capsules import poses
from topocaps.capsules.layers import Capsules, LayerPosterior
from topocaps.capsules.model import PartWhole
from topocaps.data import geometry
from topocaps.errors import BadInput

# Features -----------------------------------------------------------------------------------------


def presence_logits(wholes: LayerPosterior | Capsules) -> Tensor:
    """Logits of t⁰ (supplement D) as features: (items, wholes)."""
    return wholes.logits.flatten(0, -2)


def presence_and_pose(wholes: LayerPosterior | Capsules) -> Tensor:
    """Logits of t⁰ and the numbers of A⁰ as features: (items, 7 wholes)."""
    return torch.cat([presence_logits(wholes), wholes.poses.flatten(-2).flatten(0, -2)], -1)


def majority_vote(assignments: Tensor, classes: Tensor) -> float:
    """Accuracy when every whole stands for the class it is assigned to most often.

    ``assignments`` say of each item which whole it is, 0 and up: (items,).
    """
    if assignments.shape != classes.shape or assignments.ndim != 1 or len(classes) == 0:
        raise BadInput(
            f"a vote takes a whole and a class of each item, not {tuple(assignments.shape)} "
            f"and {tuple(classes.shape)}"
        )
    count = int(classes.max()) + 1
    votes = torch.bincount(assignments.long() * count + classes.long())
    votes = pad(votes, (0, -len(votes) % count)).unflatten(0, (-1, count))
    return votes.amax(1).sum().item() / len(classes)


# Turned images ------------------------------------------------------------------------------------


@dataclass(frozen=True)
class InkKept:
    """Shares of the ink of images that is drawn where it should be once they are turned."""

    same: float  #: by the templates that drew it
    any: float  #: by any: as much as could be kept


@torch.no_grad()
def ink_kept(model: PartWhole, x: Tensor, angle: float) -> InkKept:
    """Whether a stroke keeps its template when images (images, *frame) are turned, in radians.

    Parts of the upright image, turned, say where each template should draw; the parts that are
    inferred from the turned image, where it does. Of the ink that should be there, pixel by pixel,
    what is. Where other templates take the strokes, ``same`` falls and ``any`` does not: parts are
    then not identified.
    """
    aspect = model.frame_shape[2] / model.frame_shape[1]
    rotation = poses.rotated(angle, aspect).to(x).expand(len(x), poses.NUMBERS)
    should = model.templates.visible_ink(model.parts_of(x).rotated(rotation))
    turned = geometry.warp(x, poses.sources(rotation, model.templates.grid)).clamp(0, 1)
    does = model.templates.visible_ink(model.parts_of(turned))
    ink = should.sum().clamp_min(1e-30)
    return InkKept(
        same=(torch.minimum(should, does).sum() / ink).item(),
        any=(torch.minimum(should.sum(-4), does.sum(-4)).sum() / ink).item(),
    )


# Templates ----------------------------------------------------------------------------------------

CHANCE = 0.05  #: of random strokes, those that would count as copies
_SETS = 4  # of random strokes, for a threshold
_TRIES = 8  # starts of a pair that are followed to the end
_STEPS = (30, 80)  # from all starts, on templates of half the size; from the best, as they are
_RATE = 0.04


@dataclass(frozen=True)
class AffineCopies:
    """How well affine maps take templates to each other; read it beside ``strangers``."""

    errors: Tensor  #: (templates, templates), symmetric; 1 is as bad as drawing nothing

    @property
    def nearest(self) -> Tensor:
        """The error of every template's best match among the others: (templates,)."""
        others = self.errors.clone()
        others.fill_diagonal_(torch.inf)
        return others.amin(1)

    def share(self, strangers: Tensor, chance: float = CHANCE) -> float:
        """Of templates that are copies: nearer to another than all but few of ``strangers`` are."""
        return (self.nearest < strangers.quantile(chance)).float().mean().item()


def affine_copies(templates: Tensor) -> AffineCopies:
    r"""The best affine match of every pair of templates (parts, channels + 1, size, size).

    They are ``Templates.images()``, alpha last. A map A takes template j to i and its inverse i to
    j; the error is the mean of :math:`|i - A j|^2 / |i|^2` and :math:`|j - A^{-1} i|^2 / |j|^2`, of
    colours times alpha. (In one direction alone, a piece of a template, enlarged, could stand for
    all of it.) The six numbers of A descend from rotations by 45°, mirrored or not, at two scales,
    with the centres of ink on each other.
    """
    if templates.ndim != 4 or templates.shape[1] < 2 or len(templates) < 2:
        raise BadInput(
            "templates must be two or more, (parts, channels + 1, size, size), not "
            f"{tuple(templates.shape)}"
        )
    templates = templates.detach()
    ink = templates[:, :-1] * templates[:, -1:]
    first, second = torch.triu_indices(len(ink), len(ink), 1, device=ink.device)
    starts = _starts(ink, first, second)  # pairs starts 6
    coarse = adaptive_avg_pool2d(ink, -(-ink.shape[-1] // 2))
    found, errors = _descend(coarse[first], coarse[second], starts, _STEPS[0])
    best = errors.topk(min(_TRIES, errors.shape[1]), largest=False).indices
    starts = found.gather(1, best[..., None].expand(*best.shape, poses.NUMBERS))
    errors = _descend(ink[first], ink[second], starts, _STEPS[1])[1].amin(1)
    matrix = ink.new_zeros(len(ink), len(ink))
    matrix[first, second] = errors
    return AffineCopies(matrix + matrix.T)


def strokes(count: int, size: int, seed: int = 0) -> Tensor:
    """Templates (count, 2, size, size) of a random bent stroke each: white, its shape in alpha.

    The control of ``affine_copies``: on few pixels even these are much alike. A stroke is a cubic
    Bézier curve; a simpler one would be an affine copy of any other.
    """
    generator = torch.Generator().manual_seed(seed)
    ends = 1.6 * torch.rand(count, 4, 2, generator=generator) - 0.8
    along = torch.linspace(0, 1, 40)[:, None]
    weights = [(1 - along) ** 3, 3 * along * (1 - along) ** 2, 3 * along**2 * (1 - along), along**3]
    curve = torch.cat(weights, 1) @ ends  # count points 2
    apart = (geometry.grid(size, size)[None, :, :, None] - curve[:, None, None]).square().sum(-1)
    alpha = torch.exp(-apart.amin(-1) / (2 * 0.12**2))
    return torch.stack([torch.ones_like(alpha), alpha], 1)


def strangers(count: int, size: int, sets: int = _SETS) -> Tensor:
    """Errors of the best matches among ``count`` random strokes, of several sets: (errors,).

    The more there are, the nearer the nearest: these are to be as many as the templates.
    """
    found = [affine_copies(strokes(count, size, seed)).nearest for seed in range(sets)]
    return torch.cat(found)


def _starts(ink: Tensor, first: Tensor, second: Tensor) -> Tensor:
    """Maps from the square of the first to that of the second of every pair: (pairs, starts, 6)."""
    turns = torch.arange(8) * (torch.pi / 4)
    turned = torch.stack([poses.rotated(turn.item()) for turn in turns])
    mirror = torch.tensor([-1.0, 1.0, 1.0, -1.0, 1.0, 1.0])  # of a pose's columns: x is -x
    linear = torch.cat([turned, turned * mirror]).to(ink)  # 16 6
    centre, spread = _moments(ink)
    ratio = spread[second] / spread[first]  # pairs
    scales = torch.stack([torch.ones_like(ratio), ratio], 1)
    linear = poses.as_matrix(scales[:, :, None, None] * linear)[..., :2]
    linear = linear.flatten(1, 2)  # pairs 32 2 2
    shift = centre[second][:, None] - (linear @ centre[first][:, None, :, None])[..., 0]
    return torch.cat([linear, shift[..., None]], -1).flatten(-2)


def _moments(ink: Tensor) -> tuple[Tensor, Tensor]:
    """Where the ink of templates is and how far from there: (templates, 2) and (templates,)."""
    height, width = ink.shape[-2:]
    grid = geometry.grid(height, width, dtype=ink.dtype, device=ink.device)
    mass = ink.square().sum(1)[..., None]
    mass = mass / mass.sum((1, 2), keepdim=True).clamp_min(1e-12)
    centre = (mass * grid).sum((1, 2))
    apart = (grid - centre[:, None, None]).square()
    return centre, (mass * apart).sum((1, 2, 3)).sqrt().clamp_min(1e-3)


@torch.enable_grad()
def _descend(first: Tensor, second: Tensor, maps: Tensor, steps: int) -> tuple[Tensor, Tensor]:
    """Better maps (pairs, starts, 6) of pairs of templates, and their errors (pairs, starts)."""
    maps = maps.clone().requires_grad_()
    rule = torch.optim.Adam([maps], lr=_RATE)
    for step in range(steps):
        rule.param_groups[0]["lr"] = _RATE * (1 - step / steps)
        (gradient,) = torch.autograd.grad(_errors(first, second, maps).sum(), maps)
        maps.grad = gradient
        rule.step()
    maps = maps.detach()
    return maps, _errors(first, second, maps)


def _errors(first: Tensor, second: Tensor, maps: Tensor) -> Tensor:
    """Both ways: (pairs, starts)."""
    there = _error(first, second, maps)
    return (there + _error(second, first, poses.inverse(maps))) / 2


def _error(target: Tensor, source: Tensor, maps: Tensor) -> Tensor:
    """Of sources, looked up where maps take the pixels of targets, relative to targets' energy."""
    starts = maps.shape[1]
    height, width = target.shape[-2:]
    places = geometry.grid(height, width, dtype=maps.dtype, device=maps.device)
    places = geometry.apply(poses.as_matrix(maps), places)  # pairs starts height width 2
    # all starts of a pair are looked up in one image, below each other
    seen = geometry.warp(source, places.flatten(1, 2))
    seen = seen.unflatten(2, (starts, height))  # pairs channels starts height width
    apart = (seen - target[:, :, None]).square().sum((1, 3, 4))
    return apart / target.square().sum((1, 2, 3))[:, None].clamp_min(1e-12)
