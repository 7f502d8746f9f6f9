"""Results: what was measured stands beside what the papers say, and is not run twice."""

import functools
import json
import pickle
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest
import torch

import topocaps as tc
from topocaps.papers.page import draw, write_page
from topocaps.papers.recipes import RECIPES, find
from topocaps.papers.reproduce import named, names, table_of
from topocaps.papers.reproduce import reproduce as run_tables
from topocaps.papers.results import Results
from topocaps.papers.tables import TABLES
from topocaps.study import runs
from topocaps.study.evaluation.base import ExtraMetric
from topocaps.study.evaluation.topographic import TopographicEvaluation
from topocaps.study.finished import Finished
from topocaps.study.quantity import Quantity
from topocaps.study.runs import Job
from topocaps.training import RunFolder

COMMON = {"epochs": 100, "seconds": 1.0, "device": "a machine"}
TINY = ["resolution=8", "epoch_size=16", "hidden=8", "capsules=2", "batch=4"]


@pytest.fixture
def small(monkeypatch):
    """A table of two small models."""
    monkeypatch.setattr("topocaps.study.evaluation.topographic.SOME", 3)
    monkeypatch.setattr("topocaps.study.data.SOME", 3)
    recipes = tuple(r.change(TINY) for r in TABLES["table2"].recipes[1:3])
    table = replace(TABLES["table2"], recipes=recipes)
    monkeypatch.setitem(TABLES, "table2", table)
    return table


def reproduce(folder, **changes):
    said = []
    wanted = dict(epochs=1, seeds=2, say=said.append, device="cpu") | changes
    page = run_tables(["table2"], folder / "results", folder / "runs", **wanted)
    return page.read_text(), said


def _rows_of(recipe, page):
    """Ours, the paper's, and the untrained one."""
    lines = page.splitlines()
    first = next(n for n, line in enumerate(lines) if f"`{recipe.name}`" in line)
    return lines[first : first + 3]


def test_a_table_is_run_kept_and_written_once(small, tmp_path):
    page, said = reproduce(tmp_path)
    assert said[0] == "table2: 0 results stored, 4 to run"
    assert "in full (6 models, 100 epochs) would train for" in said[-1] and "H200" in said[-1]
    results = Results(tmp_path / "results")
    for recipe in small.recipes:
        found = results.of(recipe)
        assert [one["seed"] for one in found] == [0, 1]
        assert all(
            one["epochs"] == 1 and one["untrained"] and one["together"] == 4 for one in found
        )
        pictures = (tmp_path / "results" / recipe.name).glob("*.png")
        assert [one.name for one in pictures] == ["traversals.png"]  # no more than tables show
        mean = sum(one["equivariance_error"] for one in found) / 2
        control = sum(one["untrained"]["equivariance_error"] for one in found) / 2
        ours, paper, untrained = _rows_of(recipe, page)
        assert "| ours |" in ours and f"| {mean:,.0f}\u00a0±" in ours
        claimed = f"| {recipe.claims['equivariance_error'][0]:,.0f}\u00a0±"
        assert paper.startswith("|  | paper |") and claimed in paper
        assert untrained.startswith("|  | untrained |") and f"| {control:,.0f}\u00a0±" in untrained
    again, said = reproduce(tmp_path)
    assert said[0] == "table2: 4 results stored, 0 to run" and again == page
    assert said[1].startswith("Short trial: 1 epoch, 2 seeds.") and "in full" in said[2]
    assert "`topocaps reproduce table2 --epochs 1`" in page
    more, said = reproduce(tmp_path, seeds=3)
    assert said[0] == "table2: 4 results stored, 2 to run" and more != page


def test_a_failed_model_does_not_stop_its_table_and_is_not_run_again(small, tmp_path, monkeypatch):
    first, second = small.recipes
    broken = replace(small, recipes=(first.change(["lr=1e30"]), second))
    monkeypatch.setitem(TABLES, "table2", broken)
    for run in range(2):
        page, said = reproduce(tmp_path, seeds=1)
        assert any("is not finite" in line for line in said) == (run == 0)
        assert (said[0] == "table2: 2 results stored, 0 to run") == (run == 1)
        assert second.name in page
        (row,) = [line for line in page.splitlines() if f"`{first.name}`" in line]
        assert "(0 seeds)<br>seed 0: " in row and "is not finite at step" in row
    assert Results(tmp_path / "results").of(first) == []


