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
LEFT_OUT = "left_out"  # number of steps whose gradient was not finite, and so counted as zero
#: Largest accepted relative difference between compiled gradients and those of plain code. In bf16,
#: another order of sums changes gradients by .01 in most stacks, and by .08 in one with mu = 0,
#: where T is near 0. There, rounding the noise to bf16 changes them by .07.
MAX_DIFFERENCE = 0.15
#: Fewest steps for which the engine compiles: this takes over half a minute, and about halves the
#: time of a step.
WORTH_COMPILING = 15_000


class Engine:
    """Trains ``models`` together; each draws its sequences and noise from its own seed.

    Models of one architecture and training are one stack; stacks run side by side in one program.

    Args:
        captured: whether to capture the step in a CUDA graph, if the device can.
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
        # sequences cache what they need here, because a captured step must not synchronise
        sequences.choose(torch.zeros(1, sequences.numbers, device=with_doubles(self.device)))
        self.step = torch.zeros((), dtype=torch.int64, device=self.device)
        shared = [setting.shared for setting in trainings]
        mapping = self.device.type == "cuda"  # a single model fills a CPU, but not a GPU
        self.parts = [
            _Part(
                Stack([models[n] for n in places], sequences.frames),
                places,
                [seeds[n] for n in places],
                [trainings[n] for n in places],
                self.device,
            )
            for places in by_architecture(models, shared, mapping)
        ]
        self._streams = [
            torch.cuda.Stream(self.device)
            for _ in self.parts
            if self.device.type == "cuda" and self.parts[1:]
        ]
        if compiling:
            for part in self.parts:
                part.compile(sequences)
        # a graph does not advance generators, so its random numbers must be functions of the step
        stateless = all(isinstance(part.randomness, DeviceRandomness) for part in self.parts)
        capturable = stateless and not sequences.on_host
        self._graph = self._capture() if captured and capturable else None
        #: steps between readings of the statistics; each reading waits for the device
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
        sums = {}
        for part in self.parts:
            statistics = torch.cat([part.sums, part.left_out[:, None]], 1).tolist()
            for place, values in zip(part.places, statistics, strict=True):
                sums[place] = dict(zip((*part.terms, LEFT_OUT), values, strict=True))
        return [sums[place] for place in sorted(sums)]

    def failures(self) -> dict[int, str]:
        """Return a message for each model that is not finite, with the first term and step."""
        failures: dict[int, str] = {}
        for part in self.parts:
            failures |= part.failures()
        return failures

    def flag_nonfinite_weights(self) -> None:
        """Mark models with non-finite weights as failed, without waiting for their next bound."""
        for part in self.parts:
            part.flag_nonfinite_weights(self.step)

    def state(self, place: int) -> dict[str, Tensor]:
        """Return the tensors from which a model can resume."""
        part, member = self._find(place)
        stack, tensors = part.stack, {"rng": part.randomness.state(member)}
        for name, value in self.weights(place).items():
            tensors[f"model.{name}"] = value
        for name, _ in stack.model.named_parameters():
            for key, value in part.update.moments(name).items():
                tensors[f"optimiser.{key}.{name}"] = stack.of_member(value, member)
        return tensors

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
            prefix, _, rest = key.partition(".")
            moment, _, name = rest.partition(".")
            if prefix == "optimiser":
                tensor = part.update.moment(name, moment)
                part.stack.of_member(tensor, member).copy_(state[key])
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
        """Capture the step as a CUDA graph, and undo the effect of the warm-up steps."""
        # PyTorch warns that parameters were created on another stream; the graph waits for it
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
    tensors = [value for stack in stacks for value in stack.tensors().values()]
    before = [value.detach().clone() for value in tensors]
    yield
    with torch.no_grad():
        for value, original in zip(tensors, before, strict=True):
            value.copy_(original)


class _Part:
    """A stack in an engine, with its random numbers, its update and its statistics."""

    def __init__(
        self,
        stack: Stack,
        places: Sequence[int],
        seeds: Sequence[int],
        trainings: Sequence[Training],
        device: torch.device,
    ) -> None:
        self.stack, self.places, self.training = stack, list(places), trainings[0].shared
        host = with_doubles(device)  # float64 numbers choose the sequences
        self.device = device
        self.randomness: Randomness = randomness(seeds, host)
        update_class = FusedUpdate if FusedUpdate.suits(stack, self.training) else AutogradUpdate
        clips = [setting.clip for setting in trainings]
        self.update: Update = update_class(stack, self.training, clips)
        self.terms = stack.model.recorded
        dtype = torch.float64 if host == device else torch.float32
        self.sums = torch.zeros(len(stack), len(self.terms), dtype=dtype, device=device)
        # the first step at which each term, and last a weight, was not finite; 0 if there was none
        self.failed = torch.zeros(len(stack), len(self.terms) + 1, dtype=torch.int64, device=device)
        # number of steps whose gradient was not finite
        self.left_out = torch.zeros(len(stack), dtype=torch.int64, device=device)
        self.record: Any = _record

    def compile(self, sequences: SequenceSet) -> None:
        """Compile the gradients, or warn and keep plain code if the compiled results differ."""
        with _untouched(self.stack), torch.random.fork_rng():
            numbers = randomness(range(len(self.stack)), with_doubles(self.device))
            inputs = self._draw(numbers, sequences, torch.ones_like(self.failed[0, 0]))
            plain = self.update.gradients(sequences, *inputs)
            self.update.compile()
            try:
                compiled_gradients = self.update.gradients(sequences, *inputs)
                difference = max_relative_difference(compiled_gradients, plain, len(self.stack))
                problem = (
                    f"compiled gradients differ from those of plain code by {difference:.0%} (a "
                    "compiler error, or layers with random numbers of their own)"
                )
            except torch.OutOfMemoryError:
                raise
            except RuntimeError as error:  # no compiler, or one that does not support this model
                difference = math.inf
                problem = f"the model cannot be compiled ({str(error).splitlines()[0]})"
        if difference <= MAX_DIFFERENCE:
            self.record = compiled(_record)
            return
        self.update.compile(False)
        warnings.warn(f"{problem}: training uses plain code, which is slower", stacklevel=2)

    def advance(self, sequences: SequenceSet, step: Tensor) -> None:
        """Run one step of every member."""
        inputs = self._draw(self.randomness, sequences, step)
        terms, updated = self.update.step(sequences, *inputs)
        self.record(terms, updated, step, self.sums, self.failed, self.left_out)

    def _draw(
        self, numbers: Randomness, sequences: SequenceSet, step: Tensor
    ) -> tuple[Tensor, list[Tensor]]:
        """Return a step's random numbers: uniform ones choose sequences, normal ones are noise."""
        batch, frames = self.training.batch, sequences.frames
        shapes = [(batch, frames, *shape) for shape in self.stack.model.noise_shapes]
        uniform, noise = numbers.draw(step, (batch, sequences.numbers), shapes)
        return uniform, [normal.to(self.device) for normal in noise]

    @torch.no_grad()
    def flag_nonfinite_weights(self, step: Tensor) -> None:
        finite = torch.ones(len(self.stack), dtype=torch.bool, device=self.failed.device)
        for parameter in self.stack.model.parameters():
            finite &= parameter.reshape(len(self.stack), -1).isfinite().all(1)
        _note_failures(finite[:, None], step, self.failed[:, -1:])

    def failures(self) -> dict[int, str]:
        if not self.failed.any():
            return {}
        names = [*self.terms, "a weight"]
        # of terms that fail in the same step the last is named, on which the bound depends
        order = [*reversed(range(len(self.terms))), len(self.terms)]
        messages = {}
        for place, failed in zip(self.places, self.failed.tolist(), strict=True):
            if any(failed):
                step = min(n for n in failed if n)
                cause = next(n for n in order if failed[n] == step)
                messages[place] = f"{names[cause]} is not finite at step {step}; {_ADVICE}"
        return messages


@torch.no_grad()
def _record(
    terms: Tensor,
    updated: Tensor | None,
    step: Tensor,
    sums: Tensor,
    failed: Tensor,
    left_out: Tensor,
) -> None:
    """Add terms to the sums, note the first non-finite step, and count ``left_out`` steps."""
    sums += terms
    _note_failures(terms.isfinite(), step, failed[:, : terms.shape[1]])
    if updated is not None:
        left_out += ~updated


def _note_failures(finite: Tensor, step: Tensor, failed: Tensor) -> None:
    """Write the step into ``failed`` where values are not finite for the first time."""
    failed.copy_(torch.where(finite | (failed > 0), failed, step))
