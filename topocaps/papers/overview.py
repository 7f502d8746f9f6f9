"""The opening of the results page: what was run, and how close it is to the papers."""

from __future__ import annotations

import statistics
from collections.abc import Mapping

from topocaps.papers.judging import Distance
from topocaps.papers.results import Results
from topocaps.papers.table import Table
from topocaps.papers.tables import TABLES

_SELECTION_HEAD = """## Which settings the submission's tables come nearest with

The submission's text does not state every setting. The distance of an edition from a table is the
mean, over its columns and numbers, of |ours − published| / max(our spread, published spread). It
was fixed before the runs. The smaller distance selects the edition that stands for the submission;
no conclusion on this page rests on the selection."""


def overview(results: Results, told: Mapping[str, object]) -> list[str]:
    """What was run, by table, and how many of its numbers are close to the paper's."""
    lines = [
        "| table | models run | seeds of each | failed runs | numbers close to the paper's |",
        "|---|---|---|---|---|",
    ]
    absent = []
    for name, table in TABLES.items():
        counts = [len(results.of(recipe)) for recipe in table.recipes]
        failed = sum(results.failed(recipe) for recipe in table.recipes)
        if not any(counts) and not failed:
            absent.append(f"`{name}` ({table.title})")
            continue
        seeds = sorted({count for count in counts if count})
        shown = "–" if not seeds else " to ".join(map(str, dict.fromkeys((seeds[0], seeds[-1]))))
        title = f"[{table.title}](#{name})" if name in told else table.title
        run = sum(count > 0 for count in counts)
        lines.append(
            f"| {title} | {run} of {len(counts)} | {shown} | {failed or '–'} | "
            f"{_closeness(table, results)} |"
        )
    others = [name for name in ("conclusions", "claims", "selection") if name in told]
    links = " · ".join(f"[{name}](#{name})" for name in others)
    return [
        *([f"Start with: {links}."] if links else []),
        "\n".join(lines),
        "*Close* is within 1 nat of log p(x), 5 % of E_eq, and .06 of CapCorr. It compares a "
        "number with the paper's; a verdict below compares models with each other, or with the "
        "untrained network.",
        *([f"Not run: {'; '.join(absent)}."] if absent else []),
    ]


#: How far a number may be from the paper's to be close: by the first key, absolute or relative.
_CLOSE = {"log_px_paper": (1.0, 0.0), "equivariance_error": (0.0, 0.05), "capcorr": (0.06, 0.0)}


def _closeness(table: Table, results: Results) -> str:
    """How many numbers of a table are close to the paper's: of log p(x), of E_eq, of CapCorr."""
    counts: dict[str, list[bool]] = {}
    for recipe in table.recipes:
        for quantity in table.quantities:
            claim = quantity.of(table.claims.get(recipe.name, recipe.claims))
            values = results(recipe, quantity)
            if quantity.key[0] in _CLOSE and claim is not None and values:
                absolute, relative = _CLOSE[quantity.key[0]]
                published = claim[0] if isinstance(claim, tuple | list) else claim
                off = abs(statistics.mean(values) - published)
                label = quantity.label.split()[0].replace("log", "log p(x)")
                near = off <= absolute + relative * abs(published)
                counts.setdefault(label, []).append(near)
    told = [f"{label} {sum(near)} of {len(near)}" for label, near in counts.items()]
    return ", ".join(told) or "–"


def selection(results: Results) -> list[str]:
    """How far each edition of the submission's tables is from the paper."""
    header = "| table | `submission` | `submission-released` | nearer |"
    lines = []
    for name in ("table3", "table4", "table5"):
        tables = TABLES[name], TABLES[f"{name}-released"]
        both = [Distance(table.recipes, table.quantities).of(results) for table in tables]
        text, released = both
        if text is None or released is None:
            continue
        nearer = "submission" if text[0] < released[0] else "submission-released"
        cells = [f"{distance:.2f} ({count} numbers)" for distance, count in (text, released)]
        lines.append(f"| {name} | {' | '.join(cells)} | `{nearer}` |")
    return ["\n".join([_SELECTION_HEAD, "", header, "|---|---|---|---|", *lines])] if lines else []
