"""The part-whole capsule model is the paper's (Smith et al. 2020), by arithmetic."""

import json
import math
from itertools import pairwise, product

import pytest
import torch
from scipy import stats
from torch.distributions import Categorical, Normal, RelaxedBernoulli
from torch.nn.functional import grid_sample, interpolate

from topocaps import BadInput
from topocaps.building import build
from topocaps.capsules import (
    Belief,
    Capsules,
    Connection,
    PartWhole,
    Poses,
    Templates,
    composite,
    concrete,
    poses,
)
from topocaps.data.transforms import turned

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
    link = Connection(parents, children, base, temperature=temperature, **settings).double()
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
    return [normal(*shape, *numbers) for numbers in model.drawn]


def is_zero(draws):
    """Whether the mean of independent draws is 0, as far as they can tell."""
    limit = stats.norm.isf(REJECT / 2 / draws[0].numel())
    return (draws.mean(0).abs() < limit * draws.std(0) / len(draws) ** 0.5).all()


# ---- Poses are affine maps of the plane ----


def square(pose):
    """The 3 × 3 matrix, in homogeneous coordinates."""
    last = torch.tensor([0.0, 0.0, 1.0]).to(pose).expand(*pose.shape[:-1], 1, 3)
    return torch.cat([pose.unflatten(-1, (2, 3)), last], -2)


def as_pose(matrix):
    return matrix[..., :2, :].flatten(-2)


def test_where_a_parent_expects_a_child_is_one_plus_its_pose_times_the_offset():
    parents, offsets = normal(5, 2, 6), normal(2, 3, 6)
    found = poses.expected(parents, offsets)
    assert found.shape == (5, 2, 3, 6)
    added = square(parents)
    added[..., 2, 2] = 0  # I + A is affine
    for one, i, j in product(range(5), range(2), range(3)):
        wanted = (torch.eye(3, **DOUBLE) + added[one, i]) @ square(offsets[i, j])
        torch.testing.assert_close(square(found[one, i, j]), wanted, **EXACT)


def test_one_map_after_another_is_a_product_of_matrices():
    first, then = normal(4, 6), normal(4, 6)
    wanted = square(then) @ square(first)
    torch.testing.assert_close(square(poses.after(first, then)), wanted, **EXACT)


def test_the_inverse_of_a_pose_is_the_inverse_matrix():
    pose = normal(20, 6)
    found = square(poses.inverse(pose))
    torch.testing.assert_close(found @ square(pose), torch.eye(3, **DOUBLE).expand(20, 3, 3))


def test_a_pose_without_area_can_be_drawn_and_learned_from():
    pose = torch.zeros(3, 6, **DOUBLE)
    pose[1] = 1.0
    pose[2, 0], pose[2, 4] = 1e-3, -1e-3
    found = poses.inverse(pose.requires_grad_())
    found.sum().backward()
    assert found.isfinite().all() and pose.grad.isfinite().all()


def test_maps_take_points_where_matrices_do():
    pose, points = normal(2, 6), poses.grid(3, 5).double()
    found = poses.apply(pose, points)
    assert found.shape == (2, 3, 5, 2)
    for one, row, column in product(range(2), range(3), range(5)):
        point = torch.cat([points[row, column], torch.ones(1, **DOUBLE)])
        wanted = (square(pose[one]) @ point)[:2]
        torch.testing.assert_close(found[one, row, column], wanted, **EXACT)


def test_pixels_lie_in_the_middles_of_equal_squares():
    x, y = poses.grid(2, 4).unbind(-1)
    assert x[0].tolist() == x[1].tolist() == [-0.75, -0.25, 0.25, 0.75]
    assert y[:, 0].tolist() == y[:, 3].tolist() == [-0.5, 0.5]


# ---- Concrete presences ----


@temperatures
def test_the_concrete_density_integrates_to_one(temperature):
    value = torch.linspace(-100, 100, 20_001, **DOUBLE)
    for logits in (-4.0, 0.0, 2.5):
        density = concrete.log_density(value, torch.tensor(logits, **DOUBLE), temperature).exp()
        assert torch.trapezoid(density, value).item() == pytest.approx(1, abs=1e-7)


@temperatures
def test_the_concrete_density_is_that_of_torch_after_the_change_of_variables(temperature):
    value, logits = 3 * normal(50), 2 * normal(50)
    t = value.sigmoid()
    known = RelaxedBernoulli(torch.tensor(temperature, **DOUBLE), logits=logits)
    wanted = known.log_prob(t) + (t * (1 - t)).log()
    found = concrete.log_density(value, logits, temperature)
    torch.testing.assert_close(found, wanted, rtol=1e-11, atol=1e-11)


@temperatures
def test_concrete_draws_from_normal_numbers_are_concrete(temperature):
    """KS test of 20,000 draws each."""
    for logits in (-3.0, 0.0, 2.0):
        where = torch.full((20_000,), logits, **DOUBLE)
        found = concrete.draw(where, torch.randn_like(where), temperature)
        wanted = stats.logistic(logits / temperature, 1 / temperature)
        assert stats.kstest(found.numpy(), wanted.cdf).pvalue > REJECT
        wrong = stats.logistic(logits / temperature, 1.1 / temperature)
        assert stats.kstest(found.numpy(), wrong.cdf).pvalue < REJECT


def test_concrete_draws_are_finite_far_out():
    far = torch.tensor([-30.0, 30.0], **DOUBLE)
    found = concrete.draw(torch.zeros_like(far), far, 1.0)
    assert found.isfinite().all() and found[0] == -found[1] < -400


