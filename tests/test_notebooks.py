"""The notebook that builds a rolling VAE from scratch runs, and computes what the library does."""

import json
import math

import pytest
import torch
from test_docs import ROOT, kinds, said, tool, words

import topocaps as tc

NOTEBOOK = ROOT / "examples" / "rolling_vae.ipynb"
KNOWN, UNKNOWN = (tc.motions.Known(1), tc.motions.Unknown((-1, 1)))


@pytest.fixture(scope="module")
def stored():
    return json.loads(NOTEBOOK.read_text())


@pytest.fixture(scope="module")
def ran(stored, tmp_path_factory):
    """The notebook, run with three steps of training, and the names that it defines."""
    (fit,) = (cell for cell in stored["cells"] if cell["id"] == "fit")
    shorter = {
        **fit,
        "source": "".join(fit["source"]).replace("STEPS, BATCH = 800,", "STEPS, BATCH = 3,"),
    }
    assert shorter["source"] != "".join(fit["source"])
    cells = [shorter if cell is fit else cell for cell in stored["cells"]]
    names = {}
    ran = tool("execute").run_notebook(
        {**stored, "cells": cells}, tmp_path_factory.mktemp("run"), names
    )
    with torch.no_grad():
        for parameter in names["encoder"].double().parameters():
            parameter.mul_(8.0)  # so that some precisions reach their limits
    names["decoder"].double()
    return ran, names


@pytest.fixture(scope="module")
def names(ran):
    return ran[1]


def library(names, motion):
    """The library's model with the weights of the notebook."""
    topography = tc.Topography(names["CAPSULES"], (names["SITES"],))
    model = tc.RollingVAE.mlp((1, 28, 28), topography, hidden=400, motion=motion).double()
    weights = {}
    for name, ours in (("z_given_x", names["encoder"]), ("x_given_t", names["decoder"])):
        for key, value in ours.state_dict().items():
            weights[f"{name}.network.{key.replace('weight', 'matrix')}"] = value
    model.load_state_dict(weights)
    return model


def given(batch=4, frames=7):
    """Frames, visible ones (of the last sequence, none), and noise."""
    generator = torch.Generator().manual_seed(1)
    x = torch.rand(batch, frames, 1, 28, 28, generator=generator, dtype=torch.float64)
    visible = torch.rand(batch, frames, generator=generator) < 0.5
    visible[:-1, 2], visible[-1] = True, False
    noise = torch.randn(batch, 12, 15, generator=generator, dtype=torch.float64)
    return x, visible, noise


def assert_equal(ours, theirs):
    torch.testing.assert_close(ours, theirs, rtol=1e-11, atol=1e-11)


def test_it_gives_what_is_stored(stored, ran):
    pictures = 0
    for before, now in zip(stored["cells"], ran[0]["cells"], strict=True):
        kept, made = before.get("outputs", []), now.get("outputs", [])
        assert [kinds(output) for output in kept] == [kinds(output) for output in made]
        pictures += sum("image/png" in kinds(output) for output in made)
        assert words(said(kept)) == words(said(made))
    assert pictures == 4
    assert NOTEBOOK.stat().st_size < 400_000


@pytest.mark.parametrize("v", [-1, 1])
def test_posteriors_are_those_of_the_library(names, v):
    x, visible, _ = given()
    mean, precision = names["posterior"](x.flatten(2), visible, v)
    q = library(names, tc.motions.Known(v)).posteriors(x, visible)
    assert_equal(mean, q.q.mean[0])
    assert_equal(precision, q.q.variance[0].reciprocal())
    assert (precision > math.exp(8)).any() and (precision[-1] == 1).all()


def test_bounds_are_those_of_the_library(names):
    x, visible, noise = given()
    theirs = library(names, KNOWN).evidence_from(x, visible, noise).elbo.sum(1)
    assert_equal(names["bound"](x.flatten(2), visible, noise), theirs)


def test_bounds_with_an_unknown_direction_are_those_of_the_library(names):
    x, visible, noise = given()
    theirs = library(names, UNKNOWN).evidence_from(x, visible, noise).elbo.sum(1)
    assert_equal(names["unknown_bound"](x.flatten(2), visible, noise), theirs)


@pytest.mark.parametrize("v", [-1, 1])
def test_predictions_are_those_of_the_library(names, v):
    x, visible, _ = (one[:-1] for one in given())  # in the last sequence nothing is visible
    lags = [-3, 0, 4, 9]
    theirs = library(names, tc.motions.Known(v)).predict(x, visible, lags).mean.flatten(2)
    assert_equal(names["predict"](x.flatten(2), visible, lags, v), theirs)


def test_gains_are_those_of_the_library(names):
    x, visible, _ = given()
    predicted = x.roll(1, 0)
    theirs = tc.metrics.prediction(x, predicted, ~visible).overall
    ours = names["gain"](x.flatten(2), predicted.flatten(2), ~visible)
    assert ours == pytest.approx(theirs, rel=1e-5)  # the library compares costs in float32


def test_streams_are_those_of_the_library(names):
    x, _, _ = given()
    stream = library(names, KNOWN).stream()
    for frame, (mean, precision) in enumerate(names["stream"](x.flatten(2))):
        stream(x[:, frame])
        q = stream.posteriors()
        assert_equal(mean, q.q.mean[0])
        assert_equal(precision, q.q.variance[0].reciprocal())


def test_visible_frames_are_stretches_of_three_or_more(names):
    torch.manual_seed(0)
    visible = names["stretches"](2_000).int()
    assert set(visible.sum(1).tolist()) == set(range(3, 16))
    edges = torch.nn.functional.pad(visible, (1, 1)).diff(dim=1)
    assert (edges.abs().sum(1) == 2).all()  # each begins once and ends once
    assert (visible.float().mean(0) > 0.2).all()


def test_the_exact_kl_inside_the_logarithm_exceeds_the_evidence(names):
    sampled, with_kl, exact = (names[name] for name in ("with_weights", "with_kl", "exact"))
    torch.testing.assert_close(sampled, exact.expand_as(sampled), rtol=1e-5, atol=1e-5)
    error = with_kl.std() / len(with_kl) ** 0.5
    assert with_kl.mean() > exact + 10 * error
