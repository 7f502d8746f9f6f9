"""The base class of updates, and the functions that they share."""

from __future__ import annotations

import copy
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel

from topocaps.data.sequences import SequenceSet
from topocaps.models.base import EvidenceLike, GenerativeModel
from topocaps.models.networks import lead
from topocaps.training.settings import Training
from topocaps.training.stack import Stack

NEGLIGIBLE = 1e-5  # norm of a gradient, relative to the largest of any parameter
TINY = 1e-30


class MeanTerms(nn.Module):
    """Means of a model's terms, and of its objective as the last, over present frames.

    Args:
        kl_weight: scalar that multiplies the KL terms in the objective; by default 1.
    """

    def __init__(self, model: GenerativeModel, kl_weight: Tensor | None = None) -> None:
        super().__init__()
        self.model, self.kl_weight = model, kl_weight

    def forward(self, x: Tensor, *noise: Tensor, mask: Tensor | None = None) -> Tensor:
        """Return (…, terms + 1); ``noise`` are the standard normal numbers that the model draws."""
        numbers = iter(noise)
        evidence = self.model.evidence(x, lambda like: next(numbers), mask)
        values = [getattr(evidence, name) for name in self.model.recorded]
        values.append(self._objective(evidence))
        means = torch.stack([value.flatten(-2).mean(-1) for value in values], -1)
        if mask is None:
            return means
        return means / mask.to(means.dtype).flatten(-2).mean(-1, keepdim=True)

    def _objective(self, evidence: EvidenceLike) -> Tensor:
        if self.kl_weight is None:
            return evidence.objective
        subtracted: Tensor = sum(getattr(evidence, name) for name in self.model.terms[2:])
        return evidence.objective + (1 - self.kl_weight) * subtracted

    def mapped(self, x: Tensor, *noise: Tensor, mask: Tensor | None = None) -> Tensor:
        """Map ``forward`` over the members of a stack whose layers have no axis for members."""
        tensors = {
            **dict(self.named_parameters(remove_duplicate=False)),
            **dict(self.named_buffers(remove_duplicate=False)),
        }
        masks = {} if mask is None else {"mask": mask}

        def of_member(tensors: dict[str, Tensor], masks: dict[str, Tensor], *inputs: Tensor) -> Any:
            return torch.func.functional_call(self, tensors, inputs, masks)

        with sdpa_kernel(SDPBackend.MATH):  # the only kernel with a backward pass under vmap
            terms: Tensor = torch.func.vmap(of_member)(tensors, masks, x, *noise)
        return terms


def bound(
    means: MeanTerms, sequences: SequenceSet, uniform: Tensor, noise: Sequence[Tensor]
) -> Tensor:
    """Return the terms of the sequences that ``uniform`` numbers choose: (members, terms + 1)."""
    shown = sequences.show(sequences.choose(uniform))
    if means.model.supports_vmap and uniform.ndim > 2:
        return means.mapped(shown.x, *noise, mask=shown.mask)
    terms: Tensor = means(shown.x, *noise, mask=shown.mask)
    return terms.reshape(-1, terms.shape[-1])


