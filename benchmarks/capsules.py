"""Speed of the part-whole model on a GPU: training in several modes, and free-form inference.

python benchmarks/capsules.py [RECIPE...] > benchmarks/results/capsules-h200.json
"""

import json
import sys
import time

import torch
from engine import digits

from topocaps.capsules import optimise
from topocaps.data.moved import MovedDigits, rotated_up_to
from topocaps.papers.recipes import find
from topocaps.training.engine import Engine
from topocaps.training.run import describe_device

RECIPES = ("capsules/mnist", "capsules/mnist-normal", "capsules/mnist-turns")
MODES = {
    "compiled graph": {"compiling": True},
    "graph": {},
    "eager": {"captured": False},
}


def images_a_second(name, sequences, device, steps, **mode):
    """Return the images per second that one model trains on, data and update included."""
    recipe = find(name)
    model = recipe.build(sequences.frame_shape, 0).to(device)
    engine = Engine([model], sequences.to(device), [0], recipe.training, **mode)
    engine.advance(1, steps, 10 * steps)
    began = time.perf_counter()
    sums = engine.advance(steps + 1, steps, 10 * steps)  # reads the sums, so waits for the device
    rate = steps * recipe.training.batch / (time.perf_counter() - began)
    assert not engine.failures(), engine.failures()
    return {"images a second": round(rate), "elbo": round(sums[0]["elbo"] / steps, 2)}


def free_form(sequences, device, images, steps):
    """Return the seconds that free-form inference takes for a batch of images."""
    model = find("capsules/mnist").build(sequences.frame_shape, 0).to(device)
    x = next(sequences.balanced(images, 0).to(device).batches(images)).x
    optimise(model, x, steps=2)
    began = time.perf_counter()
    optimised = optimise(model, x, steps=steps)
    bounds = optimised.bounds.mean((1, 2)).tolist()
    took = time.perf_counter() - began
    return {"images": len(x), "steps": steps, "seconds": round(took, 2),
            "bounds": [round(bounds[0], 1), round(bounds[-1], 1)]}  # fmt: skip


def main():
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    steps, images, free_steps = (200, 3000, 100) if device.type == "cuda" else (3, 20, 3)
    pictures = digits(3000)
    classes = torch.zeros(len(pictures), dtype=torch.uint8)
    upright = MovedDigits(pictures, classes)
    results = {"device": describe_device(device), "torch": torch.__version__, "batch": 128}
    turned = MovedDigits(pictures, classes, rotated_up_to(90))
    results["free-form"] = free_form(turned, device, images, free_steps)
    print("free-form", results["free-form"], file=sys.stderr, flush=True)
    for name in sys.argv[1:] or RECIPES:
        for mode, options in MODES.items():
            if device.type == "cpu" and mode != "eager":
                continue
            if "turns" in name and mode != "graph":
                continue
            speed = images_a_second(name, upright, device, steps, **options)
            results[f"{name}, {mode}"] = speed
            print(name, mode, speed, file=sys.stderr, flush=True)
    print(json.dumps(results, indent=2))


if __name__ == "__main__":
    main()
