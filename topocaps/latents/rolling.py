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
    return _phase_shift(t.movedim(dim, -1), steps).movedim(-1, dim)


def roll_each(
    values: Tensor,
    shifts: Tensor,
    dim: int,
    fractional: bool,
    fourier: bool = False,
    cyclic: bool = True,
) -> Tensor:
    """Roll each slice of ``values`` along ``dim`` by its own shift.

    Args:
        values: tensor whose axis ``dim`` is rolled.
        shifts: sites, broadcast with ``values``; of length 1 along ``dim``.
        fractional: whether shifts may have fractions. If False, they are whole numbers.
        fourier: shift the phases of the Fourier transform instead of interpolating linearly. This
            needs rings.
        cyclic: roll around a ring. Otherwise values that leave over an end are lost, and zeros
            enter at the other end.

    >>> roll_each(torch.eye(3)[:2], torch.tensor([[1.0], [0.5]]), -1, fractional=True)
    tensor([[0.0000, 1.0000, 0.0000],
            [0.0000, 0.5000, 0.5000]])
    >>> roll_each(torch.ones(2, 3), torch.tensor([[1], [-2]]), -1, fractional=False, cyclic=False)
    tensor([[0., 1., 1.],
            [1., 0., 0.]])
    """
    below = shifts.floor()
    rolled = _roll_whole(values, below.long(), dim, cyclic)
    if not fractional:
        return rolled
    part = shifts - below
    if fourier:
        shifted = _phase_shift(values.movedim(dim, -1), shifts.movedim(dim, -1))
        return torch.where(part == 0, rolled, shifted.movedim(-1, dim))
    return (1 - part) * rolled + part * _roll_whole(values, below.long() + 1, dim, cyclic)


def _roll_whole(values: Tensor, shifts: Tensor, dim: int, cyclic: bool) -> Tensor:
    """Roll each slice of ``values`` by a whole number of sites."""
    sites = values.shape[dim]
    shape = [1] * values.ndim
    shape[dim] = sites
    place = torch.arange(sites, device=values.device).reshape(shape) - shifts
    rolled = values.gather(dim, place.remainder(sites).expand(values.shape))
    return rolled if cyclic else torch.where((place >= 0) & (place < sites), rolled, 0.0)


def _phase_shift(values: Tensor, shifts: Tensor | float) -> Tensor:
    """Roll the last axis by shifting the phases of its Fourier transform."""
    sites = values.shape[-1]
    waves = torch.fft.rfftfreq(sites, device=values.device, dtype=values.dtype)
    angle = -2 * math.pi * shifts * waves
    spectrum = torch.fft.rfft(values) * torch.complex(angle.cos(), angle.sin())
    return torch.fft.irfft(spectrum, n=sites)


def chosen(by_axis: Sequence[Tensor], axis: Tensor, sites: int) -> Tensor:
    """Return the values of each capsule for its own axis: (…, capsules, *shape).

    Args:
        by_axis: values (…, capsules, *shape) for every axis.
        axis: index of the axis of each capsule, (…, capsules).
        sites: number of axes of a capsule.
    """
    selected = by_axis[0]
    index = axis.to(selected.device).reshape(*axis.shape, *(1,) * sites)
    for n, values in enumerate(by_axis[1:], 1):
        selected = torch.where(index == n, values, selected)
    return selected
