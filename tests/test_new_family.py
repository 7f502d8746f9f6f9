"""A model family, a data set and a metric of a user work like those of the package."""

from dataclasses import dataclass

import pytest
import torch
from test_training import StopAt, assert_same, weights
from torch import Tensor, nn
from torch.distributions import Normal

import topocaps as tc
from topocaps.models import GenerativeModel, family
from topocaps.models.base import FAMILIES
from topocaps.models.evidence import kl_to_standard_normal
from topocaps.study.data import DATA, Splits
from topocaps.study.evaluation.base import EVALUATIONS, Evaluation
from topocaps.study.fingerprint import stable
from topocaps.study.quantity import Quantity
from topocaps.study.recipe import FAMILIES as FAMILIES_OF_RECIPES
from topocaps.study.recipe import BaseRecipe
from topocaps.study.runs import Job, evaluate_run, run_job
from topocaps.training.watching import SUMMARY, Silent


@dataclass(frozen=True)
class TwoLayersEvidence:
    log_px_given_t: Tensor
    kl_t: Tensor
    code_spread: Tensor

    @property
    def elbo(self):
        return self.log_px_given_t - self.kl_t

    objective = elbo


class TwoLayers(GenerativeModel):
    """One linear layer encodes every frame by itself, another decodes it."""

    terms = ("elbo", "log_px_given_t", "kl_t")
    monitors = ("code_spread",)
    likelihood = tc.Likelihood.GAUSSIAN

    def __init__(self, frame_shape, codes=2):
        super().__init__()
        self.config = {"kind": "TwoLayers", "frame_shape": list(frame_shape), "codes": codes}
        self.frame_shape, self.codes = tuple(frame_shape), codes
        self.encoder, self.decoder = nn.Linear(*frame_shape, codes), nn.Linear(codes, *frame_shape)

    @property
    def noise_shapes(self):
        return [(self.codes,)]

    def evidence(self, x, noise=torch.randn_like, mask=None):
        q = Normal(self.encoder(x), 0.1)
        outputs = self.decoder(q.mean + 0.1 * noise(q.mean))
        log_px = self.likelihood.distribution(outputs).log_prob(x).sum(-1)
        kl = kl_to_standard_normal(q, 1)
        if mask is not None:
            log_px, kl = log_px * mask, kl * mask
        return TwoLayersEvidence(log_px, kl, q.mean.std().detach().expand(kl.shape))

    def lr_scale(self, name):
        return 0.5 if name.startswith("encoder") else 1.0

    def diagnose(self, means):
        return "collapsed: all codes are alike" if means["code_spread"] < 1e-6 else None


@pytest.fixture(autouse=True)
def _joined():
    family(TwoLayers)
    yield
    del FAMILIES["TwoLayers"]


def model(seed=0):
    torch.manual_seed(seed)
    return TwoLayers((6,))


def lines(count=20):
    """Frames on a plane through the origin, in a noise of a tenth."""
    torch.manual_seed(7)
    return torch.randn(count, 5, 2) @ (2 * torch.randn(2, 6)) + 0.1 * torch.randn(count, 5, 6)


TRAINING = tc.Training(tc.Adam(1e-2), batch=4, epochs=6)


def fit(one, **options):
    options = {"training": TRAINING, "device": "cpu", "watcher": Silent(), **options}
    return tc.fit(one, lines(), **options)


class Heard(Silent):
    def __init__(self):
        self.lines = []

    def epoch(self, record):
        self.lines.append(record[SUMMARY])


def test_it_trains_and_records_its_own_terms_and_monitors():
    heard = Heard()
    first, *_, last = fit(model(), watcher=heard).history
    assert last["elbo"] > first["elbo"] + 1
    assert last["elbo"] == pytest.approx(last["log_px_given_t"] - last["kl_t"], abs=1e-4)
    assert last["code_spread"] > 0 and "complaint" not in last
    assert heard.lines[-1] == (
        f"elbo {last['elbo']:.1f} = {last['log_px_given_t']:.1f} - kl t {last['kl_t']:.1f}"
        f", code spread {last['code_spread']:.2f}"
    )


def test_its_diagnosis_is_recorded_and_printed():
    one, heard = model(), Heard()
    for parameter in one.encoder.parameters():
        nn.init.zeros_(parameter.requires_grad_(False))
    assert fit(one, watcher=heard).history[-1]["complaint"].startswith("collapsed")
    assert heard.lines[-1].endswith("; collapsed: all codes are alike")


def test_an_interrupted_run_resumes_bit_for_bit_and_is_loaded(tmp_path):
    whole = fit(model()).model
    with pytest.raises(tc.Interrupted):
        fit(model(), out=tmp_path / "run", watcher=StopAt(13))
    resumed = fit(model(), out=tmp_path / "run").model
    assert_same(weights(resumed), weights(whole))
    loaded = tc.load(tmp_path / "run")
    assert type(loaded) is TwoLayers and loaded.config == whole.config
    assert_same(weights(loaded), weights(whole))


