"""The command line."""

import json
import re

import numpy as np
import pytest
import torch

import topocaps as tc
from topocaps import cli
from topocaps.papers.recipes import find
from topocaps.study.data import Splits
from topocaps.study.report import compare
from topocaps.study.runs import evaluate_run

TINY = ["--epochs", "2", "--set", "resolution=8", "--set", "epoch_size=24", "--set", "hidden=16"]


def measure_few(patch):
    patch.setattr("topocaps.study.evaluation.topographic.SOME", 10)
    patch.setattr("topocaps.study.data.SOME", 10)


@pytest.fixture(autouse=True)
def _small_evaluation(monkeypatch):
    measure_few(monkeypatch)


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """The folder of a finished run."""
    folder = tmp_path_factory.mktemp("runs") / "run"
    patch = pytest.MonkeyPatch()
    measure_few(patch)
    patch.setattr("sys.argv", ["topocaps", "train", "sprites/tvae", "--out", str(folder), *TINY])
    with pytest.raises(SystemExit) as left:
        cli.main()
    patch.undo()
    assert left.value.code == 0
    return folder


def test_train_makes_a_whole_run_folder(trained):
    names = {path.name for path in trained.iterdir()}
    assert names == {
        "events",
        "figures",
        "metrics.json",
        "metrics.jsonl",
        "recipe.json",
        "report.html",
        "state",
        "weights.safetensors",
    }
    metrics = json.loads((trained / "metrics.json").read_text())
    promised = """schema log_px samples log_px_paper elbo equivariance_error
        chance_equivariance_error capcorr traversal_gain traversal untrained split epochs seed
        seconds device"""
    assert set(promised.split()) <= set(metrics)
    assert set(metrics["capcorr"]) == set(metrics["traversal"]["by_factor"])
    assert set(metrics["capcorr"]) == {"scale", "orientation", "x", "y"}
    assert metrics["traversal"]["by_factor"]["scale"] is None
    assert len(metrics["traversal"]["by_lag"]) == 15
    assert set(metrics["untrained"]) >= {"log_px", "traversal_gain", "capcorr"}
    assert metrics["epochs"] == 2 and metrics["sequences"] == 40
    assert isinstance(tc.load(trained), tc.TopographicVAE)


def test_metrics_are_those_of_held_out_data_and_of_an_untrained_model(trained):
    """They are computed again from the weights, the seed and the data."""
    metrics = json.loads((trained / "metrics.json").read_text())
    train, held_out = tc.data.sprites(8)
    model = tc.load(trained)
    fresh = tc.recipes.find("sprites/tvae").change(["hidden=16"]).build((1, 8, 8), seed=0)
    for which, sequences, found in (
        (model, held_out, metrics),
        (model, train, metrics["train"]),
        (fresh, held_out, metrics["untrained"]),
    ):
        expected = tc.evaluate(which, sequences.balanced(10, seed=0), seed=0)
        for key in ("elbo", "log_px", "equivariance_error", "traversal_gain"):
            assert found[key] == pytest.approx(expected[key], rel=1e-5)


def test_the_report_is_one_file_with_its_figures(trained):
    page = (trained / "report.html").read_text()
    assert page.count("data:image/png;base64,") == 4
    assert not re.search(r"(src|href)=\"(?!data:)", page)
    assert "topography" in page and "traversal gain" in page


def test_the_printed_table_agrees_with_metrics_json(trained, command):
    code, out, _ = command("evaluate", trained)
    metrics = json.loads((trained / "metrics.json").read_text())
    rows = dict(re.split(r"\s{2,}", line)[:2] for line in out.splitlines() if "  " in line.strip())
    assert code == 0
    assert float(rows["gain x"].replace("−", "-")) == pytest.approx(
        metrics["traversal"]["by_factor"]["x"], abs=0.006
    )
    assert float(rows["E_eq"].replace(",", "")) == pytest.approx(
        metrics["equivariance_error"], abs=0.6
    )
    assert float(rows["ELBO"].replace("−", "-")) == pytest.approx(metrics["elbo"], abs=0.06)


def test_evaluate_prints_metrics_json(trained, command):
    before = json.loads((trained / "metrics.json").read_text())
    code, out, _ = command("evaluate", trained, "--json")
    assert code == 0 and json.loads(out) == before


def test_training_a_finished_run_again_is_reported_or_refused(trained, command):
    code, _, err = command("train", "sprites/tvae", "--out", trained, *TINY)
    assert code == 0 and "trained already" in err
    code, _, err = command("train", "sprites/tvae", "--out", trained, "--epochs", "3", *TINY[2:])
    assert code == 2 and "training.epochs was 2, is now 3" in err


