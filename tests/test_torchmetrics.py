"""Metrics of torchmetrics equal the functions of all batches together."""

import copy
import importlib
import pickle
import sys
from dataclasses import dataclass

import numpy as np
import pytest
import torch
from sklearn.tree import DecisionTreeClassifier
from torchmetrics import MetricCollection

from topocaps import BadInput, metrics
from topocaps.integrations import torchmetrics as adapted

ITEMS = 30


def tree(seed):
    return DecisionTreeClassifier(random_state=seed)


def sequences(batch=ITEMS):
    """Latents that roll as one factor runs, and the factors."""
    start = torch.randint(5, (batch,))
    which = torch.arange(batch) % 2
    factors = torch.randint(5, (batch, 1, 2)).repeat(1, 5, 1)
    run = (start[:, None] + torch.arange(5)) % 5
    factors[torch.arange(batch), :, which] = run
    t0 = torch.randn(batch, 3, 5)
    t = torch.stack([t0.roll(n, -1) for n in range(5)], 1)
    return t + 0.7 * torch.randn_like(t), factors


def labelled(count=ITEMS):
    which = torch.randint(4, (count,))
    return 2 * torch.eye(4, 6)[which] + torch.randn(count, 6), which


def frames():
    x = torch.rand(ITEMS, 5, 1, 4, 4)
    return x, (x + 0.1 * torch.rand_like(x)).clamp(0, 1), torch.rand(ITEMS, 5) < 0.5


def named(found, *names):
    return {name: getattr(found, name) for name in names}


@dataclass
class Case:
    """A metric, what it is updated with, and what the function gives for it."""

    kind: type
    settings: dict
    shown: tuple
    wanted: object


def lie_means(x, **settings):
    found = metrics.lie_error(x=x, **settings)
    names = ("derivative", "finite", "floor", "resampled")
    return {name: getattr(found, name).mean().item() for name in names}


def cases():
    torch.manual_seed(0)
    (t, factors), train, test = sequences(), labelled(100), labelled()
    x, predicted, unseen = frames()
    lie = {"f": torch.sin, "action": metrics.Rotation(), "step": 0.2}
    return {
        "mig": Case(
            adapted.MutualInformationGap, {"bins": 5}, (t, factors),
            metrics.mig(t, factors, 5).value,
        ),
        "sap": Case(
            adapted.SeparatedAttributes, {"seed": 1}, (t, factors),
            metrics.sap(t, factors, seed=1).value,
        ),
        "dci": Case(
            adapted.DisentanglementCompleteness, {"classifier": tree}, (t, factors),
            named(
                metrics.dci(t, factors, classifier=tree),
                "disentanglement", "completeness", "informativeness", "chance",
            ),
        ),
        "factor_vae": Case(
            adapted.FactorVAEScore, {"batch": 4, "votes": 90, "tests": 90}, (t, factors),
            metrics.factor_vae_score(t, factors, batch=4, votes=90, tests=90).value,
        ),
        "smoothness": Case(
            adapted.TopographicSmoothness, {"permutations": 99, "seed": 3}, (t,),
            named(
                metrics.topographic_smoothness(t, permutations=99, seed=3),
                "observed", "shuffled", "p_value",
            ),
        ),
        "e_eq": Case(
            adapted.EquivarianceError, {"rate": 2.0}, (t,), metrics.equivariance_error(t, 2.0)
        ),
        "capcorr": Case(
            adapted.CapsuleCorrelation, {}, (t, factors),
            {f"capcorr_{n}": value for n, value in metrics.capcorr(t, factors).items()},
        ),
        "lie": Case(adapted.LieEquivarianceError, lie, (x[:, 0],), lie_means(x[:, 0], **lie)),
        "neighbours": Case(
            adapted.NearestNeighbourAccuracy, {"train": train, "k": 3}, test,
            metrics.nearest_neighbour_accuracy(train, test, k=3),
        ),
        "probe": Case(
            adapted.LinearProbeAccuracy, {"train": train, "strength": 2.0}, test,
            metrics.linear_probe_accuracy(train, test, 2.0),
        ),
        "gain": Case(
            adapted.TraversalGain, {"likelihood": "gaussian"}, (x, predicted, unseen),
            metrics.prediction(x, predicted, unseen, likelihood="gaussian").overall,
        ),
    }  # fmt: skip


CASES = list(cases())


def same(found, wanted):
    """To 1e-6: float32 is summed in another order."""
    if isinstance(wanted, dict):
        assert found.keys() == wanted.keys() and wanted
        found, wanted = list(found.values()), list(wanted.values())
    found = [one.item() for one in (found if isinstance(found, list) else [found])]
    np.testing.assert_allclose(found, np.atleast_1d(wanted), rtol=1e-6)


def parts(shown, *sizes):
    return zip(*(of.split(sizes) for of in shown), strict=True)


def test_every_metric_of_the_module_has_a_case():
    kinds = {
        kind
        for kind in vars(adapted).values()
        if isinstance(kind, type) and issubclass(kind, adapted.FunctionMetric)
    }
    assert kinds - {adapted.FunctionMetric} == {case.kind for case in cases().values()}


@pytest.mark.parametrize("name", CASES)
def test_updates_by_batch_equal_the_function_of_all_batches(name):
    case = cases()[name]
    metric = case.kind(**case.settings)
    for batch in parts(case.shown, 7, 23):
        metric.update(*batch)
    same(metric.compute(), case.wanted)
    metric.reset()
    for batch in parts(case.shown, 10, 10, 10):
        metric.update(*batch)
    same(metric.compute(), case.wanted)


