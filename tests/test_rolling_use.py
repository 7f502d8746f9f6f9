"""The rolling VAE in use: visible frames, predictions, training, run folders, bad input."""

import json
import math

import numpy as np
import pytest
import torch
from test_rolling import FRAME, every_model, frames, rolling, some
from test_training import StopAt, assert_same, weights
from torch import nn
from torch.distributions import Bernoulli, Independent

import topocaps as tc
from topocaps.latents.motion import Grouped, Known, Unknown
from topocaps.models.base import build
from topocaps.models.convolutional import ConvDecoder, ConvEncoder
from topocaps.models.visible import (
    Past,
    RandomFrames,
    Stretch,
    VisibleFrames,
    visible_from,
    visible_settings,
)
from topocaps.training.stack import Stack, by_architecture
from topocaps.training.updates.base import MeanTerms
from topocaps.training.watching import Silent

ADAM = tc.Training(tc.Adam(3e-3, warmup=2), batch=4, epochs=4)
OPEN = tc.Topography(2, (5,), cyclic=False)
POLICIES = [
    Stretch(),
    Stretch(2, 4),
    RandomFrames(1, 3),
    RandomFrames(9),
    Past(2),
]
every_policy = pytest.mark.parametrize("policy", POLICIES, ids=repr)


# --- visible frames -----------------------------------------------------------------------------


@every_policy
@pytest.mark.parametrize("missing", [False, True])
def test_visible_frames_are_present_and_of_every_number_that_is_allowed(policy, missing):
    present = torch.rand(2000, 7) < (0.6 if missing else 2)
    present[:, 3] = True
    visible = policy.choose(torch.rand(2000, 7, 2), present)
    total, count = present.sum(1), visible.sum(1)
    assert not (visible & ~present).any()
    assert (count >= total.clamp(max=policy.least)).all() and (count >= 1).all()
    most = total if policy.most is None else total.clamp(max=policy.most)
    assert (count <= most).all()
    if not missing:
        assert set(count.tolist()) == set(range(min(7, policy.least), int(most.max()) + 1))


def test_a_stretch_has_no_gaps_among_the_present_frames_and_lies_anywhere():
    present = torch.tensor([True, False, True, True, True, False, True]).expand(500, 7)
    visible = Stretch(2, 3).choose(torch.rand(500, 7, 2), present)[:, present[0]]
    jumps = visible.int().diff(prepend=torch.zeros(500, 1, dtype=torch.int), dim=1)
    assert ((jumps == 1).sum(1) == 1).all()
    assert visible[:, 0].any() and visible[:, -1].any()


def test_the_past_is_the_first_present_frames():
    present = torch.tensor([False, True, True, False, True, True]).expand(300, 6)
    visible = Past(1, 3).choose(torch.rand(300, 6, 2), present)[:, present[0]]
    assert (visible.int().diff(dim=1) <= 0).all() and visible[:, 0].all()


def test_random_frames_are_equally_often_visible():
    visible = RandomFrames(2, 2).choose(torch.rand(20_000, 5, 2), some(20_000, *range(5)))
    assert ((visible.float().mean(0) - 0.4).abs() < 0.02).all()


@every_policy
def test_the_largest_number_below_1_is_in_range(policy):
    present = torch.ones(1, 6, dtype=torch.bool)
    for number in (0.0, 1.0):  # the normal distribution function rounds to 1
        assert policy.choose(torch.full((1, 6, 2), number), present).any()
    assert visible_from(visible_settings(policy)) == policy


def test_invalid_policies_are_refused():
    with pytest.raises(tc.BadInput, match="most must be at least least=3, not 2"):
        Stretch(3, 2)
    with pytest.raises(tc.BadInput, match="least must be a whole number"):
        Past(0)

    class Own(VisibleFrames):
        def among(self, uniform, present, count):
            return present

    assert visible_settings(Own()) is None
    with pytest.raises(tc.BadInput, match="knows no visible frames of kind 'Own'"):
        visible_from({"kind": "Own"})


def test_numbers_of_numpy_are_plain_in_settings():
    policy = Stretch(np.int64(3), np.int32(4))
    assert json.dumps(visible_settings(policy)) == json.dumps(visible_settings(Stretch(3, 4)))
    sizes = dict(topography=tc.Topography(2, (5,)), hidden=np.int64(4), keep=np.int64(1))
    perceptrons = tc.RollingVAE.mlp(FRAME, visible=policy, **sizes)
    convolutions = tc.RollingVAE.convolutional((1, 8, 8), channels=np.array([4]), **sizes)
    for model in (perceptrons, convolutions):
        assert build(json.loads(json.dumps(model.config))).config == model.config


