"""Metrics against slow definitions, and against models with known answers."""

import math

import pytest
import torch
from torch import nn
from torch.distributions import Bernoulli, Independent, Normal

from topocaps import VAE, BadInput, Topography, metrics
from topocaps.latents.rolling import roll
from topocaps.metrics.rolled_traversal import EDGE, Traversal, unseen_lags

S = D = 6


def rolling(batch=4, capsules=3, frames=S, sites=D, rate=1):
    """Latents that move exactly as the data do."""
    t0 = torch.randn(batch, capsules, sites)
    return torch.stack([t0.roll(rate * n, -1) for n in range(frames)], 1)


# E_eq ---------------------------------------------------------------------------------------------


def test_equivariance_error_is_eq_13_term_by_term():
    t = torch.randn(2, 4, 3, 5)
    expected = 0.0
    for sequence in t:
        unit = sequence / sequence.norm(dim=-1, keepdim=True)
        for one in range(4):
            for other in range(one + 1, 4):
                expected += (unit[one].roll(other - one, -1) - unit[other]).abs().sum()
    assert metrics.equivariance_error(t) == pytest.approx(expected.item() / 2, rel=1e-5)
    assert metrics.equivariance_errors(t).mean().item() == metrics.equivariance_error(t)


def test_equivariance_error_of_rolling_latents_is_zero_at_any_scale():
    t = rolling()
    assert metrics.equivariance_error(t) < 1e-4
    assert metrics.equivariance_error(t * torch.rand(4, S, 3, 1)) < 1e-4
    assert metrics.equivariance_error(t.flip(1)) > 10
    assert metrics.equivariance_error(rolling(rate=2), rate=2) < 1e-4
    assert metrics.equivariance_error(rolling(frames=9, sites=5)) < 1e-4


@pytest.mark.parametrize("capsules, shape, frames", [(18, (18,), 18), (3, (4, 5), 6), (2, (2,), 3)])
def test_chance_is_the_error_of_random_directions(capsules, shape, frames):
    topography = Topography(capsules, shape)
    errors = metrics.equivariance_errors(torch.randn(400, frames, capsules, *shape))
    error = errors.std().item() / 20
    expected = metrics.chance_equivariance_error(topography, frames)
    assert abs(errors.mean().item() - expected) < 4 * error


# CapCorr ------------------------------------------------------------------------------------------


def cyclic_factors(starts, frames=S, period=S, columns=3, moving=1):
    factors = torch.full((len(starts), frames, columns), 2)
    factors[:, :, moving] = (torch.tensor(list(starts))[:, None] + torch.arange(frames)) % period
    return factors


def test_capcorr_of_rolling_latents_is_one():
    factors = cyclic_factors([0, 1, 2, 3, 4, 5])
    t = rolling(batch=6)
    assert metrics.capcorr(t, factors) == {1: pytest.approx(1.0)}
    found = metrics.observed_rolls(t, factors)[1]
    assert found.observed.tolist() == found.true.tolist() == [0, 1, 2, 3, 4, 5]
    assert found.agreement == 1 and found.dropped == 0


def test_capcorr_follows_the_direction_of_the_roll():
    """Rolling backwards is seen as -n, so it correlates negatively."""
    factors = cyclic_factors([1, 2, 3, 4, 5])
    assert metrics.capcorr(rolling(batch=5, rate=-1), factors)[1] < -0.9


def test_the_most_favourable_start_counts_for_factors_that_loop():
    factors = cyclic_factors([0, 1, 2], period=3)
    found = metrics.observed_rolls(rolling(batch=3), factors)[1]
    assert found.observed.tolist() == [0, 1, 2]


def test_the_mode_of_capsules_decides_and_ties_go_to_the_smallest():
    t = torch.zeros(1, 2, 4, 5)
    t[0, 1, :, 0] = 1  # frame 1 is where the factor is 0
    for capsule, n in enumerate((3, 3, 1, 1)):
        t[0, 0, capsule, n] = 1
    factors = torch.tensor([[[1], [0]]])
    found = metrics.observed_rolls(t, factors)[0]
    assert found.observed.tolist() == [1] and found.agreement == 0.5


