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

#: Models of a table and their results.
Rows = Sequence[tuple[BaseRecipe, Sequence[dict[str, Any]]]]
_HEAD = """# Results

`topocaps reproduce` writes this page from the files `<recipe>/seed-<n>.json` in this folder. Each
file states the settings, the edition, the precision and the gradient clip of its run."""

_LEGEND = """## How to read the tables

- *ours*: the mean over seeds ± the standard deviation. The number of seeds stands beside the model
  where it is not three. Where seeds fall into two groups, every value is listed.
- *paper*: what the paper reports.
- *untrained*: the same network before its first step. It shows how much of a number the structure
  gives without training. For a model that starts from another's weights it is a fresh network.
- *edition*: a complete set of settings. `camera-ready` has those of the released code, `letter`
  those of the camera-ready's text, `submission` those of the submission's text, and
  `submission-released` those of the submission's text with the released code's where the text is
  silent. [Differences](../docs/differences.md) lists every setting.
- *gain* is the traversal gain: 1 is a perfect prediction of unseen frames, 0 is as good as the
  sequence's mean frame, below 0 is worse than that. Frames inside a window do not count, so a
  window over the whole sequence has no gain. The models of one table predict the same frames:
  those outside a window of 5 frames in Table 1, 10 in Table 2, 13 in Tables 3 and 4, and 12 in
  Table 5. Gains of different tables do not compare.
- CapCorr takes the most favourable start where a factor loops.
- For parts and wholes, t⁰ are the presences of wholes and A⁰ their poses.
- Numbers are measured on MNIST's test images and on held-out orbits of sprites. *Rendered* sprites
  are drawn in dSprites' geometry; they are not dSprites.
- Minutes of training include runs that shared the GPU with other programs.
- *holds*: a difference counts when it is more than two standard errors over seeds. A single seed
  is given the spread of models with the same norm that were trained alike. *In part*: it holds for
  some of the numbers or seeds. *Not decided*: the difference of
  single seeds is smaller than two standard errors."""

_CONCLUSIONS_HEAD = """## Conclusions, with a lower bound and the untrained control beside them

The papers' conclusions from their tables, judged by our runs. The released estimator of log p(x)
weights a frame by its own z and u, although t depends on every u of the window. For a TVAE it is
therefore no bound. The joint estimator is a lower bound for every model. At K = 10 it is looser for
a TVAE than for a VAE, so a lower value does not show a lower likelihood."""

_CLAIMS_HEAD = """## Claims beside the tables

`topocaps reproduce claims` runs the models that these claims need. Claims about parts and wholes
use the runs of their tables."""

_SELECTION_HEAD = """## Which settings the submission's tables come nearest with

The submission's text does not state every setting. The distance of an edition from a table is the
mean, over its columns and numbers, of |ours − published| / max(our spread, published spread). It
was fixed before the runs. The smaller distance selects the edition that stands for the submission;
no conclusion on this page rests on the selection."""


def write_page(results: Results) -> Path:
    """Write README.md from the stored results."""
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
        if any(number.values(found) for _, found in rows for number in table.quantities):
            troubles = {recipe.name: results.troubles(recipe) for recipe in table.recipes}
            section = _section(name, table, rows, troubles)
            sections[name] = [section, *_pictures(results, name, table)]
    told = {name: parts for name, parts in sections.items() if parts}
    head = [_HEAD, *opening(results, told, judged), _LEGEND, GUIDE]
    parts = [part for name in told for part in (f'<a id="{name}"></a>', *told[name])]
    page = results.folder / "README.md"
    write_atomically(page, "\n\n".join([*head, *parts]) + "\n")
    return page


def _selection(results: Results) -> list[str]:
    """How far each edition of the submission's tables is from the paper."""
    lines = [["table", "`submission`", "`submission-released`", "nearer"]]
    for name in ("table3", "table4", "table5"):
        tables = TABLES[name], TABLES[f"{name}-released"]
        both = [distance(results, table.recipes, table.quantities) for table in tables]
        text, released = both
        if text is None or released is None:
            continue
        nearer = "submission" if text[0] < released[0] else "submission-released"
        cells = [f"{mean:.2f} ({count} numbers)" for mean, count in (text, released)]
        lines.append([name, *cells, f"`{nearer}`"])
    return [_SELECTION_HEAD, markdown(lines)] if lines[1:] else []


