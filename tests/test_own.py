"""Sequences of your own: every kind shows the frames it was given; every mistake has a sentence."""

import subprocess
import sys
import textwrap
from dataclasses import replace
from pathlib import Path

import av
import h5py
import numpy as np
import pytest
import torch
from PIL import Image
from torch.utils.data import Dataset, IterableDataset, TensorDataset

import topocaps as tc
from topocaps.data.own import (
    MappedSequences,
    ShiftedSequences,
    from_images,
    read,
    room_to_shift,
    split,
)
from topocaps.data.own.frames import Look
from topocaps.data.sequences import Sequences
from topocaps.training.watching import Silent

N, S, SIDE = 5, 6, 16


def pictures(count=N, frames=S, channels=3, side=SIDE, seed=0):
    """Bytes (count, frames, side, side, channels)."""
    shape = (count, frames, side, side, channels)
    return np.random.default_rng(seed).integers(0, 256, shape).astype(np.uint8)


COLOUR, GREY = pictures(), pictures(channels=1)[..., 0]


def as_shown(x):
    """Bytes (…, height, width, channels), or grey (…, height, width), as models take them."""
    x = torch.from_numpy(np.ascontiguousarray(x))
    return (x.movedim(-1, -3) if x.ndim == 5 else x[..., None, :, :]).float() / 255


def shown(own):
    return torch.cat([batch.x for batch in own.sequences.batches(2)])


def write_video(path, frames):
    """Without loss: frames (time, height, width[, 3])."""
    kinds = ("rgb24", "bgr0") if frames.ndim == 4 else ("gray", "gray")
    with av.open(str(path), "w") as file:
        stream = file.add_stream("ffv1", rate=10)
        stream.height, stream.width = frames.shape[1:3]
        stream.pix_fmt = kinds[1]
        for one in frames:
            frame = av.VideoFrame.from_ndarray(np.ascontiguousarray(one), format=kinds[0])
            file.mux(stream.encode(frame.reformat(format=kinds[1])))
        file.mux(stream.encode())
    return path


def write_pictures(folder, frames):
    """As 1.png to 12.png: in natural order, not in that of the alphabet."""
    folder.mkdir(parents=True)
    for n, one in enumerate(frames):
        Image.fromarray(one).save(folder / f"{n + 1}.png")
    return folder


class Items(Dataset):
    def __init__(self, items):
        self.items = items

    def __len__(self):
        return len(self.items)

    def __getitem__(self, place):
        return self.items[place]


class Stream(IterableDataset):
    def __iter__(self):
        return iter(torch.from_numpy(COLOUR))


# every kind, with the frames that were put into it ------------------------------------------------


def npy(folder):
    np.save(folder / "x.npy", COLOUR)
    return folder / "x.npy"


def fortran_npy(folder):
    np.save(folder / "x.npy", np.asfortranarray(COLOUR))
    return str(folder / "x.npy")


def npz(folder):
    np.savez_compressed(folder / "x.npz", labels=np.zeros(900), imgs=COLOUR, small=COLOUR[:1])
    return folder / "x.npz"


def h5(folder, **how):
    with h5py.File(folder / "x.h5", "w") as file:
        file["labels"] = np.zeros(900)
        file.create_dataset("train/frames", data=COLOUR, **how)
        file["test"] = COLOUR[:1]
    return folder / "x.h5"


def chunked_h5(folder):
    return h5(folder, compression="gzip")


def named_h5(folder):
    with h5py.File(folder / "x.h5", "w") as file:
        file["larger"], file["frames/mine"] = pictures(9), COLOUR
    return folder / "x.h5" / "frames" / "mine"


def folder_of_folders(folder):
    for n, frames in enumerate(COLOUR):
        write_pictures(folder / "all" / f"take {n + 7}", frames)
    (folder / "all" / ".hidden.png").write_text("")
    return folder / "all"


