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
        fractional: whether shifts may be no whole numbers.
        fourier: shift the phases of the Fourier transform instead of interpolating linearly.
        cyclic: roll around a ring. Otherwise what leaves over an end is lost, and 0 enters; then
            shifts must be whole numbers.

    >>> roll_each(torch.eye(3)[:2], torch.tensor([[1.0], [0.5]]), -1, fractional=True)
    tensor([[0.0000, 1.0000, 0.0000],
            [0.0000, 0.5000, 0.5000]])
    >>> roll_each(torch.ones(2, 3), torch.tensor([[1], [-2]]), -1, fractional=False, cyclic=False)
    tensor([[0., 1., 1.],
            [1., 0., 0.]])
    """
    sites = values.shape[dim]
    below = shifts.floor()
    shape = [1] * values.ndim
    shape[dim] = sites
    site = torch.arange(sites, device=values.device).reshape(shape)
    place = site - below.long()
    index = place.remainder(sites).expand(values.shape)
    rolled = values.gather(dim, index)
    if not cyclic:
        return torch.where((place >= 0) & (place < sites), rolled, 0.0)
    if not fractional:
        return rolled
    part = shifts - below
    if fourier:
        return torch.where(part == 0, rolled, _phase_shift(values, shifts, dim))
    return (1 - part) * rolled + part * values.gather(dim, (index - 1).remainder(sites))


def _phase_shift(values: Tensor, shifts: Tensor, dim: int) -> Tensor:
    sites = values.shape[dim]
    waves = torch.fft.rfftfreq(sites, device=values.device, dtype=values.dtype)
    angle = -2 * math.pi * shifts.movedim(dim, -1) * waves
    spectrum = torch.fft.rfft(values.movedim(dim, -1)) * torch.complex(angle.cos(), angle.sin())
    return torch.fft.irfft(spectrum, n=sites).movedim(-1, dim)


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
