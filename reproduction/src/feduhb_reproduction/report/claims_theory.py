"""Claims on the theorem, and on what storing and sending cost."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise

from feduhb.report.words import number
from feduhb_reproduction.cells import RETRAIN
from feduhb_reproduction.report.claims_parts import (
    APPROXIMATE,
    FAILS,
    HOLDS,
    NEITHER,
    UNKNOWN,
    Claim,
    Evidence,
    Judged,
    Seen,
    concluded,
    every_data,
    everywhere,
    ordered,
    several,
)
from feduhb_reproduction.report.federations import Federation
from feduhb_reproduction.report.measures import UHB, total
from feduhb_reproduction.report.printed import LABELS
from feduhb_reproduction.theorem_page import Found

THEOREM, COST = "Theorem", "Storage and communication"
SETTLED = 0.1  # of the limit: how near a distance must be to have stabilised there
MEGA = 1e6
HISTORY = "history_bytes_read"
ASSUMED = "under its assumptions, which a convolutional network trained for local epochs does not meet; the bound is loose"
ON_THE_WAY = "on the way; in the end both are at one optimum"
ONE_GOAL = "both minimise one strongly convex loss, so that their distance goes to 0; the limit is only an upper bound"
NO_MEASURE = "neither path ever saw the forgotten data, so that their distance is no measure of forgetting"
ALONE = "only β = 0 was run"


def bounded(evidence: Evidence) -> Judged:
    """Judge whether the distance to Retrain stays under the paper's bound."""
    return _measured(evidence, _bounded)


def _bounded(found: Found) -> Judged:
    broken = [f"{run['beta']:g}" for run in found["runs"] if not run["under_paper"]]
    betas = ordered(f"{run['beta']:g}" for run in found["runs"])
    head = f"Softmax regression, {found['settings']['rounds']} rounds, β {betas}."
    if broken:
        return Judged(f"{head}\nAbove the bound with β {ordered(broken)}", FAILS, "", "above the bound")
    return Judged(f"{head}\nUnder the bound in every round", HOLDS, ASSUMED, "under the bound in every round")


def further(evidence: Evidence) -> Judged:
    """Judge whether a higher beta leads further from Retrain."""
    return _measured(evidence, _further)


def _further(found: Found) -> Judged:
    runs = sorted(found["runs"], key=lambda run: run["beta"])
    told = ordered(f"{number(run['peak'])} (β {run['beta']:g})" for run in runs)
    rises = len(runs) > 1 and all(b["peak"] > a["peak"] for a, b in pairwise(runs))
    head = "Largest distance on the way."
    return Judged(
        f"{head}\n{told}", HOLDS if rises else FAILS, ON_THE_WAY if rises else "", f"at most {told}"
    )


def stabilised(evidence: Evidence) -> Judged:
    """Judge whether the distance stabilises at the bound's limit."""
    return _measured(evidence, _stabilised)


def _stabilised(found: Found) -> Judged:
    runs = [run for run in found["runs"] if run["beta"] > 0]
    if not runs:
        return Judged("", UNKNOWN, ALONE)
    head = f"Distance after {found['settings']['rounds']} rounds (limit of the bound)."
    told = ordered(f"{number(r['final'])} ({number(r['paper_limit'])}), β {r['beta']:g}" for r in runs)
    near = all(abs(run["final"] - run["paper_limit"]) <= SETTLED * run["paper_limit"] for run in runs)
    return Judged(
        f"{head}\n{told}", HOLDS if near else FAILS, "" if near else ONE_GOAL, f"distance (limit) {told}"
    )


def telling(evidence: Evidence) -> Judged:
    """Judge whether the bound tells FedUHB from a model that was not trained at all."""
    return _measured(evidence, _telling)


def _telling(found: Found) -> Judged:
    start, runs = found["start_from_optimum"], [run for run in found["runs"] if run["beta"] > 0]
    if not runs:
        return Judged("", UNKNOWN, ALONE)
    head = f"Limit of the bound; the untrained model stands {number(start)} from the optimum."
    told = ordered(f"{number(run['paper_limit'])} (β {run['beta']:g})" for run in runs)
    verdict, why = concluded({f"β = {run['beta']:g}": Seen(run["paper_limit"] < start, "") for run in runs})
    return Judged(
        f"{head}\n{told}", verdict, why or NO_MEASURE, f"limit {told}; untrained model {number(start)}"
    )


def _measured(evidence: Evidence, judge: Callable[[Found], Judged]) -> Judged:
    if evidence.theorem is None:
        return Judged("", UNKNOWN, "results/theorem/theorem.json is not there")
    return judge(evidence.theorem)


def stored(evidence: Evidence) -> Judged:
    """Judge whether FedUHB stores one model more, and the others a history."""
    lead = "MB that FedUHB keeps beside its model / of the history that FedEraser / FedRecover needs"
    brief = ("{} MB; FedEraser {}, FedRecover {}", ".1f", ",.0f", ",.0f")
    return everywhere(every_data(evidence), _stored, lead, brief)


