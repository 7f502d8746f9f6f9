"""Models, metrics and data sets name their sources, and CITATION.cff agrees with the package."""

import inspect
import os
import re
from pathlib import Path

import pytest
import torch

import topocaps as tc
from topocaps.capsules.model import SMITH_2020
from topocaps.data.affnist import TIELEMAN_2013, affnist
from topocaps.data.mnist_files import LECUN_1998
from topocaps.data.sprite_images import MATTHEY_2017, growing_sprites
from topocaps.integrations import torchmetrics as adapted
from topocaps.latents.topography import KELLER_2021
from topocaps.metrics.attribute_predictability import KUMAR_2018
from topocaps.metrics.dci_scores import EASTWOOD_2018
from topocaps.metrics.factor_vae import KIM_2018
from topocaps.metrics.lie import GRUVER_2022
from topocaps.metrics.mutual_information import CHEN_2018
from topocaps.models.base import GenerativeModel
from topocaps.models.evidence import BURDA_2016
from topocaps.models.topographic import KINGMA_2014
from topocaps.papers.recipes import RECIPES
from topocaps.references import TOPOCAPS, cites, references
from topocaps.study.data import DATA
from topocaps.training.watching import Silent

CITATION = (Path(__file__).parents[1] / "CITATION.cff").read_text()

MODELS = {
    tc.TopographicVAE: KELLER_2021,
    tc.RollingVAE: KELLER_2021,
    tc.VAE: KINGMA_2014,
    tc.PartWhole: SMITH_2020,
}

#: what ``tc.metrics`` exports, by source; the rest is the library's own
SOURCES = {
    (KELLER_2021,): {
        "capcorr", "observed_rolls", "chance_equivariance_error", "equivariance_error",
        "equivariance_errors",
    },
    (KELLER_2021, BURDA_2016): {"evaluate", "per_sequence"},
    (CHEN_2018,): {"mig"},
    (KUMAR_2018,): {"sap"},
    (EASTWOOD_2018,): {"dci"},
    (KIM_2018,): {"factor_vae_score"},
    (GRUVER_2022,): {"lie_error"},
    (): {
        "accuracy_by_labels", "axis_moved", "axis_shares", "equal_counts", "equal_widths",
        "filled_costs", "fit_probe", "gains_by_visible", "interpolation_floor",
        "linear_probe_accuracy",
        "nearest_neighbour_accuracy", "nearest_neighbour_hits", "neighbour_agreement", "own_axes",
        "pooled", "prediction", "specialisation", "strongest_images", "topographic_smoothness",
        "traversal", "unseen_lags",
    },
}  # fmt: skip

DATA_SETS = {
    tc.data.sprites: (MATTHEY_2017,),
    tc.data.render: (MATTHEY_2017,),
    growing_sprites: (MATTHEY_2017,),
    tc.data.mnist: (LECUN_1998,),
    tc.data.digits: (LECUN_1998,),
    affnist: (TIELEMAN_2013, LECUN_1998),
}
#: what ``tc.data`` exports to hold or to read a user's own images, or draws from fonts
OWN = {"at_times", "from_images", "letters", "read", "split"}


def functions(module):
    return {name for name in module.__all__ if inspect.isfunction(getattr(module, name))}


def cff(field):
    return re.findall(rf'^ *(?:- )?{field}: "?(.*?)"?$', CITATION, re.M)


def braced(field, entry):
    (value,) = re.findall(rf"^  {field} = {{(.*)}},$", entry, re.M)
    return value.replace("{", "").replace("}", "")


def test_citation_file_has_the_version_of_the_package():
    assert cff("version") == [tc.__version__]
    assert f"version {tc.__version__}" in TOPOCAPS


def test_citation_file_and_entries_agree():
    assert cff("title") == [braced("title", one) for one in (TOPOCAPS, KELLER_2021, SMITH_2020)]
    assert cff("  - name") == [braced("author", TOPOCAPS)]
    assert [int(year) for year in cff("year")] == [
        int(braced("year", one)) for one in (KELLER_2021, SMITH_2020)
    ]
    assert cff("url") == [braced("url", one) for one in (KELLER_2021, SMITH_2020)]


def test_every_exported_model_names_its_source():
    exported = {getattr(tc, name) for name in tc.__all__}
    models = {one for one in exported if isinstance(one, type) and issubclass(one, GenerativeModel)}
    assert models == MODELS.keys()
    for model, entry in MODELS.items():
        assert references(model) == (entry,)
        assert tc.citation(model) == f"{entry}\n\n{TOPOCAPS}"