def _judged(
    results: Results, head: str, noun: str, claims: Sequence[tuple[Claim, Verdict]]
) -> list[str]:
    """Return a section of the claims that the stored results decide; none without results."""
    lines = [[noun, "verdict", "measured"]]
    for claim, found in claims:
        if found.verdict is not None:
            bad = noun == "claim" and any(results.troubles(recipe) for recipe in claim.recipes)
            trouble = "; some of these runs failed or have a diagnosis" * bad
            lines.append([claim.text, f"**{found.verdict}**", f"{found.found}{trouble}"])
    return [head, markdown(lines)] if lines[1:] else []


def _pictures(results: Results, name: str, table: Table) -> list[str]:
    """Return the pictures under a table: those of figures in full, others as links."""
    own = [f"![{name}]({name}.png)"] if (results.folder / f"{name}.png").exists() else []
    lag = {"table4": "mnist-by-lag.png", "table5": "sprites-by-lag.png"}.get(name)
    if lag and (results.folder / lag).exists():
        own.append(
            "Nats of the true frame under the rolled one, by lag. Gains are measured on the shaded "
            f"lags.\n\n![{name}]({lag})"
        )
    own += [
        f"{caption}\n\n![{name}]({name}-{kind}.png)"
        for kind, caption in PICTURES.items()
        if (results.folder / f"{name}-{kind}.png").exists()
    ]
    files = [
        (recipe, f"{recipe.name}/{table.picture}.png")
        for recipe in table.recipes
        if (results.folder / recipe.name / f"{table.picture}.png").exists()
    ]
    if table.is_figure and len(files) <= 2:
        own += [f"![{recipe.name}]({file})" for recipe, file in files]
    elif files:
        links = ", ".join(f"[{recipe.name}]({file})" for recipe, file in files)
        own.append(f"Pictures of the first seed: {links}.")
    return own


def _section(name: str, table: Table, rows: Rows, troubles: Mapping[str, Sequence[str]]) -> str:
    """Return one table, and under its title how it was made."""
    labels, groups = _columns(table)
    mixed = len({length_of(one) for _, found in rows for one in found}) > 1
    lines = [["model", "", *labels]]
    absent = [r.name for r, found in rows if not found and not troubles[r.name]]
    for recipe, found in rows:
        if recipe.name in absent:
            continue
        wrong = "".join(f"<br>{one}" for one in troubles[recipe.name])
        model = f"`{recipe.name}`<br>{recipe.about}{_count(found, mixed)}{wrong}"
        claims = table.claims.get(recipe.name, recipe.claims)
        told = [line for of, row in groups.items() for line in _lines(of, row, found, claims)]
        told = told or [[ABSENT] * (1 + len(labels))]
        lines += [[model if not n else "", *line] for n, line in enumerate(told)]
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
    everything = [one for _, found in rows for one in found]
    hours = sum(one["seconds"] / one.get("together", 1) for one in everything) / 3600
    took = f"{hours:.1f} hours" if hours >= 1 else f"{60 * hours:.1f} minutes"
    sources = ", ".join(sorted({one.get("data", "") for one in everything} - {""}))
    devices = " and ".join(sorted({one["device"] for one in everything}))
    epochs, measured = (
        _range({one.get(key) for one in everything}) for key in ("epochs", "sequences")
    )
    all_epochs = ((one["epochs"], r.training.epochs) for r, found in rows for one in found)
    short = {trained for trained, whole in all_epochs if trained != whole}
    cut = f" --epochs {short.pop()}" if len(short) == 1 else ""
    return (
        f"`topocaps reproduce {name}{cut}`: runs: {len(everything)}; epochs of each: {epochs}; "
        f"training of all runs: {took} on {devices}; data: {sources}; test sequences: {measured}. "
        f"{_settings_of(everything)}"
    )


