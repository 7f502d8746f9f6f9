"""References in float64, and comparison to nine digits: a factor of 1.001 fails."""

import math

import torch
from scipy import integrate, stats

DOUBLE = {"dtype": torch.float64}
NINE_DIGITS = {"rtol": 1e-9, "atol": 1e-9}


def normal(*shape, generator=None):
    return torch.randn(*shape, **DOUBLE, generator=generator)


def assert_same(found, wanted, message=None):
    torch.testing.assert_close(found, wanted, **NINE_DIGITS, msg=message)


def roots_of_energies(u, topography, axis=None):
    """Roots of W u² by the dense matrix, (…, time, capsules, *shape); summed over axes (Eq. 21)."""
    frames = u.shape[-len(topography.shape) - 2]
    latents = 2 + len(topography.shape)
    each = [
        (u.square().flatten(-latents) @ topography.matrix(frames, one, torch.float64).mT).sqrt()
        for one in (topography.axes if axis is None else (axis,))
    ]
    return sum(each).unflatten(-1, (frames, topography.capsules, *topography.shape))


def inverse_moment(nu, power):
    """E[1 / chi^power] for nu squares, by quadrature."""
    return integrate.quad(
        lambda r: stats.chi.pdf(r, nu) / r**power, 0, math.inf, epsabs=1e-13, epsrel=1e-12
    )[0]
