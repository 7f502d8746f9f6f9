"""The engine: a stack of models, their sequences and their noise as one step that repeats.

On a GPU the whole step (data, forward, backward, update, statistics) is captured in a CUDA graph
and nothing happens on the host but its replay; elsewhere the same lines run one by one.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from topocaps.data.sequences import Sequences
from topocaps.errors import NonFinite
from topocaps.models import SequenceModel
from topocaps.networks import lead
from topocaps.training.optimisers import Adam, Sgd
from topocaps.training.stack import DeviceRandomness, Stack, randomness
from topocaps.training.watching import TERMS

_ADVICE = "try a smaller lr, a clip on the gradient, or a larger window or reach"


class Engine:
    """Trains ``models`` of one architecture together; each sees what its own seed decides."""

    def __init__(
        self,
        models: Sequence[SequenceModel],
        sequences: Sequences,
        seeds: Sequence[int],
        optimiser: Sgd | Adam,
        batch: int,
        clip: float | None = None,
        captured: bool = True,
    ) -> None:
        self.stack = Stack(models, sequences.frames)
        self.sequences, self.batch, self.clip = sequences, batch, clip
        self.device = sequences.images.device
        self.optimiser = optimiser.build(self.stack.model.parameters())
        self.randomness = randomness(seeds, self.device)
        self.parameters = dict(self.stack.model.named_parameters())
        self.step = torch.zeros((), dtype=torch.int64, device=self.device)
        self.sums = torch.zeros(len(models), len(TERMS), dtype=torch.float64, device=self.device)
        # the first step at which a term, or a parameter's gradient, was not finite; 0 is never
        watched = len(TERMS) + len(self.parameters)
        self.failed = torch.zeros(len(models), watched, dtype=torch.int64, device=self.device)
        # a graph cannot carry generators on, so it needs numbers that are counted
        captured = captured and isinstance(self.randomness, DeviceRandomness)
        self._repeat = self._capture() if captured else self._step
        #: steps between looks at the statistics: a look waits for the device
        self.stride = 1 if self.device.type == "cpu" else 100

    def advance(self, first: int, rates: Sequence[float]) -> list[dict[str, float]]:
        """A step for each learning rate, from step number ``first`` on; the sums of the terms."""
        self.step.fill_(first - 1)
        self.sums.zero_()
        for rate in rates:
            self._set_rate(rate)
            self._repeat()
        found = [dict(zip(TERMS, values, strict=True)) for values in self.sums.tolist()]
        if self.failed.any():
            raise NonFinite(self._failure())
        return found

    def _set_rate(self, rate: float) -> None:
        for group in self.optimiser.param_groups:
            if isinstance(group["lr"], Tensor):
                group["lr"].fill_(rate)
            else:
                group["lr"] = rate

    def _step(self) -> None:
        """One step up the bound for every member (Eq. 12)."""
        self.step += 1
        self.randomness.begin(self.step)
        chosen = self.sequences.choose(self.randomness.uniform(self.batch, 3))
        evidence = self.stack.model.evidence(self.sequences.show(chosen).x, self.randomness.normal)
        terms = torch.stack(
            [getattr(evidence, name).flatten(-2).mean(-1).reshape(-1) for name in TERMS], 1
        )  # member term
        self.optimiser.zero_grad()
        (-terms[:, TERMS.index("elbo")]).sum().backward()
        self._record(terms.detach())
        self.optimiser.step()
        self.stack.model.project()

    @torch.no_grad()
    def _record(self, terms: Tensor) -> None:
        """Keep the statistics; shorten gradients where they are to be clipped."""
        self.sums += terms
        watched = [terms.isfinite()]
        if self.clip is not None or self.device.type == "cpu":
            squares = torch.stack(
                [
                    terms.new_zeros(len(self.stack)) if p.grad is None
                    else p.grad.reshape(len(self.stack), -1).square().sum(1)
                    for p in self.parameters.values()
                ],
                1,
            )  # member parameter  # fmt: skip
            watched.append(squares.isfinite())
            if self.clip is not None:
                factor = (self.clip / squares.sum(1).sqrt()).clamp(max=1)
                factor = factor if len(self.stack) > 1 else factor[0]
                for parameter in self.parameters.values():
                    if parameter.grad is not None:
                        parameter.grad.mul_(lead(factor, parameter.grad))
        finite = torch.cat(watched, 1)
        failed = self.failed[:, : finite.shape[1]]
        failed.copy_(torch.where(finite | (failed > 0), failed, self.step))

    def _failure(self) -> str:
        """Who failed first, in which term, at which step."""
        failed = self.failed.cpu()
        step = int(failed[failed > 0].min())
        at = failed == step
        member = int(at.any(1).nonzero()[0])
        # what depends on another is named after it: the bound, and what is decoded, come last
        parts = [*reversed(range(len(TERMS))), *range(len(TERMS), failed.shape[1])]
        which = next(n for n in parts if at[member, n])
        names = [*TERMS, *(f"the gradient of {name}" for name in self.parameters)]
        whose = f"model {member} of {len(self.stack)}: " if len(self.stack) > 1 else ""
        return f"{whose}{names[which]} is not finite at step {step}; {_ADVICE}"

    def _capture(self) -> Callable[[], None]:
        """The step as a CUDA graph. The steps that warm it up leave no trace."""
        before = [p.detach().clone() for p in self.parameters.values()]
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
            for parameter, value in zip(self.parameters.values(), before, strict=True):
                parameter.copy_(value)
            for moments in self.optimiser.state.values():
                for moment in moments.values():
                    if isinstance(moment, Tensor):
                        moment.zero_()
        self.failed.zero_()
        return graph.replay