def test_every_seed_gets_its_own_folder(tmp_path, command):
    words = ["train", "sprites/vae", "--out", tmp_path / "vae", "--seed", "3", "--seeds", "2"]
    assert command(*words, *TINY)[0] == 0
    found = [
        json.loads((tmp_path / "vae" / f"seed-{n}" / "metrics.json").read_text()) for n in (3, 4)
    ]
    assert found[0]["elbo"] != found[1]["elbo"] and found[1]["seed"] == 4


def test_traverse_draws_a_picture(trained, tmp_path, command):
    code, out, _ = command("traverse", trained, "--each", "2", "--out", tmp_path / "new" / "t.png")
    assert code == 0 and out.strip() == str(tmp_path / "new" / "t.png")
    assert (tmp_path / "new" / "t.png").read_bytes().startswith(b"\x89PNG")


def test_recipes_are_listed(command):
    code, out, _ = command("recipes")
    assert code == 0 and "sprites/bubble" in out
    code, out, _ = command("recipes", "--json")
    assert json.loads(out)["sprites/tvae"]["topography"]["window"] == 13


@pytest.mark.parametrize("name", ["", "demo", "train", "evaluate", "traverse", "recipes"])
def test_help_has_an_example(name, command):
    code, out, _ = command(*([name] if name else []), "--help")
    assert code == 0 and (not name or f"Example: topocaps {name}" in out)


@pytest.mark.parametrize(
    "words, says",
    [
        (["train", "sprites/none"], "no recipe 'sprites/none'"),
        (["train", "sprites/tvae", "--set", "windw=3"], "no setting 'windw'"),
        (["train", "sprites/tvae", "--set", "window=16"], "window 16 is longer than the sequence"),
        (["train", "sprites/tvae", "--epochs", "0"], "epochs must be"),
        (["train", "sprites/tvae", "--epochs", "many"], "--epochs"),
        (["train", "sprites/tvae", "--seeds", "0"], "--seeds"),
        (["train", "sprites/tvae", "--device", "abacus"], "device 'abacus'"),
        (["evaluate", "nowhere"], "not a run folder"),
        (["traverse", "nowhere"], "not a run folder"),
        (["fit", "clips", "--model", "none"], "'--model': 'none' is not one of 'rolling', 'tvae'"),
        (["dance"], "No such command 'dance'"),
        (["train"], "RECIPE"),
    ],
)
def test_a_mistake_gets_one_line_and_exit_code_2(words, says, tmp_path, monkeypatch, command):
    monkeypatch.chdir(tmp_path)
    if words[:2] == ["train", "sprites/tvae"]:
        words = [*words, "--out", "run", "--set", "resolution=8"]
    code, out, err = command(*words)
    assert code == 2 and not out
    assert len(err.splitlines()) == 1 and says.lower() in err.lower()
    assert not list(tmp_path.iterdir())


def test_a_folder_that_cannot_be_written(tmp_path, command):
    (tmp_path / "file").write_text("")
    code, _, err = command("train", "sprites/tvae", "--out", tmp_path / "file" / "run", *TINY)
    assert code == 2 and err.startswith("topocaps: cannot write to the folder")
    assert len(err.splitlines()) == 1


def test_evaluate_refuses_a_run_without_a_recipe(tmp_path, command):
    import torch

    model = tc.VAE.mlp(frame_shape=(1, 4, 4), topography=tc.Topography(2, (3,)))
    tc.fit(model, torch.rand(4, 3, 1, 4, 4), epochs=1, out=tmp_path)
    code, _, err = command("evaluate", tmp_path)
    assert code == 2 and "sequences of your own" in err.splitlines()[-1]


def test_a_run_that_does_not_stay_finite_is_reported_with_exit_code_1(tmp_path, command):
    words = ["train", "sprites/tvae", "--out", tmp_path / "run", *TINY, "--set", "lr=1e30"]
    code, _, err = command(*words)
    assert code == 1 and re.search(r"sprites/tvae, seed 0: .* at step \d+; try a smaller lr", err)
    assert err.splitlines()[-1] == (
        "topocaps: 1 of 1 runs did not stay finite: see failure.json in their folders"
    )