def folder_of_clips(folder):
    for n, frames in enumerate(COLOUR):
        np.save(folder / f"{n + 7}.npy", frames)
    np.savez(folder / "7.npz", COLOUR[0])
    (folder / "7.npy").unlink()
    return folder


def folder_of_videos(folder):
    (folder / "walking").mkdir()
    for n, frames in enumerate(COLOUR):
        write_video(folder / "walking" / f"{n + 7}.mkv", frames)
    return folder


KINDS = {
    "array": lambda folder: COLOUR,
    "array, channels first": lambda folder: COLOUR.transpose(0, 1, 4, 2, 3),
    "tensor": lambda folder: torch.from_numpy(COLOUR),
    "list": lambda folder: list(COLOUR),
    "data set": lambda folder: TensorDataset(torch.from_numpy(COLOUR), torch.zeros(N)),
    "data set without labels": lambda folder: Items(torch.from_numpy(COLOUR)),
    "data set that only iterates": lambda folder: Stream(),
    "npy": npy,
    "npy in Fortran's order": fortran_npy,
    "npz": npz,
    "h5": h5,
    "h5, compressed": chunked_h5,
    "h5, named": named_h5,
    "folders of pictures": folder_of_folders,
    "clips": folder_of_clips,
    "videos": folder_of_videos,
    "list of videos": lambda folder: sorted((folder_of_videos(folder) / "walking").iterdir(),
                                            key=lambda path: int(path.stem)),
}  # fmt: skip
every_kind = pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS.keys())


def two_steps(sequences, likelihood="bernoulli"):
    topography = tc.Topography(2, (4,), window=min(3, sequences.frames))
    model = tc.TopographicVAE.mlp(
        sequences.frame_shape, topography, hidden=(8,), likelihood=likelihood
    )
    training = tc.Training(batch=4, epochs=1, epoch_size=8)
    return tc.fit(model, sequences, training=training, watcher=Silent(), device="cpu").history


@every_kind
def test_every_kind_shows_the_frames_it_was_given_and_trains(kind, tmp_path):
    said = []
    own = read(kind(tmp_path), say=said.append)
    assert torch.equal(shown(own), as_shown(COLOUR))
    found = own.found
    assert (found["sequences"], found["frames"], found["frame_shape"]) == (N, S, [3, SIDE, SIDE])
    assert (found["likelihood"], found["dtype"], found["skipped"]) == ("bernoulli", "uint8", [])
    assert said == [str(own)] and "5 sequences of 6 frames, 3 x 16 x 16" in said[0]
    (record,) = two_steps(own.sequences, own.likelihood)
    assert record["step"] == 2 and np.isfinite(record["elbo"])


@every_kind
def test_colour_size_and_windows_are_the_same_of_every_kind(kind, tmp_path):
    own = read(kind(tmp_path), size=(8, 4), grey=True, frames=4, stride=2)
    expected = torch.tensor([0.299, 0.587, 0.114]) @ as_shown(COLOUR).flatten(-2)
    expected = expected.unflatten(-1, (8, 2, 4, 4)).mean((-3, -1))[:, :, None]
    windows = expected.unfold(1, 4, 2).movedim(-1, 2).flatten(0, 1)
    assert shown(own).shape == windows.shape == (2 * N, 4, 1, 8, 4)
    assert (shown(own) - windows).abs().max() <= 1.1 / 255
    assert own.clips.tolist() == [0, 0, 1, 1, 2, 2, 3, 3, 4, 4] and own.found["clips"] == N


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
    with pytest.raises(tc.BadInput, match="one sequence in colour or sequences in grey: say layo"):
        read(tmp_path / "film.npy", frames=S)
    assert torch.equal(shown(read(tmp_path / "film.npy", layout="thwc", frames=S)),
                       as_shown(COLOUR))  # fmt: skip
    stills = read(folder)  # without frames: pictures that do not belong together
    assert len(stills.sequences) == N * S and stills.sequences.frames == 1
    assert torch.equal(shown(stills)[:, 0], as_shown(COLOUR).flatten(0, 1))


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


