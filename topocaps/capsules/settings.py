"""What decides a part-whole model beside the shape of its images."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from topocaps.capsules.encoders import HEADS
from topocaps.capsules.layers import TIGHTEST
from topocaps.errors import BadInput, one_of, positive, whole_number


class Poses(StrEnum):
    """What q says of poses."""

    DELTA = "delta"  #: a point: the value is then no bound on log p(x)
    NORMAL = "normal"


@dataclass(frozen=True)
class PartWholeSettings:
    """Sizes, priors and where parameters start; what makes no model is refused with a sentence."""

    sizes: tuple[int, ...] = (16, 16)  #: capsules of every layer, wholes first
    template: int = 12  #: pixels on a side
    poses_are: Poses = Poses.DELTA
    noise: float = 0.2  #: of pixels, a standard deviation
    prior: float = 0.1  #: of a whole's presence
    scale: float = 0.43  #: of parts, over the image, where poses start
    temperature: float = 1.0
    clutter: float = 1.0  #: the dummy parent's affinity: the more, the surer wholes have to be
    loose: float = 1.0  #: how far from where parts are drawn the dummy parent expects them
    absent: float = 1.0  #: how far from 0 poses are of what is not there
    tight: float = 0.12  #: c where it starts
    scatter: float = 0.2  #: of the parts of wholes, where M starts: alike, one whole takes all
    width: int = 128  #: of the set transformer
    depth: int = 4  #: its ISAB blocks
    slower: float = 0.6  #: learning rate of the set transformer over that of the rest
    turns: int = 1  #: rotations that a scene may have (not the paper's)

    def __post_init__(self) -> None:
        sizes = tuple(self.sizes) if isinstance(self.sizes, tuple | list) else (self.sizes,)
        try:
            sizes = tuple(whole_number("a size", size) for size in sizes)
        except BadInput:
            sizes = ()
        if len(sizes) < 2:
            raise BadInput(
                f"sizes are capsules of two layers or more, wholes first, not {self.sizes}"
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
            raise BadInput(f"tight must be more than {TIGHTEST}, where c ends, not {self.tight}")
        if self.width % HEADS:
            raise BadInput(f"width is divided among {HEADS} heads: {self.width} is not")
        object.__setattr__(self, "poses_are", one_of(Poses, "poses_are", self.poses_are))
