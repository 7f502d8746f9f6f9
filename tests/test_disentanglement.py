"""Disentanglement: cases with known answers, and the published definitions.

The functions ``reference_*`` implement the definitions with scikit-learn and numpy alone. The
library agrees with them to 1e-12. The FactorVAE score draws other random numbers, and agrees to 4
standard errors.
"""

import itertools
import math
import sys
from collections import Counter

import numpy as np
import pytest
import torch
from scipy.stats import entropy
from sklearn.ensemble import GradientBoostingClassifier, RandomForestClassifier
from sklearn.metrics import mutual_info_score
from sklearn.svm import LinearSVC

from topocaps import BadInput
from topocaps.metrics import dci, equal_counts, equal_widths, factor_vae_score, mig, sap


def grid(*sizes, repeats=1):
    """Every combination of values."""
    rows = np.array(list(itertools.product(*map(range, sizes))))
    return np.tile(rows, (repeats, 1))


def perfect(repeats=10):
    """Factors, and codes that are these and a dimension of nothing."""
    factors = grid(5, 4, 3, repeats=repeats)
    nothing = np.random.default_rng(0).normal(size=(len(factors), 1))
    return np.concatenate([2.0 * factors - 1, 0.01 * nothing], 1), factors


def mixed(items=600):
    """Codes between perfect and useless."""
    rng = np.random.default_rng(1)
    factors = np.stack([rng.integers(size, size=items) for size in (4, 3, 5)], 1)
    codes = factors @ rng.normal(size=(3, 5)) + rng.normal(size=(items, 5))
    return codes, factors


def noise(items=900):
    rng = np.random.default_rng(2)
    return rng.normal(size=(items, 5)), np.stack([rng.integers(n, size=items) for n in (3, 4)], 1)


FUNCTIONS = {"mig": mig, "sap": sap, "dci": dci, "factor_vae_score": factor_vae_score}
every_function = pytest.mark.parametrize("function", FUNCTIONS.values(), ids=FUNCTIONS.keys())


# closed cases


def test_perfect_codes_have_a_mig_of_one():
    # the unrelated dimension shares ln-bias of a finite sample only; discrete codes share nothing
    codes, factors = perfect()
    assert mig(codes[:, :3], factors).value == pytest.approx(1, abs=1e-12)
    assert mig(codes[:, :3], factors, discretise=equal_widths).value == pytest.approx(1, abs=1e-12)


def test_perfect_codes_are_disentangled_complete_and_informative():
    found = dci(*perfect())
    assert found.disentanglement == pytest.approx(1, abs=1e-9)
    assert found.completeness == pytest.approx(1, abs=1e-9)
    assert found.informativeness == 1
    np.testing.assert_allclose(found.importances, np.eye(4, 3), atol=1e-9)


def test_perfect_codes_tell_which_factor_is_fixed():
    found = factor_vae_score(*perfect(), votes=600, tests=300, batch=30)
    assert found.value == 1 and found.settings["chance"] == pytest.approx(1 / 3)


def test_sap_of_two_values_is_one_less_the_accuracy_of_nothing():
    """Where one dimension says all and the others say nothing of a balanced pair, SAP is 1/2."""
    factors = grid(2, 2, repeats=300)
    found = sap(factors.astype(float), factors)
    assert found.value == pytest.approx(0.5, abs=0.03)  # 400 tested: 0.025 is a standard error
    assert set(found.by_factor) == {0, 1}


def test_independent_noise_is_near_zero():
    codes, factors = noise()
    assert mig(codes, factors).value < 0.03
    assert sap(codes, factors).value < 0.05
    found = dci(codes, factors)
    assert found.disentanglement < 0.05 and found.completeness < 0.05
    assert abs(found.informativeness - found.chance) < 0.1
    assert factor_vae_score(codes, factors, votes=1000, tests=1000).value < 0.62  # chance is 0.5


