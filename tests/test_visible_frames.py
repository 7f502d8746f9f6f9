"""Which sequences and which hidden frames are measured."""

import pytest
import torch
from test_rolling import FRAME
from test_rolling_metrics import model_of, sequences, truth
from torch.utils._python_dispatch import TorchDispatchMode

import topocaps as tc
from topocaps.metrics import evaluation, visible_frames
from topocaps.metrics.visible_frames import equal_frames, is_new, spread
from topocaps.study.evaluation.shared import bound_of


def test_distances_are_round_the_end_if_capsules_are_rings_or_time_is_closed():
    model, data = model_of(), sequences()
    round_the_end, far = (
        max(map(int, tc.evaluate(model, data, closed=closed)["visible"]["3"]["by_distance"]))
        for closed in (True, False)
    )
    assert round_the_end == 2 < far
    assert tc.evaluate(model, data)["visible"] == tc.evaluate(model, data, closed=True)["visible"]
    ends = tc.RollingVAE.mlp(FRAME, tc.Topography(2, (5,), cyclic=False), hidden=8)
    by_distance = tc.evaluate(ends, data)["visible"]["3"]["by_distance"]
    assert max(map(int, by_distance)) == far


@pytest.mark.parametrize("total", [1, 2, 9, 299, 300, 301, 599, 600, 2000])
def test_at_most_the_given_number_of_scripts_is_spread_evenly(total):
    scripts = torch.arange(total)
    for most in (1, 2, 4, 300):
        found = spread(scripts, most)
        assert len(found) == min(most, total) and found[0] == 0
        if len(found) > 1:
            gaps = found.diff()
            assert found[-1] == total - 1 and gaps.min() > 0 and gaps.max() - gaps.min() <= 1
    assert torch.equal(spread(scripts, None), scripts)
    with pytest.raises(tc.BadInput, match="most must be a whole number of at least 1, not 0"):
        spread(scripts, 0)


def test_at_most_300_sequences_are_measured_of_599():
    shown = []

    def bound(x, samples):
        shown.append(len(x))
        return torch.zeros(len(x))

    few = tc.data.Sequences.of(torch.rand(599, 2, 1, 2, 2))
    assert len(bound_of(bound, few, 1).values) == sum(shown) == 300 == evaluation.SUBSET
    subset = []

    class Counting(tc.VAE):
        def encode(self, x, sample=False, mask=None):
            subset.append(len(x))
            return super().encode(x, sample, mask)

    tc.evaluate(Counting.mlp((1, 2, 2), tc.Topography(1, (3,)), hidden=2), few, samples=1)
    assert max(subset) == 300


def test_equal_frames_are_those_of_all_pairs_and_found_once_for_all_counts(monkeypatch):
    x = torch.randint(2, (5, 7, 1, 2, 1), generator=torch.Generator().manual_seed(0)).float()
    x[0, 3] = torch.nan  # equals nothing
    pairs = [[[torch.equal(a, b) for b in one] for a in one] for one in x]
    assert equal_frames(x).tolist() == pairs
    visible = torch.arange(7).expand(5, 7) < 3
    for sequence, new in zip(x, is_new(equal_frames(x), visible).tolist(), strict=True):
        for place, frame in enumerate(sequence):
            copies = any(torch.equal(frame, seen) for seen in sequence[:3])
            assert new[place] == (place >= 3 and not copies)
    calls = []
    monkeypatch.setattr(
        visible_frames, "equal_frames", lambda x: calls.append(len(x)) or equal_frames(x)
    )
    tc.metrics.gains_by_visible(
        truth, sequences(), tc.Likelihood.BERNOULLI, counts=(1, 3, 5), batch=4
    )
    assert calls == [4, 3]


def test_equal_frames_need_no_memory_for_all_pairs_of_pixels():
    x = torch.zeros(1, 64, 1, 32, 32)
    largest = 0

    class Largest(TorchDispatchMode):
        def __torch_dispatch__(self, function, types, args=(), kwargs=None):
            nonlocal largest
            result = function(*args, **(kwargs or {}))
            if isinstance(result, torch.Tensor):
                largest = max(largest, result.numel())
            return result

    with Largest():
        assert equal_frames(x).all()
    assert largest == x.numel()
