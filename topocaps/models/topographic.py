"""The Topographic VAE, and the VAE that is its baseline."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Self

import torch
from torch import Tensor, nn
from torch.distributions import Distribution, Independent, Normal

from topocaps.errors import BadInput, non_negative
from topocaps.latents.interface import TopographyLike
from topocaps.latents.learned import Learned, LearnedTopography, learn
from topocaps.latents.student_t import TopographicStudentT, studentize, studentize_per_axis
from topocaps.latents.topography import KELLER_2021, Topography
from topocaps.models.base import family, settings_in
from topocaps.models.evidence import Posterior
from topocaps.models.likelihoods import Likelihood
from topocaps.models.networks import Fan, Norm, Perceptrons, lead
from topocaps.models.sequence import SequenceModel
from topocaps.models.visible import VisibleFrames, visible_settings

if TYPE_CHECKING:
    from topocaps.models.convolutional import Convolutions

KINGMA_2014 = """\
@inproceedings{kingma2014auto,
  title = {Auto-Encoding Variational {Bayes}},
  author = {Kingma, Diederik P. and Welling, Max},
  booktitle = {International Conference on Learning Representations},
  year = {2014},
  url = {https://arxiv.org/abs/1312.6114},
}"""


@family
class TopographicVAE(SequenceModel):
    """The Topographic VAE (Eq. 10-12).

    ``mu`` is learned. The paper states Z - mu with an initial mu of 30, but its code computes
    z + 30. This class computes Z - mu, so the equivalent initial value is -30.

    Args:
        z_given_x: encoder of frames, (…, *frame), that returns a Normal (…, capsules, *shape).
        u_given_x: the same for u, (…, capsules, *u_shape).
        x_given_t: decoder of t that returns a distribution over frames.
        topography: W, which determines the frames and sites that share u.
        mu, sparsity, epsilon, visible: as in ``mlp``.

    >>> topography = Topography(capsules=4, shape=(6,), window=5)
    >>> model = TopographicVAE.mlp(frame_shape=(1, 8, 8), topography=topography)
    >>> x = torch.rand(2, 6, 1, 8, 8)  # batch, time, *frame
    >>> model(x).elbo.shape
    torch.Size([2, 6])
    >>> t = model.encode(x)
    >>> t.shape, model.decode(topography.roll(t[:, 0], 3)).shape
    (torch.Size([2, 6, 4, 6]), torch.Size([2, 1, 8, 8]))
    """

    citations = (KELLER_2021,)
    epsilon: Tensor  #: added to every energy

    @property
    def noise_shapes(self) -> list[tuple[int, ...]]:
        return [*super().noise_shapes, (self.topography.capsules, *self.topography.u_shape)]

    def __init__(
        self,
        z_given_x: nn.Module,
        u_given_x: nn.Module,
        x_given_t: nn.Module,
        topography: TopographyLike,
        mu: float = -30.0,
        sparsity: float = 0.0,
        epsilon: float = 0.0,
        visible: VisibleFrames | None = None,
    ) -> None:
        super().__init__(x_given_t, topography)
        if not isinstance(visible, VisibleFrames | None):
            raise BadInput(f"visible must be VisibleFrames such as Stretch(3), not {visible!r}")
        self.sparsity, self.visible = sparsity, visible
        self.z_given_x, self.u_given_x = z_given_x, u_given_x
        #: module that returns the `Posterior` of z and u; if set, it replaces both encoders
        self.encoders: nn.Module | None = None
        self.mu = nn.Parameter(torch.tensor(float(mu)))
        # a buffer, so that models of a stack may have different values
        self.register_buffer("epsilon", torch.tensor(non_negative("epsilon", epsilon)), False)

    @classmethod
    def mlp(
        cls,
        frame_shape: tuple[int, ...],
        topography: Topography,
        hidden: int | tuple[int, ...] | None = None,
        mu: float = -30.0,
        norm: Norm | str = Norm.NONE,
        likelihood: Likelihood | str = Likelihood.BERNOULLI,
        centred: bool = False,
        learned: Learned | str = Learned.NOTHING,
        sparsity: float = 0.0,
        encoder_fan: Fan | str = Fan.IN,
        decoder_fan: Fan | str = Fan.IN,
        epsilon: float = 0.0,
        visible: VisibleFrames | None = None,
    ) -> Self:
        """Build the model with the paper's multilayer perceptrons (A.3).

        Args:
            frame_shape: shape of one frame, such as (channels, height, width).
            topography: W of Eq. 5.
            hidden: widths of an encoder's hidden layers; the decoder has them in reverse order.
                By default they are the paper's widths.
            mu: initial value of the learned scalar of Eq. 6.
            norm: normalisation of the rows of every weight matrix (A.8).
            likelihood: likelihood of the decoder: bernoulli or gaussian.
            centred: whether the network of the decoder is applied to t minus its mean under the
                prior (not in the paper).
            learned: which part of the topography is a parameter.
            sparsity: penalty, in nats, on capsules whose sites differ (not in the paper).
            encoder_fan: whether the number of inputs or of outputs of a layer bounds the initial
                weights of the encoders.
            decoder_fan: the same for the decoder; the released code uses ``Fan.OUT``.
            epsilon: number that is added to every energy W U²; the released code uses 1e-6.
            visible: which frames are visible to the encoders in training, while the bound is on all
                frames (not in the paper). By default all frames are visible.
        """
        networks = Perceptrons(
            frame_shape, topography, hidden, norm, likelihood, encoder_fan, decoder_fan
        )
        return cls.of_networks(networks, mu, centred, learned, sparsity, epsilon, visible)

    @classmethod
    def of_networks(
        cls,
        networks: Perceptrons | Convolutions,
        mu: float = -30.0,
        centred: bool = False,
        learned: Learned | str = Learned.NOTHING,
        sparsity: float = 0.0,
        epsilon: float = 0.0,
        visible: VisibleFrames | None = None,
    ) -> Self:
        """Build the model with new networks; the other arguments are those of ``mlp``."""
        topography = networks.topography
        w = learn(topography, learned)
        centre = _centre(topography, w, mu) if centred else 0.0
        encoders = networks.encoder(), networks.encoder(topography.u_shape)
        model = cls(*encoders, networks.decoder(centre), w, mu, sparsity, epsilon, visible)
        settings: dict[str, Any] = {"kind": "TopographicVAE", "mu": float(mu), "centred": centred}
        if Learned(learned) is not Learned.NOTHING:
            settings["learned"] = Learned(learned).value
        if sparsity:
            settings["sparsity"] = float(sparsity)
        if epsilon:
            settings["epsilon"] = float(epsilon)
        if visible is not None:
            settings["visible"] = visible_settings(visible)
        # settings do not describe topographies and visible frames of other classes
        if topography.is_plain and settings.get("visible", {}) is not None:
            model.config = networks.config() | settings
        return model

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> Self:
        return cls.mlp(**settings_in(config))

    def posterior(self, x: Tensor) -> Posterior:
        if self.encoders is not None:
            return self.encoders(x)
        return Posterior(self.z_given_x(x), self.u_given_x(x))

    def latents(self, z: Tensor, u: Tensor | None) -> Tensor:
        assert u is not None
        epsilon = lead(self.epsilon, z)
        return studentize(z, u, self.topography, lead(self.mu, z), epsilon=epsilon)

    def t_per_axis(self, z: Tensor, u: Tensor | None) -> list[Tensor]:
        if not self.topography.apart:
            return [self.latents(z, u)]
        assert u is not None
        return studentize_per_axis(z, u, self.topography, lead(self.mu, z), lead(self.epsilon, z))

    def prior(self, frames: int) -> TopographicStudentT:
        return TopographicStudentT(self.topography, frames, self.mu, self.epsilon)


@family
class VAE(SequenceModel):
    """The baseline: t = z, with a standard normal prior.

    Args:
        z_given_x: encoder of frames, (…, *frame), that returns a Normal (…, capsules, *shape).
        x_given_t: decoder of t that returns a distribution over frames.
        topography: number of capsules and their sites. Its other settings do not affect the model.

    >>> model = VAE.mlp(frame_shape=(1, 8, 8), topography=Topography(capsules=4, shape=(6,)))
    >>> model(torch.rand(2, 6, 1, 8, 8)).kl_u.sum().item()  # there is no u
    0.0
    """

    citations = (KINGMA_2014,)
    couples_frames = False

    def __init__(
        self,
        z_given_x: nn.Module,
        x_given_t: nn.Module,
        topography: Topography,
    ) -> None:
        super().__init__(x_given_t, topography)
        self.z_given_x = z_given_x

    @classmethod
    def mlp(
        cls,
        frame_shape: tuple[int, ...],
        topography: Topography,
        hidden: int | tuple[int, ...] | None = None,
        norm: Norm | str = Norm.NONE,
        likelihood: Likelihood | str = Likelihood.BERNOULLI,
        encoder_fan: Fan | str = Fan.IN,
        decoder_fan: Fan | str = Fan.IN,
    ) -> Self:
        """Build the model with the paper's networks (A.3), without the u encoder.

        The arguments are those of ``TopographicVAE.mlp``.
        """
        networks = Perceptrons(
            frame_shape, topography, hidden, norm, likelihood, encoder_fan, decoder_fan
        )
        return cls.of_networks(networks)

    @classmethod
    def of_networks(cls, networks: Perceptrons | Convolutions) -> Self:
        """Build the model with new networks."""
        model = cls(networks.encoder(), networks.decoder(), networks.topography)
        model.config = networks.config() | {"kind": "VAE"}
        return model

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> Self:
        return cls.mlp(**settings_in(config))

    @property
    def rate(self) -> float:
        return 0.0  # the latents of a VAE are not expected to move

    def posterior(self, x: Tensor) -> Posterior:
        return Posterior(self.z_given_x(x))

    def latents(self, z: Tensor, u: Tensor | None) -> Tensor:
        return z

    def prior(self, frames: int) -> Distribution:
        like = next(self.parameters())
        zeros = like.new_zeros((frames, self.topography.capsules, *self.topography.shape))
        return Independent(Normal(zeros, torch.ones_like(zeros)), zeros.ndim)


def _centre(topography: Topography, w: TopographyLike, mu: float) -> float:
    """Return the mean of t under the prior, or its median if the topography is learned."""
    if topography.degrees_of_freedom < 2:
        raise BadInput("centred=True needs a window or a reach above 1: otherwise t has no mean")
    if isinstance(w, LearnedTopography):  # from the identity, t has a median but no mean
        return w.typical(mu)
    return TopographicStudentT(topography, topography.window, mu).mean.mean().item()
