"""How often the published model with L = 0, K = 3 diverges, with and without gradient clipping.

python benchmarks/divergence.py [MNIST folder] > benchmarks/results/divergence-h200.json
"""

import json
import sys
from dataclasses import replace

import torch

from topocaps.data import mnist, sprites
from topocaps.papers.recipes import RECIPES
from topocaps.training.engine import Engine
from topocaps.training.run import describe_device

SEEDS = range(6)
STEPS = 12_000  # two epochs of MNIST


def outcome(recipe, sequences, clip):
    """Return the first non-finite term of each failed seed, and the last bound of the others."""
    training = replace(recipe.training, clip=clip)
    models = [recipe.build(sequences.frame_shape, seed).to("cuda") for seed in SEEDS]
    engine = Engine(models, sequences.to("cuda"), SEEDS, training)
    for first in range(1, STEPS, 1000):
        sums = engine.advance(first, 1000, STEPS)
    failed = engine.failures()
    return {
        "recipe": recipe.name,
        "clip": clip,
        "seeds": len(SEEDS),
        "failed": {seed: why.split(";")[0] for seed, why in failed.items()},
        "elbo": [round(s["elbo"] / 1000, 2) for n, s in enumerate(sums) if n not in failed],
    }


def main():
    folder = sys.argv[1] if len(sys.argv) > 1 else None
    data = {"mnist": mnist(folder)[0], "sprites": sprites(64)[0]}
    results = {"device": describe_device(torch.device("cuda")), "steps": STEPS, "outcomes": []}
    for name, sequences in data.items():
        recipe = RECIPES[f"{name}/camera-ready/tvae-0"]
        for clip in (None, 1000.0):
            results["outcomes"].append(outcome(recipe, sequences, clip))
            print(results["outcomes"][-1], file=sys.stderr, flush=True)
    print(json.dumps(results, indent=2))


if __name__ == "__main__":
    main()
