"""Rolls of capsules by whole and fractional steps."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor


def roll(t: Tensor, steps: float, dim: int, fourier: bool = False) -> Tensor:
    """Roll a tensor by ``steps`` along ``dim``, like ``torch.roll``.

    A fraction of a step interpolates linearly (Eq. 19) or, with ``fourier``, shifts the phases of
    the Fourier transform.

    >>> roll(torch.tensor([1.0, 0.0, 0.0, 0.0]), 1.5, dim=0)
    tensor([0.0000, 0.5000, 0.5000, 0.0000])
    """
    whole = math.floor(steps)
    rolled, part = t.roll(whole, dim), steps - whole
    if part == 0:
        return rolled
    if not fourier:
        return (1 - part) * rolled + part * t.roll(whole + 1, dim)
    waves = torch.fft.rfftfreq(t.shape[dim], device=t.device, dtype=t.dtype)
    turned = torch.polar(torch.ones_like(waves), -2 * math.pi * steps * waves)
    turned = torch.fft.rfft(t, dim=dim).movedim(dim, -1) * turned
    return torch.fft.irfft(turned, n=t.shape[dim]).movedim(-1, dim)


def chosen(by_axis: Sequence[Tensor], axis: Tensor, sites: int) -> Tensor:
    """Select each capsule's values for its own axis.

    Args:
        by_axis: values (…, capsules, *shape) for every axis.
        axis: index (…, capsules) of the axis of each capsule.
        sites: number of axes of a capsule.
    """
    selected = by_axis[0]
    index = axis.to(selected.device).reshape(*axis.shape, *(1,) * sites)
    for n, values in enumerate(by_axis[1:], 1):
        selected = torch.where(index == n, values, selected)
    return selected
