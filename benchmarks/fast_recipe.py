"""The search for the fast recipe: metrics of several settings on validation images, over time.

python benchmarks/fast_recipe.py paper [MNIST folder]     the papers' recipe, 100 epochs
python benchmarks/fast_recipe.py search [MNIST folder]    Adam and SGD, several rates at once
python benchmarks/fast_recipe.py batches [MNIST folder]   Adam, larger batches and fewer steps

Prints a JSON line for every model and mark. benchmarks/results/fast-recipe-search-h200.json holds
the results. The learning rates of one setting are members of one stack.
"""

import json
import sys
import time
from dataclasses import dataclass, replace

import torch

import topocaps as tc
from topocaps.papers.recipes import find
from topocaps.training.engine import Engine

COLUMNS = {name: find(f"mnist/letter/tvae-{name}") for name in ("1_2", "5_36")}
ADAM = tc.Adam(1e-3, betas=(0.9, 0.99))


@dataclass(frozen=True)
class Setting:
    """An optimiser, the factors of its learning rate, and when models are measured."""

    name: str
    optimiser: tc.Sgd | tc.Adam
    steps: int
    batch: int = 8
    centred: bool = True
    factors: tuple = (1.0,)
    marks: tuple = (1.0,)  # shares of the steps


SEARCHES = {
    "paper": [
        Setting(
            "paper", tc.Sgd(1e-4), 600_000, centred=False,
            marks=(0.02, 0.05, 0.1, 0.15, 0.2, 0.25, 0.33, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0),
        )
    ],
    "search": [
        Setting("adam8", ADAM, 24_000, factors=(0.1, 0.2, 0.4, 0.8, 1.6, 3.2)),
        Setting("adam64", ADAM, 12_000, 64, factors=(0.1, 0.2, 0.4, 0.8, 1.6, 3.2)),
        Setting("sgd8c", tc.Sgd(1e-3), 24_000, factors=(0.1, 0.3, 1.0, 3.0)),
        Setting("adam64", ADAM, 30_000, 64, factors=(0.5, 0.8), marks=(0.25, 0.5, 0.75, 1.0)),
        Setting("adam128", ADAM, 15_000, 128, factors=(0.8, 1.3), marks=(0.5, 1.0)),
    ],
    "batches": [
        Setting("adam128", ADAM, 10_000, 128, factors=(0.5, 0.8), marks=(0.5, 1.0)),
        Setting("adam256", ADAM, 7_500, 256, factors=(0.8, 1.3), marks=(0.5, 0.75, 1.0)),
    ],
}  # fmt: skip


def run(setting, sequences, validation, device):
    members = [(name, factor) for name in COLUMNS for factor in setting.factors]
    recipes = [replace(COLUMNS[name], centred=setting.centred) for name, _ in members]
    models = [recipe.build(sequences.frame_shape, 0).to(device) for recipe in recipes]
    training = tc.Training(setting.optimiser, batch=setting.batch, precision="bf16")
    compiling = device == "cuda"
    engine = Engine(models, sequences, [0] * len(models), training, compiling=compiling)
    (stack,) = engine.parts
    if len(setting.factors) > 1:  # only the fused update has learning rates for members
        stack.update.relative_rates.copy_(torch.tensor([factor for _, factor in members]))
    step, busy = 0, 0.0
    for mark in (round(share * setting.steps) for share in setting.marks):
        while step < mark:
            count = min(1000, mark - step)
            began = time.perf_counter()
            engine.advance(step + 1, count, setting.steps)
            busy += time.perf_counter() - began
            step += count
        engine.write_back()
        failed = engine.failures()
        for n, ((name, factor), model) in enumerate(zip(members, models, strict=True)):
            row = {"run": setting.name, "col": name, "lr": factor * setting.optimiser.lr}
            row |= {"batch": setting.batch, "step": step, "steps": setting.steps}
            row |= {"n": len(models), "seconds": round(busy, 1)}
            if n in failed:
                row["failed"] = failed[n].split(";")[0]
            else:
                metrics = tc.evaluate(model, validation)
                for key in ("log_px_paper", "elbo", "equivariance_error", "traversal_gain"):
                    row[key] = metrics[key]
            print(json.dumps(row), flush=True)


def main():
    search, *folder = sys.argv[1:]
    device = "cuda" if torch.cuda.is_available() else "cpu"
    train, validation, _ = tc.data.mnist(*folder)
    fixed = validation.balanced(200, 0).to(device)
    for setting in SEARCHES[search]:
        run(setting, train.to(device), fixed, device)


if __name__ == "__main__":
    main()