def test_the_training_bound_includes_frames_that_are_not_visible():
    model, x = rolling(visible=Past(1, 1)), frames()
    noise = [torch.randn(2, 5, *shape, dtype=x.dtype) for shape in model.noise_shapes]
    drawn = iter(noise)
    found = model.evidence(x, lambda like: next(drawn))
    asked = model.evidence_from(x, some(2, 0), noise[0][:, 0])
    torch.testing.assert_close(found.elbo, asked.elbo)
    changed = x.clone()
    changed[:, 4] = 1 - changed[:, 4]
    drawn = iter(noise)
    other = model.evidence(changed, lambda like: next(drawn))
    assert (other.log_px_given_t[:, 4] != found.log_px_given_t[:, 4]).all()
    torch.testing.assert_close(other.log_px_given_t[:, :4], found.log_px_given_t[:, :4])


# --- predictions --------------------------------------------------------------------------------


@every_model
def test_predictions_are_frames_of_the_rolled_code(kind):
    model, x, mask = rolling(**kind), frames(), some(2, 0, 1)
    found = model.predict(x, mask, lags=[-2, 3, 9])
    assert found.batch_shape == (2,) and found.event_shape == (3, *FRAME)
    assert found.sample((4, 1)).shape == (4, 1, 2, 3, *FRAME)
    assert found.log_prob(found.sample()).shape == (2,)
    whole = model.predict(x, mask).mean
    torch.testing.assert_close(model.predict(x, mask, lags=[3]).mean[:, 0], whole[:, 3])
    if len(model.motions) == 1:
        torch.testing.assert_close(whole, model.decode(model.encode(x, mask=mask)))
    filled = model.fill(torch.where(mask[..., None, None, None], x, torch.nan), mask)
    assert torch.equal(filled[mask], x[mask])
    torch.testing.assert_close(filled[~mask], whole[~mask])


def test_lags_are_whole_numbers_of_any_kind():
    model, x = rolling(), frames()
    expected = model.predict(x, lags=[-1, 0, 1])
    for lags in (np.arange(-1, 2), torch.arange(-1, 2), range(-1, 2), iter((-1, 0, 1))):
        found = model.predict(x, lags=lags)
        assert found.lags == [-1, 0, 1] and torch.equal(found.mean, expected.mean)


@pytest.mark.parametrize(
    "take",
    [
        lambda x: x[:, 1:],  # one frame would be compared with both
        lambda x: x[:1],
        lambda x: x[None],
        lambda x: x[:, :, 0],
        lambda x: x.numpy(),
    ],
)
def test_log_prob_needs_all_predicted_frames(take):
    model, x = rolling(), frames()
    found = model.predict(x, some(2, 0, 1), lags=[3, 4])
    assert found.log_prob(x[:, 3:]).shape == (2,)
    with pytest.raises(tc.BadInput, match=r"log_prob needs .* = \(2, 2, 1, 2, 4\), not"):
        found.log_prob(take(x[:, 3:]))


def test_log_prob_refuses_invalid_frames_and_keeps_no_graph():
    """A graph of all samples would need their memory at once."""
    found = rolling().predict(frames(), lags=[3, 4])
    assert not found.log_prob(frames()[:, 3:]).requires_grad
    for x, message in ((torch.nan, "NaN"), (3.0, "must lie in"), (0, "floating point")):
        with pytest.raises(tc.BadInput, match=message):
            found.log_prob(torch.full_like(frames()[:, 3:], x) if x else frames()[:, 3:].byte())


def test_predictions_can_be_printed():
    assert repr(rolling().predict(frames())) == "PredictedFrames()"


@every_model
def test_samples_have_the_mean_that_the_posterior_gives_them(kind):
    model, x = rolling(**kind), frames()
    found = model.predict(x, some(2, 1), lags=[2])
    drawn = found.sample((4000,)).mean(0)
    q = found.posterior.q
    t = q.mean + q.stddev * torch.randn(4000, *q.mean.shape, dtype=x.dtype)
    candidates = found.posterior.candidate[..., None]
    each = model.decode(model.at(t, candidates, [2])).mean(0)  # kept batch lag *frame
    expected = torch.einsum("bk,kb...->b...", found.motion.probs, each)
    assert ((drawn - expected).abs() < 5 * 0.5 / 4000**0.5).all()


