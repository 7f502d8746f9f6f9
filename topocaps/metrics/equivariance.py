"""The equivariance error of Eq. 13, and its value for random capsules."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor
from torch.linalg import vector_norm

from topocaps.errors import BadInput
from topocaps.latents.interface import TopographyLike
from topocaps.latents.rolling import chosen, roll
from topocaps.latents.topography import KELLER_2021
from topocaps.references import cites

SITE_AXIS = 3  # of t: (batch, time, capsules, *shape); the axis that data move along


@cites(KELLER_2021)
def equivariance_error(t: Any, rate: float = 1.0) -> float:
    r"""Mean over sequences of :math:`\sum_{l<l'} \| Roll_{r(l'-l)}(\hat t_l) - \hat t_{l'} \|_1`.

    Each capsule is normalised separately, as in the released code; Eq. 13 normalises all of t.

    Args:
        t: latents (batch, time, capsules, \*shape).
        rate: sites a frame by which the data, not the model, ask capsules to move.

    >>> import torch
    >>> t = torch.eye(5)[None, :, None]  # one capsule of 5 sites, active one site on each frame
    >>> equivariance_error(t), equivariance_error(t, rate=2.0)
    (0.0, 20.0)
    """
    t = as_latents(t)
    if t.shape[1] < 2:
        raise BadInput("the equivariance error needs two or more frames")
    return equivariance_errors(t, rate).mean().item()


@cites(KELLER_2021)
def equivariance_errors(
    t: Any, rate: float = 1.0, cyclic: bool = True, axis: Tensor | None = None
) -> Tensor:
    """Return the equivariance error of every sequence, (batch,).

    Args:
        t: latents (batch, time, capsules, *shape).
        rate: sites a frame by which the data ask capsules to move.
        cyclic: whether capsules are circles. If they have ends, sites that a roll has taken over an
            end do not count.
        axis: axis to roll along, (batch, capsules); by default the first.
    """
    t = as_latents(t)
    capsule = tuple(range(SITE_AXIS, t.ndim))
    if axis is not None and not ((axis >= 0) & (axis < len(capsule))).all():
        raise BadInput(f"axis must be between 0 and {len(capsule) - 1} for these capsules")
    t = t / vector_norm(t, dim=capsule, keepdim=True).clamp_min(1e-30)
    errors = t.new_zeros(len(t))
    for lag in range(1, t.shape[1]):
        dims = capsule[:1] if axis is None else capsule
        by_axis = [roll(t[:, :-lag], rate * lag, dim) for dim in dims]
        rolled = by_axis[0] if axis is None else chosen(by_axis, axis[:, None], len(capsule))
        apart = (rolled - t[:, lag:]).abs()
        if not cyclic:
            lost = _lost(t.shape[SITE_AXIS], rate, lag)
            kept = t.shape[SITE_AXIS] - lost
            apart = apart.narrow(SITE_AXIS, lost if rate > 0 else 0, kept)
        errors += apart.flatten(1).sum(1)
    return errors


@cites(KELLER_2021)
def chance_equivariance_error(topography: TopographyLike, frames: int, rate: float = 1.0) -> float:
    """Return the expected error of capsules in random directions.

    It is 13,272 for 18 capsules of 18 sites and 18 frames. For independent random unit vectors u
    and v, and another one w, E|u - v|_1 is E|u - v|_2 times E|w|_1.

    >>> from topocaps import Topography
    >>> round(chance_equivariance_error(Topography(15, (15,)), frames=15))
    6937
    """
    d = math.prod(topography.shape)
    pairs = 0.0
    for lag in range(1, frames):
        kept = 1.0 if topography.cyclic else 1 - _lost(topography.shape[0], rate, lag) / d
        pairs += topography.capsules * (frames - lag) * kept
    if d == 1:
        return pairs
    g = math.lgamma
    distance = 2 * math.exp(g(d / 2) + g(d - 1) - g(d - 0.5) - g((d - 1) / 2))
    length = d * math.exp(g(d / 2) - g((d + 1) / 2)) / math.sqrt(math.pi)
    return pairs * distance * length


def _lost(sites: int, rate: float, lag: int) -> int:
    """Return the number of sites that a roll takes over an open end."""
    return min(math.ceil(abs(rate) * lag), sites)


def as_latents(t: Any) -> Tensor:
    """Convert latents, an array or a tensor, to a floating-point tensor of four or more axes."""
    try:
        found = torch.as_tensor(t)
    except (TypeError, ValueError, RuntimeError) as error:
        raise BadInput(f"latents must be an array or a tensor: {error}") from error
    if found.ndim < SITE_AXIS + 1:
        raise BadInput(f"latents must be (batch, time, capsules, *shape), not {tuple(found.shape)}")
    return found if found.is_floating_point() else found.float()
