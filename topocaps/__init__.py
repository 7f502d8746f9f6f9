"""Generative capsules: organised latent variables that move when the world moves."""

from topocaps import capsules, data, metrics
from topocaps.capsules import PartWhole
from topocaps.data import Sequences
from topocaps.errors import BadInput, Interrupted, NonFinite, TopocapsError
from topocaps.integrations.pretrained import pretrained
from topocaps.integrations.tracking import events_in
from topocaps.latents import motion as motions
from topocaps.latents.student_t import ProductOfStudentT, TopographicStudentT, studentize
from topocaps.latents.topography import Topography
from topocaps.metrics import DecodedTraversal, evaluate
from topocaps.models import (
    VAE,
    Evidence,
    Likelihood,
    RollingVAE,
    TopographicVAE,
    log_px,
    log_px_paper,
    priors,
    visible,
)
from topocaps.papers import recipes
from topocaps.references import citation
from topocaps.study.traversals import traverse
from topocaps.training import (
    Adam,
    KLWeight,
    Muon,
    Precision,
    Run,
    Sgd,
    Training,
    fit,
    fit_together,
    load,
)
from topocaps.training.watching import LOGGERS
from topocaps.version import __version__

__all__ = [
    "VAE",
    "Adam",
    "BadInput",
    "DecodedTraversal",
    "Evidence",
    "Interrupted",
    "KLWeight",
    "Likelihood",
    "Muon",
    "NonFinite",
    "PartWhole",
    "Precision",
    "ProductOfStudentT",
    "RollingVAE",
    "Run",
    "Sequences",
    "Sgd",
    "TopocapsError",
    "TopographicStudentT",
    "TopographicVAE",
    "Topography",
    "Training",
    "__version__",
    "capsules",
    "citation",
    "data",
    "evaluate",
    "fit",
    "fit_together",
    "load",
    "log_px",
    "log_px_paper",
    "metrics",
    "motions",
    "pretrained",
    "priors",
    "recipes",
    "studentize",
    "traverse",
    "visible",
]

LOGGERS.append(events_in)


def __dir__() -> list[str]:
    """Return the public names only."""
    return __all__
