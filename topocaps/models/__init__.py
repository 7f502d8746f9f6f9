"""Models of sequences: the interface of a family, networks, likelihoods, bounds."""

from topocaps.models import convolutional as convolutional  # adds itself to the table of families
from topocaps.models.base import GenerativeModel, build, family
from topocaps.models.evidence import Evidence, Posterior, log_px, log_px_paper
from topocaps.models.likelihoods import Bernoulli, Gaussian, Likelihood
from topocaps.models.prediction import PredictedFrames
from topocaps.models.priors import CodePrior, Laplace, StandardNormal, StudentT
from topocaps.models.rolling import RollingVAE
from topocaps.models.sequence import SequenceModel
from topocaps.models.topographic import VAE, TopographicVAE
from topocaps.models.visible import Past, RandomFrames, Stretch, VisibleFrames

__all__ = [
    "VAE",
    "Bernoulli",
    "CodePrior",
    "Evidence",
    "Gaussian",
    "GenerativeModel",
    "Laplace",
    "Likelihood",
    "Past",
    "Posterior",
    "PredictedFrames",
    "RandomFrames",
    "RollingVAE",
    "SequenceModel",
    "StandardNormal",
    "Stretch",
    "StudentT",
    "TopographicVAE",
    "VisibleFrames",
    "build",
    "convolutional",
    "family",
    "log_px",
    "log_px_paper",
]
