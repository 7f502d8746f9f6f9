"""What the columns of the papers' tables have in common."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from topocaps.models import VAE
from topocaps.networks import Norm
from topocaps.recipes.recipe import Recipe
from topocaps.training import Precision, Sgd, Training

CAMERA_READY, SUBMISSION = "camera-ready", "submission"

#: A.1: SGD, batches of 8 sequences, 100 epochs.
TRAINING = Training(
    optimiser=Sgd(lr=1e-4, momentum=0.9), batch=8, epochs=100, precision=Precision.BF16
)

#: Longest gradient where few squares share a variance, or sprites shift: without it most seeds
#: go to NaN (benchmarks/results/divergence-h200.json). The others never did.
HELD = 1000.0


_SAID = {Norm.NONE: "", Norm.WEIGHT: ", weight norm", Norm.PROJECTED: ", projected rows"}


@dataclass(frozen=True)
class Columns:
    """Makes the recipes of a data set's tables from what they share."""

    base: Recipe  #: its name is that of the data
    windows: Mapping[str, int]  #: frames that are 2L, for every L
    unseen: Mapping[str, int]  #: window whose lags all models of an edition predict, to compare
    held: float | None = None  #: longest gradient of models whose coherence shifts

    def topographic(
        self, edition: str, name: str, reach: int, claims: Mapping[str, Any], **changes: Any
    ) -> Recipe:
        """``name`` is tvae or bubble, L, and what tells it from others: ``bubble-5_36-k3``."""
        kind, length, *_ = name.split("-")
        window = self.windows[length]
        over = "single frames" if window == 1 else f"{window} frames"
        coherence = {"tvae": "shifting", "bubble": "stationary"}[kind]
        norm = changes.setdefault("norm", Norm.WEIGHT if edition == SUBMISSION else Norm.NONE)
        about = f"{coherence} coherence over {over}, K = {reach}"
        changes.setdefault("about", about + _SAID[norm])
        if kind == "tvae":
            changes.setdefault("training", replace(self.base.training, clip=self.held))
        return replace(
            self.base,
            name=f"{self.base.name}/{edition}/{name}",
            topography=replace(
                self.base.topography,
                window=window,
                reach=(reach,),
                velocity={"tvae": 1.0, "bubble": 0.0}[kind],
            ),
            unseen_window=None if window > self.unseen[edition] else self.unseen[edition],
            claims=claims,
            **changes,
        )

    def vae(
        self, edition: str, claims: Mapping[str, Any], name: str = "vae", **changes: Any
    ) -> Recipe:
        """The baseline, without a norm unless one is asked for."""
        changes.setdefault("about", f"the plain VAE{_SAID[changes.get('norm', Norm.NONE)]}")
        return replace(
            self.base,
            name=f"{self.base.name}/{edition}/{name}",
            model=VAE,
            topography=replace(self.base.topography, window=1, reach=(1,)),
            unseen_window=self.unseen[edition],
            claims=claims,
            **changes,
        )
