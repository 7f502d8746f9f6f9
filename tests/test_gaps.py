"""Sequences of which frames are missing can be learned from: these take no part."""

import pytest
import torch
from test_training import assert_same, weights

import topocaps as tc
from topocaps.capsules import PartWhole
from topocaps.training import Adam, Sgd, Training
from topocaps.training.loop import train
from topocaps.training.validation import validation_bound

TRAINING = Training(optimiser=Adam(lr=1e-2), batch=4, epochs=2)
TOPOGRAPHY = tc.Topography(2, (4,), reach=(3,), window=3)


def model(seed=0, topography=TOPOGRAPHY):
    torch.manual_seed(seed)
    return tc.TopographicVAE.mlp((1, 4, 4), topography, hidden=(8,))


def frames(sequences=10, time=6):
    return torch.rand(sequences, time, 1, 4, 4, generator=torch.Generator().manual_seed(0))


def some_missing(sequences=10, time=6):
    mask = torch.rand(sequences, time, generator=torch.Generator().manual_seed(1)) > 0.4
    mask[:, 2] = True
    return mask


@pytest.mark.parametrize("rule", [Adam(lr=1e-2), Sgd(lr=1e-2)], ids=["adam", "sgd"])
def test_what_stands_where_frames_are_missing_is_not_looked_at(rule):
    mask, x = some_missing(), frames()
    nothing = torch.where(mask[..., None, None, None], x, torch.nan)
    found = []
    for held in (x, nothing, nothing.numpy()):
        one = model()
        train([one], tc.Sequences.of(held, mask), Training(optimiser=rule, batch=4, epochs=2))
        found.append(one)
    for other in found[1:]:
        assert_same(weights(other), weights(found[0]))
    whole = model()
    train([whole], tc.Sequences.of(x), Training(optimiser=rule, batch=4, epochs=2))
    assert (whole.mu - found[0].mu).abs() > 1e-6


def test_a_mask_of_frames_that_are_all_there_changes_nothing():
    x, found = frames(), [model(), model()]
    train(found[:1], tc.Sequences.of(x), TRAINING)
    train(found[1:], tc.Sequences.of(x, torch.ones(10, 6, dtype=torch.bool)), TRAINING)
    for a, b in zip(weights(found[0]).values(), weights(found[1]).values(), strict=True):
        torch.testing.assert_close(a, b)


def test_members_of_a_stack_with_missing_frames_train_as_alone():
    sequences = tc.Sequences.of(frames(), some_missing())
    together = [model(seed) for seed in range(3)]
    train(together, sequences, TRAINING, seeds=range(3))
    for seed, one in enumerate(together):
        alone = model(seed)
        train([alone], sequences, TRAINING, seeds=[seed])
        for a, b in zip(weights(one).values(), weights(alone).values(), strict=True):
            torch.testing.assert_close(a, b, rtol=1e-3, atol=1e-5)


def test_bounds_are_of_the_frames_that_are_there():
    x, mask, one = frames(), some_missing(), model()
    sequences = tc.Sequences.of(x, mask)
    (record,) = train([one], sequences, Training(batch=4, epochs=1), validation=sequences)
    assert -40 < record.history[0]["elbo"] < -8  # 16 pixels at ln 2 or so, not fewer
    generator = torch.Generator().manual_seed(0)
    noise = lambda like: torch.randn(like.shape, generator=generator)  # noqa: E731
    shown = next(sequences.batches(10))
    expected = one.evidence(shown.x, noise, mask).elbo[mask].mean().item()
    assert validation_bound(one, sequences, 10) == pytest.approx(expected, rel=1e-5)


def test_fit_takes_them_and_goes_on_after_a_stop(tmp_path):
    sequences = tc.Sequences.of(frames(), some_missing())
    run = tc.fit(model(), sequences, epochs=1, batch=4, out=tmp_path / "run", device="cpu")
    with pytest.raises(tc.TopocapsError):  # other frames are missing: these are other data
        other = tc.Sequences.of(frames(), ~some_missing() | (torch.arange(6) == 2))
        tc.fit(model(), other, epochs=1, batch=4, out=tmp_path / "run", device="cpu")
    assert run.model.fill(frames(), some_missing()).isfinite().all()


@pytest.mark.parametrize(
    "mask, said",
    [
        (torch.zeros(10, 6, dtype=torch.bool), "no frame that is there"),
        (torch.ones(10, 5, dtype=torch.bool), "True where a frame is there"),
        (torch.ones(10, 6), "True where a frame is there"),
    ],
)
def test_masks_that_make_no_sense_are_refused(mask, said):
    with pytest.raises(tc.BadInput, match=said):
        tc.Sequences.of(frames(), mask)


def test_what_knows_nothing_of_missing_frames_says_so():
    sequences = tc.Sequences.of(frames(), some_missing())
    with pytest.raises(tc.BadInput, match="whole sequences"):
        tc.evaluate(model(), sequences)
    with pytest.raises(tc.BadInput, match="not with sequences"):
        tc.Sequences.of(sequences, some_missing())
    digits = tc.Sequences.of(torch.rand(3, 2, 1, 28, 28), torch.tensor([[True, False]] * 3))
    with pytest.raises(tc.BadInput, match="PartWhole knows nothing"):
        tc.fit(PartWhole((1, 28, 28)), digits, epochs=1, device="cpu")
