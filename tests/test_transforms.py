"""Transformed images: what turns, grows and changes colour does so exactly, and one at a time."""

import gzip
import hashlib
import http.server
import os
import struct
import sys
import threading

import pytest
import torch

import topocaps as tc
from topocaps.data.download import NotDownloaded, download
from topocaps.data.transforms import MOTIONS, SCALES, STEPS, TransformedImages, rgb, sample, turned
from topocaps.recipes.data import Mnist


def turn(images, angle, scale):
    return sample(images, turned(*images.shape[-2:], angle, scale))


@pytest.fixture(scope="module")
def digits():
    generator = torch.Generator().manual_seed(0)
    return torch.randint(256, (30, 28, 28), dtype=torch.uint8, generator=generator)


def test_a_quarter_turn_is_counter_clockwise_and_exact():
    image = torch.rand(1, 28, 28)
    turned = turn(image, torch.tensor([torch.pi / 2]), torch.ones(1))
    torch.testing.assert_close(turned, image.rot90(1, (1, 2)), rtol=0, atol=1e-4)


def test_turning_back_and_forth_gives_a_smooth_image_back():
    y, x = torch.meshgrid(*[torch.linspace(-2.5, 2.5, 28)] * 2, indexing="ij")
    blob = torch.exp(-((x - 0.3) ** 2) - 2 * y**2)[None]
    there = turn(blob, torch.tensor([0.7]), torch.tensor([1.2]))
    back = turn(there, torch.tensor([-0.7]), torch.tensor([1 / 1.2]))
    assert (there - blob).abs().max() > 0.3 and (back - blob).abs().max() < 0.04


def test_scaling_makes_things_larger_and_what_comes_in_is_black():
    image = torch.zeros(2, 28, 28)
    image[:, 10:18, 10:18] = 1
    half, twice = turn(image, torch.zeros(2), torch.tensor([0.5, 1.25]))
    assert half.sum() == pytest.approx(16, abs=0.1) and twice.sum() == pytest.approx(100, abs=0.5)
    assert turn(torch.ones(1, 28, 28), torch.zeros(1), torch.tensor([0.5]))[0, 0, 0] == 0


def test_hues_go_round_from_red_over_green_and_blue():
    found = rgb(torch.tensor([0.0, 1 / 6, 1 / 3, 1 / 2, 2 / 3, 5 / 6]))
    expected = [[1, 0, 0], [1, 1, 0], [0, 1, 0], [0, 1, 1], [0, 0, 1], [1, 0, 1]]
    torch.testing.assert_close(found, torch.tensor(expected).float(), rtol=0, atol=1e-5)


def test_one_factor_moves_through_all_its_values_and_the_others_stand_still(digits):
    sequences = TransformedImages(digits)
    batch = sequences.draw(60, torch.Generator().manual_seed(1))
    assert batch.x.shape == (60, STEPS, 3, 28, 28) and batch.factors.shape == (60, STEPS, 3)
    assert batch.x.min() >= 0 and batch.x.max() <= 1
    moves = (batch.factors != batch.factors[:, :1]).any(1)
    assert (moves.sum(1) == 1).all() and moves.any(0).all()
    for factors, moving in zip(batch.factors, moves, strict=True):
        values = factors[:, moving][:, 0]
        assert (values.diff() % STEPS == 1).all() and sorted(values.tolist()) == list(range(STEPS))


def test_frames_are_what_their_factors_say(digits):
    sequences = TransformedImages(digits)
    script = sequences.choose(torch.rand(5, 5, generator=torch.Generator().manual_seed(2)))
    shown = sequences.show(script).x
    for n in range(5):
        for frame in (0, 7):
            image, rotation, scale, hue = script[n, frame].tolist()
            grey = turn(
                digits[image][None] / 255,
                torch.tensor([2 * torch.pi * rotation / STEPS]),
                SCALES[scale][None],
            )
            expected = grey * rgb(torch.tensor(hue / STEPS))[:, None, None]
            torch.testing.assert_close(shown[n, frame], expected, rtol=0, atol=1e-5)
    together = sequences.show(script.reshape(5, 1, STEPS, 4)).x  # any axes in front
    torch.testing.assert_close(together[:, 0], shown)


def test_rotation_and_hue_may_move_together(digits):
    sequences = TransformedImages(digits, MOTIONS["combined"])
    batch = sequences.draw(20, torch.Generator().manual_seed(1))
    assert sequences.names == ("rotation", "hue") and batch.factors.shape == (20, STEPS, 2)
    assert (batch.factors.diff(dim=1) % STEPS == 1).all()
    image, rotation, hue = sequences.fixed()[3, 5].tolist()
    angle = torch.tensor([2 * torch.pi * rotation / STEPS])
    expected = turn(digits[image][None] / 255, angle, torch.ones(1))
    expected = expected * rgb(torch.tensor(hue / STEPS))[:, None, None]
    torch.testing.assert_close(sequences.show(sequences.fixed()[3:4]).x[0, 5], expected)


