"""The capsule model in Pyro: its p, its q and its bound equal those of the library."""

import importlib
import sys

import pyro
import pytest
import torch
from pyro import poutine
from pyro.infer import SVI, TraceEnum_ELBO
from pyro.infer.autoguide import AutoNormal, init_to_value
from pyro.infer.mcmc.util import initialize_model
from pyro.optim import Adam

from topocaps import BadInput
from topocaps.capsules import Capsules, PartWhole, Poses
from topocaps.integrations.pyro import PyroPartWhole

FRAME = (1, 8, 8)
SIZES = {"two layers": (2, 3), "three layers": (2, 2, 3), "one of a kind": (1, 3, 1)}

every_size = pytest.mark.parametrize("sizes", SIZES.values(), ids=SIZES.keys())
every_kind_of_pose = pytest.mark.parametrize("poses_are", Poses)


@pytest.fixture(autouse=True)
def _empty_store():
    pyro.clear_param_store()
    yield
    pyro.clear_param_store()


def part_whole(sizes=(2, 3), poses_are=Poses.NORMAL, **settings):
    """Tiny, in float64, with no two of its numbers alike."""
    settings = {"template": 4, "width": 16, "depth": 1, "temperature": 0.7} | settings
    model = PartWhole(FRAME, sizes=sizes, poses_are=poses_are, **settings).double()
    with torch.no_grad():
        for parameter in model.connections.parameters():
            parameter += 0.3 * torch.randn_like(parameter)
    return model


def images(*front):
    return torch.rand(*front, *FRAME, dtype=torch.float64)


def bound(**settings):
    return TraceEnum_ELBO(max_plate_nesting=PyroPartWhole.max_plate_nesting, **settings)


def drawn(guide, x):
    """A draw of q that still knows its parameters, and the guide that draws it again."""
    trace = poutine.trace(guide).get_trace(x)
    return trace, poutine.replay(guide, trace)


def layers_of(trace, layers):
    sites = ((trace.nodes[f"{name}_{layer}"]["value"] for name in "tA") for layer in range(layers))
    return [Capsules(t.logit(), A) for t, A in sites]


def our_bound(model, layers, x):
    """Minus the bound (Eq. 8) of (images, *frame), all KLs drawn, summed."""
    posteriors = [model.part_encoder(x)]
    for encoder, below in zip(model.whole_encoders[::-1], layers[:0:-1], strict=True):
        posteriors.append(encoder(below))
    return -model.bound(x, posteriors[::-1], layers, drawn_kl=True).elbo.sum()


@every_kind_of_pose
@every_size
def test_bound_and_its_gradient_are_the_librarys(sizes, poses_are):
    model, x = part_whole(sizes, poses_are), images(5)
    program = PyroPartWhole(model)
    trace, guide = drawn(program.guide, x)
    ours = our_bound(model, layers_of(trace, len(sizes)), x)
    assert bound().loss(program.model, guide, x) == pytest.approx(ours.item(), rel=1e-8)
    theirs = bound().differentiable_loss(program.model, guide, x)
    grads = [
        torch.autograd.grad(
            value, list(model.parameters()), retain_graph=True, materialize_grads=True
        )
        for value in (ours, theirs)
    ]
    for (name, _), one, other in zip(model.named_parameters(), *grads, strict=True):
        torch.testing.assert_close(other, one, rtol=1e-8, atol=1e-8, msg=name)
    assert sum(one.abs().max() > 0 for one in grads[0]) > len(grads[0]) / 2


def test_frames_over_time_are_images():
    program, x = PyroPartWhole(part_whole()), images(2, 3)
    _, guide = drawn(program.guide, x)
    as_images = bound().loss(program.model, guide, x.flatten(0, 1))
    assert bound().loss(program.model, guide, x) == pytest.approx(as_images, rel=1e-12)


@pytest.mark.parametrize("sizes", [(2, 3), (1, 2, 3)])
def test_marginals_of_selections_are_the_routing(sizes):
    """Pyro's marginals fail on a plate of one (KeyError): every layer of children has two."""
    model, x = part_whole(sizes), images(4)
    program = PyroPartWhole(model)
    trace, guide = drawn(program.guide, x)
    layers = layers_of(trace, len(sizes))
    marginals = bound().compute_marginals(program.model, guide, x)
    assert set(marginals) == {f"s_{layer}" for layer in range(1, len(sizes))}
    for layer, link in enumerate(model.links, 1):
        routing = link.routing(layers[layer - 1], layers[layer]).mT
        torch.testing.assert_close(marginals[f"s_{layer}"].probs, routing, rtol=1e-8, atol=1e-10)


