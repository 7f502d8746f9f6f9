"""How exactly products are computed: part of a recipe, recorded with the run."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from enum import StrEnum

import torch

from topocaps.device import multiplies_bf16


class Precision(StrEnum):
    """The coarsest that products may be. Weights, moments, latents and bounds are always fp32.

    A GPU makes use of it, and a CPU of bf16 where it has instructions for it; else it computes in
    fp32. A run records what was allowed (``precision``) and what was done (``products``).
    """

    FP32 = "fp32"
    TF32 = "tf32"  #: ten bits of mantissa
    BF16 = "bf16"  #: layers multiply in bfloat16 (seven bits), everything else in TF32

    def on(self, device: torch.device) -> Precision:
        """What is done on a device."""
        if device.type == "cuda" or (self is Precision.BF16 and multiplies_bf16(device)):
            return self
        return Precision.FP32

    @contextmanager
    def products(self, device: torch.device, cast: bool = True) -> Iterator[None]:
        """Inside, PyTorch's products on ``device`` are computed so; without ``cast``, from what
        there is: bf16 where it was cast before."""
        done = self.on(device)
        before = torch.get_float32_matmul_precision()
        torch.set_float32_matmul_precision("highest" if done is Precision.FP32 else "high")
        try:
            casting = cast and done is Precision.BF16
            with torch.autocast(device.type, torch.bfloat16, enabled=casting):
                yield
        finally:
            torch.set_float32_matmul_precision(before)
