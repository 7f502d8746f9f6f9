"""Compare the speed of the engine with the plain reference; ``topocaps bench`` calls this.

Both take turns, so that a busy moment of the machine slows both.
"""

import statistics
import sys
import time
from dataclasses import replace
from pathlib import Path

import torch

from topocaps.data import TransformedImages, sprites
from topocaps.device import steady_arithmetic
from topocaps.models import VAE
from topocaps.papers.recipes import dsprites
from topocaps.papers.recipes.mnist import FINAL
from topocaps.training.engine import Engine
from topocaps.training.run import describe_device
from topocaps.training.settings import Precision

sys.path.insert(0, str(Path(__file__).parent))
import reference

SEEDS = 3


def digits(count=2000):
    """Return strokes in images of MNIST's size: durations do not depend on the content."""
    generator = torch.Generator().manual_seed(0)
    ends = torch.rand(count, 2, 2, generator=generator) * 16 + 6
    along = torch.linspace(0, 1, 40)[:, None]
    points = (ends[:, :1] * along + ends[:, 1:] * (1 - along)).long()  # images points 2
    images = torch.zeros(count, 28, 28, dtype=torch.uint8)
    for y in (0, 1):
        for x in (0, 1):
            images[torch.arange(count)[:, None], points[..., 0] + y, points[..., 1] + x] = 255
    return images


class Orbits(torch.utils.data.Dataset):
    """A data set of sprites, which returns one sequence at a time."""

    def __init__(self, sequences):
        self.images, self.order = sequences.images, sequences.order

    def __len__(self):
        return len(self.order)

    def __getitem__(self, n):
        start = torch.randint(self.order.shape[1], ()).item()
        return self.images[self.order[n].roll(-start)].float() / 255


class Ours:
    """Steps of the engine, which trains each recipe from several seeds."""

    def __init__(self, recipes, seeds, sequences, device):
        pairs = [(recipe, seed) for recipe in recipes for seed in range(seeds)]
        models = [recipe.build(sequences.frame_shape, seed) for recipe, seed in pairs]
        self.models, self.step = len(models), 0
        self.engine = Engine(
            [model.to(device) for model in models],
            sequences.to(device),
            [seed for _, seed in pairs],
            [recipe.training for recipe, _ in pairs],
            compiling=device.type == "cuda",
        )

    def seconds(self, steps):
        """Return the seconds of a step of one model, when all train together."""
        began = time.perf_counter()
        self.engine.advance(self.step + 1, steps, 10**6)  # waits for the device
        self.step += steps
        return (time.perf_counter() - began) / steps / self.models


class Plain:
    """Steps of the reference models, which train one after the other."""

    def __init__(self, recipes, dataset, pixels, device):
        self.dataset, self.device = dataset, device
        self.models = []
        for recipe in recipes:
            t = recipe.topography
            sizes = (pixels, t.capsules, t.shape[0])
            self.models.append(
                reference.VAE(*sizes)
                if recipe.model is VAE
                else reference.TopographicVAE(*sizes, t.window, t.reach[0])
            )

    def seconds(self, steps):
        began = time.perf_counter()
        for model in self.models:
            reference.train(model, self.dataset, steps, device=self.device)
        return (time.perf_counter() - began) / steps / len(self.models)


