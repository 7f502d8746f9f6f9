"""Recipes are data, and what is changed in them is checked."""

import json
import math

import pytest
import torch

import topocaps as tc
from topocaps.papers.recipes import RECIPES, find
from topocaps.papers.tables import TABLES
from topocaps.study.data import (
    GrowingSprites,
    Letters,
    Mnist,
    MovedMnist,
    OwnSequences,
    Sprites,
    StillMnist,
)
from topocaps.study.recipe import BaseRecipe, Recipe


@pytest.mark.parametrize("recipe", RECIPES.values(), ids=RECIPES.keys())
def test_every_recipe_is_the_same_after_json(recipe):
    again = BaseRecipe.from_json(json.loads(json.dumps(recipe.to_json())))
    assert again == recipe and type(again) is type(recipe)
    assert BaseRecipe.from_json(recipe.to_json()) == recipe
    assert again.fingerprint == recipe.fingerprint


@pytest.mark.parametrize(
    "data",
    [
        Sprites(resolution=32, speed=2, moving=("x", "y")),
        GrowingSprites(resolution=16),
        Mnist(evaluated=20, motion="combined", centre=14, speeds=(-1, 2)),
        Mnist(unseen=(8, 9), images=100),
        Letters(share=0.5, arc=8),
        StillMnist(),
        MovedMnist(degrees=30.0, canvas=40, shift=None, scale=(0.8, 1.2)),
        OwnSequences("clips", frames=12, size=(32, 40), grey=True, skip_bad=True, shift=2),
    ],
    ids=lambda data: type(data).__name__,
)
def test_all_data_and_settings_are_the_same_after_json(data):
    topography = tc.Topography(2, (5, 4), (2, 1), 3, velocity=0.5, causal=True, apart=True)
    training = tc.Training(tc.Sgd(lr=0.1), epoch_size=8, clip=2.0, precision="tf32", patience=3)
    recipe = Recipe(
        name="a/b", about="c", data=data, topography=topography, hidden=(5, 4), mu=-2.0,
        norm="weight", likelihood="gaussian", centred=True, learned="velocity", sparsity=0.1,
        encoder_fan="out", epsilon=0.5, rate=0.5, unseen_window=4, training=training,
        claims={"capcorr": {"x": (1, 0.5)}, "note": "d"}, edition="letter",
    )  # fmt: skip
    assert BaseRecipe.from_json(json.loads(json.dumps(recipe.to_json()))) == recipe


def test_a_recipe_of_an_unknown_family_is_refused():
    with pytest.raises(tc.BadInput, match="no recipes of 'Diffusion' models"):
        BaseRecipe.from_json({**RECIPES["sprites/tvae"].to_json(), "model": "Diffusion"})


@pytest.mark.parametrize(
    "name, change, says",
    [
        ("sprites/vae", "mu=-5", "a VAE has no mu"),
        ("sprites/vae", "centred=true", "a VAE has no centred"),
        ("sprites/vae", "learned=weights", "a VAE has no learned"),
        ("sprites/vae", "sparsity=1", "a VAE has no sparsity"),
        ("sprites/vae", "epsilon=1", "a VAE has no epsilon"),
        ("sprites/tvae", "convolutional=true", "without channels have no hidden layers"),
        ("sprites/tvae", "channels=(8,8)", "channels needs convolutional networks"),
        ("rolling/mnist-vae-convolutions", "hidden=8,8", "at most one hidden layer"),
        ("rolling/mnist", "data.speeds=(0.5,)", "speeds must be whole numbers"),
        ("sprites/tvae", "sizes=(2,3)", "no setting 'sizes'"),
        ("capsules/mnist", "window=3", "no setting 'window'"),
    ],
)
def test_settings_of_another_family_are_refused(name, change, says):
    with pytest.raises(tc.BadInput, match=says):
        find(name).change([change])


@pytest.mark.parametrize("recipe", RECIPES.values(), ids=RECIPES.keys())
def test_every_recipe_builds_from_its_seed(recipe):
    model = recipe.build((1, 32, 32), seed=0)
    again = recipe.build((1, 32, 32), seed=0)
    for one, other in zip(model.parameters(), again.parameters(), strict=True):
        assert torch.equal(one, other)
    other = recipe.build((1, 32, 32), seed=1)
    assert any(
        not torch.equal(a, b) for a, b in zip(model.parameters(), other.parameters(), strict=True)
    )


TOPOGRAPHIC = {n: r for n, r in RECIPES.items() if isinstance(r, Recipe) and "capsules/" not in n}


@pytest.mark.parametrize("recipe", TOPOGRAPHIC.values(), ids=TOPOGRAPHIC.keys())
def test_every_recipe_of_sequences_has_frames_to_predict(recipe):
    frames = 30 if recipe.rate == 0.5 else math.prod(recipe.topography.shape)
    window = recipe.unseen_window or recipe.topography.window
    assert tc.metrics.unseen_lags(window, frames) or recipe.topography.window == frames


PAPERS = list({r.name: r for n in range(1, 6) for r in TABLES[f"table{n}"].recipes}.values())


@pytest.mark.parametrize("recipe", PAPERS, ids=lambda recipe: recipe.name)
def test_the_papers_recipes_are_the_papers(recipe):
    data, edition, column = recipe.name.split("/")
    frames = {"mnist": 18, "sprites": 15}[data]
    topography, training = recipe.topography, recipe.training
    assert (topography.capsules, topography.shape) == (frames, (frames,))
    assert training.optimiser == tc.Sgd(lr=1e-4, momentum=0.9)
    assert (training.batch, training.epochs, recipe.mu) == (8, 100, -30.0)
    assert recipe.hidden is None and not recipe.centred and recipe.claims["equivariance_error"]
    if column.startswith(("tvae", "bubble")):
        kind, length = column.removesuffix("-k3").removesuffix("-pgd").split("-")
        part, _, whole = length.partition("_")
        window = round(2 * int(part) * frames / int(whole)) if whole else 1
        assert topography.window == window
        assert topography.velocity == (kind == "tvae")
        if not column.endswith("-pgd"):
            assert recipe.norm == ("weight" if edition == "submission" else "none")


def test_a_table_is_one_program():
    """All columns share data and training: they are trained together."""
    for n in range(1, 6):
        columns = TABLES[f"table{n}"].recipes
        assert len({(r.data, r.training.pace) for r in columns}) == 1


def test_the_small_recipes_differ_in_one_setting_each():
    tvae, bubble, vae = (RECIPES[f"sprites/{name}"] for name in ("tvae", "bubble", "vae"))
    assert tvae.training == bubble.training == vae.training
    assert tvae.hidden == bubble.hidden == vae.hidden
    assert bubble.topography.velocity == 0 and tvae.topography.velocity == 1
    assert vae.unseen_window == tvae.topography.window


def test_settings_are_changed_by_path_or_by_its_end():
    recipe = find("sprites/tvae").change(
        ["topography.window=11", "lr=0.001", "hidden=30,20", "norm=weight", "clip=2.5", "mu=-5"]
    )
    assert recipe.topography.window == 11 and recipe.training.optimiser.lr == 0.001
    assert recipe.hidden == (30, 20) and recipe.norm == "weight" and recipe.mu == -5
    assert recipe.training.clip == 2.5
    assert find("sprites/tvae").change(["hidden=64"]).hidden == (64,)
    assert find("sprites/tvae").change(["centred=false"]).centred is False


@pytest.mark.parametrize(
    "change, says",
    [
        ("windows=3", "no setting 'windows'"),
        ("window", "key=value"),
        ("window=0", "window"),
        ("window=abc", "window"),
        ("reach=99", "reach 99"),
        ("batch=2.5", "batch"),
        ("resolution=2", "resolution"),
        ("norm=l2", "none, weight, projected"),
        ("hidden=a,b", "hidden"),
        ("mu=big", "mu"),
        ("lr=-1", "lr"),
        ("velocity=fast", "velocity"),
        ("clip=no", "clip"),
        ("rate=1e999", "rate"),
        ("rate=0", "rate"),
        ("learned=all", "learned must be one of"),
        ("cyclic=false", "closed=false"),
        ("velocity=1e7", "once around"),
        ("moving=1,2", "names of factors"),
        ("speed=3", "speed"),
        ("name=other", "no setting 'name'"),
        ("unseen_window=3", "less than the model's window"),
        ("unseen_window=abc", "unseen_window"),
        ("centred=maybe", "true or false"),
        ("mu=1e999", "finite"),
        ("warmup=abc", "warmup"),
        ("betas=5,6", "betas"),
    ],
)
def test_invalid_settings_are_refused(change, says):
    with pytest.raises(tc.BadInput, match=says):
        find("sprites/tvae").change([change])


def test_an_unknown_recipe_names_the_known_ones():
    with pytest.raises(tc.BadInput, match="sprites/tvae"):
        find("sprites/nothing")
