"""Muon: what it does to matrices, and which parameters it leaves to Adam."""

import copy

import pytest
import torch
from torch import nn

import topocaps as tc
from topocaps.models.networks import Linear, Norm
from topocaps.training.muon import LayerWeights, orthogonalise

DOUBLE = {"dtype": torch.float64}
SHAPES = [(6, 6), (4, 9), (9, 4), (3, 5, 7), (2, 3, 7, 5), (1, 8)]


def optimiser(model, *, stacked=False, product_type=torch.float64, lr=0.1):
    parameters = list(model.parameters())
    weights = LayerWeights.of(model, stacked, product_type)
    return tc.Muon(lr=lr, betas=(0.8, 0.9)).build([parameters], weights)


def stepped(model, steps=3, **settings):
    """Return the model after steps with random gradients."""
    rule = optimiser(model, **settings)
    generator = torch.Generator().manual_seed(5)
    for _ in range(steps):
        for parameter in model.parameters():
            parameter.grad = torch.randn(
                parameter.shape, generator=generator, dtype=torch.float64
            ).to(parameter.dtype)
        rule.step()
    return model


def orthogonal(n):
    return torch.linalg.qr(torch.randn(n, n, **DOUBLE))[0]


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_singular_values_become_alike_and_singular_vectors_stay(shape):
    torch.manual_seed(0)
    u, s, v = torch.linalg.svd(torch.randn(shape, **DOUBLE), full_matrices=False)
    s = s.clamp_min(0.05 * s.amax(-1, keepdim=True))
    moved = u.mT @ orthogonalise(u @ torch.diag_embed(s) @ v) @ v.mT
    values = moved.diagonal(dim1=-2, dim2=-1)
    torch.testing.assert_close(moved, torch.diag_embed(values))
    assert values.min() > 0.6 and values.max() < 1.3


def test_the_size_and_the_basis_of_a_gradient_do_not_matter():
    torch.manual_seed(1)
    matrix, left, right = torch.randn(4, 7, **DOUBLE), orthogonal(4), orthogonal(7)
    expected = orthogonalise(matrix)
    torch.testing.assert_close(orthogonalise(1e-5 * matrix), expected)
    torch.testing.assert_close(orthogonalise(left @ matrix @ right), left @ expected @ right)
    torch.testing.assert_close(orthogonalise(matrix.mT), expected.mT)


def test_no_gradient_means_no_update():
    assert torch.equal(orthogonalise(torch.zeros(3, 4)), torch.zeros(3, 4))


@pytest.mark.parametrize("shape", [(5, 8), (8, 5), (6, 6)], ids=str)
def test_a_matrix_moves_as_with_the_muon_of_pytorch(shape):
    torch.manual_seed(2)
    ours = nn.Linear(shape[1], shape[0], bias=False)
    theirs = nn.Parameter(ours.weight.detach().clone())
    start = theirs.detach().clone()
    rule = torch.optim.Muon(
        [theirs], lr=0.1, weight_decay=0.0, momentum=0.95, adjust_lr_fn="match_rms_adamw"
    )
    generator = torch.Generator().manual_seed(5)
    mine = optimiser(ours, product_type=torch.bfloat16)
    for _ in range(3):  # no singular value is so small that rounding to bf16 decides its fate
        gradient = torch.eye(*shape) + 0.2 * torch.randn(shape, generator=generator)
        theirs.grad, ours.weight.grad = gradient.clone(), gradient.clone()
        rule.step()
        mine.step()
    moved = theirs.detach() - start
    difference = ours.weight.detach() - theirs.detach()
    assert difference.norm() < 0.05 * moved.norm()


def test_biases_and_other_parameters_move_as_with_adam():
    class Odd(nn.Module):
        def __init__(self):
            super().__init__()
            torch.manual_seed(3)
            self.layer = nn.Linear(3, 2, **DOUBLE)
            self.table = nn.Parameter(torch.randn(4, 4, **DOUBLE))

    ours, theirs = stepped(Odd()), Odd()
    rule = torch.optim.Adam(theirs.parameters(), lr=0.1, betas=(0.8, 0.9))
    generator = torch.Generator().manual_seed(5)
    for _ in range(3):
        for parameter in theirs.parameters():
            parameter.grad = torch.randn(parameter.shape, generator=generator, **DOUBLE)
        rule.step()
    torch.testing.assert_close(ours.table, theirs.table)
    torch.testing.assert_close(ours.layer.bias, theirs.layer.bias)
    assert (ours.layer.weight - theirs.layer.weight).abs().max() > 0.01


