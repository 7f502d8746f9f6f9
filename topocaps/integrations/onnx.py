"""Export a model to ONNX files for programs without PyTorch: encoder, roll and decoder."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributions import Distribution
from torch.export import Dim

from topocaps.device import seeded
from topocaps.errors import BadInput, TopocapsError, optional, whole_number
from topocaps.io import make_folder, write_atomically
from topocaps.models.sequence import SequenceModel

OPSET = 18


class NotTheSame(TopocapsError, ArithmeticError):
    """An exported part differs from the model by more than the tolerance."""


@dataclass(frozen=True)
class Exported:
    """The files of an exported model, and how much their outputs differ from the model's."""

    encoder: Path  #: x (batch, frames, *frame) to t
    roll: Path  #: t (batch, time, capsules, *shape) and steps (axes of shape,) to rolled
    decoder: Path  #: t (batch, time, capsules, *shape) to x
    differences: dict[str, float]  #: largest absolute difference of encoder, roll and decoder


def export(
    model: SequenceModel, folder: str | Path, frames: int, tolerance: float = 1e-4
) -> Exported:
    """Write encoder.onnx, roll.onnx and decoder.onnx of a model into ``folder``.

    The encoder computes ``model.encode`` without sampling, for any number of sequences. Before any
    file is written, all three are run in onnxruntime and compared with the model.

    Args:
        frames: number of frames of each sequence. It is fixed, because W depends on it.
        tolerance: raise `NotTheSame` if the largest absolute difference exceeds this times the
            largest absolute output, or times 1 if all outputs are smaller.
    """
    for package in ("onnx", "onnxruntime", "onnxscript"):
        optional(package, f"ONNX files need the package {package}", "'topocaps[onnx]'")
    frames = whole_number("frames", frames)
    frame_shape = _check(model)
    model = copy.deepcopy(model).cpu().eval()
    axes = len(model.topography.shape)
    with torch.no_grad(), seeded(0):
        x = torch.rand(3, frames, *frame_shape)
        t = model.encode(x)  # also computes W, which then is a constant for the tracer
        steps = torch.linspace(-1.75, 2.0, axes)
        rolled = t
        for axis, step in enumerate(steps.tolist()):
            rolled = model.roll(rolled, step, axis)
        parts = {
            "encoder": _Part(Encoder(model), {"x": x}, {"t": t}),
            "roll": _Part(Roll(model), {"t": t, "steps": steps}, {"rolled": rolled}),
            "decoder": _Part(Decoder(model), {"t": t}, {"x": model.decode(t)}),
        }
    contents, differences = {}, {}
    for name, part in parts.items():
        contents[name] = part.onnx(name)
        differences[name] = part.difference(name, contents[name], tolerance)
    folder = make_folder(Path(folder))
    files = {name: folder / f"{name}.onnx" for name in parts}
    for name, path in files.items():
        write_atomically(path, contents[name])
    return Exported(**files, differences=differences)


class Encoder(nn.Module):
    """The map from x to t: ``model.encode`` without its checks, which depend on values."""

    def __init__(self, model: SequenceModel) -> None:
        super().__init__()
        self.model = model

    def forward(self, x: Tensor) -> Tensor:
        q = self.model.posterior(x)
        u = (q.u.mean.square() + q.u.variance).sqrt() if q.u else None
        return self.model.most_likely(x, self.model.t_per_axis(q.z.mean, u))


class Decoder(nn.Module):
    """The map from t to the expected x."""

    def __init__(self, model: SequenceModel) -> None:
        super().__init__()
        self.model = model

    def forward(self, t: Tensor) -> Tensor:
        return self.model.decode(t)


