"""Train a model that ships with the package: ``python -m topocaps.integrations.pretrained NAME``.

The command trains the model's recipe into runs/trained-NAME; run again, it resumes an unfinished
run. It rounds the weights to float16, evaluates the rounded model, and writes it with its card into
the package.
"""

from __future__ import annotations

import sys
from dataclasses import asdict
from pathlib import Path

from topocaps.errors import BadInput
from topocaps.integrations.hub import About, save_pretrained
from topocaps.integrations.pretrained import FOLDER
from topocaps.metrics import evaluate
from topocaps.models.sequence import SequenceModel
from topocaps.papers.recipes import find
from topocaps.study.evaluation.base import EVALUATION_SEED
from topocaps.study.evaluation.topographic import traversal_options
from topocaps.study.runs import Job, run_job

#: The recipe of each model, and the changes of its settings.
MADE = {"sprites": ("sprites/tvae", ("hidden=200,150", "training.epochs=30"))}

TEXT = """\
`topocaps.pretrained("{name}")`: the recipe {recipe} with {changes},
trained on one CPU core in {seconds:.0f} s; weights are rounded to float16. The numbers below are of
these weights, on {sequences:,} sequences of {split}. Made by

```
OMP_NUM_THREADS=1 python -m topocaps.integrations.pretrained {name}
```"""


def make(name: str) -> Path:
    """Train a model unless its run is finished, write it, and return its folder."""
    if name not in MADE:
        raise BadInput(f"no command makes {name!r}: choose from {', '.join(MADE)}")
    recipe, changes = MADE[name]
    job = Job(find(recipe).change(changes), Path("runs") / f"trained-{name}")
    run = run_job(job, "cpu", print)
    model = run.model.half().float()
    assert isinstance(model, SequenceModel)
    splits = run.recipe.data.load()
    held_out = splits.held_out.balanced(splits.each, EVALUATION_SEED)
    options = asdict(traversal_options(run.recipe))
    measured = evaluate(model, held_out, seed=EVALUATION_SEED, **options)
    gains = measured["traversal"]["by_factor"].items()
    metrics = {f"gain {factor}": gain for factor, gain in gains if gain is not None}
    metrics |= {key: measured[key] for key in ("traversal_gain", "equivariance_error", "log_px")}
    text = TEXT.format(
        name=name, recipe=recipe, changes=" and ".join(changes), split=splits.name,
        seconds=run.metrics["seconds"], sequences=measured["sequences"],
    )  # fmt: skip
    about = About(text, f"A small {recipe}", license="mit", metrics=metrics)
    repo_id = f"topocaps/integrations/pretrained/{name}"
    return save_pretrained(model.half(), FOLDER / name, about, repo_id)


if __name__ == "__main__":
    try:
        print(make(sys.argv[1] if sys.argv[1:] else ""))
    except BadInput as error:
        sys.exit(f"topocaps: {error}")