def test_numbers_of_every_kind():
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


def test_numbers_of_any_range_are_for_a_gaussian_decoder():
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


def test_what_is_doubtful_is_said():
    said = []
    read(np.zeros((4, 8, 8)), say=said.append)
    assert "axes are taken as NTD" in said[0] and "layout='THW'" in said[1]
    assert read(np.zeros((40, 8, 8)), layout="THW", frames=8).found["frame_shape"] == [1, 8, 8]


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


def grey_and_colour(folder):
    write_pictures(folder / "all" / "a", COLOUR[0])
    write_pictures(folder / "all" / "b", GREY[0])
    return folder / "all"


def two_kinds(folder):
    write_pictures(folder / "a", COLOUR[0])
    np.save(folder / "b.npy", COLOUR[0])
    return folder


def with_nan(folder):
    x = COLOUR / 255
    x[3, 2, 1] = np.nan
    np.save(folder / "x.npy", x)
    return folder / "x.npy"


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
    "stride alone": (lambda _: COLOUR, {"stride": 2}, "say how many frames= it has too"),
    "no frames asked for": (lambda _: COLOUR, {"frames": 0}, "frames must be a whole number of at"),
    "three sides": (lambda _: COLOUR, {"size": (1, 2, 3)}, r"a side or \(height, width\), not"),
    "size of vectors": (lambda _: np.zeros((2, 3, 4)), {"size": 8}, "vectors have neither colour"),
    "colour of two": (lambda _: np.zeros((2, 3, 2, 8, 8)), {"layout": "chw", "grey": True},
                      "2 channels are neither grey nor colour"),
    "item without frames": (lambda _: Items([{"x": COLOUR[0]}]), {}, "item 0 .* is of type dict"),
    "items that fail": (lambda _: Items({1: COLOUR[0]}), {}, "item 0 of the data set cannot be"),
    "bytes and numbers": (lambda _: [COLOUR[0], COLOUR[1] / 255], {}, "uint8 and item 1 .* float"),
    "loader": (lambda _: torch.utils.data.DataLoader(Items(COLOUR)), {}, "pass its dataset"),
    "neither": (lambda _: 3, {}, "or a folder, not int"),
}  # fmt: skip


@pytest.mark.parametrize("source, how, sentence", MISTAKES.values(), ids=MISTAKES.keys())
def test_every_mistake_has_its_sentence(source, how, sentence, tmp_path):
    with pytest.raises(tc.BadInput, match=sentence) as caught:
        read(source(tmp_path), **how)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("source", [two_sizes, two_sizes_in_one, grey_and_colour, two_lengths])
def test_the_sentences_advice_helps(source, tmp_path):
    assert read(source(tmp_path), size=8, grey=False, frames=4).found["frame_shape"] == [3, 8, 8]


@pytest.mark.parametrize("source", [broken_picture, broken_video, broken_clip])
def test_what_is_broken_is_skipped_and_listed(source, tmp_path):
    said = []
    own = read(source(tmp_path), skip_bad=True, say=said.append)
    assert torch.equal(shown(own), as_shown(COLOUR)[[0, 2, 3, 4]])
    (skipped,) = own.found["skipped"]
    assert "8" in skipped and skipped in said[0]


def test_what_is_not_finite_or_too_short_is_skipped_and_listed(tmp_path):
    own = read(with_nan(tmp_path), skip_bad=True)
    assert torch.allclose(shown(own), as_shown(COLOUR)[[0, 1, 2, 4]])
    assert own.found["skipped"] == [f"sequence 3 of {tmp_path}/x.npy (not finite)"]
    assert own.clips.tolist() == [0, 1, 2, 3] and two_steps(own.sequences)
    (tmp_path / "x.npy").unlink()
    own = read(two_lengths(tmp_path), frames=5, skip_bad=True)
    assert own.found["skipped"] == [f"{tmp_path}/b.npy (too short)"] and len(own.sequences) == 1
    (tmp_path / "a.npy").write_text("")
    (tmp_path / "b.npy").write_text("")
    with pytest.raises(tc.BadInput, match=r"nothing can be read, neither .*a\.npy"):
        read(tmp_path, skip_bad=True)


