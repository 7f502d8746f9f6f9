"""Student-t variables made of Gaussian ones (Eq. 2), independent or topographic."""

from __future__ import annotations

import math

import torch
from torch import Size, Tensor
from torch.distributions import Distribution, StudentT, constraints

from topocaps.errors import BadInput
from topocaps.latents.interface import TopographyLike
from topocaps.latents.rolling import chosen
from topocaps.latents.topography import KELLER_2021
from topocaps.references import cites

#: Minimum of an energy, so that t and its gradient are finite where every u is 0.
SMALLEST_ENERGY = 1e-12


@cites(KELLER_2021)
def studentize(
    z: Tensor,
    u: Tensor,
    topography: TopographyLike,
    mu: float | Tensor = 0.0,
    axis: int | None = None,
    epsilon: float | Tensor = 0.0,
) -> Tensor:
    r""":math:`T = (Z - \mu) / \sqrt{W U^2 + \epsilon}` (Eq. 6), (batch, time, capsules, \*shape).

    Capsules that move along several axes have one energy per axis. T is then divided by the sum of
    the roots of these energies (Eq. 21), unless an ``axis`` is given.

    Args:
        z: Z, (batch, time, capsules, *shape).
        u: U, (batch, time, capsules, *u_shape).
        topography: W.
        mu: μ, a number or a tensor that broadcasts with z.
        axis: the axis whose energy divides T. Topographies with ``apart`` need it.
        epsilon: added to every energy. The paper has none; its released code adds 1e-6.

    >>> from topocaps import Topography
    >>> z, u = torch.ones(1, 3, 1, 4), torch.full((1, 3, 1, 4), 2.0)
    >>> studentize(z, u, Topography(1, (4,), window=3))[0, 0, 0, 0]  # 1 over the root of 3 * 4
    tensor(0.2887)
    """
    smallest = max(SMALLEST_ENERGY, torch.finfo(u.dtype).tiny)
    if axis is None and topography.apart:
        raise BadInput("with apart=True every axis has its own t: say along which axis (axis=0)")
    axes = topography.axes if axis is None else (axis,)
    energies = [(topography.pool(u.square(), a) + epsilon).clamp_min(smallest) for a in axes]
    if len(energies) == 1:
        return (z - mu) * energies[0].rsqrt()
    return (z - mu) / torch.stack([energy.sqrt() for energy in energies]).sum(0)


def studentize_per_axis(
    z: Tensor,
    u: Tensor,
    topography: TopographyLike,
    mu: float | Tensor = 0.0,
    epsilon: float | Tensor = 0.0,
) -> list[Tensor]:
    """Return t for every axis that a sequence may move along: one t without ``apart``."""
    axes = topography.axes if topography.apart else (None,)
    return [studentize(z, u, topography, mu, axis, epsilon) for axis in axes]


