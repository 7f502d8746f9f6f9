"""The claims and conclusions of the papers, with the numbers that they are judged by."""

from __future__ import annotations

from dataclasses import replace

from topocaps.papers.judging import Best, Better, Claim, Learned, Within
from topocaps.papers.quantities import (
    AGREEMENT,
    CAPCORR,
    COMBINED_GAIN,
    COPIES,
    EARLY_ELBO,
    ELBO,
    ERROR_SQUARED,
    HELD,
    LOG_PX_BOUND,
    LOG_PX_PAPER,
    MAP_EXCESS,
    SMOOTHNESS,
    free_form,
)
from topocaps.papers.recipes import dsprites, mnist, part_whole
from topocaps.papers.recipes.columns import column
from topocaps.study.evaluation.topographic import ERROR, GAIN, gain_of
from topocaps.study.quantity import Quantity

_MNIST, _SPRITES = column(mnist.FIRST, "tvae-5_36"), column(dsprites.FIRST, "tvae-1_3")

_MAP_EXCESS = replace(MAP_EXCESS, label="neighbours of one class, more than shuffled")
_LIKELIHOOD = (LOG_PX_PAPER, LOG_PX_BOUND)
_ROLLING = dsprites.FIRST[:5]  # TVAEs with L > 0
#: Bubbles with windows shorter than a sequence. The second of each is also in the camera-ready.
_BUBBLES = (
    ("MNIST", mnist.FIRST, ("bubble-1_4", "bubble-5_36")),
    ("sprites", dsprites.FIRST, ("bubble-2_5", "bubble-1_3", "bubble-4_15", "bubble-1_6")),
)

#: Claims of Keller and Welling (2021). Claims about K are not judged by E_eq, which depends on K
#: before the first step.
CLAIMS: tuple[Claim, ...] = (
    Better(
        "K = 3 is better than K = 1 on MNIST (A.5)",
        _MNIST, mnist.SINGLE_SITE, higher=(*_LIKELIHOOD, GAIN),
    ),
    Better(
        "K = 1 is better than K = 3 on dSprites (A.5)",
        _SPRITES, dsprites.THREE_SITES, higher=(*_LIKELIHOOD, GAIN, *CAPCORR),
    ),
    Better(
        "A Bubble with K = 3 is worse than one with K = 2L (A.5), on all metrics",
        column(mnist.FIRST, "bubble-5_36"), column(mnist.FIRST, "bubble-5_36-k3"),
        higher=(*_LIKELIHOOD, GAIN), lower=(ERROR,),
    ),
    *(
        Best(
            f"{kind} has its highest likelihood at L = 5/36 (A.6)",
            tuple(column(mnist.FIRST, f"{name}-{length}") for length in lengths), LOG_PX_PAPER,
        )
        for kind, name, lengths in (
            ("The TVAE", "tvae", ("5_36", "1_2", "13_36", "1_4", "0")),
            ("The Bubble", "bubble", ("5_36", "1_2", "1_4")),
        )
    ),
    Best(
        "The TVAE has its lowest E_eq at L = 1/2 (A.6)",
        tuple(
            column(mnist.FIRST, f"tvae-{length}")
            for length in ("1_2", "13_36", "1_4", "5_36", "0")
        ),
        ERROR, lowest=True,
    ),
    Better("mu = 30 speeds convergence (A.2)", _MNIST, mnist.MU_FROM_0, higher=(EARLY_ELBO,)),
    Better(
        "mu organises t: E_eq of t² is lower with initial mu 30 than with 0 (the sign of t is "
        "random if mu is 0)",
        _MNIST, mnist.MU_FROM_0, lower=(ERROR_SQUARED,),
    ),
    *(
        Better(
            "A TVAE without coherence in time (L = 0) is smooth within its capsules (6.3): "
            f"neighbouring sites correlate more than a VAE's: {data}",
            column(recipes, "tvae-0"), column(recipes, "vae"), higher=SMOOTHNESS,
        )
        for data, recipes, _ in _BUBBLES
    ),
    Better(
        "Weight normalisation is needed for topographic organisation (A.8)",
        mnist.TORUS, mnist.PLAIN_TORUS, higher=(_MAP_EXCESS,),
    ),
    *(
        Better(
            f"Weight normalisation has a higher likelihood than projected rows (A.8): {name}",
            this, that, higher=_LIKELIHOOD,
        )
        for name, this, that in (
            ("a TVAE", _MNIST, column(mnist.NORMS, "tvae-5_36-pgd")),
            ("the VAE", column(mnist.NORMS, "vae-wn"), column(mnist.NORMS, "vae-pgd")),
        )
    ),
    Better(
        "The VAE has a higher likelihood without weight normalisation (A.1)",
        column(mnist.FIRST, "vae"), column(mnist.NORMS, "vae-wn"),
        higher=_LIKELIHOOD,
    ),
    Within(
        "All capsules roll together (A.11): at least 95 % of them roll by the most frequent roll",
        _ROLLING, AGREEMENT, least=0.95, control=True,
    ),
    *(
        Within(
            "A Bubble learns invariance (6.3): without a roll, t of one frame predicts unseen "
            f"frames at least as well as the mean frame: {data}",
            tuple(column(recipes, name) for name in names), (HELD,), least=0.0, control=True,
        )
        for data, recipes, names in _BUBBLES
    ),
    *(
        Better(
            f"Without a roll, t of a Bubble predicts unseen frames better than t of a VAE: {data}",
            column(recipes, names[1]), column(recipes, "vae"), higher=(HELD,),
        )
        for data, recipes, names in _BUBBLES
    ),
)  # fmt: skip

