"""Checks of the engine on a GPU. Each measures a difference that should be small:

the kernel against plain matrix products; the captured step against the eager step, and against a
CPU with the same random numbers; a member of a stack against the same model alone; a resumed run
against an uninterrupted one. Also measured are planned and used memory, and the time of an
evaluation on a whole test set.

python benchmarks/graph_equals_eager.py [NAME ...] > benchmarks/results/graph-equals-eager-h200.json
"""

import functools
import json
import os
import signal
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from unittest import mock

import torch
from engine import digits

import topocaps as tc
from topocaps.data import TransformedImages
from topocaps.data.moved import MovedDigits
from topocaps.models.networks import Norm
from topocaps.papers.recipes import find
from topocaps.papers.recipes.mnist import FINAL
from topocaps.training.engine import Engine
from topocaps.training.loop import train
from topocaps.training.memory import plan
from topocaps.training.stack import DeviceRandomness
from topocaps.training.store import RunFolder
from topocaps.training.updates.fused import RadialCorrection, update_weight
from topocaps.training.updates.layers import PART, aligned, padded
from topocaps.training.watching import Silent

FRAME = (3, 28, 28)
TABLE = FINAL
STEPS = 20
#: Models, rows, inputs and outputs of layers of several sizes.
SIZES = ((5, 40, 200, 90), (1, 2304, 2352, 972), (3, 120, 972, 648))
SMALL = tc.Training(tc.Sgd(1e-4), batch=16)
TRAININGS = {
    "sgd, fp32": (tc.Training(tc.Sgd(1e-4), precision="fp32"), Norm.NONE),
    "sgd, bf16": (tc.Training(tc.Sgd(1e-4), precision="bf16"), Norm.NONE),
    "sgd, bf16, weight norm": (tc.Training(tc.Sgd(1e-4), precision="bf16"), Norm.WEIGHT),
    # with a clip: without it, L = 0 with rows of length 1 amplifies any rounding within 20 steps
    "sgd, bf16, projected rows": (
        tc.Training(tc.Sgd(1e-4), precision="bf16", clip=10.0),
        Norm.PROJECTED,
    ),
    "adam, bf16": (tc.Training(tc.Adam(1e-3), precision="bf16"), Norm.NONE),
}


def models(recipes=TABLE, **changes):
    recipes = [replace(recipe, **changes) for recipe in recipes]
    return [recipe.build(FRAME, seed).cuda() for seed, recipe in enumerate(recipes)]


def distance(models, expected):
    """Return the largest relative difference of any parameter."""
    return max(
        ((a - b).norm() / b.norm().clamp_min(1e-12)).item()
        for model, other in zip(models, expected, strict=True)
        for a, b in zip(model.parameters(), other.parameters(), strict=True)
    )


def trained(members, sequences, seeds, training, **options):
    """Train models for a few steps, and return them."""
    engine = Engine(members, sequences, seeds, training, **options)
    engine.advance(1, STEPS, 1000)
    engine.write_back()
    return members


class StopAfter(Silent):
    """Interrupts training at step 150."""

    def step(self, step, terms):
        if step >= 150:
            os.kill(os.getpid(), signal.SIGINT)


def resumed(make, sequences, training):
    """Compare a resumed run with an uninterrupted one, and that with its repetition.

    Two models train for three epochs of 100 steps. Repetitions differ, because a GPU computes the
    sums of some gradients in any order.
    """
    training = replace(training, epochs=3, epoch_size=100 * training.batch)
    whole, twin, parts, again = (make()[:2] for _ in range(4))
    train(whole, sequences, training, seeds=[0, 1])
    train(twin, sequences, training, seeds=[0, 1])
    with tempfile.TemporaryDirectory() as folder:
        folders = [RunFolder(Path(folder) / str(n)) for n in range(2)]
        try:
            train(parts, sequences, training, seeds=[0, 1], folders=folders, watcher=StopAfter())
        except tc.Interrupted as stopped:
            message = str(stopped)
        train(again, sequences, training, seeds=[0, 1], folders=folders)
    return {
        "where": message,
        "against unstopped": distance(again, whole),
        "unstopped twice": distance(twin, whole),
    }


class OnCpu(DeviceRandomness):
    """The GPU's random numbers on a CPU."""

    def __init__(self, seeds, device):
        super().__init__(seeds, torch.device("cuda"))

    def draw(self, step, uniform, normal):
        uniform, noise = super().draw(step.cuda(), uniform, normal)
        return uniform.cpu(), [normal.cpu() for normal in noise]


def on_cpu(make, sequences, seeds, training):
    """Train models on a CPU in fp32, with the random numbers of the GPU, and return them."""
    with mock.patch("topocaps.training.engine.randomness", OnCpu):
        members = [model.cpu() for model in make()]
        training = replace(training, precision="fp32")  # some CPUs would use bf16
        return trained(members, sequences.to("cpu"), seeds, training, captured=False)


def compared(make, sequences, training):
    """Train the same models in several modes, and return the differences."""
    seeds = range(len(make()))
    graph = trained(make(), sequences, seeds, training)
    eager = trained(make(), sequences, seeds, training, captured=False)
    compiled = trained(make(), sequences, seeds, training, compiling=True)
    alone = [trained(make()[n : n + 1], sequences, [n], training, captured=False)[0] for n in seeds]
    plain = on_cpu(make, sequences, seeds, training)
    return {
        "graph against eager, 20 steps": distance(graph, eager),
        "compiled graph against eager": distance(compiled, eager),
        "member against alone": distance(graph, alone),
        "against a CPU": {
            name: [
                distance([model.cpu()], [other]) for model, other in zip(on_gpu, plain, strict=True)
            ]
            for name, on_gpu in (("graph", graph), ("compiled graph", compiled))
        },
        "resumed": resumed(make, sequences, training),
    }


