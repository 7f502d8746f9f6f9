"""CUDA kernels of the engine, in Triton; imported only where they run."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

STREAMS = 8  # different draws in one step


@triton.jit
def _random(
    out, seeds, step, stream, count,
    STREAMS: tl.constexpr, NORMAL: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    model = tl.program_id(1).to(tl.int64)
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    offset = ((tl.load(step) * STREAMS + stream) << 24) + i
    seed = tl.load(seeds + model)
    value = tl.randn(seed, offset) if NORMAL else tl.rand(seed, offset)
    tl.store(out + model * count + i, value, mask=i < count)


def random(
    shape: tuple[int, ...], seeds: Tensor, step: Tensor, stream: int, normal: bool
) -> Tensor:
    """(models, …) numbers that each member's seed, the step and the stream decide alone."""
    out = torch.empty(shape, device=seeds.device)
    count = out.numel() // len(seeds)
    grid = (triton.cdiv(count, 1024), len(seeds))
    _random[grid](out, seeds, step, stream, count, STREAMS=STREAMS, NORMAL=normal, BLOCK=1024)
    return out


@triton.jit
def _descend(
    x, dy, weight, velocity, coarse, rate, momentum, shorter, rows, x_model, dy_model,
    INPUTS: tl.constexpr, OUTPUTS: tl.constexpr, PITCH: tl.constexpr,
    X_WIDTH: tl.constexpr, DY_WIDTH: tl.constexpr, X_ROW: tl.constexpr, DY_ROW: tl.constexpr,
    SHORTER: tl.constexpr, ROWS: tl.constexpr, OUT: tl.constexpr, IN: tl.constexpr,
):  # fmt: skip
    model = tl.program_id(1).to(tl.int64)
    tiles = tl.cdiv(INPUTS, IN)
    o = tl.program_id(0) // tiles * OUT + tl.arange(0, OUT)
    i = tl.program_id(0) % tiles * IN + tl.arange(0, IN)
    at = (model * OUTPUTS + o[:, None]) * PITCH + i[None, :]
    inside = (o[:, None] < OUTPUTS) & (i[None, :] < INPUTS)
    v = tl.load(velocity + at, mask=inside, other=0.0)
    w = tl.load(weight + at, mask=inside, other=0.0)
    x += model * x_model
    dy += model * dy_model
    gradient = tl.zeros((OUT, IN), tl.float32)
    for first in tl.range(0, rows, ROWS, num_stages=3):
        r = first + tl.arange(0, ROWS)[:, None]
        left = tl.load(
            dy + r * DY_ROW + o[None, :], mask=(r < rows) & (o[None, :] < DY_WIDTH), other=0.0
        )
        right = tl.load(
            x + r * X_ROW + i[None, :], mask=(r < rows) & (i[None, :] < X_WIDTH), other=0.0
        )
        gradient = tl.dot(tl.trans(left), right, gradient)
    if SHORTER:
        factor = tl.load(shorter + model)
        gradient = tl.where(factor > 0, factor * gradient, 0.0)
    v = momentum * v + gradient
    w -= tl.load(rate) * v
    tl.store(velocity + at, v, mask=inside)
    tl.store(weight + at, w, mask=inside)
    at_coarse = (model * DY_WIDTH + o[:, None]) * X_WIDTH + i[None, :]
    tl.store(coarse + at_coarse, w.to(tl.bfloat16), mask=inside)


def descend(
    x: Tensor, dy: Tensor, weight: Tensor, velocity: Tensor, coarse: Tensor,
    rate: Tensor, momentum: float, shorter: Tensor | None = None,
) -> None:  # fmt: skip
    """velocity = momentum · velocity + dyᵀ x; weight -= rate · velocity, in place, for every model.

    x: (models, rows, inputs) and dy: (models, rows, outputs) in bf16, widened with zeros to
    multiples of 16; weight and velocity: (models, outputs, inputs) in fp32, their rows equally far
    apart; ``coarse`` takes the weight in bf16, as wide as x and dy. The gradient of a tile is used
    where it is made, in registers, and never written: moving weights and velocities is what bounds
    a step. ``shorter`` are factors of the gradient, one a model; where 0, only momentum moves.
    """
    models, outputs, inputs = weight.shape
    # compiled code lays tensors out as it likes
    x, dy = (v if v.stride(2) == 1 else v.contiguous() for v in (x, dy))
    assert weight.stride() == velocity.stride() and coarse.is_contiguous()
    out, inn = 64, 128 if models > 4 else 64
    grid = (triton.cdiv(outputs, out) * triton.cdiv(inputs, inn), models)
    _descend[grid](
        x, dy, weight, velocity, coarse, rate, momentum, shorter,
        x.shape[1], x.stride(0), dy.stride(0),
        INPUTS=inputs, OUTPUTS=outputs, PITCH=weight.stride(1), X_WIDTH=x.shape[2],
        DY_WIDTH=dy.shape[2], X_ROW=x.stride(1), DY_ROW=dy.stride(1),
        SHORTER=shorter is not None, ROWS=32, OUT=out, IN=inn, num_warps=4,
    )  # fmt: skip
