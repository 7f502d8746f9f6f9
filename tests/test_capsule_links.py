"""Connections of part-whole models follow Eq. 3-6, in densities and in draws."""

import math
from itertools import pairwise, product

import pytest
import torch
from scipy import stats
from small_capsules import (
    DOUBLE,
    EXACT,
    REJECT,
    capsules_of,
    expected_by_hand,
    is_zero,
    joint_by_hand,
    link_of,
    model_of,
    normal,
    selection_by_hand,
    temperatures,
)
from torch.distributions import Normal

from topocaps.capsules import (
    Capsules,
    concrete,
)


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


def test_images_of_a_batch_are_independent():
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


@torch.no_grad()
def certain_by_hand(link, parents, children):
    """p(t, A | parents) of presences that are 0 or 1: Eq. 3-6 as they are printed."""
    selection, whole = selection_by_hand(link, parents), torch.ones((), **DOUBLE)
    for j, (there, pose) in enumerate(zip(children.presences, children.poses, strict=True)):
        chances = []
        for i in range(len(selection)):
            gamma = link.presence[i, j].sigmoid()
            on = Normal(*expected_by_hand(link, parents, i, j))
            off = Normal(torch.zeros(6, **DOUBLE), link.absent)
            chance, known = (gamma, on) if there == 1 else (1 - gamma, off)
            chances.append(selection[i, j] * chance * known.log_prob(pose).sum().exp())
        whole = whole * sum(chances)
    return whole


@pytest.mark.parametrize("parents", [(True, True), (True, False), (False, False)])
@pytest.mark.parametrize("children", [(True, True, True), (False, True, False)])
def test_certain_children_have_the_density_of_the_paper(parents, children):
    link, above = link_of(loose=1.3, absent=1.7, temperature=0.7), wholes_there(*parents)
    below = wholes_there(*children)
    found = link.log_density(above, below)
    torch.testing.assert_close(found, certain_by_hand(link, above, below).log(), **EXACT)
    for gradient in torch.autograd.grad(found, list(link.parameters()), allow_unused=True):
        assert gradient is None or gradient.isfinite().all()


@temperatures
def test_relaxed_densities_equal_general_ones_if_no_presence_is_certain(temperature):
    link, parents, children = link_of(temperature=temperature), capsules_of(2), capsules_of(3)
    plain = link.log_joint(parents, children, relaxed=True)
    assert torch.equal(link.log_joint(parents, children), plain)


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


def test_an_absent_parent_has_no_children():
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
def test_children_are_present_as_often_as_equation_4_says(parents):
    link, above = link_of(), parents()
    below, selected = link.sample(many(above, 20_000), relaxed=False)
    assert below.logits.isinf().all()
    for i, j in product(range(3), range(3)):
        there = below.logits[selected[:, j] == i, j] > 0
        gamma = link.presence[i, j].sigmoid().item()
        if len(there):
            assert stats.binomtest(int(there.sum()), len(there), gamma).pvalue > REJECT


@torch.no_grad()
def test_relaxed_presences_of_children_follow_equation_4():
    link, above = link_of(temperature=0.7), capsules_of(2)
    below, selected = link.sample(many(above, 20_000), relaxed=True)
    for i, j in product(range(3), range(3)):
        found = below.logits[selected[:, j] == i, j].numpy()
        wanted = stats.logistic(link.presence[i, j].item() / 0.7, 1 / 0.7)
        assert stats.kstest(found, wanted.cdf).pvalue > REJECT


@pytest.mark.parametrize("relaxed", [False, True])
@torch.no_grad()
def test_poses_of_children_follow_equations_5_and_6(relaxed):
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


def test_presences_and_poses_of_wholes_follow_equations_1_and_2():
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
def test_all_layers_of_a_scene_have_one_dtype_and_matching_shapes(relaxed):
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
