"""The paper's networks, their initialisation and their norms."""

import math

import pytest
import torch
from torch import nn

from topocaps.models.networks import Linear, Norm, keep_size, mlp, paper_widths


def test_the_papers_sizes():
    assert paper_widths((3, 28, 28), 324) == (2352, 972, 648)
    assert paper_widths((1, 64, 64), 225) == (4096, 675, 450)


def test_relu_between_layers_and_none_at_the_end():
    assert [type(layer) for layer in mlp([4, 3, 2])] == [Linear, nn.ReLU, Linear]


@pytest.mark.parametrize("inputs", [1, 4, 400])
def test_initialisation_is_uniform_up_to_one_over_root_inputs(inputs):
    layer = mlp([inputs, 20_000])[0]
    for drawn in (layer.weight[:, 0].detach(), layer.bias.detach()):
        scaled = drawn * math.sqrt(inputs)
        assert 0.999 < scaled.abs().max() <= 1 + 1e-6
        assert scaled.var().item() == pytest.approx(1 / 3, rel=0.02)


def test_weight_norm_is_a_length_and_a_direction():
    """Eq. 15: scaling v changes nothing, g is the length of the row."""
    layer = mlp([5, 4], Norm.WEIGHT)[0]
    before = layer.weight.detach().clone()
    torch.testing.assert_close(before.norm(dim=1), layer.length.detach().flatten())
    with torch.no_grad():
        layer.direction.mul_(7)
    torch.testing.assert_close(layer.weight.detach(), before)


def test_projected_rows_have_length_one_from_the_start_and_after_steps():
    network = mlp([5, 4, 3], Norm.PROJECTED)
    for _ in range(2):
        for layer in network[::2]:
            torch.testing.assert_close(layer.weight.norm(dim=1), torch.ones(len(layer.weight)))
            with torch.no_grad():
                layer.matrix.add_(torch.randn_like(layer.matrix))
            layer.project()


def test_names_of_options():
    assert Norm("weight") is Norm.WEIGHT


def test_a_layer_prints_its_inputs_and_outputs():
    assert repr(Linear(3, 5)) == "Linear(3, 5)"
    assert repr(Linear(3, 5, Norm.WEIGHT)) == "Linear(3, 5, norm=weight)"


@pytest.mark.parametrize(
    "layers, inputs",
    [
        ([Linear(900, 800), nn.SiLU(), Linear(800, 5)], (2000, 900)),
        ([nn.Conv2d(32, 64, 4, 2, 1), nn.Conv2d(64, 2, 3)], (8, 32, 32, 32)),
        ([nn.ConvTranspose2d(64, 32, 4, 2, 1), nn.Conv2d(32, 2, 3)], (8, 64, 16, 16)),
    ],
)
def test_hidden_layers_keep_the_scale_of_rectified_values(layers, inputs):
    torch.manual_seed(0)
    network = nn.Sequential(*layers)
    last, bias = layers[-1].weight.clone(), layers[0].bias.clone()
    keep_size(network)
    assert torch.equal(layers[-1].weight, last) and torch.equal(layers[0].bias, bias)
    x = torch.randn(inputs).relu()  # half of the variance of its inputs
    inside = layers[0](x)
    if inside.ndim == 4:
        inside = inside[..., 1:-1, 1:-1]  # pixels at the edge have fewer inputs
    assert inside.var().item() == pytest.approx(1, rel=0.1)
