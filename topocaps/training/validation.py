"""How a model does on sequences it does not learn from, and when that has stopped improving."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from topocaps.data.sequences import SequenceSet
from topocaps.models.base import GenerativeModel

VALIDATION = "validation_elbo"  # in the record of an epoch
_SEED = 0  # of the noise, of every model and epoch


@torch.no_grad()
def validation_bound(model: GenerativeModel, sequences: SequenceSet, batch: int) -> float:
    """The mean bound of a frame over all ``sequences``, with the same noise whenever it is asked;
    of frames that are there.

    Noise is drawn on the host: the same on every device. The model is as it was afterwards.
    """
    generator = torch.Generator().manual_seed(_SEED)
    was_training = model.training
    model.eval()
    bounds = []
    for one in sequences.batches(batch):
        evidence = model.evidence(
            one.x, lambda like: torch.randn(like.shape, generator=generator).to(like), one.mask
        )
        elbo = evidence.elbo if one.mask is None else evidence.elbo[one.mask]
        bounds.append(elbo.flatten().cpu())
    model.train(was_training)
    return torch.cat(bounds).double().mean().item()


def best_epoch(history: Sequence[Mapping[str, Any]]) -> int:
    """The first epoch after which the bound on validation sequences was as high as it ever was; 0
    where it was not looked at."""
    bounds = {record["epoch"]: record[VALIDATION] for record in history if VALIDATION in record}
    return max(bounds, key=bounds.__getitem__, default=0)


def has_stopped(history: Sequence[Mapping[str, Any]], patience: int | None) -> bool:
    """Whether ``patience`` epochs have brought nothing better."""
    return patience is not None and len(history) - best_epoch(history) >= patience
