"""Topographies with apart=True: a sequence moves along one axis, and models sum out which one."""

import itertools
import math

import pytest
import torch
from scipy import stats

import topocaps as tc
from topocaps.metrics import axis_moved
from topocaps.metrics.equivariance import equivariance_errors
from topocaps.models.evidence import summed_out
from topocaps.training.engine import Engine

FRAME = (1, 4, 4)
APART = tc.Topography(2, (4, 3), window=3, apart=True)


def tvae(topography=APART, **settings):
    return tc.TopographicVAE.mlp(
        frame_shape=FRAME, topography=topography, hidden=(9,), mu=-5.0, **settings
    )


def noise():
    """The same numbers every time."""
    generator = torch.Generator().manual_seed(3)
    return lambda like: torch.randn(like.shape, generator=generator)


def test_the_bound_averages_the_likelihood_over_axes():
    """The oracle: each axis by itself, its likelihood of the whole sequence, their mean."""
    model, x = tvae(), torch.rand(3, 6, *FRAME)
    evidence = model.evidence(x, noise())
    drawn, q = noise(), model.posterior(x)
    z, u = (one.mean + one.stddev * drawn(one.mean) for one in (q.z, q.u))
    each = torch.stack(
        [
            model.x_given_t(tc.studentize(z, u, APART, model.mu, axis)).log_prob(x).sum(1)
            for axis in (0, 1)
        ]
    )
    expected = each.logsumexp(0) - math.log(2)
    torch.testing.assert_close(evidence.log_px_given_t.sum(1), expected)
    ours, theirs = (
        torch.autograd.grad(value.sum(), list(model.x_given_t.parameters()), retain_graph=True)
        for value in (evidence.log_px_given_t, expected)
    )
    for one, other in zip(ours, theirs, strict=True):
        torch.testing.assert_close(one, other)


def test_missing_frames_do_not_affect_the_inferred_axis():
    model, x = tvae(), torch.rand(3, 6, *FRAME)
    mask = torch.rand(3, 6) > 0.4
    mask[:, 0] = True
    other = torch.where(mask[..., None, None, None], x, torch.rand_like(x))
    found, same = (model.evidence(one, noise(), mask) for one in (x, other))
    torch.testing.assert_close(found.elbo, same.elbo)
    assert (found.elbo[~mask] == 0).all()
    assert torch.equal(model.encode(x, mask=mask), model.encode(other, mask=mask))
    torch.manual_seed(1)
    some = tc.log_px(model, x, 5, mask)
    torch.manual_seed(1)
    torch.testing.assert_close(tc.log_px(model, other, 5, mask), some)
    whole = torch.ones_like(mask)
    torch.testing.assert_close(
        model.evidence(x, noise(), whole).elbo, model.evidence(x, noise()).elbo
    )


def test_more_samples_tighten_the_bound():
    model, x = tvae(), torch.rand(8, 6, *FRAME)
    bounds = [
        torch.stack([tc.log_px(model, x, samples) for _ in range(20)]).mean() for samples in (1, 20)
    ]
    assert bounds[0] < bounds[1]
    elbo = torch.stack([model(x).elbo.mean() for _ in range(200)]).mean()
    assert bounds[0].item() == pytest.approx(elbo.item(), abs=0.05)


def test_axes_are_weighted_by_their_likelihood():
    log_px = torch.tensor([[[-1.0, -2.0]], [[-2.0, -1.0]], [[-500.0, -900.0]]]).requires_grad_()
    frames, shares = summed_out(log_px)
    torch.testing.assert_close(shares[:, 0], torch.tensor([0.5, 0.5, 0.0]))
    assert frames.sum().item() == pytest.approx(-3 + math.log(2 / 3))
    frames.sum().backward()
    torch.testing.assert_close(log_px.grad[:, 0, 0], shares[:, 0])