def test_the_posterior_over_motions_follows_the_frames():
    """A model that knows how its frames look tells which way they went."""
    model = rolling(Unknown((-1, 1)), (5,))
    shown = model.decode(model.at(2 * torch.randn(8, 2, 5).double(), 1, range(5)))
    p = model.motion(shown).probs
    torch.testing.assert_close(p.sum(1), torch.ones(8).double())
    back = model.motion(shown.flip(1)).probs
    torch.testing.assert_close(back, p.flip(1))  # backwards, the other way is as likely


def test_drawn_codes_are_encoded_to_codes_and_samples_are_frames():
    model = rolling(Unknown((-1, 1)))
    x = model.sample(3, frames=7)
    assert x.shape == (3, 7, *FRAME) and 0 <= x.min() <= x.max() <= 1
    t = model.encode(x)
    assert t.shape == (3, 7, 2, 5) and not torch.equal(model.encode(x, sample=True), t)


# --- training, folders --------------------------------------------------------------------------


def single(seed=0, **settings):
    torch.manual_seed(seed)
    return tc.RollingVAE.mlp(FRAME, tc.Topography(2, (5,)), hidden=(8,), **settings)


MOTIONS = [
    Known(1),
    Unknown((-1, 1)),
    Grouped((1, 1), (Known(0), Unknown((-0.5, 1)))),
]


@pytest.mark.parametrize("motion", MOTIONS, ids=repr)
def test_training_resumes_bit_for_bit_and_its_folder_is_loaded(motion, tmp_path):
    x = frames(20).float()
    settings = dict(training=ADAM, device="cpu")
    whole = tc.fit(single(motion=motion), x, watcher=Silent(), **settings)
    there = dict(out=tmp_path / "run", **settings)
    with pytest.raises(tc.Interrupted, match="after step 7 of 20"):
        tc.fit(single(motion=motion), x, watcher=StopAt(7), **there)
    resumed = tc.fit(single(9, motion=motion), x, watcher=Silent(), **there)
    assert_same(weights(whole.model), weights(resumed.model))
    loaded = tc.load(tmp_path / "run")
    assert type(loaded) is tc.RollingVAE and loaded.config == whole.model.config
    assert torch.equal(loaded.encode(x), whole.model.encode(x))
    record = whole.history[-1]
    assert record["elbo"] == pytest.approx(record["log_px_given_t"] - record["kl"], abs=1e-4)


def test_training_learns_to_predict_patterns_that_it_never_saw():
    patterns = 3 * torch.randn(264, 5)
    x = torch.stack([patterns.roll(lag, 1) for lag in range(5)], 1)[:, :, None, None]
    capsules, visible = tc.Topography(2, (5,)), Stretch(1)
    model = tc.RollingVAE.mlp((1, 1, 5), capsules, 16, visible=visible, likelihood="gaussian")
    training = tc.Training(tc.Adam(1e-2), batch=16, epochs=1, epoch_size=16 * 150)
    tc.fit(model, x[64:], training=training, device="cpu", watcher=Silent())
    mask = some(64, 0, 1)
    predicted = model.predict(x[:64], mask).mean
    assert tc.metrics.prediction(x[:64], predicted, ~mask, likelihood="gaussian").overall > 0.8


def test_sequences_with_missing_frames_train():
    x, mask = frames(20).float(), torch.rand(20, 5) < 0.7
    mask[:, 0] = True
    gaps = tc.Sequences.of(torch.where(mask[..., None, None, None], x, torch.nan), mask)
    run = tc.fit(single(), gaps, training=ADAM, device="cpu", watcher=Silent(), validation=gaps)
    assert all(value.isfinite().all() for value in weights(run.model).values())
    assert len(run.history) == 4 and "validation_elbo" in run.history[-1]


@pytest.mark.parametrize("motion", MOTIONS, ids=repr)
def test_models_under_vmap_have_the_bounds_of_single_models(motion):
    members = [single(seed, motion=motion) for seed in (0, 1)]
    assert by_architecture(members) == [[0, 1]]
    x = torch.rand(2, 3, 5, *FRAME)
    noise = [torch.randn(2, 3, 5, *shape) for shape in members[0].noise_shapes]
    together = MeanTerms(Stack(members, 5).model).mapped(x, *noise)
    for n, member in enumerate(members):
        alone = MeanTerms(member)(x[n], *(one[n] for one in noise))
        torch.testing.assert_close(together[n], alone)


