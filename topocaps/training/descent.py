"""How the parameters of a stack go up the bound: gradients by autograd, steps by an optimiser."""

from __future__ import annotations

import copy
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel

from topocaps.data.sequences import SequenceSet
from topocaps.latents.stack import TopographyStack
from topocaps.latents.topography import Topography
from topocaps.models.base import GenerativeModel
from topocaps.models.networks import lead
from topocaps.models.sequence import SequenceModel
from topocaps.training.settings import Training
from topocaps.training.stack import Stack

NEGLIGIBLE = 1e-5  # of a gradient, beside the longest of another parameter
NOTHING = 1e-30


class Means(nn.Module):
    """Over frames that are there, of a model's terms and, last, of what is raised: (…, terms + 1).

    ``noise`` are the standard normal numbers that the model asks for.
    """

    def __init__(self, model: GenerativeModel) -> None:
        super().__init__()
        self.model = model

    def forward(self, x: Tensor, *noise: Tensor, mask: Tensor | None = None) -> Tensor:
        drawn = iter(noise)
        evidence = self.model.evidence(x, lambda like: next(drawn), mask)
        names = (*self.model.recorded, "objective")
        means = torch.stack([getattr(evidence, name).flatten(-2).mean(-1) for name in names], -1)
        if mask is None:
            return means
        return means / mask.to(means.dtype).flatten(-2).mean(-1, keepdim=True)

    def mapped(self, x: Tensor, *noise: Tensor) -> Tensor:
        """The same for models in front, of which layers do not know: each is lent its own."""
        together = {
            name: value
            for of in (self.named_parameters, self.named_buffers)
            for name, value in of(remove_duplicate=False)
        }

        def alone(own: dict[str, Tensor], *given: Tensor) -> Tensor:
            found: Tensor = torch.func.functional_call(self, own, given)
            return found

        with sdpa_kernel(SDPBackend.MATH):  # the ways back of the others cannot be mapped
            found: Tensor = torch.func.vmap(alone)(together, x, *noise)
        return found


def bound(means: Means, sequences: SequenceSet, uniform: Tensor, noise: Sequence[Tensor]) -> Tensor:
    """The terms of sequences that ``uniform`` numbers choose: (members, terms + 1)."""
    shown = sequences.show(sequences.choose(uniform))
    if means.model.supports_vmap and uniform.ndim > 2:
        return means.mapped(shown.x, *noise)
    found: Tensor = means(shown.x, *noise, mask=shown.mask)
    return found.reshape(-1, found.shape[-1])


class Descent(ABC):
    """Moves the parameters of a stack, one step at a time."""

    def __init__(
        self, stack: Stack, training: Training, clips: Sequence[float | None] | None = None
    ) -> None:
        self.stack, self.training = stack, training
        self.parameters = dict(stack.model.named_parameters())
        clips = clips or [training.clip] * len(stack)
        #: the longest gradient of each member, endless where none was asked for
        self.clips: Tensor | None = None
        if held := [place for place, clip in enumerate(clips) if clip is not None]:
            longest = [math.inf if clip is None else clip for clip in clips]
            self.clips = torch.tensor(longest, device=next(stack.model.parameters()).device)
            self.clipped = slice(held[0], held[-1] + 1)  # with those between

    @abstractmethod
    def step(
        self, sequences: SequenceSet, uniform: Tensor, noise: Sequence[Tensor]
    ) -> tuple[Tensor, Tensor | None]:
        """One step; the terms (member, term) and, where gradients are clipped, who was updated:
        a member whose gradient is not finite is not."""

    @abstractmethod
    def gradients(
        self, sequences: SequenceSet, uniform: Tensor, noise: Sequence[Tensor]
    ) -> Sequence[Tensor]:
        """What a step would go by, without taking it; members in front where there are several."""

    @abstractmethod
    def compile(self, on: bool = True) -> None:
        """From now on, run bound and gradient as compiled code, or again as plain code."""

    @abstractmethod
    def set_rate(self, rate: float) -> None:
        """The learning rate of the next step."""

    @abstractmethod
    def moments(self, name: str) -> dict[str, Tensor]:
        """What is kept for a parameter beside itself."""

    @abstractmethod
    def moment(self, name: str, key: str) -> Tensor:
        """One of them, zero where it has not been needed yet."""

    @abstractmethod
    def forget(self) -> None:
        """As if no step had been made: moments are zero, in place."""

    @abstractmethod
    def refresh(self) -> None:
        """Parameters were changed from outside."""


