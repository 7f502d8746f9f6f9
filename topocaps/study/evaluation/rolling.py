"""Evaluation of rolling VAEs: metrics, figures and rows of tables."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

import torch
from matplotlib.figure import Figure
from torch import Tensor

from topocaps.data.sequences import Sequences, SequenceSet
from topocaps.metrics import evaluate
from topocaps.metrics.decoded_traversal import RingTraversal
from topocaps.metrics.visible_frames import Fill, spread, stretches, visible_counts
from topocaps.models.rolling import RollingVAE
from topocaps.study import figures, rolling_figures
from topocaps.study.data import Mnist, comes_round
from topocaps.study.drawing import Drawing
from topocaps.study.evaluation.base import (
    EVALUATION_SEED,
    EXAMPLES_SEED,
    Evaluation,
    ExtraMetric,
    evaluates,
)
from topocaps.study.evaluation.digits import of_codes, probes_of_sequences
from topocaps.study.evaluation.shared import (
    MEASURED,
    VISIBLE,
    bounds_by_samples,
    visible_rows,
)
from topocaps.study.finished import Finished
from topocaps.study.quantity import Quantity
from topocaps.study.recipe import BaseRecipe
from topocaps.study.rolling_figures import first_frames

SAMPLES = 10  # number of samples of the bound
EXAMPLES = 8  # number of sequences in figures
CALIBRATED = 64  # number of sequences in the figures of calibration and capsules
GROUPS = 4  # largest number of motions that have a panel in the figure of motions
_BATCH = 64
_BOUND_LEGEND = (
    "log p(x) ≥",
    "importance-weighted bound with K samples, in nats per frame. All frames are visible. If the "
    "motion is known, the bound is conditional on it.",
)


@evaluates(RollingVAE)
class RollingEvaluation(Evaluation[RollingVAE]):
    """Gains on hidden frames, bounds, and the motions that the model infers."""

    captions: ClassVar = {
        "predicted": (
            "Held-out sequences. Top row of each block: the sequence. Below, left of the red line: "
            "the frames that the model sees. Right of it: its predictions of the others."
        ),
        "animation": (
            "Held-out sequences (top), and below them the predictions of each model from their "
            "first frames. A red bar marks frames that are hidden from the models."
        ),
        "by_visible": (
            "The gain on hidden frames by the number of visible ones: 1 is a perfect prediction, 0 "
            "is as good as the mean frame of the sequence."
        ),
        "motions": (
            "The posterior of the motion by the number of visible frames. Each panel shows the "
            "mean probabilities of all candidates over the held-out sequences for which the named "
            "candidate is the likeliest when all frames are visible."
        ),
        "capsules": (
            "The effect of each capsule on frame 0 of held-out sequences: the decoded frame minus "
            "the frame that is decoded without the capsule. Red is brighter, blue is darker. "
            "Capsules are ordered by the information in them (nats, above), a mean over sequences."
        ),
        "calibration": (
            "The root mean square error of pixels of hidden frames, grouped by their predicted "
            "standard deviation, which stems from the uncertainty of the code. On the dashed line, "
            "both are equal. Errors above it have other sources as well."
        ),
        **Evaluation.captions,
    }
    some_of_train: ClassVar = True

    def numbers(
        self, model: RollingVAE, sequences: SequenceSet, recipe: BaseRecipe
    ) -> dict[str, Any]:
        metrics = evaluate(
            model.eval(),
            sequences,
            samples=SAMPLES,
            seed=EVALUATION_SEED,
            most=MEASURED,
            closed=comes_round(recipe.data),
        )
        return {**metrics, "motion": motion_numbers(model, sequences)}

    def fill(self, model: RollingVAE, recipe: BaseRecipe) -> Fill:
        return model.fill

    def remarks(self, metrics: Mapping[str, Any]) -> list[str]:
        return [_on_motion(metrics["motion"]), *_on_gain(metrics[VISIBLE])]

    def draw(self, run: Finished[RollingVAE], held_out: SequenceSet) -> dict[str, Drawing]:
        model, metrics = run.model, run.metrics
        drawings: dict[str, Drawing] = {}
        x = examples(held_out, EXAMPLES)
        if figures.can_be_drawn(held_out.frame_shape):
            drawings["predicted"] = rolling_figures.predicted({"predicted": model.fill}, x)
            drawings["animation"] = rolling_figures.animated({"predicted": model.fill}, x)
            drawings["capsules"] = rolling_figures.capsules(model, examples(held_out, CALIBRATED))
        if metrics[VISIBLE]:
            drawings["by_visible"] = rolling_figures.by_visible({run.name: metrics[VISIBLE]})
        if len(model.motions) > 1:
            drawings["motions"] = rolling_figures.motions(metrics["motion"])
        drawings["calibration"] = rolling_figures.calibration(model, examples(held_out, CALIBRATED))
        return drawings

    def traversals(self, run: Finished[RollingVAE], held_out: SequenceSet, each: int) -> Figure:
        """Draw rolls of the codes that are inferred from the first frames."""
        shown = held_out.balanced(each, EXAMPLES_SEED)
        batch = next(shown.batches(len(shown)))
        visible = rolling_figures.first_frames(batch.x)
        traversed = RingTraversal.of(run.model, batch.x, mask=visible)
        labels = figures.labels_of(batch, held_out.names)
        return rolling_figures.ring_traversal(traversed, labels)

    def extra_metrics(self, run: Finished[RollingVAE], data: Path | None) -> list[ExtraMetric]:
        """Return bounds by the number of samples and, for MNIST, accuracies of linear probes."""
        model, trained_on = run.model, run.recipe.data
        device = next(model.parameters()).device
        bounds = bounds_by_samples(model.log_px, run.recipe, device, data)
        if not isinstance(trained_on, Mnist) or trained_on.motion != "single":
            return [bounds]

        def read(x: Tensor) -> dict[str, Tensor]:
            first = first_frames(x, 1).to(x.device)
            from_first = of_codes(model.posterior(x, first).mean)
            of_one = {f"{name} of one frame": values for name, values in from_first.items()}
            return {**of_codes(model.posterior(x).mean), **of_one}

        return [bounds, probes_of_sequences(read, trained_on, device, data)]

    def quantities(self, columns: Sequence[Mapping[str, Any]]) -> list[Quantity]:
        samples = columns[0]["samples"]
        return [
            *visible_rows(columns, by_factor=True),
            Quantity(("log_px",), f"log p(x) ≥ (K = {samples})", 1, _BOUND_LEGEND),
            Quantity(("elbo",), "ELBO", 1),
        ]


def examples(sequences: SequenceSet, count: int) -> Tensor:
    """Return the frames of about ``count`` sequences, spread over all."""
    # the scripts of `Sequences` start with their first frame, those of a balanced set at random
    if not isinstance(sequences, Sequences):
        sequences = sequences.balanced(count, EVALUATION_SEED)
    scripts = sequences.fixed()
    return sequences.show(spread(scripts, count)).x


@torch.no_grad()
def motion_numbers(model: RollingVAE, sequences: SequenceSet) -> dict[str, Any]:
    """Return the names of the candidate motions, and their posterior probabilities.

    The likeliest motion of a sequence is the candidate with the largest probability given all
    frames. The keys of the result are:

    - ``candidates``: names of the candidates.
    - ``share``: for each candidate, the share of the sequences whose likeliest motion it is.
    - ``most_frequent``: indices of the candidates with the largest shares.
    - ``certainty``: mean probability of the likeliest motion, by the number of visible frames.
    - ``probability``: by the number of visible frames, mean probabilities of all candidates over
      the sequences of each of the most frequent motions.

    Args:
        sequences: a fixed set. At most `MEASURED` of its sequences are measured, spread over all.
    """
    names = motion_names(model)
    if len(names) == 1:
        return {"candidates": names, "share": [1.0], "most_frequent": [0]}
    x = sequences.show(spread(sequences.fixed(), MEASURED)).x
    frames = sequences.frames
    likeliest = _likeliest(model, x)
    share = likeliest.bincount(minlength=len(names)) / len(x)
    most_frequent = [n for n in share.argsort(descending=True).tolist() if share[n]][:GROUPS]
    certainty, probability = {}, {}
    for count in (*visible_counts(frames), frames):
        p = _probabilities(model, x, stretches(len(x), frames, count))
        certainty[str(count)] = p.gather(1, likeliest[:, None]).mean().item()
        probability[str(count)] = [p[likeliest == n].mean(0).tolist() for n in most_frequent]
    return {
        "candidates": names,
        "share": share.tolist(),
        "most_frequent": most_frequent,
        "certainty": certainty,
        "probability": probability,
    }


@torch.no_grad()
def motion_share(model: RollingVAE, sequences: SequenceSet) -> Tensor:
    """Return for each candidate motion the share of sequences whose likeliest motion it is.

    At most `MEASURED` sequences are measured, spread over all.
    """
    x = examples(sequences, MEASURED)
    return _likeliest(model, x).bincount(minlength=len(model.motions)) / len(x)


def _likeliest(model: RollingVAE, x: Tensor) -> Tensor:
    """Return the index of the likeliest motion of every sequence, given all frames."""
    return _probabilities(model, x, torch.ones(x.shape[:2], dtype=torch.bool)).argmax(1)


def _probabilities(model: RollingVAE, x: Tensor, visible: Tensor) -> Tensor:
    """Return the probabilities of the candidate motions, (batch, candidates)."""
    parts = zip(x.split(_BATCH), visible.to(x.device).split(_BATCH), strict=True)
    return torch.cat([model.motion(*part).probs.cpu() for part in parts])


def motion_names(model: RollingVAE) -> list[str]:
    """Return a name for each candidate motion, made of its velocities in sites per frame.

    Neighbouring capsules that have the same velocity under every candidate are named once.
    """
    path_of = model.motions.path_of  # candidates capsules
    same_as_before = (path_of[:, 1:] == path_of[:, :-1]).all(0).tolist()
    first = [0, *(n for n, same in enumerate(same_as_before, 1) if not same)]  # of each group
    names = []
    for groups in model.motions.paths.velocities[path_of[:, first]].tolist():
        parts = [", ".join(map(_velocity, axes)) for axes in groups]
        parts = [f"({part})" if "," in part else part for part in parts]
        names.append(" / ".join(parts).replace("-", "−"))
    return names


def _velocity(velocities: Sequence[float]) -> str:
    """Return the first velocity of a path, and the frames from which on it has another one.

    >>> _velocity([1.0, 1.0, -1.0])
    '+1 then -1 from frame 2'
    """
    first, *rest = (f"{v:+.3g}" if v else "0" for v in velocities)
    changes = [
        f" then {after} from frame {frame}"
        for frame, (before, after) in enumerate(itertools.pairwise([first, *rest]), 1)
        if before != after
    ]
    return first + "".join(changes)


def _on_motion(motion: Mapping[str, Any]) -> str:
    """Return a sentence on the motion and its posterior probability."""
    names, share = motion["candidates"], motion["share"]
    if len(names) == 1:
        return f"Motion, given: codes roll by {names[0]} sites per frame."
    frequent = ", ".join(
        f"{names[n]} in {share[n]:.0%} of the sequences" for n in motion["most_frequent"]
    )
    counts = list(motion["certainty"])
    certainty = [f"{motion['certainty'][count]:.2f} with {count} frames" for count in counts]
    return (
        f"Motion, inferred, in sites per frame: {frequent}. Mean probability of a sequence's "
        f"likeliest motion: {', '.join(dict.fromkeys((certainty[-1], certainty[0])))}."
    )


def _on_gain(visible: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """Return a warning if the mean frame predicts hidden frames at least as well as the model."""
    gains = {count: metrics["gain"] for count, metrics in visible.items()}
    poor = [count for count, gain in gains.items() if gain is not None and gain <= 0]
    if not poor:
        return []
    counts = ", ".join(poor[:-1]) + " or " * bool(poor[1:]) + poor[-1]
    return [
        f"With {counts} visible frames, hidden frames of held-out sequences are predicted no "
        "better than by the mean frame of their sequence."
    ]
