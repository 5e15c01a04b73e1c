"""Claims on time: seconds of a round and of a whole run. Only cells that ran alone on their machine count."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial

from feduhb.report.words import format_number, join_names
from feduhb_reproduction.cells import RETRAIN
from feduhb_reproduction.claims.parts import (
    CIFAR,
    DATA,
    FAILS,
    MNIST,
    NUMBER,
    UNKNOWN,
    Brief,
    Claim,
    Evidence,
    Judged,
    Seen,
    add_reasons,
    join_values,
    judge_federations,
    limit_verdict,
    name_federations,
    weigh_all,
)
from feduhb_reproduction.federations import Federation
from feduhb_reproduction.measures import COMPILED, UHB, Spread, Times, measure_times
from feduhb_reproduction.words import LABELS, SECONDS

TOPIC = "Time"
LESS = 0.9  # of another's seconds; from there on two methods take the same time
NEVER_RUN = (
    "its total, divided by the scheduled rounds, is less only because rounds count that were never run"
)
BORDER = 0.02  # how near to that a verdict hangs on noise
Kind = Callable[[Times], Spread]


def _per_executed(took: Times) -> Spread:
    return took.per_round


def _per_scheduled(took: Times) -> Spread:
    return took.per_scheduled


def _in_total(took: Times) -> Spread:
    return took.total


def judge_each_round(evidence: Evidence, *, data: str) -> Judged:
    """Judge whether a round that FedUHB executes takes less time than one of Retrain."""
    lead = "Seconds of an executed round of FedUHB / Retrain / total over the scheduled rounds of FedUHB / Retrain"
    brief = ("{} s a round, Retrain {}; total over the scheduled rounds {}, Retrain {}", *[NUMBER] * 4)
    judged = _judge_timed(evidence, data, _see_each_round, lead, brief, [(RETRAIN, _per_executed)])
    alone = [one.timed for one in evidence.clean(data) if one.timed is not None]
    fewer = judged.verdict == FAILS and any(map(_is_less_per_scheduled, alone))
    return add_reasons(judged, NEVER_RUN if fewer else "")


def _see_each_round(federation: Federation) -> Seen | None:
    found = [took for run in (UHB, RETRAIN) if (took := measure_times(federation, run))]
    if len(found) < 2:
        return None
    measured = join_values(_format_times(found, kind) for kind in (_per_executed, _per_scheduled))
    values = tuple(kind(took).mean for kind in (_per_executed, _per_scheduled) for took in found)
    ours, theirs = found
    return Seen(_divide(ours, theirs, _per_executed) < LESS, measured, values=values)


def _is_less_per_scheduled(federation: Federation) -> bool:
    ours, theirs = (measure_times(federation, run) for run in (UHB, RETRAIN))
    return ours is not None and theirs is not None and _divide(ours, theirs, _per_scheduled) < LESS


def judge_than_others(evidence: Evidence, *, data: str) -> Judged:
    """Judge whether a round of FedUHB takes less time than one of FedEraser and FedRecover."""
    others = "federaser", "fedrecover"
    look = partial(_see_against, others=others, kind=_per_executed)
    lead = "Seconds of an executed round of FedUHB / FedEraser / FedRecover"
    brief = ("{} s a round; FedEraser {}, FedRecover {}", *[NUMBER] * 3)
    return _judge_timed(evidence, data, look, lead, brief, [(run, _per_executed) for run in others])


def judge_in_all(evidence: Evidence, *, data: str) -> Judged:
    """Judge whether FedUHB takes significantly less time in all than the three others."""
    others = RETRAIN, "federaser", "fedrecover"
    look = partial(_see_against, others=others, kind=_in_total)
    lead = "Seconds in all of FedUHB / Retrain / FedEraser / FedRecover"
    brief = ("{} s; Retrain {}, FedEraser {}, FedRecover {}", *[NUMBER] * 4)
    return _judge_timed(evidence, data, look, lead, brief, [(run, _in_total) for run in others])


def _see_against(federation: Federation, *, others: Sequence[str], kind: Kind) -> Seen | None:
    found = {run: took for run in (UHB, *others) if (took := measure_times(federation, run))}
    if len(found) <= len(others):
        return None
    less = {LABELS[run]: _divide(found[UHB], found[run], kind) < LESS for run in others}
    values = tuple(kind(took).mean for took in found.values())
    return weigh_all(less, _format_times(list(found.values()), kind), values=values)


def _judge_timed(
    evidence: Evidence,
    data: str,
    look: Callable[[Federation], Seen | None],
    lead: str,
    brief: Brief,
    against: Sequence[tuple[str, Kind]],
) -> Judged:
    every = name_federations(evidence.clean(data))
    alone = {name: one.timed for name, one in every.items() if one.timed is not None}
    if not alone:
        return Judged("", UNKNOWN, f"no cell of {DATA[data]} ran alone on its machine")
    judged = judge_federations(alone, look, lead, brief)
    if judged.verdict == UNKNOWN:
        return judged
    return add_reasons(
        limit_verdict(every, judged, alone, "", "where nothing was timed"), _borderline(alone, against)
    )


def _borderline(found: Mapping[str, Federation], against: Sequence[tuple[str, Kind]]) -> str:
    """Return the comparisons whose result a little noise could change."""
    near = [
        f"{_divide(ours, theirs, kind):.3f} of {LABELS[run]}'s for {name}"
        for name, one in found.items()
        for run, kind in against
        if (ours := measure_times(one, UHB)) and (theirs := measure_times(one, run))
        if abs(_divide(ours, theirs, kind) - LESS) < BORDER
    ]
    return f"borderline: {join_names(list(dict.fromkeys(near)))}, against {LESS:.2f}" if near else ""


def _divide(ours: Times, theirs: Times, kind: Kind) -> float:
    return (kind(ours).mean or 0.0) / (kind(theirs).mean or math.inf)


def _format_times(found: Sequence[Times], kind: Kind) -> str:
    return join_values(format_number(kind(took).mean or 0.0) for took in found)


def _printed(data: str, runs: Sequence[str]) -> str:
    return join_names([f"{SECONDS[data][run]:.2f} s" for run in runs])


def _make_claims(data: str) -> list[Claim]:
    name = DATA[data]
    return [
        Claim(
            TOPIC, "IV-B.1, Table I",
            f"{name}: a round takes less time than Retrain's: {_printed(data, (UHB, RETRAIN))}",
            f"The median round that FedUHB executes takes less than {LESS:.0%} of the time of Retrain's. Rounds that were scheduled but never run do not count.",
            partial(judge_each_round, data=data),
        ),
        Claim(
            TOPIC, "IV-B.1, Table I",
            f"{name}: a round takes less time than FedEraser's and FedRecover's: {_printed(data, ('federaser', 'fedrecover'))}",
            f"The median round that FedUHB executes takes less than {LESS:.0%} of the time of theirs.",
            partial(judge_than_others, data=data),
        ),
        Claim(
            TOPIC, "V",
            f"{name}: FedUHB takes significantly less time in all than the others",
            f"The whole run takes less than {LESS:.0%} of the seconds of Retrain, of FedEraser and of FedRecover. {COMPILED}",
            partial(judge_in_all, data=data),
        ),
    ]  # fmt: skip


CLAIMS = [*_make_claims(MNIST), *_make_claims(CIFAR)]
