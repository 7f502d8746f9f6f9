"""The opening of the results page: what was found in short, and what was run."""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

from topocaps.papers.judging import DOES_NOT, HOLDS, IN_PART, UNDECIDED, Claim, Verdict
from topocaps.papers.results import Results
from topocaps.papers.table import Table, markdown
from topocaps.papers.tables import TABLES
from topocaps.study.quantity import ABSENT

#: How far a number may be from the paper's to be close: by the first key, absolute or relative.
_CLOSE = {"log_px_paper": (1.0, 0.0), "equivariance_error": (0.0, 0.05), "capcorr": (0.06, 0.0)}
_DATA = {"mnist": "MNIST", "sprites": "sprites"}  #: by the first part of the name of a recipe
_LABELS = {"log_px_paper": "log p(x)", "equivariance_error": "E_eq", "capcorr": "CapCorr"}
_EXPLAINED = "- [Findings](../docs/findings.md) explains what the models learn."
_COUNTED = {HOLDS: "hold", IN_PART: "hold in part", DOES_NOT: "do not hold"}
_CLOSENESS = (
    "*Close* is within 1 nat of log p(x), 5 % of E_eq, and .06 of CapCorr. It compares a number "
    "with the paper's; a verdict below compares models with each other, or with the untrained "
    "network."
)
#: Tables of predictions that the opening quotes, by their data.
_PREDICTIONS = {
    "letters never seen": "letters-models",
    "MNIST digits": "rolling-mnist",
    "sprites": "rolling-sprites",
}

Judged = Mapping[str, Sequence[tuple[Claim, Verdict]]]


def opening(results: Results, told: Iterable[str], judged: Judged) -> list[str]:
    """Return the first parts of the page.

    Args:
        told: names of the sections of the page, to which the opening links.
        judged: claims and verdicts, by section.
    """
    sections = set(told)
    lines = [*_reproduced(results), *_verdicts(judged), *_predictions(results, sections)]
    short = ["## In short", "\n".join([*lines, _EXPLAINED])] if lines else []
    return [*short, *_what_was_run(results, sections)]


def _reproduced(results: Results) -> list[str]:
    """Say how many numbers are close to the papers', by data."""
    close: dict[str, dict[str, dict[tuple[object, ...], bool]]] = {}
    for table in TABLES.values():
        for recipe, key, near in _compared(table, results):
            of_data = close.setdefault(_DATA[recipe.split("/")[0]], {})
            of_data.setdefault(_LABELS[key[0]], {})[recipe, key] = near
    told = [
        f"{data}: {', '.join(_share(label, near.values()) for label, near in labels.items())}"
        for data, labels in close.items()
    ]
    if not told:
        return []
    lines = [f"- **Numbers close to the papers'**: {'; '.join(told)}."]
    missing = [f"`{name}`" for name in ("table1", "table2") if not _has_runs(TABLES[name], results)]
    if missing:
        lines.append(
            f"- The settings of the released code have not been run ({', '.join(missing)}). The "
            "papers' numbers were made with them; [differences](../docs/differences.md) lists how "
            "those of the text differ."
        )
    return lines


def _has_runs(table: Table, results: Results) -> bool:
    return any(results.of(recipe) or results.failed(recipe) for recipe in table.recipes)


def _verdicts(judged: Judged) -> list[str]:
    """Say how many claims hold, by section."""
    lines = []
    for name, claims in judged.items():
        counts = Counter(found.verdict for _, found in claims if found.verdict is not None)
        if counts:
            told = [f"{counts[one]} {words}" for one, words in _COUNTED.items() if counts[one]]
            if counts[UNDECIDED]:
                told.append(f"{counts[UNDECIDED]} are not decided (single seeds)")
            lines.append(f"- **[The papers' {name}](#{name})**: {', '.join(told)}.")
    return lines


def _predictions(results: Results, sections: set[str]) -> list[str]:
    """Say how well each kind of model predicts hidden frames."""
    told = []
    for data, name in _PREDICTIONS.items():
        quantities = TABLES[name].quantities
        gain = next(one for one in quantities if one.label == "5 visible" and not one.group)
        shown = [
            f"`{recipe.name}` {gain.write(statistics.mean(values))}"
            for recipe in TABLES[name].recipes
            if (values := results(recipe, gain))
        ]
        if shown and name in sections:
            told.append(f"  - [{data}](#{name}): {', '.join(shown)}")
    head = "- **Gain on hidden frames**, 5 visible; 1 is perfect, 0 as good as the mean frame:"
    return [head, *told] if told else []


def _what_was_run(results: Results, sections: set[str]) -> list[str]:
    """Say what was run, by table, and how many of its numbers are close to the paper's."""
    header = ("table", "models run", "seeds of each", "failed runs", "numbers close to the paper's")
    lines: list[Sequence[str]] = [header]
    absent, whole = [], 0
    for name, table in TABLES.items():
        counts = [len(results.of(recipe)) for recipe in table.recipes]
        failed = sum(results.failed(recipe) for recipe in table.recipes)
        if not _has_runs(table, results):
            absent.append(f"`{name}` ({table.title})")
            continue
        seeds = sorted({count for count in counts if count})
        shown = ABSENT if not seeds else " to ".join(map(str, dict.fromkeys((seeds[0], seeds[-1]))))
        title = f"[{table.title}](#{name})" if name in sections else table.title
        whole += all(counts)
        models = f"{sum(count > 0 for count in counts)} of {len(counts)}"
        lines.append([title, models, shown, str(failed or ABSENT), _closeness(table, results)])
    return [
        "## What was run",
        f"Of {len(TABLES)} tables and figures, {whole} have runs of all their models, "
        f"{len(lines) - 1 - whole} of some, and {len(absent)} of none.",
        markdown(lines),
        _CLOSENESS,
        *([f"Not run: {'; '.join(absent)}."] if absent else []),
    ]


def _closeness(table: Table, results: Results) -> str:
    """Say how many numbers of a table are close to the paper's."""
    counts: dict[str, list[bool]] = {}
    for _, key, near in _compared(table, results):
        counts.setdefault(_LABELS[key[0]], []).append(near)
    return ", ".join(_share(label, near) for label, near in counts.items()) or ABSENT


def _compared(table: Table, results: Results) -> Iterable[tuple[str, tuple[str, ...], bool]]:
    """Return the recipe and the key of numbers that the paper gives, and whether ours is close."""
    for recipe in table.recipes:
        for quantity in table.quantities:
            claim = quantity.of(table.claims.get(recipe.name, recipe.claims))
            values = results(recipe, quantity)
            if quantity.key[0] in _CLOSE and claim is not None and values:
                absolute, relative = _CLOSE[quantity.key[0]]
                published = claim[0] if isinstance(claim, tuple | list) else claim
                off = abs(statistics.mean(values) - published)
                yield recipe.name, quantity.key, off <= absolute + relative * abs(published)


def _share(label: str, near: Iterable[bool]) -> str:
    all_of_them = list(near)
    return f"{label} {sum(all_of_them)} of {len(all_of_them)}"
