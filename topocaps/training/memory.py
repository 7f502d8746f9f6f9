"""The memory that training needs, estimated before it starts, and how to fit models into it."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from topocaps.data.sequences import SequenceSet
from topocaps.errors import BadInput
from topocaps.models.base import GenerativeModel
from topocaps.training.settings import Training, for_each
from topocaps.training.stack import by_architecture

USABLE = 0.9  # share of the free memory
_WORKING = 1.5  # peak memory of a step, relative to what it saves for the backward pass


@dataclass(frozen=True)
class Plan:
    """Bytes that training needs."""

    weights: int  #: with moments, gradients and copies
    activations: int
    data: int

    @property
    def total(self) -> int:
        return self.weights + self.activations + self.data

    def __add__(self, other: Plan) -> Plan:
        """Return the bytes of two models that are trained on the same data."""
        activations = self.activations + other.activations
        return Plan(self.weights + other.weights, activations, self.data)

    def __str__(self) -> str:
        parts = f"weights and moments {_size(self.weights)}, activations {_size(self.activations)}"
        return f"{_size(self.total)} ({parts}, data {_size(self.data)})"


def plan(
    models: Sequence[GenerativeModel],
    sequences: SequenceSet,
    training: Training | Sequence[Training],
) -> list[Plan]:
    """Return an upper estimate for each model, from sizes alone.

    Every weight has six copies: the model's, one to restart from, the stack's, one while a graph is
    captured, its gradient (or its bf16 copy) and the working memory of its update. Moments and, if
    gradients are clipped, three more copies are added. The activations of a model are what autograd
    saves in a forward pass over tensors without values.
    """
    trainings = for_each(training, len(models))
    activations: dict[int, float] = {}
    for places in by_architecture(models):  # in which activations are alike
        saved = _activations(models[places[0]], sequences, trainings[0].batch)
        activations |= dict.fromkeys(places, _WORKING * saved)
    data = _bytes(value for value in vars(sequences).values() if isinstance(value, Tensor))
    plans = []
    for place, (model, one) in enumerate(zip(models, trainings, strict=True)):
        copies = 6 + 3 * (one.clip is not None) + one.optimiser.COPIES
        plans.append(Plan(copies * _bytes(model.parameters()), int(activations[place]), data))
    return plans


def split(plans: Sequence[Plan], free: int, batch: int) -> list[list[int]]:
    """Return the indices of the models of each part, which fits into ``free`` bytes with a margin.

    A model that does not fit alone is refused; the message names its ``batch``.
    """
    room = int(USABLE * free)  # the data are allocated already
    parts: list[list[int]] = []
    used = 0
    for place, one in enumerate(plans):
        needs = one.total - one.data
        if needs > room:
            raise BadInput(
                f"a model needs {_size(needs)} beside its data, and {_size(free)} are free: take a "
                f"smaller batch than {batch}, or smaller layers"
            )
        if not parts or used + needs > room:
            parts.append([])
            used = 0
        parts[-1].append(place)
        used += needs
    return parts


def _activations(model: GenerativeModel, sequences: SequenceSet, batch: int) -> int:
    """Return the bytes that autograd saves in one step, with the frames."""
    shape = (batch, sequences.frames, *sequences.frame_shape)
    frames = torch.empty(shape, device="meta")
    saved = {id(frames): frames}  # by identity: a tensor may be saved twice

    def keep(tensor: Tensor) -> Tensor:
        saved[id(tensor)] = tensor
        return tensor

    try:
        shadow = copy.deepcopy(model).to("meta")
        own = {id(p) for p in shadow.parameters()}
        with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
            shadow.evidence(frames)
    except (RuntimeError, NotImplementedError, TypeError):  # the networks need values
        return _guess(frames)
    return _bytes(t for t in saved.values() if not {id(t), id(t._base)} & own)


def _guess(frames: Tensor) -> int:
    """Return the bytes of twenty layers as wide as a frame, for networks that need values."""
    return 20 * _bytes([frames])


def _bytes(tensors: Iterable[Tensor]) -> int:
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors)


def _size(count: int) -> str:
    return f"{count / 2**30:.1f} GB" if count >= 2**30 / 10 else f"{count / 2**20:.0f} MB"
