"""The numbers that the paper prints, the names and strokes of its methods, and how numbers over seeds are written.

Most of its results are figures without numbers: only what its text and its one table say is here.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from feduhb.report.drawing import GREY, OWN, Stroke
from feduhb.report.words import NOTHING, format_number, format_percent
from feduhb_reproduction.cells import ORIGINAL, RETRAIN
from feduhb_reproduction.federations import Federation
from feduhb_reproduction.measures import Reached, Spread, Stops

Printed = Mapping[str, Mapping[str, str]]  # by data set and method

CORRECTED = "fedrecover-corrected"
METHODS = (RETRAIN, "federaser", "fedrecover", CORRECTED, "feduhb")
LABELS = {
    ORIGINAL: "original",
    RETRAIN: "Retrain",
    "federaser": "FedEraser",
    "fedrecover": "FedRecover",
    CORRECTED: "FedRecover, corrected",
    "feduhb": "FedUHB",
    "feduhb-on": "FedUHB, rule off",
}
ROWS = {**LABELS, "feduhb": "FedUHB, under its rule"}  # where a table must say which run of FedUHB it means
DEEP = "#45107F"  # violet, dark enough to be seen on FedRecover's
STROKES = {
    ORIGINAL: Stroke(GREY, "dashed"),
    RETRAIN: Stroke(OWN[RETRAIN], "solid", wide=True),
    "federaser": Stroke(OWN["federaser"], "solid"),
    "fedrecover": Stroke(OWN["fedrecover"], "solid"),
    CORRECTED: Stroke(DEEP, "dotted"),
    "feduhb": Stroke(OWN["feduhb"], "solid"),
    "feduhb-on": Stroke(OWN["feduhb"], "dashed"),
}
SECONDS: Mapping[str, Mapping[str, float]] = {  # "of each unlearning round"
    "mnist": {RETRAIN: 1.26, "federaser": 1.47, "fedrecover": 2.00, "feduhb": 0.77},
    "cifar10": {RETRAIN: 16.89, "federaser": 18.58, "fedrecover": 20.01, "feduhb": 12.51},
}
LAMBDA: Mapping[str, Mapping[float, tuple[int, float]]] = {  # rounds and accuracy
    "mnist": {0.4: (30, 0.9386), 0.6: (22, 0.9302)}
}
GOAL = {"mnist": 0.93}  # the accuracy that the paper's figures come to
ACCURACY: Printed = {
    "mnist": {"feduhb": "93.02% (22 rounds)"},
    "cifar10": {"fedrecover": "around 30%", "feduhb": "best of the four"},
}
REACHED: Printed = {
    "mnist": {RETRAIN: "slow", "federaser": "slow", "fedrecover": "quick, not optimal", "feduhb": "about 20"}
}
MISR: Printed = {
    "mnist": {
        RETRAIN: "23.9%",
        "federaser": "close to 50%",
        "fedrecover": "close to 50%",
        "feduhb": "under these two",
    },
    "cifar10": {"feduhb": "better than Retrain"},
}
ASR: Printed = {
    "mnist": {"feduhb": "3.35%"},
    "cifar10": {RETRAIN: "under the other two", "feduhb": "under the other two"},
}


LARGE = 1e6  # from here on a number is written with an exponent
PLUS = "Means over the seeds ± their standard deviation; no ± with one seed, or if all agree."

RULED = "“FedUHB, under its rule” ends where the stop rule fires; “rule off” is the same run, continued to the last round."


def format_shares(spread: Spread) -> str:
    """Return shares as 93.2% ± 0.4, with the spread in points."""
    return _format_spread(spread, format_percent, lambda sd: f"{100 * sd:.1f}")


def format_numbers(spread: Spread) -> str:
    """Return numbers to three digits."""
    return _format_spread(spread, lambda mean: format_number(mean) if abs(mean) < LARGE else f"{mean:.3g}", lambda sd: f"{sd:.2g}")  # fmt: skip


def format_counts(spread: Spread) -> str:
    """Return whole numbers, with a digit after the point if seeds differ."""
    same = len(set(spread.values)) == 1
    return _format_spread(
        spread, lambda mean: f"{mean:,.0f}" if same else f"{mean:,.1f}", lambda sd: f"{sd:.1f}"
    )


def format_points(spread: Spread) -> str:
    """Return differences of shares in points, with their sign."""
    return _format_spread(spread, lambda mean: f"{100 * mean:+.1f}", lambda sd: f"{100 * sd:.1f}")


def format_ratio(one: Spread, other: Spread) -> str:
    """Return the ratio of two means."""
    return NOTHING if one.mean is None or not other.mean else f"{one.mean / other.mean:.2f}"


def format_reached(found: Reached) -> str:
    """Return the mean round at which seeds reached a goal, and how many did if not all."""
    if not found.n:
        return NOTHING
    if not found.hits:
        return "never"
    return format_counts(found.spread) + ("" if found.all else f" ({found.hits} of {found.n})")


def format_fired(found: Stops) -> str:
    """Return in how many seeds a rule fires."""
    return f"{found.fires} of {found.n}" if found.n else NOTHING


def format_seeds(federation: Federation, run: str) -> str:
    """Return the number of seeds behind a run's numbers, and how many broke off."""
    whole, broken = len(federation.tracks(run)), len(federation.failed(run))
    return f"{whole}" + (f" ({broken} broke off)" if broken else "")


def _format_spread(spread: Spread, mean: Callable[[float], str], sd: Callable[[float], str]) -> str:
    if spread.mean is None:
        return NOTHING
    return mean(spread.mean) + ("" if spread.sd is None or not spread.sd else f" ± {sd(spread.sd)}")
