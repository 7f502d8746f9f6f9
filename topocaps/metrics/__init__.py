"""Numbers that say how far a model's capsules move when the world moves."""

from topocaps.metrics.axes import axis_moved, axis_shares
from topocaps.metrics.capcorr import CapCorr, capcorr, observed_rolls
from topocaps.metrics.equivariance import (
    chance_equivariance_error,
    equivariance_error,
    equivariance_errors,
)
from topocaps.metrics.evaluate import evaluate
from topocaps.metrics.maps import Agreement, neighbour_agreement, strongest_images
from topocaps.metrics.missing import filled_costs
from topocaps.metrics.probes import (
    Probe,
    accuracy_by_labels,
    fit_probe,
    pooled,
    specialisation,
)
from topocaps.metrics.traversal import Traversal, traversal, unseen_lags

__all__ = [
    "Agreement",
    "CapCorr",
    "Probe",
    "Traversal",
    "accuracy_by_labels",
    "axis_moved",
    "axis_shares",
    "capcorr",
    "chance_equivariance_error",
    "equivariance_error",
    "equivariance_errors",
    "evaluate",
    "filled_costs",
    "fit_probe",
    "neighbour_agreement",
    "observed_rolls",
    "pooled",
    "specialisation",
    "strongest_images",
    "traversal",
    "unseen_lags",
]
