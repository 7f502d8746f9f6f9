"""Imported sequences: every kind of source gives its frames, and every mistake has a message."""

import sys
from dataclasses import replace

import numpy as np
import pytest
import torch
from own_sources import (
    COLOUR,
    GREY,
    SIDE,
    Items,
    N,
    S,
    as_shown,
    every_kind,
    folder_of_clips,
    folder_of_folders,
    folder_of_videos,
    h5,
    npy,
    npz,
    pictures,
    shown,
    two_steps,
    with_nan,
    write_pictures,
    write_video,
)
from PIL import Image

import topocaps as tc
from topocaps.data import MappedSequences, read, split
from topocaps.data.importing.frames import Look


@every_kind
def test_every_kind_of_source_gives_its_frames_and_trains(kind, tmp_path):
    said = []
    own = read(kind(tmp_path), say=said.append)
    assert torch.equal(shown(own), as_shown(COLOUR))
    found = own.summary
    assert (found["sequences"], found["frames"], found["frame_shape"]) == (N, S, [3, SIDE, SIDE])
    assert (found["likelihood"], found["dtype"], found["skipped"]) == ("bernoulli", "uint8", [])
    assert said == [str(own)] and "5 sequences of 6 frames, 3 x 16 x 16" in said[0]
    (record,) = two_steps(own.sequences, own.likelihood)
    assert record["step"] == 2 and np.isfinite(record["elbo"])


@every_kind
def test_colour_size_and_windows_are_the_same_for_every_kind_of_source(kind, tmp_path):
    own = read(kind(tmp_path), size=(8, 4), grey=True, frames=4, stride=2)
    expected = torch.tensor([0.299, 0.587, 0.114]) @ as_shown(COLOUR).flatten(-2)
    expected = expected.unflatten(-1, (8, 2, 4, 4)).mean((-3, -1))[:, :, None]
    windows = expected.unfold(1, 4, 2).movedim(-1, 2).flatten(0, 1)
    assert shown(own).shape == windows.shape == (2 * N, 4, 1, 8, 4)
    assert (shown(own) - windows).abs().max() <= 1.1 / 255
    assert own.clips.tolist() == [0, 0, 1, 1, 2, 2, 3, 3, 4, 4] and own.summary["clips"] == N


def test_grey_pictures_have_one_channel(tmp_path):
    for n, frames in enumerate(GREY):
        write_video(tmp_path / f"{n}.avi", frames)
    for source in (GREY, GREY[..., None], list(GREY), tmp_path):
        assert torch.equal(shown(read(source)), as_shown(GREY))
    assert torch.equal(shown(read(GREY, grey=False)), as_shown(GREY).expand(-1, -1, 3, -1, -1))
    with_alpha = np.concatenate([COLOUR, COLOUR[..., :1]], -1)
    assert torch.equal(shown(read(with_alpha, grey=False)), as_shown(COLOUR))


def test_one_video_and_one_folder_are_cut_into_windows(tmp_path):
    film = COLOUR.reshape(N * S, SIDE, SIDE, 3)
    whole = read(write_video(tmp_path / "film.mkv", film))
    assert torch.equal(shown(whole)[0], as_shown(COLOUR).flatten(0, 1))
    folder = write_pictures(tmp_path / "film", film)
    np.save(tmp_path / "film.npy", film)
    for source in (tmp_path / "film.mkv", folder):
        assert torch.equal(shown(read(source, frames=S)), as_shown(COLOUR))
    with pytest.raises(tc.BadInput, match="one sequence in colour or several in grey: say layout"):
        read(tmp_path / "film.npy", frames=S)
    assert torch.equal(shown(read(tmp_path / "film.npy", layout="thwc", frames=S)),
                       as_shown(COLOUR))  # fmt: skip
    stills = read(folder)  # without frames: pictures that do not belong together
    assert len(stills.sequences) == N * S and stills.sequences.frames == 1
    assert torch.equal(shown(stills)[:, 0], as_shown(COLOUR).flatten(0, 1))