@pytest.mark.parametrize(
    "layer",
    [nn.Conv2d(3, 5, 4, bias=False, **DOUBLE), nn.ConvTranspose2d(3, 5, 4, bias=False, **DOUBLE)],
    ids=["convolution", "transposed"],
)
def test_a_convolution_moves_as_its_matrix_of_outputs_by_inputs(layer):
    axis = 1 if isinstance(layer, nn.ConvTranspose2d) else 0
    start, gradient = layer.weight.detach().clone(), torch.randn_like(layer.weight)
    rule = optimiser(layer)
    layer.weight.grad = gradient.clone()
    rule.step()
    matrix = nn.Linear(48, 5, bias=False, **DOUBLE)
    with torch.no_grad():
        matrix.weight.copy_(start.movedim(axis, 0).flatten(1))
    rule = optimiser(matrix)
    matrix.weight.grad = gradient.movedim(axis, 0).flatten(1)
    rule.step()
    torch.testing.assert_close(layer.weight.movedim(axis, 0).flatten(1), matrix.weight)


@pytest.mark.parametrize("shape", [(5, 8), (8, 5)], ids=str)
def test_an_update_has_the_same_size_whatever_the_shape_of_the_weight(shape):
    layer = nn.Linear(shape[1], shape[0], bias=False, **DOUBLE)
    start = layer.weight.detach().clone()
    stepped(layer, steps=1)
    rms = (layer.weight - start).square().mean().sqrt().item()
    assert rms == pytest.approx(0.2 * 0.1, rel=0.3)  # of Adam it is about lr where gradients agree


def test_members_of_a_stack_move_as_they_would_alone():
    torch.manual_seed(4)
    alone = [Linear(6, 4).double() for _ in range(3)]
    together = Linear(6, 4).double()
    together.matrix = nn.Parameter(torch.stack([one.matrix.detach() for one in alone]))
    together.bias = nn.Parameter(torch.stack([one.bias.detach() for one in alone]))
    rules = [optimiser(one) for one in alone]
    rule = optimiser(together, stacked=True)
    for _ in range(3):
        for one, name in ((one, name) for one in alone for name in ("matrix", "bias")):
            one.get_parameter(name).grad = torch.randn_like(one.get_parameter(name))
        for name in ("matrix", "bias"):
            gradients = [one.get_parameter(name).grad for one in alone]
            together.get_parameter(name).grad = torch.stack(gradients)
        for one in (*rules, rule):
            one.step()
    for name in ("matrix", "bias"):
        expected = torch.stack([one.get_parameter(name) for one in alone])
        torch.testing.assert_close(together.get_parameter(name), expected)


def test_normalised_weights_are_left_to_adam():
    weights = LayerWeights.of(Linear(3, 2, Norm.WEIGHT), False, torch.float32)
    assert not weights.output_axis


def test_convolutions_with_groups_are_left_to_adam():
    weights = LayerWeights.of(nn.Conv2d(4, 4, 3, groups=2), False, torch.float32)
    assert not weights.output_axis


def test_an_optimiser_is_copied_loaded_and_takes_a_closure():
    torch.manual_seed(6)
    layer = nn.Linear(3, 2, **DOUBLE)
    rule = optimiser(layer)

    def loss():
        rule.zero_grad()
        value = layer(torch.ones(1, 3, **DOUBLE)).square().sum()
        value.backward()
        return value

    before = rule.step(loss)
    layer_again, rule_again = copy.deepcopy((layer, rule))
    rule.load_state_dict(rule.state_dict())
    assert rule.step(loss) < before
    for parameter in layer_again.parameters():
        parameter.grad = None
    layer_again(torch.ones(1, 3, **DOUBLE)).square().sum().backward()
    rule_again.step()
    for one, other in zip(layer.parameters(), layer_again.parameters(), strict=True):
        assert torch.equal(one, other)


def test_settings_are_recorded_changed_and_read_again():
    training = tc.Training(tc.Muon(lr=2e-3, warmup=10), batch=4)
    assert tc.Training.from_json(training.to_json()) == training
    recipe = tc.recipes.find("letters/rolling").change(["lr=0.002", "optimiser=Muon"])
    assert recipe.training.optimiser == tc.Muon(lr=0.002)
    assert recipe.fingerprint != recipe.change(["momentum=0.9"]).fingerprint
    assert type(recipe).from_json(recipe.to_json()) == recipe


@pytest.mark.parametrize("wrong", [{"lr": 0}, {"momentum": 1}, {"betas": (1, 2)}, {"warmup": -1}])
def test_settings_without_a_meaning_are_refused(wrong):
    with pytest.raises(tc.BadInput, match=next(iter(wrong))):
        tc.Muon(**wrong)
