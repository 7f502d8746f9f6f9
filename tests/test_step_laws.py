"""Training steps against torch.optim, autograd and explicit gradients.

They agree to nine digits in float64, except fused updates, which compute in float32.
"""

import copy
import math

import pytest
import torch
from references import DOUBLE, assert_same
from torch import nn
from torch.nn.utils.parametrizations import weight_norm

import topocaps as tc
from topocaps.models.networks import Linear, Norm
from topocaps.training import Adam, Sgd, Training
from topocaps.training.engine import Engine
from topocaps.training.loop import train
from topocaps.training.muon import LayerWeights
from topocaps.training.stack import Stack
from topocaps.training.updates.autograd import AutogradUpdate
from topocaps.training.updates.base import clip_factor, max_relative_difference, scale_gradient
from topocaps.training.updates.fused import (
    FusedUpdate,
    apply_update,
    radial_squared_norm,
    squared_norm,
)
from topocaps.training.watching import Silent

RULES = {
    "sgd": Sgd(lr=0.3, momentum=0.8),
    "sgd without momentum": Sgd(lr=0.3, momentum=0.0),
    "adam": Adam(lr=0.02),
    "adam, short memory": Adam(lr=0.02, betas=(0.5, 0.7)),
}
every_rule = pytest.mark.parametrize("rule", RULES.values(), ids=RULES)


def reference_optimiser(rule, parameters, lr):
    if isinstance(rule, Sgd):
        return torch.optim.SGD(parameters, lr, rule.momentum, fused=False, foreach=False)
    return torch.optim.Adam(parameters, lr, rule.betas, 1e-8, fused=False, foreach=False)


# Optimisers ---------------------------------------------------------------------------------------


@every_rule
def test_an_update_is_that_of_torch_optim(rule):
    """With gradients of all sizes, down to Adam's epsilon, and rates of the members' own."""
    rates = torch.tensor([rule.lr, 3 * rule.lr], **DOUBLE)
    weight = torch.randn(2, 3, 4, **DOUBLE)
    moments = [torch.zeros_like(weight) for _ in rule.MOMENTS]
    built = [nn.Parameter(member.clone()) for member in weight]
    wanted = [nn.Parameter(member.clone()) for member in weight]
    ours = [rule.build([[one]], LayerWeights({}, False, torch.float64)) for one in built]
    theirs = [
        reference_optimiser(rule, [one], lr) for one, lr in zip(wanted, rates.tolist(), strict=True)
    ]
    for optimiser, lr in zip(ours, rates.tolist(), strict=True):
        optimiser.param_groups[0]["lr"] = lr
    for step in range(1, 6):
        gradient = torch.randn(2, 3, 4, **DOUBLE) * 10.0 ** -torch.arange(0, 12, **DOUBLE).view(
            3, 4
        )
        for one, other, part in zip(built, wanted, gradient, strict=True):
            one.grad, other.grad = part.clone(), part.clone()
        for optimiser in (*ours, *theirs):
            optimiser.step()
        size, spread = rule.step_size(rates, torch.tensor(step, **DOUBLE))
        apply_update(rule, weight, gradient, moments, size, spread)
        assert_same(torch.stack([*built]).detach(), torch.stack([*wanted]).detach())
        assert_same(weight, torch.stack([*wanted]).detach())


@pytest.mark.parametrize("warmup", [0, 1, 5])
def test_adams_rate_is_a_linear_warm_up_times_a_cosine(warmup):
    rule, parameter = Adam(lr=0.3, warmup=warmup), nn.Parameter(torch.zeros(()))
    rates = []
    for of in (
        lambda rule: torch.optim.lr_scheduler.CosineAnnealingLR(rule, 40),
        lambda rule: torch.optim.lr_scheduler.LinearLR(rule, 1 / (warmup + 1), 1, max(warmup, 1)),
    ):
        optimiser = torch.optim.SGD([parameter], 1.0)
        schedule, found = of(optimiser), []
        for _ in range(40):
            found.append(optimiser.param_groups[0]["lr"])
            optimiser.step()
            schedule.step()
        rates.append(found)
    wanted = [0.3 * cosine * linear for cosine, linear in zip(*rates, strict=True)]
    found = [rule.lr_at(step, 40) for step in range(40)]
    assert found == pytest.approx(wanted, rel=1e-9, abs=1e-12)


