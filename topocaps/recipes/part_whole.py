"""The part-whole capsule model's recipes (Smith et al. 2020), and the VAE it is compared with."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

from topocaps.arithmetic import seeded
from topocaps.capsules import PartWhole, Poses
from topocaps.errors import BadInput, check_seed, whole_number
from topocaps.models import VAE
from topocaps.recipes.base import BaseRecipe
from topocaps.recipes.data import StillMnist
from topocaps.recipes.recipe import Recipe
from topocaps.topography import Topography
from topocaps.training import Adam, Precision, Training


@dataclass(frozen=True, kw_only=True)
class PartWholeRecipe(BaseRecipe):
    """Data, part-whole model and training."""

    sizes: tuple[int, ...] = (16, 16)  #: capsules of every layer, wholes first
    template: int = 12  #: pixels on a side
    poses_are: Poses = Poses.DELTA
    noise: float = 0.2  #: of pixels, a standard deviation
    prior: float = 0.1  #: of a whole's presence
    scale: float = 0.43  #: of parts, over the image, where poses start
    temperature: float = 1.0
    clutter: float = 0.1  #: the dummy parent's affinity
    width: int = 128  #: of the set transformer
    depth: int = 4  #: its ISAB blocks
    slower: float = 0.3  #: learning rate of the set transformer over that of the rest
    probed: int | None = None  #: training images that probes are fitted on; all where None

    def __post_init__(self) -> None:
        sizes = (self.sizes,) if isinstance(self.sizes, int) else tuple(self.sizes)
        object.__setattr__(self, "sizes", tuple(whole_number("sizes", size) for size in sizes))
        for name in ("template", "width", "depth"):
            whole_number(name, getattr(self, name))
        if self.probed is not None:
            whole_number("probed", self.probed)
        for name in ("noise", "scale", "temperature", "clutter", "slower", "prior"):
            value = getattr(self, name)
            number = isinstance(value, int | float) and not isinstance(value, bool)
            if not number or not 0 < value < math.inf:
                raise BadInput(f"{name} must be a number above 0, not {value!r}")
        if not self.prior < 1:
            raise BadInput(f"prior must be a probability below 1, not {self.prior}")
        if self.width % 4:
            raise BadInput(f"width is divided among 4 heads: {self.width} is not")
        try:
            object.__setattr__(self, "poses_are", Poses(self.poses_are))
        except ValueError:
            known = ", ".join(Poses)
            raise BadInput(f"poses_are must be one of {known}, not {self.poses_are!r}") from None

    def build(self, frame_shape: tuple[int, ...], seed: int) -> PartWhole:
        check_seed(seed)
        with seeded(seed):
            return PartWhole(frame_shape, **self._model())

    def settings(self) -> dict[str, Any]:
        return super().settings() | {"probed": self.probed}

    def describe(self) -> dict[str, Any]:
        return {**super().describe(), "model": "PartWhole", **self._model()}

    def _model(self) -> dict[str, Any]:
        """What the model is told."""
        names = (
            "sizes", "template", "poses_are", "noise", "prior", "scale", "temperature", "clutter",
            "width", "depth", "slower",
        )  # fmt: skip
        return {name: getattr(self, name) for name in names}


DIGITS = PartWholeRecipe(
    name="capsules/mnist",
    about="16 wholes of 16 parts, poses a point each: upright digits",
    data=StillMnist(),
    training=Training(
        optimiser=Adam(lr=1e-3, warmup=500), batch=128, epochs=100, clip=10.0,
        precision=Precision.TF32,
    ),
)  # fmt: skip

SMALL = replace(
    DIGITS,
    name="capsules/mnist-small",
    about="8 wholes of 12 parts for two cores: upright digits",
    sizes=(8, 12),
    width=64,
    depth=2,
    training=replace(DIGITS.training, batch=32, epochs=8, epoch_size=8000),
    probed=5000,
)

PLAIN = Recipe(
    name="capsules/vae",
    about="the plain VAE of 10 numbers that the capsules are compared with",
    data=StillMnist(),
    model=VAE,
    topography=Topography(capsules=10, shape=(1,)),
    hidden=(128,),
    training=Training(optimiser=Adam(lr=1e-3, warmup=500), batch=128, epochs=100),
)

PART_WHOLE = (DIGITS, SMALL, PLAIN)