def take_turns(*contestants, steps, turns=5):
    """Return the median seconds of each contestant, and of the last divided by each other."""
    for contestant, count in zip(contestants, steps, strict=True):
        contestant.seconds(max(2, count // 2))  # warm up
    rounds = [
        [contestant.seconds(count) for contestant, count in zip(contestants, steps, strict=True)]
        for _ in range(turns)
    ]
    columns = list(zip(*rounds, strict=True))
    ratios = [[b / a for a, b in zip(column, columns[-1], strict=True)] for column in columns[:-1]]
    return [statistics.median(values) for values in (*columns, *ratios)]


def over(one, other):
    """Return the duration of a step of one, divided by that of the other."""
    return round(1 / take_turns(one, other, steps=(1000, 1000))[2], 3)


def row(name, device, mine, theirs, ratio, **more):
    return {
        "name": name,
        "ours_s": round(mine, 7),
        "reference_s": round(theirs, 7),
        "ratio": round(ratio, 2),
        "device": describe_device(device),
        **more,
    }


class Shown:
    """Steps that only make batches of sequences, without a model."""

    def __init__(self, make):
        self.make = make

    def seconds(self, steps):
        began = time.perf_counter()
        for _ in range(steps):
            self.make()
        return (time.perf_counter() - began) / steps


def floor(recipes, rows, bandwidth, rate):
    """Return the least time of a step of a model, by bytes and by FLOPs, as a mean over models.

    The bf16 copy of a weight is read in the forward pass and, except in the first layers of
    encoders, in the backward pass. Weight and momentum are read and written, the copy is written.
    """
    moved = computed = 0
    for recipe, pixels in recipes:
        model = recipe.build(pixels, 0)
        for name, matrix in model.named_parameters():
            if name.endswith("matrix"):
                first = name.endswith("_given_x.network.0.matrix") and name[0] in "zu"
                moved += matrix.numel() * (20 if first else 22)
                computed += matrix.numel() * rows * (4 if first else 6)
    return {
        "floor_s": round(max(moved / bandwidth, computed / rate) / len(recipes), 7),
        "floor_bytes": moved // len(recipes),
        "floor_flops": computed // len(recipes),
    }


class Products:
    """The matrix products of a step of a model and nothing else, in the engine's precision.

    Their duration is a lower bound on that of a step on a CPU.
    """

    def __init__(self, recipe, frame_shape, rows):
        used = recipe.training.precision.on(torch.device("cpu"))
        dtype = torch.bfloat16 if used is Precision.BF16 else torch.float32
        self.work = []
        for name, matrix in recipe.build(frame_shape, 0).named_parameters():
            if name.endswith("matrix"):
                first = name.endswith("_given_x.network.0.matrix") and name[0] in "zu"
                matrix = matrix.detach().to(dtype)
                x, dy = (torch.randn(rows, width).to(dtype) for width in matrix.shape[::-1])
                self.work += [(x, matrix.mT), (dy.mT, x)] + ([] if first else [(dy, matrix)])

    def seconds(self, steps):
        began = time.perf_counter()
        for _ in range(steps):
            for a, b in self.work:
                a @ b
        return (time.perf_counter() - began) / steps


def ceilings(device):
    """Return the bytes per second of a large copy, and the FLOPs per second of a bf16 product."""
    source = torch.empty(2**30, dtype=torch.uint8, device=device)
    target = torch.empty_like(source)
    square = torch.randn(8192, 8192, device=device, dtype=torch.bfloat16)
    rates = []
    for work, amount in ((lambda: target.copy_(source), 2**31), (lambda: square @ square, 2**40)):
        work()
        torch.cuda.synchronize()
        began = time.perf_counter()
        for _ in range(20):
            work()
        torch.cuda.synchronize()
        rates.append(20 * amount / (time.perf_counter() - began))
    return rates


def rows():
    """Yield a row for everything that this machine can measure."""
    digit_set = TransformedImages(digits())
    dataset = reference.TransformedDigits(digit_set.images)
    mnist = FINAL
    cpu = torch.device("cpu")
    with steady_arithmetic():
        generator = torch.Generator()
        shown = Shown(lambda: digit_set.draw(8, generator))
        one_by_one = Shown(lambda: torch.stack([dataset[n] for n in range(8)]))
        yield row(
            "MNIST sequences, a batch of 8", cpu, *take_turns(shown, one_by_one, steps=(20, 20))
        )
        plain = Plain(mnist[:1], dataset, 2352, cpu)
        for precision in dict.fromkeys((mnist[0].training.precision.on(cpu), Precision.FP32)):
            recipe = replace(mnist[0], training=replace(mnist[0].training, precision=precision))
            ours = Ours([recipe], 1, digit_set, cpu)
            products = Products(recipe, digit_set.frame_shape, 144)
            mine, least, theirs, ratio, bound = take_turns(
                ours, products, plain, steps=(5, 5, 5), turns=9
            )
            more = {"floor_s": round(least, 7), "ratio_of_floor": round(bound, 2)}
            name = f"MNIST, 1 TVAE in {precision.value}, a step"
            yield row(name, cpu, mine, theirs, ratio, **more)
    if torch.cuda.is_available():
        yield from gpu_rows(mnist, digit_set, dataset)


def gpu_rows(mnist, digit_set, dataset):
    device = torch.device("cuda")
    limits = ceilings(device)
    table = [recipe for recipe in mnist for _ in range(SEEDS)]
    plain = Plain(mnist, dataset, 2352, device)
    for name, recipes, seeds in (
        ("MNIST, 1 TVAE, a step", mnist[:1], 1),
        ("MNIST, 5 columns x 3 seeds, a step of a model", mnist, SEEDS),
    ):
        ours = Ours(recipes, seeds, digit_set, device)
        against = Plain(mnist[:1], dataset, 2352, device) if seeds == 1 else plain
        least = [(recipe, (3, 28, 28)) for recipe in (table if seeds > 1 else recipes)]
        more = floor(least, 144, *limits)
        yield row(name, device, *take_turns(ours, against, steps=(1000, 20), turns=3), **more)
    of_digits = ours
    orbits = sprites(64)[0]
    columns = [r for r in dsprites.FINAL if not r.name.endswith("tvae-1_6")]  # as many as of MNIST
    ours = Ours(columns, SEEDS, orbits, device)
    against = Plain(columns, Orbits(orbits), 4096, device)
    more = floor([(recipe, (1, 64, 64)) for recipe in columns], 120, *limits)
    more["over_mnist"] = over(ours, of_digits)
    alike = [
        replace(column, training=replace(column.training, clip=digit_column.training.clip))
        for column, digit_column in zip(columns, mnist, strict=True)
    ]
    more["over_mnist_clipped_alike"] = over(Ours(alike, SEEDS, orbits, device), of_digits)
    name = "dSprites shapes, 5 columns x 3 seeds, a step of a model"
    yield row(name, device, *take_turns(ours, against, steps=(1000, 20), turns=3), **more)
    limits = {"copied_bytes_a_second": limits[0], "bf16_flops_a_second": limits[1]}
    tf32 = [replace(r, training=replace(r.training, precision="tf32")) for r in mnist]
    ours = Ours(tf32, SEEDS, digit_set, device)
    name = "MNIST, 5 columns x 3 seeds in TF32, a step of a model"
    yield row(name, device, *take_turns(ours, plain, steps=(1000, 20), turns=3), **limits)
