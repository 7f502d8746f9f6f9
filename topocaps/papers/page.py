"""The page of results: the papers' tables, figures and claims beside the measured numbers."""

from __future__ import annotations

import itertools
import statistics
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from topocaps.errors import counted
from topocaps.io import write_atomically
from topocaps.papers.claims import CLAIMS, CONCLUSIONS, OF_PARTS
from topocaps.papers.judging import Claim, Verdict, distance
from topocaps.papers.opening import opening
from topocaps.papers.pictures import PICTURES
from topocaps.papers.pictures import draw as draw
from topocaps.papers.results import Results, length_of
from topocaps.papers.rolling_tables import GUIDE
from topocaps.papers.table import Table, markdown
from topocaps.papers.tables import TABLES
from topocaps.study.quantity import ABSENT, Quantity
from topocaps.study.recipe import BaseRecipe

#: The recipes of a table and their results.
Rows = Sequence[tuple[BaseRecipe, Sequence[dict[str, Any]]]]
_HEAD = """# Results

`topocaps reproduce` writes this page from the files `<recipe>/seed-<n>.json` in this folder. Each
file states the settings, the edition, the precision and the gradient clip of its run."""

_LEGEND = """## How to read the tables

- *ours*: the mean over seeds ± the standard deviation. The number of seeds stands beside the model
  if it is not three. If seeds fall into two groups, every value is listed.
- *paper*: the number that the paper reports.
- *untrained*: the same network before its first step. It shows how much of a number is due to the
  structure of the model. For a model that starts from the weights of another one, it is a newly
  initialised network.
- *edition*: a complete set of settings. `camera-ready` has those of the released code, `letter`
  those of the camera-ready's text, `submission` those of the submission's text. In
  `submission-released`, the released code's settings replace those that the submission's text does
  not state. [Differences](../docs/differences.md) lists every setting.
- *gain* is the traversal gain: 1 is a perfect prediction of unseen frames, 0 is as good as the
  sequence's mean frame, below 0 is worse. Frames inside a window do not count, so a window over the
  whole sequence has no gain. The models of one table predict the same frames: those outside a
  window of 5 frames in Table 1, 10 in Table 2, 13 in Tables 3 and 4, and 12 in Table 5. Gains of
  different tables do not compare.
- *CapCorr* takes the most favourable start if a factor loops within a sequence.
- *t⁰* are the presences of wholes, *A⁰* their poses.
- Numbers are measured on MNIST's test images and on held-out orbits of sprites. *Rendered* sprites
  are drawn in dSprites' geometry; they are not dSprites.
- Training times include those of runs that shared the GPU with other programs.
- *holds*: a difference counts if it is more than two standard errors over seeds. The spread of a
  single seed is taken from models with the same norm that were trained alike. *In part*: it holds
  for some of the numbers or seeds. *Not decided*: a difference between single seeds is smaller than
  two standard errors."""

_CONCLUSIONS_HEAD = """## Conclusions, with a lower bound and the untrained control beside them

These are the papers' conclusions from their tables, judged by our runs. The released estimator of
log p(x) weights a frame by its own z and u, although t depends on every u of the window. So it is
not a bound for a TVAE. The joint estimator is a lower bound for every model. At K = 10 it is looser
for a TVAE than for a VAE, so a lower value does not show a lower likelihood."""

_CLAIMS_HEAD = """## Claims beside the tables

`topocaps reproduce claims` runs the models that these claims need. Claims about parts and wholes
use the runs of their tables."""

_SELECTION_HEAD = """## Which edition is nearest to the submission's tables

The submission's text does not state every setting. The distance of an edition from a table is the
mean of |ours − published| / max(our spread, published spread) over the numbers of the table. This
definition was fixed before the runs. The edition with the smaller distance is selected to represent
the submission. No conclusion on this page rests on the selection."""


def write_page(results: Results) -> Path:
    """Write README.md from the stored results, and return its path."""
    judged = {
        "conclusions": [(claim, claim.judge(results)) for claim in CONCLUSIONS],
        "claims": [(claim, claim.judge(results)) for claim in (*CLAIMS, *OF_PARTS)],
    }
    sections = {
        "conclusions": _judged(results, _CONCLUSIONS_HEAD, "conclusion", judged["conclusions"]),
        "claims": _judged(results, _CLAIMS_HEAD, "claim", judged["claims"]),
        "selection": _selection(results),
    }
    for name, table in TABLES.items():
        rows = [(recipe, results.of(recipe)) for recipe in table.recipes]
        if any(number.values(stored) for _, stored in rows for number in table.quantities):
            troubles = {recipe.name: results.troubles(recipe) for recipe in table.recipes}
            section = _section(name, table, rows, troubles)
            sections[name] = [section, *_pictures(results, name, table)]
    sections = {name: parts for name, parts in sections.items() if parts}
    head = [_HEAD, *opening(results, sections, judged), _LEGEND, GUIDE]
    parts = [part for name in sections for part in (f'<a id="{name}"></a>', *sections[name])]
    page = results.folder / "README.md"
    write_atomically(page, "\n\n".join([*head, *parts]) + "\n")
    return page


