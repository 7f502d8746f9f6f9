"""How long a rolling VAE of MNIST trains on a GPU until it predicts hidden frames.

    python benchmarks/rolling_time.py --data FOLDER > mine.json

Models of ``rolling/mnist`` train for ``--steps`` steps, alone and ``--together`` as one program.
The gains are those of hidden frames of validation images, with 5 of 18 frames visible. Compilation
and graph capture, which a program needs once, take the ``prepared`` seconds. Settings of the recipe
can be changed, to choose them: ``--set capsules=36 --set lr=0.002``.
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
    begun = time.perf_counter()
    engine = Engine(models, sequences, range(count), [training] * count, compiling=compiling)
    engine.advance(1, 1, steps)
    return models, engine, time.perf_counter() - begun


def seconds_of(engine, first, count, steps):
    begun = time.perf_counter()
    engine.advance(first, count, steps)  # it reads the statistics, and so waits for the device
    return time.perf_counter() - begun


def trained(recipe, splits, steps, device, compiling):
    (model,), engine, prepared = engine_of(1, recipe, splits, steps, device, compiling)
    seconds = seconds_of(engine, 2, steps - 1, steps)
    engine.write_back()
    validation = splits.validation.balanced(MEASURED // 3, seed=1).to(device)
    found = visible_gains(model.eval().fill, validation, tc.Likelihood.BERNOULLI, MEASURED)
    gains = {name: round(gain, 3) for name, gain in found[VISIBLE]["by_factor"].items()}
    return {"steps": steps, "seconds": seconds, "prepared": prepared, "gains": gains}


def together(count, recipe, splits, steps, device, compiling):
    _, engine, prepared = engine_of(count, recipe, splits, steps, device, compiling)
    measured = min(SPEED_STEPS, steps - 1)
    each = seconds_of(engine, 2, measured, steps) / measured / count
    return {
        "models": count,
        "milliseconds_per_model_and_step": 1e3 * each,
        "seconds_per_model": each * steps,
        "prepared": prepared,
    }


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path)
    parser.add_argument("--steps", type=int, default=10_000)
    parser.add_argument("--together", type=int, default=8)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--plain", action="store_true", help="do not compile")
    parser.add_argument("--set", action="append", default=[], help="a changed setting, name=value")
    asked = parser.parse_args()
    recipe = MNIST.change(asked.set)
    splits, device = recipe.data.load(asked.data), torch.device(asked.device)
    given = recipe, splits, asked.steps, device, not asked.plain
    found = {"changed": asked.set, "alone": trained(*given)}
    if asked.together:
        found["together"] = together(asked.together, *given)
    print(json.dumps(found))


if __name__ == "__main__":
    main()
