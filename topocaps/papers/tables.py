"""The papers' tables and figures, by name. Recipes are the rows, quantities the columns."""

from __future__ import annotations

from topocaps.papers import quantities
from topocaps.papers.recipes import dsprites, mnist, part_whole, sprites
from topocaps.papers.recipes.columns import column
from topocaps.papers.rolling_tables import ROLLING_TABLES
from topocaps.papers.table import Table
from topocaps.study.evaluation.topographic import ERROR, GAIN
from topocaps.study.quantity import Quantity
from topocaps.study.recipe import BaseRecipe, Recipe

_CAPCORR = (*quantities.CAPCORR, ERROR, GAIN)
_PROBE_NOTE = (
    "Test accuracy of a linear probe on the parameters of q, fitted on the upright training "
    "images. Test digits are turned by up to the stated angle in either direction. *affnist-style* "
    "digits are MNIST digits that we moved as affNIST moves its digits. The paper uses affNIST."
)


def _ending_in(*endings: str) -> tuple[BaseRecipe, ...]:
    """Return the recipes of Tables 4 and 5 whose names have these endings."""
    return tuple(r for r in (*mnist.FIRST, *dsprites.FIRST) if r.name.endswith(endings))


def _table3(norms: tuple[Recipe, ...], others: tuple[Recipe, ...]) -> Table:
    """Return Table 3 in one edition; ``others`` are the recipes of Table 4 in this edition."""
    edition = norms[0].edition
    weight_norm = column(others, "tvae-5_36")
    return Table(
        f"Table 3 (submission): norms of weights, MNIST, edition `{edition}`",
        (*norms, weight_norm, column(others, "vae")),
        quantities.LIKELIHOOD,
        seeds=1,
        claims={
            weight_norm.name: {
                "log_px_paper": (-184.9, 0.8),
                "equivariance_error": (3137.9, 6.4),
            }
        },
    )


def _submitted(
    name: str,
    data: str,
    text: tuple[Recipe, ...],
    released: tuple[Recipe, ...],
    numbers: tuple[Quantity, ...],
) -> dict[str, Table]:
    """Return a table of the submission in both of its editions."""
    title = f"Table {name[-1]} (submission): {data}, all models, edition"
    return {
        f"{name}{ending}": Table(f"{title} `{recipes[0].edition}`", recipes, numbers, seeds=1)
        for ending, recipes in (("", text), ("-released", released))
    }


_COMBINED, _PERSPECTIVE = mnist.TOGETHER
_OF_PARTS = (
    part_whole.DIGITS, part_whole.AFFNIST,
    part_whole.PLAIN, part_whole.PLAIN_LARGER, part_whole.PLAIN_AFFNIST,
)  # fmt: skip

