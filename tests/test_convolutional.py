"""Convolutional networks keep the same promises as multilayer perceptrons."""

import pytest
import torch
from torch import nn
from torch.distributions import Bernoulli, Normal

import topocaps as tc
from topocaps.models import convolutional
from topocaps.models.base import build
from topocaps.models.convolutional import ConvDecoder, ConvEncoder
from topocaps.models.networks import Linear
from topocaps.training.watching import Silent

TOPOGRAPHY = tc.Topography(3, (6,), (3,), window=3)
SMALL = (4, 8)  # channels

every_size = pytest.mark.parametrize("size", [(28, 28), (29, 31), (28, 70), (64, 64), (128, 128)])
every_kind = pytest.mark.parametrize("kind", [tc.TopographicVAE, tc.VAE])


@every_size
def test_any_leading_axes_and_any_size(size):
    frame = (2, *size)
    encoder, decoder = ConvEncoder(frame, (3, 6)), ConvDecoder(frame, (3, 6))
    x = torch.rand(2, 3, *frame)
    q = encoder(x)
    assert type(q) is Normal and q.mean.shape == q.stddev.shape == (2, 3, 3, 6)
    p = decoder(q.mean)
    assert type(p.base_dist) is Bernoulli
    assert p.mean.shape == x.shape and p.log_prob(x).shape == (2, 3)
    torch.testing.assert_close(encoder(x[0, 0]).mean, q.mean[0, 0], rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(decoder(q.mean[0, 0]).mean, p.mean[0, 0], rtol=1e-4, atol=1e-5)


def test_frames_of_a_batch_are_independent_of_each_other():
    encoder, decoder = ConvEncoder((1, 28, 28), (3, 6)), ConvDecoder((1, 28, 28), (3, 6))
    x = torch.rand(3, 1, 28, 28, requires_grad=True)
    for outputs in (encoder(x).mean, decoder(encoder(x).mean).mean):
        (gradient,) = torch.autograd.grad(outputs[1].sum(), x)
        assert (gradient[1] != 0).any() and (gradient[[0, 2]] == 0).all()


@every_kind
def test_every_parameter_has_a_gradient(kind):
    model = convolutional.convolutional((1, 28, 28), TOPOGRAPHY, kind, SMALL, mu=-5.0)
    model(torch.rand(2, 4, 1, 28, 28)).objective.mean().neg().backward()
    for name, parameter in model.named_parameters():
        assert parameter.grad is not None and parameter.grad.isfinite().all(), name
        assert (parameter.grad != 0).any(), name


def test_networks_have_few_parameters():
    for side in (28, 64, 128):
        frame = (3, side, side)
        ours, papers = (
            sum(p.numel() for p in model.parameters())
            for model in (
                convolutional.convolutional(frame, tc.Topography(18, (18,))),
                tc.TopographicVAE.mlp(frame_shape=frame, topography=tc.Topography(18, (18,))),
            )
        )
        assert ours < papers / 4, (ours, papers)


@every_kind
@pytest.mark.parametrize("likelihood", ["bernoulli", "gaussian"])
def test_a_config_rebuilds_the_model(kind, likelihood):
    topography = tc.Topography(3, (6,), (3,), window=3, cyclic=False)
    centred = kind is tc.TopographicVAE
    model = convolutional.convolutional(
        (1, 30, 28), topography, kind, SMALL, likelihood, mu=-4.0, centred=centred
    )
    again = convolutional.from_config(model.config)
    assert type(again) is kind and again.config == model.config
    assert again.topography == topography and str(again.likelihood) == likelihood
    again.load_state_dict(model.state_dict())
    x = torch.rand(2, 4, 1, 30, 28)
    torch.testing.assert_close(again.decode(again.encode(x)), model.decode(model.encode(x)))


def discs(sequences, frames, side=28):
    """Discs that go round, from another place in every sequence."""
    angle = 2 * torch.pi * (torch.rand(sequences, 1) + torch.arange(frames) / frames)
    grid = torch.arange(side) - side / 2
    down = grid[:, None] - side / 4 * angle.sin()[..., None, None]
    along = grid - side / 4 * angle.cos()[..., None, None]
    return (down.square() + along.square() < side).float()[:, :, None]


def test_a_model_trains_is_saved_and_is_loaded_unchanged(tmp_path):
    torch.manual_seed(0)
    model = convolutional.convolutional(
        (1, 28, 28), TOPOGRAPHY, channels=SMALL, mu=-5.0, centred=True
    )
    x = discs(16, 6)
    run = tc.fit(
        model, x, training=tc.Training(tc.Adam(lr=3e-3)), epochs=10, batch=4,
        out=tmp_path / "run", device="cpu", watcher=Silent(),
    )  # fmt: skip
    bounds = [record["elbo"] for record in run.history]
    assert bounds[-1] > bounds[0] + 100, bounds  # 40 steps gain 150 nats here
    loaded = tc.load(tmp_path / "run")
    assert torch.equal(loaded.encode(x), model.eval().encode(x))


def test_models_train_together_as_they_do_alone():
    def make(seed):
        torch.manual_seed(seed)
        return convolutional.convolutional((1, 28, 28), TOPOGRAPHY, channels=SMALL, mu=-5.0)

    x = discs(4, 3)
    settings = {"training": tc.Training(epochs=1, batch=4), "device": "cpu", "watcher": Silent()}
    alone = tc.fit(make(1), x, seed=5, **settings).model
    together = tc.fit_together([make(0), make(1)], x, seeds=[4, 5], **settings)[1].model
    for one, other in zip(alone.parameters(), together.parameters(), strict=True):
        assert torch.equal(one, other)


@pytest.mark.parametrize(
    "frame, settings, words",
    [
        ((28, 28), {}, "colours, height, width"),
        ((1, 28, 28), {"channels": (4,) * 5}, "can be halved 1 to 4 times, not 5"),
        ((1, 28, 28), {"channels": ()}, "can be halved 1 to 4 times, not 0"),
        ((1, 28, 28), {"channels": (4, 0)}, "channels must be"),
        ((1, 28, 0), {}, "a side of a frame must be"),
        ((1, 28, 28), {"kind": tc.VAE, "centred": True}, "centred=True needs a TopographicVAE"),
        ((1, 28, 28), {"centred": True, "topography": tc.Topography(2, (5,))}, "no mean"),
    ],
)
def test_invalid_settings_are_refused(frame, settings, words):
    settings = {"topography": TOPOGRAPHY} | settings
    with pytest.raises(tc.BadInput, match=words):
        convolutional.convolutional(frame, **settings)


@every_kind
def test_the_layers_of_a_rolling_vae_are_rebuilt_from_a_config(kind):
    settings = dict(channels=SMALL, hidden=12, activation="silu")
    model = convolutional.convolutional((1, 28, 28), TOPOGRAPHY, kind, **settings)
    names = {type(layer).__name__ for layer in model.modules()}
    assert "SiLU" in names and not {"GroupNorm", "ReLU"} & names
    again = build(model.config)
    assert again.config == model.config
    again.load_state_dict(model.state_dict())
    x = torch.rand(2, 4, 1, 28, 28)
    assert torch.equal(again.encode(x), model.encode(x))


def test_unknown_activations_are_refused():
    with pytest.raises(tc.BadInput, match="activation must be relu or silu, not 'tanh'"):
        convolutional.convolutional((1, 28, 28), TOPOGRAPHY, activation="tanh")


@pytest.mark.parametrize("activation", ["relu", "silu"])
def test_initial_weights_of_hidden_layers_depend_on_the_activation(activation):
    torch.manual_seed(0)
    model = convolutional.convolutional(
        (1, 28, 28), TOPOGRAPHY, tc.VAE, (16, 32), hidden=64, activation=activation
    )
    kinds = (Linear, nn.Conv2d, nn.ConvTranspose2d)
    for network in (model.z_given_x, model.x_given_t):
        *hidden, last = (layer for layer in network.modules() if isinstance(layer, kinds))
        assert len(hidden) == 3
        for layer in (*hidden, last):
            fan = layer.weight[0].numel()  # PyTorch takes this for the inputs of every kind
            bound = fan**-0.5
            if activation == "silu" and layer is not last:
                turned = isinstance(layer, nn.ConvTranspose2d)
                inputs = layer.weight[:, 0].numel() / 4 if turned else fan
                bound = (6 / inputs) ** 0.5
            assert 0.9 * bound < layer.weight.abs().max() <= bound