def test_a_leaning_digit_is_larger_where_it_is_nearer_and_goes_round():
    image = torch.full((1, 28, 28), 255, dtype=torch.uint8)
    sequences = TransformedImages(image, MOTIONS["perspective"])
    script = torch.stack([torch.tensor([0, n, 0]) for n in range(STEPS)])[None]
    red = sequences.show(script).x[0, :, 0] > 0.5
    assert red.sum((1, 2)).min() > 0.3 * 784 and red.sum((1, 2)).max() < 784
    left, right = red[0, :, :14].sum(), red[0, :, 14:].sum()
    opposite = red[STEPS // 2]
    assert left != right and opposite[:, 14:].sum() == left and opposite[:, :14].sum() == right
    assert len({frame.numpy().tobytes() for frame in red}) == STEPS


def test_a_fixed_set_has_every_image_once_and_the_factors_take_turns(digits):
    whole = TransformedImages(digits).balanced(None, seed=0)
    some = TransformedImages(digits).balanced(4, seed=0)
    assert len(whole) == 30 and len(some) == 12 and TransformedImages(digits).fewest == 10
    assert sorted(whole.fixed()[:, 0, 0].tolist()) == list(range(30))
    factors = torch.cat([batch.factors for batch in some.batches(5)])
    assert (factors != factors[:, :1]).any(1).sum(0).tolist() == [4, 4, 4]
    again = TransformedImages(digits).balanced(4, seed=0)
    assert again.digest() == some.digest() != TransformedImages(digits).balanced(4, 1).digest()


def test_models_train_on_them(digits):
    topography = tc.Topography(2, (STEPS,), window=5)
    model = tc.TopographicVAE.mlp((3, 28, 28), topography, hidden=(8,))
    training = tc.Training(tc.Adam(1e-2), batch=4, epochs=20)
    run = tc.fit(model, TransformedImages(digits), training=training)
    assert run.history[-1]["elbo"] > run.history[0]["elbo"] + 100
    found = tc.evaluate(model, TransformedImages(digits).balanced(4, 0))
    assert set(found["capcorr"]) == {"rotation", "scale", "hue"} and found["sequences"] == 12


# MNIST's files ------------------------------------------------------------------------------------


def idx(values):
    return struct.pack(f">{values.ndim + 1}I", 0x800 + values.ndim, *values.shape) + bytes(
        values.flatten().tolist()
    )


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """Files of the right form with few images."""
    module = sys.modules["topocaps.data.mnist"]  # the package has a function of that name
    monkeypatch.setattr(module, "_FILES", {"train": 25, "t10k": 6})
    monkeypatch.setattr(module, "VALIDATION", 5)
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


def test_a_download_goes_on_where_it_was_cut(mirror, tmp_path):
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


def test_mnist_is_downloaded_once_and_only_believed_when_its_sum_is_right(
    folder, mirror, monkeypatch, tmp_path_factory
):
    module = sys.modules["topocaps.data.mnist"]
    monkeypatch.delenv("TOPOCAPS_DATA", raising=False)
    monkeypatch.setenv("TOPOCAPS_CACHE", str(tmp_path_factory.mktemp("cache")))
    monkeypatch.setattr(module, "MIRRORS", (mirror.address,))
    sums = {}
    for plain in module._SUMS:
        files = [folder / plain, folder / f"{plain}.gz"]
        content = next(f for f in files if f.exists()).read_bytes()
        content = content if (folder / plain).exists() else gzip.decompress(content)
        mirror.files[f"{plain}.gz"] = gzip.compress(content)
        sums[plain] = hashlib.sha256(content).hexdigest()[:16]
    with pytest.raises(tc.BadInput, match=r"train-images-idx3-ubyte.gz as downloaded is not MNIST"):
        tc.data.mnist()
    monkeypatch.setattr(module, "_SUMS", sums)
    assert len(tc.data.mnist()[0]) == 20
    asked = len(mirror.asked)
    assert len(tc.data.mnist()[0]) == 20 and len(mirror.asked) == asked


def test_what_is_missing_or_broken_is_named(folder, monkeypatch, tmp_path):
    monkeypatch.delenv("TOPOCAPS_DATA", raising=False)
    monkeypatch.setenv("TOPOCAPS_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(sys.modules["topocaps.data.mnist"], "MIRRORS", ("http://127.0.0.1:9/",))
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


def test_what_only_looks_like_mnist_is_not_called_so(folder, monkeypatch):
    assert Mnist().load(folder).source == "files laid out as MNIST's, which are not MNIST"
    sums = {file.stem: "" for file in folder.iterdir()}  # any sum will do
    monkeypatch.setattr(sys.modules["topocaps.data.mnist"], "_SUMS", sums)
    assert Mnist().load(folder).source == "MNIST"


@pytest.mark.skipif("TOPOCAPS_DATA" not in os.environ, reason="needs MNIST's files")
def test_the_real_mnist_is_what_it_was():
    train, test = tc.data.digits()
    assert train.classes[:5].tolist() == [5, 0, 4, 1, 9] and test.classes[:3].tolist() == [7, 2, 1]
    assert [len(part) for part in tc.data.mnist()] == [48_000, 12_000, 10_000]
    assert train.source == "MNIST"
    assert train.images.float().mean().item() == pytest.approx(33.3184, abs=1e-3)
