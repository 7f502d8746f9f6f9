"""Training on sequences with missing frames, which have no effect."""

import pytest
import torch
from test_training import StopAt, assert_same, weights

import topocaps as tc
from topocaps.capsules import PartWhole
from topocaps.training import Adam, Sgd, Training
from topocaps.training.loop import train
from topocaps.training.store import RunFolder
from topocaps.training.updates.base import MeanTerms
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
def test_values_of_missing_frames_are_not_used(rule):
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


def test_a_mask_without_missing_frames_changes_nothing():
    x, found = frames(), [model(), model()]
    train(found[:1], tc.Sequences.of(x), TRAINING)
    train(found[1:], tc.Sequences.of(x, torch.ones(10, 6, dtype=torch.bool)), TRAINING)
    for a, b in zip(weights(found[0]).values(), weights(found[1]).values(), strict=True):
        torch.testing.assert_close(a, b)


def test_models_of_a_stack_with_missing_frames_train_as_they_do_alone():
    sequences = tc.Sequences.of(frames(), some_missing())
    together = [model(seed) for seed in range(3)]
    train(together, sequences, TRAINING, seeds=range(3))
    for seed, one in enumerate(together):
        alone = model(seed)
        train([alone], sequences, TRAINING, seeds=[seed])
        for a, b in zip(weights(one).values(), weights(alone).values(), strict=True):
            torch.testing.assert_close(a, b, rtol=1e-3, atol=1e-5)


def test_bounds_are_means_over_present_frames():
    x, mask, one = frames(), some_missing(), model()
    noise = [torch.randn(10, 6, 2, 4, generator=torch.Generator().manual_seed(n)) for n in (2, 3)]
    drawn = iter(noise)
    evidence = one.evidence(x, lambda like: next(drawn), mask)
    *_, found = MeanTerms(one)(x, *noise, mask=mask).tolist()
    assert found == pytest.approx(evidence.elbo[mask].mean().item(), rel=1e-5)
    generator = torch.Generator().manual_seed(0)
    normal = lambda like: torch.randn(like.shape, generator=generator)  # noqa: E731
    expected = one.evidence(x, normal, mask).elbo[mask].mean().item()
    sequences = tc.Sequences.of(x, mask)
    assert validation_bound(one, sequences, 10) == pytest.approx(expected, rel=1e-5)


def test_an_interrupted_run_resumes_with_the_same_missing_frames(tmp_path):
    sequences = tc.Sequences.of(frames(), some_missing())
    whole, parts, again = model(), model(), model()
    training = Training(batch=4, epochs=2)
    train([whole], sequences, training)
    folders = [RunFolder(tmp_path)]
    with pytest.raises(tc.Interrupted):
        train([parts], sequences, training, folders=folders, watcher=StopAt(4))
    train([again], sequences, training, folders=folders)
    assert_same(weights(again), weights(whole))
    tc.fit(model(), sequences, epochs=1, batch=4, out=tmp_path / "run", device="cpu")
    other = tc.Sequences.of(frames(), some_missing() | (torch.arange(6) == 3))
    with pytest.raises(tc.TopocapsError, match="fingerprint of the data"):
        tc.fit(model(), other, epochs=1, batch=4, out=tmp_path / "run", device="cpu")


@pytest.mark.parametrize(
    "mask, said",
    [
        (torch.zeros(10, 6, dtype=torch.bool), "at least one frame that is present"),
        (torch.ones(10, 5, dtype=torch.bool), "True where a frame is present"),
        (torch.ones(10, 6), "True where a frame is present"),
        ("there", "array or a tensor"),
        ([[True], [True, False]], "array or a tensor"),
    ],
)
def test_invalid_masks_are_refused(mask, said):
    with pytest.raises(tc.BadInput, match=said):
        tc.Sequences.of(frames(), mask)


def test_masks_are_copied_and_values_of_missing_frames_are_not_checked():
    mask = some_missing()
    sequences = tc.Sequences.of(frames(), mask)
    before = sequences.present.clone()
    mask[:] = True
    assert torch.equal(sequences.present, before)
    assert tc.Sequences.of(frames(), mask).present is None
    zeros = torch.zeros(2, 2, 3, dtype=torch.uint8)
    zeros[:, 1] = 255
    with pytest.raises(tc.BadInput, match="all 0 or 1"):
        tc.Sequences.of(zeros, torch.tensor([[True, False]] * 2))


def test_functions_without_support_for_missing_frames_refuse_them():
    sequences = tc.Sequences.of(frames(), some_missing())
    with pytest.raises(tc.BadInput, match="whole sequences"):
        tc.evaluate(model(), sequences)
    with pytest.raises(tc.BadInput, match="whole sequences"):
        tc.traverse(model(), sequences)
    with pytest.raises(tc.BadInput, match="a mask needs an array of frames, not sequences"):
        tc.Sequences.of(sequences, some_missing())
    digits = tc.Sequences.of(torch.rand(3, 2, 1, 28, 28), torch.tensor([[True, False]] * 3))
    with pytest.raises(tc.BadInput, match="PartWhole does not support masks"):
        tc.fit(PartWhole((1, 28, 28)), digits, epochs=1, device="cpu")


@pytest.mark.parametrize("kind", [tc.TopographicVAE, tc.VAE, tc.RollingVAE])
def test_frames_with_a_mask_must_be_a_tensor_as_without_one(kind):
    one, x, mask = kind.mlp((1, 4, 4), TOPOGRAPHY, hidden=(8,)), frames().numpy(), some_missing()
    for use in (one, one.encode, one.log_px, one.fill):
        for given in (x, x.tolist()):
            with pytest.raises(
                tc.BadInput, match=r"frames must be a tensor.*torch\.as_tensor\(x\)"
            ):
                use(given, mask=mask)
    with pytest.raises(tc.BadInput, match="fill needs a mask"):
        one.fill(frames(), None)
