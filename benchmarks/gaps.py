"""Training on sequences with missing frames: traversal gain on complete sequences, and nats of a
frame that is filled in.

python benchmarks/gaps.py > benchmarks/results/gaps-cpu.json
"""

import json
import sys
from dataclasses import replace

import torch

import topocaps as tc
from topocaps.papers.recipes import find
from topocaps.training.loop import train

RECIPE = find("sprites/tvae")
SHARES = (0.0, 0.3)
SEEDS = (0, 1, 2)


def main():
    splits = RECIPE.data.load()
    held_out = splits.held_out.balanced(splits.each, 0)
    results = {}
    for share in SHARES:
        generator = torch.Generator().manual_seed(0)
        present = torch.rand(len(splits.train.images), generator=generator) >= share
        sequences = replace(splits.train, present=present)
        models = [RECIPE.build(sequences.frame_shape, seed) for seed in SEEDS]
        train(models, sequences, RECIPE.training, seeds=SEEDS)
        measured = [tc.evaluate(model, held_out, rate=RECIPE.rate) for model in models]
        results[f"{share:.0%} missing"] = {
            "gain": [m["traversal_gain"] for m in measured],
            **{f: [m["traversal"]["by_factor"][f] for m in measured] for f in ("x", "y")},
            "log_px": [m["log_px"] for m in measured],
            "filled": {k: [m["missing"][k]["filled"] for m in measured] for k in ("0.3", "0.5")},
        }
        print(share, results[f"{share:.0%} missing"], file=sys.stderr, flush=True)
    print(json.dumps(results, indent=2))


if __name__ == "__main__":
    main()