# Clipping -----------------------------------------------------------------------------------------


def test_gradients_are_brought_to_the_longest_allowed():
    gradient = torch.randn(5, 30, **DOUBLE)
    gradient[3, 2], gradient[4, 7] = math.inf, math.nan
    clips = torch.tensor([1.0, 100.0, math.inf, 1.0, math.inf], **DOUBLE)
    factor = clip_factor(gradient.unflatten(1, (3, 10)).square().sum(2), clips)
    length = gradient[0].norm().item()
    assert_same(factor, torch.tensor([1 / length, 1.0, 1.0, 0.0, 1.0], **DOUBLE))
    clipped = scale_gradient(gradient, factor)
    assert_same(clipped[0].norm(), torch.ones((), **DOUBLE))
    assert torch.equal(clipped[1:3], gradient[1:3]) and not clipped[3].any()


def test_the_square_of_a_gradient_is_found_from_its_factors():
    """|dyᵀ x|², and what goes along directions v: |by v|²."""
    x, dy = torch.randn(3, 9, 5), torch.randn(3, 9, 7)
    gradient = torch.einsum("mro,mri->moi", dy.double(), x.double())
    found = squared_norm(x, dy).double()
    torch.testing.assert_close(found, gradient.square().sum((1, 2)), rtol=1e-5, atol=0)
    by, v = torch.randn(3, 7, **DOUBLE), torch.randn(3, 7, 4, 5, **DOUBLE)
    squares = v.square().sum(-1).mT  # parts of rows
    assert_same(radial_squared_norm(by, squares), (by[..., None, None] * v).square().sum((1, 2, 3)))


@pytest.mark.parametrize("members", [1, 3])
def test_how_far_gradients_differ_is_the_worst_tensor_of_the_worst_member(members):
    some = [torch.randn(members, 4, 5, **DOUBLE), torch.randn(members, 6, **DOUBLE)]
    others = [one + 0.01 * torch.randn_like(one) for one in some]
    wanted = max(
        ((a - b).norm() / b.norm()).item()
        for one, other in zip(some, others, strict=True)
        for a, b in zip(one, other, strict=True)
    )
    found = max_relative_difference(some, others, members)
    assert found == pytest.approx(wanted, rel=1e-5)


# Layers -------------------------------------------------------------------------------------------


def test_layers_of_a_stack_equal_the_layers_of_its_members():
    layers = [Linear(4, 3).double() for _ in range(2)]
    stack = copy.deepcopy(layers[0])
    stack.matrix, stack.bias = (
        nn.Parameter(torch.stack([getattr(one, name).detach() for one in layers]))
        for name in ("matrix", "bias")
    )
    x, cotangent = torch.randn(2, 5, 6, 4, **DOUBLE), torch.randn(2, 5, 6, 3, **DOUBLE)
    x.requires_grad_()
    found = stack(x)
    gradients = torch.autograd.grad(found, (x, stack.matrix, stack.bias), cotangent)
    for n, layer in enumerate(layers):
        wanted = nn.functional.linear(x[n], layer.matrix, layer.bias)
        assert_same(found[n], wanted)
        each = torch.autograd.grad(wanted, (x, layer.matrix, layer.bias), cotangent[n])
        assert_same(gradients[0][n], each[0][n])
        assert_same(gradients[1][n], each[1])
        assert_same(gradients[2][n], each[2])


