"""What README shows in Python runs as it stands."""

import re
from pathlib import Path

import pytest
import torch

import topocaps as tc

README = (Path(__file__).parents[1] / "README.md").read_text()
BLOCKS = re.findall(r"```python\n(.*?)```", README, re.S)


@pytest.mark.parametrize("name", ["tc.data.read", "tc.PartWhole"])
def test_a_block_runs(name):
    (block,) = [block for block in BLOCKS if name in block]
    exec(compile(block, "README.md", "exec"), {"tc": tc, "torch": torch})
