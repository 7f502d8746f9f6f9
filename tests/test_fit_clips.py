"""``topocaps fit`` on clips as a camera would leave them: a folder of videos, one command."""

import json
import math
import re
import shutil
from collections import Counter

import av
import numpy as np
import pytest
from PIL import Image

FRAMES, SIDE = 8, 40


def hand(turn, side=SIDE):
    """A hand of a clock with a knob at its end: (side, side) in [0, 1]."""
    y, x = (np.mgrid[:side, :side] + 0.5) / side - 0.5
    along, across = (
        x * math.cos(turn) + y * math.sin(turn),
        y * math.cos(turn) - x * math.sin(turn),
    )
    shaft = (along > -0.05) & (along < 0.4) & (abs(across) < 0.06)
    return (shaft | (np.hypot(along - 0.32, across - 0.08) < 0.1)).astype(float)


def write_clip(path, frames, codec="libx264"):
    """As cameras do: in colour, half of it thrown away."""
    with av.open(str(path), "w") as file:
        stream = file.add_stream(codec, rate=25)
        stream.height, stream.width = frames[0].shape
        stream.pix_fmt = "yuv420p"
        for one in frames:
            shown = np.repeat(one[..., None] * 230 + 10, 3, -1).round().astype(np.uint8)
            file.mux(stream.encode(av.VideoFrame.from_ndarray(shown, format="rgb24")))
        file.mux(stream.encode())


def turning(folder, count, frames=FRAMES, side=SIDE, seed=0):
    """Clips of a hand that turns once, from anywhere."""
    folder.mkdir()
    rng = np.random.default_rng(seed)
    for n in range(count):
        turns = rng.uniform(0, 2 * math.pi) + 2 * math.pi * np.arange(frames) / frames
        write_clip(folder / f"clip {n}.mp4", [hand(turn, side) for turn in turns])
    return folder


def test_one_command_learns_how_a_figure_turns(tmp_path, command):
    folder, out = turning(tmp_path / "clips", 60), tmp_path / "out"
    small = ["hidden=100", "capsules=6", "batch=8", "epoch_size=5600"]
    words = [word for setting in small for word in ("--set", setting)]
    code, printed, said = command(
        "fit", folder, "--out", out, "--size", "16", "--epochs", "1", "--device", "cpu", *words
    )
    assert code == 0, said
    assert "60 sequences of 8 frames, 1 x 16 x 16" in said and "shifted by up to 1 pix" in said
    assert "gain" in printed and str(out / "report.html") in printed
    assert "motion in a trial: " in said and "of the training sequences, so it is" in said
    for name in ("predicted.png", "animation.gif", "by_visible.png", "calibration.png"):
        assert (out / "figures" / name).exists()
    assert "data:image/gif;base64," in (out / "report.html").read_text()
    metrics = json.loads((out / "metrics.json").read_text())
    assert metrics["sequences"] == 12 and metrics["split"] == "held-out sequences"
    assert metrics["visible"]["5"]["gain"] > 0.2 > metrics["untrained"]["visible"]["5"]["gain"]


# mistakes, as they are told on the command line ---------------------------------------------------


def empty(folder):
    folder.mkdir()
    return folder


def corrupt(folder):
    turning(folder, 4, 6)
    (folder / "clip 2.mp4").write_bytes(b"nothing that moves" * 9)
    return folder


def cut_short(folder):
    turning(folder, 4, 6)
    path = folder / "clip 2.mp4"
    path.write_bytes(path.read_bytes()[:-500])
    return folder


def two_sizes(folder):
    turning(folder, 2, 6, 24)
    write_clip(folder / "z.mp4", [hand(0.1 * n, 30) for n in range(6)])
    return folder


def two_lengths(folder):
    turning(folder, 2, 8)
    write_clip(folder / "z.mp4", [hand(0.1 * n) for n in range(6)])
    return folder


def not_a_number(folder):
    folder.mkdir()
    for n in range(4):
        np.save(folder / f"{n}.npy", np.full((6, 8, 8), np.nan if n == 2 else n / 9, np.float32))
    return folder


def one_of_bytes(folder):
    folder.mkdir()
    for n in range(4):
        np.save(folder / f"{n}.npy", np.full((6, 8, 8), 250 if n == 2 else n / 9, np.float32))
    return folder