def test_text_beside_frames_is_left_aside(tmp_path):
    (tmp_path / "labels.csv").write_text("1, 2")
    own = read(folder_of_clips(tmp_path))
    assert own.found["left_aside"] == ["labels.csv"] and "left aside: labels.csv" in str(own)


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


def test_what_memory_does_not_hold_is_refused_in_time(monkeypatch):
    monkeypatch.setattr("topocaps.data.own.files.free_memory", lambda device: 10_000)
    monkeypatch.setattr("topocaps.data.own.gather._LOOK", 1)
    with pytest.raises(tc.BadInput, match=r"too much for 0\.0 that are free: .* one \.npy"):
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
    with pytest.raises(tc.BadInput, match="no windows to hold out: give more clips, or take fewer"):
        split(replace(own, sequences=MappedSequences.over(x)) if where == "mapped" else read(x))
    with pytest.raises(tc.BadInput, match="share must be between 0 and 1"):
        split(own, 1.5)


# in their file ------------------------------------------------------------------------------------


@pytest.fixture
def small_is_large(monkeypatch):
    monkeypatch.setattr("topocaps.data.own.reading.LARGE", 100)


@pytest.mark.parametrize("kind", [npy, fortran_npy, h5])
@pytest.mark.parametrize("how", [{}, {"size": 8, "grey": True, "frames": 3, "stride": 2}])
def test_a_mapped_file_shows_what_one_in_memory_does(kind, how, tmp_path, monkeypatch):
    path = kind(tmp_path)
    held = read(path, **how)
    monkeypatch.setattr("topocaps.data.own.reading.LARGE", 100)
    own = read(path, **how)
    mapped = own.sequences
    assert isinstance(mapped, MappedSequences) and mapped.on_host and own.found["on_host"]
    assert torch.equal(shown(own), shown(held)) and len(mapped) == len(held.sequences)
    assert own.found == held.found | {"on_host": True, "kind": own.found["kind"]}
    assert torch.equal(mapped.show(mapped.fixed()).x, shown(held))
    drawn = mapped.draw(50, torch.Generator()).x
    stacked = mapped.show(mapped.choose(torch.rand(2, 3, mapped.numbers))).x
    assert stacked.shape == (2, 3, mapped.frames, *mapped.frame_shape)
    among = (drawn[:, None] == shown(held)).flatten(2).all(2)
    assert among.any(1).all() and among.any(0).all()
    assert two_steps(mapped)


@pytest.mark.usefixtures("small_is_large")
def test_a_mapped_file_is_known_by_a_sample_and_its_settings(tmp_path):
    own = read(npy(tmp_path))
    assert own.sequences.digest() == read(tmp_path / "x.npy").sequences.digest()
    others = [read(tmp_path / "x.npy", **how) for how in ({"frames": 3}, {"grey": True})]
    np.save(tmp_path / "y.npy", pictures(seed=1))
    others.append(read(tmp_path / "y.npy"))
    fixed = own.sequences.balanced(3, seed=0)
    digests = {one.digest() for one in (own.sequences, fixed, *(o.sequences for o in others))}
    assert len(digests) == 5
    assert len(fixed) == 3 and fixed.fixed().equal(own.sequences.balanced(3, seed=0).fixed())
    assert torch.equal(fixed.draw(9, torch.Generator()).x.unique(dim=0),
                       next(fixed.batches(3)).x.unique(dim=0))  # fmt: skip


