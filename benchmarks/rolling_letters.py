"""A rolling VAE on letters that turn: how well it predicts letters that it never saw.

    python benchmarks/rolling_letters.py [--steps 10000] [--out FOLDER] > mine.json

Trains on four fifths of the letters, in all faces, shows some frames of held-out letters, and
measures the gain of the predicted frames that were not shown: 1 is perfect, 0 is the mean frame of
the sequence. With ``--out`` it writes a picture: each held-out letter, and below it five visible
frames and ten predicted ones.
"""

import argparse
import json
import time
from pathlib import Path

import matplotlib.pyplot as plt
import torch

import topocaps as tc
from topocaps.metrics import prediction

VISIBLE = (3, 5, 9, 13)
SHOWN = (6, 19, 31, 45, 58, 84, 110, 150)  # held-out sequences in the picture


def train(steps):
    train_set, held_out = tc.data.letters()
    torch.manual_seed(0)
    model = tc.RollingVAE.mlp(
        (1, 28, 28), tc.Topography(12, (15,)), hidden=(450, 300), motion=tc.motions.Known(1)
    )
    training = tc.Training(
        tc.Adam(lr=3e-3, betas=(0.9, 0.99), warmup=100),
        batch=16, epochs=10, epoch_size=16 * steps // 10, clip=1000.0,
    )  # fmt: skip
    run = tc.fit(model, train_set, training=training, device="cpu")
    return model.eval(), held_out, run


def gains(model, x):
    """The gain on frames that are not visible, by the number of contiguous visible frames."""
    generator, frame, found = torch.Generator().manual_seed(0), torch.arange(x.shape[1]), {}
    for count in VISIBLE:
        first = torch.randint(x.shape[1] - count + 1, (len(x), 1), generator=generator)
        visible = (frame >= first) & (frame < first + count)
        predicted = model.predict(x, visible).mean
        found[str(count)] = round(prediction(x, predicted, ~visible).overall, 3)
    return found


def picture(model, x, path):
    visible = torch.arange(x.shape[1]) < 5
    rows = x[list(SHOWN)]
    predicted = model.predict(rows, visible.expand(len(rows), -1)).mean
    shown = torch.where(visible[:, None, None, None], rows, predicted)
    lines = torch.stack([rows, shown], 1)[:, :, :, 0]  # letters 2 time height width
    image = lines.permute(0, 1, 3, 2, 4).reshape(len(rows) * 2 * 28, -1)
    image = torch.cat([image[:, : 5 * 28], torch.full((len(image), 4), 0.5), image[:, 5 * 28 :]], 1)
    plt.imsave(path, image.repeat_interleave(2, 0).repeat_interleave(2, 1), cmap="gray")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=10_000)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    start = time.monotonic()
    model, held_out, run = train(options.steps)
    x = next(held_out.batches(len(held_out))).x
    print(
        json.dumps(
            {
                "steps": options.steps,
                "seconds": round(run.seconds, 1),
                "device": run.device,
                "held_out_sequences": len(x),
                "gain_by_visible_frames_of_15": gains(model, x),
                "log_px": round(model.log_px(x).mean().item(), 2),
                "wall_seconds": round(time.monotonic() - start, 1),
            },
            indent=2,
        )
    )
    if options.out:
        options.out.mkdir(parents=True, exist_ok=True)
        picture(model, x, options.out / "letters.png")


if __name__ == "__main__":
    main()
