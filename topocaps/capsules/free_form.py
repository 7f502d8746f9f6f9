"""Inference for one image at a time: its own q, optimised (section 2.4)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from topocaps.capsules import poses
from topocaps.capsules.layers import Belief, Capsules
from topocaps.capsules.model import PartWhole, in_image
from topocaps.errors import BadInput, positive, whole_number

FROM_ENCODER, FROM_BELIEFS = 0.03, 0.003  # learning rates


@dataclass(frozen=True)
class FreeForm:
    """What optimisation found for a batch of images."""

    beliefs: tuple[Belief, ...]  #: q of every layer, wholes first
    bounds: Tensor  #: of every image before every step and after the last: (steps + 1, …)
    turn: Tensor | None  #: of the scenes, where they turn: it stays as it was inferred

    def parts(self, model: PartWhole) -> Capsules:
        """Parts as they are most to be expected, where they are in the image."""
        return in_image(self.beliefs[-1].values(model.temperature), self.turn)


@torch.inference_mode(False)
@torch.enable_grad()
def optimise(
    model: PartWhole,
    x: Tensor,
    beliefs: Sequence[Belief] | None = None,
    turn: Tensor | None = None,
    *,
    steps: int = 100,
    lr: float | None = None,
) -> FreeForm:
    """Raise each image's bound in the parameters of its own q; the model stays as it is.

    Starts from the encoder's q, or from ``beliefs`` (wholes first), which where scenes turn are of
    images with their ``turn``. Every step draws presences and poses, sums selections out given them
    (the E-step of the routing) and moves q up the gradient: Adam, whose steps shrink to nothing
    along a cosine. Images do not know of each other, so a batch is as good as one by one.
    Its ``lr`` is 0.03 from the encoder's q and, unless given, a tenth of that from ``beliefs``,
    which are good already: in directions that the image says little of, a large one wanders.
    """
    steps = whole_number("steps", steps)
    if lr is None:
        lr = FROM_ENCODER if beliefs is None else FROM_BELIEFS
    lr = positive("lr", lr)
    model.check(x)
    _check_start(model, x, beliefs, turn)
    x = x.clone() if x.is_inference() else x  # of such a one no gradient is taken
    with torch.no_grad():
        turn = model.upright(x) if turn is None else turn.clone()
        start = model.believe(x, turn) if beliefs is None else tuple(beliefs)
    leaves = [leaf for belief in start for leaf in _leaves(belief)]
    rule = torch.optim.Adam(leaves, lr=lr)
    bounds = []
    for step in range(steps + 1):
        current = _beliefs(leaves, start)
        bound = model.bound(x, current, model.draw(current), turn).elbo
        bounds.append(bound.detach())
        if step == steps:
            break
        rule.param_groups[0]["lr"] = lr * 0.5 * (1 + math.cos(math.pi * step / steps))
        gradients = torch.autograd.grad(-bound.sum(), leaves)
        for leaf, gradient in zip(leaves, gradients, strict=True):
            leaf.grad = gradient
        rule.step()
    found = _beliefs([leaf.detach() for leaf in leaves], start)
    return FreeForm(found, torch.stack(bounds), turn)


def moved(beliefs: Sequence[Belief], by: Tensor, turn: Tensor | None = None) -> tuple[Belief, ...]:
    """Beliefs about an image, for the image moved ``by`` a map (6,): everything moves with it.

    Parts are drawn by A, and objects above them stand at I + A; spreads stay. In a scene that is
    turned by R, poses are those before the ``turn``: the map G of the image is R⁻¹ G R of them.
    """
    if turn is not None:
        by = poses.after(poses.after(turn, by), poses.inverse(turn))[..., None, :]
    identity = poses.scaled(1.0).to(by)
    found = []
    for layer, belief in enumerate(beliefs):
        lowest = layer == len(beliefs) - 1
        stands = belief.poses if lowest else identity + belief.poses
        there = poses.after(stands, by)
        found.append(Belief(belief.logits, there if lowest else there - identity, belief.spread))
    return tuple(found)


def _check_start(
    model: PartWhole, x: Tensor, beliefs: Sequence[Belief] | None, turn: Tensor | None
) -> None:
    """Refuse beliefs that are not of these images and this model, and turns that are none."""
    front = tuple(x.shape[:-3])
    if turn is not None and model.turns == 1:
        raise BadInput("scenes of this model do not turn: give no turn")
    if turn is not None and tuple(turn.shape) != (*front, poses.NUMBERS):
        raise BadInput(
            f"images {front} have turns {(*front, poses.NUMBERS)}, not {tuple(turn.shape)}"
        )
    if beliefs is None:
        return
    if turn is None and model.turns > 1:
        raise BadInput("beliefs are of scenes that were turned: give their turn, too")
    found = [tuple(belief.poses.shape) for belief in beliefs]
    wanted = [(*front, size, poses.NUMBERS) for size in model.sizes]
    if found != wanted or any(b.logits.shape != b.poses.shape[:-1] for b in beliefs):
        raise BadInput(
            f"beliefs must be of every layer, wholes first, with poses {wanted}, not {found}"
        )
    for belief in beliefs:
        spread = () if belief.spread is None else (belief.spread.log(),)
        values = (belief.logits, belief.poses, *spread)
        if any(value.dtype != x.dtype or not value.isfinite().all() for value in values):
            raise BadInput(f"beliefs must be finite, {x.dtype}, with spreads above 0")
        if belief.spread is not None and belief.spread.shape != belief.poses.shape:
            raise BadInput("spreads of beliefs must have the shape of their poses")


def _leaves(belief: Belief) -> list[Tensor]:
    """What is optimised: logits, poses and, of Normal ones, the logs of spreads."""
    spread = [] if belief.spread is None else [belief.spread.log()]
    values = (belief.logits, belief.poses, *spread)
    return [value.detach().clone().requires_grad_() for value in values]


def _beliefs(leaves: Sequence[Tensor], like: Sequence[Belief]) -> tuple[Belief, ...]:
    rest = iter(leaves)
    return tuple(
        Belief(next(rest), next(rest), None if one.spread is None else next(rest).exp())
        for one in like
    )