def test_tables_that_are_named_together_train_together(small, tmp_path, monkeypatch):
    more = TABLES["table2"].recipes[:1], tuple(r.change(TINY) for r in TABLES["table5"].recipes[:1])
    monkeypatch.setitem(TABLES, "table5", replace(TABLES["table5"], recipes=sum(more, ())))
    said = []
    where = tmp_path / "results", tmp_path / "runs"
    run_tables(["table2", "table5"], *where, epochs=1, seeds=1, say=said.append, device="cpu")
    assert [line for line in said if "to run" in line] == [
        "table2: 0 results stored, 2 to run", "table5: 0 results stored, 2 to run",
    ]  # fmt: skip
    found = [
        Results(where[0]).of(r) for name in ("table2", "table5") for r in table_of(name).recipes
    ]
    assert [one["together"] for (one,) in found] == [3, 3, 3, 3]  # one of them is in both tables


def test_runs_that_are_measured_in_other_processes_have_the_same_results(
    small, tmp_path, monkeypatch
):
    results, runs_folder = tmp_path / "results", tmp_path / "runs"
    page, _ = reproduce(tmp_path, seeds=1)
    alone = {path: path.read_text() for path in results.rglob("*.json")}
    assert len(alone) == 2
    for path in (*alone, *runs_folder.rglob("metrics.json")):
        path.unlink()
    monkeypatch.setattr("topocaps.papers.reproduce.evaluation_workers", lambda device: 2)
    # a thread, as another process would not know this small table
    monkeypatch.setattr(
        "topocaps.papers.reproduce.ProcessPoolExecutor", lambda *settings: ThreadPoolExecutor(1)
    )
    again, said = reproduce(tmp_path, seeds=1)
    assert {path: path.read_text() for path in results.rglob("*.json")} == alone
    assert again == page
    assert sum("evaluating" in line for line in said) == 2


def test_every_recipe_can_be_sent_to_another_process():
    for recipe in RECIPES.values():
        assert pickle.loads(pickle.dumps(recipe)) == recipe


def test_each_result_is_stored_before_the_next_run_is_measured(small, tmp_path, monkeypatch):
    measure, stopped = runs.evaluate_run, RuntimeError("the machine is gone")

    def once(path, *given, **more):
        if small.recipes[0].name not in str(path):
            raise stopped
        return measure(path, *given, **more)

    monkeypatch.setattr(runs, "evaluate_run", once)
    with pytest.raises(RuntimeError, match="the machine is gone"):
        reproduce(tmp_path, seeds=1)
    assert [len(Results(tmp_path / "results").of(recipe)) for recipe in small.recipes] == [1, 0]


def test_a_result_without_the_numbers_of_a_table_is_run_again(small, tmp_path):
    results, recipe = Results(tmp_path), small.recipes[0]
    results.keep(recipe, 0, COMMON | {"traversal_gain": None})
    assert results.has(recipe, 0) and results.has(recipe, 0, TABLES["table2"].quantities)
    assert not results.has(recipe, 0, TABLES["probes"].quantities)


def test_a_short_run_measures_only_the_metrics_of_its_tables(small, tmp_path, monkeypatch):
    asked = []

    def measured(of):
        asked.append(of[0])
        return {name: {"traversal_gain": 0.5} for name in of}

    monkeypatch.setattr(
        "topocaps.study.evaluation.topographic.TopographicEvaluation.extra_metrics",
        lambda *_: [
            ExtraMetric(of, functools.partial(measured, of))
            for of in (("capcorr_later",), ("probes",), ("generalisation", "beside_it"))
        ],
    )
    other = replace(TABLES["generalisation"], recipes=small.recipes[:1])
    monkeypatch.setitem(TABLES, "generalisation", other)
    numbers = (*small.quantities, Quantity(("capcorr_later", "traversal_gain"), "later", 2))
    monkeypatch.setitem(TABLES, "table2", replace(small, quantities=numbers))
    where = tmp_path / "results", tmp_path / "runs"
    for name, then in (
        ("table2", ["capcorr_later"] * 2),
        ("table2", []),  # is there
        ("generalisation", ["capcorr_later", "generalisation"]),  # what was there is kept
        ("table2", []),
        ("generalisation", []),
    ):
        asked.clear()
        run_tables([name], *where, epochs=1, seeds=1, device="cpu")
        assert asked == then
    kept = Results(where[0]).of(small.recipes[0])[0]
    assert kept["beside_it"] == {"traversal_gain": 0.5} and kept["put_off"] == ["probes"]


