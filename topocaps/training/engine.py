"""The engine: one training step of several stacks of models.

On a GPU the whole step (data, forward and backward pass, update, statistics) is captured in a CUDA
graph, and the host only replays it. On other devices the same code runs eagerly.
"""

from __future__ import annotations

import functools
import math
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from topocaps.data.sequences import SequenceSet
from topocaps.device import with_doubles
from topocaps.models.base import GenerativeModel
from topocaps.training.settings import Training, for_each
from topocaps.training.stack import (
    DeviceRandomness,
    Randomness,
    Stack,
    by_architecture,
    randomness,
)
from topocaps.training.updates.autograd import AutogradUpdate
from topocaps.training.updates.base import (
    Update,
    compiled,
    max_relative_difference,
    run_concurrently,
)
from topocaps.training.updates.fused import FusedUpdate

_ADVICE = "try a smaller lr, a clip on the gradient, or a larger window or reach"
LEFT_OUT = "left_out"  # steps without an update, as their gradient was not finite
#: Largest accepted difference of compiled gradients. In bf16, another order of sums changes
#: gradients by .01 in most stacks and by .08 in one with mu = 0, where T is near 0 (there, noise
#: that is rounded to bf16 changes them by .07).
ALIKE = 0.15
WORTH_COMPILING = 15_000  # steps: compiling takes over half a minute and about halves a step


