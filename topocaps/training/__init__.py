"""Training: optimisers as data, one loop, runs and their folders."""

from topocaps.training.loop import Training, train
from topocaps.training.optimisers import Adam, Sgd
from topocaps.training.run import Run, RunFolder, fit, fit_together, load

__all__ = ["Adam", "Run", "RunFolder", "Sgd", "Training", "fit", "fit_together", "load", "train"]
