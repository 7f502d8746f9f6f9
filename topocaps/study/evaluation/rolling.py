"""Rolling VAEs: what is measured and drawn of them, and the rows of their tables."""

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

SAMPLES = 10  # of the bound
EXAMPLES = 8  # sequences in figures
CALIBRATED = 64  # sequences in the figure of calibration
GROUPS = 4  # motions in the figure of motions
_BATCH = 64
_BOUND_LEGEND = (
    "log p(x) ≥",
    "importance-weighted bound with K samples, nats a frame. All frames are visible, and a motion "
    "that is known is given.",
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
            "Held-out sequences (top), and below them what each model makes of their first frames. "
            "A red bar marks frames that the models have not seen."
        ),
        "by_visible": (
            "The gain on hidden frames by the number of visible ones: 1 is a perfect prediction, 0 "
            "the mean frame of the sequence."
        ),
        "motions": (
            "How sure the model is of the motion, by the number of visible frames: the mean "
            "probability of each candidate, over the held-out sequences in which it is the "
            "likeliest with all frames."
        ),
        "capsules": (
            "What each capsule adds to frame 0 of held-out sequences: the decoded frame less that "
            "decoded without the capsule; red is brighter, blue darker. Capsules are ordered by "
            "the nats of the code that they hold, on average over sequences (above)."
        ),
        "calibration": (
            "Pixels of hidden frames, grouped by the standard deviation that the model predicts "
            "for them from what it does not know of the code, and the root mean square of its "
            "errors. On the dashed line, it knows how wrong it is; errors above it have other "
            "sources as well."
        ),
        **Evaluation.captions,
    }
    some_of_train: ClassVar = True

    def numbers(
        self, model: RollingVAE, sequences: SequenceSet, recipe: BaseRecipe
    ) -> dict[str, Any]:
        found = evaluate(
            model.eval(),
            sequences,
            samples=SAMPLES,
            seed=EVALUATION_SEED,
            most=MEASURED,
            closed=comes_round(recipe.data),
        )
        return {**found, "motion": motion_numbers(model, sequences)}

    def fill(self, model: RollingVAE, recipe: BaseRecipe) -> Fill:
        return model.fill

    def remarks(self, metrics: Mapping[str, Any]) -> list[str]:
        return [_on_motion(metrics["motion"]), *_on_gain(metrics[VISIBLE])]

    def draw(self, run: Finished[RollingVAE], held_out: SequenceSet) -> dict[str, Drawing]:
        model, metrics = run.model, run.metrics
        drawn: dict[str, Drawing] = {}
        x = examples(held_out, EXAMPLES)
        if figures.can_be_drawn(held_out.frame_shape):
            drawn["predicted"] = rolling_figures.predicted({"predicted": model.fill}, x)
            drawn["animation"] = rolling_figures.animated({"predicted": model.fill}, x)
            drawn["capsules"] = rolling_figures.capsules(model, examples(held_out, CALIBRATED))
        if metrics[VISIBLE]:
            drawn["by_visible"] = rolling_figures.by_visible({run.name: metrics[VISIBLE]})
        if len(model.motions) > 1:
            drawn["motions"] = rolling_figures.motions(metrics["motion"])
        drawn["calibration"] = rolling_figures.calibration(model, examples(held_out, CALIBRATED))
        return drawn

    def traversals(self, run: Finished[RollingVAE], held_out: SequenceSet, each: int) -> Figure:
        """Draw codes of the first frames; the frames that they have not seen are grey."""
        shown = held_out.balanced(each, EXAMPLES_SEED)
        batch = next(shown.batches(len(shown)))
        visible = rolling_figures.first_frames(batch.x)
        traversed = RingTraversal.of(run.model, batch.x, mask=visible)
        labels = figures.labels_of(batch, held_out.names)
        return rolling_figures.ring_traversal(traversed, labels)

    def extra_metrics(self, run: Finished[RollingVAE], data: Path | None) -> list[ExtraMetric]:
        """Bounds by the number of samples; of digits, what probes read of the code."""
        model, trained_on = run.model, run.recipe.data
        device = next(model.parameters()).device
        bounds = bounds_by_samples(model.log_px, run.recipe, device, data)
        if not isinstance(trained_on, Mnist) or trained_on.motion != "single":
            return [bounds]

        def read(x: Tensor) -> dict[str, Tensor]:
            first = first_frames(x, 1).to(x.device)
            alone = of_codes(model.posterior(x, first).mean)
            of_one = {f"{name} of one frame": values for name, values in alone.items()}
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
    if not isinstance(sequences, Sequences):  # whose sequences start with the first frame
        sequences = sequences.balanced(count, EVALUATION_SEED)
    scripts = sequences.fixed()
    return sequences.show(spread(scripts, count)).x


