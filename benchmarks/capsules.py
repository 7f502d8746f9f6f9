"""The part-whole model on a GPU: images a second, compiled, captured, eager; free-form inference.

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
WAYS = {
    "compiled graph": {"compiling": True},
    "graph": {},
    "eager": {"captured": False},
}


def images_a_second(name, sequences, where, steps, **how):
    """Of one model, data and update included."""
    recipe = find(name)
    model = recipe.build(sequences.frame_shape, 0).to(where)
    engine = Engine([model], sequences.to(where), [0], recipe.training, **how)
    engine.advance(1, steps, 10 * steps)
    began = time.perf_counter()
    found = engine.advance(steps + 1, steps, 10 * steps)  # its statistics wait for the device
    rate = steps * recipe.training.batch / (time.perf_counter() - began)
    assert not engine.failures(), engine.failures()
    return {"images a second": round(rate), "elbo": round(found[0]["elbo"] / steps, 2)}


def free_form(sequences, where, images, steps):
    """Seconds for a batch of images."""
    model = find("capsules/mnist").build(sequences.frame_shape, 0).to(where)
    x = next(sequences.balanced(images, 0).to(where).batches(images)).x
    optimise(model, x, steps=2)
    began = time.perf_counter()
    found = optimise(model, x, steps=steps)
    bounds = found.bounds.mean((1, 2)).tolist()
    took = time.perf_counter() - began
    return {"images": len(x), "steps": steps, "seconds": round(took, 2),
            "bounds": [round(bounds[0], 1), round(bounds[-1], 1)]}  # fmt: skip


def main():
    where = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    steps, images, free_steps = (200, 3000, 100) if where.type == "cuda" else (3, 20, 3)
    pictures = digits(3000)
    classes = torch.zeros(len(pictures), dtype=torch.uint8)
    upright = MovedDigits(pictures, classes)
    found = {"device": describe_device(where), "torch": torch.__version__, "batch": 128}
    turned = MovedDigits(pictures, classes, rotated_up_to(90))
    found["free-form"] = free_form(turned, where, images, free_steps)
    print("free-form", found["free-form"], file=sys.stderr, flush=True)
    for name in sys.argv[1:] or RECIPES:
        for way, how in WAYS.items():
            if where.type == "cpu" and way != "eager":
                continue
            if "turns" in name and way != "graph":
                continue
            found[f"{name}, {way}"] = images_a_second(name, upright, where, steps, **how)
            print(name, way, found[f"{name}, {way}"], file=sys.stderr, flush=True)
    print(json.dumps(found, indent=2))


if __name__ == "__main__":
    main()
