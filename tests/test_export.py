"""Exported ONNX files compute the same as the model."""

import sys

import pytest
import torch
from conftest import every_topography
from torch import nn

import topocaps as tc
from topocaps.integrations.onnx import Encoder, NotTheSame, Roll, export
from topocaps.models.convolutional import convolutional

FRAME = (1, 4, 4)

# PyTorch's exporter copies its own deprecated classes
quiet = pytest.mark.filterwarnings("ignore:`isinstance.treespec, LeafSpec.`:FutureWarning")


def tvae(topography, **settings):
    return tc.TopographicVAE.mlp(
        frame_shape=FRAME, topography=topography, hidden=(9,), mu=-5.0, **settings
    )


@every_topography
def test_the_traced_modules_equal_the_model(topography, frames):
    model, x = tvae(topography), torch.rand(3, frames, *FRAME)
    t = model.encode(x)
    assert torch.equal(Encoder(model)(x), t)
    for step in (0.0, 1.0, -2.0, 0.25, -1.75, topography.shape[0] + 0.5):
        rolled = t
        for axis in range(len(topography.shape)):
            rolled = model.roll(rolled, step - axis, axis)
        steps = torch.tensor([step - axis for axis in range(len(topography.shape))])
        torch.testing.assert_close(Roll(model)(t, steps), rolled)


@quiet
@pytest.mark.parametrize(
    "model, frames",
    [
        # too large for a dense W
        (tvae(tc.Topography(1, (90,), (3,), 4, velocity=0.5, cyclic=False, causal=True)), 6),
        (convolutional((1, 12, 13), tc.Topography(1, (4, 3), (2, 3), 3), channels=(4, 4)), 4),
        (tvae(tc.Topography(2, (4, 3), window=3, apart=True)), 5),
    ],
    ids=["open and causal", "convolutional torus", "axes apart"],
)
def test_onnxruntime_computes_the_same_as_the_model(model, frames, tmp_path):
    """The three files suffice, for any number of sequences."""
    import onnxruntime

    exported = export(model, tmp_path / "onnx", frames)
    assert set(exported.differences) == {"encoder", "roll", "decoder"}
    assert max(exported.differences.values()) < 1e-5
    assert len(list((tmp_path / "onnx").iterdir())) == 3
    encoder, roll, decoder = (
        onnxruntime.InferenceSession(path)
        for path in (exported.encoder, exported.roll, exported.decoder)
    )
    axes = len(model.topography.shape)
    for sequences in (1, 7):
        x = torch.rand(sequences, frames, *model.x_given_t.frame_shape)
        (t,) = encoder.run(["t"], {"x": x.numpy()})
        with torch.no_grad():
            expected = model.encode(x)
            torch.testing.assert_close(torch.from_numpy(t), expected, rtol=1e-5, atol=1e-5)
            steps = torch.full((axes,), 1.25)
            (moved,) = roll.run(["rolled"], {"t": t[:, :1], "steps": steps.numpy()})
            for axis in range(axes):
                expected = model.roll(expected, 1.25, axis)
            expected = expected[:, :1]
            torch.testing.assert_close(torch.from_numpy(moved), expected, rtol=1e-5, atol=1e-5)
            (shown,) = decoder.run(["x"], {"t": moved})
            expected = model.decode(expected)
            torch.testing.assert_close(torch.from_numpy(shown), expected, rtol=1e-5, atol=1e-5)


@quiet
def test_a_difference_above_the_tolerance_raises(tmp_path):
    with pytest.raises(NotTheSame, match="encoder differs from the model by"):
        export(tvae(tc.Topography(2, (5,), window=3)), tmp_path / "onnx", 4, tolerance=-1.0)
    assert not (tmp_path / "onnx").exists()


class Unfamiliar(nn.Module):
    """A custom network that depends on values, which the exporter does not support."""

    def __init__(self, encoder):
        super().__init__()
        self.encoder = encoder

    def forward(self, x):
        return self.encoder(x if x.sum() > 0 else -x)


@quiet
def test_models_that_cannot_be_exported_are_refused(tmp_path):
    topography = tc.Topography(2, (5,), window=3)
    model = tvae(topography)
    for wrong, frames, words in (
        (tc.PartWhole((1, 28, 28)), 4, "not a PartWhole"),
        (tvae(topography).double(), 4, "only float32"),
        (model, 2, "window 3 is longer"),
        (model, 0, "frames must be"),
    ):
        with pytest.raises(tc.BadInput, match=words):
            export(wrong, tmp_path / "onnx", frames)
    nameless = tc.TopographicVAE(model.z_given_x, model.u_given_x, nn.Identity(), topography)
    with pytest.raises(tc.BadInput, match="frame_shape"):
        export(nameless, tmp_path / "onnx", 4)
    model.z_given_x = Unfamiliar(model.z_given_x)
    with pytest.raises(tc.BadInput, match="cannot export the encoder of this model"):
        export(model, tmp_path / "onnx", 4)
    assert not (tmp_path / "onnx").exists()


@pytest.mark.parametrize("package", ["onnx", "onnxruntime", "onnxscript"])
def test_an_error_names_the_missing_package(package, monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(tc.BadInput, match=rf"package {package}: pip install 'topocaps\[onnx\]'"):
        export(tvae(tc.Topography(2, (5,))), tmp_path, 4)