@torch.no_grad()
def motion_numbers(model: RollingVAE, sequences: SequenceSet) -> dict[str, Any]:
    """Return the names of the candidate motions, and how probable the model finds them.

    ``share`` is that of the sequences in which a candidate is the likeliest, given all frames;
    ``most_frequent`` are the candidates with the largest shares. By the number of visible frames,
    ``certainty`` is the mean probability of the motion that is the likeliest given all frames, and
    ``probability`` holds the mean probabilities of all candidates, over the sequences of each of
    the most frequent motions.

    Args:
        sequences: a fixed set, of which some are measured, spread over all.
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
    """Return the share of some sequences in which each candidate motion is the likeliest."""
    x = examples(sequences, MEASURED)
    return _likeliest(model, x).bincount(minlength=len(model.motions)) / len(x)


def _likeliest(model: RollingVAE, x: Tensor) -> Tensor:
    """Return the index of the likeliest motion of every sequence, given all frames."""
    return _probabilities(model, x, torch.ones(x.shape[:2], dtype=torch.bool)).argmax(1)


def _probabilities(model: RollingVAE, x: Tensor, visible: Tensor) -> Tensor:
    parts = zip(x.split(_BATCH), visible.to(x.device).split(_BATCH), strict=True)
    return torch.cat([model.motion(some, shown).probs.cpu() for some, shown in parts])


def motion_names(model: RollingVAE) -> list[str]:
    """Return a name for each candidate motion: its velocities, in sites a frame.

    Neighbouring capsules that move alike under every candidate are named once.
    """
    path_of = model.motions.path_of  # candidates capsules
    alike = (path_of[:, 1:] == path_of[:, :-1]).all(0).tolist()
    first = [0, *(n for n, same in enumerate(alike, 1) if not same)]  # capsule of each group
    names = []
    for groups in model.motions.paths.velocities[path_of[:, first]].tolist():
        each = [", ".join(map(_speed, axes)) for axes in groups]
        each = [f"({name})" if "," in name else name for name in each]
        names.append(" / ".join(each).replace("-", "−"))
    return names


def _speed(velocities: Sequence[float]) -> str:
    """Return a velocity, and from which frames on there is another one.

    >>> _speed([1.0, 1.0, -1.0])
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
    """Return a sentence on the motion, and how sure the model is of it."""
    names, share = motion["candidates"], motion["share"]
    if len(names) == 1:
        return f"Motion, given: codes roll by {names[0]} sites a frame."
    frequent = ", ".join(
        f"{names[n]} in {share[n]:.0%} of the sequences" for n in motion["most_frequent"]
    )
    counts = list(motion["certainty"])
    certainty = [f"{motion['certainty'][count]:.2f} with {count} frames" for count in counts]
    return (
        f"Motion, inferred, in sites a frame: {frequent}. Mean probability of a sequence's "
        f"likeliest motion: {', '.join(dict.fromkeys((certainty[-1], certainty[0])))}."
    )


def _on_gain(visible: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """Return a warning if hidden frames are predicted no better than by the mean frame."""
    poor = [n for n, one in visible.items() if one["gain"] is not None and one["gain"] <= 0]
    if not poor:
        return []
    counts = ", ".join(poor[:-1]) + " or " * bool(poor[1:]) + poor[-1]
    return [
        f"With {counts} visible frames, hidden frames of held-out sequences are predicted no "
        "better than by the mean frame of their sequence."
    ]
