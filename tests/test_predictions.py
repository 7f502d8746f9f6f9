"""Tables of predictions: gains of hidden frames, bounds, and how the page shows them."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from test_results import COMMON

import topocaps as tc
from topocaps.metrics.rolled_traversal import Traversal
from topocaps.metrics.visible_frames import distances, gain_by_distance, visible_gains
from topocaps.models.evidence import frame_bound, joint_bound
from topocaps.models.likelihoods import Likelihood
from topocaps.papers.page import _cell, write_page
from topocaps.papers.pictures import draw_predicted
from topocaps.papers.quantities import predictions
from topocaps.papers.recipes import RECIPES, find
from topocaps.papers.reproduce import named
from topocaps.papers.reproduce import reproduce as run_tables
from topocaps.papers.results import Results
from topocaps.papers.rolling_tables import ROLLING_TABLES
from topocaps.papers.tables import GROUPS, TABLES
from topocaps.study import figures, rolling_figures
from topocaps.study.data import Letters, Splits
from topocaps.study.evaluation import evaluation_of
from topocaps.study.evaluation.shared import bound_of
from topocaps.study.evaluation.topographic import tightest_bound
from topocaps.study.finished import Finished
from topocaps.study.quantity import Quantity
from topocaps.study.recipe import Recipe
from topocaps.study.rolling_recipe import RollingRecipe
from topocaps.study.runs import Job, run_jobs, train_jobs
from topocaps.study.side_by_side import fills, side_by_side
from topocaps.training import RunFolder

TINY = ["batch=4", "epoch_size=8", "epochs=1", "capsules=2", "hidden=8"]


# --- measures -----------------------------------------------------------------------------------


def test_distances_round_a_sequence_are_those_to_the_nearest_visible_frame():
    visible = torch.rand(50, 9) < 0.3
    visible[:, 4] = True
    for closed in (True, False):
        found = distances(visible, closed)
        for row, seen in enumerate(visible):
            places = seen.nonzero().flatten().tolist()
            for frame in range(9):
                apart = [abs(frame - place) for place in places]
                nearest = min(min(n, 9 - n) if closed else n for n in apart)
                assert found[row, frame] == nearest


def test_the_gain_of_a_distance_is_that_of_its_frames():
    """Costs are such that every frame gains one part in its distance."""
    visible = torch.zeros(4, 8, dtype=torch.bool)
    visible[:, 2] = True
    distance = distances(visible)
    mean = 1 + torch.rand(4, 8)
    rolled = mean * (1 - 1 / distance.clamp_min(1))
    moving, axis = torch.ones(4, 1, dtype=torch.bool), torch.zeros(4, 1)
    found = Traversal(rolled, mean, torch.zeros(4, 8), ~visible, moving, axis)
    gains = gain_by_distance(found, visible)
    assert gains == pytest.approx({1: 1.0, 2: 1 / 2, 3: 1 / 3, 4: 1 / 4}, abs=1e-6)


def orbits():
    """Three orbits of 12 frames; the second factor comes round every 3 frames."""
    images = (torch.rand(15, 1, 4, 4) > 0.5).float()
    order = torch.stack([torch.arange(12), 12 + torch.arange(12) % 3, 12 + torch.arange(12) % 3])
    factors = torch.zeros(15, 2, dtype=torch.long)
    factors[:12, 0], factors[12:, 1] = torch.arange(12), torch.arange(3)
    moving = torch.tensor([0, 1, 1])
    return tc.Sequences(images, order, factors, ("slow", "quick"), moving)


def test_a_factor_without_unseen_frames_has_a_gain_over_all_hidden_frames():
    found = visible_gains(lambda x, visible: x, orbits(), Likelihood.BERNOULLI)
    assert list(found) == ["3", "5", "9", "10"]
    for one in found.values():
        assert one["by_factor"] == {"slow": pytest.approx(1.0, abs=0.01), "quick": None}
        assert one["intervals"]["quick"] is None and one["intervals"]["slow"] is not None
        assert one["all_frames"]["by_factor"]["quick"] == pytest.approx(1.0, abs=0.01)
        assert one["gain"] == one["by_factor"]["slow"]
    assert list(found["5"]["by_distance"]) == ["1", "2", "3", "4"]  # 7 hidden frames of a ring


def test_a_bound_of_more_samples_is_higher_and_is_of_the_same_sequences():
    torch.manual_seed(0)
    model = tc.RollingVAE.mlp((1, 4, 4), tc.Topography(2, (3,)), hidden=(8,))
    sequences = orbits()
    one, many = (bound_of(model.log_px, sequences, count) for count in (1, 100))
    assert one.value < many.value and len(one.values) == len(many.values) == 3
    measured = tc.evaluate(model, sequences, samples=100)
    assert (measured["log_px"], measured["intervals"]["log_px"]) == (many.value, many.interval())


def test_bounds_of_models_with_independent_frames_weight_samples_for_each_frame(tmp_path):
    data = orbits()
    x = data.show(data.fixed()).x
    shared = dict(frame_shape=(1, 4, 4), hidden=8)
    vae = tc.VAE.mlp(topography=tc.Topography(2, (3,)), **shared)
    tvae = tc.TopographicVAE.mlp(topography=tc.Topography(2, (3,), window=3), **shared)
    for model, expected in ((vae, frame_bound), (tvae, joint_bound)):
        bounds = []
        for bound in (tightest_bound, expected):
            torch.manual_seed(0)
            bounds.append(bound(model, x, 5))
        assert torch.equal(*bounds)
    splits = Splits(data, data, "orbits", "held out", None)
    recipe = find("letters/vae").change([*TINY, "unseen_window=none"])
    run = Finished(RunFolder(tmp_path), recipe, vae, {})
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Letters, "load", lambda self, folder=None: splits)
        (metric,) = evaluation_of(vae).extra_metrics(run, None)
        found = metric.measure()["bounds"]
    held_out = data.balanced(None, 0)
    for samples in (1, 10):
        wanted = bound_of(lambda x, k: frame_bound(vae, x, k), held_out, samples)
        assert found[str(samples)] == {"value": wanted.value, "interval": wanted.interval()}


# --- several models of the same data ------------------------------------------------------------


def test_models_side_by_side_need_the_same_data_and_folders_of_their_own(tmp_path):
    rolling, vae = find("letters/rolling"), find("letters/vae")
    few = replace(vae, data=Letters(share=0.1))
    copy = replace(vae, name="other/vae", hidden=(9,))
    for recipes, says in (
        ((rolling, few), r"letters/vae has Letters\(share=0.1, .*, but letters/rolling has"),
        ((vae, rolling, copy), "2 recipes would be run in .*vae: choose names that differ"),
    ):
        with pytest.raises(tc.BadInput, match=says):
            side_by_side({str(n): r for n, r in enumerate(recipes)}, tmp_path, "cpu", print)
    splits = Splits(orbits(), orbits(), "orbits", "held out", None)
    jobs = [Job(rolling, tmp_path / "a"), Job(few, tmp_path / "b")]
    for run in (run_jobs, train_jobs):
        with pytest.raises(
            tc.BadInput, match="splits must be the data of all jobs: letters/vae has"
        ):
            list(run(jobs, splits=splits) or ())
    assert not list(tmp_path.iterdir())


def test_models_are_drawn_as_they_are_measured(tmp_path, monkeypatch):
    """A VAE expects no roll, but gains are those of a roll by the rate of the recipe."""
    recipes = tuple(
        find(name).change(["hidden=8", "topography.capsules=2"])
        for name in ("letters/rolling", "letters/bubble", "letters/vae")
    )
    shape, x = (1, 28, 28), torch.rand(2, 15, 1, 28, 28)
    visible = torch.arange(15).expand(2, 15) < 5
    runs = {
        r.name.split("/")[-1]: Finished(RunFolder(tmp_path), r, r.build(shape, 0), {})
        for r in recipes
    }
    found = fills(runs)
    for name, run in runs.items():
        filled = found[name](x, visible)
        if name == "rolling":
            assert torch.equal(filled, run.model.fill(x, visible))
        else:
            assert torch.equal(filled, run.model.fill(x, visible, rate=1.0, closed=True))
            assert not torch.equal(filled, run.model.fill(x, visible))
    part_whole = Finished(RunFolder(tmp_path), recipes[0], tc.PartWhole((1, 28, 28)), {})
    assert list(fills({"parts": part_whole, **runs})) == list(runs)

    drawn = []
    monkeypatch.setattr(rolling_figures, "predicted", lambda found, x: drawn.append(found))
    monkeypatch.setattr(figures, "save", lambda *to: None)
    monkeypatch.setattr(Finished, "open", lambda path, r: runs[r.name.split("/")[-1]])
    predicted = tuple(r.name for r in recipes)
    table = replace(TABLES["letters-models"], recipes=recipes, predicted=predicted)
    monkeypatch.setitem(TABLES, "letters-models", table)
    draw_predicted("letters-models", tmp_path, tmp_path)
    assert not drawn  # no model is evaluated yet
    for name in predicted:
        folder = RunFolder(tmp_path / name / "seed-0")
        folder.path.mkdir(parents=True)
        folder.metrics.touch()
    draw_predicted("letters-models", tmp_path, tmp_path)
    assert drawn[0].keys() == runs.keys()
    for name in runs:
        assert torch.equal(drawn[0][name](x, visible), found[name](x, visible))


# --- the page -----------------------------------------------------------------------------------


def test_a_single_seed_has_its_interval_and_several_seeds_their_spread():
    number = Quantity(("a", "gain"), "gain", 2, interval=("a", "interval"))
    one = {"a": {"gain": 0.5, "interval": [0.25, 0.75]}}
    assert _cell(number, [one]) == "0.50 [0.25, 0.75]"
    assert _cell(number, [one, {"a": {"gain": 0.7}}]) == "0.60\u00a0±\u00a00.14"
    assert _cell(number, [{"a": {"gain": 0.5, "interval": None}}]) == "0.50"
    assert _cell(number, [{"a": {"gain": None, "interval": None}}]) == "–"


def test_a_line_of_a_factor_is_not_shown_of_the_untrained_model(tmp_path):
    gains = {"gain": 0.5, "by_factor": {"rotation": 0.25}}
    found = {"visible": {"5": gains}, "seconds_each": 12.4, "parameters": 1000}
    results, recipe = Results(tmp_path), find("rolling/mnist")
    results.keep(recipe, 0, COMMON | found | {"untrained": found})
    lines = write_page(results).read_text().splitlines()
    (row,) = [n for n, line in enumerate(lines) if line.startswith("| `rolling/mnist`")][:1]
    assert "| ours | 0.50 | 12 | 1,000 |" in lines[row]
    assert lines[row + 1] == "|  | untrained | 0.50 | – | – |"
    assert lines[row + 2] == "|  | rotation | 0.25 | – | – |"
    assert "untrained" not in lines[row + 3]


def test_the_page_lists_tables_without_results(tmp_path):
    page = write_page(Results(tmp_path)).read_text()
    for name, table in ROLLING_TABLES.items():
        assert f"`{name}` ({table.title})" in page and f'<a id="{name}">' not in page


def test_the_stored_page_is_written_from_the_stored_results(tmp_path):
    """With the pictures that are stored, the page is the same byte for byte."""
    stored = Results(Path(__file__).parents[1] / "results")
    for file in stored.folder.rglob("*"):
        if file.suffix in (".json", ".png"):
            copy = tmp_path / file.relative_to(stored.folder)
            copy.parent.mkdir(parents=True, exist_ok=True)
            copy.symlink_to(file)
    assert write_page(Results(tmp_path)).read_bytes() == (stored.folder / "README.md").read_bytes()


# --- tables and recipes -------------------------------------------------------------------------


def test_groups_are_tables():
    assert named(["letters"]) == [["letters-models"], ["letters-settings"], ["letters-speeds"]]
    small = {f"rolling-{kind}small" for kind in ("", "convolutions-", "digits-", "unseen-")}
    alone = small | {"letters-few", "letters-arc"}
    assert {*GROUPS["rolling"], *GROUPS["letters"]} | alone == set(ROLLING_TABLES)


@pytest.mark.parametrize("name", ROLLING_TABLES)
def test_recipes_of_a_table_have_the_same_steps_and_kind_of_data(name):
    table = TABLES[name]
    assert len({recipe.training.pace for recipe in table.recipes}) == 1
    assert len({type(recipe.data) for recipe in table.recipes}) == 1 < len(table.recipes)
    assert set(table.predicted) <= {recipe.name for recipe in table.recipes}
    steps = table.recipes[0].training
    small = "letters" in name or "small" in name
    assert (steps.epochs * steps.epoch_size // steps.batch < 40_000) is small


@pytest.mark.parametrize("name", ROLLING_TABLES)
def test_optimisers_are_those_that_the_page_states(name):
    recipes = TABLES[name].recipes
    rolling = {r.training.optimiser for r in recipes if isinstance(r, RollingRecipe)}
    others = {r.training.optimiser for r in recipes if isinstance(r, Recipe)}
    muon = {tc.Muon(0.005, warmup=100)}
    if name == "rolling-convolutions-small":
        assert rolling == muon | {tc.Adam(1e-3, warmup=100)} and others == muon
    elif "letters" in name or "small" in name:
        assert rolling - muon == {tc.Adam(0.003, (0.9, 0.99), 100)}
        assert others <= {tc.Adam(0.002, (0.9, 0.95))}
    else:
        assert others <= rolling - muon and len(rolling - muon) == 1
    assert (muon <= rolling) == ("settings" in name or name == "rolling-convolutions-small")
    assert "(#hidden-frames)" in TABLES[name].note


@pytest.mark.parametrize("data, frame", [("mnist", (3, 28, 28)), ("sprites", (1, 64, 64))])
def test_baselines_have_the_same_convolutions(data, frame):
    rolling = find(f"rolling/{data}").build(frame, seed=0)
    vae = find(f"rolling/{data}-vae-convolutions").build(frame, seed=0)
    for ours, theirs in (
        (rolling.z_given_x.network, vae.z_given_x.network),
        (rolling.x_given_t.network, vae.x_given_t.network),
    ):
        assert str(ours) == str(theirs)
        assert [p.shape for p in ours.parameters()] == [p.shape for p in theirs.parameters()]
        for one, other in zip(ours.parameters(), theirs.parameters(), strict=True):
            if one.ndim > 1:  # drawn alike
                assert one.std().item() == pytest.approx(other.std().item(), rel=0.1)


def test_perceptrons_differ_as_the_note_says():
    for name, activation, bound in (
        ("letters/rolling", torch.nn.SiLU, 6**0.5), ("letters/tvae", torch.nn.ReLU, 1.0),
    ):  # fmt: skip
        model = find(name).build((1, 28, 28), seed=0)
        for network, inputs in ((model.z_given_x.network, 784), (model.x_given_t.network, 180)):
            first, between, _ = network
            assert type(between) is activation
            assert first.weight.abs().max().item() == pytest.approx(bound / inputs**0.5, rel=0.01)


def test_recipes_of_settings_tables_change_one_setting():
    for name in ("rolling-mnist-settings", "rolling-sprites-settings", "letters-settings"):
        first, *others = TABLES[name].recipes
        for other in others:
            ours, theirs = first.identity(), other.identity()  # neutral values are left out
            changed = [key for key in ours | theirs if ours.get(key) != theirs.get(key)]
            assert len(changed) == 1, other.name


def test_models_of_a_table_train_one_by_one_and_their_predictions_are_drawn(monkeypatch, tmp_path):
    for module in ("topographic", "rolling", "shared"):
        monkeypatch.setattr(f"topocaps.study.evaluation.{module}.MEASURED", 4)
    monkeypatch.setattr("topocaps.study.data.SOME", 2)
    monkeypatch.setattr("topocaps.study.evaluation.topographic.SOME", 2)
    chosen = ("rolling/sprites-small", "rolling/sprites-small-tvae")
    recipes = tuple(find(name).change([*TINY, "resolution=8"]) for name in chosen)
    table = TABLES["rolling-small"]
    monkeypatch.setitem(TABLES, "rolling-small", replace(table, recipes=recipes, predicted=chosen))
    folders = tmp_path / "results", tmp_path / "runs"
    page = run_tables(["rolling-small"], *folders, epochs=1, seeds=2, device="cpu").read_text()
    results = Results(folders[0])
    for recipe in recipes:
        found = results.of(recipe)
        assert [one["together"] for one in found] == [2, 2]  # its two seeds
        for one in found:
            assert one["seconds_each"] == pytest.approx(one["seconds"] / 2, rel=1e-4)
            assert set(one["bounds"]) == {"1", "10", "100"} and one["parameters"] > 0
    for kind in ("predicted", "by-visible", "by-distance"):
        assert (folders[0] / f"rolling-small-{kind}.png").exists()
        assert f"![rolling-small](rolling-small-{kind}.png)" in page


def test_every_number_of_a_table_is_measured_under_its_key():
    keys = {quantity.key[0] for quantity in predictions(("x",), ("x",))}
    assert keys == {"visible", "bounds", "seconds_each", "parameters"}
    lines = {q.group: q for q in predictions(("x",), ("x",)) if q.key[:2] == ("visible", "3")}
    assert lines["x"].interval == ("visible", "3", "intervals", "x")
    assert lines["x, all frames"].interval == ("visible", "3", "all_frames", "intervals", "x")
    assert lines[""].interval == ("visible", "3", "interval")


def test_few_glyphs_are_part_of_more_in_all_sizes():
    few, more, all_glyphs = (Letters(share=share).load().train for share in (0.1, 0.3, 1.0))
    glyphs = []
    for train in (few, more, all_glyphs):
        which = train.factors[train.order[:, 0], :2]
        counts = which.unique(dim=0, return_counts=True)[1]
        assert len(counts.unique()) == 1 and len(train.moving) == len(train)
        glyphs.append({tuple(row) for row in which.tolist()})
    assert glyphs[0] < glyphs[1] < glyphs[2]
    assert [len(one) for one in glyphs] == [59, 176, 588]
    with pytest.raises(tc.BadInput, match="share must be a number above 0 and at most 1, not 0"):
        Letters(share=0)


def test_recipes_of_the_demo_stay_short():
    steps = {n: r.training for n, r in RECIPES.items() if n in ("letters/tvae", "letters/vae")}
    assert {t.epochs * t.epoch_size // t.batch for t in steps.values()} == {5000}
    assert isinstance(RECIPES["letters/vae"], Recipe)
