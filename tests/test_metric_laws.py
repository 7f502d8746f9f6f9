"""Metrics of sequences against their definitions: by loops, scipy and numerical integration."""

import math
from itertools import combinations, product

import numpy as np
import pytest
import torch
from references import DOUBLE, assert_same, normal
from scipy import integrate, ndimage, stats
from torch.distributions import Bernoulli, Independent, Normal
from torch.nn.functional import binary_cross_entropy

import topocaps as tc
from topocaps.latents.rolling import roll
from topocaps.metrics import (
    CapCorr,
    Mean,
    chance_equivariance_error,
    equivariance_errors,
    filled_costs,
    observed_rolls,
    prediction,
    traversal,
)
from topocaps.metrics.rolled_traversal import TraversalPlan
from topocaps.metrics.visible_frames import some_missing
from topocaps.models.likelihoods import Likelihood

# Rolls --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("steps", [0.3, -1.25, 2.0, 7.6])
def test_a_roll_interpolates_as_numpy_does(steps):
    t, sites = normal(3, 7), np.arange(7)
    wanted = np.stack([np.interp(sites - steps, sites, row, period=7) for row in t.numpy()])
    assert_same(roll(t, steps, 1), torch.from_numpy(wanted))


@pytest.mark.parametrize("steps", [0.3, -1.25, 2.0, 7.6])
def test_a_roll_by_phases_is_that_of_scipy(steps):
    t = normal(3, 7)
    shifted = [np.fft.ifft(ndimage.fourier_shift(np.fft.fft(row), steps)).real for row in t.numpy()]
    assert_same(roll(t, steps, 1, fourier=True), torch.from_numpy(np.stack(shifted)))


# Equivariance -------------------------------------------------------------------------------------


def rolled(unit, steps, axis):
    """``unit`` (*shape) moved along an axis, by interpolation."""
    whole = math.floor(steps)
    part = steps - whole
    return (1 - part) * np.roll(unit, whole, axis) + part * np.roll(unit, whole + 1, axis)


@pytest.mark.parametrize("rate", [1.0, -2.0, 0.4])
@pytest.mark.parametrize("cyclic", [True, False])
def test_equation_13_term_by_term(rate, cyclic):
    """In capsules with ends, over the sites that no roll has taken over an end."""
    t = normal(2, 4, 3, 9).numpy()
    wanted = np.zeros(2)
    for n, capsule in product(range(2), range(3)):
        unit = t[n, :, capsule] / np.linalg.norm(t[n, :, capsule], axis=-1, keepdims=True)
        for one, other in combinations(range(4), 2):
            steps = rate * (other - one)
            apart = np.abs(rolled(unit[one], steps, 0) - unit[other])
            for site in range(9):
                inside = max(0, steps) <= site <= min(8, 8 + steps)
                wanted[n] += apart[site] if cyclic or inside else 0
    assert_same(equivariance_errors(torch.from_numpy(t), rate, cyclic), torch.from_numpy(wanted))


def test_equation_13_of_capsules_that_roll_along_axes_of_their_own():
    t, axis = normal(2, 4, 3, 4, 5), torch.tensor([[0, 1, 0], [1, 1, 0]])
    wanted = np.zeros(2)
    for n, capsule in product(range(2), range(3)):
        unit = t[n, :, capsule].numpy()
        unit = unit / np.sqrt((unit**2).sum((1, 2), keepdims=True))
        for one, other in combinations(range(4), 2):
            moved = rolled(unit[one], 1.5 * (other - one), axis[n, capsule].item())
            wanted[n] += np.abs(moved - unit[other]).sum()
    assert_same(equivariance_errors(t, 1.5, axis=axis), torch.from_numpy(wanted))


def random_distance(d):
    """E|u - v|_1 of independent random directions in d dimensions, by quadrature."""
    if d == 1:
        return 1.0

    def mean(value, density):
        over, under = (
            integrate.quad(lambda a, of=of: of(a) * density(a), 0, math.pi, epsabs=1e-13)[0]
            for of in (value, lambda a: 1.0)
        )
        return over / under

    # of the angle between two directions, and between a direction and an axis
    distance = mean(lambda a: 2 * math.sin(a / 2), lambda a: math.sin(a) ** (d - 2))
    length = d * mean(lambda a: abs(math.cos(a)), lambda a: math.sin(a) ** (d - 2))
    return distance * length