@temperatures
def test_the_closed_kl_is_the_integral_of_the_log_ratio(temperature):
    """By quadrature, so that small ones are seen too."""
    value = torch.linspace(-120, 120, 60_001, **DOUBLE)
    for logits, apart in product((-2.0, 1.0), (0.0, 1e-3, 0.0199, 0.0201, 0.5, -3.0, 12.0)):
        q, p = (torch.tensor(one, **DOUBLE) for one in (logits + apart, logits))
        log_q = concrete.log_density(value, q, temperature)
        ratio = log_q - concrete.log_density(value, p, temperature)
        wanted = torch.trapezoid(log_q.exp() * ratio, value).item()
        assert concrete.kl(q, p).item() == pytest.approx(wanted, rel=2e-5, abs=1e-9)


@pytest.mark.parametrize("temperature", [0.5, 2.5])
def test_the_closed_kl_is_the_mean_log_ratio_of_draws(temperature):
    q, p = (torch.tensor(one, **DOUBLE) for one in ([0.3, -1.0, 4.0], [0.4, 1.0, -2.0]))
    value = concrete.draw(q.expand(40_000, 3), normal(40_000, 3), temperature)
    log_q, log_p = (concrete.log_density(value, one, temperature) for one in (q, p))
    assert is_zero(log_q - log_p - concrete.kl(q, p))


def test_the_closed_kl_has_a_gradient_everywhere():
    logits = torch.tensor([0.0, 1e-12, 0.019, 0.021, 1.0, 300.0, -300.0], **DOUBLE)
    logits.requires_grad_()
    concrete.kl(logits, torch.zeros_like(logits)).sum().backward()
    half = logits.detach() / 2
    wanted = 1 / half.tanh() - half / half.sinh().square()
    wanted[:2] = logits.detach()[:2] / 3
    torch.testing.assert_close(logits.grad, wanted, rtol=1e-4, atol=1e-6)


# ---- Children and parents (Eq. 3-6) ----


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
    c = link.tightest + link.spread[i - 1, j].exp().log1p()
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


@temperatures
def test_summed_out_selections_are_the_sum_over_all_selections(temperature):
    """Values and gradients, of every parameter and every variable."""
    link = link_of(temperature=temperature, loose=1.3, absent=1.7, clutter=0.2)
    parents, children = capsules_of(2, grad=True), capsules_of(3, grad=True)
    found = link.log_density(parents, children)
    every = product(range(3), repeat=3)
    wanted = sum(joint_by_hand(link, parents, children, s) for s in every).log()
    torch.testing.assert_close(found, wanted, **EXACT)
    held = [parents.logits, parents.poses, children.logits, children.poses, *link.parameters()]
    for one, other in zip(
        torch.autograd.grad(found, held), torch.autograd.grad(wanted, held), strict=True
    ):
        torch.testing.assert_close(one, other, rtol=1e-10, atol=1e-10)


def test_many_pictures_at_once_are_each_by_itself():
    link, parents, children = link_of(), capsules_of(2, 4, 2), capsules_of(2, 4, 3)
    found, routing = link.log_density(parents, children), link.routing(parents, children)
    assert found.shape == (2, 4) and routing.shape == (2, 4, 3, 3)
    for at in product(range(2), range(4)):
        one = [Capsules(layer.logits[at], layer.poses[at]) for layer in (parents, children)]
        torch.testing.assert_close(found[at], link.log_density(*one), **EXACT)
        torch.testing.assert_close(routing[at], link.routing(*one), **EXACT)


def pose_integral(link, parents, logits, points):
    """∫ p(t, A | parents) dA of an only child, by multiple importance sampling with Sobol points:
    (logits,)."""
    means = [expected_by_hand(link, parents, i, 0) for i in range(len(parents.logits) + 1)]
    known = [Normal(mean, spread) for mean, spread in means]
    known.append(Normal(torch.zeros(6, **DOUBLE), link.absent))
    sobol = stats.qmc.Sobol(6, rng=0).random(points)
    standard = torch.from_numpy(stats.norm.ppf(sobol.clip(1e-12)))
    where = torch.cat([one.mean + one.stddev * standard for one in known])
    proposal = torch.stack([one.log_prob(where).sum(-1) for one in known]).logsumexp(0)
    proposal = proposal - math.log(len(known))
    children = Capsules(
        logits[:, None, None].expand(-1, len(where), 1),
        where[:, None].expand(len(logits), -1, 1, 6),
    )
    return (link.log_density(parents, children) - proposal).exp().mean(-1)


@temperatures
def test_the_relaxed_density_of_a_child_integrates_to_one_over_poses_for_any_presence(temperature):
    """What is left is the density of its presence (Eq. 3 and 4)."""
    link, parents = link_of(children=1, temperature=temperature), capsules_of(2)
    logits = torch.tensor([-30.0, -2.0, 0.0, 1.5, 30.0], **DOUBLE) / temperature
    with torch.no_grad():
        left = concrete.log_density(logits[:, None], link.presence[:, 0], temperature).exp()
        wanted = left @ selection_by_hand(link, parents)[:, 0]
        found = pose_integral(link, parents, logits, 2**13)
    torch.testing.assert_close(found, wanted, rtol=2e-3, atol=0)


def test_the_relaxed_density_of_a_child_integrates_to_one_over_poses_and_presences():
    link, parents = link_of(children=1), capsules_of(2)
    logits = torch.linspace(-30, 30, 121, **DOUBLE)
    with torch.no_grad():
        found = pose_integral(link, parents, logits, 2**11)
    assert torch.trapezoid(found, logits).item() == pytest.approx(1, abs=5e-3)


def test_routing_is_bayes_rule_for_selections():
    link, parents, children = link_of(), capsules_of(2), capsules_of(3)
    wanted = torch.zeros(3, 3, **DOUBLE)
    with torch.no_grad():
        for s in product(range(3), repeat=3):
            for j, i in enumerate(s):
                wanted[i, j] += joint_by_hand(link, parents, children, s)
        found = link.routing(parents, children)
    torch.testing.assert_close(found, wanted / wanted.sum(0), **EXACT)
    torch.testing.assert_close(found.sum(0), torch.ones(3, **DOUBLE), **EXACT)