def part_whole():
    return [find("capsules/mnist").build((1, 28, 28), seed).cuda() for seed in range(3)]


def rolling(name):
    return [find(f"rolling/{name}").build(FRAME, seed).cuda() for seed in range(2)]


def two_axes(name="axes"):
    recipe = find(f"sprites/{name}")
    return [recipe.build((1, 32, 32), seed).cuda() for seed in range(2)]


def kernel(rule, radial, clipped, sizes):
    """Return the largest relative difference after one step, GPU kernel against plain products."""
    torch.manual_seed(0)
    models, rows, inputs, outputs = sizes
    wide, high = (padded(width) for width in (inputs, outputs))
    x, dy = (torch.randn(models, rows, width).bfloat16() for width in (wide, high))
    x[..., inputs:], dy[..., outputs:] = 0, 0
    weight = aligned(torch.randn(models, outputs, inputs))
    moments = [aligned(torch.rand(models, outputs, inputs)) for _ in rule.MOMENTS]
    weight_bf16 = torch.zeros(models, high, wide, dtype=torch.bfloat16)
    size, spread = torch.rand(models), torch.tensor(1.3)
    factors = torch.tensor([0.5, 0.0, 1.0, 0.1, 1.0])[:models] if clipped else None
    correction = None
    if radial:
        parts = -(-inputs // PART)
        correction = RadialCorrection(
            torch.randn(models, outputs), torch.zeros(models, parts, outputs)
        )
    results = []
    for device in ("cpu", "cuda"):
        w, *m = (aligned(value.to(device)) for value in (weight, *moments))
        c = weight_bf16.clone().to(device)
        copied = correction and RadialCorrection(*(v.clone().to(device) for v in correction))
        dtype = torch.float32 if device == "cpu" else torch.bfloat16  # of the products
        update_weight(
            rule, x.to(device, dtype), dy.to(device, dtype), w, m, c,
            size.to(device), spread.to(device),
            None if factors is None else factors.to(device), copied,
        )  # fmt: skip
        results.append([w, *m, c.float(), *([copied.squares.sum(1)] if copied else [])])
    return max(
        ((a.cpu() - b.cpu()).norm() / a.cpu().norm()).item() for a, b in zip(*results, strict=True)
    )


def memory(sequences, training):
    """Return the memory that was planned for fifteen models, and the most that they used."""
    members = models(TABLE * 3)
    first, *others = plan(members, sequences, training)
    planned = sum(others, first).total
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    engine = Engine(members, sequences, range(len(members)), training)
    engine.advance(1, STEPS, 1000)
    held = torch.cuda.max_memory_allocated() - before
    return {"planned, MB": planned >> 20, "held beside the models, MB": held >> 20}


def evaluation(sequences):
    """Return the seconds of all metrics of one model on 10,000 sequences, and the memory used."""
    fixed = TransformedImages(sequences.images.repeat(5, 1, 1)).balanced(None, 0)
    (model,) = models(TABLE[1:2])
    tc.evaluate(model, sequences.balanced(50, 0))
    torch.cuda.reset_peak_memory_stats()
    began = time.perf_counter()
    tc.evaluate(model, fixed)
    return {
        "sequences": len(fixed),
        "seconds": round(time.perf_counter() - began, 2),
        "held, MB": torch.cuda.max_memory_allocated() >> 20,
    }


def comparisons():
    """Return the functions that measure the differences, by name."""
    sequences = TransformedImages(digits()).to("cuda")
    pictures = digits()
    of_digits = MovedDigits(pictures, torch.zeros(len(pictures), dtype=torch.uint8)).to("cuda")
    of_sprites = find("sprites/axes").data.load().train.to("cuda")
    clipped = tc.Training(tc.Sgd(1e-3), batch=32, clip=10.0)
    on_digits = functools.partial(compared, sequences=sequences)
    with_perceptrons = {
        name: functools.partial(on_digits, functools.partial(models, norm=norm), training=training)
        for name, (training, norm) in TRAININGS.items()
    }
    return {
        "kernel against plain products": kernels,
        **with_perceptrons,
        "part-whole models, mapped": lambda: compared(part_whole, of_digits, clipped),
        **{
            f"rolling VAEs, {name}": functools.partial(
                on_digits, functools.partial(rolling, name), training=clipped
            )
            for name in ("mnist-perceptrons", "mnist-unknown")
        },
        "capsules of two axes": lambda: compared(two_axes, of_sprites, SMALL),
        "capsules of two axes, apart": lambda: compared(
            functools.partial(two_axes, "axes-apart"), of_sprites, SMALL
        ),
        "memory, 15 models": lambda: memory(sequences, TRAININGS["sgd, bf16"][0]),
        "evaluation": lambda: evaluation(sequences),
    }


def kernels():
    return {
        f"{rule}{', turned' * radial}{', shortened' * clipped}, {sizes}": kernel(
            rule, radial, clipped, sizes
        )
        for sizes in SIZES
        for rule in (tc.Sgd(1e-2), tc.Adam(1e-2))
        for radial in (False, True)
        for clipped in (False, True)
    }


def main():
    """Print each result as soon as it is measured, so that an interrupted run has printed some."""
    device = {"device": torch.cuda.get_device_name(), "torch": torch.__version__}
    print(json.dumps(device, indent=2)[:-2], end="", flush=True)
    for name, measure in comparisons().items():
        if sys.argv[1:] and name not in sys.argv[1:]:
            continue
        print(f',\n  "{name}": {json.dumps(measure())}', end="", flush=True)
    print("\n}")


if __name__ == "__main__":
    main()
