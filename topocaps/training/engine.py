"""The engine: stacks of models, their sequences and their noise as one step that repeats.

On a GPU the whole step (data, forward, backward, update, statistics) is captured in a CUDA graph
and nothing happens on the host but its replay; elsewhere the same lines run one by one.
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
from topocaps.machine import with_doubles
from topocaps.models.base import GenerativeModel
from topocaps.training.descent import Descent, Plain, apart, compiled, side_by_side
from topocaps.training.factored import Factored
from topocaps.training.settings import Training, for_each
from topocaps.training.stack import (
    DeviceRandomness,
    Randomness,
    Stack,
    by_architecture,
    randomness,
)

_ADVICE = "try a smaller lr, a clip on the gradient, or a larger window or reach"
LEFT_OUT = "left_out"  # steps without an update, as their gradient was not finite
#: gradients of bf16 products that are added in another order: mostly .01 apart, .08 in a stack with
#: mu = 0, where T is near 0 (noise that is rounded to bf16 changes those by .07)
ALIKE = 0.15
WORTH_COMPILING = 15_000  # steps: compiling takes half a minute or more, and about halves a step


class Engine:
    """Trains ``models`` together; each sees what its own seed decides.

    Models of one architecture and training are one stack; stacks run side by side in one program.
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
        # what sequences work out once, they work out here: not in a graph, where they must not wait
        drawn = with_doubles(self.device)
        sequences.choose(torch.zeros(1, sequences.numbers, device=drawn))
        self.step = torch.zeros((), dtype=torch.int64, device=self.device)
        mapping = self.device.type == "cuda"  # which one model does not fill; a CPU it does
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
        # a graph cannot carry generators on, so it needs numbers that are counted
        counted = all(isinstance(part.randomness, DeviceRandomness) for part in self.parts)
        counted = counted and not sequences.on_host
        self._graph = self._capture() if captured and counted else None
        #: steps between looks at the statistics: a look waits for the device
        self.stride = 1 if self.device.type == "cpu" else 100

    def advance(self, first: int, count: int, steps: int) -> list[dict[str, float]]:
        """``count`` steps of ``steps`` in all, from number ``first`` on; the sums of the terms."""
        self.step.fill_(first - 1)
        for part in self.parts:
            part.sums.zero_()
            part.left_out.zero_()
        for step in range(first - 1, first - 1 + count):
            for part in self.parts:
                part.descent.set_rate(part.training.optimiser.lr_at(step, steps))
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
        """Which models are no longer finite: since which step, and in which term."""
        return {place: why for part in self.parts for place, why in part.failures().items()}

    def look_at_weights(self) -> None:
        """Count models with weights that are not finite as failed, before their next bound is."""
        for part in self.parts:
            part.look_at_weights(self.step)

    def state(self, place: int) -> dict[str, Tensor]:
        """Everything a model needs to go on, as tensors of its own."""
        part, member = self._find(place)
        stack, found = part.stack, {"rng": part.randomness.state(member)}
        for name, value in self.weights(place).items():
            found[f"model.{name}"] = value
        for name, _ in stack.model.named_parameters():
            for key, value in part.descent.moments(name).items():
                found[f"optimiser.{key}.{name}"] = stack.of_member(value, member)
        return found

    def weights(self, place: int) -> dict[str, Tensor]:
        """What a model has learned, where its stack holds it."""
        part, member = self._find(place)
        tensors = part.stack.tensors().items()
        return {name: part.stack.of_member(value, member) for name, value in tensors}

    @torch.no_grad()
    def restore(self, place: int, state: dict[str, Tensor]) -> None:
        """Put a model's state back, in place: a graph knows where things are."""
        part, member = self._find(place)
        part.randomness.restore(member, state["rng"])
        for name, value in part.stack.tensors().items():
            part.stack.of_member(value, member).copy_(state[f"model.{name}"])
        for key in state:
            kind, _, rest = key.partition(".")
            moment, _, name = rest.partition(".")
            if kind == "optimiser":
                held = part.descent.moment(name, moment)
                part.stack.of_member(held, member).copy_(state[key])
        part.descent.refresh()

    def write_back(self) -> None:
        """Give the models what the stacks have learned."""
        for part in self.parts:
            part.stack.write_back()

    def _find(self, place: int) -> tuple[_Part, int]:
        part = next(part for part in self.parts if place in part.places)
        return part, part.places.index(place)

    def _step(self) -> None:
        """One step up the bound for every model."""
        self.step += 1
        work = [functools.partial(part.advance, self.sequences, self.step) for part in self.parts]
        side_by_side(work, self._streams)

    def _capture(self) -> torch.cuda.CUDAGraph:
        """The step as a CUDA graph. The steps that warm it up leave no trace."""
        # parameters are older than the streams of the graph, which waits for them anyway
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
            part.descent.forget()
            part.failed.zero_()
        return graph


