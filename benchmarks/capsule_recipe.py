"""Which settings of the part-whole model learn wholes: several at once, by validation images.

python benchmarks/capsule_recipe.py EPOCHS [MNIST folder] < variants.json

Variants are a list of settings of ``PartWhole``, with ``lr``, ``clip``, ``warmup`` and ``seed``.
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
    """The recipe with these settings; training is told apart from the model."""
    own = {k: v for k, v in variant.items() if k not in ("lr", "clip", "warmup", "seed")}
    rule = replace(
        BASE.training.optimiser,
        lr=variant.get("lr", BASE.training.optimiser.lr),
        warmup=variant.get("warmup", BASE.training.optimiser.warmup),
    )
    training = replace(BASE.training, optimiser=rule, clip=variant.get("clip", BASE.training.clip))
    return replace(BASE, training=training, capsules=replace(BASE.capsules, **own))


def main():
    epochs, folder = int(sys.argv[1]), sys.argv[2] if len(sys.argv) > 2 else None
    where = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    variants = json.load(sys.stdin)
    recipes = [recipe_of(variant) for variant in variants]
    seeds = [variant.get("seed", 0) for variant in variants]
    train, validation, _ = (
        MovedDigits(p.images, p.classes).to(where) for p in digit_splits(folder)
    )
    models = [r.build((1, 28, 28), s).to(where) for r, s in zip(recipes, seeds, strict=True)]
    began = time.perf_counter()
    engine = Engine(models, train, seeds, [r.training for r in recipes])
    steps = epochs * -(-len(train) // BASE.training.batch)
    each = steps // 10
    for first in range(1, steps - each + 2, each):
        sums = engine.advance(first, each, steps)
        for variant, one in zip(variants, sums, strict=True):
            told = {name: round(total / each, 3) for name, total in one.items()}
            print(round(time.perf_counter() - began), first + each - 1, variant, told, flush=True)
    failed = engine.failures()
    engine.write_back()
    fitted, judged = train.balanced(None, 0), validation.balanced(None, 0)
    for place, (variant, model) in enumerate(zip(variants, models, strict=True)):
        found = {"failed": failed[place]} if place in failed else {
            "accuracy": accuracy(model, fitted, judged), **bounds(model, judged)
        }  # fmt: skip
        print(json.dumps({"variant": variant, "steps": steps, **found}), flush=True)


if __name__ == "__main__":
    main()
