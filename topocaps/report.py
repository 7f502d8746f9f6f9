"""``report.html``: tables, figures and settings in one file that opens offline."""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from html import escape
from pathlib import Path
from typing import Any

from topocaps.version import __version__

NONE = "–"


@dataclass(frozen=True)
class Section:
    """A part of a report: a table, figures with captions, settings to unfold."""

    title: str
    text: str
    table: list[list[str]]
    figures: list[tuple[Path, str]] = field(default_factory=list)
    settings: dict[str, Any] | None = None
    #: what rows of the table mean, by what is in their names
    legend: Mapping[str, str] = field(default_factory=dict)


STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; max-width: 72rem; margin: 2rem auto; padding: 0 1rem;
  color: #1c1e21; background: #fff }
h1 { font-size: 1.6rem } h2 { margin-top: 2.5rem; border-top: 1px solid #d8dbe0; padding-top: 1rem }
.wide { overflow-x: auto } table { border-collapse: collapse; font-variant-numeric: tabular-nums }
th, td { padding: .3rem .7rem; text-align: right; white-space: nowrap }
th { font-weight: 600; border-bottom: 1px solid #8a8f98; vertical-align: bottom;
  white-space: normal }
td:first-child, th:first-child { text-align: left } tr:nth-child(even) td { background: #f5f6f8 }
figure { margin: 1.5rem 0 } figure img { max-width: 100%; height: auto }
figcaption, dl, .small { color: #5a5f68; font-size: .9rem } dt { font-weight: 600 }
pre { background: #f5f6f8; padding: 1rem; overflow-x: auto; font-size: .85rem }
"""


def page(title: str, sections: Sequence[Section]) -> str:
    """The report: everything it shows is inside it."""
    parts = [
        "<!doctype html>",
        f'<html lang="en"><head><meta charset="utf-8"><title>{escape(title)}</title>',
        '<meta name="viewport" content="width=device-width, initial-scale=1">',
        f"<style>{STYLE}</style></head><body>",
        f"<h1>{escape(title)}</h1>",
        f'<p class="small">Written by topocaps {__version__}.</p>',
    ]
    for section in sections:
        if section.title != title:
            parts.append(f"<h2>{escape(section.title)}</h2>")
        parts.append(f"<p>{escape(section.text)}</p>")
        parts.append(_table(section.table))
        parts.append(_legend(section.legend, [row[0] for row in section.table]))
        parts += [_figure(path, caption) for path, caption in section.figures]
        if section.settings is not None:
            settings = escape(json.dumps(section.settings, indent=2))
            parts.append(f"<details><summary>Settings</summary><pre>{settings}</pre></details>")
    parts.append("</body></html>\n")
    return "\n".join(parts)


def _table(rows: list[list[str]]) -> str:
    header, *body = rows
    head = "".join(f"<th>{escape(cell)}</th>" for cell in header)
    lines = ["".join(f"<td>{escape(cell)}</td>" for cell in row) for row in body]
    inside = "".join(f"<tr>{line}</tr>" for line in lines)
    whole = f"<table><thead><tr>{head}</tr></thead><tbody>{inside}</tbody></table>"
    return f'<div class="wide">{whole}</div>'


def _legend(told: Mapping[str, str], labels: Sequence[str]) -> str:
    """What is told of rows that are there; a name may stand for several, with commas between."""
    lines = [
        f"<dt>{escape(names)}</dt><dd>{escape(text)}</dd>"
        for names, text in told.items()
        if any(name in label for name in names.split(", ") for label in labels)
    ]
    return f"<dl>{''.join(lines)}</dl>" if lines else ""


def _figure(path: Path, caption: str) -> str:
    data = base64.b64encode(path.read_bytes()).decode()
    return (
        f'<figure><img alt="{escape(caption)}" src="data:image/png;base64,{data}">'
        f"<figcaption>{escape(caption)}</figcaption></figure>"
    )
