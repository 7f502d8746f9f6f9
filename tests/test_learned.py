"""Learned topographies: their initial values, and their training."""

import itertools
import math

import pytest
import torch

import topocaps as tc
from topocaps.latents.learned import LearnedTopography
from topocaps.models.base import build
from topocaps.study.figures import learned as figure_of

FRAME = (1, 4, 4)
STARTS = {
    "tvae": tc.Topography(3, (6,), (3,), window=5),
    "even": tc.Topography(2, (5,), (2,), window=4),
    "bubble": tc.Topography(2, (6,), (3,), window=3, velocity=0),
    "half": tc.Topography(2, (6,), (1,), window=5, velocity=0.5),
    "whole": tc.Topography(2, (7,), (1,), window=7, velocity=2),
    "causal": tc.Topography(2, (6,), (2,), window=4, velocity=0.5, causal=True),
    "causal bubble": tc.Topography(2, (6,), (1,), window=7, velocity=0, causal=True),
    "without corners": tc.Topography(2, (6,), (3,), window=5, corners=False),
    "open": tc.Topography(2, (6,), (3,), window=5, cyclic=False),
    "open, half": tc.Topography(2, (5,), (1,), window=3, velocity=-0.5, cyclic=False),
    "open, causal": tc.Topography(2, (5,), (2,), window=4, cyclic=False, causal=True),
    "map": tc.Topography(1, (4, 3), (3, 2)),
    "maps that hold still": tc.Topography(2, (3, 4), (3, 1), window=3, velocity=0),
    "two axes": tc.Topography(2, (3, 5), (1, 3), window=4),
    "three axes": tc.Topography(1, (3, 2, 4), (1, 1, 1), window=3, velocity=0.5),
}


every_start = pytest.mark.parametrize("start", STARTS.values(), ids=STARTS)


def has_velocities(start):
    return start.corners and start.cyclic and len(start.shape) == 1


@every_start
@pytest.mark.parametrize("learned", ["weights", "velocity"])
def test_it_starts_as_the_given_topography(start, learned):
    u2 = torch.rand(4, 7, start.capsules, *start.u_shape)
    if learned == "velocity" and not has_velocities(start):
        with pytest.raises(tc.BadInput, match="learned=velocity needs"):
            LearnedTopography(start, learned)
        return
    one = LearnedTopography(start, learned)
    near = {"weights": 1e-3, "velocity": 1e-5}[learned]  # no weight is 0 that can grow
    for axis in start.axes:
        torch.testing.assert_close(one.pool(u2, axis), start.pool(u2, axis), rtol=1e-4, atol=near)
        assert (one.kernel_along(axis) >= 0).all()
    assert one.window == start.window and one.axes == start.axes


def matrix(one, frames, axis):
    """W of a learned topography, term by term, from the definition of its kernel."""
    start, dims = one.start, range(len(one.shape)) if axis is None else (axis,)
    sizes = [one.shape[n] if one.cyclic else 1 + sum(start.beyond) for n in dims]
    kernel = one.kernel_along(axis).detach().unflatten(-1, sizes)
    rows, columns = ((frames, one.capsules, *shape) for shape in (one.shape, one.u_shape))
    w = torch.zeros(rows + columns)
    time, capsule, *site = torch.meshgrid(*map(torch.arange, rows), indexing="ij")
    for (n, delta), *offsets in itertools.product(
        enumerate(start.time_offsets), *map(range, sizes)
    ):
        moved = list(site)
        for dim, offset in zip(dims, offsets, strict=True):
            moved[dim] = (site[dim] + offset) % one.u_shape[dim]
        shared = start.frame_at(time + delta, frames), capsule, *moved
        w[(time, capsule, *site, *shared)] += kernel[(capsule, n, *offsets)]
    return w.reshape(math.prod(rows), math.prod(columns))


