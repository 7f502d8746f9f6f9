"""The bound on validation sequences, and early stopping."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from topocaps.data.sequences import SequenceSet
from topocaps.models.base import GenerativeModel

VALIDATION = "validation_elbo"  # key in the record of an epoch
_SEED = 0  # seed of the noise, the same for every model and epoch


@torch.no_grad()
def validation_bound(model: GenerativeModel, sequences: SequenceSet, batch: int) -> float:
    """Return the mean bound per frame of all ``sequences``; missing frames do not count.

    The noise is the same in every call and, as it is drawn on the host, on every device. The model
    keeps its mode (training or evaluation).
    """
    generator = torch.Generator().manual_seed(_SEED)
    was_training = model.training
    model.eval()
    bounds = []
    for shown in sequences.batches(batch):
        x, mask = shown.x, shown.mask
        evidence = model.evidence(
            x, lambda like: torch.randn(like.shape, generator=generator).to(like), mask
        )
        elbo = evidence.elbo if mask is None else evidence.elbo[mask]
        bounds.append(elbo.flatten().cpu())
    model.train(was_training)
    return torch.cat(bounds).double().mean().item()


def best_epoch(history: Sequence[Mapping[str, Any]]) -> int:
    """Return the first epoch with the highest validation bound; 0 if no bound was recorded."""
    bounds = {record["epoch"]: record[VALIDATION] for record in history if VALIDATION in record}
    return max(bounds, key=bounds.__getitem__, default=0)


def has_stopped(history: Sequence[Mapping[str, Any]], patience: int | None) -> bool:
    """Return whether the last ``patience`` epochs brought no better validation bound."""
    return patience is not None and len(history) - best_epoch(history) >= patience