def test_a_full_run_measures_the_metrics_of_all_tables_with_its_recipe(
    small, tmp_path, monkeypatch
):
    asked = []

    def extra_metrics(self, run, data):
        return [ExtraMetric((name,), lambda name=name: asked.append(name) or {name: 1})
                for name in ("probes", "capcorr", "told nowhere")]  # fmt: skip

    monkeypatch.setattr(TopographicEvaluation, "extra_metrics", extra_metrics)
    short = replace(small, recipes=tuple(one.change(["epochs=1"]) for one in small.recipes))
    monkeypatch.setitem(TABLES, "table2", short)
    reproduce(tmp_path, seeds=1, epochs=None)
    assert asked == ["capcorr"] * 2
    kept = Results(tmp_path / "results").of(small.recipes[0])[0]
    assert kept["put_off"] == ["probes", "told nowhere"]


def test_the_start_of_a_short_run_is_also_short():
    tuned = find("capsules/mnist-tuned").shortened(1)
    job = Job(tuned, Path("runs/tuned"), start=Path("runs/start"))
    assert (job.before.recipe.training.epochs, job.before.out) == (1, Path("runs/start"))
    whole = Job(find("capsules/mnist-tuned"), Path("runs/tuned"))
    assert whole.before == Job(find("capsules/mnist"), Path("runs/tuned/start"))


def test_results_of_runs_with_another_start_are_refused(tmp_path):
    results, tuned = Results(tmp_path), find("capsules/mnist-tuned")
    results.keep(tuned, 0, COMMON)
    assert results.has(tuned, 0)
    longer = replace(tuned, start=tuned.start.change(["epochs=60"]))
    with pytest.raises(tc.BadInput, match=r"start.training.epochs was 30, is now 60"):
        results.has(longer, 0)


def test_deferred_metrics_do_not_count_as_measured(tmp_path):
    results, recipe = Results(tmp_path), find("capsules/mnist")
    some = {"accuracy": {"presences": {"0": 0.9}}, "mse": 0.1, "put_off": ["accuracy", "copies"]}
    results.keep(recipe, 0, COMMON | {"epochs": recipe.training.epochs} | some)
    assert not results.names(recipe, 0) & {"accuracy", "copies"}
    upright, turned = (Quantity(("accuracy", "presences", way), "", 3) for way in ("0", "45"))
    assert results.has(recipe, 0, [upright]) and not results.has(recipe, 0, [upright, turned])


def test_an_unreadable_failure_file_is_named_before_training(tmp_path):
    path = Results(tmp_path).path(find("mnist/fast/vae"), 0).with_name("failed-0.json")
    path.parent.mkdir(parents=True)
    path.write_text("[]")
    with pytest.raises(tc.BadInput, match="does not state a failure: remove the file"):
        Results(tmp_path).check()


def test_the_page_states_the_epochs_of_shortened_runs(tmp_path):
    """Though another recipe of the table has as few epochs."""
    results = Results(tmp_path)
    for name in ("mnist", "vae"):
        read = {"accuracy": {"presences": {"0": 0.9}, "posterior": {"0": 0.9}}, "epochs": 30}
        results.keep(find(f"capsules/{name}"), 0, COMMON | read)
    assert "`topocaps reproduce capsules-table1 --epochs 30`" in write_page(results).read_text()


def test_named_tables_train_together_and_tables_of_groups_one_by_one():
    assert named(["table4", "table3"]) == [["table4", "table3"]]
    assert named(["all"]) == [[name] for name in names()]
    assert named(["extensions", "probes"])[:2] == [["probes"], ["speed"]]
    with pytest.raises(tc.BadInput, match="cannot reproduce 'table9'; choose from table1"):
        named(["table1", "table9"])