@every_size
def test_several_particles_at_once_are_several_bounds(sizes):
    model, x = part_whole(sizes), images(2)
    program = PyroPartWhole(model)
    torch.manual_seed(1)
    with pyro.plate("particles", 4, dim=-3):
        trace, _ = drawn(program.guide, x)
    layers = layers_of(trace, len(sizes))
    each = [
        our_bound(model, [Capsules(one.logits[n], one.poses[n]) for one in layers], x)
        for n in range(4)
    ]
    at_once = bound(num_particles=4, vectorize_particles=True)
    torch.manual_seed(1)
    together = at_once.loss(program.model, program.guide, x)
    assert together == pytest.approx((sum(each) / 4).item(), rel=1e-8)


@every_kind_of_pose
def test_steps_of_svi_lower_the_loss(poses_are):
    model, x = part_whole(poses_are=poses_are), images(2, 4)
    program, before = PyroPartWhole(model), [one.clone() for one in model.parameters()]
    svi = SVI(program.model, program.guide, Adam({"lr": 3e-3}), bound())
    losses = torch.tensor([svi.step(x) for _ in range(25)])
    assert losses[-10:].mean() < losses[:10].mean()
    moved = [not now.equal(then) for now, then in zip(model.parameters(), before, strict=True)]
    assert sum(moved) > len(moved) / 2  # the model's own parameters are trained


def test_other_guides_can_be_used():
    program, x = PyroPartWhole(part_whole((2, 2, 3))), images(4)
    sites = [f"{name}_{layer}" for layer in range(3) for name in "tA"]
    guide = AutoNormal(poutine.block(program.model, expose=sites))
    svi = SVI(program.model, guide, Adam({"lr": 3e-2}), bound())
    losses = torch.tensor([svi.step(x) for _ in range(25)])
    assert losses[-10:].mean() < losses[:10].mean()


@every_size
def test_energy_of_nuts_is_minus_the_log_density(sizes):
    model, x = part_whole(sizes), images(3)
    program = PyroPartWhole(model)
    trace, _ = drawn(program.guide, x)
    values = {name: trace.nodes[name]["value"].detach() for name in trace.stochastic_nodes}
    start, energy, *_ = initialize_model(
        program.model,
        (x,),
        max_plate_nesting=program.max_plate_nesting,
        init_strategy=init_to_value(values=values),
    )
    at = {name: torch.randn_like(value) for name, value in start.items()}
    layers = [Capsules(at[f"t_{layer}"], at[f"A_{layer}"]) for layer in range(len(sizes))]
    assert {name: value.shape for name, value in at.items()} == {
        f"{name}_{layer}": (3, size, *last)
        for layer, size in enumerate(sizes)
        for name, last in (("t", ()), ("A", (6,)))
    }
    ours = -model.log_density(layers, x).sum().item()
    assert energy(at).item() == pytest.approx(ours, rel=1e-8)


def test_nuts_that_would_draw_from_enumerated_selections_is_refused():
    program = PyroPartWhole(part_whole())
    with pytest.raises(BadInput, match="init_to_value"):
        initialize_model(program.model, (images(2),), max_plate_nesting=2)


def test_draws_of_the_model_have_the_plates_of_the_guide():
    program, x = PyroPartWhole(part_whole((2, 2, 3))), images(2)
    model, guide = (poutine.trace(one).get_trace(x) for one in (program.model, program.guide))
    for name in ("t_0", "A_0", "t_1", "A_1", "t_2", "A_2"):
        assert model.nodes[name]["value"].shape == guide.nodes[name]["value"].shape
    assert model.nodes["s_2"]["value"].shape == (2, 3)


def test_another_model_of_the_same_name_is_refused():
    x = images(1)
    PyroPartWhole(part_whole()).guide(x)
    with pytest.raises(BadInput, match="part_whole"):
        PyroPartWhole(part_whole()).guide(x)
    PyroPartWhole(part_whole(), name="another").guide(x)


def test_bad_images_are_refused():
    program = PyroPartWhole(part_whole())
    with pytest.raises(BadInput, match="frame"):
        program.model(torch.rand(2, 1, 8, 7).double())
    with pytest.raises(BadInput, match="float32"):
        program.guide(torch.rand(2, *FRAME))


def test_an_error_names_the_missing_package(monkeypatch):
    monkeypatch.setitem(sys.modules, "pyro", None)
    monkeypatch.delitem(sys.modules, "topocaps.integrations.pyro")
    with pytest.raises(BadInput, match=r"pip install 'topocaps\[pyro\]'"):
        importlib.import_module("topocaps.integrations.pyro")