@pytest.mark.parametrize("name", CASES)
def test_a_merged_state_comes_first(name):
    case = cases()[name]
    one, other = (case.kind(**case.settings) for _ in range(2))
    first, rest = parts(case.shown, 7, 23)
    one.update(*first)
    other.update(*rest)
    other.merge_state(one)
    same(other.compute(), case.wanted)


@pytest.mark.parametrize("name", CASES)
def test_compute_gathers_the_batches_of_all_processes(name):
    """The second of two processes is replaced by its states."""
    case = cases()[name]
    first, rest = parts(case.shown, 7, 23)
    here, there = (case.kind(**case.settings) for _ in range(2))
    there.update(*rest)
    others = iter([getattr(there, state) for state in there._reductions])

    def gathered(value, group=None):
        other = next(others)
        return [value, other[0] if isinstance(other, list) else other]

    here.update(*first)
    here.sync(dist_sync_fn=gathered, distributed_available=lambda: True)
    here._to_sync = False
    same(here.compute(), case.wanted)


@pytest.mark.parametrize("name", CASES)
def test_a_metric_can_be_copied_and_pickled(name):
    case = cases()[name]
    metric = case.kind(**case.settings)
    first, rest = parts(case.shown, 7, 23)
    metric.update(*first)
    for other in (copy.deepcopy(metric), pickle.loads(pickle.dumps(metric))):
        other.update(*rest)
        same(other.compute(), case.wanted)


def test_a_collection_passes_each_metric_its_arguments():
    t, factors = sequences()
    collection = MetricCollection([adapted.EquivarianceError(), adapted.CapsuleCorrelation()])
    for some, of in parts((t, factors), 10, 20):
        collection.update(t=some, factors=of)
    wanted = {f"capcorr_{n}": value for n, value in metrics.capcorr(t, factors).items()}
    same(collection.compute(), {"EquivarianceError": metrics.equivariance_error(t), **wanted})


def test_a_collection_stores_codes_and_factors_once():
    kinds = [adapted.MutualInformationGap(), adapted.FactorVAEScore(batch=4)]
    collection = MetricCollection(kinds)
    t, factors = sequences()
    for batch in parts((t, factors), 10, 20):
        collection.update(*batch)
    (group,) = collection.compute_groups.values()
    assert set(group) == {"FactorVAEScore", "MutualInformationGap"}
    assert collection.compute()["MutualInformationGap"].item() == metrics.mig(t, factors).value


def test_a_collection_keeps_metrics_with_equal_first_batches_apart():
    train, (codes, classes) = labelled(100), labelled(200)
    right = [metrics.nearest_neighbour_hits(train, (codes, classes), k) for k in (1, 9)]
    order = (right[0] != right[1]).long().argsort(stable=True)  # items that differ come last
    codes, classes = codes[order], classes[order]
    collection = MetricCollection(
        {str(k): adapted.NearestNeighbourAccuracy(train=train, k=k) for k in (1, 9)}
    )
    for batch in parts((codes, classes), 100, 100):
        collection.update(*batch)
    wanted = {
        str(k): metrics.nearest_neighbour_accuracy(train, (codes, classes), k) for k in (1, 9)
    }
    assert wanted["1"] != wanted["9"]
    same(collection.compute(), wanted)


def covariance(a, b, scale=1.0):
    return scale * ((a - a.mean()) * (b - b.mean())).mean()


class Covariance(adapted.FunctionMetric, of=covariance):
    """A metric of a user's own function."""


class Halved(Covariance):
    """A metric that changes what another computes."""

    higher_is_better = False

    def compute(self):
        return super().compute() / 2


def test_a_custom_function_becomes_a_metric():
    a, b = torch.randn(2, 50, dtype=torch.double)
    metric = Covariance(scale=3.0)
    for batch in parts((a, b), 20, 30):
        metric.update(*batch)
    same(metric.compute(), covariance(a, b, 3.0).item())
    half = Halved()
    half.update(a, b)
    same(half.compute(), covariance(a, b).item() / 2)


class Least(adapted.FunctionMetric, of=covariance):
    higher_is_better = False


def test_metrics_set_higher_is_better():
    found = [kind.higher_is_better for kind in (Covariance, Halved, Least, adapted.FactorVAEScore)]
    assert found == [None, False, False, True]


def test_metrics_refuse_unsuitable_arguments():
    metric = adapted.MutualInformationGap()
    with pytest.warns(UserWarning, match="before"), pytest.raises(BadInput, match="update first"):
        metric.compute()
    with pytest.raises(BadInput, match="codes and factors must have equally many items"):
        metric.update(torch.zeros(3, 2), torch.zeros(4, 2))
    with pytest.raises(
        BadInput, match=r"LieEquivarianceError needs the setting action: pass action="
    ):
        adapted.LieEquivarianceError(f=torch.sin)
    with pytest.raises(ValueError, match="colour"):
        adapted.MutualInformationGap(colour="red")


def test_an_error_names_the_missing_package(monkeypatch):
    monkeypatch.setitem(sys.modules, "torchmetrics", None)
    monkeypatch.delitem(sys.modules, "topocaps.integrations.torchmetrics", raising=False)
    with pytest.raises(BadInput, match=r"pip install 'topocaps\[metrics\]'"):
        importlib.import_module("topocaps.integrations.torchmetrics")
