"""What MkDocs is told beside ``mkdocs.yml``: equations as MathML, and the notebook as a page.

Pages fetch nothing when they are read: browsers draw MathML by themselves.
"""

from __future__ import annotations

import base64
import html
import json
import re
from pathlib import Path
from typing import Any

from latex2mathml.converter import convert
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files

NOTEBOOK = Path("examples/first_look.ipynb")
PAGE = "first-look.md"

_EQUATION = re.compile(
    r'<(span|div) class="arithmatex">\\([(\[])(.*?)\\[)\]]</\1>', re.DOTALL
)  # as pymdownx.arithmatex leaves them
_PRIME = re.compile(r"<msup>(<mi>\w</mi>)<mi>&#x02032;</mi></msup>")  # raised twice, hardly seen
_UNKNOWN = {r"\arg\max": r"\operatorname{argmax}", r"prod_": r"\prod_"}


def on_page_content(content: str, **_: Any) -> str:
    """Equations of a page, those of docstrings too, as MathML."""
    return _EQUATION.sub(_mathml, content)


def _mathml(found: re.Match[str]) -> str:
    tex = html.unescape(found[3]).strip()
    for written, known in _UNKNOWN.items():
        tex = re.sub(rf"(?<!\\){re.escape(written)}", lambda _, known=known: known, tex)
    block = found[2] == "["
    made = convert(tex, display="block" if block else "inline")
    made = _PRIME.sub(r"<mrow>\1<mo>&#x02032;</mo></mrow>", made)
    return f'<div class="equation">{made}</div>' if block else made


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """The notebook, with the outputs that are stored in it, as a page of the site."""
    root = Path(config.config_file_path or "mkdocs.yml").parent
    page, pictures = notebook_page(json.loads((root / NOTEBOOK).read_text()))
    files.append(File.generated(config, PAGE, content=page))
    for name, content in pictures.items():
        files.append(File.generated(config, name, content=content))
    return files


def notebook_page(notebook: dict[str, Any]) -> tuple[str, dict[str, bytes]]:
    """A notebook as Markdown, and its pictures by name."""
    parts: list[str] = []
    pictures: dict[str, bytes] = {}
    for cell in notebook["cells"]:
        source = "".join(cell["source"])
        if cell["cell_type"] == "markdown":
            parts.append(source)
            continue
        parts.append(f"```python\n{source}\n```")
        for output in cell["outputs"]:
            data = output.get("data", {"text/plain": output.get("text", "")})
            if "image/png" in data:
                name = f"images/first-look-{len(pictures) + 1}.png"
                pictures[name] = base64.b64decode("".join(data["image/png"]))
                parts.append(f"![Output of the cell above]({name})")
            else:
                parts.append(f"```text\n{''.join(data['text/plain']).rstrip()}\n```")
    parts.append(f"*This page is `{NOTEBOOK.as_posix()}`, with the outputs stored in it.*")
    return "\n\n".join(parts) + "\n", pictures