@every_start
@pytest.mark.parametrize("learned", ["weights", "from-identity", "velocity"])
def test_pool_applies_the_kernel(start, learned):
    if learned == "velocity" and not has_velocities(start):
        return
    one = LearnedTopography(start, learned)
    with torch.no_grad():
        for parameter in one.parameters():
            parameter.add_(0.1 * torch.rand_like(parameter))
    capsules = 1 + len(start.shape)
    for axis, first in itertools.product(start.axes, ((4, 7), (2, 4, 7), (7,))):
        u2 = torch.rand(*first, start.capsules, *start.u_shape)
        with torch.autocast("cpu", torch.bfloat16):
            pooled = one.pool(u2, axis)
        assert pooled.shape == (*first, start.capsules, *start.shape)
        expected = u2.flatten(-capsules - 1) @ matrix(one, 7, axis).T
        torch.testing.assert_close(pooled.flatten(-capsules - 1), expected)


@every_start
def test_from_any_topography_a_model_learns_its_w(start):
    model = tc.TopographicVAE.mlp(
        frame_shape=FRAME, topography=start, hidden=(8,), mu=-5.0, learned="weights", centred=True
    )
    before = [p.detach().clone() for p in model.topography.parameters()]
    assert len(before) == len(start.axes)
    tc.fit(model, torch.rand(20, 7, *FRAME), training=tc.Training(tc.Adam(1e-2), batch=5, epochs=1))
    for old, new in zip(before, model.topography.parameters(), strict=True):
        assert (new - old).abs().max() > 1e-4
    again = build(model.config)
    again.load_state_dict(model.state_dict())
    x = torch.rand(2, 7, *FRAME)
    torch.testing.assert_close(again.encode(x), model.encode(x))
    assert len(figure_of(model.topography).axes) >= 3 * len(start.axes)


def test_pool_needs_an_axis_if_there_are_several():
    one = LearnedTopography(STARTS["two axes"], "weights")
    with pytest.raises(tc.BadInput, match=r"axis must be one of \(0, 1\), not None"):
        one.pool(torch.rand(1, 7, 2, 3, 5))


def test_w_is_not_copied_for_every_sequence():
    """No tensor that pooling keeps for its gradient is larger than W and the energies."""
    start = tc.Topography(3, (15,), window=13)
    one, kept = LearnedTopography(start, "weights"), []
    u2 = torch.rand(64, 15, 3, 15, requires_grad=True)

    def keep(value):
        kept.append(value.numel())
        return value

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda value: value):
        one.pool(u2)
    assert max(kept) <= max(3 * 225**2, u2.numel())


def test_energies_of_another_shape_or_dtype_are_refused():
    one = LearnedTopography(STARTS["tvae"], "weights")
    with pytest.raises(tc.BadInput, match="last axes"):
        one.pool(torch.rand(2, 7, 2, 6))
    with pytest.raises(tc.BadInput, match="window 5 is longer"):
        one.pool(torch.rand(2, 4, 3, 6))
    with pytest.raises(tc.BadInput, match=r"torch\.float32, not torch\.float64"):
        one.pool(torch.rand(2, 7, 3, 6, dtype=torch.float64))


def test_each_capsule_rolls_by_its_learned_velocity():
    start = tc.Topography(2, (6,), (1,), window=3, velocity=0.5, causal=True)
    settings = dict(frame_shape=FRAME, topography=start, hidden=(8,))
    model = tc.TopographicVAE.mlp(**settings, learned="velocity")
    with torch.no_grad():
        model.topography.velocities.copy_(torch.tensor([1.0, -1.0]))
    assert model.rate.tolist() == [1, -1] and model.topography.velocity == 0
    assert tc.TopographicVAE.mlp(**settings, learned="weights").rate == 0.5

    def on(t, frames):
        return torch.stack([t[:, 0].roll(frames, -1), t[:, 1].roll(-frames, -1)], 1)

    x = torch.rand(2, 5, *FRAME)
    stream = model.stream()
    for frame in x.unbind(1):
        stream(frame)
    torch.testing.assert_close(stream.predict(2)[:, 1], model.decode(on(stream.t, 2)))
    mask = torch.tensor([[True, False, True, True, True]]).expand(2, 5)
    before = model.encode(x, mask=mask)[:, 0]
    torch.testing.assert_close(model.fill(x, mask)[:, 1], model.decode(on(before, 1)))
    walk = tc.traverse(model, x)
    t = model.encode(x)[:, walk.start if walk.lags[0] else 2]
    for n, lag in enumerate(walk.lags):
        torch.testing.assert_close(walk.rolled[:, n], model.decode(on(t, lag)))


