"""Sequences made from single images in random poses, in which some factors change."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import replace
from typing import Self

import torch
from torch import Tensor

from topocaps.data.sequences import SequenceSet
from topocaps.errors import BadInput


class ScriptedSet(SequenceSet):
    """Images in random poses. A moving factor goes through all levels, then starts again.

    A pose is ``pose_size`` integers below ``levels``. A script is (…, time, 1 + pose_size): the
    index of the image, and the pose of every frame. Subclasses are dataclasses with a field
    ``scripts``.
    """

    #: (sequences, time, …) of a fixed set; None if sequences are drawn at random from all images
    scripts: Tensor | None

    @property
    @abstractmethod
    def levels(self) -> int:
        """The number of values of each factor."""

    @property
    def groups(self) -> tuple[tuple[int, ...], ...]:
        """Groups of factors that move together. A draw chooses one; without groups none moves."""
        return ()

    @property
    def speeds(self) -> tuple[int, ...]:
        """Speeds of factors, in levels per frame. A draw chooses one for each factor."""
        return (1,)

    @property
    def pose_size(self) -> int:
        """The number of integers in a pose; by default one per factor."""
        return len(self.names)

    @property
    def numbers(self) -> int:
        """The random numbers that choose a sequence.

        One is for the image, one for the group if there are groups, one for each integer of the
        pose, and another one for each integer if there are several speeds.
        """
        per_integer = 1 + (len(self.speeds) > 1)
        return 1 + bool(self.groups) + per_integer * self.pose_size

    def __len__(self) -> int:
        return len(self.images if self.scripts is None else self.scripts)

    def choose(self, uniform: Tensor) -> Tensor:
        uniform = uniform.double()
        if self.scripts is not None:
            return self.scripts[(uniform[..., 0] * len(self.scripts)).long()]
        image = (uniform[..., 0] * len(self.images)).long()
        group = (uniform[..., 1] * len(self.groups)).long()
        poses = uniform[..., 1 + bool(self.groups) : self.numbers]
        pose = (poses[..., : self.pose_size] * self.levels).long()
        return self._script(image, group, pose, self._speed(poses[..., self.pose_size :]))

    def fixed(self) -> Tensor:
        return self._one_each(len(self.images), seed=0) if self.scripts is None else self.scripts

    def balanced(self, each: int | None, seed: int) -> Self:
        """Return a fixed set of different images, with equally many sequences of every group.

        Args:
            each: sequences per group; None takes all images.
            seed: seed of the images and of their poses.
        """
        if self.scripts is not None:
            raise BadInput("this set is fixed already: balance the set that it was made from")
        count = len(self.images)
        if each is not None:
            count = min(each * max(1, len(self.groups)), count)
        scripts = self._one_each(count, seed).to(self.images.device)
        return replace(self, scripts=scripts)  # type: ignore[call-arg]  # a field of subclasses

    def _one_each(self, count: int, seed: int) -> Tensor:
        """Return scripts of ``count`` different images in random poses, sorted by group."""
        generator = torch.Generator().manual_seed(seed)
        image = torch.randperm(len(self.images), generator=generator)[:count]
        group = (torch.arange(count) % max(1, len(self.groups))).sort().values
        pose = torch.randint(self.levels, (count, self.pose_size), generator=generator)
        uniform = torch.rand(count, self.pose_size, generator=generator)
        return self._script(image, group, pose, self._speed(uniform))

    def _speed(self, uniform: Tensor) -> Tensor | int:
        """Return the speeds that uniform numbers choose, or the only speed."""
        if len(self.speeds) == 1:
            return self.speeds[0]
        index = (uniform * len(self.speeds)).long()
        # CUDA graphs cannot copy a tensor of speeds from the host
        return torch.stack([speed * (index == n) for n, speed in enumerate(self.speeds)]).sum(0)

    def _script(self, image: Tensor, group: Tensor, pose: Tensor, speed: Tensor | int) -> Tensor:
        """Return the script (…, time, 1 + pose_size) that starts at a pose."""
        time = torch.arange(self.frames, device=image.device)[:, None]
        moves = [
            sum((group == n for n, moving in enumerate(self.groups) if column in moving), 0 * group)
            for column in range(self.pose_size)
        ]
        steps = torch.stack(moves, -1) * speed  # levels per frame, … pose_size
        pose = (pose[..., None, :] + time * steps[..., None, :]) % self.levels
        return torch.cat([image[..., None, None].expand(*pose.shape[:-1], 1), pose], -1)