def test_sequences_that_never_pass_zero_are_dropped_and_counted():
    factors = cyclic_factors([0, 1, 2, 3])
    factors[0, :, 1] = torch.arange(6) + 1
    found = metrics.observed_rolls(rolling(), factors)[1]
    assert found.dropped == 1 and len(found.true) == 3


def test_constant_factors_and_constant_latents():
    factors = cyclic_factors([0, 1, 2, 3])
    still = torch.randn(4, 1, 3, D).expand(-1, S, -1, -1)
    assert list(metrics.capcorr(still, factors)) == [1]
    assert math.isnan(metrics.capcorr(still, factors)[1])
    with pytest.raises(BadInput, match="factors must be"):
        metrics.capcorr(still, factors[:, 0])


@pytest.mark.parametrize(
    "sites, frames, rate, values",
    [
        (15, 10, 1, 15),
        (15, 20, 1, 15),
        (15, 15, 0.5, 30),
        (15, 45, 0.5, 30),
        (15, 8, 2, 15),
        (18, 9, 2, 9),
        (15, 15, -1, 15),
        (15, 40, -0.5, 30),
        (7, 7, 1.5, 14),
    ],
)
def test_capcorr_of_rolling_latents_is_one_for_parts_of_orbits(sites, frames, rate, values):
    y = (torch.arange(values)[:, None] + torch.arange(frames)) % values
    base = torch.randn(3, sites)
    places = torch.stack([roll(base, rate * n, 1) for n in range(values)])
    found = metrics.observed_rolls(places[y], y[..., None], rate)[0]
    assert found.correlation == pytest.approx(1.0)
    assert found.observed.tolist() == found.true.tolist()
    assert found.dropped == max(0, values - frames)
    backwards = metrics.capcorr(places[-y % values], y[..., None], rate)[0]
    assert backwards < 0.5


def test_capcorr_refuses_a_rate_of_zero():
    with pytest.raises(BadInput, match="rate other than 0"):
        metrics.capcorr(rolling(), cyclic_factors([0, 1, 2, 3]), rate=0.0)


def test_capsules_of_three_axes_are_measured():
    """Along the first axis, as those of one are."""
    t0 = torch.randn(S, 2, D, 2, 3)
    t = torch.stack([t0.roll(n, 2) for n in range(S)], 1)
    factors = cyclic_factors(range(S))
    assert metrics.capcorr(t, factors)[1] == pytest.approx(1.0)
    assert metrics.equivariance_error(t) < 1e-3
    assert (metrics.axis_moved(t) == 0).all()
    assert (
        metrics.specialisation(torch.cat([t, t]), torch.cat([factors, factors.roll(1, 2)])) < 0.01
    )


def test_rolls_are_counted_in_frames_at_any_rate():
    """Half a site a frame: twelve frames around six sites, seen through partial rolls."""
    phase = 2 * math.pi * torch.rand(12, 1, 3, 1)
    moved = torch.arange(D) - 0.5 * torch.arange(12)[:, None, None]
    t = torch.cos(2 * math.pi / D * moved + phase)
    found = metrics.observed_rolls(t, cyclic_factors(range(12), 12, 12), rate=0.5)[1]
    assert found.observed.tolist() == list(range(12)) and found.correlation == pytest.approx(1.0)


# traversal ----------------------------------------------------------------------------------------


class Looking(nn.Module):
    """Encodes a frame as itself: one capsule whose sites are the pixels."""

    def forward(self, x):
        return Normal(x.flatten(2)[:, :, None], torch.full((), 1e-4))


class Showing(nn.Module):
    """Decodes a capsule as the frame it is, with some confidence."""

    frame_shape = (1, 1, D)

    def __init__(self, confidence):
        super().__init__()
        self.confidence = confidence

    def forward(self, t):
        logits = (t.flatten(-2)[..., None, None, :] - 0.5) * 2 * self.confidence
        return Independent(Bernoulli(logits=logits, validate_args=False), 3, validate_args=False)


def seeing_model(confidence=30.0):
    return VAE(Looking(), Showing(confidence), Topography(1, (D,)))


def moving_dots(batch=3, step=1):
    x = torch.zeros(batch, S, 1, 1, D)
    for n in range(batch):
        for frame in range(S):
            x[n, frame, 0, 0, (n + step * frame) % D] = 1
    return x