class Engine:
    """Trains ``models`` together; each draws its sequences and noise from its own seed.

    Models of one architecture and training are one stack; stacks run side by side in one program.

    Args:
        captured: whether to capture the step in a CUDA graph where that is possible.
        compiling: whether to compile the bound and its gradient.
    """

    def __init__(
        self,
        models: Sequence[GenerativeModel],
        sequences: SequenceSet,
        seeds: Sequence[int],
        training: Training | Sequence[Training],
        *,
        captured: bool = True,
        compiling: bool = False,
    ) -> None:
        self.sequences = sequences
        trainings = for_each(training, len(models))
        self.device = sequences.images.device
        # lazy results of the sequences are computed here, as a graph must not synchronise
        drawn = with_doubles(self.device)
        sequences.choose(torch.zeros(1, sequences.numbers, device=drawn))
        self.step = torch.zeros((), dtype=torch.int64, device=self.device)
        mapping = self.device.type == "cuda"  # a single model fills a CPU, but not a GPU
        self.parts = [
            _Part(
                Stack([models[n] for n in places], sequences.frames),
                places,
                [seeds[n] for n in places],
                [trainings[n] for n in places],
                self.device,
            )
            for places in by_architecture(models, [one.shared for one in trainings], mapping)
        ]
        self._streams = [
            torch.cuda.Stream(self.device)
            for _ in self.parts
            if self.device.type == "cuda" and self.parts[1:]
        ]
        if compiling:
            for part in self.parts:
                part.compile(sequences)
        # a graph does not advance generators, so it needs counted random numbers
        counted = all(isinstance(part.randomness, DeviceRandomness) for part in self.parts)
        counted = counted and not sequences.on_host
        self._graph = self._capture() if captured and counted else None
        #: steps between readings of the statistics, each of which waits for the device
        self.stride = 1 if self.device.type == "cpu" else 100

    def advance(self, first: int, count: int, steps: int) -> list[dict[str, float]]:
        """Run ``count`` of ``steps`` from step ``first``; return each model's summed terms."""
        self.step.fill_(first - 1)
        for part in self.parts:
            part.sums.zero_()
            part.left_out.zero_()
        for step in range(first - 1, first - 1 + count):
            for part in self.parts:
                part.update.set_lr(part.training.optimiser.lr_at(step, steps))
                part.update.set_kl_weight(part.training.kl.at(step, steps))
            if self._graph is None:
                self._step()
            else:
                self._graph.replay()
        found = {}
        for part in self.parts:
            statistics = torch.cat([part.sums, part.left_out[:, None]], 1).tolist()
            for place, values in zip(part.places, statistics, strict=True):
                found[place] = dict(zip((*part.terms, LEFT_OUT), values, strict=True))
        return [found[place] for place in sorted(found)]

    def failures(self) -> dict[int, str]:
        """Return a message for every model that is not finite, with the first step and term."""
        return {place: why for part in self.parts for place, why in part.failures().items()}

    def flag_nonfinite_weights(self) -> None:
        """Mark models with non-finite weights as failed, before their next bound shows it."""
        for part in self.parts:
            part.flag_nonfinite_weights(self.step)

    def state(self, place: int) -> dict[str, Tensor]:
        """Return the tensors from which a model can resume."""
        part, member = self._find(place)
        stack, found = part.stack, {"rng": part.randomness.state(member)}
        for name, value in self.weights(place).items():
            found[f"model.{name}"] = value
        for name, _ in stack.model.named_parameters():
            for key, value in part.update.moments(name).items():
                found[f"optimiser.{key}.{name}"] = stack.of_member(value, member)
        return found

    def weights(self, place: int) -> dict[str, Tensor]:
        """Return the weights and buffers of a model, as views into its stack."""
        part, member = self._find(place)
        tensors = part.stack.tensors().items()
        return {name: part.stack.of_member(value, member) for name, value in tensors}

    @torch.no_grad()
    def restore(self, place: int, state: dict[str, Tensor]) -> None:
        """Restore a model's state in place, as a graph refers to fixed addresses."""
        part, member = self._find(place)
        part.randomness.restore(member, state["rng"])
        for name, value in part.stack.tensors().items():
            part.stack.of_member(value, member).copy_(state[f"model.{name}"])
        for key in state:
            kind, _, rest = key.partition(".")
            moment, _, name = rest.partition(".")
            if kind == "optimiser":
                held = part.update.moment(name, moment)
                part.stack.of_member(held, member).copy_(state[key])
        part.update.refresh()

    def write_back(self) -> None:
        """Copy the weights of the stacks to the models."""
        for part in self.parts:
            part.stack.write_back()

    def _find(self, place: int) -> tuple[_Part, int]:
        part = next(part for part in self.parts if place in part.places)
        return part, part.places.index(place)

    def _step(self) -> None:
        """Run one training step of every model."""
        self.step += 1
        work = [functools.partial(part.advance, self.sequences, self.step) for part in self.parts]
        run_concurrently(work, self._streams)

    def _capture(self) -> torch.cuda.CUDAGraph:
        """Capture the step as a CUDA graph; undo the effect of the steps that warm it up."""
        # parameters were created on another stream, for which the graph waits in any case
        torch.autograd.graph.set_warn_on_accumulate_grad_stream_mismatch(False)
        side, graph = torch.cuda.Stream(), torch.cuda.CUDAGraph()
        with _untouched(*(part.stack for part in self.parts)):
            side.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(side):
                for _ in range(3):
                    self._step()
            torch.cuda.current_stream().wait_stream(side)
            with torch.cuda.graph(graph):
                self._step()
        for part in self.parts:
            part.update.reset()
            part.failed.zero_()
        return graph


@contextmanager
def _untouched(*stacks: Stack) -> Iterator[None]:
    """Restore the parameters and buffers of stacks on exit."""
    held = [value for stack in stacks for value in stack.tensors().values()]
    before = [value.detach().clone() for value in held]
    yield
    with torch.no_grad():
        for value, first in zip(held, before, strict=True):
            value.copy_(first)


