"""Traversals that draw themselves."""

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
        """Draw the rolled frames of every sequence, and above them the input where it belongs."""
        from topocaps.study import rolling_figures  # imports matplotlib, which takes time

        return rolling_figures.ring_traversal(self)


@functools.singledispatch
def traverse(model: GenerativeModel, x: Any, **options: Any) -> DrawableTraversal | DrawableRing:
    """Decode rolled latents beside the frames x; the result has a ``figure()``.

    A `TopographicVAE` or a `VAE` takes the options of `DecodedTraversal.of`, whose latents are
    those of one frame. A `RollingVAE` takes those of `RingTraversal.of`, whose code is that of the
    sequence.
    """
    raise BadInput(f"{type(model).__name__} does not support traversals")


@traverse.register
def _of_a_frame(model: SequenceModel, x: Any, **options: Any) -> DrawableTraversal:
    return DrawableTraversal.of(model, x, **options)


@traverse.register
def _of_a_sequence(model: RollingVAE, x: Any, *, mask: Any = None, **others: Any) -> DrawableRing:
    if others:
        raise BadInput(
            f"a traversal of a RollingVAE has the option mask, not {', '.join(others)}: its code "
            "rolls along the motion of the sequence"
        )
    return DrawableRing.of(model, x, mask=mask)
