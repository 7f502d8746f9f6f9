"""Rolling VAEs in studies: recipes, choices of ``fit``, evaluations, drawings and run folders."""

import io
import json
from dataclasses import replace

import numpy as np
import pytest
import torch
from matplotlib.figure import Figure
from PIL import Image
from test_rolling import FRAME, GROUPED, rolling

import topocaps as tc
from topocaps.latents.motion import Grouped, Known, Motion, Unknown
from topocaps.models.priors import StudentT
from topocaps.models.visible import Past, VisibleFrames
from topocaps.papers.recipes import find
from topocaps.study import drawing, rolling_figures
from topocaps.study.data import OwnSequences
from topocaps.study.drawing import Animation
from topocaps.study.evaluation import RollingEvaluation, evaluation_of
from topocaps.study.evaluation.rolling import motion_names, motion_numbers
from topocaps.study.fit import Choices, Kind, explain, recipe_for
from topocaps.study.recipe import BaseRecipe
from topocaps.study.rolling_recipe import RollingRecipe

LETTERS = find("letters/rolling")


# Recipes ------------------------------------------------------------------------------------------


def test_a_recipe_with_every_setting_is_the_same_after_json():
    recipe = RollingRecipe(
        name="a/b", about="c", data=OwnSequences("clips"), likelihood="gaussian", keep=3,
        prior=StudentT(5),
        topography=tc.Topography(3, (5, 3)), visible=Past(2, 4), hidden=9, channels=(4, 8),
        motion=Grouped((1, 2), (Known(0), Unknown((-0.5, 1), axes=(0, 1)))),
        training=tc.Training(kl=tc.KLWeight(0.1, 0.5, 0.9)), start=replace(LETTERS, edition="d"),
    )  # fmt: skip
    again = BaseRecipe.from_json(json.loads(json.dumps(recipe.to_json())))
    assert again == recipe and again.fingerprint == recipe.fingerprint
    assert recipe.hidden == (9,) and recipe.likelihood == tc.Likelihood.GAUSSIAN
    other = replace(recipe, visible=Past(2, 3))
    assert other.fingerprint != recipe.fingerprint


def test_settings_are_changed_by_their_path():
    recipe = replace(LETTERS, keep=6, training=tc.Training(kl=tc.KLWeight(0.1, 0.5)))
    changed = recipe.change(["motion.velocity=-2", "least=5", "kl.start=0.5", "keep=none"])
    assert changed.motion == Known(-2) and changed.visible.least == 5 and changed.keep is None
    assert changed.training.kl == tc.KLWeight(0.5, 0.5)
    built = changed.build(FRAME, 0)
    assert built.motions.velocities.flatten().unique().tolist() == [-2] and built.keep is None


class Own(Motion):
    def candidates(self, capsules, axes):
        return torch.ones(1, capsules, axes).double()

    def log_prior(self):
        return torch.zeros(1).double()


class Seen(VisibleFrames):
    def among(self, uniform, present, count):
        return present


@pytest.mark.parametrize(
    "settings, says",
    [
        (
            dict(topography=tc.Topography(2, (5,), window=3)),
            "of its topography: leave out the other settings",
        ),
        (dict(channels=(4, 8), hidden=(5, 6)), "at most one hidden layer"),
        (dict(hidden=(5, 0)), "hidden must be a whole number"),
        (dict(channels=(0.5,)), "channels must be a whole number"),
        (dict(keep=0), "keep must be a whole number"),
        (dict(likelihood="poisson"), "likelihood must be one of"),
        (dict(motion=Own()), "a recipe records its motion, its visible frames"),
        (dict(visible=Seen()), "a recipe records its motion, its visible frames"),
    ],
)
def test_invalid_recipes_are_refused(settings, says):
    with pytest.raises(tc.BadInput, match=says):
        replace(LETTERS, **settings)


@pytest.mark.parametrize("count", [1, 2])
def test_fewer_than_three_frames_are_refused_before_a_model_is_built(count):
    with pytest.raises(tc.BadInput, match=f"sequences need 3 or more frames, not {count}"):
        LETTERS.check(tc.Sequences.of(torch.rand(3, count, *FRAME)))
    LETTERS.check(tc.Sequences.of(torch.rand(3, 3, *FRAME)))


def test_recipes_store_numpy_numbers_as_plain_numbers():
    recipe = replace(LETTERS, keep=np.int64(3), visible=Past(np.int64(2)), hidden=np.int64(9))
    plain = replace(LETTERS, keep=3, visible=Past(2), hidden=9)
    assert json.dumps(recipe.to_json()) == json.dumps(plain.to_json())
    assert recipe.fingerprint == plain.fingerprint


# Choices of fit -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "choices, says",
    [
        (dict(model="tvae", speeds=(1.0,)), "speeds needs model=rolling"),
        (dict(model="rolling", window=3), "window needs model=tvae"),
        (dict(model="vae"), "model"),
    ],
)
def test_choices_of_another_family_are_refused(choices, says):
    with pytest.raises(tc.BadInput, match=says):
        Choices(**choices)


