"""Speed of the kernel that computes the gradient of a weight and applies it in one pass.

The layers are those of MNIST and dSprites. The speed is measured for several tiles, the parts of a
weight that a program updates.

python benchmarks/descend.py > benchmarks/results/descend-h200.json
"""

import itertools
import json
import sys
import time
from unittest import mock

import torch

import topocaps as tc
from topocaps.training import kernels
from topocaps.training.updates.layers import aligned, padded

MODELS = 15
#: Rows, inputs and outputs of the large layers: the first of both encoders, the decoder's last.
LAYERS = {
    "MNIST, first": (144, 2352, 1944),
    "MNIST, last": (144, 972, 2352),
    "dSprites, first": (120, 4096, 1350),
    "dSprites, last": (120, 675, 4096),
}
TILES = ((64, 128, 4), (128, 64, 4), (64, 256, 8), (32, 256, 4))
STEPS = 200


def seconds(rows, inputs, outputs):
    """Return the seconds of a step of all models."""

    def make(*shape):
        return torch.randn(MODELS, *shape, device="cuda")

    x, dy = make(rows, padded(inputs)).bfloat16(), make(rows, padded(outputs)).bfloat16()
    weight, moment = (aligned(make(outputs, inputs)) for _ in range(2))
    weight_bf16 = make(padded(outputs), padded(inputs)).bfloat16()
    size, spread = torch.full((MODELS,), 1e-6, device="cuda"), torch.ones((), device="cuda")

    def step():
        kernels.update_weight(tc.Sgd(1e-6), x, dy, weight, [moment], weight_bf16, size, spread)

    step()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        step()
    graph.replay()
    torch.cuda.synchronize()
    began = time.perf_counter()
    for _ in range(STEPS):
        graph.replay()
    torch.cuda.synchronize()
    return (time.perf_counter() - began) / STEPS


def main():
    results = []
    for (name, sizes), tile in itertools.product(LAYERS.items(), TILES):
        with mock.patch.object(kernels, "tile", lambda *_, tile=tile: tile):
            duration = seconds(*sizes)
        # bytes of a weight: it and its moment are read and written, its bf16 copy is written
        moved = MODELS * sizes[1] * sizes[2] * 18
        row = {
            "layer": name,
            "tile": tile,
            "device": torch.cuda.get_device_name(),
        }
        row |= {
            "us_a_model": round(1e6 * duration / MODELS, 2),
            "TB_a_second": round(moved / duration / 1e12, 2),
        }
        print(row, file=sys.stderr, flush=True)
        results.append(row)
    print(json.dumps(results, indent=1))


if __name__ == "__main__":
    main()
