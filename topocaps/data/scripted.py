"""Sequences that are made of single images: each in a random pose, of which some factors move."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import replace
from typing import Self

import torch
from torch import Tensor

from topocaps.data.sequences import SequenceSet
from topocaps.errors import BadInput


class ScriptedSet(SequenceSet):
    """Images in random poses; what moves runs through its values and comes round.

    A pose is some numbers, each one of ``levels``. A script is (…, time, 1 + pose): the image, and
    the pose of every frame. Subclasses are dataclasses that have ``scripts`` among their fields.
    """

    scripts: Tensor | None  #: of a fixed set, (sequences, time, …); else every image is in one

    @property
    @abstractmethod
    def levels(self) -> int:
        """Values of every number of a pose."""

    @property
    def groups(self) -> tuple[tuple[int, ...], ...]:
        """Numbers of a pose that move together; a draw chooses a group. By default nothing moves.

        In a ``balanced`` set, every group moves equally often.
        """
        return ()

    @property
    def pose_size(self) -> int:
        """Numbers of a pose: one for every factor."""
        return len(self.names)

    @property
    def numbers(self) -> int:
        """Of the image, of the group where there are groups, and of the pose."""
        return 1 + bool(self.groups) + self.pose_size

    @property
    def fewest(self) -> int:
        return len(self) // max(1, len(self.groups))

    def __len__(self) -> int:
        return len(self.images if self.scripts is None else self.scripts)

    def choose(self, uniform: Tensor) -> Tensor:
        uniform = uniform.double()
        if self.scripts is not None:  # a fixed set: one of its sequences
            return self.scripts[(uniform[..., 0] * len(self.scripts)).long()]
        image = (uniform[..., 0] * len(self.images)).long()
        group = (uniform[..., 1] * len(self.groups)).long()
        pose = uniform[..., self.numbers - self.pose_size :]
        return self._script(image, group, (pose * self.levels).long())

    def fixed(self) -> Tensor:
        return self._one_each(len(self.images), seed=0) if self.scripts is None else self.scripts

    def balanced(self, each: int | None, seed: int) -> Self:
        """Different images, all of them with None; what moves takes turns."""
        if self.scripts is not None:
            raise BadInput("this set is fixed already: balance the one it was made of")
        count = len(self.images)
        if each is not None:
            count = min(each * max(1, len(self.groups)), count)
        scripts = self._one_each(count, seed).to(self.images.device)
        return replace(self, scripts=scripts)  # type: ignore[call-arg]  # a field of subclasses

    def _one_each(self, count: int, seed: int) -> Tensor:
        """Scripts of ``count`` different images in random poses, sorted by what moves."""
        generator = torch.Generator().manual_seed(seed)
        image = torch.randperm(len(self.images), generator=generator)[:count]
        group = (torch.arange(count) % max(1, len(self.groups))).sort().values
        pose = torch.randint(self.levels, (count, self.pose_size), generator=generator)
        return self._script(image, group, pose)

    def _script(self, image: Tensor, group: Tensor, pose: Tensor) -> Tensor:
        """The image and the pose of every frame, from those of the first: (…, time, 1 + pose)."""
        time = torch.arange(self.frames, device=image.device)[:, None]
        moves = [
            sum((group == n for n, some in enumerate(self.groups) if column in some), 0 * group)
            for column in range(self.pose_size)
        ]
        pose = (pose[..., None, :] + time * torch.stack(moves, -1)[..., None, :]) % self.levels
        return torch.cat([image[..., None, None].expand(*pose.shape[:-1], 1), pose], -1)