def test_mig_by_hand():
    """v is a fair bit. c1 is v but for one item in four, c2 is another bit.

    I(c1; v) = ln 2 - H(1/4) and I(c2; v) = 0, in units of ln 2.
    """
    v = np.repeat([0, 1], 8)
    c1 = np.where(np.arange(16) % 4 == 0, 1 - v, v)
    c2 = np.arange(16) // 4 % 2
    noise_entropy = -(0.25 * math.log(0.25) + 0.75 * math.log(0.75))
    wanted = 1 - noise_entropy / math.log(2)
    found = mig(np.stack([c1, c2], 1), v[:, None], bins=2)
    assert found.value == pytest.approx(wanted, abs=1e-12)


@pytest.mark.parametrize("bins", [2, 7, 20])
def test_mig_does_not_see_order_nor_increasing_maps(bins):
    codes, factors = mixed()
    wanted = mig(codes, factors, bins).value
    assert wanted > 0.02
    assert mig(codes[:, [3, 1, 4, 0, 2]], factors, bins).value == pytest.approx(wanted, abs=1e-12)
    bent = np.stack([np.exp(codes[:, 0]), codes[:, 1] ** 3, *np.arctan(codes[:, 2:]).T], 1)
    assert mig(bent, factors, bins).value == pytest.approx(wanted, abs=1e-12)
    assert mig(codes, factors[:, ::-1], bins).value == pytest.approx(wanted, abs=1e-12)
    assert mig(codes, 7 - 3 * factors, bins).value == pytest.approx(wanted, abs=1e-12)
    assert mig(5 * codes + 2, factors, bins, equal_widths).value == pytest.approx(
        mig(codes, factors, bins, equal_widths).value, abs=1e-12
    )


def test_a_duplicated_code_has_no_gap():
    codes, factors = perfect()
    twice = np.concatenate([codes[:, :3], codes[:, :3]], 1)
    assert mig(twice, factors).value == pytest.approx(0, abs=1e-12)
    assert sap(twice, factors).value == 0
    found = dci(twice, factors)
    assert found.disentanglement == pytest.approx(1, abs=1e-9)
    assert found.completeness < 0.7


def test_bins_have_equal_numbers_and_equal_values_share_a_bin():
    values = np.random.default_rng(0).normal(size=100)
    assert (np.bincount(equal_counts(values, 20)) == 5).all()
    np.testing.assert_array_equal(equal_counts(np.array([3.0, 1, 3, 3]), 4), [1, 0, 1, 1])
    np.testing.assert_array_equal(equal_widths(np.array([0, 0.4, 0.6, 1]), 2), [0, 0, 1, 1])
    assert (equal_widths(np.ones(5), 20) == equal_widths(np.ones(5), 20)[0]).all()


# the definitions, another way


def halves(items, seed=0):
    """Two thirds to learn from, as documented: the first of numpy's permutation."""
    order = np.random.default_rng(seed).permutation(items)
    cut = round(items * 2 / 3)
    return np.sort(order[:cut]), np.sort(order[cut:])


@pytest.mark.parametrize("discretise", [equal_counts, equal_widths])
def test_mig_is_that_of_mutual_info_score(discretise):
    codes, factors = mixed()
    gaps = []
    for v in factors.T:
        shared = []
        for c in codes.T:
            if discretise is equal_counts:
                inner = np.quantile(c, np.arange(1, 20) / 20, method="inverted_cdf")
                cut = (c[:, None] > inner).sum(1)
            else:  # disentanglement_lib's: digitize with numpy's histogram
                cut = np.digitize(c, np.histogram(c, 20)[1][:-1])
            shared.append(mutual_info_score(v, cut))
        best = np.sort(shared)[::-1]
        gaps.append((best[0] - best[1]) / entropy(np.bincount(v)))
    found = mig(codes, factors, 20, discretise)
    assert found.value == pytest.approx(np.mean(gaps), abs=1e-12)
    assert list(found.by_factor.values()) == pytest.approx(gaps, abs=1e-12)


