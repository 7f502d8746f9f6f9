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