@pytest.mark.parametrize(
    "words, says",
    [
        (("--model", "tvae", "--speeds", "1"), "speeds needs --model rolling"),
        (("--window", "3"), "window needs --model tvae"),
        (("--speeds", "fast"), "--speeds must be numbers such as -1,1, not 'fast'"),
        (("--speeds", "1,nan"), "a velocity must be"),
        (("--speeds", "1,1"), "candidate motions 0 and 1 are the same"),
        (("--set", "window=3"), "of its topography: leave out the other settings"),
        (("--closed", "--speeds", "0.5"), "fractional velocities need an odd number of sites"),
    ],
)
def test_wrong_options_of_fit_give_an_error_of_one_line(words, says, clips, tmp_path, command):
    code, printed, said = command("fit", clips, "--out", tmp_path / "out", *words)
    *_, last = said.strip().splitlines()
    assert code == 2 and not printed and says in last and last.startswith("topocaps: "), said


@pytest.fixture
def clips(tmp_path):
    """Twelve sequences of a bar that moves, as an array of 8 frames."""
    x = np.zeros((12, 8, 6, 8), np.float32)
    for n in range(12):
        for frame in range(8):
            x[n, frame, :, (n + (frame if n % 2 else -frame)) % 8] = 1
    np.save(tmp_path / "bars.npy", x)
    return tmp_path / "bars.npy"


def test_the_choices_decide_the_recipe(clips):
    data = OwnSequences(str(clips))
    own = data.read()
    open_time = recipe_for(own, data, Choices())
    assert isinstance(open_time, RollingRecipe) and open_time.motion == Unknown((-1, 1))
    assert open_time.topography.shape == (17,)  # the code never repeats, and the number is odd
    closed = recipe_for(own, replace(data, closed=True), Choices(closed=True, speeds=(0.5,)))
    assert closed.topography.shape == (8,) and closed.motion == Known(0.5)
    assert "a motion of 0.5 sites per frame, closed time" in explain(closed)
    assert "−1 or +1 sites per frame, open time, multilayer perceptrons" in explain(open_time)
    tvae = recipe_for(own, data, Choices(model=Kind.TVAE, window=5, epochs=3))
    assert tvae.model is tc.TopographicVAE and tvae.topography.window == 5
    assert tvae.training.epochs == 3 and tvae.training.kl.is_bound


# Evaluations --------------------------------------------------------------------------------------


def test_motions_are_named_by_their_velocities():
    groups = Grouped((1, 2), (Known(0), Unknown((-0.5, 1))))
    assert motion_names(rolling(Known(1))) == ["+1"]
    assert motion_names(rolling(Unknown((-2, 0.25)))) == ["−2", "+0.25"]
    assert motion_names(rolling(groups, capsules=3)) == ["0 / −0.5", "0 / +1"]
    assert motion_names(rolling(GROUPED)) == ["0 / −1", "0 / +1"]
    three = Grouped((1, 1, 1), (Unknown((-1, 1)),) * 3)
    names = motion_names(rolling(three, capsules=3))
    assert len(set(names)) == 8 and "−1 / +1 / −1" in names and "−1 / −1 / −1" in names
    axes = rolling(Unknown((1, -1), axes=(0, 1)), (5, 3))
    assert motion_names(axes) == ["(+1, 0)", "(−1, 0)", "(0, +1)", "(0, −1)"]


def test_shares_and_probabilities_of_motions_are_those_of_the_model():
    model = rolling(Unknown((-1, 1))).float()
    x = torch.rand(9, 6, *FRAME)
    found = motion_numbers(model, tc.Sequences.of(x))
    p = model.motion(x).probs
    assert found["candidates"] == ["−1", "+1"] and sum(found["share"]) == pytest.approx(1)
    assert found["share"][0] == pytest.approx((p[:, 0] > p[:, 1]).float().mean().item())
    assert list(found["probability"]) == list(found["certainty"]) == ["3", "4", "6"]
    assert found["certainty"]["6"] == pytest.approx(p.amax(1).mean().item(), abs=1e-5)
    for n, mean in zip(found["most_frequent"], found["probability"]["6"], strict=True):
        assert mean == pytest.approx(p[p.argmax(1) == n].mean(0).tolist(), abs=1e-5)
    known = motion_numbers(rolling(Known(1)).float(), tc.Sequences.of(x))
    assert known == {"candidates": ["+1"], "share": [1.0], "most_frequent": [0]}


def test_many_equally_frequent_motions_are_reported_and_drawn():
    model = rolling(Unknown((-2, -1, 0, 1, 2)), (7,)).float()
    found = motion_numbers(model, tc.Sequences.of(torch.rand(40, 6, *FRAME)))
    found["share"] = [0.2] * 5
    (remark,) = RollingEvaluation().remarks({"motion": found, "visible": {}})
    assert "20% of the sequences" in remark
    assert len(rolling_figures.motions(found).axes) == len(found["most_frequent"]) <= 4