class TopographicStudentT(Distribution):
    r"""The prior of Eq. 6: :math:`T = (Z - \mu) / \sqrt{W U^2 + \epsilon}`, Z and U Gaussian.

    A draw has the shape (frames, capsules, \*shape). Neighbours are uncorrelated, but their
    energies are correlated. The joint density has no closed form. If the topography keeps axes
    apart, each draw moves along one of them.

    With :math:`\mu = 0`, :math:`\sqrt{\nu}\, T` is Student-t with :math:`\nu` =
    ``topography.degrees_of_freedom`` if T has one energy and its row of W consists of zeros and
    ones. In closed time at whole velocities, all rows do. The distribution is approximately
    Student-t if squares have fractional weights, if they count more than once (frames that repeat
    outside the sequence), or if T has several energies (Eq. 21).

    Args:
        topography: W.
        frames: number of frames of a sequence.
        mu: μ of Eq. 6.
        epsilon: added to every energy. The paper has none; its released code adds 1e-6.

    >>> from topocaps import Topography
    >>> prior = TopographicStudentT(Topography(2, (5,), window=3), frames=6)
    >>> prior.sample((10,)).shape
    torch.Size([10, 6, 2, 5])
    """

    citations = (KELLER_2021,)
    arg_constraints = {}  # noqa: RUF012 (torch's convention)
    has_rsample = True

    def __init__(
        self,
        topography: TopographyLike,
        frames: int,
        mu: float | Tensor = 0.0,
        epsilon: float | Tensor = 0.0,
    ) -> None:
        topography.check(frames)
        self.topography, self.frames, self.epsilon = topography, frames, epsilon
        self.mu = mu if isinstance(mu, Tensor) else torch.tensor(float(mu))
        super().__init__(
            event_shape=Size((frames, topography.capsules, *topography.shape)), validate_args=False
        )

    @property
    def support(self) -> constraints.Constraint:
        return constraints.independent(constraints.real, len(self.event_shape))

    def rsample(self, sample_shape: Size | tuple[int, ...] = ()) -> Tensor:  # type: ignore[override]
        frames, capsules = self.event_shape[:2]
        z, u = (
            torch.randn(
                (*sample_shape, frames, capsules, *shape),
                dtype=self.mu.dtype,
                device=self.mu.device,
            )
            for shape in (self.topography.shape, self.topography.u_shape)
        )
        per_axis = studentize_per_axis(z, u, self.topography, self.mu, self.epsilon)
        if len(per_axis) == 1:
            return per_axis[0]
        axis = torch.randint(len(per_axis), (*sample_shape, 1, 1), device=self.mu.device)
        return chosen(per_axis, axis, len(self.topography.shape))

    @property
    def mean(self) -> Tensor:
        r""":math:`-\mu\, E[1 / \chi_\nu]`; NaN for one degree of freedom, where there is no mean.

        It is an approximation if W has other weights than 0 and 1, or if T has several energies.
        The mean and the variance ignore ``epsilon``, which lowers both slightly.
        """
        means = [_inverse_chi(nu) / energies for nu, energies in self._squares]
        return (-self.mu * (sum(means) / len(means))).expand(self.event_shape)

    @property
    def variance(self) -> Tensor:
        r""":math:`(1 + \mu^2) / (\nu - 2) - \mathrm{mean}^2`; infinite for two squares.

        It is exact if the mean is. If T has several energies (Eq. 21), no closed form is known, and
        the result is NaN.
        """
        if any(energies > 1 for _, energies in self._squares):
            return self.mean.new_full(self.event_shape, math.nan)
        least = min(nu for nu, _ in self._squares)
        if least <= 2:
            return self.mean.new_full(self.event_shape, math.nan if least == 1 else math.inf)
        inverses = [1 / (nu - 2) for nu, _ in self._squares]
        return (1 + self.mu.square()) * (sum(inverses) / len(inverses)) - self.mean.square()

    @property
    def _squares(self) -> list[tuple[int, int]]:
        """Number of squares of an energy and of energies of T, for every axis to move along."""
        t = self.topography
        if t.apart:
            return [(t.squares(axis), 1) for axis in t.axes]
        squares = [t.squares(axis) for axis in t.axes]
        return [(round(sum(squares) / len(squares)), len(squares))]


def _inverse_chi(nu: int) -> float:
    """Return the mean of 1 / chi with ``nu`` degrees of freedom, or NaN if it has none."""
    if nu < 2:
        return math.nan
    return math.exp(math.lgamma((nu - 1) / 2) - math.lgamma(nu / 2)) / math.sqrt(2)


class ProductOfStudentT(Distribution):
    r"""Independent Student-t variables (Eq. 3): each is divided by the root of its own energy.

    .. math:: T = Z / \sqrt{\tfrac{1}{\nu} \sum_{i=1}^{\nu} U_i^2}

    Args:
        nu: degrees of freedom, which is the number of squares.
        shape: shape of a draw.

    >>> ProductOfStudentT(nu=4, shape=(3,)).variance  # nu / (nu - 2)
    tensor([2., 2., 2.])
    """

    citations = (KELLER_2021,)
    arg_constraints = {}  # noqa: RUF012
    support = constraints.real
    has_rsample = True

    def __init__(self, nu: int, shape: tuple[int, ...] = ()) -> None:
        if not isinstance(nu, int) or nu < 1:
            raise BadInput(f"nu must be a whole number of at least 1, not {nu!r}")
        self.nu = nu
        super().__init__(event_shape=Size(shape), validate_args=False)

    def rsample(self, sample_shape: Size | tuple[int, ...] = ()) -> Tensor:  # type: ignore[override]
        shape = self._extended_shape(Size(sample_shape))
        z, u = torch.randn(shape), torch.randn((self.nu, *shape))
        return z * u.square().mean(0).clamp_min(SMALLEST_ENERGY).rsqrt()

    def log_prob(self, value: Tensor) -> Tensor:
        nu = torch.tensor(self.nu, dtype=torch.result_type(value, 1.0))
        logs = StudentT(nu).log_prob(value)
        return logs.flatten(logs.ndim - len(self.event_shape)).sum(-1) if self.event_shape else logs

    @property
    def mean(self) -> Tensor:
        return StudentT(float(self.nu)).mean.expand(self.event_shape)

    @property
    def variance(self) -> Tensor:
        return StudentT(float(self.nu)).variance.expand(self.event_shape)
