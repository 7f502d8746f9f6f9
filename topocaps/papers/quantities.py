"""The numbers of the papers' tables and claims.

What the paper and its released code call log p(x) has a longer label in tables, where the bound
stands beside it.
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
    label="gain of t as it is, not rolled",
    spread_like=GAIN.key,  # of which few runs have seeds
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
    Quantity(("missing", key, way), way, 0, group=f"{share} missing")
    for key, share in (("0.1", "10 %"), ("0.3", "30 %"), ("0.5", "50 %"))
    for way in ("filled", "held", "mean")
)


def _probes(*reads: str) -> tuple[Quantity, ...]:
    return tuple(
        Quantity(("probes", read, str(labels)), f"{labels:,} labels", 3, group=read)
        for read in reads
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
    """Gains by the number of visible frames, over all factors and by factor; bounds; costs.

    Args:
        factors: factors that have a line of their own.
        repeated: factors that have a line on which hidden frames that equal a visible one count.
        speeds: speeds, without sign, that have a line for each of these factors, or one line if
            there are no factors.
        returning: of these speeds, those that have lines on which hidden frames that equal a
            visible one count.
        poses: lines of hidden frames by pose, {line: "in_training" or "not_in_training"}.
    """
    lines: dict[str, tuple[str, ...]] = {"": (), **{f: ("by_factor", f) for f in factors}}
    lines |= {f"{f}, all frames": ("all_frames", "by_factor", f) for f in repeated}
    lines |= {line: (key, "gain") for line, key in (poses or {}).items()}
    of_factors: dict[str, tuple[str, ...]] = {f"{f}, ": ("by_factor", f) for f in factors}
    for name, path in (of_factors or {"": ("gain",)}).items():
        for speed in speeds:
            line, at = f"{name}speed {speed}", ("by_speed", str(speed))
            lines[line] = (*at, *path)
            if speed in returning:
                lines[f"{line}, all frames"] = (*at, "all_frames", *path)
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
    if path[-2:-1] == ("by_factor",):
        return (*path[:-2], "intervals", path[-1])
    return (*path[:-1], "interval")


#: What probes read of a model: labels, and keys of the results.
LATENTS = (
    ("t⁰", "presences"), ("t⁰, A⁰", "presences and poses"), ("μ, σ", "posterior"),
)  # fmt: skip
_MOVES = ("0", "45", "90", "135", "180", "affnist-style", "affnist")


def probed(protocol: str) -> tuple[Quantity, ...]:
    """Accuracies of probes that are fitted on upright digits, or ``refitted`` on moved ones."""
    return tuple(
        Quantity((protocol, key, moves), f"{moves}{'°' * moves.isdigit()}", 3, group=label)
        for label, key in LATENTS
        for moves in _MOVES
    )


def free_form(label: str, *key: str, digits: int = 3) -> Quantity:
    """A number of free-form inference."""
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