@pytest.mark.parametrize("shape", [(1,), (2,), (5,), (18,), (4, 5)])
def test_the_error_of_chance_is_an_integral_over_directions(shape):
    pairs = 3 * 7 * 6 / 2
    found = chance_equivariance_error(tc.Topography(3, shape), 7)
    assert found == pytest.approx(pairs * random_distance(math.prod(shape)), rel=1e-9)


@pytest.mark.parametrize("rate", [1.0, -0.7, 4.0])
def test_the_error_of_chance_of_open_capsules_counts_the_sites_that_are_left(rate):
    left = 0.0
    for lag in range(1, 6):
        sites = [i for i in range(9) if max(0, rate * lag) <= i <= min(8, 8 + rate * lag)]
        left += (6 - lag) * len(sites) / 9
    found = chance_equivariance_error(tc.Topography(2, (9,), cyclic=False), 6, rate)
    assert found == pytest.approx(2 * left * random_distance(9), rel=1e-9)


# CapCorr ------------------------------------------------------------------------------------------


def test_the_correlation_of_rolls_is_pearsons():
    observed, true = torch.randint(9, (30,)).float(), torch.randint(9, (30,))
    agreements = torch.rand(30)
    parts = [
        CapCorr(observed[some], true[some], agreements[some], dropped)
        for some, dropped in ((slice(0, 11), 2), (slice(11, 30), 5))
    ]
    found = CapCorr.join(parts)
    wanted = stats.pearsonr(observed.numpy(), true.numpy()).statistic
    assert found.correlation == pytest.approx(wanted, rel=1e-9)
    assert found.agreement == pytest.approx(agreements.mean().item()) and found.dropped == 7


@pytest.mark.parametrize("rate", [1.0, 0.5, -1.0, 4.0])
def test_the_observed_roll_is_the_mode_of_the_best_rolls_of_capsules(rate):
    """Eq. 16 by loops, for latents of noise: the cosine of every capsule at every roll."""
    sites, frames, capsules = 6, 5, 4
    t = normal(20, frames, capsules, sites)
    y = (torch.arange(20)[:, None] + torch.arange(frames)) % 7
    found = observed_rolls(t, y[..., None], rate)[0]
    steps = max(math.ceil(sites / abs(rate)), 7)
    wanted = []
    for latents, factor in zip(t.numpy(), y.numpy(), strict=True):
        for omega in np.flatnonzero(factor == 0):
            best = []
            for capsule in range(capsules):
                turned = [rolled(latents[omega, capsule], rate * n, 0) for n in range(steps)]
                cosines = [r @ latents[0, capsule] / np.linalg.norm(r) for r in turned]
                best.append(int(np.argmax(cosines)))
            counts = np.bincount(best)
            wanted.append((counts.argmax(), factor[0], counts.max() / capsules))
    observed, true, agreements = zip(*wanted, strict=True)
    assert found.observed.tolist() == list(observed) and found.true.tolist() == list(true)
    assert found.agreements.tolist() == pytest.approx(agreements)
    assert found.dropped == 20 - len(wanted)


# Traversal ----------------------------------------------------------------------------------------

X = torch.rand(4, 6, 1, 2, 3, **DOUBLE, generator=torch.Generator().manual_seed(0))
GUESS = torch.rand(4, 6, 1, 2, 3, **DOUBLE, generator=torch.Generator().manual_seed(1))


def test_costs_of_frames_are_nats_or_squared_errors():
    cost = binary_cross_entropy(GUESS, X, reduction="none").flatten(2).sum(2)
    nats = Likelihood.BERNOULLI.cost
    assert_same(nats(GUESS, X), cost)
    assert_same(nats(X.round(), X.round()), torch.zeros(4, 6, **DOUBLE))
    wanted = [[((GUESS - X)[n, frame] ** 2).sum().item() for frame in range(6)] for n in range(4)]
    assert_same(Likelihood.GAUSSIAN.cost(GUESS, X), torch.tensor(wanted, **DOUBLE))


