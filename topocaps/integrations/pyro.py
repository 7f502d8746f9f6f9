"""The part-whole capsule model as a Pyro program, for Pyro's inference algorithms.

::

    program = PyroPartWhole(PartWhole((1, 28, 28)))
    bound = TraceEnum_ELBO(max_plate_nesting=program.max_plate_nesting)
    svi = SVI(program.model, program.guide, ClippedAdam({"lr": 1e-3}), bound)
    svi.step(x)

The bound is that of ``PartWhole.bound`` with ``drawn_kl``, which estimates all terms from samples.
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

    x is (batch, time, *frame), as everywhere, or (batch, *frame). Every frame is one image, and all
    images are in one plate, "images". Layer 0 holds the wholes. The sites of layer k are:

    - ``t_k`` (images, capsules), the presences;
    - ``A_k`` (images, capsules, 6), the poses;
    - ``s_k`` for k > 0, the parent that each child selects (0 is the dummy). It is enumerated and
      has no place in q, so its bound is ``TraceEnum_ELBO``.

    With Delta poses the value is no bound, because the entropy of q(A) is missing.

    ``t_k`` lies between 0 and 1, and ``PartWhole`` uses its logit. Densities differ by a Jacobian,
    which is the same in p and q. The parameters are those of the ``PartWhole`` itself.

    If selections are enumerated, ``model`` must not draw t and A itself, as it would draw one for
    each selection. They come from a guide or, for NUTS, from ``init_to_value``.

    Args:
        name: name of the parameters in Pyro's store.
    """

    citations = PartWhole.citations
    max_plate_nesting: ClassVar[int] = 2  #: plates of images, and of the capsules of a layer

    def __init__(self, capsules: PartWhole, name: str = "part_whole") -> None:
        if capsules.turns > 1:
            raise BadInput(
                f"Pyro supports only scenes that are not turned: use turns=1, not {capsules.turns}"
            )
        self.capsules, self.name = capsules, name

    def model(self, x: Tensor) -> None:
        """Sample from p(x, t, A, s), from wholes to parts (Eq. 1-7)."""
        images = self._registered(x)
        with pyro.plate("images", len(images), dim=-2):
            layer = self._wholes(images)
            for depth, link in enumerate(self.capsules.links, 1):
                layer = self._children(depth, link, layer)
            drawn = self.capsules.templates(layer).unsqueeze(-4)  # no capsules: … images 1 *frame
            seen = dist.Normal(drawn, self.capsules.noise).to_event(3)
            pyro.sample("x", seen, obs=images.unsqueeze(-4))

    def guide(self, x: Tensor) -> None:
        """Sample from q(t, A | x): parts from the image, then each layer from the one below it."""
        images = self._registered(x)
        depth = len(self.capsules.sizes) - 1
        with pyro.plate("images", len(images), dim=-2):
            layer = self._posterior(depth, self.capsules.part_encoder(images))
            for encoder in reversed(self.capsules.whole_encoders):
                depth -= 1
                layer = self._posterior(depth, encoder(layer))

    def _wholes(self, images: Tensor) -> Capsules:
        """Sample the presences and the poses of wholes (Eq. 1, 2)."""
        with self._plate(0):
            t = pyro.sample("t_0", self._presence(images.new_tensor(self.capsules.prior_logit)))
            where = dist.Normal(images.new_zeros(poses.NUMBERS), 1.0).to_event(1)
            return _capsules(t, pyro.sample("A_0", where))

    def _children(self, depth: int, link: Connection, parents: Capsules) -> Capsules:
        """Sample the selections, the presences and the poses of a layer (Eq. 3-6).

        If s is enumerated, its values are on an axis in front of that of the images.
        """
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
                f"the model drew t_{depth} and A_{depth} for every value of s_{depth}: draw them "
                "with a guide, or start NUTS with init_to_value"
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
        """Register the parameters in Pyro's store, and return x as (images, *frame)."""
        self.capsules.check(x)
        check_place(x, self.capsules)
        store = pyro.get_param_store()
        for parameter, value in self.capsules.named_parameters():
            kept = param_with_module_name(self.name, parameter)
            if kept in store and store[kept] is not value:
                raise BadInput(
                    f"Pyro's store already holds parameters of another model as {self.name!r}: "
                    "choose another name, or call pyro.clear_param_store() first"
                )
        pyro.module(self.name, self.capsules)
        return x.flatten(0, -4)


class _Mixture(dist.MixtureSameFamily):
    """A mixture of Normals with the support that Pyro's autoguides need and torch leaves out."""

    support = constraints.real_vector


def _on_or_off(logit: Tensor, mean: Tensor, c: Tensor, absent: float) -> _Mixture:
    """Return the density of a pose: near its parent's with weight t (Eq. 5), else wide (Eq. 6)."""
    weights = dist.Categorical(logits=torch.stack([logit, torch.zeros_like(logit)], -1))
    means = torch.stack([mean, torch.zeros_like(mean)], -2)
    spreads = torch.stack([c, torch.full_like(c, absent)], -2)
    return _Mixture(weights, dist.Normal(means, spreads).to_event(1))


def _capsules(t: Tensor, A: Tensor) -> Capsules:
    return Capsules(_logit(t), A)


def _logit(t: Tensor) -> Tensor:
    return SigmoidTransform().inv(t)  # finite even if t is rounded to 0 or 1
