"""Free-form inference: optimisation of the posterior of each image (section 2.4)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from topocaps.capsules import poses
from topocaps.capsules.layers import Capsules, LayerPosterior
from topocaps.capsules.model import PartWhole
from topocaps.errors import BadInput, positive, whole_number

FROM_ENCODER, FROM_POSTERIORS = 0.03, 0.003  # learning rates


@dataclass(frozen=True)
class FreeForm:
    """Result of free-form inference for a batch of images."""

    posteriors: tuple[LayerPosterior, ...]  #: q of every layer, wholes first
    bounds: Tensor  #: of each image before every step and after the last: (steps + 1, …)
    rotation: Tensor | None  #: of the scenes, (…, 6), not optimised; None if turns is 1

    def parts(self, model: PartWhole) -> Capsules:
        """Return the most probable parts, with their poses in the image."""
        return self.posteriors[-1].mode(model.temperature).rotated(self.rotation)


@torch.inference_mode(False)
@torch.enable_grad()
def optimise(
    model: PartWhole,
    x: Tensor,
    posteriors: Sequence[LayerPosterior] | None = None,
    rotation: Tensor | None = None,
    *,
    steps: int = 100,
    lr: float | None = None,
) -> FreeForm:
    """Maximise the bound of each image over the parameters of its own q.

    The model does not change. Each step draws presences and poses, sums out the selections given
    these (the E-step of the routing), and updates q by Adam with a learning rate that falls to 0
    along a cosine. Images are independent, so a batch gives the same result as single images.

    Args:
        model: the model, whose parameters are fixed.
        x: images (…, *frame).
        posteriors: initial q of every layer, wholes first. By default it is q of the encoders.
        rotation: rotations (…, 6) of the scenes, if ``model.turns`` is above 1. With
            ``posteriors``, it is the rotation for which they were inferred. By default it is
            inferred.
        steps: number of updates.
        lr: initial learning rate. By default it is 0.03, or 0.003 with ``posteriors``: at a high
            rate, they drift along directions that the image determines poorly.
    """
    if not isinstance(model, PartWhole):
        raise BadInput(f"optimise needs a PartWhole, not a {type(model).__name__}")
    steps = whole_number("steps", steps)
    default = FROM_ENCODER if posteriors is None else FROM_POSTERIORS
    lr = positive("lr", default if lr is None else lr)
    model.check(x)
    _check_start(model, x, posteriors, rotation)
    x = x.clone() if x.is_inference() else x  # autograd refuses inference tensors
    with torch.no_grad():
        rotation = model.infer_rotation(x) if rotation is None else rotation.clone()
        start = model.encode(x, rotation) if posteriors is None else posteriors
    layers = [[v.detach().clone().requires_grad_() for v in _numbers(q)] for q in start]
    leaves = [leaf for layer in layers for leaf in layer]
    optimiser = torch.optim.Adam(leaves, lr=lr)
    bounds = []
    for step in range(steps + 1):
        current = tuple(_posterior(*layer) for layer in layers)
        bound = model.bound(x, current, model.draw(current), rotation).elbo
        bounds.append(bound.detach())
        if step == steps:
            break
        optimiser.param_groups[0]["lr"] = lr * 0.5 * (1 + math.cos(math.pi * step / steps))
        optimiser.zero_grad()
        (-bound.sum()).backward(inputs=leaves)
        optimiser.step()
    optimised = tuple(_posterior(*(leaf.detach() for leaf in layer)) for layer in layers)
    return FreeForm(optimised, torch.stack(bounds), rotation)


def move_posteriors(
    posteriors: Sequence[LayerPosterior], by: Tensor, rotation: Tensor | None = None
) -> tuple[LayerPosterior, ...]:
    """Return the posteriors of a moved image, given those of the image.

    Parts have the pose A, and objects above them I + A. Spreads do not change.

    Args:
        posteriors: q of every layer, wholes first.
        by: affine map (6,) that moves the image.
        rotation: rotations R (…, 6) of the scenes. Poses are those before R, so a map G of the
            image is the map R⁻¹ G R of poses.
    """
    if rotation is not None:
        by = poses.compose(poses.compose(rotation, by), poses.inverse(rotation))[..., None, :]
    identity = poses.scaled(1.0).to(by)
    *above, parts = posteriors
    moved = [(q, poses.compose(identity + q.poses, by) - identity) for q in above]
    moved.append((parts, poses.compose(parts.poses, by)))
    return tuple(LayerPosterior(q.logits, pose, q.spread) for q, pose in moved)


def _check_start(
    model: PartWhole,
    x: Tensor,
    posteriors: Sequence[LayerPosterior] | None,
    rotation: Tensor | None,
) -> None:
    """Raise `BadInput` unless posteriors and rotations have the shapes of images and model."""
    leading = tuple(x.shape[:-3])
    if rotation is not None and model.turns == 1:
        raise BadInput("this model has turns=1: rotation must be None")
    if rotation is not None and tuple(rotation.shape) != (*leading, poses.NUMBERS):
        raise BadInput(
            f"rotation must be {(*leading, poses.NUMBERS)} for images {leading}, not "
            f"{tuple(rotation.shape)}"
        )
    if posteriors is None:
        return
    if rotation is None and model.turns > 1:
        raise BadInput(
            "posteriors of a model with turns need the rotation of their scenes: pass rotation=..."
        )
    shapes = [tuple(q.poses.shape) for q in posteriors]
    needed = [(*leading, size, poses.NUMBERS) for size in model.sizes]
    if shapes != needed or any(q.logits.shape != q.poses.shape[:-1] for q in posteriors):
        raise BadInput(
            "posteriors must be those of every layer, wholes first, with poses of the shapes "
            f"{needed}, not {shapes}"
        )
    for q in posteriors:
        if any(value.dtype != x.dtype or not value.isfinite().all() for value in _numbers(q)):
            raise BadInput(f"posteriors must be finite, {x.dtype}, with spreads above 0")
        if q.spread is not None and q.spread.shape != q.poses.shape:
            raise BadInput(
                f"the spreads of posteriors must have the shape of the poses, "
                f"{tuple(q.poses.shape)}, not {tuple(q.spread.shape)}"
            )


def _numbers(q: LayerPosterior) -> list[Tensor]:
    """Return the numbers that are optimised: logits, poses and the log-spread, if there is one."""
    return [q.logits, q.poses, *([] if q.spread is None else [q.spread.log()])]


def _posterior(logits: Tensor, pose: Tensor, log_spread: Tensor | None = None) -> LayerPosterior:
    return LayerPosterior(logits, pose, None if log_spread is None else log_spread.exp())
