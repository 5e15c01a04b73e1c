"""Claims on FedRecover: its last rounds are exact and repair what estimates did, so that it is judged before them, too."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial

from feduhb_reproduction.cells import RETRAIN
from feduhb_reproduction.report.claims_parts import (
    CIFAR,
    CLOSE,
    MNIST,
    Evidence,
    Judged,
    Seen,
    across,
    at,
    both,
    broke,
    clear,
    gap,
    middle,
    missing,
    ordered,
    paired,
    share,
)
from feduhb_reproduction.report.federations import Federation
from feduhb_reproduction.report.measures import UHB
from feduhb_reproduction.report.printed import CORRECTED

RUN = "fedrecover"
EARLY, LATE = "before its last exact rounds", "at the end"
THIRTY, NEAR = 0.30, 0.05  # the paper's accuracy, and how near is the same


def ends(federation: Federation) -> dict[str, int]:
    """Give the round of both readings: the last before FedRecover asks every client again, and the last of all."""
    exact = max((int(t.settings.get("final", 0)) for t in federation.every(RUN).values()), default=0)
    return {EARLY: max(1, federation.rounds - exact), LATE: federation.rounds}


def read(federation: Federation, look: Callable[[Federation, str], Seen | None]) -> Seen | None:
    """Look with both readings: partly, where they differ."""
    early, late = look(federation, EARLY), look(federation, LATE)
    if early is None or late is None:
        return None
    values = early.values + late.values
    if (early.holds, early.but) == (late.holds, late.but):
        return Seen(late.holds, _told(early, late), late.but, values)
    said = [
        f"{'true' if one.holds else one.but if one.holds is None else 'not'} {reading}"
        for reading, one in ((EARLY, early), (LATE, late))
    ]
    return Seen(None, _told(early, late), ", ".join(said), values)


def _told(early: Seen, late: Seen) -> str:
    return late.told if early.told == late.told else f"{early.told} {EARLY}, {late.told} {LATE}"


def recovered(evidence: Evidence) -> Judged:
    """Judge whether FedRecover converges sooner than Retrain and stays below FedUHB."""
    lead = (
        "Round at which FedRecover / Retrain comes within a point of its own accuracy / points from FedUHB to FedRecover, "
        f"{EARLY} and {LATE}"
    )
    words = "near its own level at round {}, Retrain at {}, {} points from FedUHB"
    brief = (f"{EARLY}: {words}; {LATE}: {words}", *(".1f", ".1f", "+.1f") * 2)
    return across(evidence, MNIST, partial(read, look=_recovered), lead, brief)


def _recovered(federation: Federation, reading: str) -> Seen | None:
    broken, end = broke(federation), ends(federation)[reading]
    soon, late = _arrival(federation, RUN, end), _arrival(federation, RETRAIN, federation.rounds)
    apart = paired(at(federation, UHB, end), at(federation, RUN, end))
    if not soon and broken:
        return Seen(False, broken)
    if not soon or not late or apart.mean is None:
        return None
    told = f"{middle(soon):.1f} / {middle(late):.1f} / {-100 * apart.mean:+.1f}"
    buts = ("quick but not behind", "behind but not quick")
    values = middle(soon), middle(late), -100 * apart.mean
    told = f"{told}, {broken}" if broken else told
    return both(clear(paired(late, soon)), clear(apart), told, buts=buts, values=values)


def _arrival(federation: Federation, run: str, end: int) -> dict[int, float]:
    """The first round within a point of the run's own accuracy at a round, by seed."""
    tracks = federation.tracks(run)
    found = {seed: track.of("test_accuracy")[:end] for seed, track in tracks.items()}
    return {
        seed: next(float(n) for n, value in enumerate(values, 1) if value >= values[-1] - CLOSE)
        for seed, values in found.items()
        if values
    }


def weaker(evidence: Evidence) -> Judged:
    """Judge whether FedRecover is further behind Retrain on CIFAR-10 than on MNIST."""
    among = evidence.clean(MNIST)
    if not among:
        return missing(MNIST)
    lead = f"Points from Retrain to FedRecover, on CIFAR-10 / on MNIST, {EARLY} and {LATE}"
    words = "{} points from Retrain, on MNIST {}"
    brief = (f"{EARLY}: {words}; {LATE}: {words}", *["+.1f"] * 4)
    look = partial(_weaker, among=among)
    return across(evidence, CIFAR, lambda federation: read(federation, look), lead, brief)


def _weaker(federation: Federation, reading: str, *, among: Sequence[Federation]) -> Seen | None:
    broken = broke(federation)
    here = paired(*(at(federation, run, ends(federation)[reading]) for run in (RUN, RETRAIN)))
    if broken and not here.n:
        return Seen(True, broken)
    alike = [one for one in among if one.partition == federation.partition]
    found = [paired(*(at(one, run, ends(one)[reading]) for run in (RUN, RETRAIN))) for one in alike]
    like = [there for there in found if there.n]
    if here.mean is None or not like:
        return None
    told = f"{gap(here)}{f', {broken}' if broken else ''} / {ordered(gap(there) for there in like)}"
    least = min(there.mean or 0.0 for there in like)
    return Seen(here.mean < least - CLOSE, told, values=(100 * here.mean, 100 * least))


def thirty(evidence: Evidence) -> Judged:
    """Judge whether FedRecover is at about 30 % on CIFAR-10."""
    lead = f"Accuracy of FedRecover (of the one that is corrected periodically), {EARLY} and {LATE}"
    return across(
        evidence, CIFAR, partial(read, look=_thirty), lead, (f"{EARLY} {{}}, {LATE} {{}}", ".1%", ".1%")
    )


def _thirty(federation: Federation, reading: str) -> Seen | None:
    if not federation.has(RUN):
        return None
    end, broken = ends(federation)[reading], broke(federation)
    found, corrected = (middle(at(federation, run, end)) for run in (RUN, CORRECTED))
    told = f"{share(found)} ({share(corrected)})"
    told = f"{told}, {broken}" if broken else told
    return Seen(not math.isnan(found) and abs(found - THIRTY) <= NEAR, told, values=(found,))
