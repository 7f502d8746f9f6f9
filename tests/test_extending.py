"""What users bring themselves: networks, decoders, sets of sequences; told apart, or refused."""

from dataclasses import dataclass, replace

import pytest
import torch
from test_export import quiet
from test_training import FRAME, TOPOGRAPHY, frames, model
from torch import nn
from torch.distributions import Bernoulli, Independent, Laplace

import topocaps as tc
from topocaps.data import from_images, split
from topocaps.integrations.onnx import export
from topocaps.models.likelihoods import Likelihood
from topocaps.study import part_figures
from topocaps.study.report import compare
from topocaps.study.runs import Job, run_jobs
from topocaps.training.watching import Silent


class Decoder(nn.Module):
    frame_shape = FRAME

    def __init__(self, kind, activation=nn.ReLU):
        super().__init__()
        self.network = nn.Sequential(nn.Flatten(-2), nn.Linear(12, 16), activation())
        self.kind = kind

    def forward(self, t):
        values = self.network(t).unflatten(-1, FRAME)
        if self.kind is Laplace:
            return Independent(Laplace(values, torch.ones_like(values)), 3)
        return Independent(Bernoulli(logits=values), 3)


def own(kind=Bernoulli, activation=nn.ReLU, topography=TOPOGRAPHY, **settings):
    usual = model()
    decoder = Decoder(kind, activation)
    return tc.TopographicVAE(usual.z_given_x, usual.u_given_x, decoder, topography, **settings)


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        (dict(topography=replace(TOPOGRAPHY, velocity=0.0)), "networks.topography"),
        (dict(activation=nn.Tanh), r"networks.layers.x_given_t.network.2 was ReLU\(\), is now Tan"),
        (dict(sparsity=0.5), "networks.sparsity"),
    ],
)
def test_a_run_of_networks_of_your_own_is_not_taken_for_another(changes, named, tmp_path):
    there = dict(epochs=1, batch=4, out=tmp_path / "run", watcher=Silent(), device="cpu")
    run = tc.fit(own(), frames(), **there)
    assert len(tc.fit(run.model, frames(), **there).history) == 1  # the same, trained by now
    with pytest.raises(tc.BadInput, match=f"holds a run with other settings .*{named}"):
        tc.fit(own(**changes), frames(), **there)


def test_gains_are_not_told_of_a_decoder_that_is_taken_for_another():
    strange = own(Laplace)
    with pytest.raises(
        tc.BadInput, match="the decoder returns a Laplace, but its likelihood is Bernoulli"
    ):
        tc.metrics.traversal(strange, frames())
    strange.likelihood = Likelihood.GAUSSIAN
    assert tc.metrics.traversal(strange, frames()).overall <= 1
    assert tc.metrics.traversal(own(), frames()).overall <= 1


@dataclass(frozen=True, repr=False)
class Dimmed(tc.Sequences):
    by: float = 1.0

    def show(self, script):
        shown = super().show(script)
        return replace(shown, x=shown.x * self.by)


def dimmed(by):
    usual = tc.Sequences.of(frames())
    return Dimmed(usual.images, usual.order, by=by)


def test_settings_of_a_set_are_part_of_its_fingerprint():
    assert dimmed(0.5).digest() == dimmed(0.5).digest() != dimmed(0.4).digest()
    assert repr(dimmed(0.5)) == "Dimmed(20 of 6 frames (1, 4, 4))"


def test_what_a_set_shows_is_looked_at_before_training():
    for by in (2.0, torch.nan):
        with pytest.raises(tc.BadInput):
            tc.fit(model(), dimmed(by), epochs=1, watcher=Silent())


def test_pictures_that_move_can_be_split():
    train, held_out = split(from_images(torch.rand(10, 1, 8, 8), "rotation", 6))
    assert (len(train), len(held_out)) == (8, 2)
    with pytest.raises(
        tc.BadInput, match="these Sequences cannot be split: pass what read or from_"
    ):
        split(tc.Sequences.of(frames()))


def test_a_run_is_told_in_a_line(tmp_path):
    run = tc.fit(model(), frames(), epochs=2, out=tmp_path / "run", device="cpu", watcher=Silent())
    said = repr(run)
    assert said.startswith("Run(TopographicVAE: 2 epochs in") and len(said.splitlines()) == 1


def test_a_run_on_sequences_of_your_own_says_what_to_do_instead(tmp_path, command):
    out = tmp_path / "run"
    tc.fit(own(), frames(), epochs=1, out=out, device="cpu", watcher=Silent())
    for what in ("evaluate", "traverse"):
        code, _, said = command(what, out)
        said = said.replace("\n", "")
        assert code == 2 and "tc.metrics.evaluate(tc.load(" in said and "', model), x)" in said


def test_runs_of_one_name_are_columns_of_their_own(tmp_path):
    recipe = tc.recipes.find("sprites/tvae").change(
        ["resolution=8", "epoch_size=16", "hidden=8", "capsules=2", "batch=4", "epochs=1"]
    )
    jobs = [Job(recipe, tmp_path / str(n), n) for n in range(2)]
    header, *_ = compare(list(run_jobs(jobs, device="cpu", reports=False)))
    name = recipe.name
    assert header == ["", f"{name}, seed 0", f"{name}, seed 1", f"{name}, untrained"]


def test_parts_are_drawn_of_images_and_of_sequences_of_one():
    torch.manual_seed(0)
    parts = tc.PartWhole((1, 12, 12), sizes=(2, 3), width=8, depth=1)
    x = torch.rand(3, 1, 12, 12)
    for shown in (x, x[:, None]):
        assert part_figures.parts(parts, shown).axes
    assert part_figures.turned(parts, x[:1, None], [0, 90]).axes
    with pytest.raises(tc.BadInput, match="expected one image"):
        part_figures.turned(parts, x, [0])
    two = tc.PartWhole((2, 12, 12), sizes=(2, 3), width=8, depth=1)
    with pytest.raises(tc.BadInput, match="only images of 1 or 3 channels can be drawn, not of 2"):
        part_figures.parts(two, torch.rand(3, 2, 12, 12))


@quiet
def test_networks_of_your_own_can_be_exported(tmp_path):
    found = export(own(), tmp_path / "exported", frames=6)
    assert max(found.differences.values()) < 1e-4


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (lambda: model(norm="foo"), "norm must be one of none, weight, projected, not 'foo'"),
        (lambda: model(likelihood="laplace"), "likelihood must be one of bernoulli, gaussian"),
        (lambda: tc.Training(optimiser="lion"), "sgd, adam or muon for their defaults, not 'lion'"),
    ],
)
def test_names_that_are_none_are_refused(wrong, message):
    with pytest.raises(tc.BadInput, match=message):
        wrong()


def test_one_width_is_enough_and_no_words_are_a_call_for_help(command):
    one = tc.TopographicVAE.mlp(FRAME, TOPOGRAPHY, hidden=8)
    assert one.config == model().config
    code, out, err = command()
    assert code == 0 and "Usage:" in out and not err
