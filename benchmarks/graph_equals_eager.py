"""On a GPU: the captured step is the plain step, members train as alone, runs resume.

python benchmarks/graph_equals_eager.py > benchmarks/results/graph-equals-eager-h200.json
"""

import json
import os
import signal
import tempfile
import time
from dataclasses import replace
from pathlib import Path

import torch

import topocaps as tc
from topocaps.training.engine import Engine
from topocaps.training.loop import train
from topocaps.training.watching import Silent

FRAME = (3, 28, 28)
CAPSULES = tc.Topography(18, (18,), (3,), window=18)
COLUMNS = [
    CAPSULES,
    replace(CAPSULES, window=5),
    replace(CAPSULES, window=1, reach=(9,)),
    replace(CAPSULES, window=5, velocity=0.0),
]
STEPS = 20
OPTIMISERS = {"sgd": tc.Sgd(1e-4), "adam": tc.Adam(1e-3)}


def models(columns=COLUMNS, seeds=1):
    built = []
    for topography in columns:
        for seed in range(seeds):
            torch.manual_seed(seed)
            built.append(tc.TopographicVAE.mlp(FRAME, topography).cuda())
    return built


def distance(some, others):
    """Largest relative difference of any parameter."""
    return max(
        ((a - b).norm() / b.norm().clamp_min(1e-12)).item()
        for one, other in zip(some, others, strict=True)
        for a, b in zip(one.parameters(), other.parameters(), strict=True)
    )


def trained(columns, sequences, seeds, optimiser, captured):
    members = models(columns)
    engine = Engine(members, sequences, seeds, optimiser, batch=8, captured=captured)
    sums = engine.advance(1, [optimiser.lr] * STEPS)
    engine.stack.write_back()
    return members, sums[0]["elbo"] / STEPS


class StopAfter(Silent):
    def step(self, step, terms):
        if step >= 150:
            os.kill(os.getpid(), signal.SIGINT)


def resumed(sequences, optimiser):
    """Three epochs of 100 steps without a stop, and with one in the middle."""
    training = tc.Training(optimiser, batch=8, epochs=3, epoch_size=800)
    whole, parts, again = models(COLUMNS[:2]), models(COLUMNS[:2]), models(COLUMNS[:2])
    train(whole, sequences, training, seeds=[0, 1])
    with tempfile.TemporaryDirectory() as folder:
        states = [Path(folder) / f"{n}.safetensors" for n in range(2)]
        try:
            train(parts, sequences, training, seeds=[0, 1], states=states, watcher=StopAfter())
        except tc.Interrupted as stopped:
            where = str(stopped)
        train(again, sequences, training, seeds=[0, 1], states=states)
    return where, distance(again, whole)


def milliseconds(members, sequences, steps=300):
    engine = Engine(members, sequences, range(len(members)), tc.Sgd(1e-4), batch=8)
    engine.advance(1, [1e-4] * 20)
    torch.cuda.synchronize()
    began = time.perf_counter()
    engine.advance(21, [1e-4] * steps)
    torch.cuda.synchronize()
    return (time.perf_counter() - began) / steps * 1e3


def main():
    generator = torch.Generator().manual_seed(0)
    frames = torch.randint(256, (500, 18, *FRAME), dtype=torch.uint8, generator=generator)
    sequences = tc.Sequences.of(frames).to("cuda")
    found = {"device": torch.cuda.get_device_name(), "torch": torch.__version__}
    for name, optimiser in OPTIMISERS.items():
        graph, bound = trained(COLUMNS, sequences, range(4), optimiser, captured=True)
        eager, same = trained(COLUMNS, sequences, range(4), optimiser, captured=False)
        alone, _ = trained(COLUMNS[1:2], sequences, [1], optimiser, captured=True)
        found[name] = {
            "graph against eager, 20 steps": distance(graph, eager),
            "bounds of the two": [bound, same],
            "member against alone, 20 steps": distance(graph[1:2], alone),
        }
        where, off = resumed(sequences, optimiser)
        found[name]["resumed"] = {"where": where, "against unstopped": off}
    for tf32 in (False, True):
        torch.backends.cuda.matmul.allow_tf32 = tf32
        found[f"ms a step, {'tf32' if tf32 else 'fp32'}"] = {
            "12 TVAEs": round(milliseconds(models(seeds=3), sequences), 3),
            "1 TVAE": round(milliseconds(models(COLUMNS[:1]), sequences), 3),
        }
    print(json.dumps(found, indent=2))


if __name__ == "__main__":
    main()
