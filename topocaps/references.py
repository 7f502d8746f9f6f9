"""What to cite: BibTeX entries, which every model, metric and data set names itself.

A class names its entries in an attribute ``citations``, a function by the decorator ``cites``::

    class Mine(GenerativeModel):
        citations = (MINE_2030,)

    @cites(MINE_2030)
    def my_metric(t): ...

What the library defines without a source of its own names none and is cited as the library.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from topocaps.errors import BadInput
from topocaps.version import __version__

Function = TypeVar("Function", bound=Callable[..., Any])

TOPOCAPS = f"""\
@misc{{topocaps,
  title = {{topocaps: generative capsules}},
  author = {{{{The topocaps authors}}}},
  note = {{Python package, version {__version__}}},
}}"""


def cites(*entries: str) -> Callable[[Function], Function]:
    """Name the BibTeX entries of a function."""

    def named(function: Function) -> Function:
        function.citations = entries  # type: ignore[attr-defined]
        return function

    return named


def references(*used: object) -> tuple[str, ...]:
    """The BibTeX entries that models, metrics, data sets, recipes or runs name, each once."""
    found: dict[str, None] = {}
    for one in used:
        entries = getattr(one, "citations", None)
        if not isinstance(entries, tuple):
            module = getattr(one, "__module__", None) or ""
            if not module.startswith("topocaps."):
                raise BadInput(
                    f"{one!r} names no BibTeX entries: give it an attribute citations, a tuple"
                )
            entries = ()
        found |= dict.fromkeys(entries)
    return tuple(found)


def citation(*used: object) -> str:
    """BibTeX entries for exactly what was used, and for the library itself, which comes last.

    Pass models, metrics, data sets, recipes and runs: objects, classes or functions.

    >>> import topocaps as tc
    >>> train, held_out = tc.data.sprites(8)
    >>> entries = tc.citation(tc.TopographicVAE, tc.metrics.capcorr, tc.metrics.mig, train)
    >>> for line in entries.splitlines():
    ...     if line.startswith("@"):
    ...         print(line)
    @inproceedings{keller2021topographic,
    @inproceedings{chen2018isolating,
    @misc{matthey2017dsprites,
    @misc{topocaps,
    """
    return "\n\n".join((*references(*used), TOPOCAPS))
