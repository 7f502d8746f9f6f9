"""A module and a function or class of its package never share a name."""

import importlib
import inspect
import pkgutil

import pytest

import topocaps

PACKAGES = [
    "topocaps",
    *(one.name for one in pkgutil.walk_packages(topocaps.__path__, "topocaps.") if one.ispkg),
]


def shared_names(package):
    """Return the submodules whose names in the package stand for functions or classes."""
    names = {one.name for one in pkgutil.iter_modules(package.__path__)}
    attributes = {name: getattr(package, name, None) for name in names}
    return {name for name, value in attributes.items() if value and not inspect.ismodule(value)}


@pytest.mark.parametrize("name", PACKAGES)
def test_no_function_or_class_has_the_name_of_a_module(name):
    assert not shared_names(importlib.import_module(name))


def test_a_shared_name_is_found(tmp_path, monkeypatch):
    (tmp_path / "pair").mkdir()
    (tmp_path / "pair" / "__init__.py").write_text("from pair.score import score")
    (tmp_path / "pair" / "score.py").write_text("def score(): ...")
    monkeypatch.syspath_prepend(tmp_path)
    assert shared_names(importlib.import_module("pair")) == {"score"}