class Plain(Descent):
    """Autograd makes gradients, PyTorch's optimiser uses them: for any network."""

    def __init__(
        self, stack: Stack, training: Training, clips: Sequence[float | None] | None = None
    ) -> None:
        super().__init__(stack, training, clips)
        groups: dict[float, list[nn.Parameter]] = {}
        for name, parameter in self.parameters.items():
            groups.setdefault(stack.model.lr_scale(name), []).append(parameter)
        self.optimiser = training.optimiser.build(groups.values())
        self.relative_rates = list(groups)
        self._rate = 0.0
        self.compile(False)

    def compile(self, on: bool = True) -> None:
        self.means = Means(readable(self.stack) if on else self.stack.model)
        self._bound: Any = compiled(bound) if on else bound

    def gradients(
        self, sequences: SequenceSet, uniform: Tensor, noise: Sequence[Tensor]
    ) -> list[Tensor]:
        self._back(sequences, uniform, noise)
        found = [p.grad for p in self.parameters.values() if p.grad is not None]
        self.optimiser.zero_grad()
        return found

    def _back(self, sequences: SequenceSet, uniform: Tensor, noise: Sequence[Tensor]) -> Tensor:
        """The terms; parameters have their gradients then."""
        precision, device = self.training.precision, uniform.device
        with precision.products(device):
            terms: Tensor = self._bound(self.means, sequences, uniform, noise)
        self.optimiser.zero_grad()
        with precision.products(device, cast=False):  # the way back is of the same kinds
            (-terms[:, -1]).sum().backward()
        return terms

    def step(
        self, sequences: SequenceSet, uniform: Tensor, noise: Sequence[Tensor]
    ) -> tuple[Tensor, Tensor | None]:
        terms = self._back(sequences, uniform, noise)
        updated = None if self.clips is None else self._shorten(self.clips)
        self.optimiser.step()
        self.stack.model.project()
        return terms[:, :-1].detach(), updated

    @torch.no_grad()
    def _shorten(self, clips: Tensor) -> Tensor:
        """Bring gradients to the longest allowed, in place: of members that have a clip, as one
        tensor. Who is to be updated."""
        some = []
        for parameter in self.parameters.values():
            if parameter.grad is not None:
                parameter.grad = parameter.grad.contiguous()
                some.append(parameter.grad.view(len(self.stack), -1)[self.clipped])
        together = torch.cat(some, 1)
        factor = shorter_by(together.square().sum(1, keepdim=True), clips[self.clipped])
        parts = shorten(together, factor).split([one.shape[1] for one in some], 1)
        torch._foreach_copy_(some, parts)
        updated = torch.ones_like(clips, dtype=torch.bool)
        updated[self.clipped] = factor > 0
        return updated

    def set_rate(self, rate: float) -> None:
        if rate != self._rate:
            self._rate = rate
            groups = zip(self.optimiser.param_groups, self.relative_rates, strict=True)
            for group, relative in groups:
                if isinstance(group["lr"], Tensor):
                    group["lr"].fill_(relative * rate)
                else:
                    group["lr"] = relative * rate

    def moments(self, name: str) -> dict[str, Tensor]:
        return dict(self.optimiser.state.get(self.parameters[name], {}))

    def moment(self, name: str, key: str) -> Tensor:
        parameter = self.parameters[name]
        held = self.optimiser.state[parameter]
        if key not in held:
            shape = () if key == "step" else parameter.shape  # steps are counted once for all
            held[key] = torch.zeros(shape, dtype=parameter.dtype, device=parameter.device)
        return held[key]

    def forget(self) -> None:
        for moments in self.optimiser.state.values():
            for moment in moments.values():
                if isinstance(moment, Tensor):
                    moment.zero_()

    def refresh(self) -> None:
        pass


def compiled(function: Callable[..., Any]) -> Callable[..., Any]:
    """For shapes that stay. A process may train many kinds of models: let it compile for all.

    PyTorch 2.11 widens rows inside compiled code, and then reads some of them as they were before,
    on the way back of layers with 2352 outputs: so nothing is widened.
    """
    dynamo: Any = torch._dynamo
    dynamo.config.recompile_limit = max(dynamo.config.recompile_limit, 256)
    return torch.compile(function, dynamic=False, options={"comprehensive_padding": False})


def apart(some: Sequence[Tensor], others: Sequence[Tensor], members: int) -> float:
    """The largest difference of two gradients, in any parameter of any member, relative to the
    second; tensors have the members in front where there are several."""
    lengths = [
        [one.float().reshape(members, -1).norm(dim=1) for one in (a - b, b)]
        for a, b in zip(some, others, strict=True)
    ]
    off, length = (torch.stack(column) for column in zip(*lengths, strict=True))
    least = (NEGLIGIBLE * length.amax(0)).clamp_min(NOTHING)  # less is rounding
    return (off / torch.maximum(length, least)).nan_to_num(math.inf).max().item()


def readable(stack: Stack) -> GenerativeModel:
    """A copy that shares the stack's parameters, with W as a tensor: compilers read it as it is."""
    shared: dict[int, Any] = {id(value): value for value in stack.tensors().values()}
    model = copy.deepcopy(stack.model, shared)
    if not isinstance(model, SequenceModel):
        return model
    own = model.topography
    if isinstance(own, Topography) and own.is_plain and own.is_small(stack.frames):
        parameter = next(stack.model.parameters())
        model.topography = TopographyStack([own], stack.frames).to(parameter)
    return model


def side_by_side(work: Sequence[Callable[[], None]], streams: Sequence[torch.cuda.Stream]) -> None:
    """Do all of it, on a GPU at the same time: what is small does not fill it alone."""
    if not streams:
        for one in work:
            one()
        return
    here = torch.cuda.current_stream()
    for stream in streams:
        stream.wait_stream(here)
    for n, one in enumerate(work):
        with torch.cuda.stream(streams[n % len(streams)]):
            one()
    for stream in streams:
        here.wait_stream(stream)


def shorter_by(squares: Tensor, clips: Tensor) -> Tensor:
    """Factors that bring gradients to the longest allowed: (members,); 0 if not finite.

    A gradient that may be endless is left as it is, finite or not.
    """
    length = squares.sum(1).sqrt()
    factor = torch.where(length.isfinite(), (clips / length).clamp(max=1), 0.0)
    return torch.where(clips.isinf(), 1.0, factor)


def shorten(gradient: Tensor, factor: Tensor) -> Tensor:
    """Times each member's factor; where that is 0, 0 whatever the gradient."""
    factor = lead(factor if len(factor) > 1 else factor[0], gradient)
    return torch.where(factor > 0, factor * gradient, 0.0)
