"""Paths that a capsule may take, and the rolls of capsules along them."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from topocaps.errors import BadInput
from topocaps.latents.rolling import roll_each

NEAR = 1e-4  # sites: shifts closer than this to a whole number are whole


class Paths(nn.Module):
    """Paths of a capsule along its axes, and the rolls of capsules of one shape.

    A path has one velocity for all frames, or one for each frame.

    On rings, codes are rolled exactly by a whole number of sites, and by Fourier phases otherwise:
    on an odd number of sites, such rolls compose and have inverses. Precisions are interpolated
    linearly between whole rolls, which keeps them positive.

    Capsules with open ends roll by whole numbers of sites. What leaves over an end is lost, and 0
    enters at the other end.

    Args:
        velocities: velocities, in sites a frame, (paths, axes) or (paths, axes, frames). The n-th
            leads from frame n to frame n + 1, and the last one also to all later frames.
        shape: sites of a capsule along each axis.
        cyclic: whether capsules are rings; otherwise they have open ends.

    >>> paths = Paths(torch.tensor([[1.0], [-2.0]]), shape=(5,))
    >>> shifts = paths.shifts(torch.tensor([1]), steps=2)  # two frames along path 1
    >>> shifts
    tensor([[-4.]])
    >>> paths.roll(torch.tensor([[1.0, 0.0, 0.0, 0.0, 0.0]]), shifts)
    tensor([[0., 1., 0., 0., 0.]])
    """

    velocities: Tensor  #: (paths, axes, frames), in sites a frame

    def __init__(self, velocities: Tensor, shape: tuple[int, ...], cyclic: bool = True) -> None:
        super().__init__()
        self.shape, self.cyclic = tuple(shape), cyclic
        velocities = velocities.reshape(*velocities.shape[:2], -1)
        by_axis = velocities.movedim(1, 0).flatten(1)
        fractional = (by_axis - by_axis.round()).abs() > NEAR
        self.moves = tuple((by_axis != 0).any(1).tolist())  #: for each axis
        self.fractional = tuple(fractional.any(1).tolist())  #: for each axis
        for axis, sites in enumerate(self.shape):
            if self.fractional[axis] and cyclic and sites % 2 == 0:
                raise BadInput(
                    f"fractional velocities need an odd number of sites, and axis {axis} has "
                    f"{sites}: on an even number such rolls do not compose"
                )
            if not cyclic:
                _check_open(by_axis[axis], self.fractional[axis], sites)
        self.register_buffer(
            "velocities", velocities.to(torch.get_default_dtype()), persistent=False
        )

    def __len__(self) -> int:
        return self.velocities.shape[-3]

    def shifts(self, path: Tensor, steps: int | Tensor) -> Tensor:
        """Return how far paths lead in ``steps`` frames, in sites: (…, axes).

        Args:
            path: indices of paths.
            steps: a whole number of frames, or an integer tensor of them that broadcasts with
                ``path``; negative is earlier.
        """
        steps = torch.as_tensor(steps, device=path.device)
        if steps.is_floating_point():
            raise BadInput("steps must be a whole number of frames, or an integer tensor of them")
        velocity = self.velocities[path]  # … axes frames
        shifts = velocity[..., 0] * steps[..., None]
        for frame in range(1, velocity.shape[-1]):  # what a change adds to the frames after it
            change = velocity[..., frame] - velocity[..., frame - 1]
            shifts = shifts + change * (steps - frame).clamp(min=0)[..., None]
        near = shifts.round()
        return torch.where((shifts - near).abs() < NEAR, near, shifts)

    def roll(self, code: Tensor, shifts: Tensor) -> Tensor:
        """Return codes rolled by these shifts: (…, capsules, *shape).

        Args:
            code: (…, capsules, *shape).
            shifts: (…, capsules, axes), which broadcasts with the first axes of ``code``.
        """
        return self._roll(code, shifts, fourier=True)

    def roll_precision(self, precision: Tensor, shifts: Tensor) -> Tensor:
        """Return non-negative numbers rolled by these shifts, as in ``roll``.

        The result is non-negative. On rings it keeps the sum over the sites of a capsule.
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
        """Return, for each path, the first one that agrees with it at every whole frame."""
        rings = torch.tensor(self.shape, dtype=self.velocities.dtype)[:, None]
        same = []
        for velocity in self.velocities:
            apart = self.velocities - velocity
            if self.cyclic:
                apart = apart - rings * (apart / rings).round()
            same.append((apart.abs() < NEAR).flatten(1).all(1).int().argmax())
        return torch.stack(same)


def _check_open(velocities: Tensor, fractional: bool, sites: int) -> None:
    """Raise `BadInput` for velocities that capsules with open ends cannot have."""
    if fractional:
        raise BadInput("fractional velocities need capsules that are rings: cyclic=True")
    fastest = velocities.abs().max().item()
    if fastest >= sites:
        raise BadInput(
            f"a velocity of {fastest:g} empties capsules with open ends of {sites} sites in one "
            "frame: it must be slower"
        )