@pytest.mark.usefixtures("small_is_large")
def test_mistakes_in_a_mapped_file_have_sentences_too(tmp_path):
    with pytest.raises(tc.BadInput, match=r"sequence 3 of .*x\.npy holds NaN"):
        read(with_nan(tmp_path))
    np.save(tmp_path / "x.npy", COLOUR.astype(np.float32))
    with pytest.raises(tc.BadInput, match="look like bytes: divide"):
        read(tmp_path / "x.npy")
    np.save(tmp_path / "x.npy", COLOUR.astype(int))
    with pytest.raises(tc.BadInput, match="holds int64"):
        read(tmp_path / "x.npy")
    with pytest.raises(tc.BadInput, match="fewer than frames=7"):
        read(npy(tmp_path), frames=7)


SPARSE = """
import sys
from pathlib import Path
import numpy as np
import torch
import topocaps as tc
from topocaps.data.own import read, split
from topocaps.training.watching import Silent

def memory(kind):
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(kind)) * 1024

torch.set_num_threads(1)
before = memory("RssAnon")
own = read(sys.argv[1])
assert own.found["on_host"] and own.found["sequences"] == int(sys.argv[2]), own.found
last = own.sequences.show(torch.tensor([[len(own.sequences) - 1, 0]])).x
assert (last == 0.2).all() and last.shape == (1, 16, 3, 32, 32)
train, held_out = split(own)
topography = tc.Topography(2, (4,), window=3)
model = tc.TopographicVAE.mlp(train.frame_shape, topography, hidden=(8,))
training = tc.Training(batch=32, epochs=1, epoch_size=128)
(record,) = tc.fit(model, train, training=training, watcher=Silent(), device="cpu").history
assert record["step"] == 4
next(held_out.balanced(16, seed=0).batches(16))
print(memory("RssAnon") - before, memory("VmHWM"))
"""


