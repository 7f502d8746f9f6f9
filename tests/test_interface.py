"""Every kind of W offers the declared interface, and agrees with the topography it derives from."""

import inspect

import pytest
import torch
from conftest import every_topography

import topocaps as tc
from topocaps.latents.interface import TopographyLike
from topocaps.latents.learned import LearnedTopography
from topocaps.latents.stack import TopographyStack

MEMBERS = [name for name in vars(TopographyLike) if not name.startswith("_")]


def learned(topography, frames):
    return LearnedTopography(topography, "weights")


def stacked(topography, frames):
    return TopographyStack([topography], frames)


KINDS = {"settings": lambda topography, frames: topography, "learned": learned, "stack": stacked}
every_kind = pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS)


@pytest.mark.parametrize("name", MEMBERS)
def test_every_member_has_a_docstring_of_whole_sentences(name):
    said = inspect.getdoc(inspect.getattr_static(TopographyLike, name))
    assert said[0].isupper() and said.rstrip().endswith(".")


@every_kind
@every_topography
def test_every_w_has_every_member(kind, topography, frames):
    w = kind(topography, frames)
    assert not [name for name in MEMBERS if not hasattr(w, name)]
    for name in MEMBERS:
        declared = inspect.getattr_static(TopographyLike, name)
        if inspect.isfunction(declared):
            own = list(inspect.signature(getattr(w, name)).parameters)
            asked = list(inspect.signature(declared).parameters)[1:]
            assert own[: len(asked)] == asked


@every_kind
@every_topography
def test_everything_but_w_is_taken_from_the_topography(kind, topography, frames):
    w = kind(topography, frames)
    for name in MEMBERS:
        value = getattr(topography, name)
        if not callable(value):
            assert getattr(w, name) == value, name
    assert [w.squares(a) for a in w.axes] == [topography.squares(a) for a in topography.axes]
    t = torch.rand(2, frames, topography.capsules, *topography.shape)
    axis = len(topography.shape) - 1
    torch.testing.assert_close(w.roll(t, 1.5, axis, 2.0), topography.roll(t, 1.5, axis, 2.0))
    assert torch.equal(w.axis_of_each(-1), torch.tensor(axis))
    w.check(frames)
    with pytest.raises(tc.BadInput, match="longer than the sequence"):
        w.check(topography.window - 1)


@every_kind
@every_topography
def test_every_w_pools_u_to_the_shape_of_z(kind, topography, frames):
    u2 = torch.rand(3, frames, topography.capsules, *topography.u_shape)
    w = kind(topography, frames)
    for axis in w.axes:
        pooled = w.pool(u2, axis)
        assert pooled.shape == (3, frames, topography.capsules, *topography.shape)
        torch.testing.assert_close(pooled, topography.pool(u2, axis), rtol=1e-3, atol=1e-3)


@every_kind
@every_topography
def test_every_w_makes_a_prior(kind, topography, frames):
    w = kind(topography, frames)
    found, expected = (tc.TopographicStudentT(one, frames, mu=-3.0) for one in (w, topography))
    assert found.rsample((2,)).shape == (2, *expected.event_shape)
    torch.testing.assert_close(found.mean, expected.mean, equal_nan=True)
    torch.testing.assert_close(found.variance, expected.variance, equal_nan=True)


def test_a_learned_topography_cannot_join_a_stack():
    start = tc.Topography(2, (6,), window=3)
    with pytest.raises(tc.BadInput, match="a learned topography cannot share a stack"):
        TopographyStack([start, LearnedTopography(start, "weights")], 6)