class Update(ABC):
    """Updates the parameters of a stack, one step at a time.

    Args:
        clips: largest norm of each member's gradient, or None; by default that of ``training``.
    """

    def __init__(
        self, stack: Stack, training: Training, clips: Sequence[float | None] | None = None
    ) -> None:
        self.stack, self.training = stack, training
        self.parameters = dict(stack.model.named_parameters())
        clips = clips or [training.clip] * len(stack)
        #: largest norm of each member's gradient, infinite for members that are not clipped
        self.clips: Tensor | None = None
        if places := [place for place, clip in enumerate(clips) if clip is not None]:
            norms = [math.inf if clip is None else clip for clip in clips]
            self.clips = torch.tensor(norms, device=next(stack.model.parameters()).device)
            self.clipped = slice(places[0], places[-1] + 1)  # includes the members between them
        #: weight of the KL terms at this step; None if it is 1 at every step
        self.kl_weight: Tensor | None = None
        if not training.kl.is_bound:
            self.kl_weight = torch.ones((), device=next(stack.model.parameters()).device)

    @abstractmethod
    def step(
        self, sequences: SequenceSet, uniform: Tensor, noise: Sequence[Tensor]
    ) -> tuple[Tensor, Tensor | None]:
        """Update the parameters and return the terms: (members, terms).

        If gradients are clipped, also return whether the gradient of each clipped member was
        finite. One that was not counts as zero, so that only momentum moves the parameters.
        """

    @abstractmethod
    def gradients(
        self, sequences: SequenceSet, uniform: Tensor, noise: Sequence[Tensor]
    ) -> Sequence[Tensor]:
        """Return the tensors that decide a step's update, with members on the first axis."""

    @abstractmethod
    def compile(self, on: bool = True) -> None:
        """Switch the bound and its gradient to compiled code, or back to plain code."""

    @abstractmethod
    def set_lr(self, lr: float) -> None:
        """Set the learning rate of the next step."""

    def set_kl_weight(self, weight: float) -> None:
        """Set the weight of the KL terms in the objective of the next step."""
        if self.kl_weight is not None:
            self.kl_weight.fill_(weight)

    @abstractmethod
    def moments(self, name: str) -> dict[str, Tensor]:
        """Return the optimiser's state of a parameter."""

    def moment(self, name: str, key: str) -> Tensor:
        """Return one tensor of the optimiser's state, which is zero before the first step."""
        return self.moments(name)[key]

    @abstractmethod
    def reset(self) -> None:
        """Set the optimiser's state to zero, in place."""

    @abstractmethod
    def refresh(self) -> None:
        """Recompute copies of the parameters, after a caller has set the parameters."""


def compiled(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return the compiled function, for fixed shapes.

    A process may train many kinds of models, so the limit on recompilations is raised. Padding is
    off, because PyTorch 2.11 pads rows inside compiled code and then reads stale values in the
    backward pass of layers with 2352 outputs.
    """
    dynamo: Any = torch._dynamo
    dynamo.config.recompile_limit = max(dynamo.config.recompile_limit, 256)
    return torch.compile(function, dynamic=False, options={"comprehensive_padding": False})


def max_relative_difference(
    gradients: Sequence[Tensor], expected: Sequence[Tensor], members: int
) -> float:
    """Return the largest norm of a difference, relative to the norm of what was expected.

    It is the largest over parameters and members; members are on the first axis of the tensors.
    """

    def norms(tensors: Iterable[Tensor]) -> Tensor:
        return torch.stack([t.float().reshape(members, -1).norm(dim=1) for t in tensors])

    difference = norms(a - b for a, b in zip(gradients, expected, strict=True))
    norm = norms(expected)
    least = (NEGLIGIBLE * norm.amax(0)).clamp_min(TINY)  # smaller gradients are rounding errors
    return (difference / torch.maximum(norm, least)).nan_to_num(math.inf).max().item()


def compilable_copy(stack: Stack) -> GenerativeModel:
    """Return a copy of the stack's model that shares its tensors and that can be compiled."""
    shared: dict[int, Any] = {id(value): value for value in stack.tensors().values()}
    model = copy.deepcopy(stack.model, shared)
    model.make_compilable(stack.frames)
    return model


def run_concurrently(
    tasks: Sequence[Callable[[], None]], streams: Sequence[torch.cuda.Stream]
) -> None:
    """Run the tasks on these CUDA streams, or one after the other if there are none.

    A single small kernel does not fill a GPU.
    """
    if not streams:
        for task in tasks:
            task()
        return
    current = torch.cuda.current_stream()
    for stream in streams:
        stream.wait_stream(current)
    for n, task in enumerate(tasks):
        with torch.cuda.stream(streams[n % len(streams)]):
            task()
    for stream in streams:
        current.wait_stream(stream)


def clip_factor(squares: Tensor, clips: Tensor) -> Tensor:
    """Return the factor that clips each member's gradient: (members,).

    The factor is 0 if the gradient is not finite, and 1 if its clip is infinite.

    Args:
        squares: squared norms of parts of the gradient, (members, parts).
        clips: largest norms, (members,).
    """
    norm = squares.sum(1).sqrt()
    factor = torch.where(norm.isfinite(), (clips / norm).clamp(max=1), 0.0)
    return torch.where(clips.isinf(), 1.0, factor)


def scale_gradient(gradient: Tensor, factor: Tensor) -> Tensor:
    """Return each member's gradient times its factor; a factor of 0 gives 0, even for NaN."""
    factor = lead(factor if len(factor) > 1 else factor[0], gradient)
    return torch.where(factor > 0, factor * gradient, 0.0)
