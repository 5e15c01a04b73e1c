"""Claims on time: seconds of a round, and in all. Only cells that had their machine to themselves are asked."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial

from feduhb.report.words import listed, number
from feduhb_reproduction.cells import RETRAIN
from feduhb_reproduction.report.claims_parts import (
    CIFAR,
    DATA,
    MNIST,
    NUMBER,
    UNKNOWN,
    Brief,
    Claim,
    Evidence,
    Judged,
    Seen,
    able,
    also,
    everywhere,
    named,
    ordered,
    several,
)
from feduhb_reproduction.report.federations import Federation
from feduhb_reproduction.report.measures import COMPILED, UHB, Spread, Times, times
from feduhb_reproduction.report.printed import LABELS, SECONDS

TOPIC = "Time"
LESS = 0.9  # of another's seconds; from there on two methods take the same time
BORDER = 0.02  # how near to that a verdict hangs on noise
Kind = Callable[[Times], Spread]


def _executed(took: Times) -> Spread:
    return took.per_round


def _scheduled(took: Times) -> Spread:
    return took.per_scheduled


def _total(took: Times) -> Spread:
    return took.total


def each_round(evidence: Evidence, *, data: str) -> Judged:
    """Judge whether a round of FedUHB takes less time than one of Retrain."""
    lead = "Seconds of a round that was run, of FedUHB / Retrain / the total over the scheduled rounds, of FedUHB / Retrain"
    brief = ("{} s a round, Retrain {}; total over the scheduled rounds {}, Retrain {}", *[NUMBER] * 4)
    kinds = [(RETRAIN, _executed), (RETRAIN, _scheduled)]
    return _timed(evidence, data, _each_round, lead, brief, kinds)


def _each_round(federation: Federation) -> Seen | None:
    found = [took for run in (UHB, RETRAIN) if (took := times(federation, run))]
    if len(found) < 2:
        return None
    told = ordered(_told(found, kind) for kind in (_executed, _scheduled))
    ours, theirs = found
    values = tuple(kind(took).mean for kind in (_executed, _scheduled) for took in found)
    if _ratio(ours, theirs, _executed) < LESS:
        return Seen(True, told, values=values)
    partly = _ratio(ours, theirs, _scheduled) < LESS
    but = "only if the total is divided by the scheduled rounds, run or not"
    return Seen(None if partly else False, told, but, values)


def than_others(evidence: Evidence, *, data: str) -> Judged:
    """Judge whether a round of FedUHB takes less time than one of FedEraser and FedRecover."""
    others = "federaser", "fedrecover"
    look = partial(_against, others=others, kind=_executed)
    lead = "Seconds of a round that was run, of FedUHB / FedEraser / FedRecover"
    brief = ("{} s a round; FedEraser {}, FedRecover {}", *[NUMBER] * 3)
    return _timed(evidence, data, look, lead, brief, [(run, _executed) for run in others])


def in_all(evidence: Evidence, *, data: str) -> Judged:
    """Judge whether FedUHB takes significantly less time in all than the three others."""
    others = RETRAIN, "federaser", "fedrecover"
    look = partial(_against, others=others, kind=_total)
    lead = "Seconds in all of FedUHB / Retrain / FedEraser / FedRecover"
    brief = ("{} s; Retrain {}, FedEraser {}, FedRecover {}", *[NUMBER] * 4)
    return _timed(evidence, data, look, lead, brief, [(run, _total) for run in others])


def _against(federation: Federation, *, others: Sequence[str], kind: Kind) -> Seen | None:
    found = {run: took for run in (UHB, *others) if (took := times(federation, run))}
    if len(found) <= len(others):
        return None
    less = {LABELS[run]: _ratio(found[UHB], found[run], kind) < LESS for run in others}
    values = tuple(kind(took).mean for took in found.values())
    return several(less, _told(list(found.values()), kind), values=values)


def _timed(
    evidence: Evidence,
    data: str,
    look: Callable[[Federation], Seen | None],
    lead: str,
    brief: Brief,
    against: Sequence[tuple[str, Kind]],
) -> Judged:
    every = named(evidence.clean(data))
    alone = {name: one.timed for name, one in every.items() if one.timed is not None}
    if not alone:
        return Judged("", UNKNOWN, f"no cell of {DATA[data]} had its machine to itself")
    judged = everywhere(alone, look, lead, brief)
    if judged.verdict == UNKNOWN:
        return judged
    return also(able(every, judged, alone, "", "where nothing was timed"), _borderline(alone, against))


def _borderline(found: Mapping[str, Federation], against: Sequence[tuple[str, Kind]]) -> str:
    """Name the comparisons that a little noise would turn."""
    near = [
        f"{_ratio(ours, theirs, kind):.3f} of {LABELS[run]}'s for {name}"
        for name, one in found.items()
        for run, kind in against
        if (ours := times(one, UHB)) and (theirs := times(one, run))
        if abs(_ratio(ours, theirs, kind) - LESS) < BORDER
    ]
    return f"borderline: {listed(list(dict.fromkeys(near)))}, against {LESS:.2f}" if near else ""


def _ratio(ours: Times, theirs: Times, kind: Kind) -> float:
    return (kind(ours).mean or 0.0) / (kind(theirs).mean or math.inf)


def _told(found: Sequence[Times], kind: Kind) -> str:
    return ordered(number(kind(took).mean or 0.0) for took in found)


def _printed(data: str, runs: Sequence[str]) -> str:
    return listed([f"{SECONDS[data][run]:.2f} s ({LABELS[run]})" for run in runs])


def _claims(data: str) -> list[Claim]:
    name = DATA[data]
    return [
        Claim(
            TOPIC, "IV-B.1, Table I",
            f"{name}: a round of FedUHB takes less time than one of Retrain: {_printed(data, (UHB, RETRAIN))}.",
            f"The median round that was run takes less than {LESS:.0%} of Retrain's; partly, if that is true only of the total over the scheduled rounds. {COMPILED}",
            partial(each_round, data=data),
        ),
        Claim(
            TOPIC, "IV-B.1, Table I",
            f"{name}: it takes less than one of FedEraser and of FedRecover: {_printed(data, ('federaser', 'fedrecover'))}.",
            f"The median round that was run takes less than {LESS:.0%} of theirs.",
            partial(than_others, data=data),
        ),
        Claim(
            TOPIC, "V",
            f"{name}: FedUHB completes unlearning in significantly less time than conventional methods.",
            f"In all it takes less than {LESS:.0%} of the seconds of Retrain, FedEraser and FedRecover. {COMPILED}",
            partial(in_all, data=data),
        ),
    ]  # fmt: skip


CLAIMS = [*_claims(MNIST), *_claims(CIFAR)]
