r"""How fast a function of images leaves equivariance when the images move (Gruver et al. 2022).

With :math:`\rho_a` the action of a group on images, :math:`g(a) = \rho_{-a} f(\rho_a x)` does not
depend on a if f is equivariant: the norm of its derivative at 0, the Lie derivative of f, is the
error. Where f gives no image, :math:`g(a) = f(\rho_a x)`, and the error is of invariance.

Actions are measured by how far they move the rim: an amount of 1 shifts by half of the longer side,
turns by a radian or grows by e. A function may hence give images of another size than its own.
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
    """Shifts along the last axis (-1) or the one before it (-2); bilinear."""

    axis: int = -1
    cyclic: bool = False  #: what leaves comes in on the other side, as capsules roll
    outside: geometry.Outside = "zeros"  #: what comes in else

    def __call__(self, x: Tensor, amount: float) -> Tensor:
        if self.axis not in (-1, -2):
            raise BadInput(f"images are shifted along axis -1 or -2, not {self.axis}")
        if self.cyclic:
            return roll(x, amount * radius(x), self.axis)
        share = -amount * 2 * radius(x) / x.shape[self.axis]
        across, down = (share, 0.0) if self.axis == -1 else (0.0, share)
        shift = torch.tensor([[1, 0, across], [0, 1, down]], dtype=torch.float64)
        return _resampled(x, shift, self.outside)


@dataclass(frozen=True)
class Rotation:
    """Turns about the centre, counter-clockwise; bilinear."""

    outside: geometry.Outside = "zeros"

    def __call__(self, x: Tensor, amount: float) -> Tensor:
        height, width = x.shape[-2:]
        back = geometry.rotation(torch.tensor(-amount, dtype=torch.float64), width / height)
        return _resampled(x, back, self.outside)


@dataclass(frozen=True)
class Scale:
    """Grows about the centre; bilinear."""

    outside: geometry.Outside = "zeros"

    def __call__(self, x: Tensor, amount: float) -> Tensor:
        shrink = torch.eye(2, dtype=torch.float64) * math.exp(-amount)
        return _resampled(x, shrink, self.outside)


@dataclass(frozen=True)
class LieError:
    """Of every image, (images,): changes of f a pixel of motion at the rim, in units of |f(x)|."""

    derivative: Tensor  #: the Lie derivative
    finite: Tensor  #: root mean square of \|g(a) - g(0)\| / a over a and -a: holds the blur as well
    floor: Tensor  #: ``finite`` of the function that gives the image itself: resampling alone
    resampled: Tensor  #: of f(x) when x is resampled there and back, not moved: blur as f sees it
    settings: dict[str, Any]


@cites(GRUVER_2022)
@torch.no_grad()
def lie_error(
    f: Function, x: Tensor, action: Action, step: float = 0.1, invariant: bool = False
) -> LieError:
    r"""The error of f at images x, (images, …, height, width), under one action.

    By symmetric differences, :math:`(g(a) - g(-a)) / 2a` at a rim moved by ``step`` pixels, so that
    f need not be differentiable. An output with as many axes as x is taken for images, which are
    moved back, unless ``invariant``.

    Resampling there and back blurs by as much for a as for -a. Hence the derivative of the identity
    is all but 0 whatever the interpolation, and the blur is in ``finite``: compare that with
    ``floor``, or for invariants with ``resampled``. Of rough images a share of the derivative that
    is proportional to ``step`` is the kinks' of bilinear interpolation; a smaller step has less of
    it, and more of the rounding of f.
    """
    _check_images(x)
    if not 0 < step < math.inf:
        raise BadInput(f"a step is a number of pixels above 0, not {step}")
    amount = step / radius(x)
    still = f(x)
    if still.ndim < 1 or len(still) != len(x) or not still.is_floating_point():
        raise BadInput(
            f"f must give floats for each of {len(x)} images, not {tuple(still.shape)} of "
            f"{still.dtype}"
        )
    back = not invariant and still.ndim == x.ndim

    def moved(by: float) -> Tensor:
        found = f(action(x, by))
        return action(found, -by) if back else found

    ahead, behind = moved(amount), moved(-amount)
    resampled = [f(image) - still for image in _round_trips(x, action, amount)]
    identity = [image - x for image in _round_trips(x, action, amount)]
    unit, image_unit = step * _norm(still), step * _norm(x)
    return LieError(
        derivative=_ratio(_norm(ahead - behind) / 2, unit),
        finite=_ratio(_both(ahead - still, behind - still), unit),
        floor=_ratio(_both(*identity), image_unit),
        resampled=_ratio(_both(*resampled), unit),
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
    r"""What resampling alone costs: :math:`\|\rho_{-a} \rho_a x - x\| / \|x\|`, (steps, images).

    Steps are in pixels at the rim of x, (images, …, height, width). The action is by default the
    roll of Eq. 19 along the last axis: 0 at whole steps, most half way between. Of latents,
    (batch, time, capsules, sites), it is what a roll by a fraction of a site must lose.

    >>> interpolation_floor(torch.eye(4)[None], [1.0, 0.5])[:, 0]
    tensor([0.0000, 0.6124])
    """
    _check_images(x)
    action = Translation(cyclic=True) if action is None else action
    found = []
    for step in steps:
        if not math.isfinite(step):
            raise BadInput(f"a step is a number of pixels, not {step}")
        there_and_back = _round_trips(x, action, step / radius(x))[0]
        found.append(_ratio(_norm(there_and_back - x), _norm(x)))
    return torch.stack(found) if found else x.new_zeros(0, len(x))


def radius(x: Tensor) -> float:
    """From the centre to the middle of the farthest edge, in pixels."""
    return max(x.shape[-2:]) / 2


def _round_trips(x: Tensor, action: Action, amount: float) -> tuple[Tensor, Tensor]:
    return action(action(x, amount), -amount), action(action(x, -amount), amount)


def _resampled(x: Tensor, maps: Tensor, outside: geometry.Outside) -> Tensor:
    """Images whose places come from where the map takes them."""
    height, width = x.shape[-2:]
    grid = geometry.grid(height, width, dtype=x.dtype, device=x.device)
    flat = x.reshape(len(x), -1, height, width)
    return geometry.warp(flat, geometry.apply(maps.to(x), grid), outside).reshape(x.shape)


def _norm(x: Tensor) -> Tensor:
    return x.reshape(len(x), -1).norm(dim=1)


def _both(ahead: Tensor, behind: Tensor) -> Tensor:
    return ((_norm(ahead).square() + _norm(behind).square()) / 2).sqrt()


def _ratio(error: Tensor, unit: Tensor) -> Tensor:
    """0 of what is 0 and stays so."""
    return torch.where(error == 0, error, error / unit)


def _check_images(x: Tensor) -> None:
    if not isinstance(x, Tensor):
        raise BadInput(f"images must be a tensor, not a {type(x).__name__}: torch.as_tensor(x)")
    if x.ndim < 3 or x.numel() == 0 or not x.is_floating_point():
        raise BadInput(
            f"images must be floats (images, ..., height, width), not {tuple(x.shape)} of {x.dtype}"
        )
    if not x.isfinite().all():
        raise BadInput("images must be finite, and some are NaN or infinite")
