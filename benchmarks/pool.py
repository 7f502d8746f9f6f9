"""Seconds of ``pool`` with a wide window and a long reach, relative to narrow ones.

python benchmarks/pool.py        (256 sites x 256 frames x 32 capsules)

Measured for whole steps, half a site per frame, open ends, and a causal W.
"""

import json
import statistics
import time

import torch

from topocaps import Topography

CASES = {"narrow": (5, 3), "wide": (200, 9), "all of it": (256, 256)}
KINDS = {
    "pool": {},
    "half a site a frame": {"velocity": 0.5},
    "open ends": {"cyclic": False},
    "causal": {"causal": True},
}
REPEATS = 9


def seconds(window, reach, gradient, kind):
    topography = Topography(32, (256,), (reach,), window, **kind)
    u2 = torch.rand(1, 256, 32, *topography.u_shape, requires_grad=gradient)
    began = time.perf_counter()
    pooled = topography.pool(u2)
    if gradient:
        pooled.sum().backward()
    return time.perf_counter() - began


def main():
    torch.set_num_threads(2)
    rows = []
    for kind, settings in KINDS.items():
        for gradient in (False, True):
            # cases take turns, so that a busy moment of the machine hits all of them
            times = {name: [] for name in CASES}
            for _ in range(REPEATS):
                for name, (window, reach) in CASES.items():
                    times[name].append(seconds(window, reach, gradient, settings))
            middle = {name: statistics.median(values) for name, values in times.items()}
            for name, (window, reach) in CASES.items():
                rows.append(
                    {
                        "name": f"{kind}, window {window}, reach {reach}"
                        + ", with gradient" * gradient,
                        "seconds": round(middle[name], 5),
                        "ratio": round(middle[name] / middle["narrow"], 2),
                        "device": f"cpu, {torch.get_num_threads()} threads",
                    }
                )
    print(json.dumps(rows, indent=2))


if __name__ == "__main__":
    main()