def _settings_of(results: Sequence[Mapping[str, Any]]) -> str:
    """The edition, the precision and the gradient clip of these results."""
    told = []
    for name in ("edition", "precision", "clip"):
        values = sorted({str(one.get(name)) for one in results})
        told.append(f"{name}: {', '.join(values)}".replace("None", "none").replace(".0", ""))
    return f"{'; '.join(told)}.".capitalize()


def _columns(table: Table) -> tuple[list[str], dict[str, list[Quantity | None]]]:
    """Return the labels of columns, and the quantity of every column for each group.

    A model has lines for each group, in which quantities of one label share a column.
    """
    groups = dict.fromkeys(number.group for number in table.quantities)
    if not any(groups):
        return [number.label for number in table.quantities], {"": [*table.quantities]}
    labels = list(dict.fromkeys(number.label for number in table.quantities))
    at = {(number.group, number.label): number for number in table.quantities}
    return labels, {group: [at.get((group, label)) for label in labels] for group in groups}


def _lines(
    of: str,
    numbers: Sequence[Quantity | None],
    found: Sequence[dict[str, Any]],
    claims: Mapping[str, Any],
) -> list[list[str]]:
    """Return the lines of a model: ours, the paper's and the untrained values; none if empty."""
    written = {
        "ours": [_cell(number, found) for number in numbers],
        "paper": [_claim(number, claims) for number in numbers],
        "untrained": [
            _cell(number if number and number.control else None, _untrained(found))
            for number in numbers
        ],
    }
    return [
        [whose if not of else of if whose == "ours" else f"{of}, {whose}", *cells]
        for whose, cells in written.items()
        if any(cell != ABSENT for cell in cells)
    ]


def _cell(number: Quantity | None, found: Sequence[dict[str, Any]]) -> str:
    if number is None or not (values := number.values(found)):
        return ABSENT
    if number.largest:
        return number.write(max(values))
    if _in_two_groups(values, number.digits):
        return "; ".join(map(number.write, values))
    if len(found) == 1 and (interval := number.interval_of(found[0])):
        low, high = map(number.write, interval)
        return f"{number.write(values[0])} [{low}, {high}]"
    counted = number.digits == 0 and len(set(values)) == 1  # such as parameters
    spread = statistics.stdev(values) if len(values) > 1 and not counted else None
    some = "" if len(values) == len(found) else f" ({len(values)} of {len(found)})"
    return number.write(statistics.mean(values), spread) + some


def _in_two_groups(values: Sequence[float], digits: int) -> bool:
    """Return whether seeds fall into two groups, so that no seed is near their mean.

    They do if one gap between neighbouring values is more than three times as wide as all others
    together, a fifth of the mean, and five units of the last printed digit.
    """
    ordered = sorted(values)
    gaps = sorted(after - before for before, after in itertools.pairwise(ordered))
    if len(gaps) < 2:
        return False
    widest, others = gaps[-1], sum(gaps[:-1])
    least = max(0.2 * abs(statistics.mean(values)), 5 * 10.0**-digits)
    return widest > 3 * others and widest > least


def _claim(number: Quantity | None, claims: Mapping[str, Any]) -> str:
    value = None if number is None else number.of(claims)
    if number is None or value is None:
        return ABSENT
    mean, spread = value if isinstance(value, tuple | list) else (value, None)
    return number.write(mean, spread)


def _untrained(found: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    return [one["untrained"] for one in found if "untrained" in one]


def _count(found: Sequence[dict[str, Any]], mixed: bool) -> str:
    """Return the number of seeds unless it is three, and the epochs if they are ``mixed``."""
    seeds = [] if len(found) == 3 else [counted(len(found), "seed")]
    epochs = [f"{length} epochs" for length in dict.fromkeys(map(length_of, found)) if mixed]
    return f" ({', '.join(seeds + epochs)})" if seeds + epochs else ""


def _range(found: set[int | None]) -> str:
    known = sorted(count for count in found if count is not None)
    if not known:
        return ABSENT
    return f"{known[0]:,}" if len(known) == 1 else f"{known[0]:,} to {known[-1]:,}"
