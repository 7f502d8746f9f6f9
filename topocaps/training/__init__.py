"""Training: optimisers as data, one loop, runs and their folders."""

from topocaps.training.loop import Training, train
from topocaps.training.optimisers import Adam, Sgd
from topocaps.training.run import Run, RunFolder, fit, load

__all__ = ["Adam", "Run", "RunFolder", "Sgd", "Training", "fit", "load", "train"]
