"""Adapters import the libraries that they adapt to when they are used, and no earlier."""

import subprocess
import sys

OPTIONAL = (
    "huggingface_hub", "onnx", "onnxruntime", "onnxscript", "pyro", "scipy", "sklearn",
    "tensorboard", "torchmetrics", "wandb",
)  # fmt: skip


def test_importing_the_package_imports_no_optional_one():
    code = f"import sys, topocaps; print(*(name for name in {OPTIONAL} if name in sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == []
