"""Part-whole runs from recipe to page: trained, measured, drawn, fine-tuned, tabled."""

import json
from dataclasses import replace

import numpy as np
import pytest
import torch
from scipy.io import savemat

from topocaps import BadInput, PartWhole
from topocaps.data import mnist_files
from topocaps.data.mnist_files import Digits
from topocaps.data.moved import Moves
from topocaps.data.sequences import Sequences
from topocaps.papers.recipes import find
from topocaps.papers.reproduce import reproduce
from topocaps.papers.tables import TABLES
from topocaps.study import part_figures, runs
from topocaps.study.evaluation.digits import probed
from topocaps.study.evaluation.part_whole import accuracy, bounds
from topocaps.study.finished import Finished
from topocaps.study.recipe import PartWholeRecipe
from topocaps.study.report import compare
from topocaps.study.runs import Job

TINY = ["sizes=(2,3)", "template=4", "width=8", "depth=1", "training.batch=4",
        "training.epochs=1", "training.epoch_size=16", "warmup=0"]  # fmt: skip
PLAIN = ["hidden=8", "training.batch=4", "training.epochs=1", "training.epoch_size=16", "warmup=0"]


def some(count, seed):
    generator = torch.Generator().manual_seed(seed)
    images = torch.zeros(count, 28, 28, dtype=torch.uint8)
    images[:, 8:20, 8:20] = torch.randint(
        256, (count, 12, 12), generator=generator, dtype=torch.uint8
    )
    return Digits(images, (torch.arange(count) % 10).to(torch.uint8))


@pytest.fixture(autouse=True)
def few_digits(monkeypatch, tmp_path):
    monkeypatch.setattr(mnist_files, "digits", lambda folder: (some(60, 0), some(40, 1)))
    monkeypatch.setattr(mnist_files, "VALIDATION", 20)
    monkeypatch.setattr("topocaps.study.evaluation.digits.data_folder", lambda folder: tmp_path)
    monkeypatch.setattr("topocaps.study.part_figures.FREE_STEPS", 2)
    monkeypatch.setattr("topocaps.study.evaluation.free_form.STEPS", 2)
    monkeypatch.setattr("topocaps.study.evaluation.free_form.IMAGES", 20)


def small(name):
    recipe = find(name)
    return recipe.change(TINY if isinstance(recipe, PartWholeRecipe) else PLAIN)


def test_digits_that_are_there_for_choices_choose_the_epoch(tmp_path):
    """Neither those that are trained on nor those that are measured."""
    patient = small("capsules/mnist").change(["patience=1"])
    (run,) = runs.run_jobs([Job(patient, tmp_path)], device="cpu")
    assert run.metrics["split"] == "test images"
    shown, parts = run.folder.settings()["validation"], patient.data.load()
    which = {
        name: getattr(parts, name).balanced(runs.VALIDATED, runs.VALIDATION_SEED).digest()
        for name in ("train", "validation", "held_out")
    }
    assert [name for name, digest in which.items() if digest == shown["digest"]] == ["validation"]


def test_a_recipe_is_trained_measured_and_drawn(tmp_path):
    (run,) = runs.run_jobs([Job(small("capsules/mnist"), tmp_path)], device="cpu")
    found = json.loads((tmp_path / "metrics.json").read_text())
    assert found["is_bound"] is False and found["sequences"] == 40
    assert found["accuracy"].keys() == {"presences", "presences and poses"}
    assert (
        found["untrained"]["elbo"]
        != found["elbo"]
        == pytest.approx(found["log_px_given_t"] - found["kl_parts"] - found["kl_wholes"], abs=1e-3)
    )
    record = json.loads((tmp_path / "metrics.jsonl").read_text())
    assert {"logit_spread", "largest_share", "clutter", "wholes_on", "parts_on"} <= record.keys()
    for name in ("parts", "templates", "turned", "samples", "history"):
        assert (tmp_path / "figures" / f"{name}.png").stat().st_size > 1000
    page = (tmp_path / "report.html").read_text()
    assert "Delta poses: no bound" in page and "E_eq" not in page
    table = compare([run])
    assert table[1][0] == "t⁰"
    (kept,) = [row for row in table if row[0] == "ink kept at 90° by its template"]
    assert kept[1] == f"{found['kept']['90']['same']:.2f}"


def test_a_run_that_has_collapsed_says_so(tmp_path, monkeypatch):
    monkeypatch.setattr("topocaps.capsules.model.DEAD", 1e9)
    (run,) = runs.run_jobs([Job(small("capsules/mnist"), tmp_path)], device="cpu")
    assert run.metrics["complaint"].startswith("collapsed")
    assert "collapsed" in (tmp_path / "report.html").read_text()
    assert "complaint" in json.loads((tmp_path / "metrics.jsonl").read_text())


def test_a_tuned_model_starts_from_the_weights_of_its_seed(tmp_path, monkeypatch):
    job = Job(small("capsules/mnist-tuned"), tmp_path / "tuned", seed=3)
    first, seen = runs._initial, {}

    def remember(job, frame_shape):
        model = first(job, frame_shape)
        seen[job.recipe.name] = {n: v.clone() for n, v in model.state_dict().items()}
        return model

    monkeypatch.setattr("topocaps.study.runs._initial", remember)
    (run,) = runs.run_jobs([job], device="cpu")
    started = Finished.open(tmp_path / "tuned" / "start")
    assert started.metrics["seed"] == 3 and run.metrics["is_bound"]
    assert run.metrics["start"] == {"recipe": "capsules/mnist", "epochs": 1}
    assert run.recipe.start.training.epochs == 1
    for name, value in started.model.state_dict().items():
        assert torch.equal(value, seen["capsules/mnist-tuned"][name]), name