def one_clip(folder):
    return turning(folder, 1, 16)


def one_picture(folder):
    np.save(folder.with_suffix(".npy"), np.zeros((8, 8), np.float32))
    return folder.with_suffix(".npy")


MISTAKES = {
    "empty": (empty, r"mine holds no pictures, videos or clips: put sequences there"),
    "corrupt": (corrupt, r"mine/clip 2\.mp4 cannot be read as a video .* with --skip-bad"),
    "cut short": (cut_short, r"mine/clip 2\.mp4 cannot be read as a video .* with --skip-bad"),
    "two sizes": (two_sizes, r"clip 0\.mp4 has frames of 24 x 24 and .*z\.mp4 of 30 x 30: "
                             "say which --size all should have, such as --size 64"),
    "two lengths": (two_lengths, r"clip 0\.mp4 has 8 frames and .*z\.mp4 6: .* such as --frames 6"),
    "NaN": (not_a_number, r"mine/2\.npy holds NaN or infinite values: .* with --skip-bad"),
    "one of bytes": (one_of_bytes, r"mine/0\.npy .*mine/2\.npy up to 250, .* divide those by 255"),
    "one clip": (one_clip, r"one clip of 16 frames has no windows .*: give more .* --frames 4"),
    "one picture": (one_picture, r"mine\.npy has the shape \(8, 8\), and must be \(sequences"),
    "nothing": (lambda folder: folder, r"there is nothing at .*mine: give the path of a file"),
}  # fmt: skip


@pytest.mark.parametrize("source, sentence", MISTAKES.values(), ids=MISTAKES.keys())
def test_every_mistake_names_the_file_and_the_option_that_helps(
    source, sentence, tmp_path, command
):
    code, printed, said = command("fit", source(tmp_path / "mine"), "--out", tmp_path / "out")
    *_, last = said.strip().splitlines()
    assert code == 2 and not printed and re.search(sentence, last), said
    assert last.startswith("topocaps: ") and not (tmp_path / "out").exists()


TINY = ["--epochs", "1", "--set", "epoch_size=16", "--set", "hidden=8", "--device", "cpu"]


@pytest.mark.parametrize("source, name", [(corrupt, "clip 2.mp4"), (not_a_number, "2.npy")])
def test_skipped_files_are_listed(source, name, tmp_path, command):
    folder, out = source(tmp_path / "mine"), tmp_path / "out"
    code, _, said = command("fit", folder, "--skip-bad", "--out", out, *TINY)
    assert code == 0 and "3 sequences" in said and f"1 skipped: {folder / name} (" in said


def test_large_pictures_and_long_clips_are_cut_with_a_message(tmp_path, command):
    folder, out = turning(tmp_path / "mine", 3, 40, 48), tmp_path / "out"
    code, _, said = command("fit", folder, "--out", out, *TINY)
    assert code == 0 and "pictures are resized to a shorter side of 32 pixels: --size" in said
    assert "windows of 24 frames: --frames 40 keeps them whole" in said
    assert "6 sequences of 24 frames, 1 x 32 x 32" in said
    data = json.loads((out / "recipe.json").read_text())["data"]
    assert (data["frames"], data["stride"], data["at_most"]) == (24, 12, 32) and data["shift"]
    code, printed, _ = command("evaluate", out, "--json")
    assert code == 0 and json.loads(printed)["data"] == str(folder)


# each file is decoded once ------------------------------------------------------------------------


def arrays(folder):
    folder.mkdir()
    for n in range(4):
        np.save(folder / f"{n}.npy", np.random.default_rng(n).random((40, 8, 8), np.float32))
    return folder


def stills(folder):
    for n in range(4):
        (folder / f"clip {n}").mkdir(parents=True)
        for k in range(34):
            frame = Image.fromarray((hand(0.2 * k + n, 16) * 255).astype(np.uint8))
            frame.save(folder / f"clip {n}" / f"{k}.png")
    return folder


