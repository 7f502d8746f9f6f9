"""The rolling VAE: one code for a whole sequence, which every frame shows rolled."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Self

import torch
from torch import Tensor, nn
from torch.distributions import Categorical, Normal

from topocaps.errors import BadInput, whole_number
from topocaps.latents.motion import Known, Motion, motion_from, motion_settings
from topocaps.latents.topography import KELLER_2021, Topography
from topocaps.models.base import family, settings_in
from topocaps.models.convolutional import SILU, Convolutions
from topocaps.models.experts import CodePosterior, ExpertEncoder
from topocaps.models.likelihoods import Likelihood
from topocaps.models.networks import Perceptrons, keep_size
from topocaps.models.one_code import OneCodeModel
from topocaps.models.prediction import PredictedFrames
from topocaps.models.priors import CodePrior, StandardNormal, prior_from, prior_settings
from topocaps.models.stream import RollingStream
from topocaps.models.visible import Stretch, VisibleFrames, visible_settings


@family
class RollingVAE(OneCodeModel):
    r"""A sequence has one code t, and frame l shows it rolled by the motion v of the sequence:

    .. math:: t \sim N(0, I), \qquad p(x_l | t) = p(x | \mathrm{decode}(\mathrm{Roll}_{v l} t))

    The posterior is a product of experts. Each visible frame gives a mean m and a precision p,
    which are rolled back to frame 0:

    .. math::

        P = 1 + \sum_l \mathrm{Roll}_{-vl}\, p_l, \qquad
        M = \frac1P \sum_l \mathrm{Roll}_{-vl}\, p_l \; \mathrm{Roll}_{-vl}\, m_l, \qquad
        q(t | x) = N(M, 1/P)

    With this posterior, the bound holds for the evidence of all frames, whichever of them are
    visible. In training, ``visible`` chooses frames anew for every sequence, and the model
    maximises the bound on all present frames.

    If the motion has several candidates, they are summed out. The weight of a candidate is sampled,
    p(x, t) / q(t): with an exact KL inside the logarithm of the sum, the result would not be a
    bound.

    The code of every frame is that of frame 0, rolled. The equivariance error is therefore 0 by
    construction, and says nothing about this model.

    Args:
        z_given_x: encoder of frames, (…, *frame), that returns a Normal (…, capsules, *shape).
        x_given_t: decoder of codes that returns a distribution over frames.
        topography: number of capsules, their sites, and whether they are rings. Its other settings
            are not used.
        motion: candidate motions of codes, and their prior.
        visible: which frames are visible in training.
        keep: number of candidate motions of each sequence that are decoded: those that agree best
            with the experts of its visible frames. The other candidates count as impossible, which
            lowers the bound. By default all candidates are decoded.
        prior: distribution of codes, such as ``StudentT(3)``, or its name: normal, student-t or
            laplace. By default it is N(0, I). The posterior has the factor N(0, 1), the "1 +"
            above, with every prior, and the bound holds with every prior. If the KL divergence has
            no closed form, it is sampled.
        correction: hidden channels of a network that corrects the mean and the precision of the
            product of experts where experts disagree (`PosteriorCorrection`). By default there is
            no such network.

    >>> capsules = Topography(capsules=4, shape=(5,))
    >>> model = RollingVAE.mlp(frame_shape=(1, 8, 8), topography=capsules)
    >>> x = torch.rand(2, 5, 1, 8, 8)  # batch, time, *frame
    >>> model(x).elbo.shape, model.encode(x).shape
    (torch.Size([2, 5]), torch.Size([2, 5, 4, 5]))
    >>> model.predict(x, lags=range(5, 8)).mean.shape  # the three frames that come next
    torch.Size([2, 3, 1, 8, 8])
    """

    citations = (KELLER_2021,)
    supports_vmap = True

    @classmethod
    def mlp(
        cls,
        frame_shape: tuple[int, ...],
        topography: Topography,
        hidden: int | tuple[int, ...] | None = None,
        motion: Motion = Known(),  # noqa: B008 (frozen)
        visible: VisibleFrames = Stretch(),  # noqa: B008 (frozen)
        likelihood: Likelihood | str = Likelihood.BERNOULLI,
        keep: int | None = None,
        prior: CodePrior | str = StandardNormal(),  # noqa: B008 (frozen)
        correction: int | None = None,
    ) -> Self:
        """Build the model with multilayer perceptrons, with SiLU between their layers.

        The other arguments are those of the class. By default codes move by ``Known(1)``, one site
        a frame, and ``Stretch(3)``, three or more contiguous frames, are visible in training.

        Args:
            frame_shape: shape of one frame, such as (channels, height, width).
            hidden: widths of the encoder's hidden layers; the decoder has them in reverse order.
                By default they are the widths of the topographic models.
            likelihood: likelihood of the decoder: bernoulli or gaussian.
        """
        networks = Perceptrons(
            frame_shape, topography, hidden, likelihood=likelihood, activation=nn.SiLU
        )
        model = cls._of_networks(
            networks, motion, visible, keep, prior, correction, hidden=networks.widths
        )
        for network in (model.z_given_x, model.x_given_t):
            keep_size(network)
        return model

    @classmethod
    def convolutional(
        cls,
        frame_shape: tuple[int, ...],
        topography: Topography,
        channels: tuple[int, ...] | None = None,
        hidden: int | None = None,
        motion: Motion = Known(),  # noqa: B008 (frozen)
        visible: VisibleFrames = Stretch(),  # noqa: B008 (frozen)
        likelihood: Likelihood | str = Likelihood.BERNOULLI,
        keep: int | None = None,
        prior: CodePrior | str = StandardNormal(),  # noqa: B008 (frozen)
        correction: int | None = None,
    ) -> Self:
        """Build the model with convolutional networks, with SiLU between their layers.

        The other arguments are those of ``mlp``.

        Args:
            frame_shape: shape of one frame, (colours, height, width).
            channels: numbers of channels of the encoder, one for each halving of the frame; the
                decoder has them in reverse order. By default 32 and then 64, until the shorter side
                has at most 4 pixels.
            hidden: width of a linear layer between convolutions and code; none by default.
        """
        networks = Convolutions(frame_shape, topography, channels, hidden, likelihood, SILU)
        recorded = {"hidden": networks.hidden, "channels": list(networks.channels)}
        return cls._of_networks(networks, motion, visible, keep, prior, correction, **recorded)

    @classmethod
    def _of_networks(
        cls,
        networks: Perceptrons | Convolutions,
        motion: Motion,
        visible: VisibleFrames,
        keep: int | None,
        prior: CodePrior | str,
        correction: int | None,
        **recorded: Any,
    ) -> Self:
        """Build the model with new networks.

        Record its settings, unless a part has a class that they do not describe.
        """
        correction = None if correction is None else whole_number("correction", correction)
        encoder, topography = networks.encoder(), networks.topography
        expert = ExpertEncoder(encoder.network, encoder.frame_axes, encoder.latent_shape)
        model = cls(
            expert, networks.decoder(), topography, motion, visible, keep, prior, correction
        )
        motion_record, visible_record = motion_settings(motion), visible_settings(visible)
        prior_record = prior_settings(model.prior)
        if topography.is_plain and None not in (motion_record, visible_record, prior_record):
            model.config = {
                "kind": cls.__name__,
                "frame_shape": list(networks.frame_shape),
                "topography": topography.settings(),
                "motion": motion_record,
                "visible": visible_record,
                "likelihood": networks.likelihood.value,
                **({} if model.keep is None else {"keep": model.keep}),
                **({} if model.prior == StandardNormal() else {"prior": prior_record}),
                **({} if correction is None else {"correction": correction}),
                **recorded,
            }
        return model

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> Self:
        settings = settings_in(config) | {"motion": motion_from(config["motion"])}
        if "prior" in config:
            settings["prior"] = prior_from(config["prior"])
        return cls.convolutional(**settings) if "channels" in config else cls.mlp(**settings)

    @torch.no_grad()
    def motion(self, x: Tensor, mask: Tensor | None = None) -> Categorical:
        """Return the posterior over candidate motions of every sequence, given present frames.

        The evidence of a candidate is approximated by its bound, with log p(x|t) at the mean of t.
        A KL divergence without a closed form is replaced by an upper bound. So the result needs no
        random numbers.
        """
        x, present = self.given(x, mask)
        posterior = self.posteriors(x, present)
        kept = self.motion_of(x, posterior, mask)
        return posterior.among_all(kept, len(self.motions))

    def motion_of(
        self, x: Tensor, posterior: CodePosterior, mask: Tensor | None = None
    ) -> Categorical:
        """Return the posterior over the kept candidate motions, given q(t|x, v) of each."""
        log_prior = self.motions.log_prior[posterior.candidate].expand(-1, len(x))
        if len(log_prior) == 1:
            return Categorical(logits=log_prior.mT, validate_args=False)
        q = posterior.q
        log_px = self._log_px(x, q.mean, posterior.candidate, mask)
        bound = log_px.sum(-1) - self.prior.kl_bound(q, self._axes)
        return Categorical(logits=(log_prior + bound).mT, validate_args=False)

    def posterior(self, x: Tensor, mask: Tensor | None = None) -> Normal:
        """Return q(t|x, v) at frame 0, (batch, capsules, *shape), for the likeliest motion v."""
        x, present = self.given(x, mask)
        return self.likeliest(x, self.posteriors(x, present), mask)[0]

    def likeliest(
        self, x: Tensor, posterior: CodePosterior, mask: Tensor | None = None
    ) -> tuple[Normal, Tensor]:
        """Return q(t|x, v) for the likeliest motion v of every sequence, and the index of v."""
        with torch.no_grad():
            place = self.motion_of(x, posterior, mask).logits.argmax(-1)
        return posterior.pick(place)

    def encode(self, x: Tensor, mask: Tensor | None = None, sample: bool = False) -> Tensor:
        """Return t of every frame, (batch, time, capsules, *shape): that of frame 0, rolled.

        Args:
            mask: booleans (batch, time), True where a frame is present. Missing frames get a code,
                too.
            sample: whether to draw the code from its posterior. By default it is the mean.
        """
        x, present = self.given(x, mask)
        q, candidate = self.likeliest(x, self.posteriors(x, present), mask)
        return self.at(q.rsample() if sample else q.mean, candidate[:, None], range(x.shape[1]))

    def decode(self, t: Tensor) -> Tensor:
        """Return the expected frame of every t: (…, capsules, *shape) to (…, *frame)."""
        return self.frames_given(t).mean

    @torch.no_grad()
    def predict(
        self,
        x: Tensor,
        mask: Tensor | None = None,
        lags: Iterable[int] | None = None,
        samples: int = 100,
    ) -> PredictedFrames:
        """Return the distribution of frames, given the present ones.

        Args:
            mask: booleans (batch, time), True where a frame is present.
            lags: frames to predict. The first frame of x is 0; frames before it and after the last
                one can be predicted, too. By default they are all frames of x.
            samples: number of samples of t that ``log_prob`` averages over.
        """
        x, present = self.given(x, mask)
        posterior = self.posteriors(x, present)
        motion = self.motion_of(x, posterior, mask)
        lags = range(x.shape[1]) if lags is None else lags
        return PredictedFrames(self, posterior, motion, lags, samples)

    def fill(self, x: Tensor, mask: Tensor) -> Tensor:
        """Return the sequences, with their missing frames predicted from all present frames."""
        if mask is None:
            raise BadInput("fill needs a mask (batch, time), True where a frame is present")
        predicted = self.predict(x, mask).mean
        return torch.where(mask.reshape(*mask.shape, *(1,) * (x.ndim - 2)), x, predicted)

    def stream(self) -> RollingStream:
        """Return a `RollingStream`, which encodes frames as they arrive."""
        return RollingStream(self)

    @torch.no_grad()
    def sample(self, n: int, frames: int) -> Tensor:
        """Draw n codes and motions from the prior and decode them: (n, frames, *frame)."""
        n, frames = whole_number("n", n), whole_number("frames", frames)
        like = self.motions.log_prior
        t = self.prior.sample(n, self._code_shape, like)
        candidate = Categorical(logits=like).sample(torch.Size((n,)))
        return self.decode(self.at(t, candidate[:, None], range(frames)))