def test_normal_poses_from_the_start_are_trained_for_as_long_as_both_together():
    normal, tuned = find("capsules/mnist-normal"), find("capsules/mnist-tuned")
    both = tuned.training.epochs + tuned.start.training.epochs
    assert normal.training == replace(tuned.training, epochs=both)


def test_what_a_recipe_has_alike_with_its_start_stays_alike():
    tuned = find("capsules/mnist-tuned")
    changed = tuned.change(["sizes=(8,12)", "epochs=2", "lr=1e-4", "poses_are=normal"])
    assert changed.start.capsules == replace(tuned.start.capsules, sizes=(8, 12))
    assert changed.start.training == replace(tuned.start.training, epochs=2)
    assert changed.training.optimiser.lr == 1e-4


def test_a_start_that_failed_leaves_out_what_begins_there_and_nothing_else(tmp_path):
    tuned, other = small("capsules/mnist-tuned"), small("capsules/mnist-normal")
    broken = replace(tuned, start=small("capsules/mnist").change(["lr=1e30", "epoch_size=80"]))
    jobs = [Job(broken, tmp_path / "tuned"), Job(other, tmp_path / "other")]
    for _ in range(2):
        said = []
        (run,) = runs.run_jobs(jobs, device="cpu", say=said.append)
        assert run.name == other.name
        assert (
            "capsules/mnist-tuned, seed 0: skipped, as the run that it starts from failed" in said
        )


@pytest.mark.parametrize("name", ["rotated-90", "affnist"])
def test_probes_and_their_control_see_digits_that_are_not_moved(name, tmp_path, monkeypatch):
    seen = []

    def look(model, train, test):
        seen.append((train.moves, len(train), test.moves, len(test)))
        return accuracy(model, train, test)

    monkeypatch.setattr("topocaps.study.evaluation.part_whole.accuracy", look)
    recipe = small(f"capsules/{name}")
    (run,) = runs.run_jobs([Job(recipe, tmp_path)], device="cpu", reports=False)
    still = Moves(canvas=run.model.frame_shape[-1])
    assert seen == [(still, 40, still, 40)] * 2


def test_samples_of_turned_scenes_are_coloured_where_they_are(monkeypatch):
    rows = []
    monkeypatch.setattr(part_figures, "_rows", lambda images, names: rows.extend(images))
    torch.manual_seed(0)
    part_figures.samples(PartWhole((1, 28, 28), sizes=(2, 3), width=8, depth=1, turns=4))
    image, coloured = (row.amax(-3) for row in rows)
    assert ((image > 0.02) == (coloured > 0.02)).double().mean() > 0.99


def test_affnist_itself_is_measured_where_it_lies_beside_mnist(tmp_path):
    classes = np.arange(12, dtype=np.uint8) % 10
    images = np.random.default_rng(0).integers(0, 256, (1600, 12), dtype=np.uint8)
    (tmp_path / "test_batches").mkdir()
    for batch in (1, 2):
        data = {"image": images, "label_int": classes[None]}
        savemat(tmp_path / "test_batches" / f"{batch}.mat", {"affNISTdata": data})
    seen = []

    def read(x):
        seen.append(len(x))
        return {"ink": x.flatten(1)[:, :4]}

    found = probed(read, 40, torch.device("cpu"))
    assert seen[-1] == 24
    assert found["accuracy"]["ink"].keys() == {"0", "affnist-style", "affnist"}
    assert found["refitted"]["ink"].keys() == {"0", "affnist-style"}


def test_templates_that_are_blank_or_hidden_do_not_count_as_drawing():
    model = find("capsules/mnist-small").build((1, 28, 28), 0)
    digits = Sequences.of(torch.rand(20, 1, 1, 28, 28))
    assert bounds(model, digits)["templates_drawn"] == model.sizes[-1]
    with torch.no_grad():
        model.templates.alpha[:3].fill_(-20.0)
    assert bounds(model, digits)["templates_drawn"] == model.sizes[-1] - 3


def test_a_scene_that_may_turn_trains_too(tmp_path):
    recipe = small("capsules/mnist-turns").change(["turns=4"])
    (run,) = runs.run_jobs([Job(recipe, tmp_path)], device="cpu")
    assert run.model.turns == 4 and run.metrics["kl_wholes"] > 0


@pytest.mark.parametrize("name", [name for name in TABLES if name.startswith("capsules-")])
def test_every_table_of_parts_and_wholes_is_run_and_written(name, tmp_path, monkeypatch):
    table = TABLES[name]
    recipes = tuple(small(recipe.name) for recipe in table.recipes[:2])
    monkeypatch.setitem(TABLES, name, replace(table, recipes=recipes))
    page = reproduce([name], tmp_path / "results", tmp_path / "runs", seeds=1, device="cpu")
    text = page.read_text()
    assert table.title in text
    row = next(line for line in text.splitlines() if f"`{recipes[0].name}`" in line)
    assert row.count("|") > 3
    assert (tmp_path / "results" / recipes[0].name / f"{table.picture}.png").exists()


@pytest.mark.parametrize(
    "change", ["sizes=3", "width=6", "prior=1", "noise=0", "turns=0", "poses_are=gamma", "probed=0"]
)
def test_settings_that_make_no_model_are_refused(change):
    with pytest.raises(BadInput, match=change.split("=")[0]):
        find("capsules/mnist").change([change])


def test_digits_that_cannot_be_moved_so_are_refused():
    with pytest.raises(BadInput, match="scale"):
        find("capsules/rotated-45").change(["data.scale=2"])