@pytest.mark.parametrize(
    "source, decoder, files",
    [
        (arrays, "numpy.lib.format.open_memmap", 4),
        (stills, "PIL.Image.open", 4 * 34),
        (lambda folder: turning(folder, 4, 40), "av.open", 4),
    ],
    ids=["arrays", "pictures", "videos"],
)
def test_fit_decodes_each_file_once(source, decoder, files, tmp_path, command, monkeypatch):
    """Clips are long enough to be cut; the run is trained, evaluated and reported."""
    folder, out, decoded = source(tmp_path / "mine"), tmp_path / "out", Counter()
    library, _, name = decoder.rpartition(".")
    decode = pytest.importorskip(library).__dict__[name]

    def counting(path, *how, **named):
        decoded[str(path)] += 1
        return decode(path, *how, **named)

    monkeypatch.setattr(decoder, counting)
    code, _, said = command("fit", folder, "--out", out, *TINY)
    assert code == 0 and "windows of 24 frames" in said and (out / "report.html").exists(), said
    assert len(decoded) == files and set(decoded.values()) == {1}
    fitted = json.loads((out / "metrics.json").read_text())
    code, printed, _ = command("evaluate", out, "--json", "--device", "cpu")
    assert code == 0 and set(decoded.values()) == {2}
    assert json.loads(printed)["elbo"] == fitted["elbo"]


def test_a_change_of_how_data_are_read_is_respected(tmp_path, command):
    folder, out = arrays(tmp_path / "mine"), tmp_path / "out"
    code, _, said = command("fit", folder, "--out", out, *TINY, "--set", "data.size=6")
    assert code == 0, said
    settings = json.loads((out / "recipe.json").read_text())
    assert settings["data"]["size"] == 6 and settings["model"]["frame_shape"] == [1, 6, 6]


def test_a_folder_of_an_earlier_version_resumes_as_the_model_it_holds(tmp_path, command):
    """Earlier versions fitted TVAEs, and did not record whether training data are closed."""
    folder, out = arrays(tmp_path / "mine"), tmp_path / "out"
    words = ("fit", folder, "--out", out, "--frames", "8", *TINY)
    assert command(*words, "--model", "tvae")[0] == 0
    settings = json.loads((out / "recipe.json").read_text())
    del settings["data"]["closed"]
    (out / "recipe.json").write_text(json.dumps(settings))
    code, _, said = command(*words)
    assert code == 0 and "trained already" in said and "a window of" in said


def test_a_rolling_vae_of_an_earlier_version_resumes_without_a_correction(tmp_path, command):
    """Earlier versions did not correct the posterior."""
    folder, out = arrays(tmp_path / "mine"), tmp_path / "out"
    words = ("fit", folder, "--out", out, "--frames", "8", *TINY)
    assert command(*words, "--set", "correction=none")[0] == 0
    recipe = json.loads((out / "recipe.json").read_text())
    assert "correction" not in recipe and "correction" not in recipe["model"]
    code, _, said = command(*words)
    assert code == 0 and "trained already" in said, said
    assert json.loads((out / "recipe.json").read_text()) == recipe
    code, _, said = command(*words, "--model", "tvae")
    assert code == 2 and "other settings" in said
    shutil.rmtree(out / "state", ignore_errors=True)
    for file in out.iterdir():  # stopped after the trial of motions
        if file.is_file():
            file.unlink()
    code, _, said = command(*words)
    assert code == 0 and "correction" not in json.loads((out / "recipe.json").read_text()), said
    code, _, said = command(*words[:3], tmp_path / "new", *words[4:])
    assert json.loads((tmp_path / "new" / "recipe.json").read_text())["correction"] == 64


@pytest.mark.parametrize(
    "options, sentence",
    [
        (["--window", "3"], "window needs --model tvae"),
        (["--model", "tvae", "--speeds=-1,1"], "speeds needs --model rolling"),
        (["--speeds", "fast"], "--speeds must be numbers such as -1,1, not 'fast'"),
        (["--speeds", "1,1"], "candidate motions"),
    ],
)
def test_choices_that_do_not_fit_the_model_are_refused(options, sentence, tmp_path, command):
    folder = arrays(tmp_path / "mine")
    code, _, said = command(
        "fit", folder, "--out", tmp_path / "out", "--frames", "8", *options, *TINY
    )
    assert code == 2 and sentence in said.strip().splitlines()[-1]