@pytest.mark.parametrize("where", ["in memory", "mapped"])
def test_whole_clips_are_cut_as_if_they_had_been_read_in_windows(where, tmp_path, monkeypatch):
    if where == "mapped":
        monkeypatch.setattr("topocaps.data.importing.read.LARGE", 100)
    path = npy(tmp_path)
    whole, expected = read(path).cut(4, 1), read(path, frames=4, stride=1)
    assert whole.summary == expected.summary and str(whole) == str(expected)
    assert whole.sequences.digest() == expected.sequences.digest()
    for one, other in zip(split(whole), split(expected), strict=True):
        assert one.digest() == other.digest()
    with pytest.raises(tc.BadInput, match="MovingImages cannot be cut into windows"):
        read(tc.data.from_images(COLOUR[:, 0], "rotation", 4)).cut(2, 1)


def test_pictures_of_every_mode(tmp_path):
    for n, mode in enumerate(["RGB", "RGBA", "P", "CMYK"]):
        Image.fromarray(np.full((4, 4, 3), 255, np.uint8)).convert(mode).save(
            tmp_path / f"{n}.{'tif' if mode == 'CMYK' else 'png'}"
        )
    assert torch.equal(shown(read(tmp_path, grey=False)), torch.ones(4, 1, 3, 4, 4))
    deep = tmp_path / "deep"
    deep.mkdir()
    Image.fromarray(np.array([[0, 65535]], np.uint16)).save(deep / "a.png")
    assert shown(read(deep)).flatten().tolist() == [0, 1]


def test_arrays_of_every_data_type():
    x = COLOUR / 255
    for kind in (np.float16, np.float32, np.float64, ">f4"):
        own = read(x.astype(kind))
        assert own.likelihood == "bernoulli" and own.sequences.images.dtype == torch.float32
        assert (shown(own) - as_shown(COLOUR)).abs().max() < 1e-3
    assert torch.equal(shown(read(GREY > 100)), as_shown((GREY > 100) * np.uint8(255)))
    assert torch.equal(shown(read(GREY.astype(np.uint16) * 257)), as_shown(GREY))
    reading_only = COLOUR.view()
    reading_only.flags.writeable = False
    assert torch.equal(shown(read(reading_only[:, ::-1])), as_shown(COLOUR).flip(1))


def test_values_outside_0_to_1_need_a_gaussian_decoder():
    own = read(8 * np.random.default_rng(0).normal(size=(N, S, 7)))
    assert own.likelihood == "gaussian" and own.sequences.frame_shape == (7,)
    assert two_steps(own.sequences, own.likelihood)
    assert read(np.random.default_rng(0).random((N, S, 2, 3, 4, 5))).sequences.frame_shape == (
        2, 3, 4, 5,
    )  # fmt: skip


@pytest.mark.parametrize(
    "layout, order",
    [("NTHWC", "NTHWC"), ("chw", "NTCHW"), ("TNHWC", "TNHWC"), ("CWHTN", "CWHTN")],
)
def test_a_layout_names_axes_in_any_order(layout, order):
    x = COLOUR.transpose([("NTHWC").index(axis) for axis in order])
    assert torch.equal(shown(read(x, layout=layout)), as_shown(COLOUR))


def test_inferred_axes_are_reported():
    said = []
    read(np.zeros((4, 8, 8)), say=said.append)
    assert "axes NTD" in said[0] and "layout='THW'" in said[1]
    assert read(np.zeros((40, 8, 8)), layout="THW", frames=8).summary["frame_shape"] == [1, 8, 8]


# mistakes, each with its sentence -----------------------------------------------------------------


def empty(folder):
    return folder


def only_text(folder):
    (folder / "labels.txt").write_text("no frames")
    return folder


def text_file(folder):
    (folder / "notes.txt").write_text("no frames")
    return folder / "notes.txt"


def text_called_npy(folder):
    (folder / "x.npy").write_text("no frames at all")
    return folder / "x.npy"


def cut_npy(folder):
    path = npy(folder)
    path.write_bytes(path.read_bytes()[:-100])
    return path


def cut_npz(folder):
    path = npz(folder)
    path.write_bytes(path.read_bytes()[:-100])
    return path


def cut_h5(folder):
    path = h5(folder)
    path.write_bytes(path.read_bytes()[:900])
    return path


def broken_picture(folder):
    folder_of_folders(folder)
    file = folder / "all" / "take 8" / "3.png"
    file.write_bytes(file.read_bytes()[:200])
    return folder / "all"


def broken_video(folder):
    folder_of_videos(folder)
    (folder / "walking" / "8.mkv").write_bytes(b"nothing that moves" * 9)
    return folder


