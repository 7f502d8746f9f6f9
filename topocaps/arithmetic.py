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
def steady_arithmetic() -> Iterator[None]:
    """Inside, the CPU computes fast, and the same in every process.

    Numbers below 1e-38 are 0: moments and tails of sigmoids that decay there would make a step
    nearly twice as slow. PyTorch's own threads take this from the thread that starts them, so it
    works fully where it is entered before any computing.

    The number of threads is settled: until it is set, even to what it is, MKL may use fewer for
    a product when it pleases, and then rounds differently.
    """
    torch.set_num_threads(torch.get_num_threads())
    before = (torch.tensor(1e-38) * 1e-3).item() == 0
    torch.set_flush_denormal(True)
    try:
        yield
    finally:
        torch.set_flush_denormal(before)