def test_routing_summed_over_children_is_the_expected_number_of_them():
    link, parents, children = link_of(), capsules_of(2), capsules_of(3)
    weight = torch.zeros((), **DOUBLE)
    number = torch.zeros(3, **DOUBLE)
    with torch.no_grad():
        for s in product(range(3), repeat=3):
            joint = joint_by_hand(link, parents, children, s)
            weight += joint
            number += joint * torch.tensor([s.count(i) for i in range(3)], **DOUBLE)
        found = link.routing(parents, children).sum(-1)
    torch.testing.assert_close(found, number / weight, **EXACT)
    assert found.sum().item() == pytest.approx(3)


def test_a_parent_that_is_absent_takes_nothing():
    link, parents, children = link_of(), capsules_of(2, grad=True), capsules_of(3, grad=True)
    absent = Capsules(torch.tensor([-torch.inf, 0.3], **DOUBLE), parents.poses)
    found = link.routing(absent, children)
    assert (found[1] == 0).all() and (found[0] > 0).all() and (found[2] > 0).all()
    link.log_density(absent, children).backward()
    assert (parents.poses.grad[0] == 0).all() and parents.poses.grad.isfinite().all()
    nobody = Capsules(torch.full((2,), -torch.inf, **DOUBLE), parents.poses)
    found = link.routing(nobody, children)
    assert (found[0] == 1).all() and (found[1:] == 0).all()  # the dummy is always there


# ---- What is drawn from wholes down has these frequencies ----


def wholes_there(*there):
    logits = torch.tensor([torch.inf if one else -torch.inf for one in there], **DOUBLE)
    return Capsules(logits, 0.5 * normal(len(there), 6))


def many(values, draws):
    return Capsules(values.logits.expand(draws, -1), values.poses.expand(draws, -1, -1))


def fits(counts, chances):
    """A chi-square test; what has no chance must not have happened."""
    possible = chances > 0
    assert (counts[~possible] == 0).all()
    if possible.sum() > 1:
        wanted = chances[possible] * counts.sum()
        assert stats.chisquare(counts[possible].numpy(), wanted.numpy()).pvalue > REJECT


PARENTS = {
    "both there": lambda: wholes_there(True, True),
    "one there": lambda: wholes_there(False, True),
    "none there": lambda: wholes_there(False, False),
    "in between": lambda: capsules_of(2),
}
every_parents = pytest.mark.parametrize("parents", PARENTS.values(), ids=PARENTS)


@every_parents
@pytest.mark.parametrize("relaxed", [False, True])
@torch.no_grad()
def test_children_select_parents_as_often_as_equation_3_says(parents, relaxed):
    link, above = link_of(), parents()
    _, selected = link.sample(many(above, 20_000), relaxed)
    chances = selection_by_hand(link, above)
    for j in range(3):
        fits(selected[:, j].bincount(minlength=3).double(), chances[:, j])


@every_parents
@torch.no_grad()
def test_children_are_there_as_often_as_equation_4_says(parents):
    link, above = link_of(), parents()
    below, selected = link.sample(many(above, 20_000), relaxed=False)
    assert below.logits.isinf().all()
    for i, j in product(range(3), range(3)):
        there = below.logits[selected[:, j] == i, j] > 0
        gamma = link.presence[i, j].sigmoid().item()
        if len(there):
            assert stats.binomtest(int(there.sum()), len(there), gamma).pvalue > REJECT


@torch.no_grad()
def test_relaxed_children_are_there_as_concretely_as_equation_4_says():
    link, above = link_of(temperature=0.7), capsules_of(2)
    below, selected = link.sample(many(above, 20_000), relaxed=True)
    for i, j in product(range(3), range(3)):
        found = below.logits[selected[:, j] == i, j].numpy()
        wanted = stats.logistic(link.presence[i, j].item() / 0.7, 1 / 0.7)
        assert stats.kstest(found, wanted.cdf).pvalue > REJECT


@pytest.mark.parametrize("relaxed", [False, True])
@torch.no_grad()
def test_children_are_where_equations_5_and_6_say(relaxed):
    """Mean and spread of the mixture that t makes of them, given t."""
    link, above = link_of(loose=1.3, absent=1.7), capsules_of(2)
    below, selected = link.sample(many(above, 20_000), relaxed)
    for i, j in product(range(3), range(3)):
        chosen = selected[:, j] == i
        t, where = below.presences[chosen, j, None], below.poses[chosen, j]
        mean, spread = expected_by_hand(link, above, i, j)
        square = t * (mean.square() + spread**2) + (1 - t) * link.absent**2
        assert is_zero(where - t * mean) and is_zero(where.square() - square)
        if not relaxed:
            on, off = where[t[:, 0] == 1], where[t[:, 0] == 0]
            for found, known in ((on, Normal(mean, spread)), (off, Normal(mean * 0, link.absent))):
                standard = ((found - known.mean) / known.stddev).flatten().numpy()
                assert stats.kstest(standard, stats.norm.cdf).pvalue > REJECT


def test_wholes_are_there_and_where_equations_1_and_2_say():
    model = model_of((2, 2, 2), prior=0.3, temperature=0.7)
    for relaxed in (False, True):
        top = model.sample(20_000, relaxed).layers[0]
        assert stats.kstest(top.poses.flatten().numpy(), stats.norm.cdf).pvalue > REJECT
        if relaxed:
            wanted = stats.logistic(math.log(3 / 7) / 0.7, 1 / 0.7)
            assert stats.kstest(top.logits.flatten().numpy(), wanted.cdf).pvalue > REJECT
        else:
            on = int((top.logits > 0).sum())
            assert top.logits.isinf().all()
            assert stats.binomtest(on, top.logits.numel(), 0.3).pvalue > REJECT


