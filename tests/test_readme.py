"""Every Python block of the README runs as it stands, and the README stays short."""

import re
from dataclasses import replace
from pathlib import Path

import pytest
import torch

import topocaps as tc

README = (Path(__file__).parents[1] / "README.md").read_text()
BLOCKS = re.findall(r"```python\n(.*?)```", README, re.S)


@pytest.mark.parametrize("block", BLOCKS, ids=range(len(BLOCKS)))
def test_a_block_runs(block, tmp_path, monkeypatch):
    """The example trains on 200 sequences here, and not on all."""
    train, held_out = tc.data.letters()
    few = torch.randperm(len(train), generator=torch.Generator().manual_seed(0))[:200]
    train = replace(train, order=train.order[few], moving=None)
    monkeypatch.setattr(tc.data, "letters", lambda: (train, held_out))
    monkeypatch.chdir(tmp_path)
    exec(compile(block, "README.md", "exec"), {})


def test_the_readme_has_at_most_a_thousand_words():
    prose = re.sub(r"```.*?```", "", README, flags=re.S)
    assert len(prose.split()) <= 1000
