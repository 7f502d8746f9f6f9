"""Migration: the settings of run folders that earlier versions wrote."""

from __future__ import annotations

import math
from typing import Any

from topocaps.models.networks import paper_widths

#: Settings of data that older folders lack, with the values that were in use.
ADDED_TO_DATA: dict[str | None, dict[str, Any]] = {
    "OwnSequences": {"closed": False},
    "Mnist": {"speeds": [1], "unseen": [], "images": None},
    "Letters": {"share": 1.0, "speeds": [1], "arc": None},
}

#: Settings that older folders of rolling VAEs with networks of your own lack.
ADDED_TO_ROLLING = {
    "motion_kind": "Known(velocity=1.0, axis=0)",
    "visible": "Stretch(least=3, most=None)",
    "prior": "StandardNormal()",
}


def migrated(settings: dict[str, Any]) -> dict[str, Any]:
    """Return the settings of a run folder with the fields of the recipe that older folders lack.

    Older folders record these fields only in the configuration of the model. Of a recipe's start
    they record only the name and the training.
    """
    model, networks = settings.get("model"), settings.get("networks")
    if isinstance(networks, dict) and networks.get("kind") == "RollingVAE":
        settings = {**settings, "networks": {**ADDED_TO_ROLLING, **networks}}
    if not isinstance(model, dict) or "name" not in settings:
        return settings  # a run without a recipe
    data = settings.get("data") or {}
    settings = {**settings, "data": {**ADDED_TO_DATA.get(data.get("kind"), {}), **data}}
    if model.get("kind") == "PartWhole":
        capsules = {key: model[key] for key in model if key not in ("kind", "frame_shape")}
        fields: dict[str, Any] = {"capsules": capsules, "probed": None}
        of_start = {"capsules": {**capsules, "poses_are": "delta"}}  # all earlier starts were
    elif "topography" in model:
        fields, of_start = _fields_of_model(model), {}
    else:
        return settings
    full = {"about": "", **fields, **settings}
    if "start" in full:
        shared = {key: full[key] for key in (*fields, "about", "data", "claims", "edition")}
        full["start"] = {**shared, **of_start, "model": model["kind"], **full["start"]}
    return full


def _fields_of_model(model: dict[str, Any]) -> dict[str, Any]:
    """Return the fields of a topographic model's recipe, from the model's configuration."""
    topography = model["topography"]
    latents = topography["capsules"] * math.prod(topography["shape"])
    hidden = model.get("hidden")
    if hidden == list(paper_widths(tuple(model["frame_shape"]), latents)[1:]):
        hidden = None
    return {
        "unseen_window": None,
        "rate": 1.0,
        "closed": topography.get("cyclic", True),
        "topography": topography,
        "hidden": hidden,
        "convolutional": model.get("networks") == "convolutional",
        "mu": model.get("mu"),
        "centred": model.get("centred", False),
        "learned": model.get("learned", "nothing"),
        "sparsity": model.get("sparsity", 0.0),
        "epsilon": model.get("epsilon", 0.0),
        "visible": model.get("visible"),
        "norm": model.get("norm", "none"),
        "encoder_fan": model.get("encoder_fan", "in"),
        "decoder_fan": model.get("decoder_fan", "in"),
        "likelihood": model["likelihood"],
    }
