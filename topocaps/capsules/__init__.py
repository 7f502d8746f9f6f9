"""Parts and wholes: the probabilistic capsule model of Smith et al. (2020)."""

from topocaps.capsules.free_form import FreeForm, moved, optimise
from topocaps.capsules.layers import Belief, Capsules, Connection
from topocaps.capsules.model import CapsuleEvidence, PartWhole, Scene
from topocaps.capsules.settings import PartWholeSettings, Poses
from topocaps.capsules.templates import Templates, composite

__all__ = [
    "Belief",
    "CapsuleEvidence",
    "Capsules",
    "Connection",
    "FreeForm",
    "PartWhole",
    "PartWholeSettings",
    "Poses",
    "Scene",
    "Templates",
    "composite",
    "moved",
    "optimise",
]