@pytest.mark.parametrize("standardise", [True, False])
def test_sap_is_that_of_its_definition(standardise):
    codes, factors = mixed()
    train, test = halves(len(codes), seed=3)
    accuracies = np.zeros((codes.shape[1], factors.shape[1]))
    for i, j in itertools.product(*map(range, accuracies.shape)):
        c = codes[:, [i]]
        if standardise:
            c = (c - c[train].mean()) / c[train].std()
        machine = LinearSVC(C=0.01, class_weight="balanced").fit(c[train], factors[train, j])
        accuracies[i, j] = (machine.predict(c[test]) == factors[test, j]).mean()
    accuracies.sort(0)
    wanted = (accuracies[-1] - accuracies[-2]).mean()
    found = sap(codes, factors, seed=3, standardise=standardise)
    assert wanted > 0 and found.value == pytest.approx(wanted, abs=1e-12)


def boosted(seed):
    return GradientBoostingClassifier(n_estimators=8, random_state=seed)


@pytest.mark.parametrize("trees", ["forest", "boosted"])
def test_dci_is_that_of_its_formula(trees):
    codes, factors = mixed(300)
    train, test = halves(len(codes))
    importances, right, commonest = [], [], []
    for v in factors.T:
        if trees == "boosted":
            model = boosted(0)
        else:
            model = RandomForestClassifier(n_estimators=100, max_features=None, random_state=0)
        model.fit(codes[train], v[train])
        importances.append(model.feature_importances_)
        right.append((model.predict(codes[test]) == v[test]).mean())
        commonest.append((v[test] == Counter(v[train].tolist()).most_common(1)[0][0]).mean())
    r = np.array(importances).T  # dims factors
    one_dim = [1 - entropy(row, base=3) for row in r]
    one_factor = [1 - entropy(row, base=5) for row in r.T]
    found = dci(codes, factors) if trees == "forest" else dci(codes, factors, classifier=boosted)
    assert found.disentanglement == pytest.approx(np.average(one_dim, weights=r.sum(1)), abs=1e-12)
    assert found.completeness == pytest.approx(np.mean(one_factor), abs=1e-12)
    assert found.informativeness == pytest.approx(np.mean(right), abs=1e-12)
    assert found.chance == pytest.approx(np.mean(commonest), abs=1e-12)


def test_factor_vae_score_is_that_of_its_definition():
    """Vote by vote, counted in a dict: 2,000 tests each, 4 standard errors."""
    codes, factors = mixed(1500)
    rng = np.random.default_rng(9)
    total = codes.var(0)

    def vote():
        k = rng.integers(3)
        value = factors[rng.integers(len(factors)), k]
        batch = rng.choice(np.flatnonzero(factors[:, k] == value), 8)
        return int(np.argmin(codes[batch].var(0, ddof=1) / total)), k

    table = Counter(vote() for _ in range(2000))
    stands_for = {dim: max(range(3), key=lambda k: table[dim, k]) for dim in range(5)}
    wanted = np.mean([stands_for[dim] == k for dim, k in (vote() for _ in range(2000))])
    found = factor_vae_score(codes, factors, batch=8, votes=2000, tests=2000)
    error = math.sqrt(2 * wanted * (1 - wanted) / 2000)
    assert 0.4 < wanted < 0.95 and abs(found.value - wanted) < 4 * error


# what goes in


@every_function
def test_arrays_tensors_and_sequences_are_the_same_items(function):
    codes, factors = perfect(repeats=6)
    plain = function(codes, factors)
    # every item its own sequence of one frame, of capsules of two sites
    wide = torch.from_numpy(codes).reshape(-1, 1, 2, 2)
    found = function(wide, torch.from_numpy(factors)[:, None])
    assert found.settings == plain.settings
    if function is dci:
        assert found.disentanglement == plain.disentanglement
    else:
        assert found == plain
        function(wide.bfloat16().requires_grad_(), torch.from_numpy(factors)[:, None])


def test_frames_of_one_sequence_are_not_learnt_from_and_tested_on():
    """A code that names its sequence says nothing of the random class of another."""
    rng = np.random.default_rng(0)
    classes = np.stack([rng.integers(2, size=90), rng.integers(2, size=90)], 1)
    codes = np.broadcast_to(rng.normal(size=(90, 1, 3)), (90, 6, 3))
    factors = np.broadcast_to(classes[:, None], (90, 6, 2))
    assert dci(codes, factors).informativeness < 0.7
    assert dci(codes.reshape(-1, 3), factors.reshape(-1, 2)).informativeness > 0.95


