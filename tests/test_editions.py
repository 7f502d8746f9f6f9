"""Editions: their settings reach the models, and results of other settings are refused."""

import json
from dataclasses import fields, make_dataclass, replace
from pathlib import Path

import pytest
import torch
from test_results import COMMON
from torch import nn

import topocaps as tc
from topocaps.models.networks import Fan, Linear, Norm
from topocaps.papers.judging import distance
from topocaps.papers.page import _in_two_groups
from topocaps.papers.recipes import RECIPES, editions, find
from topocaps.papers.results import Results
from topocaps.study.quantity import Quantity
from topocaps.study.recipe import Recipe
from topocaps.training import Precision, Sgd

RESULTS = Results(Path(__file__).parents[1] / "results")
EDITIONS = [
    (data, edition)
    for data, found in (("mnist", editions.MNIST), ("sprites", editions.SPRITES))
    for edition in found
]


@pytest.mark.parametrize("name", RECIPES)
def test_every_stored_result_is_accepted_and_states_its_settings(name):
    recipe = RECIPES[name]
    for one in RESULTS.of(recipe):
        assert RESULTS.has(recipe, one["seed"])
        assert one["settings"] == json.loads(json.dumps(recipe.identity()))
        assert (one["edition"], one["clip"]) == (recipe.edition, recipe.training.clip)
        assert one["precision"] == recipe.training.precision


CHANGES = {
    "encoder_fan": lambda r: replace(r, encoder_fan=Fan.OUT),
    "decoder_fan": lambda r: replace(
        r, decoder_fan=Fan.IN if r.decoder_fan is Fan.OUT else Fan.OUT
    ),
    "epsilon": lambda r: replace(r, epsilon=r.epsilon + 1e-3),
    "corners": lambda r: replace(
        r, topography=replace(r.topography, reach=(3,), corners=not r.topography.corners)
    ),
    "norm": lambda r: replace(r, norm=Norm.PROJECTED),
    "reach": lambda r: replace(r, topography=replace(r.topography, reach=(2,))),
    "clip": lambda r: replace(r, training=replace(r.training, clip=12.0)),
    "precision": lambda r: replace(r, training=replace(r.training, precision=Precision.FP32)),
    "optimiser": lambda r: replace(r, training=replace(r.training, optimiser=Sgd(lr=1e-3))),
    "mu": lambda r: replace(r, mu=-5.0),
    "centre": lambda r: replace(r, data=replace(r.data, centre=13.0)),
}


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("data, edition", EDITIONS)
def test_a_result_of_one_other_setting_is_refused_by_name(data, edition, change, tmp_path):
    if change == "centre" and data == "sprites":
        return  # sprites have no centre
    length = "5_36" if data == "mnist" else "1_3"
    recipe = find(f"{data}/{edition}/tvae-{length}")
    results = Results(tmp_path)
    results.keep(recipe, 0, COMMON)
    assert results.has(recipe, 0)
    with pytest.raises(tc.BadInput, match=rf"tvae-{length}.* was made with other settings") as said:
        results.has(CHANGES[change](recipe), 0)
    assert {"optimiser": "lr", "reach": "reach"}.get(change, change) in str(said.value)


def test_a_stored_result_of_each_edition_with_results_is_refused_when_a_setting_changes():
    for name in ("mnist/letter/tvae-5_36", "mnist/submission/tvae-5_36", "sprites/letter/tvae-1_3"):
        with pytest.raises(
            tc.BadInput, match=r"seed-0.json was made with other settings .*epsilon"
        ):
            RESULTS.has(CHANGES["epsilon"](find(name)), 0)


def test_a_result_is_accepted_after_its_recipe_and_its_class_are_renamed(tmp_path):
    recipe = find("mnist/letter/tvae-5_36")
    renamed = make_dataclass("CalledOtherwise", [], bases=(Recipe,), frozen=True, kw_only=True)
    other = renamed(**{f.name: getattr(recipe, f.name) for f in fields(recipe)})
    assert type(other).__name__ != type(recipe).__name__
    assert RESULTS.has(other, 0)
    assert replace(recipe, name="called/otherwise", about="").fingerprint == recipe.fingerprint