def test_models_with_different_candidates_or_visible_frames_do_not_share_a_stack():
    models = [
        single(motion=Known(1)),
        single(motion=Known(0.4)),
        single(motion=Unknown((-1, 1))),
        single(motion=Known(1), visible=Past(3)),
        single(motion=Known(-2)),  # velocities are tensors of each
    ]
    assert by_architecture(models) == [[0, 4], [1], [2], [3]]


@every_model
def test_a_config_rebuilds_the_model(kind):
    model = rolling(**kind, visible=RandomFrames(2, 3), likelihood="gaussian")
    again = build(model.config)
    assert again.config == model.config and again.visible == RandomFrames(2, 3)
    again.double().load_state_dict(model.state_dict())
    x = frames()
    assert torch.equal(again.encode(x), model.encode(x))


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (dict(asked=3), "this version does not know the setting 'asked' of a RollingVAE"),
        (dict(motion=None), "the config of a RollingVAE needs the setting 'motion'"),
        (dict(motion={"kind": "Known", "way": 1}), "does not know the setting 'way'"),
        (dict(visible={"kind": "Past", "way": 1}), "does not know the setting 'way'"),
        (dict(frame_shape=None), "cannot build a RollingVAE from this config: .* 'frame_shape'"),
        (dict(kind=None), "knows no model of kind None"),
    ],
)
def test_a_config_of_another_version_is_refused(change, says):
    config = {name: value for name, value in (single().config | change).items() if value}
    with pytest.raises(tc.BadInput, match=says) as refused:
        build(config)
    assert "\n" not in str(refused.value)


class Encoder(nn.Module):
    def __init__(self, shape=(2, 5)):
        super().__init__()
        self.network, self.shape = nn.Linear(8, 2 * math.prod(shape)), shape

    def forward(self, x):
        mean, log_scale = self.network(x.flatten(-3)).chunk(2, -1)
        scale = log_scale.exp().unflatten(-1, self.shape)
        return torch.distributions.Normal(mean.unflatten(-1, self.shape), scale)


@pytest.mark.parametrize("shape", [(1, 5), (2, 3), (2, 1), (5, 2), (10,), (1, 2, 5)])
@pytest.mark.parametrize("motion", MOTIONS, ids=repr)
def test_an_encoder_of_codes_of_another_shape_is_refused(motion, shape):
    model = tc.RollingVAE(Encoder(shape), single().x_given_t, tc.Topography(2, (5,)), motion)
    x, says = frames().float(), r"the encoder must return codes .* \(2, ., 2, 5\), as the topogr"
    for use in (model, model.evidence, model.predict, lambda x: model.stream()(x[:, 0])):
        with pytest.raises(tc.BadInput, match=says):
            use(x)
    with pytest.raises(tc.BadInput, match="the encoder must return codes"):
        tc.fit(model, x, training=ADAM, device="cpu", watcher=Silent())


class Decoder(nn.Module):
    frame_shape = FRAME

    def __init__(self, shape, event_axes=3):
        super().__init__()
        self.network, self.axes = nn.Linear(math.prod(shape), 8), len(shape)
        self.event_axes = event_axes

    def forward(self, t):
        logits = self.network(t.flatten(-self.axes)).unflatten(-1, FRAME)
        return Independent(Bernoulli(logits=logits, validate_args=False), self.event_axes)


@pytest.mark.parametrize(
    "decoder, says",
    [
        (Decoder((2, 5), 0), "the decoder must return an Independent distribution"),
        (Decoder((2, 5), 2), "the decoder must return an Independent distribution"),
    ],
)
@pytest.mark.parametrize("motion", MOTIONS, ids=repr)
def test_a_decoder_of_single_values_is_refused(motion, decoder, says):
    model, x = tc.RollingVAE(Encoder(), decoder, tc.Topography(2, (5,)), motion), frames().float()
    for use in (model, model.evidence, model.predict, lambda x: model.sample(2, 3)):
        with pytest.raises(tc.BadInput, match=says) as refused:
            use(x)
        assert "\n" not in str(refused.value)
    with pytest.raises(tc.BadInput, match=says):
        tc.fit(model, x, training=ADAM, device="cpu", watcher=Silent())


@pytest.mark.parametrize("shape", [(3, 5), (2, 4)])
def test_an_error_in_a_decoder_states_the_shape_of_its_codes(shape):
    model = tc.RollingVAE(Encoder(), Decoder(shape), tc.Topography(2, (5,)))
    with pytest.raises(RuntimeError) as raised:
        model.sample(4, 3)
    assert "codes (4, 3, 2, 5): (…, capsules, *shape)" in raised.value.__notes__[0]


