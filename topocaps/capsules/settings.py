"""Settings of a part-whole model."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from topocaps.errors import BadInput, one_of, positive, whole_number

HEADS = 4  #: attention heads of the set transformer (supplement B)
TIGHTEST = 0.1  #: lower limit of the standard deviation c of Eq. 5 (supplement B)


def whole_numbers(values: Any) -> tuple[int, ...]:
    """Return values as whole numbers of at least 1, or an empty tuple if any value is invalid."""
    try:
        return tuple(whole_number("a value", value) for value in values)
    except (BadInput, TypeError):
        return ()


class Poses(StrEnum):
    """Approximate posterior of poses (section 2.3)."""

    DELTA = "delta"  #: a point; the objective omits its entropy and does not bound log p(x)
    NORMAL = "normal"


@dataclass(frozen=True)
class PartWholeSettings:
    """Sizes, priors and initial values of a part-whole model."""

    sizes: tuple[int, ...] = (16, 16)  #: number of capsules per layer, wholes first
    template: int = 12  #: side of a template, in pixels
    poses_are: Poses = Poses.DELTA
    noise: float = 0.2  #: standard deviation of a pixel, σ of Eq. 7
    prior: float = 0.1  #: probability p that a whole is present (Eq. 1)
    scale: float = 0.43  #: initial size of a part, relative to the image
    temperature: float = 1.0  #: of the Concrete distributions
    clutter: float = (
        1.0  #: affinity ρ of the dummy parent (Eq. 3); if high, wholes have to fit better
    )
    loose: float = 1.0  #: standard deviation c of the dummy parent (Eq. 5)
    absent: float = 1.0  #: standard deviation λ of the poses of absent objects (Eq. 6)
    tight: float = 0.12  #: initial c (Eq. 5), above 0.1
    #: standard deviation of the initial M; if it is too small, one whole takes all parts
    scatter: float = 0.2
    width: int = 128  #: width of the set transformer, a multiple of 4
    depth: int = 4  #: number of ISAB layers of the set transformer
    slower: float = 0.6  #: factor on the learning rate of the set transformer
    turns: int = 1  #: number of rotations of a scene; above 1 is not in the paper

    def __post_init__(self) -> None:
        sizes = whole_numbers(self.sizes)
        if len(sizes) < 2:
            raise BadInput(
                "sizes must be the numbers of capsules of two layers or more, wholes first, not "
                f"{self.sizes}"
            )
        object.__setattr__(self, "sizes", sizes)
        for name in ("template", "depth", "width", "turns"):
            whole_number(name, getattr(self, name))
        for name in (
            "noise", "prior", "scale", "temperature", "clutter", "loose", "absent", "slower",
            "tight", "scatter",
        ):  # fmt: skip
            object.__setattr__(self, name, positive(name, getattr(self, name)))
        if not self.prior < 1:
            raise BadInput(f"prior must be a probability below 1, not {self.prior}")
        if not self.tight > TIGHTEST:
            raise BadInput(f"tight must be above {TIGHTEST}, the minimum of c, not {self.tight}")
        if self.width % HEADS:
            raise BadInput(f"width must be a multiple of {HEADS}, not {self.width}")
        object.__setattr__(self, "poses_are", one_of(Poses, "poses_are", self.poses_are))
