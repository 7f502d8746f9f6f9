"""What a person sees while a model trains."""

import io

from rich.console import Console

from topocaps.training.watching import Lines, describe

TERMS = {"elbo": -10.0, "log_px_given_t": -7.0, "kl_z": 1.0, "kl_u": 2.0}


def lines(**how):
    file = io.StringIO()
    watcher = Lines("model", Console(file=file, width=500), **how)
    watcher.start(0, 30)
    for step in range(1, 31):
        watcher.step(step, TERMS)
        if step % 10 == 0:
            watcher.epoch({"epoch": step // 10, "step": step, **TERMS})
    return file.getvalue().splitlines()


def test_a_log_has_a_line_an_epoch_and_the_last_one_always():
    assert [line.split()[1:3] for line in lines(seconds=0)] == [
        ["epoch", str(n)] for n in (1, 2, 3)
    ]
    assert [line.split()[1:3] for line in lines(seconds=1e9)][-1] == ["epoch", "3"]


def test_a_log_shows_steps_where_epochs_are_long():
    shown = lines(seconds=0, patience=0)
    assert len(shown) == 33 and "step 1 of 30" in shown[0] and "s left" in shown[0]


def test_terms_add_up_in_words_and_a_complaint_is_told():
    assert describe(TERMS) == "elbo -10.0 = -7.0 - kl z 1.0 - kl u 2.0"
    assert describe({**TERMS, "clutter": 0.5}).endswith(", clutter 0.50")
    assert describe({**TERMS, "complaint": "collapsed"}).endswith("; collapsed")