def test_motions_of_digits_are_measured_on_the_fixed_set():
    digits = tc.data.TransformedImages(torch.randint(256, (9, 6, 6), dtype=torch.uint8))
    model = tc.RollingVAE.mlp((3, 6, 6), tc.Topography(2, (18,)), hidden=4, motion=Unknown())
    fixed = digits.balanced(2, seed=0)
    found, again = (motion_numbers(model, one) for one in (fixed, tc.Sequences.of(all_of(fixed))))
    assert found == again and sum(found["share"]) == pytest.approx(1)


def all_of(sequences):
    return sequences.show(sequences.fixed()).x


def gains(**by_count):
    return {count[1:]: {"gain": gain} for count, gain in by_count.items()}


def test_remarks_name_the_motion():
    evaluation = evaluation_of(rolling())
    assert type(evaluation) is RollingEvaluation
    known = {"candidates": ["−2"], "share": [1.0], "most_frequent": [0]}
    assert evaluation.remarks({"motion": known, "visible": {}}) == [
        "Motion, given: codes roll by −2 sites per frame."
    ]
    inferred = {
        "candidates": ["−1", "+1", "+2"],
        "share": [0.25, 0.75, 0.0],
        "most_frequent": [1, 0],
        "certainty": {"3": 0.75, "4": 0.9, "6": 0.97},
    }
    (remark,) = evaluation.remarks({"motion": inferred, "visible": gains(_3=0.1, _5=None)})
    assert remark.startswith(
        "Motion, inferred, in sites per frame: +1 in 75% of the sequences, "
        "−1 in 25% of the sequences"
    )
    assert remark.endswith("likeliest motion: 0.97 with 6 frames, 0.75 with 3 frames.")


@pytest.mark.parametrize(
    "visible, counts",
    [
        (gains(_3=-0.1, _5=0.2), "3"),
        (gains(_3=-0.1, _5=0.0, _9=0.3), "3 or 5"),
        (gains(_3=-3.0, _5=-0.2, _9=-0.1), "3, 5 or 9"),
    ],
)
def test_a_gain_of_0_or_less_is_a_warning(visible, counts):
    known = {"candidates": ["+1"], "share": [1.0], "most_frequent": [0]}
    _, warning = RollingEvaluation().remarks({"motion": known, "visible": visible})
    assert warning == (
        f"With {counts} visible frames, hidden frames of held-out sequences are predicted no "
        "better than by the mean frame of their sequence."
    )


# Drawings -----------------------------------------------------------------------------------------


def test_an_animation_is_a_gif_of_all_its_pictures(tmp_path):
    pictures = np.zeros((5, 12, 9, 3), np.uint8)
    for n in range(5):
        pictures[n, n : n + 3, :, :] = (200, 64, 47)
    with Image.open(io.BytesIO(Animation(pictures).gif())) as gif:
        assert gif.format == "GIF" and gif.n_frames == 5 and gif.size == (9, 12)
        assert gif.info["loop"] == 0 and gif.info["duration"] > 0
        for n in range(5):
            gif.seek(n)
            shown = np.asarray(gif.convert("RGB")).astype(int)
            assert abs(shown - pictures[n]).max() < 8  # GIFs have a palette
    assert drawing.saved(tmp_path, "moving") is None
    drawing.save(Animation(pictures), tmp_path, "moving")
    drawing.save(Figure(), tmp_path, "still")
    assert drawing.saved(tmp_path, "moving") == tmp_path / "moving.gif"
    assert drawing.saved(tmp_path, "still") == tmp_path / "still.png"
    assert (tmp_path / "still.png").read_bytes().startswith(b"\x89PNG")


# Run folders --------------------------------------------------------------------------------------


def test_every_command_takes_the_folder_of_a_rolling_vae(clips, tmp_path, command):
    out, picture = tmp_path / "out", tmp_path / "picture.png"
    small = ("--epochs", "1", "--set", "epoch_size=32", "--set", "hidden=8", "--device", "cpu")
    code, _, said = command("fit", clips, "--out", out, "--speeds", "1", *small)
    assert code == 0 and "a motion of 1 sites per frame" in said, said
    metrics = json.loads((out / "metrics.json").read_text())
    code, printed, _ = command("evaluate", out, "--json", "--device", "cpu")
    assert code == 0 and json.loads(printed)["visible"] == metrics["visible"]
    code, printed, said = command("traverse", out, "--out", picture)
    assert code == 0 and printed.strip() == str(picture), said
    with Image.open(picture) as shown:
        assert shown.width > shown.height
    code, _, said = command("traverse", out)
    assert code == 0 and (out / "figures" / "traversal.png").exists()
    model = tc.load(out)
    assert type(model) is tc.RollingVAE and model.visible == LETTERS.visible
    x = torch.from_numpy(np.load(clips))[:, :, None]
    assert tc.evaluate(model, x)["visible"]["3"]["of"] == 8