def test_user_defined_networks():
    model = tc.RollingVAE(Encoder(), single().x_given_t, tc.Topography(2, (5,)))
    assert model.config is None
    run = tc.fit(model, frames(8).float(), training=ADAM, device="cpu", watcher=Silent())
    assert run.model.encode(frames().float()).shape == (2, 5, 2, 5)


def test_convolutional_networks():
    frame, capsules = (3, 16, 16), tc.Topography(2, (5,))
    networks = ConvEncoder(frame, (2, 5), (4, 8)), ConvDecoder(frame, (2, 5), (4, 8))
    model = tc.RollingVAE(*networks, capsules, Unknown((-1, 1)))
    x = torch.rand(6, 5, *frame)
    tc.fit(model, x, epochs=1, batch=3, device="cpu", watcher=Silent())
    assert model.frame_shape == frame and model.predict(x, some(6, 1, 2)).mean.shape == x.shape


def test_training_can_be_planned_without_values():
    """Memory is planned on a device that holds shapes only."""
    model = single(motion=Unknown((-1, 1))).to("meta")
    found = model.evidence(torch.empty(3, 5, *FRAME, device="meta"))
    assert found.elbo.shape == (3, 5)


# --- bad input ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("use", "message"),
    [
        (
            lambda m, x: m(x, torch.zeros(2, 5, dtype=torch.bool)),
            "at least one frame that is present",
        ),
        (lambda m, x: m.predict(x, some(2)), "at least one frame that is present"),
        (lambda m, x: m.encode(x, mask=some(2, 0, time=4)), r"a mask must be a boolean tensor"),
        (lambda m, x: m.motion(x, torch.ones(2, 5)), r"a mask must be a boolean tensor \(2, 5\)"),
        (lambda m, x: m.fill(x[:, :, 0], some(2, 1)), r"frames must be \(batch, time, \*frame\)"),
        (lambda m, x: m(x + 1), r"frames must lie in \[0, 1\]"),
        (lambda m, x: m.log_px(x, samples=0), "samples must be a whole number of at least 1"),
        (lambda m, x: m.predict(x, lags=[]), "lags must name at least one frame"),
        (lambda m, x: m.predict(x, lags=[0.5]), "lags must be whole numbers"),
        (lambda m, x: m.predict(x, lags=5), r"such as range\(5, 8\), not 5"),
        (lambda m, x: m.predict(x, lags=[True, False]), "lags must be whole numbers"),
        (lambda m, x: m.predict(x, lags=some(1, 0)[0]), "lags must be whole numbers"),
        (lambda m, x: m.predict(x, lags=np.ones(2)), "lags must be whole numbers"),
        (lambda m, x: m.fill(x, None), "fill needs a mask"),
        (lambda m, x: m.sample(0, 3), "n must be a whole number of at least 1, not 0"),
        (lambda m, x: m.sample(2, 0), "frames must be a whole number of at least 1, not 0"),
        (lambda m, x: m.sample(2, 1.5), "frames must be a whole number"),
        (lambda m, x: m(x.numpy(), some(2, 1)), "frames must be a tensor, not a ndarray"),
        (lambda m, x: m.predict(x.numpy(), some(2, 1)), "frames must be a tensor"),
    ],
)
def test_bad_input_is_refused(use, message):
    with pytest.raises(tc.BadInput, match=message) as refused:
        use(rolling(), frames())
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (dict(topography=OPEN, motion=Known(0.5)), "need capsules that are rings"),
        (dict(topography=OPEN, motion=Known(-5)), "a velocity of 5 empties capsules"),
        (dict(topography=OPEN, motion=Unknown((1, 1))), "are the same on capsules of"),
        (dict(motion=Known(1, axis=1)), "axis 1 needs capsules of at least 2 axes"),
        (dict(motion=Unknown((-4, 1))), "are the same on rings of"),
        (dict(hidden=0), "hidden must be a whole number"),
        (dict(keep=0), "keep must be a whole number"),
        (dict(motion=1.0), r"a motion must be a Motion such as Known\(1\), not 1.0"),
        (dict(motion=0), r"such as Known\(1\), not 0"),
        (dict(visible=3), r"visible must be VisibleFrames such as Stretch\(3\), not 3"),
    ],
)
def test_invalid_models_are_refused(settings, message):
    with pytest.raises(tc.BadInput, match=message):
        tc.RollingVAE.mlp(FRAME, **{"topography": tc.Topography(2, (5,)), **settings})