def _selection(results: Results) -> list[str]:
    """Return the section on the distance of each edition from the submission's tables."""
    lines = [["table", "`submission`", "`submission-released`", "nearer"]]
    for name in ("table3", "table4", "table5"):
        tables = TABLES[name], TABLES[f"{name}-released"]
        text, released = (distance(results, t.recipes, t.quantities) for t in tables)
        if text is None or released is None:
            continue
        nearer = "submission" if text[0] < released[0] else "submission-released"
        cells = [f"{mean:.2f} ({count} numbers)" for mean, count in (text, released)]
        lines.append([name, *cells, f"`{nearer}`"])
    return [_SELECTION_HEAD, markdown(lines)] if lines[1:] else []


def _judged(
    results: Results, head: str, noun: str, claims: Sequence[tuple[Claim, Verdict]]
) -> list[str]:
    """Return a section of the claims whose runs are stored; an empty list if there are none."""
    lines = [[noun, "verdict", "measured"]]
    for claim, judged in claims:
        if judged.verdict is not None:
            bad = noun == "claim" and any(results.troubles(recipe) for recipe in claim.recipes)
            trouble = "; some of these runs failed or have a diagnosis" * bad
            lines.append([claim.text, f"**{judged.verdict}**", f"{judged.numbers}{trouble}"])
    return [head, markdown(lines)] if lines[1:] else []


def _pictures(results: Results, name: str, table: Table) -> list[str]:
    """Return the pictures under a table. Those of figures are embedded, others are links."""
    pictures = [f"![{name}]({name}.png)"] if (results.folder / f"{name}.png").exists() else []
    lag = {"table4": "mnist-by-lag.png", "table5": "sprites-by-lag.png"}.get(name)
    if lag and (results.folder / lag).exists():
        pictures.append(
            "The cost in nats of predicting the frame at each lag by a roll. Gains are measured on "
            f"the shaded lags.\n\n![{name}]({lag})"
        )
    pictures += [
        f"{caption}\n\n![{name}]({name}-{ending}.png)"
        for ending, caption in PICTURES.items()
        if (results.folder / f"{name}-{ending}.png").exists()
    ]
    files = [
        (recipe, f"{recipe.name}/{table.picture}.png")
        for recipe in table.recipes
        if (results.folder / recipe.name / f"{table.picture}.png").exists()
    ]
    if table.is_figure and len(files) <= 2:
        pictures += [f"![{recipe.name}]({file})" for recipe, file in files]
    elif files:
        links = ", ".join(f"[{recipe.name}]({file})" for recipe, file in files)
        pictures.append(f"Pictures of the first seed: {links}.")
    return pictures


def _section(name: str, table: Table, rows: Rows, troubles: Mapping[str, Sequence[str]]) -> str:
    """Return a table with its title, its note, and how its runs were made."""
    labels, groups = _columns(table)
    mixed = len({length_of(result) for _, stored in rows for result in stored}) > 1
    lines = [["model", "", *labels]]
    absent = [r.name for r, stored in rows if not stored and not troubles[r.name]]
    for recipe, stored in rows:
        if recipe.name in absent:
            continue
        problems = "".join(f"<br>{trouble}" for trouble in troubles[recipe.name])
        model = f"`{recipe.name}`<br>{recipe.about}{_count(stored, mixed)}{problems}"
        claims = table.claims.get(recipe.name, recipe.claims)
        of_model = [
            line for group, row in groups.items() for line in _lines(group, row, stored, claims)
        ] or [[ABSENT] * (1 + len(labels))]
        lines += [[model if not n else "", *line] for n, line in enumerate(of_model)]
    columns = zip(*lines, strict=True)
    used = [cells for cells in columns if any(cell not in (ABSENT, "") for cell in cells[1:])]
    shown = list(zip(*used, strict=True))
    about = [table.note] if table.note else []
    parts = [f"## {table.title}", *about, _made(name, rows), markdown(shown)]
    if absent:
        parts.append(f"Not run: {', '.join(f'`{name}`' for name in absent)}.")
    return "\n\n".join(parts)


def _made(name: str, rows: Rows) -> str:
    """Return the command of a table, and its runs, training time, devices, data and settings."""
    results = [result for _, stored in rows for result in stored]
    hours = sum(one["seconds"] / one.get("together", 1) for one in results) / 3600
    time = f"{hours:.1f} hours" if hours >= 1 else f"{60 * hours:.1f} minutes"
    sources = ", ".join(sorted({one.get("data", "") for one in results} - {""}))
    devices = " and ".join(sorted({one["device"] for one in results}))
    epochs, measured = (
        _range({one.get(key) for one in results}) for key in ("epochs", "sequences")
    )
    all_epochs = ((one["epochs"], r.training.epochs) for r, stored in rows for one in stored)
    shortened = {trained for trained, full in all_epochs if trained != full}
    option = f" --epochs {shortened.pop()}" if len(shortened) == 1 else ""
    return (
        f"`topocaps reproduce {name}{option}`: runs: {len(results)}; epochs of each: {epochs}; "
        f"training of all runs: {time} on {devices}; data: {sources}; test sequences: {measured}. "
        f"{_settings_of(results)}"
    )