@contextmanager
def _untouched(*stacks: Stack) -> Iterator[None]:
    """What stacks hold is afterwards as it was."""
    held = [value for stack in stacks for value in stack.tensors().values()]
    before = [value.detach().clone() for value in held]
    yield
    with torch.no_grad():
        for value, first in zip(held, before, strict=True):
            value.copy_(first)


class _Part:
    """A stack in an engine: its random numbers, its descent, its statistics."""

    def __init__(
        self,
        stack: Stack,
        places: Sequence[int],
        seeds: Sequence[int],
        trainings: Sequence[Training],
        device: torch.device,
    ) -> None:
        self.stack, self.places, self.training = stack, list(places), trainings[0].shared
        drawn = with_doubles(device)  # sequences are chosen in float64
        self.device = device
        self.randomness: Randomness = randomness(seeds, drawn)
        way = Factored if Factored.suits(stack, self.training) else Plain
        self.descent: Descent = way(stack, self.training, [one.clip for one in trainings])
        self.terms = stack.model.recorded
        kind = torch.float64 if drawn == device else torch.float32
        self.sums = torch.zeros(len(stack), len(self.terms), dtype=kind, device=device)
        # the first step at which a term, or a weight, was not finite; 0 is never
        self.failed = torch.zeros(len(stack), len(self.terms) + 1, dtype=torch.int64, device=device)
        # steps without an update, as their gradient was not finite
        self.left_out = torch.zeros(len(stack), dtype=torch.int64, device=device)
        self.record: Any = _record

    def compile(self, sequences: SequenceSet) -> None:
        """Run as compiled code, if its gradients are those of the plain one: compilers err."""
        with _untouched(self.stack), torch.random.fork_rng():
            numbers = randomness(range(len(self.stack)), with_doubles(self.device))
            given = self._draw(numbers, sequences, torch.ones_like(self.failed[0, 0]))
            plain = self.descent.gradients(sequences, *given)
            self.descent.compile()
            try:
                off = apart(self.descent.gradients(sequences, *given), plain, len(self.stack))
                why = (
                    f"compiled code has other gradients than plain code, by {off:.0%} (the "
                    "compiler errs, or layers draw random numbers of their own)"
                )
            except torch.OutOfMemoryError:
                raise
            except RuntimeError as error:  # no compiler, or none that can
                off, why = math.inf, f"it cannot be compiled ({str(error).splitlines()[0]})"
        if off <= ALIKE:
            self.record = compiled(_record)
            return
        self.descent.compile(False)
        warnings.warn(f"{why}: plain code is used, and is slower", stacklevel=2)

    def advance(self, sequences: SequenceSet, step: Tensor) -> None:
        """One step for every member."""
        given = self._draw(self.randomness, sequences, step)
        terms, updated = self.descent.step(sequences, *given)
        self.record(terms, updated, step, self.sums, self.failed, self.left_out)

    def _draw(
        self, numbers: Randomness, sequences: SequenceSet, step: Tensor
    ) -> tuple[Tensor, list[Tensor]]:
        """The numbers that a step needs: uniform ones for sequences, and noise."""
        batch = self.training.batch
        numbers.begin(step)
        uniform = numbers.uniform(batch, sequences.numbers)
        return uniform, [
            numbers.normal(batch, sequences.frames, *shape).to(self.device)
            for shape in self.stack.model.noise_shapes
        ]

    @torch.no_grad()
    def look_at_weights(self, step: Tensor) -> None:
        finite = torch.ones(len(self.stack), dtype=torch.bool, device=self.failed.device)
        for parameter in self.stack.model.parameters():
            finite &= parameter.reshape(len(self.stack), -1).isfinite().all(1)
        _note(finite[:, None], step, self.failed[:, -1:])

    def failures(self) -> dict[int, str]:
        if not self.failed.any():
            return {}
        names = [*self.terms, "a weight"]
        # what depends on another is named after it: the bound, and what is decoded, come last
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
    """Add to the sums; note what was not finite for the first time, and what was left out."""
    sums += terms
    _note(terms.isfinite(), step, failed[:, : terms.shape[1]])
    if updated is not None:
        left_out += ~updated


def _note(finite: Tensor, step: Tensor, failed: Tensor) -> None:
    failed.copy_(torch.where(finite | (failed > 0), failed, step))