def test_demo_compares_three_models(tmp_path, monkeypatch, command):
    small = ["training.epochs=1", "epoch_size=32", "hidden=8", "capsules=2", "batch=4"]
    monkeypatch.setattr(cli, "find", lambda name: find(name).change(small))
    folder = tmp_path / "demo"
    code, out, err = command("demo", "--out", folder)
    assert code == 0
    assert "letters/rolling, untrained" in out and str(folder / "report.html") in out
    for name in ("rolling", "tvae", "vae"):
        assert (folder / name / "metrics.json").exists()
    for name in ("predicted.png", "animation.gif", "by_visible.png"):
        assert str(folder / "figures" / name) in out or name == "by_visible.png"
        assert (folder / "figures" / name).exists()
    assert (folder / "report.html").read_text().count("data:image/gif") == 2
    before = out
    code, out, err = command("demo", "--out", folder)
    assert code == 0 and out == before and err.count("trained already") == 3


def test_a_model_of_single_images_has_a_report_without_motion(tmp_path):
    """The report has no rows about motion and no traversal, but the torus and neighbours."""
    generator = torch.Generator().manual_seed(0)
    images = torch.randint(256, (40, 1, 6, 6), dtype=torch.uint8, generator=generator)
    classes = torch.arange(40)[:, None] % 10
    still = tc.Sequences(images, torch.arange(40)[:, None], classes, ("class",))
    splits = Splits(still, still, "noise", "test images", None)
    small = ["reach=3,3", "topography.shape=4,4", "training.epochs=1", "hidden=8", "batch=20"]
    recipe = find("mnist/submission/torus").change(small)
    model = recipe.build(still.frame_shape, 0)
    tc.fit(model, still, training=recipe.training, out=tmp_path, settings=recipe.to_json())
    run = evaluate_run(tmp_path, "cpu", splits=splits)
    labels = [row[0] for row in compare([run])[1:]]
    assert "neighbours of one class" in labels and not {"E_eq", "gain, mean"} & set(labels)
    assert {f.stem for f in run.folder.figures.iterdir()} == {"torus", "topography", "history"}


def clips(folder, count=8, frames=8):
    """Write clips of moving squares, one per file, and return their folder."""
    folder.mkdir()
    for n in range(count):
        clip = np.zeros((frames, 12, 12), np.uint8)
        for frame in range(frames):
            at = (n + frame) % 10
            clip[frame, 4:8, at : at + 3] = 255
        np.save(folder / f"clip-{n}.npy", clip)
    return folder


QUICK = ["--epochs", "1", "--set", "epoch_size=32", "--set", "hidden=16", "--device", "cpu"]


def test_fit_trains_on_a_folder(tmp_path, command):
    folder, out = clips(tmp_path / "clips"), tmp_path / "out"
    code, said, _ = command("fit", str(folder), "--out", str(out), *QUICK, "--model", "tvae")
    assert code == 0 and "report" in said and "gain" in said and "gain all" not in said
    metrics = json.loads((out / "metrics.json").read_text())
    assert metrics["split"] == "held-out sequences" and metrics["sequences"] == 2
    assert metrics["traversal_gain"] is not None and metrics["untrained"]
    assert (out / "figures" / "traversal.png").exists() and (out / "report.html").exists()
    assert isinstance(tc.load(out), tc.TopographicVAE)
    code, said, _ = command("evaluate", str(out), "--json")
    assert code == 0 and json.loads(said)["traversal_gain"] == metrics["traversal_gain"]


def test_fit_accepts_vectors_of_any_range(tmp_path, command):
    np.save(tmp_path / "recordings.npy", np.random.default_rng(0).normal(0, 3, (10, 9, 7)))
    out = tmp_path / "out"
    code, _, said = command("fit", str(tmp_path / "recordings.npy"), "--out", str(out), *QUICK)
    assert code == 0 and "gaussian decoder" in said
    assert not (out / "figures" / "traversal.png").exists()


@pytest.mark.parametrize(
    "array, sentence",
    [
        (np.zeros((5, 2, 8, 8), np.uint8), "too short"),
        (np.full((5, 6, 8, 8), np.nan, np.float32), "finite"),
    ],
)
def test_fit_refuses_unsuitable_arrays(tmp_path, command, array, sentence):
    np.save(tmp_path / "bad.npy", array)
    code, _, said = command("fit", tmp_path / "bad.npy", "--out", tmp_path / "out", *QUICK)
    assert code == 2 and sentence in said and len(said.strip().splitlines()) <= 2


def test_messages_print_brackets_unchanged(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr("sys.argv", ["topocaps", "evaluate", str(tmp_path / "a[red]b")])
    with pytest.raises(SystemExit):
        cli.main()
    assert "a[red]b" in capsys.readouterr().err.replace("\n", "")
