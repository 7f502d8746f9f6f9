"""The files of MNIST: reading, downloads, checks and splits; and recipes on MNIST."""

import gzip
import hashlib
import http.server
import os
import struct
import threading

import pytest
import torch

import topocaps as tc
from topocaps.data import mnist_files
from topocaps.data.download import NotDownloaded, download
from topocaps.papers.recipes import find
from topocaps.study.data import Mnist
from topocaps.study.evaluation import topographic


def idx(values):
    return struct.pack(f">{values.ndim + 1}I", 0x800 + values.ndim, *values.shape) + bytes(
        values.flatten().tolist()
    )


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """Files of the right form with few images."""
    monkeypatch.setattr(mnist_files, "_FILES", {"train": 25, "t10k": 6})
    monkeypatch.setattr(mnist_files, "VALIDATION", 5)
    for which, count in {"train": 25, "t10k": 6}.items():
        images = torch.arange(count * 784).reshape(count, 28, 28) % 251
        plain, packed = idx(images), gzip.compress(idx(torch.arange(count) % 10))
        (tmp_path / f"{which}-images-idx3-ubyte").write_bytes(plain)
        (tmp_path / f"{which}-labels-idx1-ubyte.gz").write_bytes(packed)
    return tmp_path


def test_mnist_is_read_packed_or_not_and_split(folder, monkeypatch):
    train, validation, test = tc.data.mnist(folder)
    assert [len(train), len(validation), len(test)] == [20, 5, 6]
    images, classes = tc.data.digits(folder)[0].images, tc.data.digits(folder)[0].classes
    assert torch.equal(images[:20], train.images) and torch.equal(images[20:], validation.images)
    assert classes.tolist() == [n % 10 for n in range(25)]
    monkeypatch.setenv("TOPOCAPS_DATA", str(folder))
    assert tc.data.mnist()[2].digest() == test.digest()


class Mirror(http.server.BaseHTTPRequestHandler):
    """Serves a folder, resumes, and breaks off after some bytes where it is told to."""

    def do_GET(self):
        name = self.path.rsplit("/", 1)[-1]
        self.server.asked.append((name, self.headers.get("Range")))
        content = self.server.files.get(name)
        if content is None:
            self.send_error(404)
            return
        wanted = self.headers.get("Range")
        first = int(wanted[6:-1]) if wanted else 0
        self.send_response(206 if wanted else 200)
        self.send_header("Content-Length", str(len(content) - first))
        self.end_headers()
        self.wfile.write(content[first : self.server.breaks or None])

    def log_message(self, *args):
        pass


@pytest.fixture
def mirror():
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Mirror) as server:
        server.files, server.asked, server.breaks = {}, [], None
        server.address = f"http://127.0.0.1:{server.server_port}/"
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield server
        server.shutdown()
        thread.join()


def test_an_interrupted_download_is_resumed(mirror, tmp_path):
    content = bytes(range(256)) * 1000
    mirror.files["a.bin"], mirror.breaks = content, 100_000
    with pytest.raises(NotDownloaded, match=r"got 100000 of 256000 bytes|IncompleteRead"):
        download([mirror.address], "a.bin", tmp_path)
    mirror.breaks = None
    found = download([f"{mirror.address}nowhere/", mirror.address], "a.bin", tmp_path)
    assert found.read_bytes() == content and ("a.bin", "bytes=100000-") in mirror.asked
    assert not (tmp_path / "a.bin.part").exists()
    with pytest.raises(NotDownloaded, match="404"):
        download([mirror.address], "b.bin", tmp_path)


def test_mnist_is_downloaded_once_and_its_checksum_is_checked(
    folder, mirror, monkeypatch, tmp_path_factory
):
    monkeypatch.delenv("TOPOCAPS_DATA", raising=False)
    monkeypatch.setenv("TOPOCAPS_CACHE", str(tmp_path_factory.mktemp("cache")))
    monkeypatch.setattr(mnist_files, "MIRRORS", (mirror.address,))
    sums = {}
    for plain in mnist_files._SUMS:
        files = [folder / plain, folder / f"{plain}.gz"]
        content = next(f for f in files if f.exists()).read_bytes()
        content = content if (folder / plain).exists() else gzip.decompress(content)
        mirror.files[f"{plain}.gz"] = gzip.compress(content)
        sums[plain] = hashlib.sha256(content).hexdigest()[:16]
    with pytest.raises(tc.BadInput, match=r"train-images-idx3-ubyte.gz as downloaded is not MNIST"):
        tc.data.mnist()
    monkeypatch.setattr(mnist_files, "_SUMS", sums)
    assert len(tc.data.mnist()[0]) == 20
    asked = len(mirror.asked)
    assert len(tc.data.mnist()[0]) == 20 and len(mirror.asked) == asked


