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

SITE_AXIS = 3  # first site axis of t, (batch, time, capsules, *shape)


@cites(KELLER_2021)
def equivariance_error(t: Any, rate: float = 1.0) -> float:
    r"""Return the equivariance error (Eq. 13), averaged over sequences.

    It is :math:`\sum_{l<l'} \| Roll_{r(l'-l)}(\hat t_l) - \hat t_{l'} \|_1`. Each capsule is
    normalised separately, as in the released code; Eq. 13 normalises all of t.

    Args:
        t: latents (batch, time, capsules, \*shape).
        rate: sites per frame by which capsules should move for these data, whatever the model does.

    >>> import torch
    >>> t = torch.eye(5)[None, :, None]  # one capsule whose active site moves by 1 a frame
    >>> equivariance_error(t), equivariance_error(t, rate=2.0)
    (0.0, 20.0)
    """
    t = as_latents(t)
    if t.shape[1] < 2:
        raise BadInput(f"the equivariance error needs two or more frames, not {t.shape[1]}")
    return equivariance_errors(t, rate).mean().item()


@cites(KELLER_2021)
def equivariance_errors(
    t: Any, rate: float = 1.0, cyclic: bool = True, axis: Tensor | None = None
) -> Tensor:
    """Return the equivariance error of every sequence, (batch,).

    Args:
        t: latents (batch, time, capsules, *shape).
        rate: sites per frame by which capsules should move for these data.
        cyclic: whether capsules are rings. If they have ends, sites that a roll moves over an end
            do not count.
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
        difference = (rolled - t[:, lag:]).abs()
        if not cyclic:
            lost = _lost(t.shape[SITE_AXIS], rate, lag)
            kept = t.shape[SITE_AXIS] - lost
            difference = difference.narrow(SITE_AXIS, lost if rate > 0 else 0, kept)
        errors += difference.flatten(1).sum(1)
    return errors


@cites(KELLER_2021)
def chance_equivariance_error(topography: TopographyLike, frames: int, rate: float = 1.0) -> float:
    """Return the expected equivariance error of capsules in random directions.

    For independent random unit vectors u, v and w, E|u - v|_1 is E|u - v|_2 times E|w|_1.

    Args:
        topography: the shape and the number of capsules, and whether they are rings.
        frames: number of frames of a sequence.
        rate: sites per frame. It matters only for capsules with ends.

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
    """Return the number of sites that a roll moves over an open end."""
    return min(math.ceil(abs(rate) * lag), sites)


def as_latents(t: Any) -> Tensor:
    """Convert latents, an array or a tensor, to a floating-point tensor of four or more axes."""
    try:
        latents = torch.as_tensor(t)
    except (TypeError, ValueError, RuntimeError) as error:
        raise BadInput(f"latents must be an array or a tensor: {error}") from error
    if latents.ndim < SITE_AXIS + 1:
        raise BadInput(
            f"latents must be (batch, time, capsules, *shape), not {tuple(latents.shape)}"
        )
    return latents if latents.is_floating_point() else latents.float()