def test_a_failed_run_is_not_run_again_and_records_its_settings(tmp_path):
    results, recipe = Results(tmp_path), find("mnist/camera-ready/tvae-0")
    results.keep_failure(recipe, 1, {"failure": "kl_u is not finite at step 35079", "epochs": 5})
    assert results.has(recipe, 1) and not results.has(recipe, 0)
    assert results.troubles(recipe) == ["seed 1: kl_u is not finite at step 35079"]
    with pytest.raises(tc.BadInput, match=r"failed-1.json was made with other settings.*clip"):
        results.has(find("mnist/camera-ready/tvae-0-clip"), 1) or results.has(
            recipe.change(["clip=1000"]), 1
        )


def test_no_two_recipes_of_tables_have_the_same_settings():
    seen = {}
    for recipe in RECIPES.values():
        assert recipe.fingerprint not in seen, (recipe.name, seen[recipe.fingerprint])
        seen[recipe.fingerprint] = recipe.name


@pytest.mark.parametrize("inputs, outputs", [(324, 648), (648, 972), (972, 2352)])
def test_fan_out_is_how_pytorch_initialises_a_transposed_convolution(inputs, outputs):
    """PyTorch takes the second axis of a weight for its fan-in: here that of outputs."""
    torch.manual_seed(0)
    theirs = nn.ConvTranspose2d(inputs, outputs, 1)
    ours = Linear(inputs, outputs, fan=Fan.OUT)
    bound = outputs**-0.5
    for one in (p.detach() for layer in (theirs, ours) for p in layer.parameters()):
        assert 0.98 * bound < one.abs().max() <= bound
        assert one.std() == pytest.approx(bound / 3**0.5, rel=0.1)
    for one in Linear(inputs, outputs).parameters():
        assert 0.98 * inputs**-0.5 < one.abs().max() <= inputs**-0.5


def test_an_edition_reaches_the_networks():
    for edition, fan in (("camera-ready", "outputs"), ("letter", "inputs")):
        model = find(f"mnist/{edition}/tvae-5_36").build((3, 28, 28), seed=0)
        for network, which in (
            (model.x_given_t.network, fan),
            (model.z_given_x.network, "inputs"),
            (model.u_given_x.network, "inputs"),
        ):
            for layer in network:
                if isinstance(layer, Linear):
                    width = layer.matrix.shape[0 if which == "outputs" else 1]
                    assert layer.matrix.detach().abs().max() == pytest.approx(width**-0.5, rel=0.01)
        assert model.epsilon.item() == pytest.approx(1e-6 if edition == "camera-ready" else 0.0)
        assert model.topography.corners == (edition == "letter")


def test_weight_norm_starts_lengths_and_directions_from_the_same_weights():
    torch.manual_seed(0)
    plain = Linear(40, 90, fan=Fan.OUT)
    torch.manual_seed(0)
    normed = Linear(40, 90, Norm.WEIGHT, Fan.OUT)
    assert torch.allclose(plain.weight, normed.weight)


def test_epsilon_is_added_to_every_energy():
    topography = tc.Topography(2, (5,), reach=(3,), window=3)
    z, u = torch.randn(2, 4, 6, 2, 5, dtype=torch.double)
    energy = topography.pool(u.square())
    t = tc.studentize(z, u, topography, mu=-3.0, epsilon=0.5)
    assert torch.allclose(t, (z + 3.0) / (energy + 0.5).sqrt())
    axes = tc.Topography(2, (4, 3), window=3)
    z, u = torch.randn(2, 2, 4, 2, 4, 3, dtype=torch.double)
    roots = [(axes.pool(u.square(), axis) + 0.5).sqrt() for axis in (0, 1)]
    assert torch.allclose(tc.studentize(z, u, axes, epsilon=0.5), z / sum(roots))
    assert torch.isfinite(tc.studentize(z, torch.zeros_like(u), axes, epsilon=1e-6)).all()


