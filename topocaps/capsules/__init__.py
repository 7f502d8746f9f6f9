"""Parts and wholes: the probabilistic capsule model of Smith et al. (2020)."""

from topocaps.capsules.free_form import FreeForm, move_posteriors, optimise
from topocaps.capsules.layers import Capsules, Connection, LayerPosterior
from topocaps.capsules.model import CapsuleEvidence, PartWhole, Scene
from topocaps.capsules.settings import PartWholeSettings, Poses
from topocaps.capsules.templates import Templates, composite

__all__ = [
    "CapsuleEvidence",
    "Capsules",
    "Connection",
    "FreeForm",
    "LayerPosterior",
    "PartWhole",
    "PartWholeSettings",
    "Poses",
    "Scene",
    "Templates",
    "composite",
    "move_posteriors",
    "optimise",
]
