"""Generative capsules: organised latent variables that move when the world moves."""

from topocaps import capsules, data, metrics, recipes
from topocaps.capsules import PartWhole
from topocaps.data import Sequences
from topocaps.errors import BadInput, Interrupted, NonFinite, TopocapsError
from topocaps.integrations.pretrained import pretrained
from topocaps.integrations.tracking import events_in
from topocaps.latents.motion import Grouped, Known, Motion, Unknown
from topocaps.latents.student_t import ProductOfStudentT, TopographicStudentT, studentize
from topocaps.latents.topography import Topography
from topocaps.metrics import evaluate
from topocaps.models import (
    VAE,
    Evidence,
    Likelihood,
    Past,
    RandomFrames,
    RollingVAE,
    Stretch,
    TopographicVAE,
    log_px,
    log_px_paper,
)
from topocaps.references import citation
from topocaps.training import Adam, Precision, Run, Sgd, Training, fit, fit_together, load
from topocaps.training.watching import LOGGERS
from topocaps.traversing import Walk, traverse
from topocaps.version import __version__

__all__ = [
    "VAE",
    "Adam",
    "BadInput",
    "Evidence",
    "Grouped",
    "Interrupted",
    "Known",
    "Likelihood",
    "Motion",
    "NonFinite",
    "PartWhole",
    "Past",
    "Precision",
    "ProductOfStudentT",
    "RandomFrames",
    "RollingVAE",
    "Run",
    "Sequences",
    "Sgd",
    "Stretch",
    "TopocapsError",
    "TopographicStudentT",
    "TopographicVAE",
    "Topography",
    "Training",
    "Unknown",
    "Walk",
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
    "pretrained",
    "recipes",
    "studentize",
    "traverse",
]

LOGGERS.append(events_in)