def cut_video(folder):
    path = write_video(folder / "film.mkv", COLOUR.reshape(N * S, SIDE, SIDE, 3))
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    return path


def broken_clip(folder):
    folder_of_clips(folder)
    (folder / "8.npy").write_bytes(b"nothing that moves" * 9)
    return folder


def two_sizes(folder):
    write_pictures(folder / "all" / "a", COLOUR[0])
    write_pictures(folder / "all" / "b", pictures(side=8)[0])
    return folder / "all"


def two_sizes_in_one(folder):
    write_pictures(folder / "all" / "a", COLOUR[0])
    Image.fromarray(pictures(side=8)[0, 0]).save(folder / "all" / "a" / "7.png")
    return folder / "all"


def two_lengths(folder):
    np.save(folder / "a.npy", COLOUR[0])
    np.save(folder / "b.npy", COLOUR[1, :4])
    return folder


def three_lengths(folder):
    np.save(folder / "c.npy", COLOUR[1, :1])
    return two_lengths(folder)


def grey_and_colour(folder):
    write_pictures(folder / "all" / "a", COLOUR[0])
    write_pictures(folder / "all" / "b", GREY[0])
    return folder / "all"


def two_kinds(folder):
    write_pictures(folder / "a", COLOUR[0])
    np.save(folder / "b.npy", COLOUR[0])
    return folder


def one_of_bytes(folder):
    """Clips in [0, 1], but for one that was not divided by 255."""
    for n, x in enumerate(COLOUR / 255):
        np.save(folder / f"{n}.npy", (x if n != 3 else 255 * x).astype(np.float32))
    return folder


def no_pictures_in_npz(folder):
    np.savez(folder / "x.npz", labels=np.zeros(5))
    return folder / "x.npz"


