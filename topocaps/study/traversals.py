"""``traverse``: traversals with a figure."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

from topocaps.errors import BadInput
from topocaps.metrics.decoded_traversal import DecodedTraversal, RingTraversal
from topocaps.models.base import GenerativeModel
from topocaps.models.rolling import RollingVAE
from topocaps.models.sequence import SequenceModel

if TYPE_CHECKING:
    from matplotlib.figure import Figure


class DrawableTraversal(DecodedTraversal):
    """A `DecodedTraversal` with a figure."""

    def figure(self) -> Figure:
        """Draw the input, the reconstruction and the rolled frames of every sequence."""
        from topocaps.study import figures  # imports matplotlib, which takes time

        return figures.decoded_traversal(self)


class DrawableRing(RingTraversal):
    """A `RingTraversal` with a figure."""

    def figure(self) -> Figure:
        """Draw the rolled frames of every sequence, below the input frames they correspond to."""
        from topocaps.study import rolling_figures  # imports matplotlib, which takes time

        return rolling_figures.ring_traversal(self)


@functools.singledispatch
def traverse(model: GenerativeModel, x: Any, **options: Any) -> DrawableTraversal | DrawableRing:
    """Roll the latents of sequences, and decode them.

    The result has a method ``figure``.

    Args:
        model: a `TopographicVAE` or a `VAE`, whose latents of one frame are rolled; or a
            `RollingVAE`, whose code of the sequence is rolled.
        x: frames (batch, time, *frame).
        options: options of `DecodedTraversal.of`, or of `RingTraversal.of` for a `RollingVAE`.
    """
    raise BadInput(f"{type(model).__name__} does not support traversals")


@traverse.register
def _of_a_frame(model: SequenceModel, x: Any, **options: Any) -> DrawableTraversal:
    return DrawableTraversal.of(model, x, **options)


@traverse.register
def _of_a_sequence(model: RollingVAE, x: Any, *, mask: Any = None, **unknown: Any) -> DrawableRing:
    if unknown:
        raise BadInput(
            f"traversals of a RollingVAE do not take {', '.join(unknown)}: the only option is "
            "mask, as the code rolls along the motion of the sequence"
        )
    return DrawableRing.of(model, x, mask=mask)
