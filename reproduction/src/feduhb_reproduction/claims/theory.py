"""Claims on the theorem, and on what storing and sending cost."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise

from feduhb.report.words import format_number
from feduhb_reproduction.cells import RETRAIN
from feduhb_reproduction.claims.parts import (
    APPROXIMATE,
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
    judge_federations,
    list_federations,
    weigh_all,
)
from feduhb_reproduction.federations import Federation
from feduhb_reproduction.measures import UHB, sum_of
from feduhb_reproduction.theorem_page import Found
from feduhb_reproduction.words import LABELS

THEOREM, COST = "Theorem", "Storage and communication"
SETTLED = 0.1  # of the limit: how near a distance must be to have stabilised there
MEGA = 1e6
HISTORY = "history_bytes_read"
ASSUMED = (
    "under its assumptions, which a convolutional network with local epochs does not meet; the bound is loose"
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
    return Judged(f"{head}\nUnder the bound in every round", HOLDS, ASSUMED, "under the bound in every round")


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


def judge_stored(evidence: Evidence) -> Judged:
    """Judge whether FedUHB stores one model more, and the others a history."""
    lead = "MB that FedUHB keeps beside its model / of the history that FedEraser / FedRecover needs"
    brief = ("{} MB; FedEraser {}, FedRecover {}", ".1f", ",.0f", ",.0f")
    return judge_federations(list_federations(evidence), _see_stored, lead, brief)


def _see_stored(federation: Federation) -> Seen | None:
    model, own = _find_model_bytes(federation), sum_of(federation, UHB, HISTORY).mean
    rounds, whole = (
        sum_of(federation, "federaser", "rounds").mean,
        sum_of(federation, "fedrecover", HISTORY).mean,
    )
    if model is None or own is None or rounds is None or whole is None:
        return None
    values = model + own, rounds * federation.cells[0].place.clients * model, whole
    measured = join_values(format_number(each / MEGA) for each in values)
    fine = own == 0 and min(values[1:]) > model
    return Seen(fine, measured, values=tuple(each / MEGA for each in values))


def _find_model_bytes(federation: Federation) -> float | None:
    """Return the bytes of one model: what one client is sent in one round."""
    down, asked = sum_of(federation, UHB, "bytes_down").mean, sum_of(federation, UHB, "client_rounds").mean
    return down / asked if down and asked else None


def judge_sent(evidence: Evidence) -> Judged:
    """Judge whether FedUHB sends less than the methods that read a history."""
    lead = "MB sent, down and up, of FedUHB / FedEraser / FedRecover"
    brief = ("{} MB; FedEraser {}, FedRecover {}", ",.0f", ",.0f", ",.0f")
    return judge_federations(list_federations(evidence), _see_sent, lead, brief)


def _see_sent(federation: Federation) -> Seen | None:
    found = {
        run: sent_by for run in (UHB, *APPROXIMATE) if (sent_by := _sum_traffic(federation, run)) is not None
    }
    if len(found) < 3:
        return None
    measured = join_values(format_number(each / MEGA) for each in found.values())
    fewer = {LABELS[run]: found[UHB] < found[run] for run in APPROXIMATE}
    return weigh_all(fewer, measured, "than {} only", tuple(each / MEGA for each in found.values()))


def judge_overhead(evidence: Evidence) -> Judged:
    """Judge whether momentum raises what a round sends."""
    lead = "MB sent in a round of FedUHB / of Retrain"
    return judge_federations(
        list_federations(evidence), _see_overhead, lead, ("{} MB a round, Retrain {}", ".1f", ".1f")
    )


def _see_overhead(federation: Federation) -> Seen | None:
    found = [_sum_round(federation, run) for run in (UHB, RETRAIN)]
    ours, theirs = found
    if ours is None or theirs is None:
        return None
    measured = join_values(format_number(each / MEGA) for each in (ours, theirs))
    but = "storage rises by one model, communication does not"
    return Seen(True if ours > theirs else None, measured, but, (ours / MEGA, theirs / MEGA))


def _sum_round(federation: Federation, run: str) -> float | None:
    sent_by, rounds = _sum_traffic(federation, run), sum_of(federation, run, "rounds").mean
    return sent_by / rounds if sent_by is not None and rounds else None


def _sum_traffic(federation: Federation, run: str) -> float | None:
    down, up = (sum_of(federation, run, f"bytes_{way}").mean for way in ("down", "up"))
    return None if down is None or up is None else down + up


CLAIMS = [
    Claim(
        THEOREM, "III, Theorem 1",
        "The distance of FedUHB to Retrain is at most ρᵗ d₀ + α G (1 − ρᵗ) / ((1 − β)(1 − ρ))",  # noqa: RUF001
        "On a problem with known constants the distance is under the bound in every round, for every β.",
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
    Claim(
        COST, "I, II-B",
        "FedUHB stores one more model; methods with a history store far more",
        "FedUHB reads no history and keeps one more model, the previous one. The others need more storage: FedEraser the updates of every client in the rounds it "
        "keeps, FedRecover all updates and models.",
        judge_stored,
    ),
    Claim(
        COST, "I",
        "FedUHB communicates significantly less than methods with a history",
        "FedUHB sends fewer bytes, down and up, than FedEraser and FedRecover.",
        judge_sent,
    ),
    Claim(
        COST, "I, II-B",
        "The heavy ball raises storage and communication",
        "A round of FedUHB sends more bytes than one of Retrain. In part: FedUHB stores more, but does not send more.",
        judge_overhead,
    ),
]  # fmt: skip