class _Part:
    """A stack in an engine: its random numbers, its update, its statistics."""

    def __init__(
        self,
        stack: Stack,
        places: Sequence[int],
        seeds: Sequence[int],
        trainings: Sequence[Training],
        device: torch.device,
    ) -> None:
        self.stack, self.places, self.training = stack, list(places), trainings[0].shared
        drawn = with_doubles(device)  # random numbers choose sequences in float64
        self.device = device
        self.randomness: Randomness = randomness(seeds, drawn)
        kind_of_update = FusedUpdate if FusedUpdate.suits(stack, self.training) else AutogradUpdate
        clips = [one.clip for one in trainings]
        self.update: Update = kind_of_update(stack, self.training, clips)
        self.terms = stack.model.recorded
        kind = torch.float64 if drawn == device else torch.float32
        self.sums = torch.zeros(len(stack), len(self.terms), dtype=kind, device=device)
        # the first step at which a term, or a weight, was not finite; 0 if there was none
        self.failed = torch.zeros(len(stack), len(self.terms) + 1, dtype=torch.int64, device=device)
        # skipped steps, whose gradient was not finite
        self.left_out = torch.zeros(len(stack), dtype=torch.int64, device=device)
        self.record: Any = _record

    def compile(self, sequences: SequenceSet) -> None:
        """Compile the gradients; keep plain code, with a warning, if the results differ."""
        with _untouched(self.stack), torch.random.fork_rng():
            numbers = randomness(range(len(self.stack)), with_doubles(self.device))
            given = self._draw(numbers, sequences, torch.ones_like(self.failed[0, 0]))
            plain = self.update.gradients(sequences, *given)
            self.update.compile()
            try:
                compiled_gradients = self.update.gradients(sequences, *given)
                off = max_relative_difference(compiled_gradients, plain, len(self.stack))
                why = (
                    f"compiled gradients differ from those of plain code by {off:.0%} (a compiler "
                    "error, or layers with random numbers of their own)"
                )
            except torch.OutOfMemoryError:
                raise
            except RuntimeError as error:  # no compiler, or one that does not support this model
                off, why = math.inf, f"the model cannot be compiled ({str(error).splitlines()[0]})"
        if off <= ALIKE:
            self.record = compiled(_record)
            return
        self.update.compile(False)
        warnings.warn(f"{why}: training uses plain code, which is slower", stacklevel=2)

    def advance(self, sequences: SequenceSet, step: Tensor) -> None:
        """Run one step of every member."""
        given = self._draw(self.randomness, sequences, step)
        terms, updated = self.update.step(sequences, *given)
        self.record(terms, updated, step, self.sums, self.failed, self.left_out)

    def _draw(
        self, numbers: Randomness, sequences: SequenceSet, step: Tensor
    ) -> tuple[Tensor, list[Tensor]]:
        """Draw the random numbers of a step: uniform ones for sequences, normal ones for noise."""
        batch, frames = self.training.batch, sequences.frames
        shapes = [(batch, frames, *shape) for shape in self.stack.model.noise_shapes]
        uniform, noise = numbers.draw(step, (batch, sequences.numbers), shapes)
        return uniform, [normal.to(self.device) for normal in noise]

    @torch.no_grad()
    def flag_nonfinite_weights(self, step: Tensor) -> None:
        finite = torch.ones(len(self.stack), dtype=torch.bool, device=self.failed.device)
        for parameter in self.stack.model.parameters():
            finite &= parameter.reshape(len(self.stack), -1).isfinite().all(1)
        _note(finite[:, None], step, self.failed[:, -1:])

    def failures(self) -> dict[int, str]:
        if not self.failed.any():
            return {}
        names = [*self.terms, "a weight"]
        # terms in reverse order: the bound, and what is decoded, depend on the others
        parts = [*reversed(range(len(self.terms))), len(self.terms)]
        found = {}
        for place, failed in zip(self.places, self.failed.tolist(), strict=True):
            if any(failed):
                step = min(n for n in failed if n)
                which = next(n for n in parts if failed[n] == step)
                found[place] = f"{names[which]} is not finite at step {step}; {_ADVICE}"
        return found


@torch.no_grad()
def _record(
    terms: Tensor,
    updated: Tensor | None,
    step: Tensor,
    sums: Tensor,
    failed: Tensor,
    left_out: Tensor,
) -> None:
    """Add terms to the sums; record the first non-finite step and count skipped steps."""
    sums += terms
    _note(terms.isfinite(), step, failed[:, : terms.shape[1]])
    if updated is not None:
        left_out += ~updated


def _note(finite: Tensor, step: Tensor, failed: Tensor) -> None:
    failed.copy_(torch.where(finite | (failed > 0), failed, step))