def test_30_gb_are_trained_on_with_little_memory(tmp_path):
    """A sparse file: zeros but for the last sequence, which is 51 (0.2)."""
    path, shape = tmp_path / "large.npy", (30 * 2**30 // (16 * 3 * 32 * 32), 16, 3, 32, 32)
    with path.open("wb") as file:
        described = {"descr": "|u1", "fortran_order": False, "shape": shape}
        np.lib.format.write_array_header_1_0(file, described)
        end = file.tell() + int(np.prod(shape))
        try:
            file.truncate(end)
        except OSError:
            pytest.skip("files here are not as large")
        file.seek(end - int(np.prod(shape[1:])))
        file.write(bytes([51]) * int(np.prod(shape[1:])))
    if path.stat().st_blocks * 512 > 2**24:
        pytest.skip("files here are not sparse")
    code = ["-c", textwrap.dedent(SPARSE), str(path), str(shape[0])]
    done = subprocess.run(
        [sys.executable, *code], capture_output=True, text=True, cwd=Path(__file__).parents[1]
    )
    assert done.returncode == 0, done.stderr
    grown, highest = map(int, done.stdout.split())
    assert grown < 400 * 2**20 and highest < 2 * 2**30


# pictures that move -------------------------------------------------------------------------------


def blob(side=17):
    """A smooth spot off the centre: one grey picture in [0, 1]."""
    y, x = np.mgrid[:side, :side] - side // 2
    return np.exp(-((x - 3) ** 2 + y**2) / 6).astype(np.float32)


def centre(x):
    """Where the mass of pictures (…, height, width) is: x and y from the middle."""
    grid = torch.arange(x.shape[-1]) - (x.shape[-1] - 1) / 2
    mass = x.sum((-2, -1))
    return (
        torch.stack([(x.sum(-2) * grid).sum(-1), (x.sum(-1) * grid).sum(-1)], -1) / mass[..., None]
    )


def moved(name, frames=8, images=None):
    """One sequence from its first value on, (frames, channels, height, width)."""
    sequences = from_images(blob()[None] if images is None else images, name, frames)
    script = torch.stack([torch.zeros(frames, dtype=torch.long), torch.arange(frames)], -1)
    return sequences.show(script).x


def test_pictures_turn_grow_and_shift():
    turn = 2 * np.pi * torch.arange(8) / 8
    expected = 3 * torch.stack([turn.cos(), -turn.sin()], -1)  # counter-clockwise, y points down
    assert (centre(moved("rotation"))[:, 0] - expected).abs().max() < 0.1
    assert torch.allclose(moved("rotation")[0, 0], torch.from_numpy(blob()), atol=1e-6)
    sizes = centre(moved("scale"))[:, 0, 0] / 3
    assert (sizes - torch.linspace(0.60, 1.26, 8)).abs().max() < 0.05
    middle = np.roll(blob(), -3, 1)[None]
    for axis, name in enumerate(("shift_x", "shift_y")):
        found = centre(moved(name, images=middle))[:, 0]
        assert (found[:, axis] - 17 * torch.linspace(-0.25, 0.25, 8)).abs().max() < 0.2
        assert found[:, 1 - axis].abs().max() < 0.05


def test_grey_takes_a_colour_and_colours_are_turned():
    grey = moved("hue", 3)
    assert grey.shape == (3, 3, 17, 17)
    assert torch.allclose(grey[1, 1], torch.from_numpy(blob())) and grey[1, 0].max() == 0
    red = np.zeros((1, 3, 17, 17), np.float32)
    red[0, 0] = blob()
    assert torch.allclose(moved("hue", 3, red), grey, atol=1e-6)


def test_pictures_that_move_are_sequences_like_any_other(tmp_path):
    names = ("rotation", "scale", "shift_x", "shift_y", "hue")
    folder = write_pictures(tmp_path / "stills", COLOUR.reshape(-1, SIDE, SIDE, 3))
    sequences = from_images(folder, names, 9, size=8)
    assert (len(sequences), sequences.frames, sequences.frame_shape) == (N * S, 9, (3, 8, 8))
    batch = sequences.draw(200, torch.Generator())
    assert batch.x.shape == (200, 9, 3, 8, 8) and batch.x.min() >= 0 and batch.x.max() <= 1
    changes = (batch.factors != batch.factors[:, :1]).any(1)
    assert (changes.sum(1) == 1).all() and changes.sum(0).min() > 20
    fixed = sequences.balanced(2, seed=0)
    assert len(fixed) == 10 and fixed.fixed().equal(sequences.balanced(2, seed=0).fixed())
    own = read(sequences)
    train, held_out = split(own, 0.2)
    assert (len(train), len(held_out)) == (24, 6) and own.likelihood == "bernoulli"
    assert two_steps(train)
    np.save(tmp_path / "stills.npy", COLOUR[:, 0])
    for images in (tmp_path / "stills.npy", COLOUR[:, 0], read(COLOUR[:, :1])):
        assert torch.equal(from_images(images, "scale", 4).images, as_shown(COLOUR)[:, 0].mul(255))


@pytest.mark.parametrize(
    "images, name, sentence",
    [
        (blob()[None], "spin", "one or some of rotation, scale, shift_x, shift_y, hue, not 'spin'"),
        (COLOUR, "scale", "too many axes"),
        (8 * blob()[None], "scale", r"must lie in \[0, 1\]"),
        (read(COLOUR), "scale", "these are sequences already"),
    ],
)
def test_pictures_that_cannot_move(images, name, sentence):
    with pytest.raises(tc.BadInput, match=sentence):
        from_images(images, name, 4)


def test_pictures_that_are_too_large_are_made_smaller_and_said_to_be():
    own = read(pictures(side=20), at_most=10)
    assert own.found["frame_shape"] == [3, 10, 10]
    assert "pictures of 20 x 20 were made that small" in str(own)
    assert torch.equal(shown(own), shown(read(pictures(side=20), size=10)))
    wide = np.zeros((2, 3, 12, 30), np.uint8)
    assert read(wide, at_most=6).found["frame_shape"] == [1, 6, 15]
    for how in ({"at_most": 16}, {"size": 16, "at_most": 4}):
        own = read(COLOUR, **how)
        assert torch.equal(shown(own), as_shown(COLOUR)) and "small" not in str(own)
    assert read(np.zeros((2, 3, 40), np.float32), at_most=8).found["frame_shape"] == [40]


@pytest.mark.usefixtures("small_is_large")
def test_a_mapped_file_is_made_smaller_too(tmp_path):
    own = read(npy(tmp_path), at_most=8)
    assert own.found["on_host"] and own.found["shrunk"] == ["16 x 16"]
    assert torch.equal(shown(own), shown(read(COLOUR, size=8)))


# pictures in other places -------------------------------------------------------------------------


def shifted(shift=2):
    x = torch.from_numpy(COLOUR).movedim(-1, -3).flatten(0, 1)
    return ShiftedSequences(x, torch.arange(N * S).reshape(N, S), shift=shift)


def test_shifted_sequences_are_where_they_were_when_fixed():
    sequences = shifted()
    assert torch.equal(next(sequences.batches(N)).x, as_shown(COLOUR))
    fixed = sequences.balanced(3, seed=0)
    among = (next(fixed.batches(3)).x[:, None] == as_shown(COLOUR)).flatten(2).all(2)
    assert among.any(1).all()


def test_all_frames_of_a_drawn_sequence_are_shifted_alike():
    drawn = shifted().draw(400, torch.Generator().manual_seed(0)).x
    middle = as_shown(COLOUR)[..., 2:-2, 2:-2]  # what no shift loses
    found = set()
    for down in range(5):
        for right in range(5):
            part = drawn[..., down : down + SIDE - 4, right : right + SIDE - 4]
            hits = (part[:, None] == middle).flatten(2).all(2).any(1)
            found |= {(down, right)} if hits.any() else set()
    assert len(found) == 25
    moved = shifted().show(torch.tensor([[[7, 2, -1]]])).x[0, 0]
    x = as_shown(COLOUR).flatten(0, 1)[7]
    assert torch.equal(moved[:, :-2, 1:], x[:, 2:, :-1])
    assert torch.equal(moved[:, -1, 1:], x[:, -1, :-1])  # the edge goes on
    assert torch.equal(moved[:, :-2, 0], x[:, 2:, 0])


def spots(places, side=40):
    """A sequence for each place (row, column): a spot that grows there."""
    x = torch.zeros(len(places), 4, 1, side, side)
    for clip, (row, column) in zip(x, places, strict=True):
        for n, frame in enumerate(clip):
            frame[0, row - n : row + n + 1, column - n : column + n + 1] = 1
    return Sequences.of(x)


@pytest.mark.parametrize(
    "places, room",
    [([(20, 20)], 1), ([(19, 20), (20, 20), (21, 20)], 2), ([(10, 10), (30, 12)], 4)],
)
def test_room_to_shift_is_twice_what_clips_lie_apart_or_a_tenth_of_a_side(places, room):
    assert room_to_shift(spots(places * 6)) == room


def test_there_is_room_where_nothing_is_seen():
    assert room_to_shift(Sequences.of(torch.ones(3, 4, 1, 8, 8))) == 1


def test_shifted_sequences_train():
    assert two_steps(shifted())
    assert shifted(1).digest() != shifted(2).digest()


def test_a_look_says_what_it_cannot_do():
    assert Look(size=8).height_and_width == (8, 8)
    with pytest.raises(tc.BadInput, match="size must be a whole number"):
        read(COLOUR, size=0)


def test_videos_without_colour_have_one_channel_unless_it_is_said(tmp_path):
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
