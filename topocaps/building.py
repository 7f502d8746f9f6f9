"""Models from what run folders recorded of them."""

from __future__ import annotations

from typing import Any

from topocaps import convolutional, models
from topocaps.capsules import PartWhole
from topocaps.errors import BadInput
from topocaps.generative import GenerativeModel


def build(config: dict[str, Any]) -> GenerativeModel:
    """A fresh model, from the ``config`` of one."""
    if config.get("networks") == "convolutional":
        return convolutional.from_config(config)
    if config["kind"] in models.MODELS:
        return models.from_config(config)
    if config["kind"] == "PartWhole":
        return PartWhole.from_config(config)
    raise BadInput(f"this version knows no model of kind {config['kind']!r}")