def test_the_gain_of_latents_that_are_rolled_pixels_is_one():
    walked = metrics.traversal(seeing_model(), moving_dots())
    assert walked.overall == pytest.approx(1.0, abs=1e-3)
    assert walked.unseen.sum(1).tolist() == [S - 1] * 3
    low, high = walked.interval(0)
    assert low <= walked.overall <= high


def test_rolling_the_wrong_way_is_worse_than_standing_still():
    assert metrics.traversal(seeing_model(), moving_dots(step=-1)).overall < -1
    assert metrics.traversal(seeing_model(), moving_dots(step=-1), rate=-1).overall > 0.99
    assert metrics.traversal(seeing_model(), moving_dots(step=2), rate=2).overall > 0.99


def test_an_invariant_model_that_shows_the_mean_gains_nothing():
    class Mean(Showing):
        def forward(self, t):
            mean = torch.full((*t.shape[:2], *self.frame_shape), 1 / D)
            return Independent(Bernoulli(probs=mean, validate_args=False), 3, validate_args=False)

    model = VAE(Looking(), Mean(1.0), Topography(1, (D,)))
    assert metrics.traversal(model, moving_dots()).overall == pytest.approx(0.0, abs=1e-5)


def test_gain_is_the_ratio_of_the_definition():
    x, model = moving_dots(), seeing_model(confidence=2.0)
    walked = metrics.traversal(model, x, window=3)
    mean = x.mean(1, keepdim=True).clamp(EDGE, 1 - EDGE)
    entropy = -(x * mean.log() + (1 - x) * (1 - mean).log()).flatten(2).sum(2)
    torch.testing.assert_close(walked.orbit_mean, entropy)
    assert not walked.perfect.any()
    rolled = torch.stack([x[:, 0].roll(n, -1) for n in range(S)], 1)
    p = torch.sigmoid((rolled - 0.5) * 4)
    cost = -(x * p.log() + (1 - x) * (1 - p).log()).flatten(2).sum(2)
    torch.testing.assert_close(walked.rolled, cost, atol=1e-2, rtol=1e-2)
    unseen = slice(2, 5)
    expected = (entropy - cost)[:, unseen].sum() / entropy[:, unseen].sum()
    assert walked.overall == pytest.approx(expected.item(), abs=1e-3)