def test_every_exported_metric_names_its_sources():
    assert functions(tc.metrics) == set().union(*SOURCES.values())
    for entries, names in SOURCES.items():
        for name in names:
            assert set(references(getattr(tc.metrics, name))) == set(entries), name


def test_every_exported_data_set_names_its_source():
    assert functions(tc.data) <= OWN | {one.__name__ for one in DATA_SETS}
    for one, entries in DATA_SETS.items():
        assert references(one) == entries


def test_sequences_remember_their_source():
    train, _ = tc.data.sprites(8)
    for some in (train, train.balanced(2, 0), train.to("cpu"), growing_sprites(8)[1]):
        assert references(some) == (MATTHEY_2017,)
    own = tc.Sequences.of(torch.rand(2, 3, 1, 4, 4))
    assert references(own) == () and tc.citation(own) == TOPOCAPS
    assert own.digest() == tc.Sequences(own.images, own.order, citations=("x",)).digest()


@pytest.mark.skipif("TOPOCAPS_DATA" not in os.environ, reason="needs MNIST's files")
def test_digits_remember_their_source():
    for some in tc.data.mnist():
        assert references(some) == (LECUN_1998,)
    for kind in ("Mnist", "StillMnist", "MovedMnist"):
        splits = DATA[kind]().load()
        for some in (splits.train, splits.held_out, splits.validation):
            assert references(some) == references(DATA[kind]) == (LECUN_1998,)


def test_every_recipe_cites_its_model_and_its_data():
    for recipe in RECIPES.values():
        entries = references(recipe)
        assert entries[1:] == recipe.data.citations and entries[0] in MODELS.values()
    assert references(RECIPES["capsules/mnist"]) == (SMITH_2020, LECUN_1998)
    assert references(RECIPES["capsules/vae"]) == (KINGMA_2014, LECUN_1998)
    assert references(RECIPES["sprites/tvae"]) == (KELLER_2021, MATTHEY_2017)


def test_a_run_and_a_torchmetrics_metric_cite_what_they_hold():
    model = tc.VAE.mlp(frame_shape=(1, 4, 4), topography=tc.Topography(2, (5,)), hidden=(9,))
    run = tc.fit(model, torch.rand(4, 3, 1, 4, 4), epochs=1, device="cpu", watcher=Silent())
    assert references(run) == references(model) == (KINGMA_2014,)
    for kind, entries in (
        (adapted.MutualInformationGap, (CHEN_2018,)),
        (adapted.CapsuleCorrelation, (KELLER_2021,)),
        (adapted.EquivarianceError, (KELLER_2021,)),
        (adapted.TopographicSmoothness, ()),
    ):
        assert references(kind()) == references(kind) == entries


def test_an_entry_is_given_once_and_the_library_last():
    metrics = tc.metrics.capcorr, tc.metrics.equivariance_error, tc.metrics.mig
    assert tc.citation(tc.TopographicVAE, *metrics) == "\n\n".join(
        (KELLER_2021, CHEN_2018, TOPOCAPS)
    )
    assert tc.citation() == TOPOCAPS


def test_entries_are_bibtex_of_different_keys():
    entries = {TOPOCAPS, *MODELS.values(), *sum(SOURCES, ()), *sum(DATA_SETS.values(), ())}
    keys = []
    for entry in entries:
        head, *lines, end = entry.splitlines()
        keys.append(re.fullmatch(r"@(?:article|inproceedings|misc)\{(\w+),", head).group(1))
        assert all(re.fullmatch(r"  \w+ = \{.*\},", line) for line in lines) and end == "}"
        assert entry.count("{") == entry.count("}") and entry.isascii()
        assert {"title", "author"} <= {line.split()[0] for line in lines}
    assert len(set(keys)) == len(entries)


def test_custom_models_and_metrics_name_their_own_entries():
    entry = "@misc{mine,\n  title = {Mine},\n  author = {Me},\n}"

    @cites(entry)
    def measure(t):
        return t.mean()

    class Mine(tc.VAE):
        citations = (entry,)

    assert tc.citation(measure) == tc.citation(Mine, measure) == f"{entry}\n\n{TOPOCAPS}"
    for unknown in ("mig", 3, torch.nn.Linear(1, 1), lambda t: t):
        with pytest.raises(tc.BadInput, match="has no BibTeX entries"):
            tc.citation(unknown)
