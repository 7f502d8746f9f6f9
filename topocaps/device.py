"""Devices, free memory, threads, denormal numbers and seeds."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

import torch


def with_doubles(device: torch.device) -> torch.device:
    """Return the device if it supports float64, else the CPU (Apple's GPUs have no float64)."""
    return torch.device("cpu") if device.type == "mps" else device


def multiplies_bf16(device: torch.device) -> bool:
    """Whether the device is a CPU with instructions for bf16 matrix products."""
    if device.type != "cpu" or not torch.backends.mkldnn.is_available():
        return False
    capabilities = torch.cpu.get_capabilities()
    return any(capabilities.get(name, False) for name in ("avx512_bf16", "amx_bf16"))


def free_memory(device: torch.device) -> int:
    """Return the number of bytes that can still be allocated on a device."""
    if device.type == "cuda":
        torch.cuda.empty_cache()  # memory that PyTorch caches counts as free
        return torch.cuda.mem_get_info(device)[0]
    if device.type == "mps":
        return torch.mps.recommended_max_memory() - torch.mps.driver_allocated_memory()
    limits = [2**63]
    with contextlib.suppress(OSError, ValueError):
        lines = Path("/proc/meminfo").read_text().splitlines()
        limits += [1024 * int(s.split()[1]) for s in lines if s.startswith("MemAvailable")]
    with contextlib.suppress(OSError, ValueError):
        group = Path("/sys/fs/cgroup")
        limit = int((group / "memory.max").read_text())
        limits.append(limit - int((group / "memory.current").read_text()))
    return min(limits)


@contextlib.contextmanager
def seeded(seed: int) -> Iterator[None]:
    """Seed PyTorch's generators of every device, and restore their states on exit."""
    with torch.random.fork_rng(devices=range(torch.cuda.device_count())):
        torch.manual_seed(seed)
        yield


@contextlib.contextmanager
def steady_arithmetic() -> Iterator[None]:
    """Flush denormal numbers to zero and fix the number of threads, inside the context.

    Denormal numbers are below 1e-38. Decaying moments and the tails of sigmoids reach them, and
    would make a step nearly twice as slow. PyTorch's threads inherit this mode from the thread
    that starts them, so enter this context before anything is computed.

    Until the number of threads is set, even to its present value, MKL may use fewer threads for a
    matrix product, and then rounds differently.
    """
    torch.set_num_threads(torch.get_num_threads())
    before = (torch.tensor(1e-38) * 1e-3).item() == 0
    torch.set_flush_denormal(True)
    try:
        yield
    finally:
        torch.set_flush_denormal(before)
