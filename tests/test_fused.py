"""The fused update trains as autograd does."""

import itertools
from dataclasses import replace

import pytest
import torch
from test_engine import company
from test_training import frames, model, weights

import topocaps as tc
from topocaps.models.networks import GaussianEncoder, Linear
from topocaps.training.engine import Engine
from topocaps.training.stack import Stack
from topocaps.training.updates.fused import FusedUpdate
from topocaps.training.updates.layers import replace_linear_layers, rows_of_layers

TRAININGS = {
    "sgd": tc.Training(tc.Sgd(lr=1e-3), batch=4, precision="bf16"),
    "adam": tc.Training(tc.Adam(lr=1e-3), batch=4, precision="bf16"),
    "clipped": tc.Training(tc.Sgd(lr=1e-3), batch=4, precision="bf16", clip=5.0),
}


@pytest.mark.parametrize("how", TRAININGS)
@pytest.mark.parametrize("members", [1, 4])
@pytest.mark.parametrize("norm", ["none", "weight"])
def test_fused_update_trains_as_autograd(how, members, norm, fused_anywhere):
    """Weights differ by the rounding of bf16, far less than they move."""
    training, sequences = TRAININGS[how], tc.Sequences.of(frames())
    before, factored, plain = (company(norm=norm)[:members] for _ in range(3))
    # Adam takes full steps along gradients that are mostly rounding errors
    near = 0.35 if how == "adam" else 0.15
    elbos = []
    for models, precision in ((factored, "bf16"), (plain, "fp32")):
        engine = Engine(models, sequences, range(members), replace(training, precision=precision))
        sums = engine.advance(1, 20, 1000)
        engine.write_back()
        elbos.append(sums[0]["elbo"])
    assert elbos[0] == pytest.approx(elbos[1], rel=2e-3)
    for first, one, other in zip(before, factored, plain, strict=True):
        for (name, start), a, b in zip(
            first.named_parameters(), one.parameters(), other.parameters(), strict=True
        ):
            assert a.is_contiguous()
            assert (a - b).norm() < near * (b - start).norm() + 1e-6, name


@pytest.mark.parametrize("stop", [None, 4])
@pytest.mark.parametrize("rule", [tc.Sgd(lr=1e-2), tc.Adam(lr=1e-3)], ids=["sgd", "adam"])
@pytest.mark.parametrize("norm", ["none", "weight"])
@pytest.mark.parametrize("hidden", [(13, 21), (16,)])
def test_fused_update_without_rounding_equals_autograd(
    hidden, norm, rule, stop, fused_anywhere, monkeypatch
):
    """Clips are small, widths odd, and the state may be restored."""
    monkeypatch.setattr(torch.Tensor, "bfloat16", lambda tensor: tensor)
    clips, steps = (0.1, None, 0.5), 10

    def models(seed):
        built = []
        for n in range(len(clips)):
            torch.manual_seed(seed + n)
            topography = tc.Topography(2, (6,), window=3)
            built.append(
                tc.TopographicVAE.mlp((1, 4, 4), topography, hidden=hidden, mu=-3.0, norm=norm)
            )
        return built

    def engine(models, precision):
        training = tc.Training(rule, batch=4, precision=precision)
        trainings = [replace(training, clip=clip) for clip in clips]
        return Engine(models, tc.Sequences.of(frames()), range(len(clips)), trainings)

    def trained(precision):
        ours = models(0)
        one = engine(ours, precision)
        one.advance(1, stop or steps, steps)
        if stop:
            states = [{k: v.clone() for k, v in one.state(n).items()} for n in range(len(clips))]
            ours = models(50)
            one = engine(ours, precision)
            for place, state in enumerate(states):
                one.restore(place, state)
            one.advance(stop + 1, steps - stop, steps)
        one.write_back()
        return ours

    for start, one, other in zip(models(0), trained("bf16"), trained("fp32"), strict=True):
        for (name, p), q, r in zip(
            one.named_parameters(), other.parameters(), start.parameters(), strict=True
        ):
            assert (p - q).norm() < 4e-3 * (q - r).norm() + 1e-7, name


def test_a_clipped_gradient_that_is_not_finite_counts_as_zero(fused_anywhere):
    for precision in ("bf16", "fp32"):
        one = model()
        with torch.no_grad():
            one.mu.fill_(torch.inf)
        before = one.z_given_x.network[0].matrix.clone()
        training = tc.Training(tc.Sgd(), batch=4, clip=1.0, precision=precision)
        engine = Engine([one], tc.Sequences.of(frames()), [0], training)
        (found,) = engine.advance(1, 1, 1)
        assert torch.equal(one.z_given_x.network[0].matrix, before)
        assert engine.failures() and found["left_out"] == 1


