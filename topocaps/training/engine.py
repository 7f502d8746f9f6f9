"""The engine: stacks of models, their sequences and their noise as one step that repeats.

On a GPU the whole step (data, forward, backward, update, statistics) is captured in a CUDA graph
and nothing happens on the host but its replay; elsewhere the same lines run one by one.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from topocaps.data.sequences import SequenceSet
from topocaps.models import SequenceModel
from topocaps.training.descent import Descent, Plain, side_by_side
from topocaps.training.factored import Factored
from topocaps.training.settings import Training, for_each
from topocaps.training.stack import (
    DeviceRandomness,
    Randomness,
    Stack,
    by_architecture,
    randomness,
)
from topocaps.training.watching import TERMS

_ADVICE = "try a smaller lr, a clip on the gradient, or a larger window or reach"
WORTH_COMPILING = 160_000  # sequences: compiling takes half a minute, and halves a step of 8


class Engine:
    """Trains ``models`` together; each sees what its own seed decides.

    Models of one architecture and training are one stack; stacks run side by side in one program.
    """

    def __init__(
        self,
        models: Sequence[SequenceModel],
        sequences: SequenceSet,
        seeds: Sequence[int],
        training: Training | Sequence[Training],
        *,
        captured: bool = True,
        compiled: bool = False,
    ) -> None:
        self.sequences = sequences
        trainings = for_each(training, len(models))
        self.device = sequences.images.device
        # what sequences work out once, they work out here: not in a graph, where they must not wait
        sequences.choose(torch.zeros(1, sequences.numbers, device=self.device))
        self.step = torch.zeros((), dtype=torch.int64, device=self.device)
        self.parts = [
            _Part(
                Stack([models[n] for n in places], sequences.frames),
                places,
                [seeds[n] for n in places],
                trainings[places[0]],
                self,
            )
            for places in by_architecture(models, trainings)
        ]
        self._streams = [
            torch.cuda.Stream() for _ in self.parts if self.device.type == "cuda" and self.parts[1:]
        ]
        if compiled:
            for part in self.parts:
                part.compile()
        # a graph cannot carry generators on, so it needs numbers that are counted
        counted = all(isinstance(part.randomness, DeviceRandomness) for part in self.parts)
        self._repeat = self._capture() if captured and counted else self._step
        #: steps between looks at the statistics: a look waits for the device
        self.stride = 1 if self.device.type == "cpu" else 100

    def advance(self, first: int, count: int, steps: int) -> list[dict[str, float]]:
        """``count`` steps of ``steps`` in all, from number ``first`` on; the sums of the terms."""
        self.step.fill_(first - 1)
        for part in self.parts:
            part.sums.zero_()
        for step in range(first - 1, first - 1 + count):
            for part in self.parts:
                part.descent.set_rate(part.training.optimiser.lr_at(step, steps))
            self._repeat()
        found = {}
        for part in self.parts:
            for place, values in zip(part.places, part.sums.tolist(), strict=True):
                found[place] = dict(zip(TERMS, values, strict=True))
        return [found[place] for place in sorted(found)]

    def failures(self) -> dict[int, str]:
        """Which models are no longer finite: since which step, and in which term."""
        return {place: why for part in self.parts for place, why in part.failures().items()}

    def state(self, place: int) -> dict[str, Tensor]:
        """Everything a model needs to go on, as tensors of its own."""
        part, member = self._find(place)
        stack, found = part.stack, {"rng": part.randomness.state(member)}
        for name, parameter in stack.model.named_parameters():
            found[f"model.{name}"] = stack.of_member(parameter, member)
            for key, value in part.descent.moments(name).items():
                found[f"optimiser.{key}.{name}"] = stack.of_member(value, member)
        return found

    @torch.no_grad()
    def restore(self, place: int, state: dict[str, Tensor]) -> None:
        """Put a model's state back, in place: a graph knows where things are."""
        part, member = self._find(place)
        part.randomness.restore(member, state["rng"])
        for name, parameter in part.stack.model.named_parameters():
            part.stack.of_member(parameter, member).copy_(state[f"model.{name}"])
            for key in state:
                kind, _, rest = key.partition(".")
                moment, _, of = rest.partition(".")
                if kind == "optimiser" and of == name:
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
        """One step up the bound for every model (Eq. 12)."""
        self.step += 1
        side_by_side([part.advance for part in self.parts], self._streams)

    def _capture(self) -> Callable[[], None]:
        """The step as a CUDA graph. The steps that warm it up leave no trace."""
        parameters = [p for part in self.parts for p in part.stack.model.parameters()]
        before = [p.detach().clone() for p in parameters]
        # parameters are older than the streams of the graph, which waits for them anyway
        torch.autograd.graph.set_warn_on_accumulate_grad_stream_mismatch(False)
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(3):
                self._step()
        torch.cuda.current_stream().wait_stream(side)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            self._step()
        with torch.no_grad():
            for parameter, value in zip(parameters, before, strict=True):
                parameter.copy_(value)
        for part in self.parts:
            part.descent.forget()
            part.failed.zero_()
        return graph.replay


