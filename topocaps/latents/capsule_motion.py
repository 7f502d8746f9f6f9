"""The candidate motions of the capsules of a model, and the rolls of codes by them."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from topocaps.errors import BadInput
from topocaps.latents.motion import Motion, check_motion
from topocaps.latents.paths import Paths

NORMALISED = 1e-4  # largest magnitude of the log of a sum of probabilities that counts as 1


class CapsuleMotion(nn.Module):
    """The candidates of a `Motion` for capsules of one shape, and the rolls along them.

    Every candidate gives each capsule one of the `Paths`, and candidates share paths: two groups of
    capsules that have n velocities each have n² candidates and n paths.

    Args:
        motion: the candidate motions and their prior.
        capsules: number of capsules.
        shape: sites of a capsule along each axis.
        cyclic: whether capsules are rings; otherwise they have open ends.

    >>> from topocaps.latents.motion import Known
    >>> moves = CapsuleMotion(Known(1), capsules=1, shape=(5,))
    >>> code = torch.tensor([[1.0, 0.0, 0.0, 0.0, 0.0]])
    >>> moves.roll(code, candidate=0, steps=2)
    tensor([[0., 0., 1., 0., 0.]])
    """

    path_of: Tensor  #: index of the path of every capsule, (candidates, capsules)
    log_prior: Tensor  #: (candidates,)

    def __init__(
        self, motion: Motion, capsules: int, shape: tuple[int, ...], cyclic: bool = True
    ) -> None:
        super().__init__()
        check_motion(motion)
        candidates, log_prior = motion.candidates(capsules, len(shape)), motion.log_prior()
        _check_candidates(candidates, capsules, len(shape))
        _check_prior(log_prior, len(candidates))
        velocities, path_of = candidates.flatten(0, 1).unique(dim=0, return_inverse=True)
        self.paths = Paths(velocities, shape, cyclic)
        path_of = path_of.unflatten(0, candidates.shape[:2])
        _check_different(self.paths.first_alike()[path_of], tuple(shape), cyclic)
        self.register_buffer("path_of", path_of, persistent=False)
        self.register_buffer("log_prior", log_prior.to(torch.get_default_dtype()), persistent=False)

    def __len__(self) -> int:
        return self.log_prior.shape[-1]

    @property
    def all_candidates(self) -> Tensor:
        """Indices of all candidates, (candidates, 1)."""
        return torch.arange(len(self), device=self.log_prior.device)[:, None]

    @property
    def velocities(self) -> Tensor:
        """Velocities of every candidate, in sites per frame: (candidates, capsules, axes).

        Velocities that change from frame to frame are (candidates, capsules, axes, frames).
        """
        velocities = self.paths.velocities[self.path_of]
        return velocities.squeeze(-1) if velocities.shape[-1] == 1 else velocities

    @property
    def groups(self) -> list[Tensor]:
        """Indices of the capsules of every group that moves alike under all candidates.

        Groups are in the order of their first capsules.
        """
        columns = self.path_of.mT.tolist()
        groups: dict[tuple[int, ...], list[int]] = {}
        for capsule, paths in enumerate(columns):
            groups.setdefault(tuple(paths), []).append(capsule)
        return [torch.tensor(capsules) for capsules in groups.values()]

    def shifts(self, candidate: int | Tensor, steps: int | Tensor) -> Tensor:
        """Return by how many sites capsules roll in ``steps`` frames: (…, capsules, axes).

        Args:
            candidate: index of a candidate, or a tensor of them that broadcasts with ``steps``.
            steps: a whole number of frames, or an integer tensor of them. Negative numbers lead to
                earlier frames.
        """
        steps = torch.as_tensor(steps, device=self.path_of.device)
        return self.paths.shifts(self.path_of[candidate], steps[..., None])

    def roll(self, code: Tensor, candidate: int | Tensor, steps: int | Tensor) -> Tensor:
        """Return codes rolled to the frames ``steps`` later: (…, capsules, *shape).

        Args:
            code: (…, capsules, *shape); the first axes broadcast with candidates and steps.
            candidate: as in ``shifts``.
            steps: as in ``shifts``.
        """
        return self.paths.roll(code, self.shifts(candidate, steps))


def _check_candidates(velocities: Tensor, capsules: int, axes: int) -> None:
    """Raise `BadInput` unless a motion returned finite velocities of the right shape."""
    shape = velocities.shape
    if velocities.ndim not in (3, 4) or shape[1:3] != (capsules, axes) or not velocities.numel():
        raise BadInput(
            f"candidates must have the shape (candidates, capsules, axes) = (…, {capsules}, "
            f"{axes}), or frames after these, not {tuple(shape)}"
        )
    if not velocities.isfinite().all():
        infinite = velocities[~velocities.isfinite()][0].item()
        raise BadInput(f"velocities of candidate motions must be finite, not {infinite}")


def _check_prior(log_prior: Tensor, candidates: int) -> None:
    """Raise `BadInput` unless these are the log-probabilities of a distribution over candidates.

    With other numbers, the bounds of models would not bound log p(x).
    """
    if log_prior.shape != (candidates,):
        raise BadInput(
            f"log_prior must have the shape (candidates,) = ({candidates},), not "
            f"{tuple(log_prior.shape)}"
        )
    log_sum = log_prior.double().logsumexp(0).item()
    if not abs(log_sum) < NORMALISED:
        raise BadInput(
            f"the probabilities of candidate motions must sum to 1: the log of their sum is "
            f"{log_sum:.3g}, so subtract log_prior.logsumexp(0) from log_prior"
        )


def _check_different(path_of: Tensor, shape: tuple[int, ...], cyclic: bool) -> None:
    """Raise `BadInput` if two candidates have the same path for every capsule.

    Args:
        path_of: index of the path of every capsule, equal for equal paths: (candidates, capsules).
        shape: sites of a capsule.
        cyclic: whether capsules are rings.
    """
    first: dict[tuple[int, ...], int] = {}
    for candidate, paths in enumerate(map(tuple, path_of.tolist())):
        same = first.setdefault(paths, candidate)
        if same != candidate:
            raise BadInput(
                f"candidate motions {same} and {candidate} are the same on "
                f"{'rings' if cyclic else 'capsules'} of {shape} sites: list each motion once"
            )