@every_function
def test_a_factor_of_one_value_is_left_out_and_listed(function):
    codes, factors = perfect()
    still = np.insert(factors, 1, 7, axis=1)
    found = function(codes, still)
    assert found.settings["left_out"] == [1] and found.settings["factors"] == [0, 2, 3]
    if function is not dci:
        assert found.value == function(codes, factors).value
        assert set(found.by_factor) == {0, 2, 3}


def test_values_too_rare_to_fill_a_batch_are_not_drawn():
    codes, factors = perfect()
    names = np.arange(len(factors))[:, None]
    found = factor_vae_score(codes, np.concatenate([names, factors], 1), votes=90, tests=90)
    assert found.settings["left_out"] == [0] and found.value == 1


def test_dead_dimensions_cast_no_votes():
    codes, factors = perfect()
    wanted = factor_vae_score(codes[:, :3], factors, votes=90, tests=90)
    flat = np.concatenate([np.zeros((len(codes), 2)), codes[:, :3]], 1)
    found = factor_vae_score(flat, factors, votes=90, tests=90)
    assert found.settings["active"] == 3 and found.value == wanted.value == 1
    assert factor_vae_score(0 * codes, factors).value == 0


@every_function
def test_collapsed_codes_have_a_score(function):
    codes, factors = perfect()
    found = function(0 * codes, factors)
    assert (found.disentanglement if function is dci else found.value) == pytest.approx(
        0, abs=1e-12
    )


@every_function
def test_scores_list_their_settings(function):
    settings = function(*perfect()).settings
    assert settings["items"] == 600 and settings["dims"] == 4
    assert settings.keys() & {"classifier", "discretiser"}
    assert settings.keys() & {"seed", "bins"}


@every_function
@pytest.mark.parametrize(
    "spoil, match",
    [
        (lambda c, f: (c[:-1], f), "must be"),
        (lambda c, f: (c, f[:, 0]), "must be"),
        (lambda c, f: (c[:, 0], f), "must be"),
        (lambda c, f: (c[None], f), "must be"),
        (lambda c, f: (np.where(c == c[3], np.nan, c), f), "finite"),
        (lambda c, f: (c, f.astype(float)), "integers"),
        (lambda c, f: (c, 0 * f), "single value"),
        (lambda c, f: (c[:0], f[:0]), "no codes"),
        (lambda c, f: (c.astype(str), f), "numbers"),
        (lambda c, f: (torch.from_numpy(c + 1j), f), "numbers"),
    ],
)
def test_invalid_codes_and_factors_are_refused(function, spoil, match):
    with pytest.raises(BadInput, match=match) as refusal:
        function(*spoil(*perfect()))
    assert "\n" not in str(refusal.value)


def test_invalid_settings_are_refused():
    codes, factors = perfect()
    with pytest.raises(BadInput, match="bins"):
        mig(codes, factors, bins=0)
    with pytest.raises(BadInput, match="two dimensions"):
        mig(codes[:, :1], factors)
    with pytest.raises(BadInput, match="two dimensions"):
        sap(codes[:, :1], factors)
    with pytest.raises(BadInput, match="two factors"):
        dci(codes, factors[:, :1])
    with pytest.raises(BadInput, match="smaller batch"):
        factor_vae_score(codes, factors, batch=1000)
    with pytest.raises(BadInput, match="variance"):
        factor_vae_score(codes, factors, batch=1)
    with pytest.raises(BadInput, match="more items"):
        sap(codes[:2], np.array([[0], [1]]))


@pytest.mark.parametrize("function, part", [(sap, "sklearn.svm"), (dci, "sklearn.ensemble")])
def test_a_missing_scikit_learn_is_named(function, part, monkeypatch):
    monkeypatch.setitem(sys.modules, part, None)
    with pytest.raises(BadInput, match=r"pip install 'topocaps\[metrics\]'"):
        function(*perfect())
