"""Topographies and small things that many tests share."""

import math
import os

os.environ["CUDA_VISIBLE_DEVICES"] = ""  # the suite is about the CPU, wherever it runs

import pytest
import torch

from topocaps import Topography

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


def every_topography(test):
    """Run a law over every topography there is."""
    return pytest.mark.parametrize(
        "topography, frames", TOPOGRAPHIES.values(), ids=TOPOGRAPHIES.keys()
    )(test)


@pytest.fixture(params=["product", "running sums"])
def pooling(request, monkeypatch):
    """Both ways to apply W, whatever the size."""
    limit = math.inf if request.param == "product" else 0
    monkeypatch.setattr("topocaps.topography.SMALL", limit)


@pytest.fixture(autouse=True)
def _seed():
    torch.manual_seed(0)


@pytest.fixture(autouse=True, scope="session")
def _cache(tmp_path_factory):
    """Sprites are kept beside the tests' other files, not among the user's."""
    os.environ["TOPOCAPS_CACHE"] = str(tmp_path_factory.mktemp("cache"))


@pytest.fixture(autouse=True, scope="session")
def _threads():
    torch.set_num_threads(1)  # so that tests can run side by side
