"""The time in which a rolling VAE of MNIST learns to predict hidden frames on a GPU.

    python benchmarks/rolling_time.py --data FOLDER > mine.json

Models of ``rolling/mnist`` train for ``--steps`` steps, alone and ``--together`` as one program.
The gains are those of hidden frames of validation images, with 5 of 18 frames visible. ``prepared``
is the seconds of compilation and graph capture, which a program needs once. ``--set capsules=36
--set lr=0.002`` changes settings of the recipe.
"""

import argparse
import json
import time
from dataclasses import replace
from pathlib import Path

import torch

import topocaps as tc
from topocaps.metrics.visible_frames import visible_gains
from topocaps.papers.recipes.rolling import MNIST
from topocaps.training.engine import Engine

VISIBLE, MEASURED, SPEED_STEPS = "5", 300, 500


def engine_of(count, recipe, splits, steps, device, compiling):
    training = replace(recipe.training, epochs=1, epoch_size=steps * recipe.training.batch)
    frame_shape = splits.train.frame_shape
    models = [recipe.build(frame_shape, seed).to(device) for seed in range(count)]
    sequences = splits.train.to(device)
    began = time.perf_counter()
    engine = Engine(models, sequences, range(count), [training] * count, compiling=compiling)
    engine.advance(1, 1, steps)
    return models, engine, time.perf_counter() - began


def seconds_of(engine, first, count, steps):
    began = time.perf_counter()
    engine.advance(first, count, steps)  # reads the sums, so waits for the device
    return time.perf_counter() - began


def trained(recipe, splits, steps, device, compiling):
    (model,), engine, prepared = engine_of(1, recipe, splits, steps, device, compiling)
    seconds = seconds_of(engine, 2, steps - 1, steps)
    engine.write_back()
    validation = splits.validation.balanced(MEASURED // 3, seed=1).to(device)
    measured = visible_gains(model.eval().fill, validation, tc.Likelihood.BERNOULLI, MEASURED)
    gains = {name: round(gain, 3) for name, gain in measured[VISIBLE]["by_factor"].items()}
    return {"steps": steps, "seconds": seconds, "prepared": prepared, "gains": gains}


def together(count, recipe, splits, steps, device, compiling):
    _, engine, prepared = engine_of(count, recipe, splits, steps, device, compiling)
    measured = min(SPEED_STEPS, steps - 1)
    seconds = seconds_of(engine, 2, measured, steps) / measured / count
    return {
        "models": count,
        "milliseconds_per_model_and_step": 1e3 * seconds,
        "seconds_per_model": seconds * steps,
        "prepared": prepared,
    }


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path)
    parser.add_argument("--steps", type=int, default=10_000)
    parser.add_argument("--together", type=int, default=8)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--plain", action="store_true", help="do not compile")
    parser.add_argument("--set", action="append", default=[], help="change a setting: name=value")
    options = parser.parse_args()
    recipe = MNIST.change(options.set)
    splits, device = recipe.data.load(options.data), torch.device(options.device)
    arguments = recipe, splits, options.steps, device, not options.plain
    results = {"changed": options.set, "alone": trained(*arguments)}
    if options.together:
        results["together"] = together(options.together, *arguments)
    print(json.dumps(results))


if __name__ == "__main__":
    main()