@pytest.mark.parametrize("precision", ["bf16", "fp32"])
def test_members_of_a_stack_may_have_different_clips(precision, fused_anywhere):
    """The gradient of a member without a clip is not scaled, even if it is not finite."""
    rule = tc.Training(tc.Sgd(lr=1e-3, momentum=0.0), batch=4, precision=precision)
    clips = (None, 1e-3, 1e6)
    models = [model(seed=5) for _ in clips]
    before = [p.clone() for p in models[0].parameters()]
    trainings = [replace(rule, clip=clip) for clip in clips]
    engine = Engine(models, tc.Sequences.of(frames()), [0, 0, 0], trainings)
    assert len(engine.parts) == 1
    engine.advance(1, 1, 1)
    engine.write_back()
    moved = [
        torch.cat([(a - b).flatten() for a, b in zip(one.parameters(), before, strict=True)])
        for one in models
    ]
    assert moved[1].norm().item() == pytest.approx(1e-6, rel=0.02)
    torch.testing.assert_close(moved[0], moved[2])
    with torch.no_grad():
        for one in models:
            one.mu.fill_(torch.inf)
    engine = Engine(models, tc.Sequences.of(frames()), [0, 0, 0], trainings)
    assert [found["left_out"] for found in engine.advance(1, 1, 1)] == [0, 1, 1]
    engine.write_back()
    kept = [bool(one.x_given_t.network[0].matrix.isfinite().all()) for one in models]
    assert kept == [False, True, True]


def test_models_with_shared_or_unused_layers_have_no_rows_per_layer():
    shared, unused = model(), model()
    shared.u_given_x.network = shared.z_given_x.network
    unused.x_given_t.network.never = Linear(3, 3)
    unused.x_given_t.network.forward = lambda t: unused.x_given_t.network[:3](t)
    once = [rows_of_layers(one, 4, 6) for one in (model(), model(kind=tc.VAE))]
    assert [set(rows.values()) for rows in once] == [{24}, {24}]
    assert len(once[0]) == 6 and len(once[1]) == 4
    assert rows_of_layers(shared, 4, 6) is None and rows_of_layers(unused, 4, 6) is None


@pytest.fixture
def as_on_a_gpu(monkeypatch):
    """Use every precision as a GPU would."""
    monkeypatch.setattr(tc.Precision, "on", lambda self, device: self)


BF16 = tc.Training(tc.Sgd(lr=1e-2), batch=4, precision="bf16")


def test_fused_update_does_not_suit_models_that_change_the_step(as_on_a_gpu):
    """It does not support lr_scale, projections, frozen or shared parameters, or other layers."""

    class Slow(tc.TopographicVAE):
        def lr_scale(self, name):
            return 0.0 if name == "mu" else 1.0

    class Small(tc.TopographicVAE):
        def project(self):
            self.mu.data.clamp_(max=0.25)

    class Double(Linear):
        def forward(self, x):
            return 2 * super().forward(x)

    double, frozen, shared = model(), model(), model()
    double.x_given_t.network[0].__class__ = Double
    frozen.z_given_x.requires_grad_(False)
    shared.u_given_x.network[0].matrix = shared.z_given_x.network[0].matrix
    others = (model(kind=Slow), model(kind=Small), double, frozen, shared)
    assert not any(FusedUpdate.suits(Stack([one], 6), BF16) for one in others)
    assert FusedUpdate.suits(Stack([model()], 6), BF16)


def test_encoders_are_paired_only_if_the_result_is_unchanged():
    class Own(tc.TopographicVAE):
        def posterior(self, x):
            return super().posterior(0.5 * x)

    class OwnEncoder(GaussianEncoder):
        def forward(self, x):
            return super().forward(0.5 * x)

    own, encoders, slopes, nested, plain = model(kind=Own), model(), model(), model(), model()
    encoders.z_given_x.__class__ = encoders.u_given_x.__class__ = OwnEncoder
    for slope, encoder in ((0.1, slopes.z_given_x), (0.9, slopes.u_given_x)):
        encoder.network[1] = torch.nn.LeakyReLU(slope)
    for encoder in (nested.z_given_x, nested.u_given_x):
        first, *rest = encoder.network
        encoder.network = torch.nn.Sequential(torch.nn.Sequential(first), *rest)
    for one, paired in ((own, 0), (encoders, 0), (slopes, 0), (nested, 0), (plain, 1)):
        replace_linear_layers(one, 1)
        assert (one.encoders is not None) == paired