def test_draws_of_the_prior_move_along_one_axis_and_are_student_t():
    topography = tc.Topography(1, (6, 6), window=5, apart=True)
    prior = tc.TopographicStudentT(topography, 6)
    t = prior.rsample((4000,))
    scaled = (t[:, 0, 0, 0, 0] * math.sqrt(5)).numpy()
    assert stats.kstest(scaled, stats.t(5).cdf).pvalue > 1e-3
    along = [
        (t[:, 0].square().log() * t[:, 1].roll(-1, 2 + axis).square().log()).mean()
        - t.square().log().mean() ** 2
        for axis in (0, 1)
    ]
    diagonal = (t[:, 0].square().log() * t[:, 1].roll((-1, -1), (2, 3)).square().log()).mean()
    assert min(along) > 4 * (diagonal - t.square().log().mean() ** 2).abs()
    moved = tc.TopographicStudentT(topography, 6, mu=-30.0)
    drawn = moved.rsample((2000,)).mean().item()
    assert moved.mean.flatten()[0].item() == pytest.approx(drawn, rel=0.02)


def test_models_of_a_stack_train_as_they_do_alone():
    sequences = tc.Sequences.of(torch.rand(9, 6, *FRAME))
    together, alone = ([tvae() for _ in range(2)] for _ in range(2))
    for one, other in zip(together, alone, strict=True):
        other.load_state_dict(one.state_dict())
    training = tc.Training(tc.Adam(1e-2), batch=3)
    engine = Engine(together, sequences, [5, 6], training)
    engine.advance(1, 8, 8)
    engine.write_back()
    for seed, one, other in zip((5, 6), together, alone, strict=True):
        engine = Engine([other], sequences, [seed], training)
        engine.advance(1, 8, 8)
        engine.write_back()
        for ours, theirs in zip(one.parameters(), other.parameters(), strict=True):
            torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-5)


def moving_dots(side=5):
    """A dot that goes down, or to the right, from everywhere: (2 · side², side, 1, side, side)."""
    x = torch.zeros(2, side, side, side, 1, side, side)
    for axis, row, column, frame in itertools.product(range(2), *[range(side)] * 3):
        there = (row + frame * (axis == 0)) % side, (column + frame * (axis == 1)) % side
        x[(axis, row, column, frame, 0, *there)] = 1
    return x.flatten(0, 2)


def test_two_motions_are_learned_along_two_axes_and_fill_missing_frames():
    x = moving_dots()
    topography = tc.Topography(1, (5, 5), window=5, apart=True)
    torch.manual_seed(0)
    model = tc.TopographicVAE.mlp(
        frame_shape=(1, 5, 5), topography=topography, hidden=(60,), mu=-30.0, centred=True
    )
    tc.fit(model, x, training=tc.Training(tc.Adam(3e-3), batch=10, epochs=4, epoch_size=5000))
    moved = axis_moved(model.encode(x))[:, 0]
    down, right = moved[:25], moved[25:]
    assert len(set(down.tolist())) == len(set(right.tolist())) == 1
    assert {down[0].item(), right[0].item()} == {0, 1}
    assert (tc.metrics.traversal(model, x).axis[:, 0] == moved).sum() > 45  # of latents drawn
    mask = torch.ones(50, 5, dtype=torch.bool)
    mask[:, 2] = False
    filled = [model.fill(x, mask, axis=axis) for axis in (None, moved[:, None], 1 - moved[:, None])]
    assert torch.equal(filled[0], filled[1]) and not torch.allclose(filled[0], filled[2])


@pytest.mark.parametrize(
    "settings",
    [
        {"shape": (5,), "window": 3},
        {"shape": (5, 5)},
        {"shape": (5, 5), "window": 3, "velocity": 0},
    ],
)
def test_apart_needs_several_axes_that_move(settings):
    with pytest.raises(tc.BadInput, match="apart=True needs at least 2 axes"):
        tc.Topography(1, **settings, apart=True)
    with pytest.raises(tc.BadInput, match="apart must be True or False"):
        tc.Topography(1, (5, 5), window=3, apart="yes")


