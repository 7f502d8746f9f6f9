"""How exactly products are computed: part of a recipe, recorded with the run."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from enum import StrEnum

import torch


class Precision(StrEnum):
    """Of the products of layers. Weights, moments, latents and bounds are fp32 in every case."""

    FP32 = "fp32"
    TF32 = "tf32"  #: ten bits of mantissa in products on a GPU; elsewhere the same as fp32
    BF16 = "bf16"  #: products of layers in bfloat16, others on a GPU in TF32

    @contextmanager
    def products(self, device: torch.device) -> Iterator[None]:
        """Inside, PyTorch's products on ``device`` are computed so."""
        before = torch.get_float32_matmul_precision()
        if device.type == "cuda":
            torch.set_float32_matmul_precision("highest" if self is Precision.FP32 else "high")
        try:
            with torch.autocast(device.type, torch.bfloat16, enabled=self is Precision.BF16):
                yield
        finally:
            torch.set_float32_matmul_precision(before)
