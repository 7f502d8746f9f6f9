"""The progress that is printed during training."""

import io

from rich.console import Console

import topocaps as tc
from topocaps.training.watching import SUMMARY, Lines, summarise

TERMS = {"elbo": -10.0, "log_px_given_t": -7.0, "kl_z": 1.0, "kl_u": 2.0}
TVAE = tc.TopographicVAE.mlp((4,), tc.Topography(2, (4,), window=3), hidden=4)
SUMMED = summarise(TVAE, TERMS)


def lines(**how):
    file = io.StringIO()
    watcher = Lines("model", Console(file=file, width=500), **how)
    watcher.start(0, 30)
    for step in range(1, 31):
        watcher.step(step, SUMMED)
        if step % 10 == 0:
            watcher.epoch({"epoch": step // 10, "step": step, **SUMMED})
    return file.getvalue().splitlines()


def test_lines_are_printed_after_epochs_and_always_after_the_last():
    assert [line.split()[1:3] for line in lines(seconds=0)] == [
        ["epoch", str(n)] for n in (1, 2, 3)
    ]
    assert [line.split()[1:3] for line in lines(seconds=1e9)][-1] == ["epoch", "3"]


def test_lines_are_printed_within_long_epochs():
    shown = lines(seconds=0, patience=0)
    assert len(shown) == 33 and "step 1 of 30" in shown[0] and "s left" in shown[0]


def test_the_summary_is_that_of_the_model_and_what_training_adds():
    assert SUMMED[SUMMARY] == "elbo -10.0 = -7.0 - kl z 1.0 - kl u 2.0"
    more = summarise(TVAE, {**TERMS, "validation_elbo": -11.5, "complaint": "collapsed"})
    assert more[SUMMARY] == SUMMED[SUMMARY] + ", validation elbo -11.50; collapsed"


def test_the_summary_ends_with_monitors_and_names_a_value_that_is_no_bound():
    means = dict.fromkeys(tc.PartWhole.terms + tc.PartWhole.monitors, 0.5)
    delta = tc.PartWhole((1, 8, 8), sizes=(2, 2), width=8, depth=1)
    normal = tc.PartWhole((1, 8, 8), sizes=(2, 2), width=8, depth=1, poses_are="normal")
    assert delta.summary(means).startswith("value (no bound) 0.5 = 0.5 - kl parts 0.5 - kl wholes")
    assert normal.summary(means).startswith("elbo 0.5 = 0.5")
    assert delta.summary(means).endswith(", clutter 0.50, wholes on 0.50, parts on 0.50")