def test_directions_of_normalised_weights_move_orthogonally_to_themselves(fused_anywhere):
    """dv is orthogonal to v (Eq. 15), for every row."""
    one = model(norm="weight")
    layers = [layer for layer in one.modules() if isinstance(layer, Linear)]
    with torch.no_grad():
        for layer in layers:  # so that g differs from |v|
            layer.length.mul_(1.7)
            layer.direction.mul_(0.6)
    before = [layer.direction.clone() for layer in layers]
    training = tc.Training(tc.Sgd(lr=0.1, momentum=0.0), batch=4, precision="bf16")
    Engine([one], tc.Sequences.of(frames()), [0], training).advance(1, 1, 1)
    for layer, v in zip(layers, before, strict=True):
        moved = layer.direction - v
        along = (moved * v).sum(-1).abs() / (moved.norm(dim=-1) * v.norm(dim=-1) + 1e-9)
        assert moved.norm() > 0 and along.max() < 0.05


@pytest.mark.parametrize("how", ["sgd", "adam"])
@pytest.mark.parametrize("norm", ["none", "weight"])
def test_both_updates_can_resume_from_one_state(how, norm, fused_anywhere):
    training, sequences = TRAININGS[how], tc.Sequences.of(frames())
    factored = Engine(company(norm=norm), sequences, range(4), training)
    factored.advance(1, 5, 1000)
    plain = Engine(company(norm=norm), sequences, range(4), replace(training, precision="fp32"))
    for place in range(4):
        plain.restore(place, {k: v.clone() for k, v in factored.state(place).items()})
    assert plain.state(2).keys() == factored.state(2).keys()
    for engine in (plain, factored):
        engine.sums = engine.advance(6, 5, 1000)
    for one, other in zip(plain.sums, factored.sums, strict=True):
        assert one["elbo"] == pytest.approx(other["elbo"], rel=1e-2)
    again = Engine(company(norm=norm), sequences, range(4), training)
    again.restore(1, factored.state(1))
    for name, value in factored.state(1).items():
        assert torch.equal(again.state(1)[name], value), name


@pytest.mark.parametrize("norm", ["none", "weight"])
def test_trained_parameters_do_not_share_storage(norm, monkeypatch):
    """Other libraries save the whole storage: it must hold no other parameter and no moments."""
    monkeypatch.setattr("topocaps.training.settings.multiplies_bf16", lambda device: True)
    built = tc.TopographicVAE.mlp(
        (1, 8, 8), tc.Topography(2, (5,), (3,), window=3), hidden=(32, 16), norm=norm
    )
    training = tc.Training(tc.Sgd(), batch=4, epochs=1, precision="bf16")
    engine = Engine([built], tc.Sequences.of(torch.rand(8, 5, 1, 8, 8)), [0], training)
    assert isinstance(engine.parts[0].update, FusedUpdate)
    engine.advance(1, 2, 2)
    engine.write_back()
    held = [parameter.untyped_storage() for parameter in built.parameters()]
    assert len({one.data_ptr() for one in held}) == len(held)
    sizes = [4 * parameter.numel() for parameter in built.parameters()]
    assert [one.nbytes() for one in held] == sizes


@pytest.mark.parametrize("norm", ["none", "weight"])
@pytest.mark.parametrize("how", TRAININGS)
def test_updates_of_a_few_rows_at_a_time_equal_one_update(how, norm, fused_anywhere, monkeypatch):
    found = []
    for rows in (2**30, 1, 3):
        monkeypatch.setattr("topocaps.training.updates.fused.CACHED", 1)
        monkeypatch.setattr("topocaps.training.updates.fused.MIN_ROWS", rows)
        models = company(norm=norm)
        engine = Engine(models, tc.Sequences.of(frames()), range(4), TRAININGS[how])
        engine.advance(1, 3, 1000)
        engine.write_back()
        found.append(models)
    for whole, *banded in zip(*found, strict=True):
        for one, (name, value) in itertools.product(banded, weights(whole).items()):
            torch.testing.assert_close(weights(one)[name], value, rtol=1e-3, atol=1e-5)
