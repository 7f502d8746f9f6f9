"""Convolutional networks beside multilayer perceptrons on sprites of 64 x 64: held-out gain, bound.

One thread of a CPU; the perceptrons, of the small recipes' widths, are trained for as many steps,
and for as many seconds. About ten minutes in all.

python benchmarks/convolutional.py > benchmarks/results/convolutional-cpu.json
"""

import json
import sys
import time

import torch

import topocaps as tc
from topocaps.convolutional import convolutional
from topocaps.training.watching import Silent

FRAME = (1, 64, 64)
TOPOGRAPHY = tc.Topography(10, (15,), window=13)
BATCH, STEPS, MEASURED = 8, 600, 50  # sequences of every factor are measured


def narrow():
    return convolutional(FRAME, TOPOGRAPHY, channels=(16, 32, 32, 32), centred=True)


def perceptrons():
    return tc.TopographicVAE.mlp(FRAME, TOPOGRAPHY, (300, 200), centred=True)


def trained(build, train, steps):
    """A model and the seconds of its training; the rate falls to 0 over these steps."""
    torch.manual_seed(0)
    model = build()
    training = tc.Training(
        tc.Adam(2e-3, betas=(0.9, 0.95)), batch=BATCH, epochs=1, epoch_size=BATCH * steps
    )
    began = time.perf_counter()
    tc.fit(model, train, training=training, watcher=Silent(), device="cpu")
    return model, time.perf_counter() - began


def row(name, build, train, held_out, steps):
    model, seconds = trained(build, train, steps)
    found, bound = [], []
    torch.manual_seed(0)
    for batch in held_out.batches(20):
        found.append(tc.metrics.traversal(model, batch.x, batch.factors))
        with torch.no_grad():
            bound.append(model(batch.x).elbo.mean(1))
    gains = tc.metrics.Traversal.join(found).by_factor
    shown = {name: gains.get(n) for n, name in enumerate(held_out.names)}
    print(f"{name}: {shown}", file=sys.stderr)
    return {
        "networks": name,
        "parameters": sum(p.numel() for p in model.parameters()),
        "steps": steps,
        "seconds": round(seconds),
        "elbo": round(torch.cat(bound).mean().item(), 1),
        "gain": {name: round(gain, 3) for name, gain in shown.items() if gain is not None},
    }


def main():
    torch.set_num_threads(1)
    torch.set_flush_denormal(True)
    train, held_out = tc.data.sprites(64)
    measured = held_out.balanced(MEASURED, seed=0)
    rows = [row("convolutional", narrow, train, measured, STEPS)]
    rows.append(row("perceptrons", perceptrons, train, measured, STEPS))
    as_long = round(STEPS * rows[0]["seconds"] / rows[1]["seconds"])
    rows.append(row("perceptrons, as long", perceptrons, train, measured, as_long))
    about = {"data": "sprites, 64 x 64", "sequences": len(measured), "torch": torch.__version__}
    print(json.dumps({**about, "threads": 1, "batch": BATCH, "rows": rows}, indent=2))


if __name__ == "__main__":
    main()
