"""Search for settings of the part-whole model that learn wholes, judged on validation images.

python benchmarks/capsule_recipe.py EPOCHS [MNIST folder] < variants.json

The input is a list of variants, which train together. A variant holds settings of ``PartWhole``,
and may hold ``lr``, ``clip``, ``warmup`` and ``seed``.
"""

import json
import sys
import time
from dataclasses import replace

import torch

from topocaps.data.mnist_files import digit_splits
from topocaps.data.moved import MovedDigits
from topocaps.papers.recipes import find
from topocaps.study.evaluation.part_whole import accuracy, bounds
from topocaps.training.engine import Engine

BASE = find("capsules/mnist")


def recipe_of(variant):
    """Return the recipe of a variant."""
    capsules = {k: v for k, v in variant.items() if k not in ("lr", "clip", "warmup", "seed")}
    rule = replace(
        BASE.training.optimiser,
        lr=variant.get("lr", BASE.training.optimiser.lr),
        warmup=variant.get("warmup", BASE.training.optimiser.warmup),
    )
    training = replace(BASE.training, optimiser=rule, clip=variant.get("clip", BASE.training.clip))
    return replace(BASE, training=training, capsules=replace(BASE.capsules, **capsules))


def main():
    epochs, folder = int(sys.argv[1]), sys.argv[2] if len(sys.argv) > 2 else None
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    variants = json.load(sys.stdin)
    recipes = [recipe_of(variant) for variant in variants]
    seeds = [variant.get("seed", 0) for variant in variants]
    train, validation, _ = (
        MovedDigits(p.images, p.classes).to(device) for p in digit_splits(folder)
    )
    models = [r.build((1, 28, 28), s).to(device) for r, s in zip(recipes, seeds, strict=True)]
    began = time.perf_counter()
    engine = Engine(models, train, seeds, [r.training for r in recipes])
    steps = epochs * -(-len(train) // BASE.training.batch)
    count = steps // 10
    for first in range(1, steps - count + 2, count):
        sums = engine.advance(first, count, steps)
        for variant, totals in zip(variants, sums, strict=True):
            means = {name: round(total / count, 3) for name, total in totals.items()}
            print(round(time.perf_counter() - began), first + count - 1, variant, means, flush=True)
    failed = engine.failures()
    engine.write_back()
    fitted, judged = train.balanced(None, 0), validation.balanced(None, 0)
    for place, (variant, model) in enumerate(zip(variants, models, strict=True)):
        result = {"failed": failed[place]} if place in failed else {
            "accuracy": accuracy(model, fitted, judged), **bounds(model, judged)
        }  # fmt: skip
        print(json.dumps({"variant": variant, "steps": steps, **result}), flush=True)


if __name__ == "__main__":
    main()