def test_weight_norm_is_that_of_torch():
    """Eq. 15: values, and gradients of lengths and directions."""
    ours, plain = Linear(4, 3, Norm.WEIGHT).double(), nn.Linear(4, 3).double()
    torch.testing.assert_close(ours.weight, ours.direction, rtol=1e-6, atol=0)  # as it was drawn
    theirs = weight_norm(plain)
    length, direction = theirs.parametrizations.weight.parameters()
    with torch.no_grad():
        ours.length.mul_(1.7)
        length.copy_(ours.length)
        direction.copy_(ours.direction)
        theirs.bias.copy_(ours.bias)
    x, cotangent = torch.randn(5, 4, **DOUBLE), torch.randn(5, 3, **DOUBLE)
    assert_same(ours(x), theirs(x))
    for found, wanted in zip(
        torch.autograd.grad(ours(x), (ours.length, ours.direction, ours.bias), cotangent),
        torch.autograd.grad(theirs(x), (length, direction, theirs.bias), cotangent),
        strict=True,
    ):
        assert_same(found, wanted)


# Whole steps --------------------------------------------------------------------------------------

FRAMES, BATCH = 5, 4
TOPOGRAPHY = tc.Topography(2, (4,), (3,), window=3)


class SlowMu(tc.TopographicVAE):
    """A model with a smaller learning rate for one of its parameters."""

    def lr_scale(self, name):
        return 0.25 if name == "mu" else 1.0


def model_of(seed, kind=SlowMu, **settings):
    torch.manual_seed(seed)
    settings = {"hidden": (7,), "mu": -2.0, "sparsity": 0.3} | settings
    return kind.mlp((1, 2, 3), TOPOGRAPHY, **settings)


def sequences_of(dtype=torch.float64, missing=False):
    x = torch.rand(6, FRAMES, 1, 2, 3, dtype=dtype)
    order = torch.arange(6 * FRAMES).reshape(6, FRAMES)
    there = torch.arange(6 * FRAMES) % 7 > 1 if missing else None
    return tc.Sequences(x.flatten(0, 1), order, present=there)


def drawn_for(model, members, dtype=torch.float64):
    """Return uniform numbers that choose sequences, and noise; several members come first."""
    front = (members, BATCH) if members > 1 else (BATCH,)
    noise = [torch.randn(*front, FRAMES, *shape, dtype=dtype) for shape in model.noise_shapes]
    return torch.rand(*front, 3, **DOUBLE), noise


@pytest.mark.parametrize("missing", [False, True])
@pytest.mark.parametrize("norm", ["none", "weight", "projected"])
@every_rule
def test_a_step_descends_the_gradient_of_the_mean_objective(rule, norm, missing):
    """Three steps equal those of autograd and torch.optim, for several clips and missing frames."""
    clips = (0.05, None, 1e3)
    members = [model_of(seed, norm=norm).double() for seed in range(3)]
    wanted = copy.deepcopy(members)
    sequences = sequences_of(missing=missing)
    update = AutogradUpdate(Stack(members, FRAMES), Training(rule, batch=BATCH), clips)
    optimisers = []
    for one in wanted:
        groups = [
            {"params": [p], "lr": one.lr_scale(name) * rule.lr}
            for name, p in one.named_parameters()
        ]
        optimisers.append(reference_optimiser(rule, groups, rule.lr))
    update.set_lr(rule.lr)
    for _ in range(3):
        uniform, noise = drawn_for(wanted[0], 3)
        terms, _ = update.step(sequences, uniform, noise)
        for n, (one, optimiser, clip) in enumerate(zip(wanted, optimisers, clips, strict=True)):
            shown = sequences.show(sequences.choose(uniform[n]))
            left = iter([number[n] for number in noise])
            mask = torch.ones(BATCH, FRAMES, dtype=bool) if shown.mask is None else shown.mask
            found = one.evidence(shown.x, lambda like, left=left: next(left), mask)
            optimiser.zero_grad()
            (-found.objective[mask].mean()).backward()
            length = torch.cat([p.grad.flatten() for p in one.parameters()]).norm()
            if clip is not None and length > clip:
                for p in one.parameters():
                    p.grad.mul_(clip / length)
            optimiser.step()
            one.project()
            for value, name in zip(terms[n], one.terms, strict=True):
                assert_same(value, getattr(found, name)[mask].mean().detach())
    update.stack.write_back()
    for one, other in zip(members, wanted, strict=True):
        for (name, p), q in zip(one.named_parameters(), other.parameters(), strict=True):
            assert_same(p, q, name)