_PARTS, _TURNED = part_whole.DIGITS, part_whole.ROTATED[-1]


def _accuracy(label: str, protocol: str, features: str, angle: str) -> Quantity:
    """Return the accuracy of a probe on digits that are turned by up to ``angle``."""
    return Quantity((protocol, features, angle), label, 3)


#: Claims of Smith et al. (2020) about parts and wholes. The runs of its tables suffice for them.
OF_PARTS: tuple[Claim, ...] = (
    Better(
        "Free-form inference repairs digits turned by up to 90 degrees (Fig. 3)", _PARTS, _PARTS,
        higher=((
            free_form("MSE, amortised", "turned", "mse", digits=4),
            free_form("optimised", "turned", "mse, optimised", digits=4),
        ),),
    ),
    Better(
        "Free-form inference adds about half a percent to the accuracy of a probe on t⁰ (Fig. 3)",
        _PARTS, _PARTS,
        higher=((
            free_form("optimised, refitted probe", "optimised, refitted", "presences"),
            free_form("amortised", "amortised", "presences"),
        ),),
    ),
    Better(
        "For digits turned by up to 180 degrees, probes on wholes are more accurate than probes on "
        "a VAE (Table 1)",
        _PARTS, part_whole.PLAIN_LARGER,
        higher=tuple(
            (
                _accuracy(f"{probe}: {label}", protocol, features, "180"),
                _accuracy("μ, σ", protocol, "posterior", "180"),
            )
            for protocol, probe in (("accuracy", "upright probe"), ("refitted", "refitted probe"))
            for label, features in (("t⁰", "presences"), ("t⁰, A⁰", "presences and poses"))
        ),
    ),
    Better(
        "Probes on t⁰ are less accurate if digits are turned further in training and test (Fig. 4)",
        _PARTS, _TURNED,
        higher=((
            _accuracy("upright", "refitted", "presences", "0"),
            _accuracy("up to 180 degrees", "refitted", "presences", "180"),
        ),),
    ),
    Better(
        "Wholes specialise less if digits are turned in training (Fig. 4): probes on t⁰ are more "
        "accurate after upright training, on upright and on turned digits",
        _PARTS, _TURNED, higher=(
            _accuracy("t⁰ of upright digits", "refitted", "presences", "0"),
            _accuracy("turned by up to 180 degrees", "refitted", "presences", "180"),
        ),
    ),
    Within(
        "Many templates (here, a quarter) are nearly affine copies of another (Fig. 5 to 7)",
        (_PARTS,), (replace(COPIES, label="share of copies (by chance 0.05)"),),
        least=0.25,
    ),
    Better(
        "Normal poses have a tighter bound after point poses than from the start (2.3)",
        part_whole.TUNED, part_whole.NORMAL, higher=(ELBO,),
    ),
)  # fmt: skip

_SEES_MOST = column(mnist.FIRST, "tvae-13_36")
_OF_MNIST = (
    (mnist.FINAL, "Table 1, as released"),
    (mnist.TO_THE_LETTER, "Table 1, to the letter of the text"),
    (mnist.FIRST, "Table 4"),
)
_OF_SPRITES = (
    (dsprites.FINAL, "Table 2, as released"),
    (dsprites.TO_THE_LETTER, "Table 2, to the letter of the text"),
    (dsprites.FIRST, "Table 5"),
)
_L_ZERO = "A TVAE without coherence in time (L = 0)"