MISTAKES = {
    "nothing": (lambda folder: folder / "gone.npy", {}, r"there is nothing at .*gone\.npy"),
    "empty folder": (empty, {}, "holds no pictures, videos or clips: put sequences there"),
    "only text": (only_text, {}, r"holds no pictures, videos or clips, only labels\.txt"),
    "text file": (text_file, {}, r"notes\.txt is neither a video nor an array: give one"),
    "text in npy": (text_called_npy, {}, r"x\.npy cannot be read as a \.npy .*write it anew"),
    "npy cut short": (cut_npy, {}, r"x\.npy cannot be read as a \.npy"),
    "npz cut short": (cut_npz, {}, r"x\.npz cannot be read as a \.npz"),
    "h5 cut short": (cut_h5, {}, r"x\.h5 cannot be read as a \.h5"),
    "broken picture": (broken_picture, {}, r"take 8/3\.png cannot be read as a picture .*skip_bad"),
    "broken video": (broken_video, {}, r"8\.mkv cannot be read as a video .*skip_bad"),
    "video cut short": (cut_video, {}, r"film\.mkv cannot be read .*ends after 1\.\d of 3\.0 sec"),
    "broken clip": (broken_clip, {}, r"8\.npy cannot be read as a \.npy .*skip_bad"),
    "two sizes": (two_sizes, {}, r"all/a has frames of 16 x 16 and .*all/b of 8 x 8: .* size=64"),
    "two sizes in one": (two_sizes_in_one, {}, r"1\.png has frames of 16 x 16 and .*7\.png of 8 x"),
    "two lengths": (two_lengths, {}, r"a\.npy has 6 frames and .*b\.npy 4: .* frames=4"),
    "a single frame": (three_lengths, {}, "such as frames=4 and skip_bad, which skips shorter"),
    "too short": (two_lengths, {"frames": 5}, r"b\.npy has 4 frames, fewer than frames=5"),
    "array too short": (npy, {"frames": 7}, r"sequence 0 of .*x\.npy has 6 frames, fewer than fra"),
    "grey and colour": (grey_and_colour, {}, r"all/a has 3 channels and .*all/b 1: say grey=True"),
    "two kinds": (two_kinds, {}, r"holds pictures and clips \(a/1\.png, b\.npy\): keep one kind"),
    "NaN": (with_nan, {}, r"sequence 3 of .*x\.npy holds NaN or infinite values: make them finite"),
    "no pictures in npz": (no_pictures_in_npz, {}, r"x\.npz holds no array of 3 axes .*labels \(5"),
    "no such array": (lambda folder: npz(folder) / "mine", {}, r"x\.npz holds no mine, but labels"),
    "0 to 255": (lambda _: COLOUR.astype(float), {}, "from 0 to 255, which look like bytes: divid"),
    "dark, 0 to 50": (lambda _: (COLOUR // 5).astype(float), {}, "look like bytes: divide them by"),
    "one of bytes": (one_of_bytes, {}, r"0\.npy holds values up to 1 and .*3\.npy up to 255, .*:"),
    "bytes of 0 and 1": (lambda _: COLOUR // 128, {}, "all 0 or 1: make them bool, or multiply"),
    "whole numbers": (lambda _: COLOUR.astype(int), {}, "the array holds int64: make it bytes"),
    "text in an array": (lambda _: np.full((2, 3, 4), "a"), {}, "the array holds <U1: make it"),
    "too few axes": (lambda _: COLOUR[0, 0, :, :, 0], {}, r"has the shape \(16, 16\), and must be"),
    "no frames": (lambda _: COLOUR[:0], {}, "there are no frames in it"),
    "no items": (lambda _: [], {}, "there are no sequences: give at least one"),
    "which are channels": (lambda _: pictures(side=3), {}, r"say layout='NTCHW' or layout='NTHWC'"),
    "unknown layout": (lambda _: COLOUR, {"layout": "NTXYC"}, "layout must name axes, such as"),
    "another layout": (lambda _: COLOUR, {"layout": "NTHW"}, "and the layout NTHW has 4 axes"),
    "stride alone": (lambda _: COLOUR, {"stride": 2}, "say how many frames= a window has"),
    "no frames asked for": (lambda _: COLOUR, {"frames": 0}, "frames must be a whole number of at"),
    "three sides": (lambda _: COLOUR, {"size": (1, 2, 3)}, r"a side or \(height, width\), not"),
    "size of vectors": (lambda _: np.zeros((2, 3, 4)), {"size": 8}, "vectors have neither colour"),
    "colour of two": (lambda _: np.zeros((2, 3, 2, 8, 8)), {"layout": "chw", "grey": True},
                      "2 channels are neither grey nor coloured"),
    "item without frames": (lambda _: Items([{"x": COLOUR[0]}]), {}, "item 0 .* is of type dict"),
    "items that fail": (lambda _: Items({1: COLOUR[0]}), {}, "item 0 of the data set cannot be"),
    "bytes and numbers": (lambda _: [COLOUR[0], COLOUR[1] / 255], {}, "uint8 and item 1 .* float"),
    "loader": (lambda _: torch.utils.data.DataLoader(Items(COLOUR)), {}, "pass its dataset"),
    "neither": (lambda _: 3, {}, "or a folder, not int"),
}  # fmt: skip


@pytest.mark.parametrize("source, how, sentence", MISTAKES.values(), ids=MISTAKES.keys())
def test_every_mistake_has_its_message(source, how, sentence, tmp_path):
    with pytest.raises(tc.BadInput, match=sentence) as caught:
        read(source(tmp_path), **how)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("source", [two_sizes, two_sizes_in_one, grey_and_colour, two_lengths])
def test_the_advice_of_messages_helps(source, tmp_path):
    assert read(source(tmp_path), size=8, grey=False, frames=4).summary["frame_shape"] == [3, 8, 8]


@pytest.mark.parametrize("source", [broken_picture, broken_video, broken_clip])
def test_broken_files_are_skipped_and_listed(source, tmp_path):
    said = []
    own = read(source(tmp_path), skip_bad=True, say=said.append)
    assert torch.equal(shown(own), as_shown(COLOUR)[[0, 2, 3, 4]])
    (skipped,) = own.summary["skipped"]
    assert "8" in skipped and skipped in said[0]


def test_clips_that_are_not_finite_or_too_short_are_skipped_and_listed(tmp_path):
    own = read(with_nan(tmp_path), skip_bad=True)
    assert torch.allclose(shown(own), as_shown(COLOUR)[[0, 1, 2, 4]])
    assert own.summary["skipped"] == [f"sequence 3 of {tmp_path}/x.npy (not finite)"]
    assert own.clips.tolist() == [0, 1, 2, 3] and two_steps(own.sequences)
    (tmp_path / "x.npy").unlink()
    own = read(two_lengths(tmp_path), frames=5, skip_bad=True)
    assert own.summary["skipped"] == [f"{tmp_path}/b.npy (too short)"] and len(own.sequences) == 1
    (tmp_path / "a.npy").write_text("")
    (tmp_path / "b.npy").write_text("")
    with pytest.raises(tc.BadInput, match=r"none of the clips can be read, such as .*a\.npy"):
        read(tmp_path, skip_bad=True)


def test_text_files_beside_frames_are_ignored(tmp_path):
    (tmp_path / "labels.csv").write_text("1, 2")
    own = read(folder_of_clips(tmp_path))
    assert own.summary["left_aside"] == ["labels.csv"] and "ignored: labels.csv" in str(own)


@pytest.mark.parametrize(
    "source, module, extra",
    [(folder_of_videos, "av", "video"), (folder_of_folders, "PIL.Image", "images"),
     (h5, "h5py", "h5")],
)  # fmt: skip
def test_a_missing_library_is_named(source, module, extra, tmp_path, monkeypatch):
    path = source(tmp_path)
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(tc.BadInput, match=rf"not installed: pip install 'topocaps\[{extra}\]'"):
        read(path, skip_bad=True)


def test_frames_that_do_not_fit_into_memory_are_refused(monkeypatch):
    monkeypatch.setattr("topocaps.data.importing.files.free_memory", lambda device: 10_000)
    monkeypatch.setattr("topocaps.data.importing.read._ROOM_CHECKED_EVERY", 1)
    with pytest.raises(tc.BadInput, match=r"of which 0\.0 GB are free: .* one \.npy"):
        read(list(COLOUR))


# two sides ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("where", ["in memory", "mapped"])
def test_windows_of_a_clip_are_on_one_side(where):
    x = np.zeros((20, 12, 1), np.float32) + np.arange(20, dtype=np.float32)[:, None, None] / 20
    own = read(x, frames=4, stride=1)
    if where == "mapped":
        own = replace(own, sequences=MappedSequences.over(x, 4, 1))
    sides = [set(next(s.batches(1000)).x.unique().tolist()) for s in split(own, 0.25, seed=3)]
    assert [len(side) for side in sides] == [15, 5] and not sides[0] & sides[1]
    again, other = split(own, 0.25, seed=3)[1], split(own, 0.25, seed=4)[1]
    assert again.digest() == split(own, 0.25, seed=3)[1].digest() != other.digest()
    assert len(again) == 5 * 9


@pytest.mark.parametrize("where", ["in memory", "mapped"])
def test_one_clip_is_split_in_time_and_no_frame_is_on_both_sides(where):
    x = np.arange(30, dtype=np.float32)[None, :, None] / 30
    own = read(x, frames=4, stride=2)
    if where == "mapped":
        own = replace(own, sequences=MappedSequences.over(x, 4, 2))
    train, held_out = (next(s.batches(1000)).x for s in split(own, 0.3))
    assert train.max() < held_out.min() and held_out.max() == np.float32(29 / 30)
    assert (len(train), len(held_out)) == (9, 4)
    with pytest.raises(
        tc.BadInput, match="no windows to hold out: give more clips, or cut it into"
    ):
        split(replace(own, sequences=MappedSequences.over(x)) if where == "mapped" else read(x))
    with pytest.raises(tc.BadInput, match="share must be between 0 and 1"):
        split(own, 1.5)


def test_invalid_sizes_are_refused():
    assert Look(size=8).height_and_width == (8, 8)
    with pytest.raises(tc.BadInput, match="size must be a whole number"):
        read(COLOUR, size=0)


def test_grey_videos_have_one_channel_by_default(tmp_path):
    frames = np.repeat(np.random.default_rng(0).integers(0, 256, (5, 16, 16, 1)), 3, -1)
    for n in range(2):
        folder = tmp_path / f"clip-{n}"
        folder.mkdir()
        for k, frame in enumerate(frames.astype(np.uint8)):
            Image.fromarray(frame).save(folder / f"{k}.png")
    assert read(tmp_path).sequences.frame_shape == (1, 16, 16)
    assert read(tmp_path, grey=False).sequences.frame_shape == (3, 16, 16)
    coloured = frames.astype(np.uint8)
    coloured[0, 0, 0, 0] = 255 - coloured[0, 0, 0, 0]
    Image.fromarray(coloured[0]).save(tmp_path / "clip-0" / "0.png")
    assert read(tmp_path).sequences.frame_shape == (3, 16, 16)