@pytest.mark.parametrize("relaxed", [False, True])
def test_a_scene_is_of_one_type_and_one_shape_from_top_to_bottom(relaxed):
    model = model_of((2, 3, 4), (3, 4, 6))
    scene = model.sample(5, relaxed)
    for layer, size in zip(scene.layers, model.sizes, strict=True):
        assert layer.logits.shape == (5, size) and layer.poses.shape == (5, size, 6)
        assert layer.logits.dtype == layer.poses.dtype == torch.float64
    for selected, (above, below) in zip(scene.selected, pairwise(model.sizes), strict=True):
        assert selected.shape == (5, below) and selected.min() >= 0 and selected.max() <= above
    assert scene.x.shape == (5, 3, 4, 6) and scene.x.dtype == torch.float64
    torch.testing.assert_close(scene.x, model.templates(scene.layers[-1]), **EXACT)
    assert scene.x.min() >= 0 and scene.x.max() <= 1 + 1e-5


# ---- Parts are drawn ----


def over(colour, alpha, under, under_alpha):
    """The paper's operator, with its division."""
    both = alpha + under_alpha * (1 - alpha)
    return (colour * alpha + under * under_alpha * (1 - alpha)) / both, both


def one_after_another(colour, alpha):
    picture, opaque = torch.zeros_like(colour[0]), torch.ones_like(alpha[0])
    for layer in range(len(colour)):
        picture, opaque = over(colour[layer], alpha[layer], picture, opaque)
    return picture


def test_compositing_at_once_is_drawing_one_over_another_on_opaque_black():
    colour, alpha = (torch.rand(6, n, 3, 4, **DOUBLE).requires_grad_() for n in (3, 1))
    found, wanted = composite(colour * alpha, alpha), one_after_another(colour, alpha)
    torch.testing.assert_close(found, wanted, rtol=0, atol=6e-6)
    cotangent = normal(*found.shape)
    for one, other in zip(
        torch.autograd.grad(found, (colour, alpha), cotangent),
        torch.autograd.grad(wanted, (colour, alpha), cotangent),
        strict=True,
    ):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-4)


def test_the_last_layer_lies_uppermost_and_what_is_opaque_hides_all():
    colour = torch.tensor([0.9, 0.2, 0.6], **DOUBLE).view(3, 1, 1, 1)
    alpha = torch.ones(3, 1, 1, 1, **DOUBLE).requires_grad_()
    found = composite(colour, alpha)
    assert found.item() == pytest.approx(0.6, abs=2e-6)
    found.backward()
    assert alpha.grad.isfinite().all()


def test_pictures_are_composited_each_by_itself():
    colour, alpha = torch.rand(2, 5, 4, 3, 2, 2, **DOUBLE), torch.rand(2, 5, 4, 1, 2, 2, **DOUBLE)
    found = composite(colour, alpha)
    for at in product(range(2), range(5)):
        torch.testing.assert_close(found[at], composite(colour[at], alpha[at]), **EXACT)


def templates_of(parts, size, frame_shape):
    templates = Templates(parts, size, frame_shape).double()
    templates.colour.data, templates.alpha.data = (
        2 * normal(*one.shape) for one in (templates.colour, templates.alpha)
    )
    return templates


def at(pose, logits=math.inf):
    """A single part."""
    return Capsules(torch.full((1,), logits, **DOUBLE), pose.double()[None])


def test_nothing_divides_presences_out():
    templates = templates_of(1, 4, (3, 6, 6))
    whole = templates(at(poses.scaled(0.8)))
    assert whole.max() > 0.1
    for t in (0.9, 0.25, 1e-3):
        faint = templates(at(poses.scaled(0.8), math.log(t / (1 - t))))
        torch.testing.assert_close(faint, t * whole, **EXACT)


def test_a_part_that_is_absent_draws_nothing():
    templates, parts = templates_of(3, 4, (1, 6, 6)), capsules_of(3)
    logits = parts.logits.clone()
    logits[1] = -torch.inf
    colour, alpha = (layer[[0, 2]] for layer in templates.moved(Capsules(logits, parts.poses)))
    found = templates(Capsules(logits, parts.poses))
    torch.testing.assert_close(found, composite(colour, alpha), **EXACT)
    assert (templates(Capsules(torch.full_like(logits, -torch.inf), parts.poses)) == 0).all()


@pytest.mark.parametrize(
    "size, frame, inside",
    [(6, (6, 6), 0), (8, (4, 4), 0), (12, (5, 7), 0), (4, (8, 8), 1), (4, (12, 16), 2)],
)
def test_a_template_of_the_size_of_the_image_is_resized(size, frame, inside):
    """Up to half of its own pixel from the border, where it fades."""
    templates = templates_of(1, size, (3, *frame))
    found = templates(at(poses.scaled(1.0)))
    images = templates.images()
    ink = images[:, :-1] * images[:, -1:]
    resized = interpolate(ink, frame, mode="bilinear", align_corners=False)[0]
    kept = (slice(None), slice(inside, frame[0] - inside), slice(inside, frame[1] - inside))
    torch.testing.assert_close(found[kept], resized[kept], rtol=0, atol=2e-6)


def blob(size):
    """A smooth thing without symmetry, on templates that are clear at the border."""
    x, y = poses.grid(size, size).double().unbind(-1)
    bumps = ((0.1, -0.2, 0.12), (0.35, 0.1, 0.05))
    return sum((-((x - a) ** 2 + (y - b) ** 2) / spread).exp() for a, b, spread in bumps) / 2


