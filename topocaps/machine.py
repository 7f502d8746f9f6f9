"""What the machine can do, and what it has left."""

from __future__ import annotations

import contextlib
from pathlib import Path

import torch


def with_doubles(device: torch.device) -> torch.device:
    """The device or, where it has no float64 as Apple's have not, the host."""
    return torch.device("cpu") if device.type == "mps" else device


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
