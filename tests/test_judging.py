"""What the papers say is judged by numbers: it holds, in part, not, or nobody can tell."""

from dataclasses import replace

import pytest
from scipy import stats
from test_results import COMMON

from topocaps.papers.claims import CLAIMS, CONCLUSIONS, OF_PARTS
from topocaps.papers.judging import Better, Learned
from topocaps.papers.page import write_page
from topocaps.papers.recipes import find
from topocaps.papers.results import Results
from topocaps.study.quantity import Quantity


def judged(results, claim):
    """The line of the page."""
    page = write_page(results).read_text()
    return next(line for line in page.splitlines() if claim.text in line)


def test_claims_are_judged_by_their_numbers(tmp_path):
    results = Results(tmp_path)
    claim = CLAIMS[0]  # K = 3 beats K = 1 on MNIST: log p(x) and gain are higher

    def keep(recipe, likelihoods, gains):
        for seed, (likelihood, gain) in enumerate(zip(likelihoods, gains, strict=True)):
            numbers = {"log_px_paper": likelihood, "log_px": likelihood, "traversal_gain": gain}
            results.keep(recipe, seed, COMMON | numbers)

    assert "Claims" not in write_page(results).read_text()
    keep(claim.that, [-190.0, -191.0, -189.0], [-0.1, 0.0, 0.1])
    for likelihoods, gains, verdict in (
        ([-185.0, -186.0, -184.0], [0.8, 0.9, 1.0], "holds"),
        ([-185.0, -186.0, -184.0], [-0.1, 0.0, 0.1], "holds in part"),
        ([-190.1, -191.1, -189.1], [-0.2, -0.1, 0.0], "does not hold"),
    ):
        keep(claim.this, likelihoods, gains)
        line = judged(results, claim)
        assert f"| **{verdict}** |" in line and "against −190.0" in line


def test_a_claim_can_compare_two_numbers_of_one_model(tmp_path):
    results, claim = Results(tmp_path), OF_PARTS[1]  # free-form inference adds to what is read
    for fitted, verdict in ((0.96, "holds"), (0.95, "does not hold"), (0.86, "does not hold")):
        for seed, noise in enumerate((-0.001, 0.0, 0.001)):
            read = {"amortised": 0.95 + noise, "optimised, refitted": fitted + noise}
            numbers = {"free_form": {name: {"presences": value} for name, value in read.items()}}
            results.keep(claim.this, seed, COMMON | numbers)
        line = judged(results, claim)
        assert f"| **{verdict}** |" in line and "against amortised 0.950" in line


def test_single_seeds_are_judged_by_the_spread_of_others_or_not_at_all(tmp_path):
    results, claim = Results(tmp_path), CLAIMS[0]

    def keep(recipe, seed, likelihood):
        numbers = {"log_px_paper": likelihood, "log_px": likelihood, "traversal_gain": -1.0}
        results.keep(recipe, seed, COMMON | numbers)

    keep(claim.this, 0, -190.0)
    keep(claim.that, 0, -190.5)
    assert "not decided: single seeds" in judged(results, claim)
    for seed, likelihood in enumerate((-188.0, -188.1, -188.2)):  # trained otherwise
        keep(find("mnist/fast/vae"), seed, likelihood)
    assert "not decided: single seeds" in judged(results, claim)
    for seed, likelihood in enumerate((-188.0, -188.1, -188.2)):  # without the norm of both
        keep(find("mnist/submission/vae"), seed, likelihood)
    assert "not decided: single seeds" in judged(results, claim)
    for seed, likelihood in enumerate((-188.0, -189.0, -190.0)):  # a spread of 1
        keep(find("mnist/submission/vae-wn"), seed, likelihood)
    assert "not decided: single seeds" in judged(results, claim)  # one could have been the other
    keep(claim.this, 0, -187.0)
    assert "holds in part" in judged(results, claim)  # the likelihoods, and not the gain
    keep(claim.this, 0, -194.0)
    assert "does not hold" in judged(results, claim)
    keep(claim.this, 0, -190.0)
    for seed, likelihood in enumerate((-188.0, -188.1, -188.2)):  # which sees as much
        keep(find("mnist/submission/tvae-5_36-mu0"), seed, likelihood)
    assert "holds in part" in judged(results, claim)


def test_a_conclusion_does_not_hold_if_untrained_models_have_the_same_numbers(tmp_path):
    """E_eq of a trained model must be lower than that of the same model before its first step."""
    results = Results(tmp_path)
    learned = next(one for one in CONCLUSIONS if isinstance(one, Learned))
    assert "Conclusions" not in write_page(results).read_text()
    for trained, verdict in (([400, 410], "holds"), ([500, 510], "does not hold")):
        for seed, error in enumerate(trained):
            numbers = {"equivariance_error": error, "untrained": {"equivariance_error": 450 + seed}}
            results.keep(learned.recipes[0], seed, COMMON | numbers)
        line = judged(results, learned)
        assert f"| **{verdict}** |" in line and (learned.why in line) == (verdict != "holds")


def test_a_number_without_several_seeds_has_the_spread_of_a_similar_number(tmp_path):
    results = Results(tmp_path)
    bubble, vae, rolled = (
        find(f"mnist/submission/{name}") for name in ("bubble-5_36", "vae-wn", "tvae-5_36")
    )
    held = Quantity(("held", "traversal_gain"), "held", 2, spread_like=("traversal_gain",))
    for recipe, gain in ((bubble, -3.7), (vae, -7.0)):
        results.keep(recipe, 0, COMMON | {"traversal_gain": gain, "held": {"traversal_gain": gain}})
    claim = Better("stands for others", bubble, vae, higher=(held,))
    assert claim.judge(results).verdict == "not decided: single seeds"
    for seed, gain in enumerate((-6.0, -7.0, -8.0)):  # a spread of 1
        results.keep(rolled, seed, COMMON | {"traversal_gain": gain})
    assert claim.judge(results).verdict == "holds"
    assert replace(claim, higher=(replace(held, spread_like=()),)).judge(results).verdict != "holds"
    for seed, gain in enumerate((-3.0, -7.0)):  # its own spread goes first
        results.keep(rolled, seed, COMMON | {"held": {"traversal_gain": gain}})
    assert claim.judge(results).verdict == "not decided: single seeds"


@pytest.mark.parametrize("beyond, verdict", [(1e-3, "holds"), (-1e-3, "does not hold")])
def test_a_difference_counts_above_two_standard_errors(beyond, verdict, tmp_path):
    """Those of Welch's test, which knows seeds of unequal number and spread."""
    results, claim = Results(tmp_path), CLAIMS[0]
    those, these = [0.0, -1.5, 1.0, -0.2], [0.2, -0.2]
    two = stats.ttest_ind(these, those, equal_var=False)
    standard_error = (sum(these) / 2 - sum(those) / 4) / two.statistic
    shift = (2 + beyond - two.statistic) * standard_error
    for recipe, values in ((claim.that, those), (claim.this, [one + shift for one in these])):
        for seed, value in enumerate(values):
            numbers = {"log_px_paper": value, "log_px": value, "traversal_gain": value}
            results.keep(recipe, seed, COMMON | numbers)
    assert f"| **{verdict}** |" in judged(results, claim)