def test_missing_and_broken_files_are_named(folder, monkeypatch, tmp_path):
    monkeypatch.delenv("TOPOCAPS_DATA", raising=False)
    monkeypatch.setenv("TOPOCAPS_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(mnist_files, "MIRRORS", ("http://127.0.0.1:9/",))
    with pytest.raises(tc.BadInput, match=r"--data, or in .TOPOCAPS_DATA .train-images-idx3-ubyte"):
        tc.data.mnist()
    images = folder / "train-images-idx3-ubyte"
    good = images.read_bytes()
    for broken in (good[:100], b"", good[:3] + b"\7" + good[4:]):
        images.write_bytes(broken)
        with pytest.raises(tc.BadInput, match="train-images-idx3-ubyte cannot be read"):
            tc.data.mnist(folder)
    images.write_bytes(good)
    labels = folder / "train-labels-idx1-ubyte.gz"
    labels.write_bytes(labels.read_bytes()[:-9])
    with pytest.raises(tc.BadInput, match=r"train-labels-idx1-ubyte.gz cannot be read"):
        tc.data.mnist(folder)
    labels.unlink()
    with pytest.raises(tc.BadInput, match=r"there is no train-labels-idx1-ubyte .or .gz. in"):
        tc.data.mnist(folder)
    for wrong in (torch.arange(7), torch.arange(25)):  # too few; a class 24
        labels.write_bytes(gzip.compress(idx(wrong)))
        with pytest.raises(tc.BadInput, match="is not MNIST: train should have 25 images"):
            tc.data.mnist(folder)
    labels.unlink()
    images.unlink()
    with pytest.raises(tc.BadInput, match="no train-images-idx3-ubyte, no train-labels-idx1-ubyte"):
        tc.data.mnist(folder)


def test_files_laid_out_like_mnist_are_not_called_mnist(folder, monkeypatch):
    assert Mnist().load(folder).source == "files laid out as MNIST's, which are not MNIST"
    sums = {file.stem: "" for file in folder.iterdir()}  # any sum will do
    monkeypatch.setattr(mnist_files, "_SUMS", sums)
    assert Mnist().load(folder).source == "MNIST"


@pytest.mark.skipif("TOPOCAPS_DATA" not in os.environ, reason="needs MNIST's files")
def test_the_published_mnist_is_unchanged():
    train, test = tc.data.digits()
    assert train.classes[:5].tolist() == [5, 0, 4, 1, 9] and test.classes[:3].tolist() == [7, 2, 1]
    assert [len(part) for part in tc.data.mnist()] == [48_000, 12_000, 10_000]
    assert train.source == "MNIST"
    assert train.images.float().mean().item() == pytest.approx(33.3184, abs=1e-3)


def test_a_recipe_chooses_the_centre_and_records_it(folder):
    recipe = find("mnist/letter/vae")
    assert recipe.to_json()["data"]["centre"] is None
    about_pixel = recipe.change(["centre=14"])
    assert about_pixel.to_json()["data"]["centre"] == 14.0
    assert about_pixel.fingerprint != recipe.fingerprint
    assert about_pixel.fingerprint == recipe.change(["centre=14.0"]).fingerprint
    splits = about_pixel.data.load(folder)
    assert splits.train.centre == splits.held_out.centre == splits.validation.centre == 14.0
    assert Mnist().load(folder).train.centre is None


def test_generalisation_is_measured_about_the_pixel_of_training(folder, monkeypatch):
    measured = []

    def evaluate(model, sequences, **settings):
        measured.append(sequences)
        return dict.fromkeys(("traversal_gain", "traversal", "equivariance_error"))

    monkeypatch.setattr(topographic, "evaluate", evaluate)
    for data, centre in ((Mnist(), None), (Mnist(centre=14), 14.0)):
        topographic.generalisation(None, find("mnist/letter/vae"), data, folder)
        assert measured[-1].motion.name == "combined" and measured[-1].centre == centre
