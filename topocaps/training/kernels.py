"""Triton kernels of the engine, imported only where they run."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import triton
import triton.language as tl
from torch import Tensor

from topocaps.training.optimisers import Adam, Sgd

STREAMS = 16  # largest number of draws of one step


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
    """Return random numbers (models, …) that depend only on a model's seed, step and stream."""
    out = torch.empty(shape, device=seeds.device)
    count = out.numel() // len(seeds)
    assert stream < STREAMS and count <= 2**24, "the numbers of two draws would overlap"
    grid = (triton.cdiv(count, 1024), len(seeds))
    _random[grid](out, seeds, step, stream, count, STREAMS=STREAMS, NORMAL=normal, BLOCK=1024)
    return out


@triton.jit
def _update_weight(
    x, dy, weight, first, second, weight_bf16, sizes, spread, clip_factors, radial, squares,
    momentum, second_momentum, epsilon, rows, x_model, dy_model,
    INPUTS: tl.constexpr, WIDE_INPUTS: tl.constexpr,
    OUTPUTS: tl.constexpr, WIDE_OUTPUTS: tl.constexpr, X_ROW: tl.constexpr, DY_ROW: tl.constexpr,
    ADAM: tl.constexpr, CLIPPED: tl.constexpr, RADIAL: tl.constexpr, PARTS: tl.constexpr,
    ROWS: tl.constexpr, OUT: tl.constexpr, IN: tl.constexpr,
):  # fmt: skip
    model = tl.program_id(1).to(tl.int64)
    tiles = tl.cdiv(WIDE_INPUTS, IN)
    o = tl.program_id(0) // tiles * OUT + tl.arange(0, OUT)
    i = tl.program_id(0) % tiles * IN + tl.arange(0, IN)
    at = (model * OUTPUTS + o[:, None]) * WIDE_INPUTS + i[None, :]
    inside = (o[:, None] < OUTPUTS) & (i[None, :] < WIDE_INPUTS)
    m = tl.load(first + at, mask=inside, other=0.0)
    w = tl.load(weight + at, mask=inside, other=0.0)
    x += model * x_model
    dy += model * dy_model
    gradient = tl.zeros((OUT, IN), tl.float32)
    for begin in tl.range(0, rows, ROWS, num_stages=3):
        r = begin + tl.arange(0, ROWS)[:, None]
        left = tl.load(
            dy + r * DY_ROW + o[None, :], mask=(r < rows) & (o[None, :] < WIDE_OUTPUTS), other=0.0
        )
        right = tl.load(
            x + r * X_ROW + i[None, :], mask=(r < rows) & (i[None, :] < WIDE_INPUTS), other=0.0
        )
        gradient = tl.dot(tl.trans(left), right, gradient)
    if RADIAL:
        coefficient = tl.load(radial + model * OUTPUTS + o, mask=o < OUTPUTS, other=0.0)
        gradient -= coefficient[:, None] * w
    if WIDE_INPUTS != INPUTS:  # the padding of rows stays 0, whatever the gradient
        gradient = tl.where(i[None, :] < INPUTS, gradient, 0.0)
    if CLIPPED:
        factor = tl.load(clip_factors + model)
        gradient = tl.where(factor > 0, factor * gradient, 0.0)
    size = tl.load(sizes + model)
    if ADAM:
        s = tl.load(second + at, mask=inside, other=0.0)
        m += (1 - momentum) * (gradient - m)
        s += (1 - second_momentum) * (gradient * gradient - s)
        w -= size * m / (tl.sqrt(tl.load(spread) * s) + epsilon)
        tl.store(second + at, s, mask=inside)
    else:
        m = momentum * m + gradient
        w -= size * m
    if RADIAL:
        part = (model * PARTS + tl.program_id(0) % tiles) * OUTPUTS + o
        tl.store(squares + part, tl.sum(w * w, axis=1), mask=o < OUTPUTS)
    tl.store(first + at, m, mask=inside)
    tl.store(weight + at, w, mask=inside)
    at_bf16 = (model * WIDE_OUTPUTS + o[:, None]) * WIDE_INPUTS + i[None, :]
    tl.store(weight_bf16 + at_bf16, w.to(tl.bfloat16), mask=inside)


def tile(models: int) -> tuple[int, int, int]:
    """Return how many outputs and inputs of a weight a program updates, and its number of warps.

    Smaller tiles make more programs, which a few models need to fill a GPU.
    """
    return (64, 128, 4) if models > 4 else (64, 64, 4)


def update_weight(
    rule: Sgd | Adam, x: Tensor, dy: Tensor, weight: Tensor, moments: Sequence[Tensor],
    weight_bf16: Tensor, size: Tensor, spread: Tensor, clip_factors: Tensor | None = None,
    radial: Tensor | None = None, squares: Tensor | None = None,
) -> None:  # fmt: skip
    """Update every model's weight from its gradient dyᵀ x by the optimiser's rule, in place.

    The gradient of a tile stays in registers and is never written to memory, because reading and
    writing weights and moments bounds the time of a step. The padding of rows is updated with them,
    and stays 0. Without padding, numbers could not be loaded four at a time, which takes twice as
    long.

    Args:
        x: (models, rows, inputs) in bf16, padded with zeros to a multiple of 16 inputs.
        dy: (models, rows, outputs) in bf16, padded likewise.
        weight, moments: (models, outputs, inputs) in fp32, ``aligned`` to rows as wide as x.
        weight_bf16: receives the weight in bf16, as wide as x and dy.
        clip_factors: factor of each model's gradient. With a factor of 0, the gradient counts as 0,
            and only the momentum moves the weights.
        radial: (models, outputs); this times the weight is subtracted from the gradient.
        squares: (models, parts, outputs); receives the squared norms of the parts of rows.
    """
    (models, outputs, inputs), wide = weight.shape, x.shape[2]
    # compiled code chooses the strides of its results
    x, dy = (v if v.stride(2) == 1 else v.contiguous() for v in (x, dy))
    assert all(m.stride() == (outputs * wide, wide, 1) for m in (weight, *moments))
    assert weight_bf16.is_contiguous() and (squares is None or squares.is_contiguous())
    radial = None if radial is None else radial.contiguous()
    out, inn, warps = tile(models)
    grid = (triton.cdiv(outputs, out) * triton.cdiv(wide, inn), models)
    adam = isinstance(rule, Adam)
    momentum, second_momentum = rule.betas if adam else (rule.momentum, 0.0)
    _update_weight[grid](
        x, dy, weight, moments[0], moments[-1], weight_bf16, size, spread, clip_factors, radial,
        squares, momentum, second_momentum, Adam.EPSILON, x.shape[1], x.stride(0), dy.stride(0),
        INPUTS=inputs, WIDE_INPUTS=wide, OUTPUTS=outputs, WIDE_OUTPUTS=dy.shape[2],
        X_ROW=x.stride(1), DY_ROW=dy.stride(1),
        ADAM=adam, CLIPPED=clip_factors is not None, RADIAL=radial is not None,
        PARTS=1 if squares is None else squares.shape[1], ROWS=32, OUT=out, IN=inn, num_warps=warps,
    )  # fmt: skip
