"""Student-t variables made of Gaussians (Eq. 2): products of them, and topographic ones."""

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

#: Energies below this count as this, so that t and its gradient stay finite where every u is 0.
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

    The paper has no ``epsilon``; its released code adds 1e-6 to every energy.

    Where latents move along several axes, roots of one energy an axis are added (Eq. 21), unless it
    is said along which ``axis``; of axes that are kept apart it has to be.

    >>> from topocaps import Topography
    >>> z, u = torch.ones(1, 3, 1, 4), torch.full((1, 3, 1, 4), 2.0)
    >>> studentize(z, u, Topography(1, (4,), window=3))[0, 0, 0, 0]  # 1 over the root of 3 * 4
    tensor(0.2887)
    """
    smallest = max(SMALLEST_ENERGY, torch.finfo(u.dtype).tiny)
    if axis is None and topography.apart:
        raise BadInput("axes that are kept apart make a t each: say along which axis")
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
    """Return t for every axis that a whole sequence may move along: one, unless kept apart."""
    axes = topography.axes if topography.apart else (None,)
    return [studentize(z, u, topography, mu, axis, epsilon) for axis in axes]


class TopographicStudentT(Distribution):
    r"""The prior of Eq. 6: :math:`T = (Z - \mu) / \sqrt{W U^2 + \epsilon}`, Z and U Gaussian.

    A draw has the shape (frames, capsules, \*shape). With :math:`\mu = 0` a
    :math:`\sqrt{\nu}\, T` is Student-t with :math:`\nu` = ``topography.degrees_of_freedom`` where
    its row of W is of zeros and ones and it has one energy; so are all in closed time at whole
    velocities. Where squares count in part, or more than once (a frame that stands for those
    before it), or roots of energies are added (Eq. 21), it is near one. Of axes that are kept
    apart, each draw moves along one. Neighbours are
    uncorrelated, their energies are not. The joint density has no closed form.

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
        which = torch.randint(len(per_axis), (*sample_shape, 1, 1), device=self.mu.device)
        return chosen(per_axis, which, len(self.topography.shape))

    @property
    def mean(self) -> Tensor:
        r""":math:`-\mu\, E[1 / \chi_\nu]`; undefined for one degree of freedom.

        Where W is not of zeros and ones, or t has an energy an axis, that is near the mean. The
        mean and the variance are those without ``epsilon``, which lowers both by a little.
        """
        each = [_inverse_chi(nu) / axes for nu, axes in self._squares]
        return (-self.mu * (sum(each) / len(each))).expand(self.event_shape)

    @property
    def variance(self) -> Tensor:
        r""":math:`(1 + \mu^2) / (\nu - 2) - \mathrm{mean}^2`; infinite for two squares.

        Exact where the mean is. NaN where roots of several energies are added (Eq. 21): there no
        closed form is known.
        """
        if any(energies > 1 for _, energies in self._squares):
            return self.mean.new_full(self.event_shape, math.nan)
        least = min(nu for nu, _ in self._squares)
        if least <= 2:
            return self.mean.new_full(self.event_shape, math.nan if least == 1 else math.inf)
        each = [1 / (nu - 2) for nu, _ in self._squares]
        return (1 + self.mu.square()) * (sum(each) / len(each)) - self.mean.square()

    @property
    def _squares(self) -> list[tuple[int, int]]:
        """In an energy, and how many energies t has, for every way that a sequence may go."""
        t = self.topography
        if t.apart:
            return [(t.squares(axis), 1) for axis in t.axes]
        squares = [t.squares(axis) for axis in t.axes]
        return [(round(sum(squares) / len(squares)), len(squares))]


def _inverse_chi(nu: int) -> float:
    """The mean of 1 / chi."""
    if nu < 2:
        return math.nan
    return math.exp(math.lgamma((nu - 1) / 2) - math.lgamma(nu / 2)) / math.sqrt(2)


class ProductOfStudentT(Distribution):
    r"""Independent Student-t variables (Eq. 3): every Z with :math:`\nu` squares of its own.

    .. math:: T = Z / \sqrt{\tfrac{1}{\nu} \sum_{i=1}^{\nu} U_i^2}

    >>> ProductOfStudentT(nu=4, shape=(3,)).variance  # nu / (nu - 2)
    tensor([2., 2., 2.])
    """

    citations = (KELLER_2021,)
    arg_constraints = {}  # noqa: RUF012
    support = constraints.real
    has_rsample = True

    def __init__(self, nu: int, shape: tuple[int, ...] = ()) -> None:
        if not isinstance(nu, int) or nu < 1:
            raise BadInput(f"nu counts squares: a whole number of at least 1, not {nu!r}")
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