@pytest.mark.parametrize("reach", [(1, 1), (2, 3), (1, 5)])
def test_the_prior_has_the_moments_of_its_draws(reach):
    prior = tc.TopographicStudentT(tc.Topography(1, (6, 6), reach, 5, apart=True), 6, mu=-30.0)
    drawn = prior.rsample((4000,))
    assert prior.mean.flatten()[0].item() == pytest.approx(drawn.mean().item(), rel=0.02)
    assert prior.variance.flatten()[0].item() == pytest.approx(drawn.var().item(), rel=0.2)


def test_the_equivariance_error_rolls_latents_along_their_own_axis():
    """Untrained, axes are guesses: the error must not be that of guessing twice."""
    model, x = tvae(tc.Topography(2, (5, 5), window=3, apart=True)), torch.rand(40, 5, *FRAME)
    walked = tc.metrics.traversal(model, x)
    mixed = model.select_axis(model.encode_per_axis(x, sample=True), 1 - walked.axis)
    wrong = equivariance_errors(mixed, axis=walked.axis).mean().item()
    assert tc.evaluate(model, x)["equivariance_error"] < 0.97 * wrong


@pytest.mark.parametrize("learned", ["weights", "from-identity"])
def test_w_can_be_learned_with_apart(learned):
    model = tvae(learned=learned, centred=True)
    model(torch.rand(2, 6, *FRAME)).elbo.mean().backward()
    assert all(p.grad is not None for p in model.topography.parameters())


def test_a_stream_predicts_along_the_given_axis():
    model = tvae(tc.Topography(2, (4, 3), window=3, causal=True, apart=True))
    x, stream = torch.rand(5, 6, *FRAME), model.stream()
    for frame in x.unbind(1):
        stream(frame)
    per_axis = [t[:, -1] for t in model.encode_per_axis(x)]
    for axis, t in enumerate(per_axis):
        for named in (axis, axis - 2, [axis, axis]):
            expected = model.decode(model.roll(t, 1, axis))
            torch.testing.assert_close(stream.predict(1, axis=named)[:, 0], expected)
    inferred = model.inferred_axis(x, model.encode_per_axis(x))[:, -1]
    for n, axis in enumerate(inferred.tolist()):
        torch.testing.assert_close(stream.predict()[n], stream.predict(axis=axis)[n])


def test_axes_count_from_either_end_and_are_the_same_for_all_capsules():
    model, x = tvae(), torch.rand(3, 6, *FRAME)
    mask = torch.ones(3, 6, dtype=torch.bool)
    mask[:, 2] = False
    for one, same in (
        (1, -1),
        (0, -2),
        ([1, 1], 1),
        (torch.tensor([[0], [1], [0]]), [[0], [1], [0]]),
    ):
        torch.testing.assert_close(model.fill(x, mask, axis=one), model.fill(x, mask, axis=same))
        some, others = (tc.traverse(model, x, axis=axis) for axis in (one, same))
        torch.testing.assert_close(some.rolled, others.rolled)
        assert torch.equal(some.axis, others.axis) and (some.axis >= 0).all()
    with pytest.raises(tc.BadInput, match="all capsules of a sequence must have the same axis"):
        model.fill(x, mask, axis=[0, 1])


def test_apart_is_recorded_only_if_it_is_set(tmp_path):
    """What is recorded of models whose axes are not apart is what it was."""
    plain = tc.TopographicVAE.mlp(FRAME, tc.Topography(2, (4,), window=3), hidden=(3,))
    assert "apart" not in plain.config["topography"]
    assert tvae().config["topography"]["apart"] is True


def test_an_impossible_axis_has_probability_zero_and_finite_gradients():
    log_px = torch.tensor([[[-1.0, -2.0]], [[-math.inf, -1.0]]]).requires_grad_()
    frames, shares = summed_out(log_px)
    assert frames.sum().item() == pytest.approx(-3 - math.log(2)) and shares[1].item() == 0
    frames.sum().backward()
    assert log_px.grad.isfinite().all()


def test_studentize_needs_an_axis_with_apart():
    z, u = torch.randn(2, 1, 5, 2, 4, 3)
    with pytest.raises(tc.BadInput, match="say along which axis"):
        tc.studentize(z, u, APART)
