"""Fingerprints of settings: the same for the same settings, however the code is written.

A fingerprint is a digest of a dictionary with stable keys. The keys are written out here and in the
``identity`` methods of recipes and data. They are no names of classes, fields or recipes, so these
may be renamed without a change of any fingerprint. A setting that has its neutral value is left
out, so a setting that is added later leaves all fingerprints as they are.

A key or a neutral value may not change once results were stored with it. If it has to, ``VERSION``
is raised and the stored results are migrated.
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
    """Return ``kind`` and the settings, each given as (value, neutral value), that are not neutral.

    >>> stable("sgd", lr=(0.1, None), momentum=(0.0, 0.0))
    {'kind': 'sgd', 'lr': 0.1}
    """
    told = {key: value for key, (value, neutral) in settings.items() if value != neutral}
    return {"kind": kind, **told}


def pairs(settings: object, **neutral: Any) -> dict[str, tuple[Any, Any]]:
    """Return attributes with their neutral values, as arguments of `stable`.

    For settings whose stable key is today's name of the attribute.

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
    """Return W's settings under stable keys."""
    return stable(
        "windows-of-capsules",
        **pairs(topography, capsules=None, shape=None, reach=None, window=1, velocity=None),
        **pairs(topography, corners=True, cyclic=True, causal=False, apart=False),
    )


def of_training(training: Training) -> dict[str, Any]:
    """Return the settings of a training under stable keys."""
    optimiser, kl = training.optimiser, training.kl
    if isinstance(optimiser, Adam):
        stated = stable("adam", **pairs(optimiser, lr=None, betas=None, warmup=0))
    elif isinstance(optimiser, Muon):
        stated = stable("muon", **pairs(optimiser, lr=None, momentum=None, betas=None, warmup=0))
    else:
        stated = stable("sgd", **pairs(optimiser, lr=None, momentum=None))
    return stable(
        "gradient-descent",
        optimiser=(stated, None),
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