def test_it_trains_beside_other_families_as_it_does_alone():
    sequences = lines()
    other = tc.TopographicVAE.mlp((6,), tc.Topography(2, (5,), window=3), 8, likelihood="gaussian")
    runs = tc.fit_together(
        [model(), other, model(1)], sequences, seeds=[0, 0, 1], training=TRAINING, device="cpu",
        watcher=Silent(),
    )  # fmt: skip
    assert_same(weights(runs[0].model), weights(fit(model()).model))
    assert_same(weights(runs[2].model), weights(fit(model(1), seed=1).model))


def test_learning_rates_are_scaled_by_name():
    one, start = model(), model()
    tc.fit(
        one, lines(4), training=tc.Training(tc.Adam(1e-2), batch=4, epochs=1), device="cpu",
        watcher=Silent(),
    )  # fmt: skip
    moved = {
        name: (value - weights(start)[name]).abs().max() for name, value in weights(one).items()
    }
    assert moved["encoder.weight"].item() == pytest.approx(0.5e-2, rel=1e-2)
    assert moved["decoder.weight"].item() == pytest.approx(1e-2, rel=1e-2)


def test_missing_frames_do_not_count_and_frames_of_another_shape_are_refused():
    x, mask = lines(), torch.rand(20, 5) > 0.3
    mask[:, 0] = True
    one = model()
    torch.manual_seed(0)
    expected = one(x).elbo[mask].sum()
    torch.manual_seed(0)
    found = one(x.masked_fill(~mask[..., None], torch.nan), mask)
    assert found.elbo[~mask].eq(0).all() and torch.isclose(found.elbo.sum(), expected)
    assert fit(one, validation=tc.Sequences.of(x, mask)).history[-1]["validation_elbo"] < 0
    with pytest.raises(tc.BadInput, match=r"with frame \(6,\)"):
        one(x[..., :5])


def test_an_unknown_kind_of_model_is_named():
    with pytest.raises(tc.BadInput, match="no model of kind 'Unknown'"):
        tc.models.build({"kind": "Unknown"})


# Recipes, evaluation and reports ------------------------------------------------------------------


@dataclass(frozen=True)
class Lines:
    """A data set of one's own for recipes."""

    count: int = 20

    def identity(self):
        return stable("lines", count=(self.count, None))

    def load(self, folder=None):
        held_out = tc.Sequences.of(lines(6))
        return Splits(tc.Sequences.of(lines(self.count)), held_out, "lines", "held-out lines", None)


@dataclass(frozen=True, kw_only=True)
class TwoLayersRecipe(BaseRecipe):
    codes: int = 2

    def build(self, frame_shape, seed):
        torch.manual_seed(seed)
        return TwoLayers(frame_shape, self.codes)

    def to_json(self):
        return {**super().to_json(), "model": "TwoLayers", "codes": self.codes}

    def identity(self):
        return super().identity() | stable("two-layers", codes=(self.codes, 2))


RECIPE = TwoLayersRecipe(name="own/lines", about="", data=Lines(), training=TRAINING)


@pytest.fixture
def with_recipes(monkeypatch):
    monkeypatch.setitem(DATA, "Lines", Lines)
    monkeypatch.setitem(FAMILIES_OF_RECIPES, "TwoLayers", TwoLayersRecipe)


def test_its_recipe_trains_is_evaluated_and_reported_and_survives_json(tmp_path, with_recipes):
    assert BaseRecipe.from_json(RECIPE.to_json()) == RECIPE
    run = run_job(Job(RECIPE, tmp_path / "run"), "cpu")
    metrics = run.metrics
    assert metrics["elbo"] > metrics["untrained"]["elbo"] + 1
    assert metrics["sequences"] == 6 and metrics["code_spread"] > 0
    report = (tmp_path / "run" / "report.html").read_text()
    assert "held-out lines" in report and "code spread" in report
    again = evaluate_run(tmp_path / "run", "cpu")
    assert again.metrics["elbo"] == metrics["elbo"] and again.recipe == RECIPE


def test_a_metric_of_its_own_is_measured_and_reported(tmp_path, with_recipes, monkeypatch):
    class LinesEvaluation(Evaluation):
        def measure(self, model, untrained, splits, recipe, device):
            found = super().measure(model, untrained, splits, recipe, device)
            return found | {"rank": float(torch.linalg.matrix_rank(model.decoder.weight))}

        def quantities(self, columns):
            return [*super().quantities(columns), Quantity(("rank",), "rank of the decoder", 0)]

    monkeypatch.setitem(EVALUATIONS, TwoLayers, LinesEvaluation())
    run = run_job(Job(RECIPE, tmp_path / "run"), "cpu")
    assert run.metrics["rank"] == 2.0
    assert "rank of the decoder" in (tmp_path / "run" / "report.html").read_text()