def _settings_of(results: Sequence[Mapping[str, Any]]) -> str:
    """Return the edition, the precision and the gradient clip of these results."""
    settings = []
    for name in ("edition", "precision", "clip"):
        values = sorted({str(result.get(name)) for result in results})
        settings.append(f"{name}: {', '.join(values)}".replace("None", "none").replace(".0", ""))
    return f"{'; '.join(settings)}.".capitalize()


def _columns(table: Table) -> tuple[list[str], dict[str, list[Quantity | None]]]:
    """Return the labels of columns and, for each group, the quantities of its columns.

    A model has lines for each group. Quantities with the same label share a column.
    """
    groups = dict.fromkeys(number.group for number in table.quantities)
    if not any(groups):
        return [number.label for number in table.quantities], {"": [*table.quantities]}
    labels = list(dict.fromkeys(number.label for number in table.quantities))
    by_place = {(number.group, number.label): number for number in table.quantities}
    return labels, {group: [by_place.get((group, label)) for label in labels] for group in groups}


def _lines(
    group: str,
    numbers: Sequence[Quantity | None],
    stored: Sequence[dict[str, Any]],
    claims: Mapping[str, Any],
) -> list[list[str]]:
    """Return the lines of a model in a group: ours, the paper's and the untrained model's.

    Lines without a number are left out.
    """
    lines = {
        "ours": [_cell(number, stored) for number in numbers],
        "paper": [_claim(number, claims) for number in numbers],
        "untrained": [
            _cell(number if number and number.control else None, _untrained(stored))
            for number in numbers
        ],
    }
    return [
        [line if not group else group if line == "ours" else f"{group}, {line}", *cells]
        for line, cells in lines.items()
        if any(cell != ABSENT for cell in cells)
    ]


def _cell(number: Quantity | None, stored: Sequence[dict[str, Any]]) -> str:
    """Return the text of a number over all seeds."""
    if number is None or not (values := number.values(stored)):
        return ABSENT
    if number.largest:
        return number.write(max(values))
    if _in_two_groups(values, number.digits):
        return "; ".join(map(number.write, values))
    if len(stored) == 1 and (interval := number.interval_of(stored[0])):
        low, high = map(number.write, interval)
        return f"{number.write(values[0])} [{low}, {high}]"
    is_constant = number.digits == 0 and len(set(values)) == 1  # such as the number of parameters
    spread = statistics.stdev(values) if len(values) > 1 and not is_constant else None
    count = "" if len(values) == len(stored) else f" ({len(values)} of {len(stored)})"
    return number.write(statistics.mean(values), spread) + count


def _in_two_groups(values: Sequence[float], digits: int) -> bool:
    """Return whether the values of seeds fall into two groups, so that no value is near the mean.

    They do if one gap between neighbouring values is more than three times as wide as all other
    gaps together, wider than a fifth of the mean, and wider than five units of the last printed
    digit.
    """
    ordered = sorted(values)
    gaps = sorted(after - before for before, after in itertools.pairwise(ordered))
    if len(gaps) < 2:
        return False
    widest, others = gaps[-1], sum(gaps[:-1])
    least = max(0.2 * abs(statistics.mean(values)), 5 * 10.0**-digits)
    return widest > 3 * others and widest > least


def _claim(number: Quantity | None, claims: Mapping[str, Any]) -> str:
    """Return the text of a number that the paper reports."""
    value = None if number is None else number.of(claims)
    if number is None or value is None:
        return ABSENT
    mean, spread = value if isinstance(value, tuple | list) else (value, None)
    return number.write(mean, spread)


def _untrained(stored: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the numbers of the untrained models of results."""
    return [result["untrained"] for result in stored if "untrained" in result]


def _count(stored: Sequence[dict[str, Any]], mixed: bool) -> str:
    """Return the number of seeds unless it is three, and the epochs if they are ``mixed``."""
    seeds = [] if len(stored) == 3 else [counted(len(stored), "seed")]
    epochs = [f"{length} epochs" for length in dict.fromkeys(map(length_of, stored)) if mixed]
    return f" ({', '.join(seeds + epochs)})" if seeds + epochs else ""


def _range(counts: set[int | None]) -> str:
    """Return the smallest and the largest of some counts as text."""
    known = sorted(count for count in counts if count is not None)
    if not known:
        return ABSENT
    return f"{known[0]:,}" if len(known) == 1 else f"{known[0]:,} to {known[-1]:,}"