def test_a_decoder_is_centred_on_the_median_of_t_from_the_identity():
    start = tc.Topography(2, (6,), (1,), window=5)
    model = tc.TopographicVAE.mlp(
        frame_shape=FRAME, topography=start, hidden=(8,), learned="from-identity", centred=True
    )
    drawn = model.prior(6).sample((500,)).median().item()
    assert model.x_given_t.centre.item() == pytest.approx(drawn, rel=0.1)


def test_from_the_identity_nothing_is_shared_at_first():
    start = tc.Topography(2, (6,), (3,), window=5)
    u2 = torch.rand(4, 6, 2, 6)
    pooled = LearnedTopography(start, "from-identity").pool(u2)
    torch.testing.assert_close(pooled, u2, rtol=0, atol=0.03)  # but a trifle, so that t has a scale


@pytest.mark.parametrize("learned", ["weights", "from-identity", "velocity"])
def test_the_weights_are_learned_with_the_model(learned):
    start = tc.Topography(2, (6,), (1,), window=3, velocity=0.8)
    settings = dict(frame_shape=FRAME, topography=start, hidden=(8,), mu=-5.0)
    model = tc.TopographicVAE.mlp(**settings, learned=learned)
    before = model.topography.kernel_along(None).detach().clone()
    x = torch.rand(20, 6, *FRAME)
    training = tc.Training(tc.Adam(1e-2), batch=5, epochs=3)
    tc.fit(model, x, training=training)
    after = model.topography.kernel_along(None).detach()
    assert (after - before).abs().max() > 1e-3 and (after >= 0).all()
    again = build(model.config)
    again.load_state_dict(model.state_dict())
    torch.testing.assert_close(again.encode(x), model.encode(x))
    assert len(figure_of(model.topography).axes) >= 4
    moved = model.topography.pool(torch.rand(2, 6, 2, 6).requires_grad_())
    assert moved.shape == (2, 6, 2, 6) and moved.requires_grad


def test_a_capsule_learns_the_velocity_of_the_data():
    """Energies that move a site a frame are pooled best at that velocity."""
    start = tc.Topography(1, (12,), (1,), window=5, velocity=0.6)
    one = LearnedTopography(start, "velocity")
    site, frame = torch.arange(12.0), torch.arange(6.0)[:, None]
    bump = (torch.cos((site - frame) * 2 * torch.pi / 12) + 1).square()[None, :, None]
    optimiser = torch.optim.Adam(one.parameters(), lr=0.02)
    for _ in range(200):
        optimiser.zero_grad()
        middle = one.pool(bump)[:, 2:4]  # the wave does not close in time
        (-middle.square().sum()).backward()
        optimiser.step()
    assert one.velocities.item() == pytest.approx(1.0, abs=0.05)


def test_topographies_that_cannot_be_learned_are_refused():
    start = tc.Topography(2, (6,), (1,), window=3)
    with pytest.raises(tc.BadInput, match="at least 2 sites"):
        LearnedTopography(tc.Topography(3, (1,)), "weights")
    with pytest.raises(tc.BadInput, match="learned must be one of"):
        tc.TopographicVAE.mlp(frame_shape=FRAME, topography=start, learned="everything")


def test_models_with_a_learned_topography_train_beside_others():
    start = tc.Topography(2, (6,), (1,), window=3)
    settings = dict(frame_shape=FRAME, topography=start, hidden=(8,), mu=-5.0)
    models = [
        tc.TopographicVAE.mlp(**settings, learned=one) for one in ("weights", "nothing", "weights")
    ]
    runs = tc.fit_together(
        models, torch.rand(12, 6, *FRAME), training=tc.Training(batch=4, epochs=1), seeds=[0, 1, 2]
    )
    assert all(run.failure is None for run in runs)
