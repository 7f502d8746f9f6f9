"""The page on architecture names every module, and nothing that does not exist."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PAGE = (ROOT / "docs" / "architecture.md").read_text()
NAME = re.compile(r"`([A-Za-z_]+)/?`")
ROWS = re.findall(r"^\| `(\w+)/` \| (.*) \|$", PAGE, re.MULTILINE)
ROLLING = re.findall(r"^\| `\w+` \| .* \|$", PAGE, re.MULTILINE)
NAMED = {folder: {*NAME.findall(cells)} for folder, cells in ROWS}
NAMED["models"] |= {*NAME.findall(" ".join(ROLLING))}
FOLDERS = sorted(path.parent.name for path in (ROOT / "topocaps").glob("*/__init__.py"))


def modules(folder, pattern):
    paths = [*folder.glob(f"{pattern}.py"), *folder.glob(f"{pattern}/__init__.py")]
    names = {path.parent.name if path.stem == "__init__" else path.stem for path in paths}
    return names - {folder.name}


def test_every_layer_has_a_row():
    assert sorted(NAMED) == FOLDERS


@pytest.mark.parametrize("layer", FOLDERS)
def test_the_page_names_every_module(layer):
    if layer == "metrics":
        assert "one file per metric" in PAGE
    else:
        assert modules(ROOT / "topocaps" / layer, "*") <= NAMED[layer]


@pytest.mark.parametrize("layer", FOLDERS)
def test_what_the_page_names_exists(layer):
    folder = ROOT / "topocaps" / layer
    source = "\n".join(path.read_text() for path in folder.rglob("*.py"))
    defined = {*re.findall(r"^ *(?:def|class) (\w+)", source, re.MULTILINE)}
    defined |= {*re.findall(r"^([A-Z_]+)\b.* = ", source, re.MULTILINE)}
    assert NAMED[layer] <= modules(folder, "**/*") | modules(folder, "*") | defined