@pytest.mark.parametrize("likelihood", [Likelihood.BERNOULLI, Likelihood.GAUSSIAN], ids=str)
def test_a_gain_is_the_share_of_what_could_be_gained(likelihood):
    """Of each factor by itself, over unseen frames of the sequences in which it moves; and the mean
    over factors. Probabilities are kept 0.001 from 0 and 1."""
    x = X.clone()
    x[:, :, 0, 0] = (x[:, :, 0, 0] > 0.3).double()
    guess = GUESS.clone()
    guess[0, 0, 0, 0, 0], x[:, :, 0, 1, 2] = 0.0, 1.0
    factors = torch.zeros(4, 6, 3, dtype=torch.long)
    factors[:2, :, 0] = factors[1:, :, 2] = torch.arange(6)
    unseen = torch.rand(4, 6) > 0.4
    found = prediction(x, guess, unseen, factors, likelihood)

    def cost(frames):
        if likelihood == Likelihood.GAUSSIAN:
            return (frames - x).square().flatten(2).sum(2)
        kept = frames.clamp(0.001, 0.999).expand_as(x)
        return binary_cross_entropy(kept, x, reduction="none").flatten(2).sum(2)

    mean, predicted = cost(x.mean(1, keepdim=True)), cost(guess)
    perfect = torch.zeros_like(mean)
    if likelihood == Likelihood.BERNOULLI:
        perfect = binary_cross_entropy(x, x, reduction="none").flatten(2).sum(2)
    assert_same(found.orbit_mean, mean)
    assert_same(found.rolled, predicted)
    assert_same(found.perfect, perfect)
    gains = {}
    for column, rows in {0: [0, 1], 2: [1, 2, 3]}.items():
        gained, possible = (
            (mean - other)[rows][unseen[rows]].sum() for other in (predicted, perfect)
        )
        gains[column] = (gained / possible).item()
    assert found.by_factor == pytest.approx(gains, rel=1e-9)
    assert found.overall == pytest.approx(sum(gains.values()) / 2, rel=1e-9)
    assert found.by_lag == pytest.approx(predicted.mean(0).tolist(), rel=1e-9)


def test_the_rolled_frame_has_its_whole_window():
    for window in (1, 3, 4):
        assert TraversalPlan(9, window, closed=False, causal=True).start == window - 1
        assert TraversalPlan(9, window, closed=True, causal=False).start == 0
        start = TraversalPlan(9, window, closed=False, causal=False).start
        assert start - window // 2 >= 0 and start + (window - 1) // 2 <= 8


class Shows(tc.VAE):
    """Capsules are the frames themselves, and are decoded as they are: (capsules, *shape)."""

    @classmethod
    def of(cls, topography):
        shape = (topography.capsules, *topography.shape)
        model = cls.mlp(shape, topography, hidden=(2,), likelihood="gaussian")
        model.encode_per_axis = lambda x, sample=False, mask=None: [x]
        model.decode = lambda t: t
        return model

    rate = 1.0


def test_axes_are_chosen_by_frames_of_the_window_alone():
    """A dot goes down within the window and to the right after it: down is the axis."""
    topography = tc.Topography(1, (7, 7), window=3)
    x = torch.zeros(1, 7, 1, 7, 7)
    for frame, (row, column) in enumerate([(0, 0), (1, 0), (0, 2), (0, 3), (0, 4), (0, 5), (6, 0)]):
        x[0, frame, 0, row, column] = 1
    found = traversal(Shows.of(topography), x)
    assert found.axis.tolist() == [[0]]
    assert found.unseen.tolist() == [[False, False, True, True, True, True, False]]


# Intervals ----------------------------------------------------------------------------------------


def test_the_interval_of_a_mean_is_196_standard_errors():
    values = normal(9)
    low, high = Mean(values).interval()
    error = 1.96 * stats.sem(values.numpy())
    assert (low, high) == pytest.approx(
        (values.mean().item() - error, values.mean().item() + error), rel=1e-9
    )


@pytest.mark.parametrize("ones", [1, 31])
def test_the_interval_of_a_ratio_has_the_quantiles_of_resamples(ones):
    """The number of ones among 62 that are drawn is binomial. Of 31, at most 23 are drawn with a
    probability of 0.028: quantiles of 0.03 would be others."""
    values = torch.zeros(62)
    values[-ones:] = 1
    low, high = Mean(values, torch.ones(62)).interval(draws=40_000)
    resampled = stats.binom(62, ones / 62)
    assert (62 * low, 62 * high) == pytest.approx(resampled.ppf([0.025, 0.975]))


def test_one_resample_has_no_width():
    low, high = Mean(normal(9), normal(9).exp()).interval(draws=1)
    assert low == high


def test_a_ratio_of_several_parts_is_the_mean_of_their_ratios():
    values, weights = normal(8, 3), normal(8, 3).exp()
    wanted = (values.sum(0) / weights.sum(0)).mean().item()
    assert Mean(values, weights).value == pytest.approx(wanted, rel=1e-9)
    assert_same(Mean(values, weights).each, values.sum(1) / weights.sum(1))