def smooth_templates(frame):
    templates = Templates(1, 48, frame).double()
    templates.colour.data = torch.full_like(templates.colour, 40.0)
    templates.alpha.data = blob(48).clamp(1e-12).logit()[None, None]
    return templates


MAPS = {
    "a shift": torch.tensor([1.0, 0.0, 0.25, 0.0, 1.0, -0.125]),
    "a turn": poses.rotated(0.7),
    "a shear and a scale": torch.tensor([1.1, 0.3, 0.0, -0.1, 0.8, 0.1]),
}


@pytest.mark.parametrize("frame", [(1, 64, 64), (1, 56, 80)])
@pytest.mark.parametrize("moved", MAPS.values(), ids=MAPS)
def test_a_pose_that_moves_moves_the_picture(moved, frame):
    """Pixels of the new picture come from where the inverse map says."""
    templates, pose = smooth_templates(frame), torch.tensor([0.8, 0.1, 0.05, -0.1, 0.7, 0.1])
    before = templates(at(pose))
    after = templates(at(poses.after(pose, moved)))
    back = torch.linalg.inv(square(moved.double()))
    points = poses.grid(*frame[1:]).double()
    looked_up = points @ back[:2, :2].mT + back[:2, 2]
    warped = grid_sample(before[None], looked_up[None], align_corners=False)[0]
    assert (after - before).abs().max() > 0.1
    torch.testing.assert_close(after, warped, rtol=0, atol=0.012)


def test_a_turned_pose_turns_the_picture_counter_clockwise_as_seen():
    templates, pose = smooth_templates((1, 64, 64)), torch.tensor([0.8, 0.1, 0.05, -0.1, 0.7, 0.1])
    before = templates(at(pose))
    quarter = templates(at(poses.after(pose, poses.rotated(math.pi / 2))))
    torch.testing.assert_close(quarter, before.rot90(1, (-2, -1)), rtol=0, atol=1e-5)
    angle = 0.6
    places = turned(64, 64, torch.tensor(angle), torch.tensor(1.0)).double()
    wanted = grid_sample(before[None], places[None], align_corners=False)[0]
    found = templates(at(poses.after(pose, poses.rotated(angle))))
    torch.testing.assert_close(found, wanted, rtol=0, atol=0.012)


def test_a_part_as_white_as_what_lies_under_it_changes_nothing():
    """A template is clear outside its square; it does not grow dark towards it."""
    templates = Templates(2, 4, (1, 16, 16)).double()
    templates.colour.data.fill_(40.0)
    templates.alpha.data[0], templates.alpha.data[1] = 40.0, 0.0
    pose = torch.stack([poses.scaled(3.0), poses.scaled(0.6)]).double()
    found = templates(Capsules(torch.full((2,), torch.inf, **DOUBLE), pose))
    torch.testing.assert_close(found, torch.ones_like(found), rtol=0, atol=1e-5)


def test_drawing_many_scenes_is_drawing_each():
    templates, parts = templates_of(3, 4, (3, 5, 6)), capsules_of(2, 4, 3)
    found = templates(parts)
    assert found.shape == (2, 4, 3, 5, 6)
    for place in product(range(2), range(4)):
        one = Capsules(parts.logits[place], parts.poses[place])
        torch.testing.assert_close(found[place], templates(one), **EXACT)


@pytest.mark.parametrize("layers", [2, 3])
def test_a_map_of_the_wholes_is_the_same_map_of_the_parts_they_expect(layers):
    """Poses go down by affine maps, so what is made of a whole, at I + A, moves as it does."""
    links = model_of((2,) * layers).links
    for link in links:
        link.offsets.data = normal(*link.offsets.shape)
    wholes, one = normal(2, 6), poses.scaled(1.0).double()
    moved = poses.after(one + wholes, MAPS["a shear and a scale"].double()) - one

    def parts(found):
        for link in links:
            above = Capsules(torch.zeros(found.shape[:-1], **DOUBLE), found)
            found = link.means(above)[..., 1, :, :].detach()  # as the first whole expects them
        return found

    wanted = poses.after(parts(wholes), MAPS["a shear and a scale"].double())
    torch.testing.assert_close(parts(moved), wanted)


# ---- The bound ----


def believed(model, x, numbers):
    """Beliefs and draws of all layers, wholes first, from below (Figure 2)."""
    left, beliefs, layers = iter(numbers), [], []
    for encoder in (model.part_encoder, *reversed(model.whole_encoders)):
        belief = encoder(layers[-1] if layers else x)
        presence = next(left)
        if model.poses_are is Poses.DELTA:
            belief = Belief(belief.logits, belief.poses, None)
            where = belief.poses
        else:
            where = belief.poses + belief.spread * next(left)
        logistic = torch.special.ndtr(presence).logit()
        beliefs.append(belief)
        layers.append(Capsules((belief.logits + logistic) / model.temperature, where))
    return beliefs[::-1], layers[::-1]


def log_prior_by_hand(model, wholes):
    """Eq. 1, relaxed, and 2."""
    presence = RelaxedBernoulli(
        torch.tensor(model.temperature, **DOUBLE), torch.tensor(model.config["prior"], **DOUBLE)
    )
    t = wholes.presences
    found = presence.log_prob(t) + (t * (1 - t)).log()
    return (found + Normal(0.0, 1.0).log_prob(wholes.poses).sum(-1)).sum(-1)


