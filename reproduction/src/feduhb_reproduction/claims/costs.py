"""Claims on what storing and sending cost."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from feduhb.report.words import format_number, join_names
from feduhb_reproduction.cells import RETRAIN
from feduhb_reproduction.claims.parts import (
    APPROXIMATE,
    Claim,
    Evidence,
    Judged,
    Seen,
    average,
    group_names,
    is_clear,
    join_values,
    judge_federations,
    list_federations,
    rounds_of,
    subtract,
    weigh_all,
)
from feduhb_reproduction.federations import Federation
from feduhb_reproduction.measures import UHB, Spread, find_reached, sum_of
from feduhb_reproduction.words import LABELS

COST = "Storage and communication"
MEGA = 1e6
HISTORY = "history_bytes_read"


def judge_stored(evidence: Evidence) -> Judged:
    """Judge whether FedUHB stores one model more, and the others a history."""
    lead = "MB that FedUHB keeps beside its model / of the history that FedEraser / FedRecover needs"
    brief = ("{} MB; FedEraser {}, FedRecover {}", ".1f", ",.0f", ",.0f")
    return judge_federations(list_federations(evidence), _see_stored, lead, brief)


def _see_stored(federation: Federation) -> Seen | None:
    model, own = _find_model_bytes(federation), sum_of(federation, UHB, HISTORY).mean
    rounds = sum_of(federation, "federaser", "rounds").mean
    whole = sum_of(federation, "fedrecover", HISTORY).mean
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
    """Judge whether FedUHB sends less than each method that reads a history, up to that method's final accuracy."""
    lead = (
        "MB sent, down and up, of FedUHB up to FedEraser's final accuracy / FedEraser / FedUHB up to FedRecover's final accuracy / FedRecover / "
        "FedUHB up to Retrain's final accuracy / FedUHB in its whole run"
    )
    words = "up to FedEraser's final accuracy {} MB, FedEraser {}; up to FedRecover's {}, FedRecover {}; up to Retrain's {}; whole run {}"
    found = list_federations(evidence)
    judged = judge_federations(found, _see_sent, lead, (words, *[",.0f"] * 6))
    known = {name: one for name, one in found.items() if _see_sent(one) is not None}
    return replace(judged, why=". ".join(filter(None, (judged.why, _count_sent(known))))) if known else judged


def _see_sent(federation: Federation) -> Seen | None:
    theirs = {run: _list_traffic(federation, run) for run in APPROXIMATE}
    ours = {run: _list_traffic(federation, UHB, run) for run in (*APPROXIMATE, RETRAIN)}
    if not all((*theirs.values(), *ours.values())):
        return None
    sums = [each for run in APPROXIMATE for each in (ours[run], theirs[run])]
    values = [average(each) / MEGA for each in (*sums, ours[RETRAIN], _list_traffic(federation, UHB))]
    fewer = {LABELS[run]: is_clear(subtract(theirs[run], ours[run])) for run in APPROXIMATE}
    return weigh_all(fewer, join_values(map(format_number, values)), "than {} only", tuple(values))


def _count_sent(found: Mapping[str, Federation]) -> str:
    """Return in how many federations FedUHB sends less than each method, by three definitions."""

    def subtract_ours(run: str, goal: str | None) -> dict[str, Spread]:
        return {
            name: subtract(_list_traffic(one, run), _list_traffic(one, UHB, goal))
            for name, one in found.items()
        }

    def count_less(run: str, goal: str | None) -> str:
        less = sum((saved.mean or 0.0) > 0 for saved in subtract_ours(run, goal).values())
        return f"than {LABELS[run]} in {less} of {len(found)}"

    def describe(run: str) -> str:
        saved = subtract_ours(run, run)
        clear = sum(map(is_clear, saved.values()))
        more = [name for name, each in saved.items() if is_clear(Spread(tuple(-one for one in each.values)))]
        worse = f"; clearly more for {group_names(more)}" if more else ""
        return f"{count_less(run, run)} federations (clearly in {clear}{worse})"

    said = {
        "Up to the other's final accuracy": [describe(run) for run in APPROXIMATE],
        "Up to Retrain's final accuracy": [count_less(run, RETRAIN) for run in APPROXIMATE],
        "In whole runs, which end unequally accurate": [count_less(run, None) for run in APPROXIMATE],
    }
    return ". ".join(f"{when}, less on average {join_names(counts)}" for when, counts in said.items())


def _list_traffic(federation: Federation, run: str, goal: str | None = None) -> dict[int, float]:
    """Return by seed the bytes that a run sends, down and up, until it first has the final accuracy of another run.

    A seed that never has it counts with one round more than were scheduled. Every round of FedUHB sends the same.
    """
    sent = {
        seed: (track.sums["bytes_down"] + track.sums["bytes_up"], track.rounds)
        for seed, track in federation.tracks(run).items()
        if {"bytes_down", "bytes_up"} <= set(track.sums) and track.rounds
    }
    if goal is None:
        return {seed: whole for seed, (whole, _) in sent.items()}
    ends = rounds_of(federation, find_reached(federation, run, of=goal))
    return {seed: whole * ends[seed] / rounds for seed, (whole, rounds) in sent.items() if seed in ends}


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
        COST, "I, II-B",
        "FedUHB stores one more model; methods with a history store far more",
        "FedUHB reads no history and keeps one more model, the previous one. The others need more storage: FedEraser the updates of every client in the rounds it "
        "keeps, FedRecover all updates and models.",
        judge_stored,
    ),
    Claim(
        COST, "I",
        "FedUHB communicates significantly less than methods with a history",
        "At equal accuracy: until FedUHB first has the final accuracy of the same seed's FedEraser, it sends clearly fewer bytes, down and up, than FedEraser in its whole "
        "run; and the same against FedRecover. In part: only one of these. Beside it: FedUHB up to Retrain's final accuracy and in its whole run, each against the whole "
        "runs of the other two, which come to Retrain's accuracy late or never.",
        judge_sent,
    ),
    Claim(
        COST, "I, II-B",
        "The heavy ball raises storage and communication",
        "A round of FedUHB sends more bytes than one of Retrain. In part: FedUHB stores more, but does not send more.",
        judge_overhead,
    ),
]  # fmt: skip