def test_unseen_lags_are_those_outside_the_window():
    assert list(unseen_lags(13, 15)) == [7, 8]
    assert list(unseen_lags(14, 15)) == [7]
    assert list(unseen_lags(15, 15)) == []
    assert list(unseen_lags(1, 4)) == [1, 2, 3]
    for window in range(1, 10):
        seen = {d % 9 for d in range(-(window // 2), (window - 1) // 2 + 1)}
        assert set(unseen_lags(window, 9)) == set(range(9)) - seen


def test_frames_shown_inside_the_window_do_not_count_as_unseen():
    """A factor that loops twice has shown everything; one that runs through has not."""
    looping, running = moving_dots(1, step=3), moving_dots(1)
    factors = torch.zeros(2, S, 2, dtype=torch.long)
    factors[0, :, 0] = torch.arange(S) % 2
    factors[1, :, 1] = torch.arange(S)
    walked = metrics.traversal(
        seeing_model(), torch.cat([looping, running]), factors, window=3, rate=1
    )
    assert walked.unseen.sum(1).tolist() == [0, 3]
    assert walked.by_factor[0] is None and walked.by_factor[1] == pytest.approx(1.0, abs=1e-3)
    assert walked.overall == walked.by_factor[1] and walked.interval(0) is None


def test_grey_frames_are_measured_from_their_own_entropy():
    x = 0.2 + 0.6 * moving_dots()
    walked = metrics.traversal(seeing_model(), x)
    entropy = -(x * x.log() + (1 - x) * (1 - x).log()).flatten(2).sum(2)
    torch.testing.assert_close(walked.perfect, entropy)


def test_gaussian_decoders_are_measured_in_squared_error():
    model = VAE.mlp(frame_shape=(1, 1, D), topography=Topography(1, (D,)), likelihood="gaussian")
    x = 3 * moving_dots()
    walked = metrics.traversal(model, x)
    torch.testing.assert_close(
        walked.orbit_mean, (x.mean(1, keepdim=True) - x).square().sum((2, 3, 4))
    )
    assert not walked.perfect.any()


def test_windows_smaller_than_the_models_are_refused():
    model = VAE.mlp(frame_shape=(1, 1, D), topography=Topography(1, (D,), window=3))
    with pytest.raises(BadInput, match="between the model's 3"):
        metrics.traversal(model, moving_dots(), window=1)
    with pytest.raises(BadInput, match="6 frames"):
        metrics.traversal(model, moving_dots(), window=7)


def test_parts_join_to_the_whole():
    model, x = seeing_model(1.0), moving_dots(6)
    whole = metrics.traversal(model, x)
    parts = Traversal.join([metrics.traversal(model, piece) for piece in x.split(2)])
    assert parts.overall == pytest.approx(whole.overall, abs=1e-3)
    assert len(parts.by_lag) == S


def test_the_interval_covers_the_gain_at_about_its_rate():
    """Over repeated draws of sequences the 95 % interval holds the long-run gain."""
    torch.manual_seed(0)
    orbit_mean, rolled = 1 + torch.rand(40_000, 1), torch.rand(40_000, 1)
    zeros, ones = torch.zeros_like(rolled), torch.ones_like(rolled, dtype=torch.bool)
    axis = torch.zeros(len(rolled))
    everything = Traversal(rolled, orbit_mean, zeros, ones, ones, axis)
    hits = 0
    for rows in torch.arange(40_000).split(200)[:100]:
        part = Traversal(*(v[rows] for v in (rolled, orbit_mean, zeros, ones, ones, axis)))
        low, high = part.gain(0).interval(draws=300)
        hits += low <= everything.overall <= high
    assert 85 <= hits <= 100


def test_evaluate_has_all_metrics_and_is_reproducible():
    model, x = seeing_model(1.0), moving_dots(4)
    one, again = (metrics.evaluate(model, x, samples=3, batch=3) for _ in range(2))
    assert one == again
    assert one["traversal_gain"] == one["traversal"]["by_factor"]["all"]
    assert one["log_px_paper"] > one["log_px"] and one["sequences"] == 4
    assert one["log_px_per_frame"] == pytest.approx(one["log_px_paper"] - math.log(3), abs=1e-4)
    low, high = one["intervals"]["equivariance_error"]
    assert low <= one["equivariance_error"] <= high


@pytest.mark.parametrize("rate", [0.5, 1.0, 2.0])
def test_capcorr_is_one_at_any_rate(rate):
    """t is where the factor is; at two sites a frame the factor skips every other value."""
    sites, frames = 15, int(15 / min(rate, 1))
    bump = torch.exp(-((torch.arange(sites) - 7.0) ** 2) / 4)
    values = frames
    t, factors = [], []
    for start in range(0, values, 2):
        index = (start + max(1, int(rate)) * torch.arange(frames)) % values
        t.append(torch.stack([roll(bump, min(rate, 1) * i, 0) for i in index.tolist()]))
        factors.append(index)
    t, factors = torch.stack(t)[:, :, None], torch.stack(factors)[..., None]
    found = metrics.capcorr(t, factors, rate)[0]
    assert found > 0.99


def test_chance_of_open_capsules_is_that_of_random_ones():
    topography = Topography(10, (15,), cyclic=False)
    t = torch.randn(60, 15, 10, 15)
    measured = metrics.equivariance_errors(t, 1.0, cyclic=False).mean().item()
    expected = metrics.chance_equivariance_error(topography, 15)
    assert measured == pytest.approx(expected, rel=0.01)


def test_arrays_are_measured_as_tensors_are():
    t = torch.rand(3, 5, 2, 5)
    factors = torch.arange(5).repeat(3, 1)[..., None]
    assert metrics.equivariance_error(t.numpy()) == metrics.equivariance_error(t)
    assert metrics.capcorr(t.numpy(), factors.numpy()).keys() == {0}
    with pytest.raises(BadInput, match="integer indices"):
        metrics.capcorr(t, factors.float())
    with pytest.raises(BadInput, match="two or more frames"):
        metrics.equivariance_error(t[:, :1])
    with pytest.raises(BadInput, match="array or a tensor"):
        metrics.equivariance_error("t")
