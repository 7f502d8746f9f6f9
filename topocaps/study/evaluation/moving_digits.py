"""Linear probes of digits that move: the class, from few labels and from many."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor

from topocaps.data.mnist_files import digits
from topocaps.data.transforms import TransformedImages
from topocaps.metrics.probes import Labelled, accuracy_by_labels, pooled, power
from topocaps.study.evaluation.base import EVALUATION_SEED
from topocaps.study.evaluation.digits import Read

LABELLED = 10_000  # sequences that probes learn from, and as many to test on


def of_codes(t: Tensor) -> dict[str, Tensor]:
    """Return what probes see of codes (batch, capsules, *shape).

    These are the codes themselves and what of them no roll changes: statistics of every capsule
    (``pooled``), and the power of every frequency along its sites (``power``).
    """
    frames = t[:, None]
    return {"t": t.flatten(1), "pooled": pooled(frames).flatten(1), "power": power(frames)[:, 0]}


@torch.no_grad()
def probe_digits(
    read: Read, where: torch.device, folder: Path | None, centre: float | None = None
) -> dict[str, dict[str, float]]:
    """Return the accuracies of probes on test digits, {features: {number of labels: accuracy}}.

    Digits are in any pose and colour, and one factor of each moves.

    Args:
        read: returns features of sequences (batch, time, *frame), by name.
        where: device of the sequences.
        folder: folder of MNIST's files.
        centre: pixel about which digits turn and scale.
    """
    sets: dict[str, list[Labelled]] = {}
    for part in digits(folder):
        moving = TransformedImages(part.images, centre=centre)
        fixed = moving.balanced(-(-LABELLED // len(moving.motion.together)), EVALUATION_SEED)
        parts: dict[str, list[Tensor]] = {}
        for one in fixed.to(where).batches(128):
            for name, values in {**read(one.x), "pixels": one.x[:, 0].flatten(1)}.items():
                parts.setdefault(name, []).append(values)
        classes = part.classes[fixed.fixed()[:, 0, 0].cpu()].long().to(where)
        for name, found in parts.items():
            sets.setdefault(name, []).append((torch.cat(found), classes))
    with torch.enable_grad():
        return {
            name: {str(n): share for n, share in accuracy_by_labels(train, test).items()}
            for name, (train, test) in sets.items()
        }
