"""What training will hold, said before it starts; a stack that does not fit is split."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from topocaps.data.sequences import SequenceSet
from topocaps.errors import BadInput
from topocaps.latents.stack import lattice
from topocaps.models.base import GenerativeModel
from topocaps.models.sequence import SequenceModel
from topocaps.training.settings import Training, for_each

USABLE = 0.9  # of what is free
_WORKING = 1.5  # what a step holds at once, over what it keeps for the way back


@dataclass(frozen=True)
class Plan:
    """Bytes that training holds."""

    weights: int  # with moments, gradients and copies
    activations: int
    data: int

    @property
    def total(self) -> int:
        return self.weights + self.activations + self.data

    def __str__(self) -> str:
        parts = f"weights and moments {_size(self.weights)}, activations {_size(self.activations)}"
        return f"{_size(self.total)} ({parts}, data {_size(self.data)})"


def plan(
    models: Sequence[GenerativeModel],
    sequences: SequenceSet,
    training: Training | Sequence[Training],
) -> Plan:
    """An upper estimate, from sizes alone; nothing is computed.

    A weight is held by its model, by a copy to begin again with, in the stack, as it was while a
    graph is captured, and has a gradient (or a copy in bf16), what its update works in, and
    moments; a gradient that is shortened is copied three times. A model's activations are what
    autograd would keep, found by a pass over tensors that have shapes and no values.
    """
    trainings = for_each(training, len(models))
    weights = [
        (6 + 3 * (one.clip is not None) + len(one.optimiser.MOMENTS))
        * sum(p.numel() * p.element_size() for p in m.parameters())
        for m, one in zip(models, trainings, strict=True)
    ]
    tensors = [value for value in vars(sequences).values() if isinstance(value, Tensor)]
    seen: dict[object, int] = {}
    for model in models:
        if (key := _kind(model)) not in seen:
            seen[key] = _activations(model, sequences, trainings[0].batch)
    activations = [seen[_kind(model)] for model in models]
    return Plan(
        weights=sum(weights),
        activations=int(_WORKING * sum(activations)),
        data=sum(t.numel() * t.element_size() for t in tensors),
    )


def split(
    models: Sequence[GenerativeModel],
    sequences: SequenceSet,
    training: Training | Sequence[Training],
    free: int,
) -> list[list[int]]:
    """Places of the models that are trained together: all of them, or as many as fit."""
    if not models:
        return []
    trainings = for_each(training, len(models))
    alone = [plan([m], sequences, one) for m, one in zip(models, trainings, strict=True)]
    room = int(USABLE * free)  # the data are there already
    parts: list[list[int]] = [[]]
    used = 0
    for place, one in enumerate(alone):
        needs = one.total - one.data
        if needs > room:
            raise BadInput(
                f"a model needs {_size(needs)} beside its data, and {_size(free)} are free: take "
                f"a smaller batch than {trainings[0].batch}, or smaller layers"
            )
        if used + needs > room:
            parts.append([])
            used = 0
        parts[-1].append(place)
        used += needs
    return parts


def _kind(model: GenerativeModel) -> tuple[object, ...]:
    """Models of one kind hold as much."""
    sites = lattice(model.topography) if isinstance(model, SequenceModel) else None
    return sites, *(p.shape for p in model.parameters())


def _activations(model: GenerativeModel, sequences: SequenceSet, batch: int) -> int:
    """Bytes that autograd keeps of one step, with the frames."""
    shape = (batch, sequences.frames, *sequences.frame_shape)
    frames = torch.empty(shape, device="meta")
    kept = {id(frames): frames}  # by identity: a tensor may be kept twice

    def keep(tensor: Tensor) -> Tensor:
        kept[id(tensor)] = tensor
        return tensor

    try:
        shadow = copy.deepcopy(model).to("meta")
        own = {id(p) for p in shadow.parameters()}
        with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
            shadow.evidence(frames)
    except (RuntimeError, NotImplementedError, TypeError):  # networks that need values
        return _guess(frames)
    activations = [t for t in kept.values() if not {id(t), id(t._base)} & own]
    return sum(t.numel() * t.element_size() for t in activations)


def _guess(frames: Tensor) -> int:
    """Where a network cannot be walked through without values: some twenty layers as wide."""
    return 20 * frames.numel() * frames.element_size()


def _size(count: int) -> str:
    return f"{count / 2**30:.1f} GB" if count >= 2**30 / 10 else f"{count / 2**20:.0f} MB"