@pytest.mark.parametrize("content", ["{}", "[1]", '{"note": 1}', "no JSON"])
def test_a_file_that_is_not_a_result_is_named_before_training(content, small, tmp_path):
    path = Results(tmp_path / "results").path(find("mnist/fast/vae"), 0)
    path.parent.mkdir(parents=True)
    path.write_text(content)
    with pytest.raises(tc.BadInput, match=r"is not (JSON|a result)"):
        reproduce(tmp_path)
    assert not (tmp_path / "runs").exists()
    path.rename(path.with_name("seed-0-old.json"))  # nobody asks for this
    reproduce(tmp_path, seeds=1)


def test_a_folder_that_cannot_be_written_is_named_before_training(small, tmp_path):
    (tmp_path / "results").write_text("a file")
    with pytest.raises(tc.BadInput, match="cannot write to the folder"):
        reproduce(tmp_path)


def test_the_page_shows_the_diagnosis_of_a_run(tmp_path):
    results, recipe = Results(tmp_path), find("capsules/mnist")
    said = {"accuracy": {"presences": {"0": 0.1}}, "complaint": "collapsed: the top is dead"}
    results.keep(recipe, 0, COMMON | said | {"seed": 0})
    assert "seed 0: collapsed: the top is dead" in write_page(results).read_text()
    said["complaint"] += " (spread 0.01); take another seed"
    results.keep(recipe, 3, COMMON | said | {"seed": 3})
    assert "seeds 0, 3: collapsed: the top is dead |" in write_page(results).read_text()


def test_results_of_other_settings_are_refused_and_of_other_claims_are_not(small, tmp_path):
    reproduce(tmp_path)
    results = Results(tmp_path / "results")
    (recipe, *_), one = small.recipes, small.recipes[0].shortened(1)
    assert results.has(one, 0) and results.has(replace(one, claims={}, about="as before"), 0)
    with pytest.raises(
        tc.BadInput,
        match=r"was made with other settings than .* has now \(.*momentum was 0.9",
    ):
        results.has(one.change(["momentum=0.1"]), 0)
    assert recipe.fingerprint != one.fingerprint  # of other epochs


def test_a_short_trial_replaces_one_with_other_epochs(small, tmp_path):
    """Short runs never refuse what short runs wrote, and do not mix with full ones."""
    for epochs in (1, 2):
        found, runs = tmp_path / "short", tmp_path / f"{epochs}-epochs"
        run_tables(["table2"], found, runs, epochs=epochs, seeds=1, device="cpu")
        kept = Results(found, short=True).of(small.recipes[0])
        assert [one["epochs"] for one in kept] == [epochs]
    with pytest.raises(tc.BadInput, match="is the result of a short run"):
        run_tables(["table2"], found, runs, seeds=1, device="cpu")


def test_a_run_is_not_trained_again_when_its_result_was_lost(small, tmp_path):
    reproduce(tmp_path, seeds=1)
    lost = tmp_path / "results" / small.recipes[0].name / "seed-0.json"
    before = json.loads(lost.read_text())
    lost.unlink()
    _, said = reproduce(tmp_path, seeds=1)
    assert any("trained already" in line for line in said)
    assert json.loads(lost.read_text()) == before


def test_the_papers_numbers_are_data():
    assert [len(TABLES[f"table{n}"].recipes) for n in range(1, 6)] == [5, 7, 5, 10, 12]
    assert [len(TABLES[f"figure{n}"].recipes) for n in (1, 3, 4, 5, 18, 19)] == [1, 3, 3, 12, 1, 1]
    claims = find("mnist/camera-ready/tvae-5_36").claims
    assert claims == {"log_px_paper": (-186.0, 0.7), "equivariance_error": (3247, 3)}
    for n in range(1, 6):
        for recipe in TABLES[f"table{n}"].recipes:
            assert recipe.claims, recipe.name


