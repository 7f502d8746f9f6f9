"""The models of the package: their size, their cards, and the command that makes them."""

import re

import pytest
import torch
from safetensors.torch import load_file

import topocaps as tc
from topocaps.integrations.pretrained import FOLDER, names
from topocaps.integrations.pretrained.__main__ import MADE, make
from topocaps.papers.recipes import find


def card_of(name):
    text = (FOLDER / name / "README.md").read_text()
    numbers = re.findall(r"^\| (\S.*?) \| (-?[\d.]+) \|$", text, re.M)
    return text, {metric: float(value) for metric, value in numbers}


def test_all_models_exist_and_are_small():
    assert names() == sorted(MADE)
    for name in names():
        assert sum(path.stat().st_size for path in (FOLDER / name).iterdir()) < 2e6


@pytest.mark.parametrize("name", names())
def test_a_model_has_the_settings_of_its_command(name):
    recipe, changes = MADE[name]
    model = tc.pretrained(name)
    frame_shape = tuple(model.config["frame_shape"])
    assert model.config == find(recipe).change(changes).build(frame_shape, 0).config
    assert f"python -m topocaps.integrations.pretrained {name}" in card_of(name)[0]
    held = load_file(FOLDER / name / "model.safetensors")
    assert {value.dtype for value in held.values()} == {torch.float16}
    assert {value.dtype for value in model.state_dict().values()} == {torch.float32}
    assert not model.training


def test_metrics_of_sprites_are_those_of_the_card():
    """The tolerance allows for fewer sequences than those of the card."""
    model, (_, held_out) = tc.pretrained("sprites"), tc.data.sprites(32)
    batch = next(held_out.balanced(60, seed=0).batches(240))
    walked = tc.metrics.traversal(model, batch.x, batch.factors)
    _, said = card_of("sprites")
    for name in ("x", "y"):
        column = held_out.names.index(name)
        assert walked.by_factor[column] == pytest.approx(said[f"gain {name}"], abs=0.1)
        assert walked.by_factor[column] > 0.4
    errors = tc.metrics.equivariance_errors(model.encode(batch.x, sample=True))
    assert errors.mean().item() == pytest.approx(said["equivariance_error"], rel=0.1)


def test_every_call_returns_a_new_model():
    one, other = tc.pretrained("sprites"), tc.pretrained("sprites")
    with torch.no_grad():
        one.mu.zero_()
    assert other.mu != 0 and tc.pretrained("sprites").mu == other.mu


def test_unknown_names_are_refused():
    with pytest.raises(tc.BadInput, match=r"no trained model 'digits': choose from sprites$"):
        tc.pretrained("digits")
    for wrong in ("", "..", "sprites/"):
        with pytest.raises(tc.BadInput, match="choose from sprites"):
            tc.pretrained(wrong)
    with pytest.raises(tc.BadInput, match="no command makes 'digits': choose from sprites"):
        make("digits")


def test_the_command_trains_rounds_and_evaluates_a_model(tmp_path, monkeypatch):
    """A tiny model runs through all steps of the command."""
    small = ("resolution=8", "hidden=16", "epoch_size=24", "training.epochs=1")
    monkeypatch.setitem(MADE, "tiny", ("sprites/tvae", small))
    for module in ("topocaps.integrations.pretrained", "topocaps.integrations.pretrained.__main__"):
        monkeypatch.setattr(f"{module}.FOLDER", tmp_path / "package")
    for module in ("topocaps.study.evaluation.topographic", "topocaps.study.data"):
        monkeypatch.setattr(f"{module}.SOME", 5)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "package").mkdir()
    make("tiny")
    made, run = tc.pretrained("tiny"), tc.load(tmp_path / "runs" / "trained-tiny")
    for name, value in run.state_dict().items():
        assert torch.equal(made.state_dict()[name], value.half().float()), name
    text = (tmp_path / "package" / "tiny" / "README.md").read_text()
    assert "20 sequences of held-out orbits" in text and "| gain x |" in text
