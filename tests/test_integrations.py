"""Adapters to other libraries stand to the right of everything: nothing else imports them."""

import ast
import subprocess
import sys
from pathlib import Path

import topocaps

PACKAGE = Path(topocaps.__file__).parent
OPTIONAL = (
    "huggingface_hub", "onnx", "onnxruntime", "onnxscript", "pyro", "scipy", "sklearn",
    "tensorboard", "torchmetrics", "wandb",
)  # fmt: skip


def imported(path):
    """The absolute names that a file imports, anywhere in it."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def test_only_the_package_itself_imports_integrations():
    importers = {
        path.relative_to(PACKAGE).as_posix()
        for path in PACKAGE.rglob("*.py")
        if any(name.startswith("topocaps.integrations") for name in imported(path))
    }
    assert {one for one in importers if not one.startswith("integrations/")} == {"__init__.py"}


def test_importing_the_package_imports_no_optional_one():
    code = f"import sys, topocaps; print(*(name for name in {OPTIONAL} if name in sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == []
