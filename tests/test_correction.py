"""Laws of the network that corrects the posterior of a rolling VAE.

Those that it shares with models without one are in ``test_rolling.py``.
"""

import pytest
import torch
from test_rolling import DOUBLE, FRAME, GROUPED, frames, rolling, some

import topocaps as tc
from topocaps.latents.motion import Grouped, Known, Unknown
from topocaps.models.experts import product_of_experts


@pytest.mark.parametrize("motion", [Known(1), Known(-2), GROUPED], ids=repr)
def test_rolling_the_data_rolls_the_corrected_code(motion):
    """All groups of capsules move as a candidate says, also where groups move differently."""
    model, x = rolling(motion, correction=3), frames()
    q, later = (model.posteriors(one, some(2, *range(5))).q for one in (x, x.roll(-1, 1)))
    for n in range(len(model.motions)):
        torch.testing.assert_close(later.mean[n], model.motions.roll(q.mean[n], n, 1))
        torch.testing.assert_close(later.stddev[n], model.motions.roll(q.stddev[n], n, 1))
    plain = rolling(motion).posteriors(x, some(2, *range(5))).q
    assert (plain.mean - q.mean).abs().max() > 0.01


def test_a_correction_starts_as_the_identity():
    torch.manual_seed(0)
    model = tc.RollingVAE.mlp(FRAME, tc.Topography(2, (5,)), hidden=(8,), correction=4).double()
    corrected = model.posterior(frames())
    model.correction = None
    assert torch.equal(corrected.mean, model.posterior(frames()).mean)
    torch.testing.assert_close(corrected.stddev, model.posterior(frames()).stddev)


def test_a_correction_reads_how_much_experts_disagree():
    """Two experts on either side of 0 have the same product as two experts at 0."""
    correction = rolling(correction=4).correction
    precision, apart = torch.full((1, 2, 5), 4.0, **DOUBLE), torch.full((1, 2, 5), 2.0, **DOUBLE)
    product = product_of_experts(2 * precision, torch.zeros(1, 2, 5, **DOUBLE))
    agreed = correction(product, torch.zeros(1, 2, 5, **DOUBLE))
    disagreed = correction(product, 2 * precision * apart.square())
    assert (agreed.mean - disagreed.mean).abs().max() > 0.01


def test_groups_are_in_the_order_of_their_capsules():
    """So that a checkpoint means the same for any order of the candidate motions."""
    for v in ((-1, 1), (1, -1)):
        model = rolling(Grouped((1, 1), (Unknown(v), Unknown(v))), correction=2)
        assert [group.tolist() for group in model.motions.groups] == [[0], [1]]
    assert [group.tolist() for group in rolling(Known(1)).motions.groups] == [[0, 1]]


def test_recipes_and_checkpoints_restore_a_correction(tmp_path):
    model = tc.RollingVAE.mlp(FRAME, tc.Topography(2, (5,)), hidden=(8,), correction=4)
    run = tc.fit(model, frames(8).float(), epochs=1, out=tmp_path, device="cpu")
    again = tc.load(run.folder.path)
    assert torch.equal(again.encode(frames().float()), model.encode(frames().float()))
    recipe = tc.recipes.find("letters/rolling-corrected")
    assert recipe.correction == 64 and type(recipe).from_json(recipe.to_json()) == recipe
    assert recipe.fingerprint != recipe.change(["correction=32"]).fingerprint
    plain = recipe.change(["correction=none"])
    assert plain.fingerprint == tc.recipes.find("letters/rolling").fingerprint


@pytest.mark.parametrize(
    "settings, message",
    [
        ({"correction": 0}, "correction must be a whole number of at least 1, not 0"),
        ({"correction": 4, "shape": (3, 3, 3, 3)}, "capsules of at most 3 axes, not 4"),
    ],
)
def test_a_correction_that_cannot_be_built_is_refused(settings, message):
    with pytest.raises(tc.BadInput, match=message):
        rolling(**settings)
