"""Claims on the paper's numbers for λ. The paper gives neither the window nor the images of a client: both are searched."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import partial

from feduhb.report.words import join_names
from feduhb_reproduction.claims.parts import (
    CONDITIONS,
    FAILS,
    HOLDS,
    MNIST,
    REPLAYED,
    UNKNOWN,
    Claim,
    Evidence,
    Judged,
    Seen,
    format_share,
    judge_federations,
    name_federations,
    report_missing,
)
from feduhb_reproduction.federations import Federation, group_cells
from feduhb_reproduction.measures import Stops, replay_rule
from feduhb_reproduction.words import LAMBDA

RULE = "Stop rule"
SAME_ROUNDS, SAME_ACCURACY = 3, 0.01  # how near to the paper's numbers is the same
OPEN = "the paper gives neither the window nor the images of a client, and other numbers of images were not searched"


def judge_printed(evidence: Evidence, *, scale: float) -> Judged:
    """Judge whether lambda gives the paper's number of rounds and accuracy, in some federation and with some window."""
    found = name_federations(group_cells([*evidence.cells.get(MNIST, ()), *evidence.searched]))
    if not found:
        return report_missing(MNIST)
    lead = f"Rounds (accuracy) at λ {scale:g}, with a window of all rounds so far"
    brief = ("{} rounds, {}", ".1f", ".1%")
    judged = judge_federations(found, partial(_see_printed, scale=scale), lead, brief)
    tried = _replay_windows(found, scale)
    if judged.verdict in {HOLDS, UNKNOWN} or not tried:
        return judged
    misses = {name: _measure_miss(ends, scale) for name, ends in tried.items()}
    hits = [name for name, miss in misses.items() if miss <= 1]
    if hits:
        return replace(judged, verdict=CONDITIONS, why=f"for {join_names(hits)}")
    near = min(misses, key=misses.__getitem__)
    shown = f"{tried[near].executed.mean or 0.0:.1f} rounds and {format_share(tried[near].accuracy.mean)}"
    nearest = f"nearest: {near}, {shown}; up to {SAME_ROUNDS} rounds and {100 * SAME_ACCURACY:g} point away would count"
    if not evidence.searched:
        return replace(judged, verdict=UNKNOWN, why=f"{OPEN}; {nearest}")
    return replace(judged, verdict=FAILS, why=f"{_describe_search(found, len(tried))}; {nearest}")


def _replay_windows(found: Mapping[str, Federation], scale: float) -> dict[str, Stops]:
    """Return where the rule ends each federation with each window, from 2 rounds on and with all rounds so far."""
    return {
        f"{name} with a window of {'all rounds so far' if window is None else f'{window} rounds'}": ends
        for name, one in found.items()
        for window in (None, *range(2, one.rounds))
        if (ends := replay_rule(one, scale=scale, window=window)).n
    }


def _describe_search(found: Mapping[str, Federation], tried: int) -> str:
    sizes = [size for one in found.values() if (size := one.per_client) is not None]
    return (
        f"in none of {tried:,} combinations of {len(found)} federations ({min(sizes):,} to {max(sizes):,} images a client"
        f"{', and all' if len(sizes) < len(found) else ''}) with a window of 2 rounds or more, or all so far"
    )


def _measure_miss(ends: Stops, scale: float) -> float:
    """Return the distance from the paper's rounds and accuracy, in units of what still counts as the same."""
    rounds, accuracy = LAMBDA[MNIST][scale]
    apart = abs((ends.executed.mean or 0.0) - rounds) / SAME_ROUNDS
    return max(apart, abs((ends.accuracy.mean or 0.0) - accuracy) / SAME_ACCURACY)


def _see_printed(federation: Federation, *, scale: float) -> Seen | None:
    found = replay_rule(federation, scale=scale)
    if found.executed.mean is None or found.accuracy.mean is None:
        return None
    measured = f"{found.executed.mean:.1f} ({format_share(found.accuracy.mean)})"
    return Seen(_measure_miss(found, scale) <= 1, measured, values=(found.executed.mean, found.accuracy.mean))


CLAIMS = [
    Claim(
        RULE, "IV-B.5, Fig. 5b",
        f"MNIST: λ = {scale:g} gives {rounds} rounds and {accuracy:.2%}",
        f"The means are within {SAME_ROUNDS} rounds and {100 * SAME_ACCURACY:g} point of these in every federation, with a window of all rounds so far. "
        "In part: only in some federation with some window. Federations with other numbers of images were searched too (`results/search/`).",
        partial(judge_printed, scale=scale),
        REPLAYED,
    )
    for scale, (rounds, accuracy) in LAMBDA[MNIST].items()
]  # fmt: skip
