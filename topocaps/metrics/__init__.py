"""Metrics of models and of codes: equivariance, traversals, disentanglement, probes and others."""

from topocaps.metrics import rolling_evaluation as rolling_evaluation  # joins `evaluate`
from topocaps.metrics.attribute_predictability import sap
from topocaps.metrics.axes import axis_moved, axis_shares, own_axes
from topocaps.metrics.capsule_correlation import CapCorr, capcorr, observed_rolls
from topocaps.metrics.codes import Score
from topocaps.metrics.dci_scores import DCI, dci
from topocaps.metrics.decoded_traversal import DecodedTraversal, RingTraversal
from topocaps.metrics.equivariance import (
    chance_equivariance_error,
    equivariance_error,
    equivariance_errors,
)
from topocaps.metrics.evaluation import evaluate, per_sequence
from topocaps.metrics.factor_vae import factor_vae_score
from topocaps.metrics.intervals import Mean
from topocaps.metrics.lie import (
    LieError,
    Rotation,
    Scale,
    Translation,
    interpolation_floor,
    lie_error,
)
from topocaps.metrics.mutual_information import equal_counts, equal_widths, mig
from topocaps.metrics.neighbours import (
    Agreement,
    Smoothness,
    nearest_neighbour_accuracy,
    nearest_neighbour_hits,
    neighbour_agreement,
    strongest_images,
    topographic_smoothness,
)
from topocaps.metrics.probes import (
    Probe,
    accuracy_by_labels,
    fit_probe,
    linear_probe_accuracy,
    pooled,
    specialisation,
)
from topocaps.metrics.rolled_traversal import (
    Traversal,
    TraversalOptions,
    TraversalPlan,
    prediction,
    traversal,
    unseen_lags,
)
from topocaps.metrics.visible_frames import filled_costs, gains_by_visible

__all__ = [
    "DCI",
    "Agreement",
    "CapCorr",
    "DecodedTraversal",
    "LieError",
    "Mean",
    "Probe",
    "RingTraversal",
    "Rotation",
    "Scale",
    "Score",
    "Smoothness",
    "Translation",
    "Traversal",
    "TraversalOptions",
    "TraversalPlan",
    "accuracy_by_labels",
    "axis_moved",
    "axis_shares",
    "capcorr",
    "chance_equivariance_error",
    "dci",
    "equal_counts",
    "equal_widths",
    "equivariance_error",
    "equivariance_errors",
    "evaluate",
    "factor_vae_score",
    "filled_costs",
    "fit_probe",
    "gains_by_visible",
    "interpolation_floor",
    "lie_error",
    "linear_probe_accuracy",
    "mig",
    "nearest_neighbour_accuracy",
    "nearest_neighbour_hits",
    "neighbour_agreement",
    "observed_rolls",
    "own_axes",
    "per_sequence",
    "pooled",
    "prediction",
    "sap",
    "specialisation",
    "strongest_images",
    "topographic_smoothness",
    "traversal",
    "unseen_lags",
]
