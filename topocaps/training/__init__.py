"""Training: optimisers as data, one loop, runs and their folders."""

from topocaps.training.folder import RunFolder
from topocaps.training.loop import train
from topocaps.training.optimisers import Adam, Sgd
from topocaps.training.precision import Precision
from topocaps.training.run import Run, fit, fit_together, load
from topocaps.training.settings import Training

__all__ = [
    "Adam",
    "Precision",
    "Run",
    "RunFolder",
    "Sgd",
    "Training",
    "fit",
    "fit_together",
    "load",
    "train",
]
