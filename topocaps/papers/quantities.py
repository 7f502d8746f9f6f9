"""The quantities of the papers' tables and claims.

Tables show the paper's log p(x) beside a lower bound, so its label there names the estimator.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from topocaps.papers.recipes.part_whole import ANGLES
from topocaps.study.evaluation.part_whole import MSE as MSE
from topocaps.study.evaluation.topographic import ERROR, GAIN, capcorr_of, gain_of, own_axis_of
from topocaps.study.quantity import Quantity

SPRITE_FACTORS = ("x", "y", "orientation", "scale")

LOG_PX_PAPER = Quantity(("log_px_paper",), "log p(x)", 1)
LOG_PX_BOUND = Quantity(("log_px",), "lower bound, 10 samples", 1)
ELBO = Quantity(("elbo",), "ELBO", 1)
EARLY_ELBO = Quantity(("elbo_by_epoch", "9"), "ELBO after 10 epochs", 1)
ERROR_SQUARED = Quantity(("equivariance_error_squared",), "E_eq of t²", 0)
SMOOTHNESS = (
    Quantity(("smoothness", "t"), "correlation of neighbours", 2),
    Quantity(("smoothness", "t_squared"), "of their squares", 2),
)
CAPCORR = tuple(map(capcorr_of, SPRITE_FACTORS))
AGREEMENT = tuple(Quantity(("capcorr_agreement", f), f, 2) for f in SPRITE_FACTORS)
HELD = replace(
    GAIN,
    key=("held", *GAIN.key),
    label="gain of t without a roll",
    spread_like=GAIN.key,  # few models have several seeds of it
)
COMBINED_GAIN = replace(
    GAIN, key=("generalisation", *GAIN.key), label="gain, rotation and hue together"
)
SPECIALISATION = Quantity(("specialisation",), "specialisation", 3)
MAP_EXCESS = Quantity(("map", "excess"), "more than shuffled", 2)
COPIES = Quantity(("copies", "share"), "share of copies", 2)

LIKELIHOOD = (
    replace(LOG_PX_PAPER, label="log p(x), paper's estimator"),
    ERROR,
    GAIN,
    replace(LOG_PX_BOUND, label="log p(x) ≥, K = 10"),
)
MAP = (
    Quantity(("map", "agreement"), "neighbours of one class", 2),
    Quantity(("map", "shuffled"), "when shuffled", 2),
    MAP_EXCESS,
    Quantity(("map", "p_value"), "p, largest", 4, largest=True),
    Quantity(("map", "images"), "images on its sites", 0),
    LIKELIHOOD[0],
)
TRAVERSALS = (gain_of("x"), gain_of("y"), GAIN, ERROR)
OWN_AXES = (own_axis_of("x"), own_axis_of("y"))
MISSING = tuple(
    Quantity(("missing", key, method), method, 0, group=f"{share} missing")
    for key, share in (("0.1", "10 %"), ("0.3", "30 %"), ("0.5", "50 %"))
    for method in ("filled", "held", "mean")
)


def _probes(*features: str) -> tuple[Quantity, ...]:
    """Return accuracies of probes of moving digits, with a line for each kind of features."""
    return tuple(
        Quantity(("probes", name, str(labels)), f"{labels:,} labels", 3, group=name)
        for name in features
        for labels in (10, 100, 1000, 10_000)
    )


PROBES = _probes("t", "pooled")
PROBES_OF_CODES = _probes("t", "power", "t of one frame", "power of one frame", "pixels")

BOUNDS = tuple(
    Quantity(
        ("bounds", samples, "value"), f"log p(x) ≥, K = {samples}", 1,
        interval=("bounds", samples, "interval"),
    )
    for samples in ("1", "10", "100")
)  # fmt: skip
COST = (
    Quantity(("seconds_each",), "seconds of training", 0, control=False),
    Quantity(("parameters",), "parameters", 0, control=False),
)


def predictions(
    factors: Sequence[str] = (),
    repeated: Sequence[str] = (),
    speeds: Sequence[int] = (),
    returning: Sequence[int] = (),
    poses: Mapping[str, str] | None = None,
) -> tuple[Quantity, ...]:
    """Return the columns of a table of predictions: gains by visible frames, bounds and costs.

    The first line of a model has gains over all factors. Arguments add further lines.

    Args:
        factors: factors that have a line.
        repeated: factors that have an additional line, in which hidden frames that equal a visible
            one count.
        speeds: absolute speeds that have a line for each of ``factors``, or a single line if there
            are no factors.
        returning: those of ``speeds`` that have additional lines, in which hidden frames that equal
            a visible one count.
        poses: lines for hidden frames by their pose, {label: "in_training" or "not_in_training"}.
    """
    lines: dict[str, tuple[str, ...]] = {"": (), **{f: ("by_factor", f) for f in factors}}
    lines |= {f"{f}, all frames": ("all_frames", "by_factor", f) for f in repeated}
    lines |= {line: (key, "gain") for line, key in (poses or {}).items()}
    of_factors: dict[str, tuple[str, ...]] = {f"{f}, ": ("by_factor", f) for f in factors}
    for name, path in (of_factors or {"": ("gain",)}).items():
        for speed in speeds:
            line, key = f"{name}speed {speed}", ("by_speed", str(speed))
            lines[line] = (*key, *path)
            if speed in returning:
                lines[f"{line}, all frames"] = (*key, "all_frames", *path)
    return (
        *(
            Quantity(
                ("visible", count, *(path or ("gain",))), f"{count} visible", 2, group=line,
                interval=("visible", count, *_interval(path)), control=not path,
            )
            for line, path in lines.items()
            for count in ("3", "5", "9", "13")
        ),
        *BOUNDS,
        *COST,
    )  # fmt: skip


def _interval(path: tuple[str, ...]) -> tuple[str, ...]:
    """Return the path of the interval of the gain with this path."""
    if path[-2:-1] == ("by_factor",):
        return (*path[:-2], "intervals", path[-1])
    return (*path[:-1], "interval")


#: Labels of the features of probes, and their keys in results.
LATENTS = (
    ("t⁰", "presences"), ("t⁰, A⁰", "presences and poses"), ("μ, σ", "posterior"),
)  # fmt: skip
_MOVES = ("0", "45", "90", "135", "180", "affnist-style", "affnist")


def probed(protocol: str) -> tuple[Quantity, ...]:
    """Return accuracies of probes on moved digits.

    Args:
        protocol: "accuracy" if probes are fitted on upright digits, "refitted" if on moved ones.
    """
    return tuple(
        Quantity((protocol, key, moves), f"{moves}{'°' * moves.isdigit()}", 3, group=label)
        for label, key in LATENTS
        for moves in _MOVES
    )


def free_form(label: str, *key: str, digits: int = 3) -> Quantity:
    """Return a quantity of free-form inference."""
    return Quantity(("free_form", *key), label, digits)


FREE_FORM = (
    free_form("value (no bound), turned", "turned", "bound", digits=0),
    free_form("optimised", "turned", "bound, optimised", digits=0),
    free_form("MSE, turned", "turned", "mse", digits=4),
    free_form("optimised", "turned", "mse, optimised", digits=4),
    free_form("t⁰, amortised", "amortised", "presences"),
    free_form("optimised, same probe", "optimised, same probe", "presences"),
    free_form("optimised, refitted", "optimised, refitted", "presences"),
)
ROTATED = tuple(
    Quantity(("refitted", key, str(angle)), f"{angle}°", 3, group=label)
    for angle in ANGLES
    for label, key in LATENTS
)
TEMPLATES = (
    Quantity(("copies", "nearest"), "nearest affine copy", 3),
    Quantity(("copies", "nearest_of_strokes"), "of random strokes", 3),
    COPIES,
    Quantity(("vote",), "majority vote", 2),
    MSE,
)
POSES = (
    ELBO,
    MSE,
    *(Quantity(("accuracy", key, "0"), label, 3) for label, key in LATENTS[:2]),
)
