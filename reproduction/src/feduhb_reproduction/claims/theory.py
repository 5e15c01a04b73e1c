"""Claims on the theorem."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise

from feduhb.report.words import format_number
from feduhb_reproduction.claims.parts import (
    CONDITIONS,
    FAILS,
    HOLDS,
    NEITHER,
    UNKNOWN,
    Claim,
    Evidence,
    Judged,
    Seen,
    conclude,
    join_values,
)
from feduhb_reproduction.theorem_page import Found

THEOREM = "Theorem"
SETTLED = 0.1  # of the limit: how near a distance must be to have stabilised there
ASSUMED = (
    "for full gradients, as in its proof; not for stochastic ones, which its third assumption allows: if two clients have opposite gradients of length g, "
    "FedUHB draws one of them and Retrain the other, then after one round at β = 0 the distance is 2 α g and the bound α g; "  # noqa: RUF001
    "a convolutional network with local epochs meets neither; the bound is loose"
)
ON_THE_WAY = "during training; both end at the same optimum"
ONE_GOAL = (
    "both minimise one strongly convex loss, so their distance goes to 0; the limit is only an upper bound"
)
NO_MEASURE = "neither path ever saw the forgotten data, so their distance does not measure forgetting"
ALONE = "only β = 0 was run"


def judge_bounded(evidence: Evidence) -> Judged:
    """Judge whether the distance to Retrain stays under the paper's bound."""
    return _judge_theorem(evidence, _see_bounded)


def _see_bounded(found: Found) -> Judged:
    broken = [f"{run['beta']:g}" for run in found["runs"] if not run["under_paper"]]
    betas = join_values(f"{run['beta']:g}" for run in found["runs"])
    head = f"Softmax regression, {found['settings']['rounds']} rounds, β {betas}."
    if broken:
        return Judged(f"{head}\nAbove the bound with β {join_values(broken)}", FAILS, "", "above the bound")
    return Judged(
        f"{head}\nUnder the bound in every round", CONDITIONS, ASSUMED, "under the bound in every round"
    )


def judge_further(evidence: Evidence) -> Judged:
    """Judge whether a higher beta moves FedUHB further away from Retrain."""
    return _judge_theorem(evidence, _see_further)


def _see_further(found: Found) -> Judged:
    runs = sorted(found["runs"], key=lambda run: run["beta"])
    measured = join_values(f"{format_number(run['peak'])} (β {run['beta']:g})" for run in runs)
    rises = len(runs) > 1 and all(b["peak"] > a["peak"] for a, b in pairwise(runs))
    head = "Largest distance in any round."
    return Judged(
        f"{head}\n{measured}", HOLDS if rises else FAILS, ON_THE_WAY if rises else "", f"at most {measured}"
    )


def judge_stabilised(evidence: Evidence) -> Judged:
    """Judge whether the distance stabilises at the bound's limit."""
    return _judge_theorem(evidence, _see_stabilised)


def _see_stabilised(found: Found) -> Judged:
    runs = [run for run in found["runs"] if run["beta"] > 0]
    if not runs:
        return Judged("", UNKNOWN, ALONE)
    head = f"Distance after {found['settings']['rounds']} rounds (limit of the bound)."
    measured = join_values(
        f"{format_number(r['final'])} ({format_number(r['paper_limit'])}), β {r['beta']:g}" for r in runs
    )
    near = all(abs(run["final"] - run["paper_limit"]) <= SETTLED * run["paper_limit"] for run in runs)
    return Judged(
        f"{head}\n{measured}",
        HOLDS if near else FAILS,
        "" if near else ONE_GOAL,
        f"distance (limit) {measured}",
    )


def judge_telling(evidence: Evidence) -> Judged:
    """Judge whether the bound separates FedUHB from an untrained model."""
    return _judge_theorem(evidence, _see_telling)


def _see_telling(found: Found) -> Judged:
    start, runs = found["start_from_optimum"], [run for run in found["runs"] if run["beta"] > 0]
    if not runs:
        return Judged("", UNKNOWN, ALONE)
    head = f"Limit of the bound; the untrained model stands {format_number(start)} from the optimum."
    measured = join_values(f"{format_number(run['paper_limit'])} (β {run['beta']:g})" for run in runs)
    verdict, why = conclude({f"β = {run['beta']:g}": Seen(run["paper_limit"] < start, "") for run in runs})
    return Judged(
        f"{head}\n{measured}",
        verdict,
        why or NO_MEASURE,
        f"limit {measured}; untrained model {format_number(start)}",
    )


def _judge_theorem(evidence: Evidence, judge: Callable[[Found], Judged]) -> Judged:
    if evidence.theorem is None:
        return Judged("", UNKNOWN, "results/theorem/theorem.json is missing")
    return judge(evidence.theorem)


CLAIMS = [
    Claim(
        THEOREM, "III, Theorem 1",
        "The distance of FedUHB to Retrain is at most ρᵗ d₀ + α G (1 − ρᵗ) / ((1 − β)(1 − ρ))",  # noqa: RUF001
        "On a problem with known constants the distance is under the bound in every round, for every β, with full gradients and with stochastic ones. In part: with full "
        "gradients, which were measured. A counterexample decides on stochastic ones.",
        judge_bounded,
        NEITHER,
    ),
    Claim(
        THEOREM, "III",
        "A lower β keeps FedUHB nearer to Retrain",
        "The largest distance in any round rises with β.",
        judge_further,
        NEITHER,
    ),
    Claim(
        THEOREM, "III",
        "The distance stabilises at α G / ((1 − β)(1 − ρ))",  # noqa: RUF001
        f"The last distance is within {SETTLED:.0%} of that limit.",
        judge_stabilised,
        NEITHER,
    ),
    Claim(
        THEOREM, "III",
        "The bound shows that FedUHB unlearns effectively",
        "The bound's limit is below the distance of an untrained model.",
        judge_telling,
        NEITHER,
    ),
]  # fmt: skip