# Missing frames -----------------------------------------------------------------------------------


def test_the_share_of_missing_frames_is_right_and_one_frame_stays():
    x = torch.zeros(4000, 20)
    for share in (0.1, 0.5):
        missing = 1 - some_missing(x, share).double().mean().item()
        assert missing == pytest.approx(share, abs=0.008)  # 5 standard errors
    assert some_missing(x, 1.0).sum(1).tolist() == [1] * 4000


def test_the_costs_of_filled_frames_are_squared_errors():
    """Rolled, held, and the mean of frames that are there; of a model that shows frames as
    capsules. Frames that another shows do not count."""
    model, x = Shows.of(tc.Topography(1, (5,))), torch.randn(7, 9, 1, 5)
    x[:, 6], x[:, 7] = x[:, 2], x[:, 1]
    (found,) = filled_costs(model, x, shares=(0.4,), seed=3).values()
    mask = some_missing(x, 0.4, 3)
    costs = {"filled": [], "held": [], "mean": []}
    for sequence, there in zip(x, mask, strict=True):
        present = there.nonzero()[:, 0].tolist()
        for frame in (~there).nonzero()[:, 0].tolist():
            if any(torch.equal(sequence[frame], sequence[one]) for one in present):
                continue
            lags = [(frame - one + 4) % 9 - 4 for one in present]
            nearest = min(range(len(lags)), key=lambda n, lags=lags: abs(lags[n]))
            guesses = {
                "held": sequence[present[nearest]],
                "filled": sequence[present[nearest]].roll(lags[nearest], -1),
                "mean": sequence[there].mean(0),
            }
            for name, guess in guesses.items():
                costs[name].append((guess - sequence[frame]).square().sum().item())
    assert found == pytest.approx({name: np.mean(all_) for name, all_ in costs.items()}, rel=1e-5)


# Everything at once -------------------------------------------------------------------------------


class Constant(torch.nn.Module):
    """A decoder that shows the same whatever t is."""

    frame_shape = (1, 1, 2)

    def forward(self, t):
        probabilities = torch.full((*t.shape[:-2], *self.frame_shape), 0.3)
        return Independent(Bernoulli(probabilities, validate_args=False), 3, validate_args=False)


class Prior(torch.nn.Module):
    """An encoder that returns the prior for every frame."""

    def forward(self, x):
        return Normal(torch.zeros(*x.shape[:2], 1, 4), 1.0)


@pytest.mark.parametrize("samples", [4, 25])
def test_bounds_of_a_model_that_ignores_its_latents_are_the_evidence(samples):
    """The papers' number is that plus the log of its ten samples, or of as many as there are."""
    model = tc.VAE(Prior(), Constant(), tc.Topography(1, (4,)))
    x = torch.rand(6, 5, 1, 1, 2).round()
    evidence = Bernoulli(torch.tensor(0.3)).log_prob(x).flatten(2).sum(2).mean().item()
    found = tc.evaluate(model, x, samples=samples)
    for bound in ("elbo", "log_px", "log_px_per_frame"):
        assert found[bound] == pytest.approx(evidence, rel=1e-5)
    paper = evidence + math.log(min(samples, 10))
    assert found["log_px_paper"] == pytest.approx(paper, rel=1e-5)


def test_the_share_of_a_factors_own_axis_is_the_mean_over_capsules():
    """One capsule goes down for one factor and to the right for another; the other stands still."""
    x = torch.zeros(2, 5, 5, 2, 5, 5)
    x[..., 1, :, :] = torch.rand(5, 5)
    start = torch.rand(5, 5, 5)
    for axis, frame in product(range(2), range(5)):
        x[axis, :, frame, 0] = start.roll(frame, 1 + axis)
    factors = torch.zeros(2, 5, 5, 2, dtype=torch.long)
    factors[0, ..., 0] = factors[1, ..., 1] = torch.arange(5)
    order, moving = torch.arange(50).reshape(10, 5), torch.arange(2).repeat_interleave(5)
    sequences = tc.Sequences(
        x.flatten(0, 2), order, factors.flatten(0, 2), ("down", "right"), moving
    )
    found = tc.evaluate(Shows.of(tc.Topography(2, (5, 5), window=3)), sequences, samples=1)
    assert found["axes"] == {"down": [[1, 0], [0, 0]], "right": [[0, 1], [0, 0]]}
    assert found["own_axis"] == {"down": 0.5, "right": 0.5}
