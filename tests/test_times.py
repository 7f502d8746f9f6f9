"""Frames at unequal times: they are placed among missing frames."""

import pytest
import torch

import topocaps as tc
from topocaps.data import at_times

X = torch.rand(2, 3, 1, 4, 4)
TIMES = [[0, 1, 4], [5, 0, 2]]


def test_frames_are_placed_at_their_times_and_others_are_missing():
    x, mask = at_times(X, TIMES)
    assert x.shape == (2, 6, 1, 4, 4) and mask.shape == (2, 6)
    for row, times in enumerate(TIMES):
        assert mask[row].nonzero().flatten().tolist() == sorted(times)
        assert x[row, times].equal(X[row])
    assert not x[~mask].any()


def test_times_may_be_those_of_all_sequences_and_the_length_may_be_given():
    x, mask = at_times(X, torch.tensor([0.0, 2.0, 3.0]), frames=8)
    again, same = at_times(X, [[0, 2, 3]] * 2, frames=8)
    assert x.equal(again) and mask.equal(same) and mask.shape == (2, 8)


def test_a_code_is_inferred_from_the_frames_at_their_times_in_any_order():
    torch.manual_seed(0)
    model = tc.RollingVAE.mlp((1, 4, 4), tc.Topography(2, (5,)), hidden=(8,))
    code = model.posterior(*at_times(X, [0, 1, 4]))
    turned = model.posterior(*at_times(X[:, [2, 0, 1]], [4, 0, 1]))
    assert code.mean.equal(turned.mean)
    # frames of one code: the last one says the same if it is rolled back by four sites
    expert = model.expert(X[:, 2:])
    precision = 1 / expert.variance[:, 0].roll(-4, -1)
    first = model.posterior(*at_times(X[:, :2], [0, 1]))
    torch.testing.assert_close(1 / code.variance, 1 / first.variance + precision)


@pytest.mark.parametrize(
    "times, frames, said",
    [
        ([0, 1], None, "times"),
        ([0, 1.5, 3], None, "whole numbers"),
        ([-1, 0, 1], None, "whole numbers"),
        ([0, 1, float("inf")], None, "whole numbers"),
        ([0, 1, 1e30], None, "whole numbers"),
        (["0", "1", "2"], None, "arrays of numbers"),
        ([0, 1, 1], None, "must differ"),
        ([0, 1, 4], 4, "does not fit into 4 frames"),
    ],
)
def test_invalid_times_are_refused(times, frames, said):
    with pytest.raises(tc.BadInput, match=said):
        at_times(X, times, frames)


def test_frames_may_be_an_array_but_not_empty():
    x, mask = at_times(X.numpy(), TIMES)
    assert x.equal(at_times(X, TIMES)[0]) and mask.equal(at_times(X, TIMES)[1])
    for none, times in ((X[:0], [0, 1, 2]), (X[:, :0], [])):
        with pytest.raises(tc.BadInput, match="there are no frames"):
            at_times(none, times)
