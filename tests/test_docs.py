"""What the documentation shows runs as it stands: pages, the notebook, examples in docstrings.

Nothing here needs the packages that make the site, nor a network; where MkDocs is installed, the
site is built too.
"""

import ast
import doctest
import importlib
import importlib.util
import json
import pkgutil
import re
import sys
from pathlib import Path

import pytest

import topocaps

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
PAGES = [page for page in sorted(DOCS.rglob("*.md")) if "```python" in page.read_text()]
MODULES = [one.name for one in pkgutil.walk_packages(topocaps.__path__, "topocaps.")]
NOTEBOOK_PAGES = {"first-look.md", "rolling-vae.md"}  # written when the site is built
NUMBER = re.compile(r"[-−]?\d+(?:[.,]\d+)*(?:e-?\d+)?")


def tool(name):
    """A script of docs/tools, which is no package."""
    spec = importlib.util.spec_from_file_location(f"docs_{name}", DOCS / "tools" / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # where dataclasses look their annotations up
    spec.loader.exec_module(module)
    return module


def words(text):
    """Without what another machine rounds differently: numbers, and the columns they widen."""
    return re.sub(r"\s+", " ", NUMBER.sub("#", text)).strip()


@pytest.fixture(autouse=True)
def offline(monkeypatch):
    """Whoever asks for a connection fails."""

    def refuse(*_, **__):
        raise AssertionError("documentation asked for the network")

    monkeypatch.setattr("socket.socket.connect", refuse)
    monkeypatch.setattr("socket.getaddrinfo", refuse)


@pytest.mark.filterwarnings("ignore:`isinstance.treespec, LeafSpec.`:FutureWarning")
@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(DOCS).as_posix())
def test_a_page_runs_and_prints_what_it_shows(page, tmp_path):
    execute = tool("execute")
    shown = execute.blocks(page.read_text())
    for before, ran in zip(shown, execute.run_page(page, tmp_path), strict=True):
        assert words(before.output or "") == words(ran.output), f"{page.name}, line {before.line}"


def test_the_tutorial_is_run_as_a_whole():
    """No block of it is only shown."""
    text = (DOCS / "tutorial.md").read_text()
    kinds = re.findall(r"^```(\w+)$", text, re.MULTILINE)
    assert set(kinds) == {"python", "sh", "text"}
    assert "```text\n```" not in text


def test_the_notebook_runs_and_gives_what_is_stored(tmp_path):
    notebook = json.loads((ROOT / "examples" / "first_look.ipynb").read_text())
    ran = tool("execute").run_notebook(notebook, tmp_path)
    pictures = 0
    for before, now in zip(notebook["cells"], ran["cells"], strict=True):
        kept, made = before.get("outputs", []), now.get("outputs", [])
        assert [kinds(output) for output in kept] == [kinds(output) for output in made]
        pictures += sum("image/png" in kinds(output) for output in made)
        assert words(said(kept)) == words(said(made))
    assert pictures == 6


def kinds(output):
    return sorted(output.get("data", {"stream": ""}))


def said(outputs):
    return "".join("".join(output.get("text", [])) for output in outputs)


@pytest.mark.parametrize("name", MODULES)
def test_examples_in_docstrings(name):
    if name == "topocaps.training.kernels":
        pytest.importorskip("triton")
    if name == "topocaps.__main__":
        return  # it is the command
    module = importlib.import_module(name)
    found = doctest.testmod(module, optionflags=doctest.NORMALIZE_WHITESPACE)
    assert found.failed == 0


def test_main_nouns_have_an_example():
    finder = doctest.DocTestFinder()
    modules = (
        "latents.topography",
        "latents.student_t",
        "models.topographic",
        "models.rolling",
        "models.evidence",
        "metrics.equivariance",
    )
    for name in modules:
        module = importlib.import_module(f"topocaps.{name}")
        assert any(test.examples for test in finder.find(module)), name


def test_pictures_of_w_are_the_ones_that_are_shown(tmp_path):
    """Every picture can be drawn, and the pages show it."""
    concepts = (DOCS / "concepts.md").read_text()
    for path in tool("pictures").draw(tmp_path):
        assert path.stat().st_size > 5_000
        assert f"images/{path.name}" in concepts and (DOCS / "images" / path.name).exists()


def test_links_between_pages_lead_somewhere():
    for page in DOCS.rglob("*.md"):
        for target in re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", page.read_text()):
            there = page.parent / target
            assert there.exists() or there.name in NOTEBOOK_PAGES, f"{page.name}: {target}"


def test_messages_on_the_pages_are_those_of_the_package():
    """A table of what can go wrong quotes messages as the package raises them."""
    package = Path(topocaps.__path__[0])
    nodes = (n for file in package.rglob("*.py") for n in ast.walk(ast.parse(file.read_text())))
    said = [n.value for n in nodes if isinstance(n, ast.Constant) and isinstance(n.value, str)]
    for page in (DOCS / "how-to").glob("*.md"):
        text = page.read_text()
        assert "| message | cause | fix |" in text, page.name
        table = text.partition("| message | cause | fix |")[2]
        for message in re.findall(r"^\| `([^`]+)` \|", table, re.MULTILINE):
            assert any(message in one for one in said), f"{page.name}: {message}"


def test_every_page_is_in_the_navigation():
    listed = (ROOT / "mkdocs.yml").read_text()
    for page in DOCS.rglob("*.md"):
        assert f"{page.relative_to(DOCS).as_posix()}\n" in listed


def test_the_site_builds_without_a_warning(tmp_path, monkeypatch):
    build = pytest.importorskip("mkdocs.commands.build")
    pytest.importorskip("mkdocstrings")
    pytest.importorskip("material")
    from mkdocs.config import load_config

    monkeypatch.setenv("NO_MKDOCS_2_WARNING", "1")
    monkeypatch.chdir(ROOT)
    config = load_config("mkdocs.yml", strict=True, site_dir=str(tmp_path))
    build.build(config)
    text = (tmp_path / "concepts.html").read_text()
    assert "<math" in text and "arithmatex" not in text
    fetched = re.findall(r'(?:src|href)="(?:https?:)?//[^"]+\.(?:js|css|woff2?)"', text)
    assert not fetched