def test_the_prior_has_the_models_epsilon():
    topography = tc.Topography(1, (4,), window=2)
    model = tc.TopographicVAE.mlp((4,), topography, (8,), mu=-2.0, epsilon=3.0)
    torch.manual_seed(0)
    drawn = model.prior(frames=5).sample((2000,))
    torch.manual_seed(0)
    z, u = torch.randn(2000, 5, 1, 4), torch.randn(2000, 5, 1, 4)
    assert torch.allclose(drawn, tc.studentize(z, u, topography, -2.0, epsilon=3.0))


def test_models_with_different_epsilons_train_in_one_stack_as_they_do_alone():
    topography = tc.Topography(2, (4,), window=3)
    x = torch.rand(6, 4, 1, 4, 4)

    def models():
        torch.manual_seed(0)
        return [
            tc.TopographicVAE.mlp((1, 4, 4), topography, (6,), mu=-2.0, epsilon=epsilon)
            for epsilon in (0.0, 2.0)
        ]

    training = tc.Training(optimiser=Sgd(lr=1e-2), batch=2, epochs=2)
    together, alone = models(), models()
    tc.fit_together(together, x, training=training, seeds=[0, 0])
    for model in alone:
        tc.fit(model, x, training=training, seed=0)
    for one, other in zip(together, alone, strict=True):
        for a, b in zip(one.parameters(), other.parameters(), strict=True):
            assert torch.allclose(a, b, atol=1e-5)
    assert not torch.allclose(together[0].mu, together[1].mu)


def test_a_stream_and_a_loaded_model_have_the_models_epsilon(tmp_path):
    causal = tc.Topography(2, (4,), window=3, causal=True)
    model = tc.TopographicVAE.mlp((1, 4, 4), causal, (6,), epsilon=2.0, decoder_fan="out")
    x = torch.rand(2, 5, 1, 4, 4)
    stream = model.stream()
    streamed = torch.stack([stream(frame) for frame in x.unbind(1)], 1)
    assert torch.allclose(streamed, model.encode(x), atol=1e-6)
    tc.fit(model, x, epochs=1, out=tmp_path / "run")
    loaded = tc.load(tmp_path / "run")
    assert loaded.epsilon == 2.0 and loaded.config["decoder_fan"] == "out"
    assert torch.allclose(loaded.encode(x), model.encode(x), atol=1e-6)


@pytest.mark.parametrize(
    "settings, says",
    [
        ({"epsilon": -1.0}, "epsilon must be a number of at least 0"),
        ({"epsilon": "much"}, "epsilon must be a number of at least 0"),
        ({"decoder_fan": "both"}, "decoder_fan must be one of in, out"),
    ],
)
def test_invalid_settings_are_refused(settings, says):
    with pytest.raises(tc.BadInput, match=says):
        tc.TopographicVAE.mlp((4,), tc.Topography(1, (4,)), **settings)


def test_convolutional_models_have_an_epsilon_and_their_own_initialisation():
    recipe = find("sprites/tvae").change(["hidden=none", "convolutional=true", "epsilon=1e-6"])
    assert recipe.build((1, 32, 32), seed=0).epsilon.item() == pytest.approx(1e-6)
    for changes in ([], ["channels=4,8"]):
        says = "encoder_fan and decoder_fan are settings of multilayer perceptrons: leave them out"
        with pytest.raises(tc.BadInput, match=says):
            recipe.change([*changes, "decoder_fan=out"])
    with pytest.raises(tc.BadInput, match="a VAE has no"):
        find("sprites/vae").change(["epsilon=1"])