class _Part:
    """A stack in an engine: its random numbers, its descent, its statistics."""

    def __init__(
        self,
        stack: Stack,
        places: Sequence[int],
        seeds: Sequence[int],
        training: Training,
        engine: Engine,
    ) -> None:
        device = engine.device
        self.stack, self.places, self.training = stack, list(places), training
        self.engine = engine
        self.randomness: Randomness = randomness(seeds, device)
        kind = Factored if Factored.suits(stack, training) else Plain
        self.descent: Descent = kind(stack, training)
        self.sums = torch.zeros(len(stack), len(TERMS), dtype=torch.float64, device=device)
        # the first step at which a term, or a parameter's gradient, was not finite; 0 is never
        watched = len(TERMS) + len(self.descent.watched)
        self.failed = torch.zeros(len(stack), watched, dtype=torch.int64, device=device)
        self.record: Any = _record

    def compile(self) -> None:
        self.descent.compile()
        self.record = torch.compile(_record, dynamic=False)

    def advance(self) -> None:
        """One step for every member."""
        engine, model = self.engine, self.stack.model
        self.randomness.begin(engine.step)
        sequences, batch = engine.sequences, self.training.batch
        uniform = self.randomness.uniform(batch, sequences.numbers)
        topography = model.topography
        latent = (batch, sequences.frames, topography.capsules, *topography.shape)
        noise = [self.randomness.normal(*latent) for _ in range(model.DRAWN)]
        terms, squares = self.descent.step(sequences, uniform, noise)
        self.record(terms, squares, engine.step, self.sums, self.failed)

    def failures(self) -> dict[int, str]:
        if not self.failed.any():
            return {}
        names = [*TERMS, *(f"the gradient of {name}" for name in self.descent.watched)]
        # what depends on another is named after it: the bound, and what is decoded, come last
        parts = [*reversed(range(len(TERMS))), *range(len(TERMS), len(names))]
        found = {}
        for place, failed in zip(self.places, self.failed.tolist(), strict=True):
            if any(failed):
                step = min(n for n in failed if n)
                which = next(n for n in parts if failed[n] == step)
                found[place] = f"{names[which]} is not finite at step {step}; {_ADVICE}"
        return found


@torch.no_grad()
def _record(
    terms: Tensor, squares: Tensor | None, step: Tensor, sums: Tensor, failed: Tensor
) -> None:
    """Add to the sums; note the step at which something was not finite for the first time."""
    sums += terms
    finite = terms.isfinite()
    if squares is not None:
        finite = torch.cat([finite, squares.isfinite()], 1)
    failed = failed[:, : finite.shape[1]]
    failed.copy_(torch.where(finite | (failed > 0), failed, step))