@pytest.mark.parametrize("sizes", [(2, 3), (2, 2, 3)])
def test_the_density_of_a_scene_is_the_product_down_the_layers(sizes):
    model = model_of(sizes, (3, 4, 5), noise=0.3, prior=0.2)
    x, layers = images_of(model, 7), [capsules_of(7, size) for size in sizes]
    wanted = log_prior_by_hand(model, layers[0])
    for link, (above, below) in zip(model.links, pairwise(layers), strict=True):
        wanted = wanted + link.log_density(above, below)
    pixels = Normal(model.templates(layers[-1]), 0.3).log_prob(x)
    torch.testing.assert_close(model.log_density(layers, x), wanted + pixels.sum((-3, -2, -1)))


def test_the_value_with_drawn_kls_is_the_one_with_closed_kls_in_expectation():
    """log p - log q of the same 4,000 draws of q, against ``evidence``; and kl_wholes by itself."""
    model = model_of((2, 2), temperature=0.7)
    x, draws = images_of(model, 1, 1), 4000
    numbers = drawn_for(model, draws, 1)
    with torch.no_grad():
        found = model.evidence(x.expand(draws, -1, -1, -1, -1), given(numbers))
        beliefs, layers = believed(model, x.expand(draws, -1, -1, -1, -1), numbers)
        log_q = [
            belief.log_density(values, 0.7) for belief, values in zip(beliefs, layers, strict=True)
        ]
        value = model.log_density(layers, x) - sum(log_q)
        drawn = log_q[0] - log_prior_by_hand(model, layers[0])
    assert value.std() > 0.1
    assert is_zero(value - found.elbo) and is_zero(drawn - found.kl_wholes)
    torch.testing.assert_close(
        value - found.elbo, found.kl_wholes - drawn, rtol=1e-6, atol=1e-6
    )  # nothing but the KL of wholes is in closed form
    torch.testing.assert_close(found.elbo, found.objective)


def test_the_density_of_a_normal_belief_is_that_of_its_draws():
    belief = Belief(normal(3), normal(3, 6), normal(3, 6).exp())
    values = belief.draw(normal(3), normal(3, 6), 0.5)
    t = values.presences
    known = RelaxedBernoulli(torch.tensor(0.5, **DOUBLE), logits=belief.logits)
    wanted = known.log_prob(t) + (t * (1 - t)).log()
    wanted = wanted + Normal(belief.poses, belief.spread).log_prob(values.poses).sum(-1)
    torch.testing.assert_close(belief.log_density(values, 0.5), wanted.sum(), rtol=1e-8, atol=1e-8)


def wide_model():
    """Tiny, with a q so near its prior that evidence can be had by brute force."""
    model = model_of((1, 1), noise=1.0, scatter=0.1)
    with torch.no_grad():
        model.templates.alpha.fill_(3.0)
        model.links[0].spread.fill_(0.5)
        inverse = math.log(math.expm1(1.0)) - math.log(math.expm1(0.03))  # of a spread of 1
        whole = model.whole_encoders[0]
        model.part_encoder.read.weight.mul_(0.1)
        for layer, level in (
            (whole.presence, model.prior_logit + 0.5), (whole.pose, 0.1), (whole.spread, inverse)
        ):  # fmt: skip
            layer[-1].weight.mul_(0.1)
            layer[-1].bias.fill_(level)
        model.part_encoder.read.bias.zero_()[7:13] = inverse
    return model


def log_mean(logs):
    """The log of the mean of exponentials, and its standard error."""
    weights = (logs - logs.max()).exp()
    mean = weights.mean()
    return (mean.log() + logs.max()).item(), (weights.std() / mean / len(logs) ** 0.5).item()


def test_the_bound_lies_below_the_evidence_and_importance_weights_reach_it():
    """Evidence by 200,000 draws of the relaxed prior; limits of 4.4 standard errors."""
    model, limit = wide_model(), stats.norm.isf(REJECT / 2)
    with torch.no_grad():
        x = images_of(model, 1, 1)
        prior = model.sample(200_000, relaxed=True).layers[-1]
        evidence, error = log_mean(model.log_likelihood(prior, x[:, 0]))
        draws = 20_000
        many_x, numbers = x.expand(draws, -1, -1, -1, -1), drawn_for(model, draws, 1)
        elbo = model.evidence(many_x, given(numbers)).elbo
        beliefs, layers = believed(model, many_x, numbers)
        log_q = sum(one.log_density(two, 1.0) for one, two in zip(beliefs, layers, strict=True))
        reached, other = log_mean((model.log_density(layers, x) - log_q)[:, 0])
    bound, spread = elbo.mean().item(), elbo.std().item() / draws**0.5
    assert error < 0.01 and spread < 0.02 and other < 0.05
    assert bound < evidence + limit * math.hypot(error, spread)
    assert evidence - bound < 0.6  # near enough for the law to be a test
    assert abs(reached - evidence) < limit * math.hypot(error, other)


@pytest.mark.parametrize("temperature", [1.0, 0.7])
def test_with_delta_poses_the_value_lacks_their_entropy(temperature):
    """E[log p(x, t, A)] - E[log q(t)] at A, that is -log p(A) of wholes in place of a KL."""
    model = model_of((2, 2), poses_are=Poses.DELTA, temperature=temperature)
    x = images_of(model, 3, 2)
    numbers = drawn_for(model, 3, 2)
    found = model.evidence(x, given(numbers))
    (wholes, parts), layers = believed(model, x, numbers)
    log_q = concrete.log_density(layers[1].logits, parts.logits, temperature).sum(-1)
    kl_parts = log_q - model.links[0].log_density(*layers)
    prior = torch.tensor(math.log(0.1 / 0.9), **DOUBLE)
    kl_wholes = concrete.kl(wholes.logits, prior).sum(-1)
    kl_wholes = kl_wholes - Normal(0.0, 1.0).log_prob(wholes.poses).sum((-1, -2))
    pixels = Normal(model.templates(layers[1]), 0.2).log_prob(x).sum((-3, -2, -1))
    torch.testing.assert_close(found.log_px_given_t, pixels)
    torch.testing.assert_close(found.kl_parts, kl_parts)
    torch.testing.assert_close(found.kl_wholes, kl_wholes)
    torch.testing.assert_close(found.elbo, pixels - kl_parts - kl_wholes)