TABLES = {
    "table1": Table(
        "Table 1 (camera-ready): MNIST, as released",
        mnist.FINAL,
        quantities.LIKELIHOOD,
        note="Settings are those of the released code. The table [settings](#settings) changes one "
        "of them at a time. `table1-letter` has the settings of the paper's text.",
    ),
    "table2": Table(
        "Table 2 (camera-ready): sprites for dSprites, as released",
        (*dsprites.FINAL, dsprites.OTHER_BUBBLE),
        _CAPCORR,
        note="The paper has a Bubble with L = 1/3 and does not state its K. The released script "
        "has L = 1/6 and K = 5. It is not known which of the two gave the paper's numbers.",
    ),
    "table3": _table3(mnist.NORMS, mnist.FIRST),
    "table3-released": _table3(mnist.NORMS_RELEASED, mnist.FIRST_RELEASED),
    **_submitted("table4", "MNIST", mnist.FIRST, mnist.FIRST_RELEASED, quantities.LIKELIHOOD),
    **_submitted(
        "table5", "sprites for dSprites", dsprites.FIRST, dsprites.FIRST_RELEASED, _CAPCORR
    ),
    "settings": Table(
        "The effect of each setting: Table 1 with one setting changed",
        (*mnist.FINAL, *mnist.SETTINGS),
        quantities.LIKELIHOOD,
        note="A row whose name ends in a setting differs from the released row in this setting "
        "only. Rows of `letter` have the decoder's initialisation, the epsilon and the centre of "
        "the text.",
        seeds=1,
    ),
    "table1-middle": Table(
        "Table 1 as released, but digits turn about the middle of the image",
        mnist.ABOUT_THE_MIDDLE,
        quantities.LIKELIHOOD,
        seeds=1,
    ),
    "table1-letter": Table(
        "Table 1 to the letter of the paper's text: MNIST",
        mnist.TO_THE_LETTER,
        quantities.LIKELIHOOD,
        note="Initial weights of the decoder are drawn from U(−1/√m, 1/√m), where m is the number "
        "of inputs (A.2). W has the full K at every frame (Eq. 9). Epsilon is 0. Digits turn about "
        "the middle of the image. Gradients are clipped if L = 0.",
    ),
    "table2-letter": Table(
        "Table 2 to the letter of the paper's text: sprites for dSprites",
        dsprites.TO_THE_LETTER,
        _CAPCORR,
        note="Settings are those of `table1-letter`, but gradients of every TVAE are clipped.",
    ),
    "table2-clip": Table(
        "Table 2 as released, with gradients clipped", dsprites.CLIPPED, _CAPCORR, seeds=1
    ),
    "zero": Table(
        "L = 0 with settings that may explain its column: MNIST",
        (column(mnist.FINAL, "tvae-0"), *mnist.ZERO),
        quantities.LIKELIHOOD,
        note="The submission states K = 9, the camera-ready does not state K. The released code "
        "has K = 3 and no norm.",
        seeds=1,
    ),
    "zero-sprites": Table(
        "L = 0 with settings that may explain its column: sprites",
        (column(dsprites.FINAL, "tvae-0"), dsprites.CLIPPED[3], *dsprites.ZERO),
        _CAPCORR,
        seeds=1,
    ),
    "figure1": Table("Figure 1: rotation and hue together", (_COMBINED,), (GAIN, ERROR), seeds=1),
    "figure3": Table(
        "Figure 3: a torus",
        (mnist.TORUS, mnist.PLAIN_TORUS, mnist.RELEASED_TORUS),
        quantities.MAP,
        picture="torus",
        note="*neighbours of one class*: among neighbouring sites with different images, the share "
        "whose digits have the same class. *shuffled*: the same share after a permutation of the "
        "classes. *p*: the share of permutations that reach the unshuffled value.",
    ),
    "figure4": Table(
        "Figure 4: traversals",
        (mnist.LONG, *_ending_in("mnist/submission/tvae-13_36", "sprites/submission/tvae-1_3")),
        (GAIN,),
        seeds=1,
    ),
    "figure5": Table("Figure 5: CapCorr against L", dsprites.FIRST, quantities.CAPCORR, seeds=1),
    "traversals": Table(
        "Figures 6 to 17: traversals", (*mnist.FIRST, *dsprites.FIRST), (GAIN,), seeds=1
    ),
    "figure18": Table("Figure 18: rotation and hue together", (_COMBINED,), (GAIN, ERROR), seeds=1),
    "figure19": Table("Figure 19: perspective and hue", (_PERSPECTIVE,), (GAIN, ERROR), seeds=1),
    "generalisation": Table(
        "Generalisation (6.3, B.4): trained on single motions, traversing combined ones",
        (
            mnist.LONG,
            *mnist.FINAL,
            *mnist.TO_THE_LETTER,
            *_ending_in("mnist/submission/tvae-13_36"),
        ),
        (GAIN, quantities.COMBINED_GAIN),
        picture="combined",
        note="The first model is that of B.4, with a window of 13 frames and no norm. Models are "
        "trained on single motions at all scales, and tested on 500 sequences of combined motions "
        "at scale 1. Gains of models with a window of 13 frames are measured outside 13 frames, "
        "gains of the others outside 5. The two do not compare.",
        seeds=1,
    ),
    "probes": Table(
        "Linear probes on t: the digit, from few and from many labels",
        (*mnist.FINAL, *mnist.FAST),
        quantities.PROBES,
        note="Test accuracy on one frame of a moving digit, in any pose and hue. The header states "
        "the number of labelled training sequences. *pooled*: probes on the mean, the standard "
        "deviation and the maximum of every capsule, which no roll changes.",
    ),
    "speed": Table(
        "Any speed (C.1): sprites that move half a site or two sites per frame",
        sprites.SPEED,
        quantities.TRAVERSALS,
    ),
    "open": Table(
        "Open ends (C.2): sprites that grow, in sequences that are not closed",
        sprites.OPEN,
        (GAIN,),
    ),
    "causal": Table(
        "Causal (Eq. 22): only the past",
        sprites.CAUSAL,
        (*quantities.TRAVERSALS, quantities.LIKELIHOOD[3]),
        note="Each model predicts the four frames outside its window. For the causal model they "
        "are 1 to 4 frames after the last frame of the window, for the centred model 6 to 9 frames "
        "from the middle of the window. As sequences are closed, all four are one or two frames "
        "away from a frame of the window.",
    ),
    "axes": Table(
        "Several axes (C.3): x and y on capsules of two axes",
        sprites.AXES,
        (*quantities.TRAVERSALS, *quantities.OWN_AXES),
        note="*along its own axis*: among the sequences in which x (or y) moves, the share whose "
        "latents move along the axis of this factor and not along the other. Capsules learn which "
        "axis belongs to which factor. Latents of the untrained model move along neither.",
    ),
    "learned": Table(
        "Learned W and velocities (section 7)",
        sprites.LEARNED,
        (*quantities.TRAVERSALS, quantities.LIKELIHOOD[3]),
        picture="learned",
        note="W is learned from the bound, which rewards likely frames, but not rolls. A learned W "
        "can have a higher bound and a lower gain.",
    ),
    "sparse": Table(
        "Sparsity between capsules (section 7)",
        sprites.SPARSE,
        (quantities.SPECIALISATION, *quantities.TRAVERSALS[:3], quantities.LIKELIHOOD[3]),
        note="*specialisation*: 0 if every capsule moves equally for every factor, 1 if each moves "
        "for one factor only.",
    ),
    "missing": Table(
        "Missing frames: nats of a frame that was removed",
        (sprites.TVAE, sprites.PLAIN),
        quantities.MISSING,
        note="Costs in nats of three predictions of a missing frame. *filled*: decoded from t of "
        "the nearest present frame, rolled (for the VAE, not rolled). *held*: the same without a "
        "roll. *mean*: the mean of the present frames. Frames that equal another frame of the "
        "sequence do not count.",
        picture="filled",
    ),
    "fast": Table("The fast recipe: two models of Table 1", mnist.FAST[:2], quantities.LIKELIHOOD),
    "capsules-table1": Table(
        "Parts and wholes, Table 1: linear probes fitted on upright digits",
        _OF_PARTS,
        quantities.probed("accuracy"),
        picture="parts",
        note=f"{_PROBE_NOTE} Features are whitened. The paper does not state the number of latents "
        "of its VAE. 32 was chosen because its numbers are near the paper's.",
    ),
    "capsules-refitted": Table(
        "Parts and wholes, Table 1 again: linear probes fitted on digits moved as in the test",
        _OF_PARTS,
        quantities.probed("refitted"),
        picture="parts",
        claims={
            recipe.name: {"refitted": recipe.claims["accuracy"]}
            for recipe in (part_whole.DIGITS, part_whole.PLAIN, part_whole.PLAIN_LARGER)
        },
        note="The paper does not state how its probe was fitted, so both tables show its numbers.",
    ),
    "capsules-figure3": Table(
        "Parts and wholes, Figure 3: free-form inference",
        (part_whole.DIGITS,),
        quantities.FREE_FORM,
        picture="turned",
        note="Optimisation takes 100 steps from the encoder's q. There are 3,000 test digits, "
        "upright or turned by up to 90 degrees. Poses are points, so the entropy of q(A) is "
        "missing: the objective is not a bound on log p(x), and does not compare with a bound. "
        "Probes on t⁰ are tested on upright digits. *same probe* is fitted on amortised latents, "
        "*refitted* on optimised ones.",
    ),
    "capsules-figure4": Table(
        "Parts and wholes, Figure 4: trained and probed on digits turned by up to an angle",
        (*part_whole.ROTATED, *part_whole.PLAIN_ROTATED),
        quantities.ROTATED,
        picture="parts",
        note="Probes are refitted. Only the column of the angle that a model was trained with "
        "belongs to Figure 4.",
    ),
    "capsules-figures5-7": Table(
        "Parts and wholes, Figures 5 to 7: templates and arrangements",
        (part_whole.DIGITS, part_whole.ROTATED[-1]),
        quantities.TEMPLATES,
        picture="templates",
        note="*nearest affine copy*: the squared error of the best affine copy of another "
        "template, relative to the template's energy; the median over templates. *share of "
        "copies*: the share of templates with a smaller error than 95 % of as many random strokes "
        "have. *majority vote*: how often the whole with the largest presence predicts the class "
        "of an upright digit. *MSE* is that of digits moved as in training. Shares count all "
        "templates, including blank ones. Shares of the templates that are not blank are higher.",
    ),
    "capsules-poses": Table(
        "Parts and wholes, section 2.3: Normal poses from the start, or after points",
        (part_whole.NORMAL, part_whole.TUNED),
        quantities.POSES,
        picture="parts",
        note="Both models are trained for the same number of epochs: "
        f"{part_whole.NORMAL.training.epochs} with Normal poses, or "
        f"{part_whole.DIGITS.training.epochs} with point poses and then "
        f"{part_whole.TUNED.training.epochs} with Normal poses. Both ELBOs are bounds.",
    ),
    "capsules-turns": Table(
        "Beyond the paper: scenes with a rotation",
        (part_whole.DIGITS, part_whole.TURNING),
        quantities.probed("accuracy"),
        picture="turned",
        note=f"{_PROBE_NOTE} Features are whitened.",
    ),
    **ROLLING_TABLES,
}

#: Names of groups of tables.
GROUPS: dict[str, tuple[str, ...]] = {
    "extensions": ("speed", "open", "causal", "axes", "learned", "sparse", "missing"),
    "rolling": tuple(
        name for name in ROLLING_TABLES if name.startswith("rolling") and not name.endswith("small")
    ),
    "letters": ("letters-models", "letters-settings", "letters-speeds"),
}