def test_the_released_edition_is_what_the_released_code_has():
    for name, window, corners, epsilon in (
        ("mnist/camera-ready/tvae-1_2", 18, False, 1e-6),
        ("mnist/camera-ready/tvae-5_36", 5, False, 1e-6),
        ("mnist/camera-ready/tvae-0", 1, True, 1e-6),
        ("mnist/camera-ready/bubble-5_36", 5, True, 1e-6),
        ("sprites/camera-ready/tvae-1_3", 10, True, 1e-6),  # K = 1 has no corners
        ("sprites/camera-ready/tvae-0", 1, True, 1e-3),
    ):
        recipe = find(name)
        assert (recipe.topography.window, recipe.topography.corners) == (window, corners)
        assert (recipe.epsilon, recipe.norm, recipe.training.clip) == (epsilon, Norm.NONE, None)
        assert (recipe.encoder_fan, recipe.decoder_fan) == (Fan.IN, Fan.OUT)
    assert find("mnist/camera-ready/vae").data.centre == 14.0
    combined = find("mnist/camera-ready/combined")
    assert (combined.topography.window, combined.topography.reach) == (13, (3,))
    torus = find("mnist/camera-ready/torus")
    assert (torus.training.optimiser.lr, torus.training.epochs, torus.mu) == (1e-4, 250, -10.0)


def test_the_distance_of_a_table_is_in_units_of_the_larger_spread(tmp_path):
    results, recipe = (
        Results(tmp_path),
        find("mnist/submission/tvae-5_36"),
    )  # −184.7 ± .7, 3,149.6 ± 20.8
    numbers = (
        Quantity(("log_px_paper",), "", 1),
        Quantity(("equivariance_error",), "", 0),
    )
    assert distance(results, (recipe,), numbers) is None
    for seed, (likelihood, error) in enumerate(
        ((-187.7, 3139.6), (-185.7, 3149.6), (-183.7, 3159.6))
    ):
        found = {"log_px_paper": likelihood, "equivariance_error": error}
        results.keep(recipe, seed, COMMON | found)
    mean, count = distance(results, (recipe,), numbers)  # |−185.7 + 184.7| / 2 and 0 / 20.8
    assert mean == pytest.approx(0.25) and count == 2


def test_seeds_in_two_groups_are_distinguished_from_seeds_that_vary():
    assert _in_two_groups([2900.0, 2910.0, 5100.0], digits=0)
    assert not _in_two_groups([0.66, 0.64, 0.68], digits=2)
    assert not _in_two_groups([-188.1, -188.2, -189.9], digits=1)
    assert not _in_two_groups([1.0, 5.0], digits=0)


ROWS = {
    "encoders' initial weights": lambda e: f"fan-{e.encoder_fan}",
    "decoder's initial weights": lambda e: f"fan-{e.decoder_fan}",
    "added to an energy (epsilon)": lambda e: f"{e.epsilon:g}",
    "added to an energy where L = 0": lambda e: f"{e.epsilon_single:g}",
    "corners of W": lambda e: "full" if e.corners else "cut",
    "norm of topographic models": lambda e: e.norm.value,
    "K where L > 0": lambda e: str(e.reach),
    "K where L = 0": lambda e: str(e.reach_single),
    "clip where L > 0": lambda e: f"{e.clip:g}" if e.clip else "none",
    "clip where L = 0": lambda e: f"{e.clip_single:g}" if e.clip_single else "none",
    "centre of rotation": lambda e: "middle" if e.centre is None else f"{e.centre:g}",
    "initial μ": lambda e: f"{e.mu:g}".replace("-", "−"),
    "torus: learning rate, epochs": lambda e: f"{e.torus.optimiser.lr:g}, {e.torus.epochs}",
    "torus: initial μ": lambda e: f"{e.torus_mu:g}".replace("-", "−"),
    "products": lambda e: e.training.precision.value,
}


@pytest.mark.parametrize("title, found", [("MNIST", editions.MNIST), ("sprites", editions.SPRITES)])
def test_the_page_of_differences_states_every_setting_of_every_edition(title, found):
    page = (Path(__file__).parents[1] / "docs" / "differences.md").read_text()
    header, _, *lines = next(
        block for block in page.split("\n\n") if block.startswith(f"| {title}")
    ).splitlines()
    names = [cell.strip(" `") for cell in header.split("|")[4:-1]]
    assert names == list(found)
    rows = {cells[1].strip(): [c.strip() for c in cells[4:-1]] for cells in map(split, lines)}
    if title == "MNIST":
        assert rows.keys() == ROWS.keys() - {"added to an energy where L = 0"}
    for label, cells in rows.items():
        assert cells == [ROWS[label](found[name]) for name in names], label


def split(line):
    return line.split("|")
