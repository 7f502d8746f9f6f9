"""Runs what the pages show, and writes what came out of it beside the code.

    python docs/tools/execute.py docs/tutorial.md examples/first_look.ipynb …

Of a page, blocks of ``python`` run in order, in one namespace; so does a block of ``sh`` whose
lines are the command ``topocaps``. A block of ``text`` that follows holds what was printed.
(``py`` and ``console`` are only shown: they need a GPU, a service, or hours.) Of a notebook, code
cells run in order. nbclient would do that too, with a kernel, its protocol and a dozen packages; a
cell here is some printed lines and a picture, so a few lines do. Lines that begin with % are the
notebook's own and are left out.
"""

from __future__ import annotations

import ast
import base64
import io
import json
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stdout
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure

ROOT = Path(__file__).resolve().parents[2]

_BLOCK = re.compile(
    r"^```(?P<kind>python|sh)\n(?P<code>.*?)^```$(?:\n\n^```text\n(?P<output>.*?)^```$)?",
    re.DOTALL | re.MULTILINE,
)


@dataclass(frozen=True)
class Block:
    """A block of code on a page, the output that stands below it, and its place in the text."""

    kind: str
    code: str
    output: str | None
    line: int
    span: tuple[int, int]  # of the output, in the text


def blocks(text: str) -> list[Block]:
    """What a page has run, in order."""
    return [
        Block(
            found["kind"],
            found["code"],
            found["output"],
            text.count("\n", 0, found.start("code")),
            found.span("output"),
        )
        for found in _BLOCK.finditer(text)
    ]


def run_page(page: Path, folder: Path) -> list[Block]:
    """The blocks of a page with what they print now; files are written into ``folder``."""
    text = page.read_text()
    names: dict[str, Any] = {"__name__": "__main__"}
    ran = []
    with inside(folder):
        for block in blocks(text):
            if block.kind == "sh":
                printed = _command(block.code)
            else:
                # lines as on the page, so that a traceback shows them
                code = compile("\n" * block.line + block.code, str(page), "exec")
                with redirect_stdout(io.StringIO()) as out:
                    exec(code, names)
                printed = out.getvalue()
            ran.append(replace(block, output=printed))
    return ran


def _command(lines: str) -> str:
    """What ``topocaps`` prints; what it says on the way is for a terminal, and left out."""
    printed = ""
    for line in lines.replace("\\\n", " ").splitlines():
        name, *given = shlex.split(line, comments=True)
        if name != "topocaps":
            raise ValueError(f"only the command topocaps is run, not {line!r}")
        paths = [str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
        done = subprocess.run(
            [sys.executable, "-m", "topocaps", *given],
            env={**os.environ, "PYTHONPATH": os.pathsep.join(paths)},
            capture_output=True,
            text=True,
        )
        if done.returncode:
            raise RuntimeError(f"{line} ended with {done.returncode}: {done.stderr}")
        printed += "".join(f"{row.rstrip()}\n" for row in done.stdout.splitlines())
    return printed


def write_page(page: Path, folder: Path) -> None:
    """Run a page, and put what was printed where the page shows it."""
    text = page.read_text()
    for before, ran in reversed(list(zip(blocks(text), run_page(page, folder), strict=True))):
        if before.output is not None:
            start, end = before.span
            text = text[:start] + (ran.output or "") + text[end:]
    page.write_text(text)


def run_notebook(
    notebook: dict[str, Any], folder: Path, names: dict[str, Any] | None = None
) -> dict[str, Any]:
    """The same notebook with the outputs of its code cells as they are now.

    The cells run in the namespace ``names``, by default a new one.
    """
    names = {} if names is None else names
    names["__name__"] = "__main__"
    cells, count = [], 0
    with inside(folder):
        for cell in notebook["cells"]:
            if cell["cell_type"] == "code":
                count += 1
                outputs = list(_outputs("".join(cell["source"]), names, count))
                cell = {**cell, "execution_count": count, "outputs": outputs}
            cells.append(cell)
    return {**notebook, "cells": cells}


def _outputs(source: str, names: dict[str, Any], count: int) -> Iterator[dict[str, Any]]:
    """What a cell prints, then the value of its last line if that is one: a picture or its text."""
    lines = ["" if line.startswith("%") else line for line in source.splitlines()]
    tree = ast.parse("\n".join(lines))
    last = tree.body.pop() if tree.body and isinstance(tree.body[-1], ast.Expr) else None
    name, value = f"cell {count}", None
    with redirect_stdout(io.StringIO()) as out:
        exec(compile(tree, name, "exec"), names)
        if isinstance(last, ast.Expr):
            value = eval(compile(ast.Expression(last.value), name, "eval"), names)
    if out.getvalue():
        text = out.getvalue().splitlines(keepends=True)
        yield {"name": "stdout", "output_type": "stream", "text": text}
    if value is not None:
        data: dict[str, Any] = {"text/plain": repr(value).splitlines(keepends=True)}
        if isinstance(value, Figure):
            data = {"image/png": _png(value), "text/plain": ["<Figure>"]}
        yield {
            "data": data,
            "execution_count": count,
            "metadata": {},
            "output_type": "execute_result",
        }


def _png(figure: Figure) -> str:
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", dpi=90, bbox_inches="tight")
    return base64.b64encode(buffer.getvalue()).decode()


def write_notebook(path: Path, folder: Path) -> None:
    """Run a notebook and store its outputs in it."""
    ran = run_notebook(json.loads(path.read_text()), folder)
    path.write_text(json.dumps(ran, indent=1, ensure_ascii=False) + "\n")


@contextmanager
def inside(folder: Path) -> Iterator[None]:
    """Relative paths are below ``folder``."""
    before = Path.cwd()
    folder.mkdir(parents=True, exist_ok=True)
    os.chdir(folder)
    try:
        yield
    finally:
        os.chdir(before)


if __name__ == "__main__":
    import tempfile

    import torch

    torch.set_num_threads(1)  # as the pages say
    for given in map(Path, sys.argv[1:]):
        with tempfile.TemporaryDirectory() as folder:
            write = write_notebook if given.suffix == ".ipynb" else write_page
            write(given.resolve(), Path(folder))
            for picture in Path(folder).glob("*.png"):  # what a page saves in its own folder
                (ROOT / "docs" / "images" / f"{given.stem}-{picture.name}").write_bytes(
                    picture.read_bytes()
                )
