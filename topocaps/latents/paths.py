"""Paths that a capsule may follow, and the rolls of capsules along them."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from topocaps.errors import BadInput
from topocaps.latents.rolling import roll_each

NEAR = 1e-4  # sites: shifts closer than this to a whole number are whole


class Paths(nn.Module):
    """Paths of a capsule along its axes, and the rolls of capsules of one shape.

    A path has one velocity for all frames, or one for each frame.

    On rings, a roll by a whole number of sites is exact. A roll by a fraction of a site shifts the
    phases of the Fourier transform of a code: on an odd number of sites, such rolls compose and
    have inverses. Precisions are interpolated linearly instead, which keeps them positive.

    Capsules with open ends roll by whole numbers of sites. Values that leave over an end are lost,
    and zeros enter at the other end.

    Args:
        velocities: sites per frame, (paths, axes) or (paths, axes, frames). The n-th frame's
            velocity leads from frame n to frame n + 1, and the last one also to all later frames.
        shape: sites of a capsule along each axis.
        cyclic: whether capsules are rings; otherwise they have open ends.

    >>> paths = Paths(torch.tensor([[1.0], [-2.0]]), shape=(5,))
    >>> shifts = paths.shifts(torch.tensor([1]), steps=2)  # two frames along path 1
    >>> shifts
    tensor([[-4.]])
    >>> paths.roll(torch.tensor([[1.0, 0.0, 0.0, 0.0, 0.0]]), shifts)
    tensor([[0., 1., 0., 0., 0.]])
    """

    velocities: Tensor  #: (paths, axes, frames), in sites per frame

    def __init__(self, velocities: Tensor, shape: tuple[int, ...], cyclic: bool = True) -> None:
        super().__init__()
        self.shape, self.cyclic = tuple(shape), cyclic
        velocities = velocities.reshape(*velocities.shape[:2], -1)
        by_axis = velocities.movedim(1, 0).flatten(1)
        fractional = (by_axis - by_axis.round()).abs() > NEAR
        #: for each axis, whether any path moves along it
        self.moves = tuple((by_axis != 0).any(1).tolist())
        #: for each axis, whether any path moves along it by fractions of a site
        self.fractional = tuple(fractional.any(1).tolist())
        for axis, sites in enumerate(self.shape):
            if self.fractional[axis] and cyclic and sites % 2 == 0:
                raise BadInput(
                    f"fractional velocities need an odd number of sites, and axis {axis} has "
                    f"{sites}: rolls by fractions compose on odd numbers only"
                )
            if not cyclic:
                _check_open(by_axis[axis], self.fractional[axis], sites)
        self.register_buffer(
            "velocities", velocities.to(torch.get_default_dtype()), persistent=False
        )

    def __len__(self) -> int:
        return self.velocities.shape[-3]

    def shifts(self, path: Tensor, steps: int | Tensor) -> Tensor:
        """Return by how many sites capsules roll in ``steps`` frames along paths: (…, axes).

        Args:
            path: indices of paths.
            steps: a whole number of frames, or an integer tensor of them that broadcasts with
                ``path``. Negative numbers lead to earlier frames.
        """
        steps = torch.as_tensor(steps, device=path.device)
        if steps.is_floating_point():
            raise BadInput("steps must be a whole number of frames, or an integer tensor of them")
        velocity = self.velocities[path]  # … axes frames
        shifts = velocity[..., 0] * steps[..., None]
        for frame in range(1, velocity.shape[-1]):  # a change affects only the frames after it
            change = velocity[..., frame] - velocity[..., frame - 1]
            shifts = shifts + change * (steps - frame).clamp(min=0)[..., None]
        near = shifts.round()
        return torch.where((shifts - near).abs() < NEAR, near, shifts)

    def roll(self, code: Tensor, shifts: Tensor) -> Tensor:
        """Return codes rolled by these numbers of sites: (…, capsules, *shape).

        Args:
            code: (…, capsules, *shape).
            shifts: (…, capsules, axes), which broadcasts with the first axes of ``code``.
        """
        return self._roll(code, shifts, fourier=True)

    def roll_precision(self, precision: Tensor, shifts: Tensor) -> Tensor:
        """Return non-negative numbers rolled as in ``roll``.

        The result is non-negative. On rings, the sum over the sites of a capsule does not change.
        """
        return self._roll(precision, shifts, fourier=False)

    def _roll(self, values: Tensor, shifts: Tensor, fourier: bool) -> Tensor:
        axes = len(self.shape)
        shifts = shifts.reshape(*shifts.shape[:-1], *(1,) * axes, axes)
        values = values.expand(torch.broadcast_shapes(values.shape, shifts.shape[:-1]))
        for axis in range(axes):
            if self.moves[axis]:
                values = roll_each(
                    values,
                    shifts[..., axis].to(values.dtype),
                    axis - axes,
                    fractional=self.fractional[axis],
                    fourier=fourier,
                    cyclic=self.cyclic,
                )
        return values

    def first_alike(self) -> Tensor:
        """Return, for each path, the index of the first path that rolls capsules as it does.

        On rings, velocities that differ by a whole turn roll capsules alike.
        """
        sites = torch.tensor(self.shape, dtype=self.velocities.dtype)[:, None]
        first = []
        for velocity in self.velocities:
            difference = self.velocities - velocity
            if self.cyclic:
                difference = difference - sites * (difference / sites).round()
            first.append((difference.abs() < NEAR).flatten(1).all(1).int().argmax())
        return torch.stack(first)


def _check_open(velocities: Tensor, fractional: bool, sites: int) -> None:
    """Raise `BadInput` for velocities that capsules with open ends cannot have."""
    if fractional:
        raise BadInput("fractional velocities need capsules that are rings: cyclic=True")
    fastest = velocities.abs().max().item()
    if fastest >= sites:
        raise BadInput(
            f"a velocity of {fastest:g} empties capsules with open ends of {sites} sites in one "
            f"frame: it must be below {sites}"
        )