class Roll(nn.Module):
    """``model.roll`` along all axes of a capsule, with the steps of each axis as a tensor."""

    def __init__(self, model: SequenceModel) -> None:
        super().__init__()
        self.cyclic, self.axes = model.topography.cyclic, len(model.topography.shape)
        sites = model.topography.shape[0]
        zeros = torch.zeros(1, 1, model.topography.capsules, *model.topography.shape)
        # the value that enters at an open end, which a roll by all sites leaves everywhere
        self.fill = 0.0 if self.cyclic else model.roll(zeros, sites).flatten()[0].item()

    def forward(self, t: Tensor, steps: Tensor) -> Tensor:
        for axis in range(self.axes):
            whole = steps[axis].floor()
            part, dim = steps[axis] - whole, axis - self.axes
            source = torch.arange(t.shape[dim]) - whole.long()  # the source index of each site
            t = (1 - part) * self._take(t, source, dim) + part * self._take(t, source - 1, dim)
        return t

    def _take(self, t: Tensor, source: Tensor, dim: int) -> Tensor:
        sites = t.shape[dim]
        if self.cyclic:
            return t.index_select(dim, source % sites)
        inside = (source >= 0) & (source < sites)  # open capsules have one axis, the last of t
        return torch.where(inside, t.index_select(dim, source.clamp(0, sites - 1)), self.fill)


@contextmanager
def _unchecked_distributions() -> Iterator[None]:
    """Switch off the argument checks of distributions, which depend on values."""
    before = Distribution._validate_args
    Distribution.set_default_validate_args(False)
    try:
        yield
    finally:
        Distribution.set_default_validate_args(before)


@dataclass(frozen=True)
class _Part:
    """The module of one file, with example inputs and outputs."""

    module: nn.Module
    inputs: Mapping[str, Tensor]
    outputs: Mapping[str, Tensor]

    def onnx(self, name: str) -> bytes:
        """Return the content of the file.

        The sizes of the traced inputs differ from those of the example, so that the comparison with
        the model also tests the dynamic axes.
        """
        batch, time = Dim("batch"), Dim("time")
        traced = dict(self.inputs)
        axes: dict[str, Any] = dict.fromkeys(traced)
        if "x" in traced:
            traced["x"], axes["x"] = traced["x"][:2], {0: batch}
        else:
            traced["t"], axes["t"] = traced["t"][:2, [0, 0, 0, 0]], {0: batch, 1: time}
        try:
            with _unchecked_distributions():
                program: Any = torch.onnx.export(
                    self.module.eval(),
                    tuple(traced.values()),
                    dynamo=True,
                    opset_version=OPSET,
                    dynamic_shapes=tuple(axes.values()),
                    input_names=list(self.inputs),
                    output_names=list(self.outputs),
                    verbose=False,
                )
        except torch.onnx.OnnxExporterError as error:
            reason = str(error.__cause__ or error).strip().splitlines()[0]
            raise BadInput(f"PyTorch cannot export the {name} of this model: {reason}") from error
        return program.model_proto.SerializeToString()

    def difference(self, name: str, content: bytes, tolerance: float) -> float:
        """Return the largest absolute difference between onnxruntime's output and the model's."""
        import onnxruntime

        session = onnxruntime.InferenceSession(content, providers=["CPUExecutionProvider"])
        inputs = {key: value.numpy() for key, value in self.inputs.items()}
        (expected,) = self.outputs.values()
        (output,) = session.run(list(self.outputs), inputs)
        largest = (torch.from_numpy(output) - expected).abs().max().item()
        if not largest <= tolerance * max(1.0, expected.abs().max().item()):
            raise NotTheSame(
                f"the exported {name} differs from the model by {largest:.2g}, more than tolerance="
                f"{tolerance:g} allows: nothing was written"
            )
        return largest


def _check(model: SequenceModel) -> tuple[int, ...]:
    """Return the shape of the model's frames, or raise `BadInput` if it cannot be exported."""
    if not isinstance(model, SequenceModel):
        raise BadInput(f"only a TopographicVAE or a VAE is exported, not a {type(model).__name__}")
    dtypes = {parameter.dtype for parameter in model.parameters()}
    if dtypes != {torch.float32}:
        other = next(dtype for dtype in dtypes if dtype != torch.float32)
        raise BadInput(f"only float32 is exported, not {other}: convert it with model.float()")
    frame_shape = model.frame_shape
    if frame_shape is None:
        raise BadInput("the model has no frame_shape: set frame_shape on your decoder to export it")
    return tuple(frame_shape)
