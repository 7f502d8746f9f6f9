"""Training: settings, the engine and its updates, the loop, runs and their folders."""

from topocaps.training.loop import train
from topocaps.training.optimisers import Adam, Muon, Sgd
from topocaps.training.run import Run, fit, fit_together, load
from topocaps.training.settings import KLWeight, Precision, Training
from topocaps.training.store import RunFolder

__all__ = [
    "Adam",
    "KLWeight",
    "Muon",
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
