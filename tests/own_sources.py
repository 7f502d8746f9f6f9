"""Sequences of your own, of every kind, to be read and trained on."""

import av
import h5py
import numpy as np
import pytest
import torch
from PIL import Image
from torch.utils.data import Dataset, IterableDataset, TensorDataset

import topocaps as tc
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


def with_nan(folder):
    x = COLOUR / 255
    x[3, 2, 1] = np.nan
    np.save(folder / "x.npy", x)
    return folder / "x.npy"
