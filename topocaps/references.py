"""Citations: the BibTeX entries of models, metrics and data sets.

A class names its entries in an attribute ``citations``, a function in the decorator ``cites``::

    class Mine(GenerativeModel):
        citations = (MINE_2030,)

    @cites(MINE_2030)
    def my_metric(t): ...

Parts of the library that have no publication of their own have no entries. They are cited as the
library.
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
    """Return a decorator that sets the BibTeX entries of a function."""

    def named(function: Function) -> Function:
        function.citations = entries  # type: ignore[attr-defined]
        return function

    return named


def references(*used: object) -> tuple[str, ...]:
    """Return the BibTeX entries of models, metrics, data sets, recipes or runs, each once."""
    unique: dict[str, None] = {}
    for item in used:
        entries = getattr(item, "citations", None)
        if not isinstance(entries, tuple):
            module = getattr(item, "__module__", None) or ""
            if not module.startswith("topocaps."):
                raise BadInput(
                    f"{item!r} has no BibTeX entries: set its attribute citations to a tuple of "
                    "entries"
                )
            entries = ()
        unique |= dict.fromkeys(entries)
    return tuple(unique)


def citation(*used: object) -> str:
    """Return the BibTeX entries of everything that was used, followed by that of the library.

    Args:
        used: models, metrics, data sets, recipes and runs, as objects, classes or functions.

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
