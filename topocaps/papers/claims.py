"""What the papers say and conclude, each with the numbers that would show it."""

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
_ROLLING = dsprites.FIRST[:5]  # TVAEs, by L, which is above 0
_BUBBLES = (  # that do not see whole sequences; the second is of the camera-ready, too
    ("MNIST", mnist.FIRST, ("bubble-1_4", "bubble-5_36")),
    ("sprites", dsprites.FIRST, ("bubble-2_5", "bubble-1_3", "bubble-4_15", "bubble-1_6")),
)

#: E_eq is no number of these: K decides it before the first step.
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
        "mu organises t: E_eq of t² is lower from mu = 30 than from 0 (the sign of t is random "
        "where mu is 0)",
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
        "All capsules roll together (A.11; the share that rolls as most do, of which .95 is all)",
        _ROLLING, AGREEMENT, least=0.95, control=True,
    ),
    *(
        Within(
            "BubbleVAE learns invariance (6.3): t of one frame, as it is, stands for frames that "
            f"were not seen, at least as well as their mean frame: {data}",
            tuple(column(recipes, name) for name in names), (HELD,), least=0.0, control=True,
        )
        for data, recipes, names in _BUBBLES
    ),
    *(
        Better(
            f"and better than a VAE's: {data}",
            column(recipes, names[1]), column(recipes, "vae"), higher=(HELD,),
        )
        for data, recipes, names in _BUBBLES
    ),
)  # fmt: skip

_PARTS, _TURNED = part_whole.DIGITS, part_whole.ROTATED[-1]


def _read(label: str, how: str, what: str, angle: str) -> Quantity:
    return Quantity((how, what, angle), label, 3)


#: What the other paper says of parts and wholes; its tables' recipes are all that they need.
OF_PARTS: tuple[Claim, ...] = (
    Better(
        "Free-form inference repairs digits turned by up to 90 degrees (Fig. 3)", _PARTS, _PARTS,
        higher=((
            free_form("MSE, amortised", "turned", "mse", digits=4),
            free_form("optimised", "turned", "mse, optimised", digits=4),
        ),),
    ),
    Better(
        "It adds about half a percent to what a probe reads off t⁰ (Fig. 3)", _PARTS, _PARTS,
        higher=((
            free_form("optimised, a probe of its own", "optimised, refitted", "presences"),
            free_form("amortised", "amortised", "presences"),
        ),),
    ),
    Better(
        "Wholes keep more of the class of a digit turned by up to 180 degrees than a VAE does "
        "(Table 1)",
        _PARTS, part_whole.PLAIN_LARGER,
        higher=tuple(
            (_read(f"{told}: {label}", how, what, "180"), _read("μ, σ", how, "posterior", "180"))
            for how, told in (("accuracy", "upright probe"), ("refitted", "refitted"))
            for label, what in (("t⁰", "presences"), ("t⁰, A⁰", "presences and poses"))
        ),
    ),
    Better(
        "Trained and tested on digits turned further, t⁰ tells less of their classes (Fig. 4)",
        _PARTS, _TURNED,
        higher=((
            _read("upright", "refitted", "presences", "0"),
            _read("up to 180 degrees", "refitted", "presences", "180"),
        ),),
    ),
    Better(
        "because training on turned digits makes wholes specialise less (Fig. 4): upright training "
        "is better at either angle",
        _PARTS, _TURNED, higher=(
            _read("t⁰ of upright digits", "refitted", "presences", "0"),
            _read("turned by up to 180 degrees", "refitted", "presences", "180"),
        ),
    ),
    Within(
        "Many templates are nearly affine copies of another (Fig. 5 to 7; a quarter is many here)",
        (_PARTS,), (replace(COPIES, label="share of copies (by chance 0.05)"),),
        least=0.25,
    ),
    Better(
        "Normal poses have a tighter bound after points than from the start (2.3)",
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


#: What the papers' tables are read to show, with a bound that holds or a control beside it.
CONCLUSIONS: tuple[Claim, ...] = (
    *(
        Better(
            f"A TVAE, {recipe.about}, has a higher likelihood than the VAE ({told})",
            recipe, vae, higher=_LIKELIHOOD,
        )
        for recipes, told in (*_OF_MNIST, (mnist.FAST, "ours: Table 1, fast"))
        for vae in (column(recipes, "vae"),)
        for recipe in (column(recipes, "tvae-1_2"), column(recipes, "tvae-5_36"))
    ),
    *(
        conclusion
        for recipes, told in _OF_MNIST
        for bubble in (column(recipes, "bubble-5_36"),)
        for conclusion in (
            Better(
                f"A Bubble has a higher likelihood than the VAE (6.3, {told})",
                bubble, column(recipes, "vae"), higher=_LIKELIHOOD,
            ),
            Better(
                "A TVAE with L = 5/36 has a higher likelihood and a lower E_eq than the Bubble "
                f"(6.3, {told})",
                column(recipes, "tvae-5_36"), bubble, higher=_LIKELIHOOD, lower=(ERROR,),
            ),
        )
    ),
    *(
        Better(
            f"{told} has a lower E_eq than the VAE (6.3): {data}",
            column(recipes, model), column(recipes, "vae"), lower=(ERROR,),
        )
        for data, recipes, bubble in (
            ("MNIST, as released", mnist.FINAL, "bubble-5_36"),
            ("sprites, as released", dsprites.FINAL, "bubble-1_3"),
            ("MNIST, to the letter", mnist.TO_THE_LETTER, "bubble-5_36"),
            ("sprites, to the letter", dsprites.TO_THE_LETTER, "bubble-1_3"),
        )
        for told, model in ((_L_ZERO, "tvae-0"), ("A Bubble", bubble))
    ),
    *(
        Better(
            f"{told} has a lower CapCorr than the VAE, for every factor (6.3, {where})",
            column(recipes, name), column(recipes, "vae"), lower=CAPCORR,
        )
        for recipes, where in _OF_SPRITES
        for told, name in (("A Bubble", "bubble-1_3"), (_L_ZERO, "tvae-0"))
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
        why="E_eq is mostly as low before the first step: where mu is far from 0, latents that "
        "share variances are alike in any network. Traversals and their gain tell what was learned",
    ),
    Learned(
        "Capsules that roll with the input are learned: CapCorr is high (Tables 2, 5, L > 0)",
        (*dsprites.FINAL[:3], *dsprites.TO_THE_LETTER[:3], *_ROLLING), CAPCORR,
        why="CapCorr, too, is mostly what the structure gives an untrained network",
    ),
    *(
        Within(
            f"Of a TVAE that sees {seen} frames, the rest can be decoded by a roll (6.3, Fig. 4), "
            f"at least as well as by the mean frame: {data}",
            (recipe,), _gains(*factors), least=0.0, control=True,
        )
        for data, seen, recipe, factors in (
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
        "Trained on single motions, TVAEs can be rolled through combined ones (B.4), at least as "
        "well as by the mean frame",
        (mnist.LONG, _SEES_MOST, column(mnist.FINAL, "tvae-5_36"),
         column(mnist.TO_THE_LETTER, "tvae-5_36")),
        (COMBINED_GAIN,), least=0.0, control=True,
    ),
)  # fmt: skip
