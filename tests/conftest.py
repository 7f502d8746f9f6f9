"""Topographies, fixtures and settings that many tests share."""

import math
import os

os.environ["CUDA_VISIBLE_DEVICES"] = ""  # the suite tests the CPU, on any machine
# test processes share the cores, and are several times slower if their threads wait for each other
os.environ["OMP_NUM_THREADS"] = os.environ.get("OMP_NUM_THREADS") or str(
    max(1, (os.cpu_count() or 1) // int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1")))
)

import pytest
import torch

from topocaps import Precision, Topography, cli
from topocaps.training.updates.fused import FusedUpdate

#: (topography, frames): windows and reaches odd and even, S = D and S != D, one axis and two.
TOPOGRAPHIES = {
    "independent": (Topography(2, (5,)), 4),
    "reach 3": (Topography(2, (5,), (3,)), 4),
    "even reach": (Topography(2, (6,), (4,)), 3),
    "whole capsule": (Topography(2, (5,), (5,)), 3),
    "tvae": (Topography(2, (6,), (1,), window=3), 6),
    "tvae reach 3": (Topography(3, (7,), (3,), window=5), 7),
    "tvae even window": (Topography(1, (6,), (1,), window=4), 6),
    "tvae whole sequence": (Topography(2, (6,), (3,), window=6), 6),
    "tvae more frames than sites": (Topography(2, (4,), (2,), window=6), 7),
    "tvae fewer frames than sites": (Topography(2, (7,), (3,), window=4), 5),
    "backwards": (Topography(2, (5,), (1,), window=3, velocity=-1), 5),
    "two sites a frame": (Topography(2, (7,), (2,), window=3, velocity=2), 4),
    "bubble": (Topography(2, (6,), (3,), window=5, velocity=0), 7),
    "torus": (Topography(1, (5, 6), (3, 2)), 2),
    "torus in time": (Topography(2, (4, 3), (2, 3), window=3), 5),
}

#: Extensions that the papers propose: any velocity, open ends, causal W, and combinations.
EXTENSIONS = {
    "half a site a frame": (Topography(2, (5,), (3,), window=4, velocity=0.5), 7),
    "a third, backwards": (Topography(1, (6,), (2,), window=5, velocity=-1 / 3), 6),
    "no fraction of anything": (Topography(2, (5,), (1,), window=5, velocity=0.7312), 6),
    "one and a half": (Topography(1, (4,), (3,), window=6, velocity=1.5), 6),
    "open": (Topography(2, (5,), (1,), window=3, cyclic=False), 6),
    "open, even, reach 3": (Topography(1, (6,), (3,), window=4, cyclic=False), 5),
    "open, whole sequence": (Topography(1, (5,), (2,), window=5, cyclic=False), 5),
    "open, backwards, two sites": (Topography(2, (6,), (2,), 3, velocity=-2, cyclic=False), 4),
    "open bubble": (Topography(2, (5,), (4,), window=3, velocity=0, cyclic=False), 6),
    "open, single frames": (Topography(2, (5,), (3,), cyclic=False), 3),
    "open, half a site": (Topography(2, (5,), (3,), 5, velocity=0.5, cyclic=False), 7),
    "causal": (Topography(2, (5,), (1,), window=3, causal=True), 6),
    "causal, reach 2": (Topography(1, (6,), (2,), window=6, causal=True), 6),
    "causal, half a site": (Topography(2, (5,), (3,), 4, velocity=0.5, causal=True), 6),
    "causal and open": (Topography(2, (6,), (3,), 4, causal=True, cyclic=False), 6),
    "causal, open, third": (Topography(1, (5,), (1,), 3, 1 / 3, causal=True, cyclic=False), 7),
    "causal torus": (Topography(1, (4, 3), (1, 2), window=3, causal=True), 5),
    "axes apart": (Topography(2, (4, 3), (2, 3), window=3, apart=True), 5),
    "axes apart, causal": (Topography(1, (4, 3), (1, 2), window=3, causal=True, apart=True), 5),
    "axes apart, slow": (Topography(1, (3, 3), window=3, velocity=0.5, apart=True), 6),
}


def every(topographies):
    """Return a decorator that runs a test for all of these topographies."""
    return pytest.mark.parametrize(
        "topography, frames", topographies.values(), ids=topographies.keys()
    )


every_topography = every(TOPOGRAPHIES | EXTENSIONS)
every_topography_of_the_papers = every(TOPOGRAPHIES)  # cyclic, whole steps: W is 0 and 1


@pytest.fixture(params=["product", "running sums"])
def pooling(request, monkeypatch):
    """Apply W in both ways, for any size."""
    limit = math.inf if request.param == "product" else 0
    monkeypatch.setattr("topocaps.latents.topography.SMALL", limit)


@pytest.fixture
def command(monkeypatch, capsys):
    """Run ``topocaps`` with these words, and return the exit code, stdout and stderr."""

    def run(*words):
        monkeypatch.setattr("sys.argv", ["topocaps", *map(str, words)])
        with pytest.raises(SystemExit) as left:
            cli.main()
        printed = capsys.readouterr()
        return left.value.code, printed.out, printed.err

    return run


@pytest.fixture(autouse=True)
def _seed():
    torch.manual_seed(0)


@pytest.fixture(autouse=True, scope="session")
def _cache(tmp_path_factory):
    """Keep cached data sets in a folder of the tests, not in the user's cache."""
    os.environ["TOPOCAPS_CACHE"] = str(tmp_path_factory.mktemp("cache"))


@pytest.fixture(autouse=True, scope="session")
def _threads():
    torch.set_num_threads(1)  # so that tests can run side by side


@pytest.fixture
def fused_anywhere(monkeypatch):
    """Use the fused update for bf16, even on a CPU without instructions for it."""
    suits = staticmethod(lambda stack, training: training.precision is Precision.BF16)
    monkeypatch.setattr(FusedUpdate, "suits", suits)
