"""What MkDocs does beside ``mkdocs.yml``: equations as MathML, notebooks as pages, a wider layout.

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
from mkdocs.structure.pages import Page

#: notebooks, by the page that shows them
NOTEBOOKS = {
    "first-look.md": Path("examples/first_look.ipynb"),
    "rolling-vae.md": Path("examples/rolling_vae.ipynb"),
}

_EQUATION = re.compile(
    r'<(span|div) class="arithmatex">\\([(\[])(.*?)\\[)\]]</\1>', re.DOTALL
)  # as pymdownx.arithmatex leaves them
_PRIME = re.compile(r"<msup>(<mi>\w</mi>)<mi>&#x02032;</mi></msup>")  # raised twice, hardly seen
_UNKNOWN = {r"\arg\max": r"\operatorname{argmax}", r"prod_": r"\prod_"}


def on_page_markdown(markdown: str, page: Page, **_: Any) -> str:
    """Links of Markdown files to notebooks, which work in the repository, as links to pages."""
    up = "../" * page.file.src_uri.count("/")
    for target, notebook in NOTEBOOKS.items():
        markdown = markdown.replace(f"](../{up}{notebook.as_posix()})", f"]({up}{target})")
    return markdown


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
    """Notebooks, with the outputs that are stored in them, as pages of the site."""
    root = Path(config.config_file_path or "mkdocs.yml").parent
    for page, notebook in NOTEBOOKS.items():
        content, pictures = notebook_page(root, notebook)
        files.append(File.generated(config, page, content=content))
        for name, picture in pictures.items():
            files.append(File.generated(config, name, content=picture))
    return files


def on_post_build(config: MkDocsConfig) -> None:
    """Show sidebar and tabs in windows from 1184 pixels on; the theme does from 1220 pixels."""
    assets = Path(config.site_dir) / "assets"
    for file in (*assets.rglob("*.css"), *assets.rglob("bundle.*.js")):
        text = file.read_text()
        narrower = text.replace("76.25em", "74em").replace("76.234375em", "73.984375em")
        if narrower != text:
            file.write_text(narrower)


def notebook_page(root: Path, path: Path) -> tuple[str, dict[str, bytes]]:
    """A notebook as Markdown, and its pictures by name."""
    notebook = json.loads((root / path).read_text())
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
                name = f"images/{path.stem}-{len(pictures) + 1}.png"
                pictures[name] = base64.b64decode("".join(data["image/png"]))
                parts.append(f"![Output of the cell above]({name})")
            else:
                parts.append(f"```text\n{''.join(data['text/plain']).rstrip()}\n```")
    parts.append(f"*This page is `{path.as_posix()}`, with the outputs stored in it.*")
    return "\n\n".join(parts) + "\n", pictures
