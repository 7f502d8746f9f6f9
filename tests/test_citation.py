"""CITATION.cff says what the package says."""

import re
from pathlib import Path

import topocaps as tc

CITATION = (Path(__file__).parents[1] / "CITATION.cff").read_text()


def test_the_version_is_the_packages():
    assert re.findall(r"^version: (.*)$", CITATION, re.M) == [tc.__version__]


def test_both_papers_are_cited():
    titles = re.findall(r'^    title: "(.*)"$', CITATION, re.M)
    assert titles == [
        "Topographic VAEs learn Equivariant Capsules",
        "Capsule Networks - A Probabilistic Perspective",
    ]