@pytest.fixture
def unrounded(monkeypatch, fused_anywhere):
    """Make fused updates compute without rounding to bf16."""
    monkeypatch.setattr(torch.Tensor, "bfloat16", lambda tensor: tensor)


@pytest.mark.parametrize("clip", [None, 0.05])
@pytest.mark.parametrize("norm", ["none", "weight"])
@pytest.mark.parametrize("members", [1, 2])
def test_a_fused_step_equals_an_autograd_step(members, norm, clip, unrounded):
    """All parameters move the same to four digits; a clipped step is as long as its clip."""
    sequences, lr = sequences_of(torch.float32), 0.1 if clip is None else 0.1 / clip
    uniform, noise = drawn_for(model_of(0), members, torch.float32)
    moved = []
    for kind, precision in ((FusedUpdate, "bf16"), (AutogradUpdate, "fp32")):
        training = Training(Sgd(momentum=0.0), batch=BATCH, precision=precision)
        models = [model_of(seed, tc.TopographicVAE, norm=norm) for seed in range(members)]
        before = [[p.detach().clone() for p in one.parameters()] for one in models]
        update = kind(Stack(models, FRAMES), training, [clip] * members)
        update.set_lr(lr)
        update.step(sequences, uniform, noise)
        update.stack.write_back()
        moved.append(
            [
                {name: p - q for (name, p), q in zip(one.named_parameters(), start, strict=True)}
                for one, start in zip(models, before, strict=True)
            ]
        )
    for fused, plain in zip(*moved, strict=True):
        for name, motion in plain.items():
            assert (fused[name] - motion).norm() < 1e-4 * motion.norm(), name
        for one in (fused, plain) if clip else ():
            length = torch.cat([motion.flatten() for motion in one.values()]).norm()
            assert length.item() == pytest.approx(lr * clip, rel=1e-5)


@pytest.mark.parametrize("norm", ["none", "weight"])
def test_a_fused_step_updates_copies_and_squared_norms_of_weights(norm, unrounded):
    """They equal those that ``refresh`` computes from the weights."""
    training = Training(Sgd(), batch=BATCH, precision="bf16")
    model = model_of(0, tc.TopographicVAE, norm=norm)
    update = FusedUpdate(Stack([model], FRAMES), training)
    update.set_lr(0.1)
    update.step(sequences_of(torch.float32), *drawn_for(model_of(0), 1, torch.float32))
    for layer in update.layers:
        kept = [layer.weight_bf16.clone(), *([layer.squares.sum(1)] if layer.lengths else [])]
        layer.refresh()
        anew = [layer.weight_bf16, *([layer.squares.sum(1)] if layer.lengths else [])]
        for one, other in zip(kept, anew, strict=True):
            torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-7)


# Records ------------------------------------------------------------------------------------------


class Records(Silent):
    """A watcher that keeps the terms of every step."""

    def __init__(self):
        self.steps = []

    def step(self, step, terms):
        self.steps.append({name: value for name, value in terms.items() if name != "is_bound"})


def test_the_record_of_an_epoch_is_the_mean_of_its_steps():
    watcher, one = Records(), model_of(0, tc.TopographicVAE)
    sequences = sequences_of(torch.float32)
    training = Training(Sgd(lr=1e-2), batch=BATCH, epochs=3, epoch_size=5 * BATCH)
    by_hand = Engine([copy.deepcopy(one)], sequences, [0], training)
    terms = by_hand.advance(1, 1, 15)[0]
    (progress,) = train([one], sequences, training, watcher=watcher)
    for name in one.terms:
        assert watcher.steps[0][name] == pytest.approx(terms[name], rel=1e-9)
    assert [record["epoch"] for record in progress.history] == [1, 2, 3]
    assert [record["step"] for record in progress.history] == [5, 10, 15]
    for record in progress.history:
        steps = watcher.steps[record["step"] - 5 : record["step"]]
        for name in one.terms:
            mean = sum(step[name] for step in steps) / 5
            assert record[name] == pytest.approx(mean, rel=1e-9)
