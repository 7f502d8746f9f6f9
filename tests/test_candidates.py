"""Laws of keep: which candidate motions are decoded, and how this changes the bound."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from test_rolling import Bound, frames, linear, rolling, some
from torch import nn
from torch.distributions import Independent, Normal

import topocaps as tc
from topocaps.latents.motion import Changing, Grouped, Known, Motion, Unknown
from topocaps.models import Likelihood
from topocaps.models.base import build
from topocaps.models.experts import PathSums
from topocaps.papers.recipes.letters import ROLLING
from topocaps.study.evaluation.rolling import motion_names
from topocaps.study.recipe import BaseRecipe
from topocaps.training.stack import Stack, by_architecture
from topocaps.training.updates.base import MeanTerms

DOUBLE = {"dtype": torch.float64}
TWO = Grouped((1, 1), (Unknown((-1, 0.5, 2)), Unknown((-2, 0, 1))))
#: settings of ``rolling`` with several candidates
SEVERAL = {
    "speeds": dict(motion=Unknown((-1, -0.4, 0.3, 2))),
    "axes": dict(motion=Unknown((1, 2), axes=(0, 1)), shape=(3, 3)),
    "groups": dict(motion=TWO),
    "changing": dict(motion=Changing((-1, 1), frames=(1, 2))),
    "open ends": dict(motion=Unknown((-1, 1, 2)), cyclic=False),
}
several = pytest.mark.parametrize("kind", SEVERAL.values(), ids=SEVERAL.keys())


def log_weights(model, x, mask):
    lag = torch.arange(x.shape[1])
    said = PathSums.of(model.z_given_x(x), model.motions.paths, lag, mask)
    return said.log_weights(model.motions)


@several
def test_keeping_all_candidates_changes_nothing(kind):
    whole, kept, x = rolling(**kind), rolling(**kind, keep=100), frames()
    mask, noise = some(2, 0, 2), torch.randn(2, *whole.noise_shapes[0], **DOUBLE)
    found = kept.evidence_from(x, mask, noise)
    assert torch.equal(found.elbo, whole.evidence_from(x, mask, noise).elbo)
    assert torch.equal(kept.motion(x, mask).probs, whole.motion(x, mask).probs)
    assert torch.equal(kept.predict(x, mask).mean, whole.predict(x, mask).mean)


@several
def test_the_bound_rises_with_the_candidates_that_are_kept(kind):
    """All terms of the sum over candidates are positive, so leaving some out lowers it."""
    model, x = rolling(**kind), frames(20)
    noise = torch.randn(20, *model.noise_shapes[0], **DOUBLE)
    for visible in ([0], [1, 3], range(5)):
        bounds = []
        for keep in range(1, len(model.motions) + 1):
            model.keep = keep
            bounds.append(model.evidence_from(x, some(20, *visible), noise).elbo.sum(1))
        bounds = torch.stack(bounds)
        assert (bounds.diff(dim=0) >= -1e-9).all()
        assert (bounds[-1] > bounds[0]).any()


@several
def test_the_kept_candidates_are_the_likeliest_given_the_experts(kind):
    model, x, mask = rolling(**kind, keep=2), frames(9), some(9, 0, 2)
    order = log_weights(model, x, mask).argsort(stable=True, dim=0, descending=True)
    assert torch.equal(model.posteriors(x, mask).candidate, order[:2])
    p = model.motion(x, mask).probs
    assert p.shape == (9, len(model.motions)) and torch.equal((p > 0).sum(1), torch.full((9,), 2))
    assert (p.gather(1, order.mT[:, :2]) > 0).all()
    changed = torch.where(mask[..., None, None, None], x, 1 - x)  # what is not visible
    assert torch.equal(model.posteriors(changed, mask).candidate, order[:2])


LINEAR = [
    (Unknown((-1, 0, 1)), True),
    (Grouped((1, 1), (Unknown((-1, 0, 1)), Unknown((0, 1)))), True),
    (Unknown((-2, -1, 0, 1)), False),
    (Grouped((1, 1), (Known(0), Unknown((-1, 2)))), False),
    (Changing((-1, 0), frames=(1, 2)), True),
]


@pytest.mark.parametrize("motion, cyclic", LINEAR)
def test_with_exact_experts_the_weights_are_the_evidence_of_every_candidate(motion, cyclic):
    model = linear(motion, cyclic)
    x = 2 * torch.randn(6, 4, 1, 1, 8, **DOUBLE)
    found = log_weights(model, x, some(6, *range(4), time=4))
    each = [model.x_given_t.log_px(x, model.motions, k) for k in range(len(model.motions))]
    exact = torch.stack(each) + model.motions.log_prior[:, None].double()
    torch.testing.assert_close(found.log_softmax(0), exact.log_softmax(0))


@pytest.mark.parametrize("motion, cyclic", LINEAR)
def test_a_single_candidate_finds_the_true_motion(motion, cyclic):
    model = linear(motion, cyclic, keep=1)
    true = torch.arange(200) % len(model.motions)
    t = 6 * torch.randn(200, 2, 3, **DOUBLE)
    x = model.x_given_t(model.at(t, true[:, None], range(4))).sample()
    assert (model.motion(x).probs.argmax(1) == true).double().mean() > 0.9


class Plain(nn.Module):
    """Frames that are codes of one capsule, with noise."""

    likelihood, frame_shape = Likelihood.GAUSSIAN, (1, 1, 15)

    def forward(self, t):
        return Independent(Normal(t.unsqueeze(-2), 0.1), 3)


class Precise(nn.Module):
    def forward(self, x):
        return Normal(x.squeeze(-2), 0.1)


def test_a_fine_grid_of_velocities_finds_the_true_one():
    grid = np.linspace(-2, 2, 41)
    capsules = tc.Topography(1, (15,))
    model = tc.RollingVAE(Precise(), Plain(), capsules, Unknown(grid), keep=3).double()
    true = torch.randint(41, (50,))
    x = model.x_given_t(model.at(torch.randn(50, 1, 15, **DOUBLE), true[:, None], range(6))).mean
    assert (model.motion(x).probs.argmax(1) == true).all()
    ahead = model.predict(x[:, :4], lags=[5]).mean[:, 0]
    assert ((ahead - x[:, 5]).square().mean() < 0.02 * x.var()).all()


@several
def test_gradients_of_the_narrowed_bound(kind):
    model, x, mask = rolling(**kind, keep=2), frames(2, 3), some(2, 0, 2, time=3)
    noise = torch.randn(2, *model.noise_shapes[0], **DOUBLE)
    names, values = zip(*model.named_parameters(prefix="model"), strict=True)

    def bound(*values):
        given = dict(zip(names, values, strict=True))
        return torch.func.functional_call(Bound(model), given, (x, mask, noise))

    values = [value.detach().clone().requires_grad_() for value in values]
    assert torch.autograd.gradcheck(bound, values, fast_mode=True)


@several
def test_models_under_vmap_keep_their_own_candidates(kind):
    members = []
    for seed in (0, 1):
        torch.manual_seed(seed)
        shape, cyclic = kind.get("shape", (5,)), kind.get("cyclic", True)
        capsules = tc.Topography(2, shape, cyclic=cyclic)
        members.append(
            tc.RollingVAE.mlp((1, 2, 4), capsules, hidden=8, motion=kind["motion"], keep=2)
        )
    assert by_architecture(members) == [[0, 1]]
    x = torch.rand(2, 3, 5, 1, 2, 4)
    noise = [torch.randn(2, 3, 5, *shape) for shape in members[0].noise_shapes]
    stack = MeanTerms(Stack(members, 5).model)
    together = stack.mapped(x, *noise)
    for n, member in enumerate(members):
        alone = MeanTerms(member)(x[n], *(one[n] for one in noise))
        torch.testing.assert_close(together[n], alone)
    together.sum().backward()
    gradients = [one.grad for one in stack.parameters()]
    assert all(one.isfinite().all() for one in gradients) and any(one.any() for one in gradients)


def test_models_with_different_keep_do_not_share_a_stack():
    motion = Unknown((-1, 0, 1))
    settings = dict(hidden=8, motion=motion)
    open_ended = tc.Topography(2, (5,), cyclic=False)
    models = [
        tc.RollingVAE.mlp((1, 2, 4), tc.Topography(2, (5,)), **settings),
        tc.RollingVAE.mlp((1, 2, 4), tc.Topography(2, (5,)), **settings, keep=1),
        tc.RollingVAE.mlp((1, 2, 4), open_ended, **settings),
    ]
    for frames_of_change in ((1, 2), (1, 3)):  # as many candidates
        changing = settings | dict(motion=Changing((-1, 1), frames_of_change))
        models.append(tc.RollingVAE.mlp((1, 2, 4), tc.Topography(2, (5,)), **changing))
    assert by_architecture(models) == [[0], [1], [2], [3], [4]]


def test_a_prior_that_is_not_uniform_decides_what_is_kept():
    class Rarely(Motion):
        def candidates(self, capsules, axes):
            return Unknown((-1, 1, 2)).candidates(capsules, axes)

        def log_prior(self):
            return torch.tensor([1e-200, 0.5, 0.5], **DOUBLE).log()

    model, x = rolling(Rarely(), keep=2), frames(50)
    assert (model.posteriors(x, some(50, 0)).candidate > 0).all()


def test_a_recipe_has_the_settings_of_its_model():
    recipe = replace(
        ROLLING,
        topography=tc.Topography(2, (5,), cyclic=False),
        motion=Changing((-1, 1), frames=(1, 2)),
        keep=3,
    )
    again = BaseRecipe.from_json(recipe.to_json())
    assert again == recipe and recipe.identity() != ROLLING.identity()
    model = again.build((1, 8, 8), seed=0)
    assert model.keep == 3 and not model.motions.paths.cyclic
    assert build(model.config).config == model.config
    with pytest.raises(tc.BadInput, match="keep must be a whole number"):
        replace(ROLLING, keep=0)


def test_changing_candidates_have_names():
    names = motion_names(rolling(Changing((-1, 1), frames=2)))
    assert names == ["−1", "+1", "−1 then +1 from frame 2", "+1 then −1 from frame 2"]
