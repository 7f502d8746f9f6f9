"""How the processor computes, and what a seed decides."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch


@contextmanager
def seeded(seed: int) -> Iterator[None]:
    """Inside, PyTorch's generators on every device start from ``seed``; outside, untouched."""
    with torch.random.fork_rng(devices=range(torch.cuda.device_count())):
        torch.manual_seed(seed)
        yield


@contextmanager
def denormals_flushed() -> Iterator[None]:
    """Inside, numbers below 1e-38 are 0 on the CPU: moments and tails of sigmoids that decay
    there would make a step nearly twice as slow.

    PyTorch's own threads take this from the thread that starts them, so it works fully where
    it is entered before any computing.
    """
    before = (torch.tensor(1e-38) * 1e-3).item() == 0
    torch.set_flush_denormal(True)
    try:
        yield
    finally:
        torch.set_flush_denormal(before)
