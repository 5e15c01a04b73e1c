"""Claims on FedRecover. Its last rounds are exact and repair its estimates, so it is judged before them too."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial

from feduhb_reproduction.cells import RETRAIN
from feduhb_reproduction.claims.parts import (
    CIFAR,
    CLOSE,
    MNIST,
    Evidence,
    Judged,
    Seen,
    average,
    count_broken,
    format_points,
    format_share,
    is_clear,
    join_values,
    judge_data,
    report_missing,
    subtract,
    values_at,
    weigh_two,
)
from feduhb_reproduction.federations import Federation
from feduhb_reproduction.measures import UHB
from feduhb_reproduction.words import CORRECTED

RUN = "fedrecover"
EARLY, LATE = "before its last exact rounds", "at the end"
THIRTY, NEAR = 0.30, 0.05  # the paper's accuracy, and how near is the same


def find_ends(federation: Federation) -> dict[str, int]:
    """Return the round of both readings: the last before FedRecover asks every client again, and the last of all."""
    exact = max((int(t.settings.get("final", 0)) for t in federation.every(RUN).values()), default=0)
    return {EARLY: max(1, federation.rounds - exact), LATE: federation.rounds}


def read_twice(federation: Federation, look: Callable[[Federation, str], Seen | None]) -> Seen | None:
    """Judge a federation by both readings. The claim holds in part if they differ."""
    early, late = look(federation, EARLY), look(federation, LATE)
    if early is None or late is None:
        return None
    values = early.values + late.values
    if (early.holds, early.but) == (late.holds, late.but):
        return Seen(late.holds, _join_told(early, late), late.but, values)
    said = [
        f"{'true' if one.holds else one.but if one.holds is None else 'not'} {reading}"
        for reading, one in ((EARLY, early), (LATE, late))
    ]
    return Seen(None, _join_told(early, late), ", ".join(said), values)


def _join_told(early: Seen, late: Seen) -> str:
    return (
        late.measured
        if early.measured == late.measured
        else f"{early.measured} {EARLY}, {late.measured} {LATE}"
    )


def judge_recovered(evidence: Evidence) -> Judged:
    """Judge whether FedRecover converges sooner than Retrain and stays below FedUHB."""
    lead = (
        "Round at which FedRecover / Retrain comes within a point of its own accuracy / points from FedUHB to FedRecover, "
        f"{EARLY} and {LATE}"
    )
    words = "near its own level at round {}, Retrain at {}, {} points from FedUHB"
    brief = (f"{EARLY}: {words}; {LATE}: {words}", *(".1f", ".1f", "+.1f") * 2)
    return judge_data(evidence, MNIST, partial(read_twice, look=_see_recovered), lead, brief)


def _see_recovered(federation: Federation, reading: str) -> Seen | None:
    broken, end = count_broken(federation), find_ends(federation)[reading]
    soon, late = _find_arrival(federation, RUN, end), _find_arrival(federation, RETRAIN, federation.rounds)
    apart = subtract(values_at(federation, UHB, end), values_at(federation, RUN, end))
    if not soon and broken:
        return Seen(False, broken)
    if not soon or not late or apart.mean is None:
        return None
    measured = f"{average(soon):.1f} / {average(late):.1f} / {-100 * apart.mean:+.1f}"
    buts = ("quick but not behind", "behind but not quick")
    values = average(soon), average(late), -100 * apart.mean
    measured = f"{measured}, {broken}" if broken else measured
    return weigh_two(is_clear(subtract(late, soon)), is_clear(apart), measured, buts=buts, values=values)


def _find_arrival(federation: Federation, run: str, end: int) -> dict[int, float]:
    """Return by seed the first round within a point of the run's own accuracy at round ``end``."""
    tracks = federation.tracks(run)
    found = {seed: track.of("test_accuracy")[:end] for seed, track in tracks.items()}
    return {
        seed: next(float(n) for n, value in enumerate(values, 1) if value >= values[-1] - CLOSE)
        for seed, values in found.items()
        if values
    }


def judge_weaker(evidence: Evidence) -> Judged:
    """Judge whether FedRecover is further behind Retrain on CIFAR-10 than on MNIST."""
    among = evidence.clean(MNIST)
    if not among:
        return report_missing(MNIST)
    lead = f"Points from Retrain to FedRecover, on CIFAR-10 / on MNIST, {EARLY} and {LATE}"
    words = "{} points from Retrain, on MNIST {}"
    brief = (f"{EARLY}: {words}; {LATE}: {words}", *["+.1f"] * 4)
    look = partial(_see_weaker, among=among)
    return judge_data(evidence, CIFAR, lambda federation: read_twice(federation, look), lead, brief)


def _see_weaker(federation: Federation, reading: str, *, among: Sequence[Federation]) -> Seen | None:
    broken = count_broken(federation)
    here = subtract(*(values_at(federation, run, find_ends(federation)[reading]) for run in (RUN, RETRAIN)))
    if broken and not here.n:
        return Seen(True, broken)
    alike = [one for one in among if one.partition == federation.partition]
    found = [
        subtract(*(values_at(one, run, find_ends(one)[reading]) for run in (RUN, RETRAIN))) for one in alike
    ]
    like = [there for there in found if there.n]
    if here.mean is None or not like:
        return None
    measured = f"{format_points(here)}{f', {broken}' if broken else ''} / {join_values(format_points(there) for there in like)}"
    least = min(there.mean or 0.0 for there in like)
    return Seen(here.mean < least - CLOSE, measured, values=(100 * here.mean, 100 * least))


def judge_thirty(evidence: Evidence) -> Judged:
    """Judge whether FedRecover is at about 30 % on CIFAR-10."""
    lead = f"Accuracy of FedRecover (of the one that is corrected periodically), {EARLY} and {LATE}"
    return judge_data(
        evidence,
        CIFAR,
        partial(read_twice, look=_see_thirty),
        lead,
        (f"{EARLY} {{}}, {LATE} {{}}", ".1%", ".1%"),
    )


def _see_thirty(federation: Federation, reading: str) -> Seen | None:
    if not federation.has(RUN):
        return None
    end, broken = find_ends(federation)[reading], count_broken(federation)
    found, corrected = (average(values_at(federation, run, end)) for run in (RUN, CORRECTED))
    measured = f"{format_share(found)} ({format_share(corrected)})"
    measured = f"{measured}, {broken}" if broken else measured
    return Seen(not math.isnan(found) and abs(found - THIRTY) <= NEAR, measured, values=(found,))
