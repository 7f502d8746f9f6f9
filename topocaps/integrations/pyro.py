"""The part-whole capsule model as a Pyro program: the same p, the same q, anybody's inference.

::

    program = PyroPartWhole(PartWhole((1, 28, 28)))
    bound = TraceEnum_ELBO(max_plate_nesting=program.max_plate_nesting)
    svi = SVI(program.model, program.guide, ClippedAdam({"lr": 1e-3}), bound)
    svi.step(x)

The bound is that of ``PartWhole.bound`` with ``drawn_kl``: all of it is drawn.
"""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import Tensor
from torch.distributions import SigmoidTransform, constraints

from topocaps.capsules import poses
from topocaps.capsules.layers import Capsules, Connection, LayerPosterior
from topocaps.capsules.model import PartWhole
from topocaps.errors import BadInput
from topocaps.models.base import check_place

try:
    import pyro
    import pyro.distributions as dist
    from pyro.ops.indexing import Vindex
    from pyro.params import param_with_module_name
except ImportError as error:
    raise BadInput(
        "the capsule model in Pyro needs the package pyro-ppl: pip install 'topocaps[pyro]'"
    ) from error


class PyroPartWhole:
    r"""p and q of a ``PartWhole``, as the functions ``model`` and ``guide`` of images x.

    x is (batch, time, *frame), as everywhere, or (batch, *frame): every frame is an image of its
    own, and all of them are one plate, "images". Sites of layer k, wholes being layer 0, are
    ``t_k`` (images, capsules), ``A_k`` (images, capsules, 6) and, but for wholes, ``s_k``, whom a
    child selects (0 is the dummy): marked to be enumerated, and no part of q. The bound that sums
    it out is ``TraceEnum_ELBO``. With Delta poses the value is no bound, since the entropy of q(A)
    is missing.

    ``t_k`` lies between 0 and 1, where ``PartWhole`` speaks of its logit: densities differ by a
    Jacobian that is the same in p and q. Parameters are those of the ``PartWhole`` itself, kept in
    Pyro's store under ``name``.

    Where selections are enumerated, t and A must come from elsewhere than ``model``, which would
    draw one for each selection: from a guide or, for NUTS, from ``init_to_value``.
    """

    citations = PartWhole.citations
    max_plate_nesting: ClassVar[int] = 2  #: images, and the capsules of a layer

    def __init__(self, capsules: PartWhole, name: str = "part_whole") -> None:
        if capsules.turns > 1:
            raise BadInput("scenes that may be turned have no model in Pyro: take turns=1")
        self.capsules, self.name = capsules, name

    def model(self, x: Tensor) -> None:
        """p(x, t, A, s), from wholes down (Eq. 1-7)."""
        images = self._registered(x)
        with pyro.plate("images", len(images), dim=-2):
            layer = self._wholes(images)
            for depth, link in enumerate(self.capsules.links, 1):
                layer = self._children(depth, link, layer)
            drawn = self.capsules.templates(layer).unsqueeze(-4)  # no capsules: … images 1 *frame
            seen = dist.Normal(drawn, self.capsules.noise).to_event(3)
            pyro.sample("x", seen, obs=images.unsqueeze(-4))

    def guide(self, x: Tensor) -> None:
        """q(t, A | x): parts from the image, then each layer from the drawn one below it."""
        images = self._registered(x)
        depth = len(self.capsules.sizes) - 1
        with pyro.plate("images", len(images), dim=-2):
            layer = self._posterior(depth, self.capsules.part_encoder(images))
            for encoder in reversed(self.capsules.whole_encoders):
                depth -= 1
                layer = self._posterior(depth, encoder(layer))

    def _wholes(self, images: Tensor) -> Capsules:
        """Eq. 1 and 2."""
        with self._plate(0):
            t = pyro.sample("t_0", self._presence(images.new_tensor(self.capsules.prior_logit)))
            where = dist.Normal(images.new_zeros(poses.NUMBERS), 1.0).to_event(1)
            return _capsules(t, pyro.sample("A_0", where))

    def _children(self, depth: int, link: Connection, parents: Capsules) -> Capsules:
        """Eq. 3-6. What depends on s has its values to the left of images, when enumerated."""
        with self._plate(depth):
            selection = dist.Categorical(logits=link.log_selection(parents).mT)
            s = pyro.sample(f"s_{depth}", selection, infer={"enumerate": "parallel"})
            gamma = Vindex(link.presence.mT)[..., s]
            t = pyro.sample(f"t_{depth}", self._presence(gamma))
            mean = Vindex(link.means(parents).transpose(-3, -2))[..., s, :]
            c = Vindex(link.spreads().mT)[..., s].unsqueeze(-1)
            A = pyro.sample(f"A_{depth}", _on_or_off(_logit(t), mean, c, link.absent))
        enumerated = s.dim() > parents.logits.dim() and s.numel() == len(s)
        if enumerated and max(t.dim(), A.dim() - 1) >= s.dim():
            raise BadInput(
                f"t_{depth} and A_{depth} were drawn by the model for every value of s_{depth}: "
                "draw them with a guide, or start NUTS with init_to_value"
            )
        return _capsules(t, A)

    def _posterior(self, depth: int, q: LayerPosterior) -> Capsules:
        if q.spread is None:
            where = dist.Delta(q.poses, event_dim=1)
        else:
            where = dist.Normal(q.poses, q.spread).to_event(1)
        with self._plate(depth):
            t = pyro.sample(f"t_{depth}", self._presence(q.logits))
            return _capsules(t, pyro.sample(f"A_{depth}", where))

    def _presence(self, logits: Tensor) -> dist.RelaxedBernoulli:
        return dist.RelaxedBernoulli(logits.new_tensor(self.capsules.temperature), logits=logits)

    def _plate(self, depth: int) -> pyro.plate:
        return pyro.plate(f"capsules_{depth}", self.capsules.sizes[depth], dim=-1)

    def _registered(self, x: Tensor) -> Tensor:
        """x as (images, *frame), after Pyro has been told of the parameters."""
        self.capsules.check(x)
        check_place(x, self.capsules)
        store = pyro.get_param_store()
        for parameter, value in self.capsules.named_parameters():
            kept = param_with_module_name(self.name, parameter)
            if kept in store and store[kept] is not value:
                raise BadInput(
                    f"Pyro's store already holds parameters of another model as {self.name!r}: "
                    "name this one otherwise, or begin with pyro.clear_param_store()"
                )
        pyro.module(self.name, self.capsules)
        return x.flatten(0, -4)


class _Mixture(dist.MixtureSameFamily):
    """Of Normals: its values are any numbers, which torch does not tell Pyro's autoguides."""

    support = constraints.real_vector


def _on_or_off(logit: Tensor, mean: Tensor, c: Tensor, absent: float) -> _Mixture:
    """A pose's density, at its parent's with weight t (Eq. 5) and anywhere with 1 - t (Eq. 6)."""
    weights = dist.Categorical(logits=torch.stack([logit, torch.zeros_like(logit)], -1))
    means = torch.stack([mean, torch.zeros_like(mean)], -2)
    spreads = torch.stack([c, torch.full_like(c, absent)], -2)
    return _Mixture(weights, dist.Normal(means, spreads).to_event(1))


def _capsules(t: Tensor, A: Tensor) -> Capsules:
    return Capsules(_logit(t), A)


def _logit(t: Tensor) -> Tensor:
    return SigmoidTransform().inv(t)  # finite where t has been rounded to 0 or 1
