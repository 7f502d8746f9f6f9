"""What the machine can do, and what it has left."""

from __future__ import annotations

import contextlib
from pathlib import Path

import torch


def with_doubles(device: torch.device) -> torch.device:
    """The device or, where it has no float64 as Apple's have not, the host."""
    return torch.device("cpu") if device.type == "mps" else device


def multiplies_bf16(device: torch.device) -> bool:
    """Whether a CPU has instructions for products in bf16; large ones are twice as fast so."""
    if device.type != "cpu" or not torch.backends.mkldnn.is_available():
        return False
    found = torch.cpu.get_capabilities()
    return any(found.get(name, False) for name in ("avx512_bf16", "amx_bf16"))


def free_memory(device: torch.device) -> int:
    """Bytes that can still be had on a device."""
    if device.type == "cuda":
        torch.cuda.empty_cache()  # what PyTorch keeps for itself counts as free
        return torch.cuda.mem_get_info(device)[0]
    if device.type == "mps":
        return torch.mps.recommended_max_memory() - torch.mps.driver_allocated_memory()
    found = [2**63]
    with contextlib.suppress(OSError, ValueError):
        lines = Path("/proc/meminfo").read_text().splitlines()
        found += [1024 * int(s.split()[1]) for s in lines if s.startswith("MemAvailable")]
    with contextlib.suppress(OSError, ValueError):
        group = Path("/sys/fs/cgroup")
        limit = int((group / "memory.max").read_text())
        found.append(limit - int((group / "memory.current").read_text()))
    return min(found)
