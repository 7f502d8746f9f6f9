"""Memory-mapped sequences: the same frames as in memory, with little memory."""

import subprocess
import sys
import textwrap
from pathlib import Path

import numpy as np
import pytest
import torch
from own_sources import COLOUR, fortran_npy, h5, npy, pictures, shown, two_steps, with_nan

import topocaps as tc
from topocaps.data import MappedSequences, read


@pytest.fixture
def small_is_large(monkeypatch):
    monkeypatch.setattr("topocaps.data.importing.read.LARGE", 100)


@pytest.mark.parametrize("kind", [npy, fortran_npy, h5])
@pytest.mark.parametrize("how", [{}, {"size": 8, "grey": True, "frames": 3, "stride": 2}])
def test_a_mapped_file_has_the_frames_of_one_in_memory(kind, how, tmp_path, monkeypatch):
    path = kind(tmp_path)
    held = read(path, **how)
    monkeypatch.setattr("topocaps.data.importing.read.LARGE", 100)
    own = read(path, **how)
    mapped = own.sequences
    assert isinstance(mapped, MappedSequences) and mapped.on_host and own.summary["on_host"]
    assert torch.equal(shown(own), shown(held)) and len(mapped) == len(held.sequences)
    assert own.summary == held.summary | {"on_host": True, "kind": own.summary["kind"]}
    assert torch.equal(mapped.show(mapped.fixed()).x, shown(held))
    drawn = mapped.draw(50, torch.Generator()).x
    stacked = mapped.show(mapped.choose(torch.rand(2, 3, mapped.numbers))).x
    assert stacked.shape == (2, 3, mapped.frames, *mapped.frame_shape)
    among = (drawn[:, None] == shown(held)).flatten(2).all(2)
    assert among.any(1).all() and among.any(0).all()
    assert two_steps(mapped)


@pytest.mark.usefixtures("small_is_large")
def test_the_digest_of_a_mapped_file_depends_on_a_sample_and_its_settings(tmp_path):
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
def test_mistakes_in_a_mapped_file_have_messages(tmp_path):
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
from topocaps.data import read, split
from topocaps.training.watching import Silent

def memory(kind):
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(kind)) * 1024

torch.set_num_threads(1)
before = memory("RssAnon")
own = read(sys.argv[1])
assert own.summary["on_host"] and own.summary["sequences"] == int(sys.argv[2]), own.summary
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


def test_training_on_30_gb_needs_little_memory(tmp_path):
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


@pytest.mark.usefixtures("small_is_large")
def test_pictures_of_a_mapped_file_are_shrunk(tmp_path):
    own = read(npy(tmp_path), at_most=8)
    assert own.summary["on_host"] and own.summary["shrunk"] == ["16 x 16"]
    assert torch.equal(shown(own), shown(read(COLOUR, size=8)))
