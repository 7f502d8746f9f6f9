"""A small part-whole model whose poses are first points, then Normal, at several learning rates.

Measures its bound, and how much the presences of wholes vary over images.

python benchmarks/normal_poses.py MNIST_FOLDER > benchmarks/results/normal-poses-cpu.json
"""

import json
import sys
from dataclasses import replace

import torch

import topocaps as tc
from topocaps.device import steady_arithmetic
from topocaps.papers.recipes import find
from topocaps.training.watching import Silent

RATES = (3e-4, 1e-3, 3e-3)
EPOCHS = 5
SHOWN = ("elbo", "kl_parts", "kl_wholes", "logit_spread", "largest_share")


def trained(model, train, training):
    """Train a model, and return the terms of every epoch."""
    history = tc.fit(model, train, training=training, watcher=Silent(), device="cpu").history
    return [{name: round(record[name], 3) for name in SHOWN} for record in history]


def main():
    recipe = find("capsules/mnist-small")
    train = recipe.data.load(sys.argv[1]).train
    points = recipe.build(train.frame_shape, 0)
    results = {"points": trained(points, train, recipe.training)[-1:]}
    for rate in RATES:
        torch.manual_seed(0)
        normal = tc.PartWhole(points.frame_shape, points.settings, poses_are="normal")
        normal.load_state_dict(points.state_dict())
        optimiser = replace(recipe.training.optimiser, lr=rate)
        training = replace(recipe.training, optimiser=optimiser, epochs=EPOCHS)
        results[f"then Normal, lr {rate:g}"] = trained(normal, train, training)
        print(rate, results[f"then Normal, lr {rate:g}"][-1], file=sys.stderr, flush=True)
    print(json.dumps(results, indent=2))


if __name__ == "__main__":
    with steady_arithmetic():
        main()
