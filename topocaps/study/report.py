"""``report.html``: tables, figures and settings in one file that opens without a network."""

from __future__ import annotations

import base64
import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from html import escape
from pathlib import Path
from typing import Any

from topocaps.data.sequences import SequenceSet
from topocaps.errors import counted
from topocaps.io import make_folder
from topocaps.metrics.intervals import at_the_ends
from topocaps.study import drawing, figures
from topocaps.study.evaluation import evaluation_of
from topocaps.study.finished import Finished
from topocaps.study.quantity import table
from topocaps.version import __version__


@dataclass(frozen=True)
class Section:
    """A section of a report: text, a table, figures with captions, and settings to unfold."""

    title: str
    text: str
    table: list[list[str]]
    figures: list[tuple[Path, str]] = field(default_factory=list)
    settings: dict[str, Any] | None = None
    #: explanations of the terms in the table
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
    """Return the HTML of a report. It contains the figures, and refers to no other file."""
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
        parts.append(_legend(section.legend))
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
    rows_html = "".join(f"<tr>{line}</tr>" for line in lines)
    table_html = f"<table><thead><tr>{head}</tr></thead><tbody>{rows_html}</tbody></table>"
    return f'<div class="wide">{table_html}</div>'


def _legend(legend: Mapping[str, str]) -> str:
    lines = [f"<dt>{escape(term)}</dt><dd>{escape(text)}</dd>" for term, text in legend.items()]
    return f"<dl>{''.join(lines)}</dl>" if lines else ""


def _figure(path: Path, caption: str) -> str:
    data = base64.b64encode(path.read_bytes()).decode()
    return (
        f'<figure><img alt="{escape(caption)}" src="data:image/{path.suffix[1:]};base64,{data}">'
        f"<figcaption>{escape(caption)}</figcaption></figure>"
    )


def compare(runs: list[Finished[Any]]) -> list[list[str]]:
    """Return a table with a column for every run and one for the untrained model of the first run.

    The first row is the header.
    """
    counts = Counter(run.name for run in runs)
    columns: dict[str, Any] = {}
    for run in runs:
        label = run.name + f", seed {run.metrics['seed']}" * (counts[run.name] > 1)
        columns[label if label not in columns else f"{label}, {run.folder.path}"] = run.metrics
    columns[f"{runs[0].name}, untrained"] = runs[0].metrics["untrained"]
    return table(evaluation_of(runs[0].model).quantities(list(columns.values())), columns)


def section(run: Finished[Any]) -> Section:
    """Return the section on one run."""
    evaluation = evaluation_of(run.model)
    captions = evaluation.captions
    files = {name: drawing.saved(run.folder.figures, name) for name in captions}
    metrics = run.metrics
    low, high = at_the_ends(metrics) if "intervals" in metrics else (None, None)
    columns = {
        metrics["split"]: metrics,
        **({"95 % from": low, "to": high} if low and high else {}),
        "training": metrics["train"],
        "untrained": metrics["untrained"],
    }
    quantities = evaluation.quantities(list(columns.values()))
    return Section(
        title=run.name,
        text=f"{run.recipe.about[:1].upper()}{run.recipe.about[1:]}. "
        f"{counted(metrics['epochs'], 'epoch')} in {metrics['seconds']:.0f} s "
        f"on {metrics['device']}{_shared(metrics)}, seed {metrics['seed']}; "
        f"{counted(metrics['sequences'], 'sequence')} evaluated."
        + (f" {metrics['complaint']}." if metrics.get("complaint") else "")
        + "".join(f" {remark}" for remark in evaluation.remarks(metrics)),
        table=table(quantities, columns),
        figures=[(file, caption) for name, caption in captions.items() if (file := files[name])],
        settings=run.folder.settings(),
        legend=dict(q.legend for q in quantities if q.legend),
    )


def _shared(metrics: dict[str, Any]) -> str:
    """Return a remark if several models trained together and so shared the seconds."""
    together = metrics.get("together", 1)
    return f" ({together} models at once)" if together > 1 else ""


def draw_figures(run: Finished[Any], held_out: SequenceSet) -> None:
    """Draw all figures of a run into its folder."""
    make_folder(run.folder.figures)
    history = {"history": figures.history(run.folder.records())}
    for name, figure in {**evaluation_of(run.model).draw(run, held_out), **history}.items():
        drawing.save(figure, run.folder.figures, name)
