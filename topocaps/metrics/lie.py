r"""Lie derivatives: how far a function of images is from equivariance (Gruver et al. 2022).

Let :math:`\rho_a` be the action of a group on images. If f is equivariant, then
:math:`g(a) = \rho_{-a} f(\rho_a x)` does not depend on a. The derivative of g at 0 is the Lie
derivative of f, and its norm is the error. If the output of f is no image,
:math:`g(a) = f(\rho_a x)`, and the norm is the error of invariance.

An action by an amount of 1 shifts by half of the longer side, rotates by one radian, or enlarges by
a factor of e. As amounts are relative to the size of the image, f may return images of another size
than x.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from topocaps.data import geometry
from topocaps.errors import BadInput
from topocaps.latents.rolling import roll
from topocaps.references import cites

GRUVER_2022 = """\
@article{gruver2022lie,
  title = {The {Lie} Derivative for Measuring Learned Equivariance},
  author = {Gruver, Nate and Finzi, Marc and Goldblum, Micah and Wilson, Andrew Gordon},
  journal = {arXiv preprint arXiv:2210.02984},
  year = {2022},
  url = {https://arxiv.org/abs/2210.02984},
}"""

Action = Callable[[Tensor, float], Tensor]
Function = Callable[[Tensor], Tensor]


@dataclass(frozen=True)
class Translation:
    """Shifts along one axis, with bilinear interpolation."""

    axis: int = -1  #: -1 is the last axis, and -2 the one before it
    cyclic: bool = False  #: whether pixels that leave the image enter it on the other side
    outside: geometry.Outside = "zeros"  #: the values that enter images that are not cyclic

    def __call__(self, x: Tensor, amount: float) -> Tensor:
        if self.axis not in (-1, -2):
            raise BadInput(f"axis must be -1 or -2, not {self.axis}")
        if self.cyclic:
            return roll(x, amount * radius(x), self.axis)
        share = -amount * 2 * radius(x) / x.shape[self.axis]
        across, down = (share, 0.0) if self.axis == -1 else (0.0, share)
        shift = torch.tensor([[1, 0, across], [0, 1, down]], dtype=torch.float64)
        return _resampled(x, shift, self.outside)


@dataclass(frozen=True)
class Rotation:
    """Counter-clockwise rotations about the centre, with bilinear interpolation."""

    outside: geometry.Outside = "zeros"  #: the values outside the image

    def __call__(self, x: Tensor, amount: float) -> Tensor:
        height, width = x.shape[-2:]
        back = geometry.rotation(torch.tensor(-amount, dtype=torch.float64), width / height)
        return _resampled(x, back, self.outside)


@dataclass(frozen=True)
class Scale:
    """Enlargements about the centre, with bilinear interpolation."""

    outside: geometry.Outside = "zeros"  #: the values outside the image

    def __call__(self, x: Tensor, amount: float) -> Tensor:
        shrink = torch.eye(2, dtype=torch.float64) * math.exp(-amount)
        return _resampled(x, shrink, self.outside)


@dataclass(frozen=True)
class LieError:
    r"""Errors of every image, (images,).

    An error is the change of g per pixel of motion, relative to the norm of f(x). Motion is
    measured at the middle of the farthest edge.
    """

    derivative: Tensor  #: norm of the Lie derivative
    finite: Tensor  #: root mean square of the change of g over a and -a, which includes the blur
    floor: Tensor  #: ``finite`` of the identity, which is due to resampling alone
    resampled: Tensor  #: change of f(x) if x is moved there and back, which only blurs it
    settings: dict[str, Any]


@cites(GRUVER_2022)
@torch.no_grad()
def lie_error(
    f: Function, x: Tensor, action: Action, step: float = 0.1, invariant: bool = False
) -> LieError:
    r"""Measure the error of f under one action.

    The derivative is the symmetric difference :math:`(g(a) - g(-a)) / 2a`, so f need not be
    differentiable. Resampling there and back blurs by as much for a as for -a. The derivative of
    the identity is therefore close to 0 for any interpolation. The blur is part of ``finite``.
    Compare ``finite`` with ``floor`` or, for invariant functions, with ``resampled``.

    On rough images, the kinks of bilinear interpolation add an error to the derivative that is
    proportional to ``step``. A smaller step reduces it, but increases the rounding errors of f.

    Args:
        f: function from images to outputs (images, …). Outputs with as many axes as x are images,
            unless ``invariant`` is True.
        x: images (images, …, height, width), floating point.
        action: action on images, such as `Translation`.
        step: motion at the middle of the farthest edge, in pixels.
        invariant: whether outputs are not moved back, so the error is of invariance.
    """
    _check_images(x)
    if not 0 < step < math.inf:
        raise BadInput(f"step must be a number of pixels above 0, not {step}")
    amount = step / radius(x)
    still = f(x)
    if still.ndim < 1 or len(still) != len(x) or not still.is_floating_point():
        raise BadInput(
            f"f must return floats for each of {len(x)} images, not {tuple(still.shape)} of "
            f"{still.dtype}"
        )
    back = not invariant and still.ndim == x.ndim

    def g(amount: float) -> Tensor:
        output = f(action(x, amount))
        return action(output, -amount) if back else output

    ahead, behind = g(amount), g(-amount)
    round_trips = _round_trips(x, action, amount)
    resampled = [f(image) - still for image in round_trips]
    identity = [image - x for image in round_trips]
    unit, image_unit = step * _norm(still), step * _norm(x)
    return LieError(
        derivative=_ratio(_norm(ahead - behind) / 2, unit),
        finite=_ratio(_root_mean_square(ahead - still, behind - still), unit),
        floor=_ratio(_root_mean_square(*identity), image_unit),
        resampled=_ratio(_root_mean_square(*resampled), unit),
        settings={
            "action": repr(action),
            "step": step,
            "output": "images" if back else "invariants",
            "images": len(x),
            "shape": list(x.shape[1:]),
        },
    )


@torch.no_grad()
def interpolation_floor(x: Tensor, steps: Sequence[float], action: Action | None = None) -> Tensor:
    r"""Return the error of resampling, :math:`\|\rho_{-a} \rho_a x - x\| / \|x\|`: (steps, images).

    The error of the roll of Eq. 19 is 0 at whole steps and largest halfway between them. For
    latents (batch, time, capsules, sites), it is the loss of a roll by a fraction of a site.

    Args:
        x: images (images, …, height, width).
        steps: motions at the middle of the farthest edge, in pixels.
        action: action on images; by default the roll of Eq. 19 along the last axis.

    >>> interpolation_floor(torch.eye(4)[None], [1.0, 0.5])[:, 0]
    tensor([0.0000, 0.6124])
    """
    _check_images(x)
    action = Translation(cyclic=True) if action is None else action
    errors = []
    for step in steps:
        if not math.isfinite(step):
            raise BadInput(f"steps must be finite numbers of pixels, not {step}")
        there_and_back = _round_trips(x, action, step / radius(x))[0]
        errors.append(_ratio(_norm(there_and_back - x), _norm(x)))
    return torch.stack(errors) if errors else x.new_zeros(0, len(x))


def radius(x: Tensor) -> float:
    """Return the distance from the centre to the middle of the farthest edge, in pixels."""
    return max(x.shape[-2:]) / 2


def _round_trips(x: Tensor, action: Action, amount: float) -> tuple[Tensor, Tensor]:
    """Return images that are moved by an amount and back, and in the opposite order."""
    return action(action(x, amount), -amount), action(action(x, -amount), amount)


def _resampled(x: Tensor, maps: Tensor, outside: geometry.Outside) -> Tensor:
    """Return images whose values are read from the mapped places."""
    height, width = x.shape[-2:]
    grid = geometry.grid(height, width, dtype=x.dtype, device=x.device)
    flat = x.reshape(len(x), -1, height, width)
    return geometry.warp(flat, geometry.apply(maps.to(x), grid), outside).reshape(x.shape)


def _norm(x: Tensor) -> Tensor:
    """Return the norm of every image, (images,)."""
    return x.reshape(len(x), -1).norm(dim=1)


def _root_mean_square(ahead: Tensor, behind: Tensor) -> Tensor:
    return ((_norm(ahead).square() + _norm(behind).square()) / 2).sqrt()


def _ratio(error: Tensor, unit: Tensor) -> Tensor:
    """Return relative errors; an error of 0 stays 0 if the unit is 0, too."""
    return torch.where(error == 0, error, error / unit)


def _check_images(x: Tensor) -> None:
    """Raise `BadInput` unless x is a tensor of finite floating-point images."""
    if not isinstance(x, Tensor):
        raise BadInput(f"images must be a tensor, not a {type(x).__name__}: torch.as_tensor(x)")
    if x.ndim < 3 or x.numel() == 0 or not x.is_floating_point():
        raise BadInput(
            f"images must be floats (images, ..., height, width), not {tuple(x.shape)} of {x.dtype}"
        )
    if not x.isfinite().all():
        raise BadInput("images must be finite, but some are NaN or infinite")
