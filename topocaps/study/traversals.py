"""Traversals that draw themselves."""

from __future__ import annotations

from typing import TYPE_CHECKING

from topocaps.metrics.decoded_traversal import DecodedTraversal

if TYPE_CHECKING:
    from matplotlib.figure import Figure


class DrawableTraversal(DecodedTraversal):
    """A `DecodedTraversal` with a figure."""

    def figure(self) -> Figure:
        """Draw the input, the reconstruction and the rolled frames of every sequence."""
        from topocaps.study import figures  # imports matplotlib, which takes time

        return figures.decoded_traversal(self)


#: Decode a traversal of any frames: `DecodedTraversal.of`, with a figure.
traverse = DrawableTraversal.of
