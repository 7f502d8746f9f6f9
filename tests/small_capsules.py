"""Part-whole models of a few capsules, and what they say worked out by hand."""

import pytest
import torch
from scipy import stats
from torch.distributions import Normal, RelaxedBernoulli

from topocaps.capsules import (
    Capsules,
    Connection,
    PartWhole,
    PartWholeSettings,
    Poses,
    poses,
)
from topocaps.capsules.settings import TIGHTEST

REJECT = 1e-5  # each test of draws fails a correct sampler this often at most; seeds are fixed
EXACT = {"rtol": 1e-12, "atol": 1e-12}
DOUBLE = {"dtype": torch.float64}
temperatures = pytest.mark.parametrize("temperature", [1.0, 0.7, 2.5])
both_poses = pytest.mark.parametrize("poses_are", list(Poses))


def normal(*shape):
    return torch.randn(*shape, **DOUBLE)


def link_of(parents=2, children=3, temperature=1.0, **settings):
    """A connection of which no two numbers are alike."""
    base = poses.scaled(0.43).double()
    settings = PartWholeSettings(temperature=temperature, **settings)
    link = Connection(parents, children, base, settings, stand=False).double()
    for parameter in (link.affinity, link.presence, link.spread, link.offsets):
        parameter.data = normal(*parameter.shape)
    return link


def capsules_of(*shape, grad=False):
    made = normal(*shape), 0.5 * normal(*shape, poses.NUMBERS)
    return Capsules(*(one.requires_grad_(grad) for one in made))


def model_of(sizes=(2, 3), frame_shape=(1, 4, 4), **settings):
    small = {"template": 4, "width": 8, "depth": 1, "poses_are": Poses.NORMAL}
    return PartWhole(frame_shape, sizes=sizes, **(small | settings)).double()


def images_of(model, *shape):
    return torch.rand(*shape, *model.frame_shape, **DOUBLE)


def given(numbers):
    """Noise that was drawn before."""
    left = iter(numbers)
    return lambda like: next(left).expand(like.shape)


def drawn_for(model, *shape):
    return [normal(*shape, *numbers) for numbers in model.noise_shapes]


def is_zero(draws):
    """Whether the mean of independent draws is 0, as far as they can tell."""
    limit = stats.norm.isf(REJECT / 2 / draws[0].numel())
    return (draws.mean(0).abs() < limit * draws.std(0) / len(draws) ** 0.5).all()


def square(pose):
    """The 3 × 3 matrix, in homogeneous coordinates."""
    last = torch.tensor([0.0, 0.0, 1.0]).to(pose).expand(*pose.shape[:-1], 1, 3)
    return torch.cat([pose.unflatten(-1, (2, 3)), last], -2)


def as_pose(matrix):
    return matrix[..., :2, :].flatten(-2)


def selection_by_hand(link, parents):
    """Eq. 3: p(s_j = i), (1 + parents, children)."""
    rho = torch.cat([torch.full_like(link.affinity[:1], link.clutter), link.affinity.sigmoid()])
    weights = rho * torch.cat([torch.ones(1, **DOUBLE), parents.logits.sigmoid()])[:, None]
    return weights / weights.sum(0)


def expected_by_hand(link, parents, i, j):
    """The mean of Eq. 5 and its standard deviation; the dummy is 0."""
    if i == 0:
        return link.base, link.loose
    pose = torch.cat([parents.poses[i - 1], torch.zeros(2, **DOUBLE), -torch.ones(1, **DOUBLE)])
    whole = torch.eye(3, **DOUBLE) + pose.view(3, 3)
    whole = whole + torch.diag(torch.tensor([0.0, 0.0, 1.0], **DOUBLE))
    c = TIGHTEST + link.spread[i - 1, j].exp().log1p()
    return as_pose(whole @ square(link.offsets[i - 1, j])), c


def child_by_hand(link, parents, children, i, j):
    """p(t_j, A_j | s_j = i): Eq. 4, relaxed, times the mixture of Eq. 5 and 6."""
    t = children.logits[j].sigmoid()
    known = RelaxedBernoulli(torch.tensor(link.temperature, **DOUBLE), logits=link.presence[i, j])
    presence = (known.log_prob(t) + (t * (1 - t)).log()).exp()  # of the logit of t
    on = Normal(*expected_by_hand(link, parents, i, j)).log_prob(children.poses[j]).sum().exp()
    nowhere = torch.zeros(6, **DOUBLE)
    off = Normal(nowhere, link.absent).log_prob(children.poses[j]).sum().exp()
    return presence * (t * on + (1 - t) * off)


def joint_by_hand(link, parents, children, s):
    """p(s, t, A | parents) for the selections s of all children."""
    selection, whole = selection_by_hand(link, parents), torch.ones((), **DOUBLE)
    for j, i in enumerate(s):
        whole = whole * selection[i, j] * child_by_hand(link, parents, children, i, j)
    return whole


def inferred(model, x, numbers):
    """Posteriors and draws of all layers, wholes first, from below (Figure 2)."""
    left, posteriors, layers = iter(numbers), [], []
    for encoder in (model.part_encoder, *reversed(model.whole_encoders)):
        posterior = encoder(layers[-1] if layers else x)
        presence = next(left)
        where = posterior.poses
        if model.poses_are is Poses.NORMAL:
            where = where + posterior.spread * next(left)
        logistic = torch.special.ndtr(presence).logit()
        posteriors.append(posterior)
        layers.append(Capsules((posterior.logits + logistic) / model.temperature, where))
    return posteriors[::-1], layers[::-1]