def test_figures_are_drawn_from_numbers(tmp_path):
    results = Results(tmp_path)
    metrics = {
        "capcorr": {"x": 0.9, "y": 0.7},
        "untrained": {"capcorr": {"x": 0.5, "y": None}},
        "traversal": {"by_lag": [1.0] * 15, "orbit_mean_by_lag": [2.0] * 15, "window": 5},
        "traversal_gain": 0.123456789,
        "epochs": 100,
        "seconds": 36.0,
        "together": 4,
        "device": "a machine",
    }
    for name in ("tvae-1_6", "tvae-1_3"):
        for seed in (0, 1):
            results.keep(find(f"sprites/submission/{name}"), seed, metrics)
    read = {"t": {"10": 0.2, "100": 0.5}, "pooled": {"10": 0.1, "100": 0.4}}
    results.keep(find("mnist/fast/vae"), 0, metrics | {"probes": read})
    draw(results)
    page = write_page(results).read_text()
    assert (tmp_path / "figure5.png").exists() and (tmp_path / "sprites-by-lag.png").exists()
    assert (tmp_path / "probes.png").exists() and "![probes](probes.png)" in page
    assert "![figure5](figure5.png)" in page and "![table5](sprites-by-lag.png)" in page
    assert "runs: 4; epochs of each: 100; training of all runs: 0.6 minutes on a machine" in page
    assert results.of(find("sprites/submission/tvae-1_6"))[0]["traversal_gain"] == 0.123457


def test_neighbours_of_an_organised_map_agree_and_of_a_random_one_do_not():
    stripes = torch.arange(18)[:, None].expand(18, 18) // 2
    found = tc.metrics.neighbour_agreement(stripes)
    assert found.observed == pytest.approx(0.75) and found.p_value == 1e-4
    assert found.shuffled == pytest.approx(1 / 9, abs=0.01)
    mixed = torch.randint(10, (18, 18), generator=torch.Generator().manual_seed(0))
    assert tc.metrics.neighbour_agreement(mixed).p_value > 0.01


def test_an_unorganised_map_of_few_images_is_seldom_taken_for_an_organised_one():
    """Images on 3 x 3 sites each, of random classes: one in twenty has p < .05, about."""
    at = torch.arange(18) // 3
    images = at[:, None] * 6 + at
    generator = torch.Generator().manual_seed(0)
    found = [
        tc.metrics.neighbour_agreement(of[images], images, permutations=199).p_value
        for of in torch.randint(10, (100, 36), generator=generator)
    ]
    assert sum(p < 0.05 for p in found) <= 12 and sum(p < 0.5 for p in found) >= 30


def test_neighbours_that_show_the_same_image_do_not_count():
    """Blocks of one image each, of random classes: nothing is organised."""
    generator = torch.Generator().manual_seed(0)
    images = torch.arange(36).reshape(6, 6).repeat_interleave(3, 0).repeat_interleave(3, 1)
    classes = torch.randint(10, (36,), generator=generator)[images]
    assert tc.metrics.neighbour_agreement(classes).p_value == 1e-4
    found = tc.metrics.neighbour_agreement(classes, images)
    assert found.p_value > 0.01 and found.observed == pytest.approx(0.1, abs=0.08)


def test_the_strongest_image_of_a_site_is_found_over_all_batches():
    images = torch.zeros(7, 1, 1, 2, 2)
    images[5, 0, 0, 1, 0] = 1.0  # the strongest for site (1, 0), in a later batch

    class Reads(tc.VAE):
        def encode(self, x, sample=False):
            return x[:, :, 0][:, :, None]

    model = Reads.mlp((1, 2, 2), tc.Topography(1, (2, 2)), hidden=(2,))
    found = tc.metrics.strongest_images(model, tc.Sequences.of(images), batch=3)
    assert found.shape == (1, 2, 2) and found[0, 1, 0] == 5


def test_everything_that_can_be_reproduced_has_recipes():
    for name in names():
        assert table_of(name).recipes and all(r.name in RECIPES for r in table_of(name).recipes)


def test_single_images_have_no_figures_of_traversals():
    model = tc.VAE.mlp((1, 2, 2), tc.Topography(1, (2,)), hidden=(2,))
    still = tc.Sequences.of(torch.rand(7, 1, 1, 2, 2))
    run = Finished(RunFolder(Path("run")), find("capsules/vae"), model, {})
    assert TopographicEvaluation().result_figures(run, still) == {}