@pytest.mark.parametrize("sizes", [(2, 3), (2, 3, 4), (2, 2, 2, 3)])
def test_any_number_of_layers_has_a_finite_bound_that_every_parameter_feels(sizes):
    model = model_of(sizes)
    x = images_of(model, 3, 2)
    found = model.evidence(x)
    for term in model.terms:
        assert getattr(found, term).shape == (3, 2) and getattr(found, term).isfinite().all()
    found.objective.sum().backward()
    for name, parameter in model.named_parameters():
        assert parameter.grad is not None, name
        assert parameter.grad.isfinite().all() and parameter.grad.abs().max() > 0, name
    believed_sizes = [belief.logits.shape[-1] for belief in model.believe(x)]
    assert believed_sizes == list(sizes)


@both_poses
@pytest.mark.parametrize("sizes", [(2, 3), (2, 3, 4)])
def test_the_noise_that_is_asked_for_is_the_noise_that_is_named(sizes, poses_are):
    model, asked = model_of(sizes, poses_are=poses_are), []

    def noise(like):
        asked.append(tuple(like.shape))
        return torch.randn_like(like)

    model.evidence(images_of(model, 3, 2), noise)
    assert asked == [(3, 2, *shape) for shape in model.drawn]


@both_poses
def test_given_its_noise_the_bound_is_what_it_was(poses_are):
    model = model_of((2, 2, 3), poses_are=poses_are)
    x, numbers = images_of(model, 3, 2), drawn_for(model, 3, 2)
    one, same = (model.evidence(x, given(numbers)) for _ in range(2))
    other = model.evidence(x, given(drawn_for(model, 3, 2)))
    for term in model.terms:
        assert torch.equal(getattr(one, term), getattr(same, term))
    assert not torch.equal(one.elbo, other.elbo)


def test_a_picture_has_its_bound_whatever_stands_beside_it():
    model = model_of()
    x, numbers = images_of(model, 3, 2), drawn_for(model, 3, 2)
    both = model.evidence(x, given(numbers)).elbo
    alone = model.evidence(x[1:2, 1:], given([number[1:2, 1:] for number in numbers])).elbo
    torch.testing.assert_close(alone, both[1:2, 1:])


@both_poses
def test_what_is_believed_is_drawn_when_the_noise_is_zero(poses_are):
    model = model_of((2, 2, 3), poses_are=poses_are, temperature=0.7)
    x = images_of(model, 3)
    wanted, _ = believed(model, x, [torch.zeros(3, *shape, **DOUBLE) for shape in model.drawn])
    for found, one in zip(model.believe(x), wanted, strict=True):
        torch.testing.assert_close(found.logits, one.logits)
        torch.testing.assert_close(found.poses, one.poses)
        assert (found.spread is None) == (poses_are is Poses.DELTA)


def test_wholes_do_not_ask_in_which_order_parts_are_told():
    """A set transformer that knows parts by name."""
    encoder, parts = model_of((2, 4)).whole_encoders[0], capsules_of(5, 4)
    order = [2, 0, 3, 1]
    found = encoder(parts)
    encoder.names.data = encoder.names.data[order]
    other = encoder(Capsules(parts.logits[:, order], parts.poses[:, order]))
    torch.testing.assert_close(found.logits, other.logits)
    torch.testing.assert_close(found.poses, other.poses)
    mixed = encoder(Capsules(parts.logits[:, order], parts.poses))
    assert (mixed.logits - found.logits).abs().max() > 1e-6


# ---- What training is told ----


def test_shares_are_of_parts_that_are_there():
    model = model_of((3, 4))
    x, numbers = images_of(model, 3, 2), drawn_for(model, 3, 2)
    found = model.evidence(x, given(numbers))
    beliefs, (wholes, parts) = believed(model, x, numbers)
    taken = torch.zeros(4, **DOUBLE)
    for place in product(range(3), range(2)):
        for j in range(4):
            one = [Capsules(layer.logits[place], layer.poses[place]) for layer in (wholes, parts)]
            taken += parts.presences[place][j] * model.links[0].routing(*one)[:, j]
    shares = taken / parts.presences.sum()
    assert shares.sum().item() == pytest.approx(1)
    torch.testing.assert_close(found.clutter, shares[0].expand(3, 2))
    torch.testing.assert_close(found.largest_share, shares[1:].max().expand(3, 2))
    logits = beliefs[0].logits.flatten(0, 1).detach().numpy()
    assert found.logit_spread[0, 0].item() == pytest.approx(logits.std(0).mean())
    torch.testing.assert_close(found.parts_on, parts.presences.sum(-1))
    torch.testing.assert_close(found.wholes_on, wholes.presences.sum(-1))


def means_of(model):
    found = model.evidence(images_of(model, 16, 2))
    return {term: getattr(found, term).mean().item() for term in model.terms}


@torch.no_grad()
def lively(model):
    """Presences of wholes that vary over images, each about as often there as not."""
    last = model.whole_encoders[0].presence[-1]
    last.weight.normal_().mul_(30)
    last.bias -= model.believe(images_of(model, 64))[0].logits.mean(0)
    return model


def test_a_model_that_lives_has_no_complaint():
    model = lively(model_of((3, 4)))
    means = means_of(model)
    assert means["logit_spread"] > 0.2 and model.complaint(means) is None
    healthy = {"logit_spread": 1.0, "largest_share": 0.5, "clutter": 0.3}
    assert model.complaint(healthy) is None


