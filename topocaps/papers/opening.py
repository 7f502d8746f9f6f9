"""The opening of the results page: a summary of the results, and the list of runs."""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

from topocaps.papers.judging import DOES_NOT, HOLDS, IN_PART, UNDECIDED, Claim, Verdict
from topocaps.papers.results import Results
from topocaps.papers.table import Table, markdown
from topocaps.papers.tables import TABLES
from topocaps.study.quantity import ABSENT

#: By the first key of a number: the absolute and the relative distance from the paper's number
#: within which ours is close to it.
_CLOSE = {"log_px_paper": (1.0, 0.0), "equivariance_error": (0.0, 0.05), "capcorr": (0.06, 0.0)}
_DATA = {"mnist": "MNIST", "sprites": "sprites"}  # by the first part of the name of a recipe
_LABELS = {"log_px_paper": "log p(x)", "equivariance_error": "E_eq", "capcorr": "CapCorr"}
_EXPLAINED = "- [Findings](../docs/findings.md) explains what the models learn."
_COUNTED = {HOLDS: "hold", IN_PART: "hold in part", DOES_NOT: "do not hold"}
_CLOSENESS = (
    "A number is *close* to the paper's within 1 nat of log p(x), 5 % of E_eq, or 0.06 of CapCorr. "
    "The verdicts below compare models with each other, or with the untrained network."
)
#: Tables of predictions that the opening quotes, by their data.
_PREDICTIONS = {
    "letters never seen": "letters-models",
    "MNIST digits": "rolling-mnist",
    "sprites": "rolling-sprites",
}

Judged = Mapping[str, Sequence[tuple[Claim, Verdict]]]


def opening(results: Results, section_names: Iterable[str], judged: Judged) -> list[str]:
    """Return the first parts of the page.

    Args:
        section_names: names of the sections of the page, to which the opening links.
        judged: claims and verdicts, by section.
    """
    sections = set(section_names)
    lines = [*_reproduced(results), *_verdicts(judged), *_predictions(results, sections)]
    short = ["## In short", "\n".join([*lines, _EXPLAINED])] if lines else []
    return [*short, *_what_was_run(results, sections)]


def _reproduced(results: Results) -> list[str]:
    """Return lines on how many numbers are close to the papers', by data."""
    close: dict[str, dict[str, dict[tuple[object, ...], bool]]] = {}
    for table in TABLES.values():
        for recipe, key, near in _compared(table, results):
            of_data = close.setdefault(_DATA[recipe.split("/")[0]], {})
            of_data.setdefault(_LABELS[key[0]], {})[recipe, key] = near
    shares = [
        f"{data}: {', '.join(_share(label, near.values()) for label, near in labels.items())}"
        for data, labels in close.items()
    ]
    if not shares:
        return []
    lines = [f"- **Numbers close to the papers'**: {'; '.join(shares)}."]
    missing = [f"`{name}`" for name in ("table1", "table2") if not _has_runs(TABLES[name], results)]
    if missing:
        lines.append(
            f"- The settings of the released code have not been run ({', '.join(missing)}). The "
            "papers' numbers were made with them. [Differences](../docs/differences.md) lists how "
            "the settings of the text differ from them."
        )
    return lines


def _has_runs(table: Table, results: Results) -> bool:
    return any(results.of(recipe) or results.failed(recipe) for recipe in table.recipes)


def _verdicts(judged: Judged) -> list[str]:
    """Return lines on how many claims hold, by section."""
    lines = []
    for name, claims in judged.items():
        counts = Counter(v.verdict for _, v in claims if v.verdict is not None)
        if counts:
            parts = [f"{counts[key]} {verb}" for key, verb in _COUNTED.items() if counts[key]]
            if counts[UNDECIDED]:
                parts.append(f"{counts[UNDECIDED]} are not decided (single seeds)")
            lines.append(f"- **[The papers' {name}](#{name})**: {', '.join(parts)}.")
    return lines


def _predictions(results: Results, sections: set[str]) -> list[str]:
    """Return lines on the gains of models on hidden frames."""
    lines = []
    for data, name in _PREDICTIONS.items():
        quantities = TABLES[name].quantities
        gain = next(q for q in quantities if q.label == "5 visible" and not q.group)
        gains = [
            f"`{recipe.name}` {gain.write(statistics.mean(values))}"
            for recipe in TABLES[name].recipes
            if (values := results(recipe, gain))
        ]
        if gains and name in sections:
            lines.append(f"  - [{data}](#{name}): {', '.join(gains)}")
    head = (
        "- **Gain on hidden frames** with 5 visible frames (1 is perfect, 0 is as good as the mean "
        "frame):"
    )
    return [head, *lines] if lines else []


def _what_was_run(results: Results, sections: set[str]) -> list[str]:
    """Return the table of runs, and how many numbers of each table are close to the paper's."""
    header = ("table", "models run", "seeds of each", "failed runs", "numbers close to the paper's")
    lines: list[Sequence[str]] = [header]
    absent, complete = [], 0
    for name, table in TABLES.items():
        counts = [len(results.of(recipe)) for recipe in table.recipes]
        failed = sum(results.failed(recipe) for recipe in table.recipes)
        if not _has_runs(table, results):
            absent.append(f"`{name}` ({table.title})")
            continue
        seeds = sorted({count for count in counts if count})
        span = ABSENT if not seeds else " to ".join(map(str, dict.fromkeys((seeds[0], seeds[-1]))))
        title = f"[{table.title}](#{name})" if name in sections else table.title
        complete += all(counts)
        models = f"{sum(count > 0 for count in counts)} of {len(counts)}"
        lines.append([title, models, span, str(failed or ABSENT), _closeness(table, results)])
    return [
        "## What was run",
        f"Of {len(TABLES)} tables and figures, {complete} have runs of all their models, "
        f"{len(lines) - 1 - complete} of some of them, and {len(absent)} of none.",
        markdown(lines),
        _CLOSENESS,
        *([f"Not run: {'; '.join(absent)}."] if absent else []),
    ]


def _closeness(table: Table, results: Results) -> str:
    """Return the numbers of a table that are close to the paper's, as shares."""
    counts: dict[str, list[bool]] = {}
    for _, key, near in _compared(table, results):
        counts.setdefault(_LABELS[key[0]], []).append(near)
    return ", ".join(_share(label, near) for label, near in counts.items()) or ABSENT


def _compared(table: Table, results: Results) -> Iterable[tuple[str, tuple[str, ...], bool]]:
    """Yield the recipe's name and the key of each published number, and whether ours is close."""
    for recipe in table.recipes:
        for quantity in table.quantities:
            claim = quantity.of(table.claims.get(recipe.name, recipe.claims))
            values = results(recipe, quantity)
            if quantity.key[0] in _CLOSE and claim is not None and values:
                absolute, relative = _CLOSE[quantity.key[0]]
                published = claim[0] if isinstance(claim, tuple | list) else claim
                difference = abs(statistics.mean(values) - published)
                is_close = difference <= absolute + relative * abs(published)
                yield recipe.name, quantity.key, is_close


def _share(label: str, near: Iterable[bool]) -> str:
    flags = list(near)
    return f"{label} {sum(flags)} of {len(flags)}"
