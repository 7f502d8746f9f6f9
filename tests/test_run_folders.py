"""Run folders of earlier versions load, are evaluated, and resume.

``data/run_folders`` holds two runs of the first format. One is a topographic model with its state.
The other is a part-whole model that started from another; only its small files were kept.
"""

import json
import shutil
from pathlib import Path

import pytest
import torch

import topocaps as tc
from topocaps.data import mnist_files
from topocaps.data.mnist_files import Digits
from topocaps.papers.recipes import find
from topocaps.study.finished import Finished, recipe_of
from topocaps.study.runs import Job, evaluate_run, run_job
from topocaps.training.store import RunFolder

FOLDERS = Path(__file__).parent / "data" / "run_folders"
TVAE = find("sprites/tvae").change(
    ["epochs=1", "resolution=8", "epoch_size=16", "hidden=8", "capsules=2", "batch=4"]
)
TUNED = find("capsules/mnist-tuned").change(
    ["sizes=(2,3)", "template=4", "width=8", "depth=1", "training.batch=4", "training.epochs=1",
     "training.epoch_size=16", "warmup=0"]
)  # fmt: skip


def digits(count):
    number = torch.arange(count * 144)
    images = torch.zeros(count, 28, 28, dtype=torch.uint8)
    images[:, 8:20, 8:20] = (number * number * 7 % 251).to(torch.uint8).reshape(count, 12, 12)
    return Digits(images, (torch.arange(count) % 10).to(torch.uint8))


@pytest.fixture(autouse=True)
def few_digits(monkeypatch):
    """The digits that the stored runs were trained on."""
    monkeypatch.setattr(mnist_files, "digits", lambda folder: (digits(60), digits(40)))
    monkeypatch.setattr(mnist_files, "VALIDATION", 20)


def copy_of(name, tmp_path):
    return Path(shutil.copytree(FOLDERS / name, tmp_path / name))


def recorded(folder):
    return json.loads((folder / "metrics.json").read_text())


def same_numbers(one, other):
    for key in ("elbo", "log_px_given_t", "capcorr", "mse"):
        if key in other:
            assert one[key] == pytest.approx(other[key], rel=1e-3)
            if key in other["untrained"]:
                assert one["untrained"][key] == pytest.approx(other["untrained"][key], rel=1e-3)


def same_recipe(found, recipe):
    """Compare recipes without claims and descriptions, which were not recorded for a start."""
    restored, expected = found.to_json(), recipe.to_json()
    for settings in (restored, expected, restored.get("start", {}), expected.get("start", {})):
        for key in ("about", "claims"):
            settings.pop(key, None)
    assert json.dumps(restored, sort_keys=True) == json.dumps(expected, sort_keys=True)
    assert found.fingerprint == recipe.fingerprint


@pytest.mark.parametrize("name, recipe", [("tvae", TVAE), ("mnist-tuned", TUNED)])
def test_the_recipe_of_an_earlier_folder_is_restored(name, recipe):
    same_recipe(recipe_of(RunFolder(FOLDERS / name)), recipe)


def test_the_start_of_an_earlier_folder_has_its_own_recipe():
    assert recipe_of(RunFolder(FOLDERS / "mnist-tuned" / "start")).fingerprint == (
        TUNED.start.fingerprint
    )


def test_an_earlier_folder_loads_and_is_evaluated(tmp_path):
    folder = copy_of("tvae", tmp_path)
    assert Finished.open(folder).metrics == recorded(folder)
    before = recorded(folder)
    (folder / "metrics.json").unlink()
    run = evaluate_run(folder, "cpu", report=False)
    same_numbers(run.metrics, before)
    assert tc.load(folder)(torch.rand(1, 15, 1, 8, 8)).elbo.shape == (1, 15)


def test_an_earlier_folder_resumes_from_its_state(tmp_path):
    folder = copy_of("tvae", tmp_path)
    before = tc.load(folder).state_dict()
    (folder / "weights.safetensors").unlink()
    (folder / "metrics.json").unlink()
    run = run_job(Job(TVAE, folder), "cpu")
    for name, value in run.model.state_dict().items():
        assert torch.equal(value, before[name]), name
    same_numbers(run.metrics, recorded(FOLDERS / "tvae"))


def test_an_earlier_folder_of_other_settings_is_refused(tmp_path):
    folder = copy_of("tvae", tmp_path)
    with pytest.raises(tc.BadInput, match=r"rate was 1\.0, is now 2"):
        run_job(Job(TVAE.change(["rate=2"]), folder), "cpu")


def test_an_earlier_folder_of_parts_and_wholes_trains_and_is_evaluated(tmp_path):
    """The folder has only settings and metrics, so it trains again, after its start."""
    folder = copy_of("mnist-tuned", tmp_path)
    for path in (folder, folder / "start"):
        (path / "metrics.json").unlink()
    run = run_job(Job(TUNED, folder), "cpu")
    for name in ("mnist-tuned", "mnist-tuned/start"):
        same_numbers(recorded(tmp_path / name), recorded(FOLDERS / name))
    assert run.metrics["start"] == {"recipe": "capsules/mnist", "epochs": 1}
    (folder / "metrics.json").unlink()
    again = evaluate_run(folder, "cpu", report=False)
    same_numbers(again.metrics, run.metrics)


def test_a_new_folder_records_the_whole_recipe(tmp_path):
    run_job(Job(TVAE, tmp_path), "cpu")
    assert Finished.open(tmp_path).recipe == TVAE
