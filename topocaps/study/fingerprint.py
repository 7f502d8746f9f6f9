"""Fingerprints of settings, which do not depend on names in the code.

A fingerprint is a digest of a dictionary with stable keys. The keys are written out here and in the
``identity`` methods of recipes and data. They do not change if a class, a field or a recipe is
renamed. Settings with their neutral value are left out, so a new setting does not change the
fingerprints of existing recipes.

A key or a neutral value must not change once results are stored with it. If it has to change,
``VERSION`` is raised and the stored results are migrated.
"""

from __future__ import annotations

import hashlib
import json
from typing import Any

from topocaps.capsules.settings import PartWholeSettings
from topocaps.latents.topography import Topography
from topocaps.training import Adam, Muon, Training

VERSION = 2


def stable(kind: str, **settings: tuple[Any, Any]) -> dict[str, Any]:
    """Return ``kind`` and the settings whose value is not neutral.

    Args:
        kind: stable name of what has these settings.
        settings: a pair (value, neutral value) for each setting.

    >>> stable("sgd", lr=(0.1, None), momentum=(0.0, 0.0))
    {'kind': 'sgd', 'lr': 0.1}
    """
    changed = {key: value for key, (value, neutral) in settings.items() if value != neutral}
    return {"kind": kind, **changed}


def pairs(settings: object, **neutral: Any) -> dict[str, tuple[Any, Any]]:
    """Return attributes of ``settings`` and their neutral values as arguments of `stable`.

    It serves attributes whose present name is also their stable key.

    >>> pairs(Topography(2, (5,)), capsules=None, window=1)
    {'capsules': (2, None), 'window': (1, 1)}
    """
    return {name: (plain(getattr(settings, name)), value) for name, value in neutral.items()}


def plain(value: Any) -> Any:
    """Return the value of an enumeration or a likelihood, and any other setting as it is."""
    return getattr(value, "value", value)


def fingerprint(identity: dict[str, Any]) -> str:
    """Return the digest of a dictionary of stable keys.

    >>> fingerprint({"kind": "vae"}) == fingerprint({"kind": "vae"})
    True
    """
    text = json.dumps({"version": VERSION, **identity}, sort_keys=True)
    return hashlib.blake2b(text.encode(), digest_size=8).hexdigest()


def of_topography(topography: Topography) -> dict[str, Any]:
    """Return the settings of a topography under stable keys."""
    return stable(
        "windows-of-capsules",
        **pairs(topography, capsules=None, shape=None, reach=None, window=1, velocity=None),
        **pairs(topography, corners=True, cyclic=True, causal=False, apart=False),
    )


def of_training(training: Training) -> dict[str, Any]:
    """Return the settings of a training under stable keys."""
    optimiser, kl = training.optimiser, training.kl
    if isinstance(optimiser, Adam):
        optimiser_settings = stable("adam", **pairs(optimiser, lr=None, betas=None, warmup=0))
    elif isinstance(optimiser, Muon):
        optimiser_settings = stable(
            "muon", **pairs(optimiser, lr=None, momentum=None, betas=None, warmup=0)
        )
    else:
        optimiser_settings = stable("sgd", **pairs(optimiser, lr=None, momentum=None))
    return stable(
        "gradient-descent",
        optimiser=(optimiser_settings, None),
        **pairs(training, batch=None, epochs=None, epoch_size=None, clip=None),
        **pairs(training, precision="fp32", patience=None),
        kl_weight=((kl.start, kl.until, kl.end), (1.0, 0.0, 1.0)),
    )


def of_part_whole(capsules: PartWholeSettings) -> dict[str, Any]:
    """Return the settings of a part-whole model under stable keys."""
    return stable(
        "part-whole-capsules",
        **pairs(capsules, sizes=None, template=None),
        poses=(capsules.poses_are.value, None),
        pixel_noise=(capsules.noise, None),
        presence_prior=(capsules.prior, None),
        part_scale=(capsules.scale, None),
        temperature=(capsules.temperature, None),
        dummy_affinity=(capsules.clutter, None),
        dummy_pose_scale=(capsules.loose, None),
        absent_pose_scale=(capsules.absent, None),
        initial_pose_scale=(capsules.tight, None),
        initial_map_scatter=(capsules.scatter, None),
        transformer_width=(capsules.width, None),
        transformer_depth=(capsules.depth, None),
        transformer_lr_scale=(capsules.slower, None),
        rotations=(capsules.turns, 1),
    )
