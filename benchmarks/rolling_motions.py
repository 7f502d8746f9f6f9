"""Rolling VAEs with many candidate motions: speeds of any size, and directions that reverse.

    python benchmarks/rolling_motions.py > mine.json

Patterns on a ring of pixels move along it. In ``speeds`` they move by any velocity from -2 to 2
pixels a frame. Models have 41 candidates; they decode all, the 4 likeliest, or begin with 9
candidates and continue with the 4 likeliest of 41. In ``reversals`` they move by one pixel a frame
and turn back once. The gain is on frames of held-out patterns that follow the visible ones: 1 is
perfect, 0 is the mean frame. ``found`` is the share of sequences whose inferred velocity is right
to 0.15 pixels a frame, up to one sign for all. ``milliseconds`` is the duration of a step with the
networks of ``letters/rolling``.
"""

import json
import time

import numpy as np
import torch

import topocaps as tc
from topocaps.training.watching import Silent

SITES, FRAMES, MOST = 15, 8, 2.0
FINE, COARSE = np.linspace(-MOST, MOST, 41), np.linspace(-MOST, MOST, 9)
STEPS = 2500


def moved(patterns, places):
    """Return patterns (n, sites) shifted by places (n, frames): (n, frames, 1, 1, sites)."""
    sites = patterns.shape[1]
    waves = torch.fft.rfftfreq(sites)
    turned = torch.fft.rfft(patterns)[:, None] * torch.exp(
        -2j * torch.pi * places[..., None] * waves
    )
    return torch.fft.irfft(turned, n=sites)[:, :, None, None]


def speeds(count, generator):
    patterns = torch.fft.rfft(2 * torch.randn(count, SITES, generator=generator))
    patterns[:, 6:] = 0
    velocity = MOST * (2 * torch.rand(count, generator=generator) - 1)
    places = velocity[:, None] * torch.arange(FRAMES)
    return moved(torch.fft.irfft(patterns, n=SITES), places), velocity


def reversals(count, generator, sites=9, frames=9):
    patterns = 2 * torch.randn(count, sites, generator=generator)
    direction = 2 * torch.randint(2, (count, 1), generator=generator) - 1
    turn, frame = torch.randint(2, 7, (count, 1), generator=generator), torch.arange(frames)
    return moved(patterns, direction * torch.where(frame <= turn, frame, 2 * turn - frame))


def model_of(sites, motion, keep=None, seed=0):
    torch.manual_seed(seed)
    visible = tc.visible.Stretch(3)
    capsules, hidden = tc.Topography(2, (sites,)), (64,)
    settings = dict(motion=motion, keep=keep, visible=visible, likelihood="gaussian")
    return tc.RollingVAE.mlp((1, 1, sites), capsules, hidden, **settings)


def train(model, x, steps, lr=3e-3):
    training = tc.Training(tc.Adam(lr, warmup=50), batch=16, epochs=1, epoch_size=16 * steps)
    return tc.fit(model, x, training=training, device="cpu", watcher=Silent()).seconds


def gain(model, x, count):
    visible = (torch.arange(x.shape[1]) < count).expand(x.shape[:2])
    predicted = model.predict(x, visible).mean
    return round(tc.metrics.prediction(x, predicted, ~visible, likelihood="gaussian").overall, 3)


def of_speeds(start, keep, seed):
    generator = torch.Generator().manual_seed(0)
    (x, _), (held_out, velocity) = speeds(6000, generator), speeds(300, generator)
    model, seconds, steps = model_of(SITES, tc.motions.Unknown(FINE), keep, seed), 0.0, STEPS
    if start is not None:
        first = model_of(SITES, tc.motions.Unknown(start), seed=seed)
        seconds, steps = train(first, x, STEPS // 3), STEPS - STEPS // 3
        model.load_state_dict(first.state_dict())
    seconds += train(model, x, steps)
    best = torch.tensor(FINE)[model.motion(held_out).probs.argmax(1)]
    right = [(((sign * best) - velocity).abs() < 0.15).double().mean().item() for sign in (1, -1)]
    return {
        "gain_of_5_frames_after_3": gain(model, held_out, 3),
        "gain_of_3_frames_after_5": gain(model, held_out, 5),
        "found": round(max(right), 3),
        "log_px": round(model.log_px(held_out).mean().item(), 2),
        "seconds": round(seconds, 1),
    }


def of_reversals(motion, keep, seed):
    generator = torch.Generator().manual_seed(0)
    x, held_out = reversals(4000, generator), reversals(500, generator)
    model = model_of(9, motion, keep, seed)
    seconds = train(model, x, 1000, lr=5e-3)
    return {
        "gain_of_2_frames_after_7": gain(model, held_out, 7),
        "log_px": round(model.log_px(held_out).mean().item(), 2),
        "seconds": round(seconds, 1),
    }


def milliseconds(keep, steps=20):
    model = tc.RollingVAE.mlp(
        (1, 28, 28), tc.Topography(12, (15,)), (400,), tc.motions.Unknown(FINE), keep=keep,
    )  # fmt: skip
    x = torch.rand(16, 10, 1, 28, 28)
    start = time.perf_counter()
    for _ in range(steps):
        model.evidence(x).objective.sum().backward()
    return round(1000 * (time.perf_counter() - start) / steps)


def main():
    torch.set_num_threads(1)
    candidates = {"41": (None, None), "4 of 41": (None, 4), "9, then 4 of 41": (COARSE, 4)}
    motions = {
        "Unknown": (tc.motions.Unknown((-1, 1)), None),
        "Changing": (tc.motions.Changing((-1, 1), range(1, 8)), None),
        "Changing, 4 kept": (tc.motions.Changing((-1, 1), range(1, 8)), 4),
    }
    results = {
        "speeds": {
            name: [of_speeds(*settings, seed) for seed in (0, 1)]
            for name, settings in candidates.items()
        },
        "reversals": {
            name: [of_reversals(*settings, seed) for seed in (0, 1)]
            for name, settings in motions.items()
        },
        "milliseconds": {"41": milliseconds(None), "4 of 41": milliseconds(4)},
    }
    print(json.dumps(results, indent=2))


if __name__ == "__main__":
    main()