def _gains(*factors: str) -> tuple[Quantity, ...]:
    return tuple(replace(gain_of(factor), label=f"gain, {factor}") for factor in factors)


#: Conclusions from the papers' tables. Each is judged with a lower bound or a control beside it.
CONCLUSIONS: tuple[Claim, ...] = (
    *(
        Better(
            f"A TVAE, {recipe.about}, has a higher likelihood than the VAE ({source})",
            recipe, vae, higher=_LIKELIHOOD,
        )
        for recipes, source in (*_OF_MNIST, (mnist.FAST, "ours: Table 1, fast"))
        for vae in (column(recipes, "vae"),)
        for recipe in (column(recipes, "tvae-1_2"), column(recipes, "tvae-5_36"))
    ),
    *(
        conclusion
        for recipes, source in _OF_MNIST
        for bubble in (column(recipes, "bubble-5_36"),)
        for conclusion in (
            Better(
                f"A Bubble has a higher likelihood than the VAE (6.3, {source})",
                bubble, column(recipes, "vae"), higher=_LIKELIHOOD,
            ),
            Better(
                "A TVAE with L = 5/36 has a higher likelihood and a lower E_eq than the Bubble "
                f"(6.3, {source})",
                column(recipes, "tvae-5_36"), bubble, higher=_LIKELIHOOD, lower=(ERROR,),
            ),
        )
    ),
    *(
        Better(
            f"{name} has a lower E_eq than the VAE (6.3): {data}",
            column(recipes, model), column(recipes, "vae"), lower=(ERROR,),
        )
        for data, recipes, bubble in (
            ("MNIST, as released", mnist.FINAL, "bubble-5_36"),
            ("sprites, as released", dsprites.FINAL, "bubble-1_3"),
            ("MNIST, to the letter", mnist.TO_THE_LETTER, "bubble-5_36"),
            ("sprites, to the letter", dsprites.TO_THE_LETTER, "bubble-1_3"),
        )
        for name, model in ((_L_ZERO, "tvae-0"), ("A Bubble", bubble))
    ),
    *(
        Better(
            f"{name} has a lower CapCorr than the VAE, for every factor (6.3, {source})",
            column(recipes, model), column(recipes, "vae"), lower=CAPCORR,
        )
        for recipes, source in _OF_SPRITES
        for name, model in (("A Bubble", "bubble-1_3"), (_L_ZERO, "tvae-0"))
    ),
    Learned(
        "A low E_eq shows that equivariance was learned (Tables 1, 2, 4, 5)",
        tuple(
            recipe
            for recipes in (
                *(recipes for recipes, _ in _OF_MNIST), mnist.FIRST_RELEASED,
                *(recipes for recipes, _ in _OF_SPRITES), dsprites.FIRST_RELEASED,
            )
            for recipe in recipes[:-1]
        ),
        (ERROR,), lower=True,
        why="E_eq is mostly as low before the first step. If mu is far from 0, latents that share "
        "variances are similar in any network. Traversals and their gains show what was learned",
    ),
    Learned(
        "Capsules that roll with the input are learned: CapCorr is high (Tables 2, 5, L > 0)",
        (*dsprites.FINAL[:3], *dsprites.TO_THE_LETTER[:3], *_ROLLING), CAPCORR,
        why="CapCorr is also mostly due to the structure, which untrained networks have, too",
    ),
    *(
        Within(
            f"A roll of t of a TVAE with a window of {window} frames decodes the other frames at "
            f"least as well as the mean frame (6.3, Fig. 4): {data}",
            (recipe,), _gains(*factors), least=0.0, control=True,
        )
        for data, window, recipe, factors in (
            ("MNIST, as released", "13 of 18", mnist.LONG, ("rotation", "scale", "hue")),
            ("MNIST, weight norm", "13 of 18", _SEES_MOST, ("rotation", "scale", "hue")),
            *(
                (f"sprites, {edition}", "10 of 15", column(recipes, "tvae-1_3"),
                 ("x", "y", "orientation"))
                for edition, recipes in (
                    ("as released", dsprites.FINAL), ("to the letter", dsprites.TO_THE_LETTER)
                )
            ),
        )
    ),
    Within(
        "After training on single motions, a roll of t of a TVAE decodes combined motions at least "
        "as well as the mean frame (B.4)",
        (mnist.LONG, _SEES_MOST, column(mnist.FINAL, "tvae-5_36"),
         column(mnist.TO_THE_LETTER, "tvae-5_36")),
        (COMBINED_GAIN,), least=0.0, control=True,
    ),
)  # fmt: skip