def _stored(federation: Federation) -> Seen | None:
    model, own = _model(federation), total(federation, UHB, HISTORY).mean
    rounds, whole = (
        total(federation, "federaser", "rounds").mean,
        total(federation, "fedrecover", HISTORY).mean,
    )
    if model is None or own is None or rounds is None or whole is None:
        return None
    values = model + own, rounds * federation.cells[0].place.clients * model, whole
    told = ordered(number(each / MEGA) for each in values)
    fine = own == 0 and min(values[1:]) > model
    return Seen(fine, told, values=tuple(each / MEGA for each in values))


def _model(federation: Federation) -> float | None:
    """Bytes of one model: what one client is sent in one round."""
    down, asked = total(federation, UHB, "bytes_down").mean, total(federation, UHB, "client_rounds").mean
    return down / asked if down and asked else None


def sent(evidence: Evidence) -> Judged:
    """Judge whether FedUHB sends less than the methods that read a history."""
    lead = "MB sent, down and up, of FedUHB / FedEraser / FedRecover"
    brief = ("{} MB; FedEraser {}, FedRecover {}", ",.0f", ",.0f", ",.0f")
    return everywhere(every_data(evidence), _sent, lead, brief)


def _sent(federation: Federation) -> Seen | None:
    found = {
        run: sent_by for run in (UHB, *APPROXIMATE) if (sent_by := _traffic(federation, run)) is not None
    }
    if len(found) < 3:
        return None
    told = ordered(number(each / MEGA) for each in found.values())
    fewer = {LABELS[run]: found[UHB] < found[run] for run in APPROXIMATE}
    return several(fewer, told, "than {} only", tuple(each / MEGA for each in found.values()))


def overhead(evidence: Evidence) -> Judged:
    """Judge whether momentum raises what a round sends."""
    lead = "MB sent in a round of FedUHB / of Retrain"
    return everywhere(every_data(evidence), _overhead, lead, ("{} MB a round, Retrain {}", ".1f", ".1f"))


def _overhead(federation: Federation) -> Seen | None:
    found = [_a_round(federation, run) for run in (UHB, RETRAIN)]
    ours, theirs = found
    if ours is None or theirs is None:
        return None
    told = ordered(number(each / MEGA) for each in (ours, theirs))
    but = "storage rises by one model, communication does not"
    return Seen(True if ours > theirs else None, told, but, (ours / MEGA, theirs / MEGA))


def _a_round(federation: Federation, run: str) -> float | None:
    sent_by, rounds = _traffic(federation, run), total(federation, run, "rounds").mean
    return sent_by / rounds if sent_by is not None and rounds else None


def _traffic(federation: Federation, run: str) -> float | None:
    down, up = (total(federation, run, f"bytes_{way}").mean for way in ("down", "up"))
    return None if down is None or up is None else down + up


CLAIMS = [
    Claim(
        THEOREM, "III, Theorem 1",
        "The distance of FedUHB to Retrain is bounded by ρᵗ d₀ + α G (1 − ρᵗ) / ((1 − β)(1 − ρ)).",  # noqa: RUF001
        "Where every constant is known, the measured distance is under the bound in every round and for every β tried.",
        bounded,
        NEITHER,
    ),
    Claim(
        THEOREM, "III",
        "A higher β leads to a larger bound, a lower one keeps FedUHB nearer to Retrain.",
        "The largest distance on the way rises with β.",
        further,
        NEITHER,
    ),
    Claim(
        THEOREM, "III",
        "The difference stabilizes at α G / ((1 − β)(1 − ρ)).",  # noqa: RUF001
        f"The last distance is within {SETTLED:.0%} of that limit.",
        stabilised,
        NEITHER,
    ),
    Claim(
        THEOREM, "III",
        "The bound demonstrates that FedUHB unlearns effectively, and β trades speed for it.",
        "The bound's limit is below the distance of an untrained model: if not, it does not even tell FedUHB from one.",
        telling,
        NEITHER,
    ),
    Claim(
        COST, "I, II-B",
        "FedUHB stores only one more round; methods that calibrate on a history store far more.",
        "FedUHB reads no history and keeps one model more (the previous one); what each of the others needs is larger than that: FedEraser the updates of "
        "every client in the rounds it keeps, FedRecover all updates and models.",
        stored,
    ),
    Claim(
        COST, "I",
        "Communication is significantly less than that of methods that rely on a history.",
        "Bytes down and up are fewer than FedEraser's and FedRecover's.",
        sent,
    ),
    Claim(
        COST, "I, II-B",
        "In federated learning the heavy ball is rare because it raises storage and communication.",
        "A round of FedUHB sends more bytes than one of Retrain; partly, if it only keeps more.",
        overhead,
    ),
]  # fmt: skip