def test_a_dead_top_is_complained_of():
    model = model_of((3, 4))
    model.whole_encoders[0].presence[-1].weight.data.zero_()
    means = means_of(model)
    assert means["logit_spread"] < 1e-9
    assert "hardly vary" in model.complaint(means)


def test_a_whole_that_takes_all_is_complained_of():
    model = lively(model_of((3, 4), clutter=1e-12))
    with torch.no_grad():
        model.links[0].affinity.fill_(-40.0)
        model.links[0].affinity[1] = 20.0
        model.links[0].spread[1] = 1.0
    assert "one whole takes" in model.complaint(means_of(model))


def test_parts_that_belong_to_no_whole_are_complained_of():
    model = lively(model_of((3, 4)))
    model.links[0].affinity.data.fill_(-40.0)
    assert "no whole" in model.complaint(means_of(model))


def test_wholes_learn_slower_than_all_else():
    model = model_of(slower=0.25)
    rates = {name: model.rate_of(name) for name, _ in model.named_parameters()}
    for name, rate in rates.items():
        assert rate == (0.25 if "whole_encoder" in name else 1.0)
    assert set(rates.values()) == {0.25, 1.0}


# ---- What is refused, and what is kept ----


@both_poses
@pytest.mark.parametrize("frame_shape", [(1, 5, 9), (3, 4, 4), (2, 11, 6)])
def test_frames_of_any_shape_and_colour_are_taken(frame_shape, poses_are):
    model = model_of((2, 3), frame_shape, poses_are=poses_are)
    x = images_of(model, 2, 3)
    model.check(x)
    found = model.evidence(x)
    assert found.elbo.shape == (2, 3) and found.elbo.isfinite().all()
    assert model.sample(4).x.shape == (4, *frame_shape)


def bad_images():
    x = torch.rand(2, 1, 1, 4, 6, **DOUBLE)
    hole, bright, dark = x.clone(), x.clone(), x.clone()
    hole[1, 0, 0, 2, 3] = torch.nan
    bright[0, 0, 0, 0, 0], dark[0, 0, 0, 0, 0] = 1.5, -0.5
    return {
        "NaN": (hole, "NaN"),
        "too bright": (bright, r"\[0, 1\]"),
        "too dark": (dark, r"\[0, 1\]"),
        "turned": (x.mT, r"\(1, 4, 6\)"),
        "another size": (torch.rand(2, 1, 1, 8, 6), r"\(1, 4, 6\)"),
        "colour": (x.expand(2, 1, 3, 4, 6), r"\(1, 4, 6\)"),
        "a bare frame": (x[0, 0], r"\(1, 4, 6\)"),
        "bytes": ((255 * x).byte(), "floating point"),
        "nothing": (x[:0], "no frames"),
    }


@pytest.mark.parametrize("x, why", bad_images().values(), ids=bad_images())
def test_bad_images_are_refused_by_a_sentence(x, why):
    with pytest.raises(BadInput, match=why):
        model_of((2, 3), (1, 4, 6)).check(x)


@pytest.mark.parametrize("sizes", [(), (3,), (0, 3), (3, 0), (2, -1, 3)])
def test_sizes_that_make_no_layers_are_refused(sizes):
    with pytest.raises(BadInput, match="two layers or more"):
        model_of(sizes)


@pytest.mark.parametrize("frame_shape", [(), (8, 8), (1, 1, 8, 8), (0, 8, 8), (1, 3, 8), (1, 8, 2)])
def test_frames_that_make_no_image_are_refused(frame_shape):
    with pytest.raises(BadInput, match="channels, height, width"):
        model_of((2, 3), frame_shape)


NONSENSE = {
    "noise": 0.0, "prior": 0.0, "prior of one": 1.0, "temperature": 0.0, "clutter": 0.0,
    "template": 0, "poses_are": "gamma", "sizes": (2, 2.5), "width": 6,
}  # fmt: skip


@pytest.mark.parametrize("name, value", NONSENSE.items(), ids=NONSENSE)
def test_settings_that_make_no_model_are_refused_by_name(name, value):
    name = name.split()[0]
    with pytest.raises(BadInput, match=name.split("_")[0]):
        model_of(**{name: value})


@both_poses
def test_a_model_is_rebuilt_from_what_was_recorded_of_it(poses_are):
    settings = {"noise": 0.3, "prior": 0.2, "scale": 0.5, "temperature": 0.7, "clutter": 0.2}
    model = model_of((2, 2, 3), (3, 4, 6), poses_are=poses_are, slower=0.5, **settings)
    rebuilt = build(json.loads(json.dumps(model.config))).double()
    assert type(rebuilt) is PartWhole and rebuilt.config == model.config
    rebuilt.load_state_dict(model.state_dict())
    x, numbers = images_of(model, 2, 2), drawn_for(model, 2, 2)
    one, other = (each.evidence(x, given(numbers)) for each in (model, rebuilt))
    for term in model.terms:
        assert torch.equal(getattr(one, term), getattr(other, term))
    assert rebuilt.rate_of("whole_encoders.0.seed") == 0.5


def test_a_model_of_the_papers_size_has_fewer_than_30_000_generative_parameters():
    model = PartWhole((1, 28, 28))
    generative = (*model.connections.parameters(), *model.templates.parameters())
    assert sum(parameter.numel() for parameter in generative) < 30_000
    assert (len(model.links), model.sizes, model.noise) == (1, (16, 16), 0.2)
    assert model.templates.images().shape == (16, 2, 12, 12)
    assert (model.links[0].c > 0.1).all()


def test_selections_are_drawn_from_a_distribution_that_torch_accepts():
    link = link_of()
    chances = link.log_selection(capsules_of(4, 2)).mT
    assert Categorical(logits=chances).probs.sum(-1).allclose(torch.ones(4, 3, **DOUBLE))
