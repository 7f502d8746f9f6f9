"""Metrics of part-whole models: features of wholes, kept ink, and affine copies of templates.

The linear probes of `topocaps.metrics.probes` predict classes from the features.
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
    """Return the logits of t⁰ (supplement D) as features: (items, wholes)."""
    return wholes.logits.flatten(0, -2)


def presence_and_pose(wholes: LayerPosterior | Capsules) -> Tensor:
    """Return the logits of t⁰ and the numbers of A⁰ as features: (items, 7 wholes)."""
    return torch.cat([presence_logits(wholes), wholes.poses.flatten(-2).flatten(0, -2)], -1)


def majority_vote(assignments: Tensor, classes: Tensor) -> float:
    """Return the accuracy when every whole predicts the class that most of its items have.

    Args:
        assignments: index of the whole of each item, (items,).
        classes: class of each item, (items,).
    """
    if assignments.shape != classes.shape or assignments.ndim != 1 or len(classes) == 0:
        raise BadInput(
            "assignments and classes must be (items,), with one item or more, not "
            f"{tuple(assignments.shape)} and {tuple(classes.shape)}"
        )
    count = int(classes.max()) + 1
    votes = torch.bincount(assignments.long() * count + classes.long())
    votes = pad(votes, (0, -len(votes) % count)).unflatten(0, (-1, count))
    return votes.amax(1).sum().item() / len(classes)


# Rotated images -----------------------------------------------------------------------------------


@dataclass(frozen=True)
class InkKept:
    """Shares of the ink that templates draw in the right place after images are rotated."""

    same: float  #: the share that the original template draws
    any: float  #: the share that all templates together draw; ``same`` cannot be larger


@torch.no_grad()
def ink_kept(model: PartWhole, x: Tensor, angle: float) -> InkKept:
    """Return whether strokes keep their templates when images are rotated.

    The parts of the upright images, rotated, give the ink that each template should draw. The parts
    inferred from the rotated images give the ink that it draws. The shares compare the two pixel by
    pixel. If other templates take over the strokes, ``same`` falls and ``any`` does not. The parts
    are then not identified.

    Args:
        model: the part-whole model.
        x: images (images, *frame).
        angle: angle of the rotation in radians.
    """
    aspect = model.frame_shape[2] / model.frame_shape[1]
    rotation = poses.rotated(angle, aspect).to(x).expand(len(x), poses.NUMBERS)
    expected = model.templates.visible_ink(model.parts_of(x).rotated(rotation))
    rotated = geometry.warp(x, poses.sources(rotation, model.templates.grid)).clamp(0, 1)
    drawn = model.templates.visible_ink(model.parts_of(rotated))
    ink = expected.sum().clamp_min(1e-30)
    return InkKept(
        same=(torch.minimum(expected, drawn).sum() / ink).item(),
        any=(torch.minimum(expected.sum(-4), drawn.sum(-4)).sum() / ink).item(),
    )


# Templates ----------------------------------------------------------------------------------------

CHANCE = 0.05  #: share of random strokes that would count as copies
_SETS = 4  # sets of random strokes that give the threshold
_TRIES = 8  # best starts of a pair that are optimised to the end
_STEPS = (30, 80)  # from all starts at half resolution, then from the best at full resolution
_RATE = 0.04  # learning rate at the first step


@dataclass(frozen=True)
class AffineCopies:
    """Errors of the best affine maps between templates. Compare them with `strangers`."""

    errors: Tensor  #: (templates, templates), symmetric; 1 is the error of drawing nothing

    @property
    def nearest(self) -> Tensor:
        """The error of every template's best match among the others: (templates,)."""
        others = self.errors.clone()
        others.fill_diagonal_(torch.inf)
        return others.amin(1)

    def share(self, strangers: Tensor, chance: float = CHANCE) -> float:
        """Return the share of templates that are copies of another.

        A template is a copy if its error is below that of most random strokes.

        Args:
            strangers: errors of random strokes, from `strangers`.
            chance: share of these strokes that would count as copies.
        """
        return (self.nearest < strangers.quantile(chance)).float().mean().item()


