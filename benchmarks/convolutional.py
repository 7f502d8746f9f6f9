"""Compare convolutional networks with multilayer perceptrons on frames of 64 x 64.

The data are many sprites, and few clips of a disc that moves in a straight line. The perceptrons
have the widths of the small recipes. They train for as many steps as the convolutional networks,
and for as many seconds. Held-out gains and bounds are measured. On one thread of a CPU, this takes
about a quarter of an hour.

python benchmarks/convolutional.py > benchmarks/results/convolutional-cpu.json
"""

import json
import sys
import time

import torch

import topocaps as tc
from topocaps.models.convolutional import convolutional
from topocaps.training.watching import Silent

FRAME = (1, 64, 64)
CLOSED = tc.Topography(10, (15,), window=13)
OPEN = tc.Topography(10, (30,), window=13, cyclic=False)
BATCH, STEPS = 8, 600
MEASURED = 50  # sequences of every factor that are evaluated
CLIPS = 200  # a fifth of them is held out


def narrow(topography):
    return convolutional(FRAME, topography, channels=(16, 32, 32, 32), centred=True)


def perceptrons(topography):
    return tc.TopographicVAE.mlp(FRAME, topography, (300, 200), centred=True)


def discs():
    """Return clips (clips, 15, 1, 64, 64) of a disc that moves in a straight line.

    Its direction, speed and place are random.
    """
    random = torch.Generator().manual_seed(0)
    direction = 2 * torch.pi * torch.rand(CLIPS, 1, generator=random)
    speed = 1.5 + torch.rand(CLIPS, 1, generator=random)
    middle = 24 + 16 * torch.rand(CLIPS, 1, 2, generator=random)
    steps = speed * (torch.arange(15) - 7)  # from the middle frame
    place = middle + torch.stack(
        [steps * direction.cos(), steps * direction.sin()], -1
    )  # clips time 2
    grid = torch.arange(64) + 0.5
    x, y = (grid - place[..., n, None] for n in range(2))  # clips time 64
    distance = (x[..., None, :].square() + y[..., :, None].square()).sqrt()
    return (7.5 - distance).clamp(0, 1)[:, :, None]


def trained(build, topography, train, steps):
    """Return a trained model and the seconds of its training.

    The learning rate falls to 0 over these steps.
    """
    torch.manual_seed(0)
    model = build(topography)
    training = tc.Training(
        tc.Adam(2e-3, betas=(0.9, 0.95)), batch=BATCH, epochs=1, epoch_size=BATCH * steps
    )
    began = time.perf_counter()
    tc.fit(model, train, training=training, watcher=Silent(), device="cpu")
    return model, time.perf_counter() - began


def row(name, build, topography, train, held_out, steps):
    """Return the results of one kind of networks."""
    model, seconds = trained(build, topography, train, steps)
    traversals, bounds = [], []
    torch.manual_seed(0)
    for batch in held_out.batches(20):
        traversals.append(tc.metrics.traversal(model, batch.x, batch.factors))
        with torch.no_grad():
            bounds.append(model(batch.x).elbo.mean(1))
    gains = tc.metrics.Traversal.join(traversals).by_factor
    names = dict(enumerate(held_out.names or ("all",)))
    shown = {names[n]: round(gain, 3) for n, gain in gains.items() if gain is not None}
    print(f"{name}: {shown}", file=sys.stderr)
    return {
        "networks": name,
        "parameters": sum(p.numel() for p in model.parameters()),
        "steps": steps,
        "seconds": round(seconds),
        "elbo": round(torch.cat(bounds).mean().item(), 1),
        "gain": shown,
    }


def compared(*data):
    """Return the results of both networks after as many steps, and of perceptrons after as long."""
    rows = [
        row("convolutional", narrow, *data, STEPS),
        row("perceptrons", perceptrons, *data, STEPS),
    ]
    as_long = round(STEPS * rows[0]["seconds"] / rows[1]["seconds"])
    return [*rows, row("perceptrons, as long", perceptrons, *data, as_long)]


def main():
    torch.set_num_threads(1)
    torch.set_flush_denormal(True)
    train, held_out = tc.data.sprites(64)
    few, others = tc.data.split(tc.data.read(discs()))
    rows = {
        "sprites": compared(CLOSED, train, held_out.balanced(MEASURED, seed=0)),
        "discs": compared(OPEN, few, others),
    }
    about = {"torch": torch.__version__, "threads": 1, "batch": BATCH, "frames": "64 x 64"}
    print(json.dumps({**about, **rows}, indent=2))


if __name__ == "__main__":
    main()