def affine_copies(templates: Tensor) -> AffineCopies:
    r"""Find the best affine match of every pair of templates.

    A map A takes template j to i, and its inverse takes i to j. The error is the mean of
    :math:`|i - A j|^2 / |i|^2` and :math:`|j - A^{-1} i|^2 / |j|^2`, where i and j are colours
    times alpha. With the first term alone, an enlarged piece of a template could match all of
    another one. Gradient descent on the six numbers of A starts from rotations by multiples of 45°,
    mirrored and not, at two scales. At the start, the centres of the ink coincide.

    Args:
        templates: ``Templates.images()``, (parts, channels + 1, size, size), with alpha as the last
            channel.
    """
    if templates.ndim != 4 or templates.shape[1] < 2 or len(templates) < 2:
        raise BadInput(
            "templates must be (parts, channels + 1, size, size) with two or more parts, not "
            f"{tuple(templates.shape)}"
        )
    templates = templates.detach()
    ink = templates[:, :-1] * templates[:, -1:]
    first, second = torch.triu_indices(len(ink), len(ink), 1, device=ink.device)
    starts = _starts(ink, first, second)  # pairs starts 6
    coarse = adaptive_avg_pool2d(ink, -(-ink.shape[-1] // 2))
    maps, errors = _descend(coarse[first], coarse[second], starts, _STEPS[0])
    best = errors.topk(min(_TRIES, errors.shape[1]), largest=False).indices
    starts = maps.gather(1, best[..., None].expand(*best.shape, poses.NUMBERS))
    errors = _descend(ink[first], ink[second], starts, _STEPS[1])[1].amin(1)
    matrix = ink.new_zeros(len(ink), len(ink))
    matrix[first, second] = errors
    return AffineCopies(matrix + matrix.T)


def strokes(count: int, size: int, seed: int = 0) -> Tensor:
    """Return templates (count, 2, size, size) of random bent strokes, as a control.

    A template is white, and its alpha has the shape of a stroke. A stroke is a cubic Bézier curve,
    as any simpler curve is an affine copy of any other. Even such strokes resemble each other on
    few pixels.
    """
    generator = torch.Generator().manual_seed(seed)
    ends = 1.6 * torch.rand(count, 4, 2, generator=generator) - 0.8
    along = torch.linspace(0, 1, 40)[:, None]
    weights = [(1 - along) ** 3, 3 * along * (1 - along) ** 2, 3 * along**2 * (1 - along), along**3]
    curve = torch.cat(weights, 1) @ ends  # count points 2
    offsets = geometry.grid(size, size)[None, :, :, None] - curve[:, None, None]
    alpha = torch.exp(-offsets.square().sum(-1).amin(-1) / (2 * 0.12**2))
    return torch.stack([torch.ones_like(alpha), alpha], 1)


def strangers(count: int, size: int, sets: int = _SETS) -> Tensor:
    """Return the errors of the best matches among random strokes, (sets · count,).

    Args:
        count: number of strokes of a set. It must be the number of templates, as the best match is
            the better the more strokes there are.
        size: side of the templates in pixels.
        sets: number of sets; strokes are compared within their set.
    """
    return torch.cat([affine_copies(strokes(count, size, seed)).nearest for seed in range(sets)])


def _starts(ink: Tensor, first: Tensor, second: Tensor) -> Tensor:
    """Return the maps at which gradient descent starts: (pairs, starts, 6).

    They take places in the first template of a pair to places in the second.

    Args:
        ink: colours times alpha of all templates.
        first, second: indices of the templates of every pair, (pairs,).
    """
    angles = torch.arange(8) * (torch.pi / 4)
    rotations = torch.stack([poses.rotated(angle.item()) for angle in angles])
    mirror = torch.tensor([-1.0, 1.0, 1.0, -1.0, 1.0, 1.0])  # x to -x
    linear = torch.cat([rotations, rotations * mirror]).to(ink)  # 16 6
    centre, spread = _moments(ink)
    ratio = spread[second] / spread[first]  # pairs
    scales = torch.stack([torch.ones_like(ratio), ratio], 1)
    linear = poses.as_matrix(scales[:, :, None, None] * linear)[..., :2]
    linear = linear.flatten(1, 2)  # pairs 32 2 2
    shift = centre[second][:, None] - (linear @ centre[first][:, None, :, None])[..., 0]
    return torch.cat([linear, shift[..., None]], -1).flatten(-2)


def _moments(ink: Tensor) -> tuple[Tensor, Tensor]:
    """Return the centres (templates, 2) and the spreads (templates,) of the ink of templates."""
    height, width = ink.shape[-2:]
    grid = geometry.grid(height, width, dtype=ink.dtype, device=ink.device)
    mass = ink.square().sum(1)[..., None]
    mass = mass / mass.sum((1, 2), keepdim=True).clamp_min(1e-12)
    centre = (mass * grid).sum((1, 2))
    squares = (grid - centre[:, None, None]).square()
    return centre, (mass * squares).sum((1, 2, 3)).sqrt().clamp_min(1e-3)


@torch.enable_grad()
def _descend(first: Tensor, second: Tensor, maps: Tensor, steps: int) -> tuple[Tensor, Tensor]:
    """Optimise maps of pairs of templates by gradient descent.

    Returns:
        The maps (pairs, starts, 6), and their errors (pairs, starts).
    """
    maps = maps.clone().requires_grad_()
    optimiser = torch.optim.Adam([maps], lr=_RATE)
    for step in range(steps):
        optimiser.param_groups[0]["lr"] = _RATE * (1 - step / steps)
        (maps.grad,) = torch.autograd.grad(_errors(first, second, maps).sum(), maps)
        optimiser.step()
    maps = maps.detach()
    return maps, _errors(first, second, maps)


def _errors(first: Tensor, second: Tensor, maps: Tensor) -> Tensor:
    """Return the mean error of maps and of their inverses: (pairs, starts)."""
    forward = _error(first, second, maps)
    return (forward + _error(second, first, poses.inverse(maps))) / 2


def _error(target: Tensor, source: Tensor, maps: Tensor) -> Tensor:
    """Return the squared errors of mapped sources, relative to the energy of the targets.

    Args:
        target: images (pairs, channels, height, width).
        source: images of the same shape.
        maps: maps from the places of the target to those of the source, (pairs, starts, 6).
    """
    starts = maps.shape[1]
    height, width = target.shape[-2:]
    places = geometry.grid(height, width, dtype=maps.dtype, device=maps.device)
    places = geometry.apply(poses.as_matrix(maps), places)  # pairs starts height width 2
    # one warp for all starts of a pair, stacked along the rows
    mapped = geometry.warp(source, places.flatten(1, 2))
    mapped = mapped.unflatten(2, (starts, height))  # pairs channels starts height width
    errors = (mapped - target[:, :, None]).square().sum((1, 3, 4))
    return errors / target.square().sum((1, 2, 3))[:, None].clamp_min(1e-12)
