"""Claims on convergence: how many rounds it takes."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial

from feduhb.cells import RETRAIN
from feduhb.report.paper.claims_parts import (
    CIFAR,
    MNIST,
    Claim,
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
    several,
    share,
)
from feduhb.report.paper.federations import Federation
from feduhb.report.paper.measures import UHB, UHB_ON, Reached, final, over, reached
from feduhb.report.paper.printed import LABELS
from feduhb.report.paper.spelling import counts

ROUNDS = 20  # "within approximately 20 rounds"
CLOSE = 0.01  # of accuracy: what counts as having converged
TOPIC = "Convergence"
FASTER = (
    "In every seed it reaches the final accuracy of the same seed's Retrain, in the mean in at most half of its rounds; "
    "partly, if sooner than Retrain itself."
)


def halved(evidence: Evidence, *, data: str) -> Judged:
    """Judge whether FedUHB needs at most half of Retrain's rounds."""
    lead = "Round at which FedUHB has Retrain's final accuracy"
    return across(evidence, data, _halved, lead, ("Retrain's final accuracy at round {}", ".1f"))


def _halved(federation: Federation) -> Seen | None:
    found = reached(federation, UHB)
    if not found.n:
        return None
    told = _spelled(found, federation)
    if not found.all or _mean(found) <= federation.rounds / 2:
        return Seen(found.all, told, values=(found.mean,))
    sooner = _mean(found) < _mean(reached(federation, RETRAIN))
    return Seen(None if sooner else False, told, "sooner, but in more than half of the rounds", (found.mean,))


def _spelled(found: Reached, federation: Federation) -> str:
    late = found.n - found.hits
    when = f"{counts(found.spread)} of {federation.rounds}" if found.hits else ""
    never = f"never in {late} of {found.n} seeds" if late else ""
    return ", ".join(part for part in (when, never) if part)


def _mean(found: Reached) -> float:
    return math.inf if found.mean is None else found.mean


def settled(evidence: Evidence) -> Judged:
    """Judge whether FedUHB has converged by round 20."""
    lead = f"Accuracy of FedUHB, its rule off, at round {ROUNDS} / the last"
    brief = (f"{{}} at round {ROUNDS}, {{}} at the last", ".1%", ".1%")
    return across(evidence, MNIST, _settled, lead, brief)


def _settled(federation: Federation) -> Seen | None:
    soon, late = middle(at(federation, UHB_ON, ROUNDS)), final(federation, UHB_ON).mean
    if late is None or federation.rounds <= ROUNDS:
        return None
    return Seen(soon >= late - CLOSE, ordered((share(soon), share(late))), values=(soon, late))


def behind(evidence: Evidence) -> Judged:
    """Judge whether Retrain and FedEraser are behind FedUHB at round 20."""
    lead = f"Accuracy at round {ROUNDS} of FedUHB / Retrain / FedEraser"
    brief = (f"{{}} at round {ROUNDS}; Retrain {{}}, FedEraser {{}}", ".1%", ".1%", ".1%")
    return across(evidence, MNIST, _behind, lead, brief)


def _behind(federation: Federation) -> Seen | None:
    ours = at(federation, UHB_ON, ROUNDS)
    others = {run: at(federation, run, ROUNDS) for run in (RETRAIN, "federaser")}
    if not ours or not all(others.values()) or federation.rounds <= ROUNDS:
        return None
    means = tuple(middle(each) for each in (ours, *others.values()))
    ahead = {LABELS[run]: clear(paired(ours, other)) for run, other in others.items()}
    return several(ahead, ordered(map(share, means)), "true of {} only", means)


def recovered(evidence: Evidence) -> Judged:
    """Judge whether FedRecover converges sooner than Retrain and ends lower than FedUHB."""
    lead = "Round at which FedRecover / Retrain comes within a point of its own last accuracy / points from FedUHB to FedRecover at the end"
    brief = (
        "within a point of its end at round {}, Retrain at {}; ends {} points from FedUHB",
        ".1f",
        ".1f",
        "+.1f",
    )
    return across(evidence, MNIST, _recovered, lead, brief)


def _recovered(federation: Federation) -> Seen | None:
    broken = broke(federation)
    soon, late = (_arrival(federation, run) for run in ("fedrecover", RETRAIN))
    apart = over(federation, UHB, "fedrecover")
    if not soon and broken:
        return Seen(False, broken)
    if not soon or not late or not apart.n:
        return None
    told = f"{middle(soon):.1f} / {middle(late):.1f} / {gap(over(federation, 'fedrecover', UHB))}"
    buts = ("quick, but not behind", "behind, but not quick")
    values = middle(soon), middle(late), -100 * (apart.mean or 0.0)
    told = f"{told}, {broken}" if broken else told
    return both(clear(paired(late, soon)), clear(apart), told, buts=buts, values=values)


def _arrival(federation: Federation, run: str) -> dict[int, float]:
    """The first round within a point of the run's own last accuracy, by seed."""
    found = {seed: track.of("test_accuracy") for seed, track in federation.tracks(run).items()}
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
    lead = "Points from Retrain to FedRecover at the end, on CIFAR-10 / on MNIST"
    brief = ("{} points from Retrain; on MNIST {}", "+.1f", "+.1f")
    return across(evidence, CIFAR, partial(_weaker, among=among), lead, brief)


def _weaker(federation: Federation, *, among: Sequence[Federation]) -> Seen | None:
    broken, here = broke(federation), over(federation, "fedrecover", RETRAIN)
    if broken and not here.n:
        return Seen(True, broken)
    like = [
        there
        for one in among
        if one.partition == federation.partition and (there := over(one, "fedrecover", RETRAIN)).n
    ]
    if here.mean is None or not like:
        return None
    told = f"{gap(here)}{f', {broken}' if broken else ''} / {ordered(gap(there) for there in like)}"
    least = min(there.mean or 0.0 for there in like)
    return Seen(here.mean < least - CLOSE, told, values=(100 * here.mean, 100 * least))


CLAIMS = [
    Claim(
        TOPIC, "abstract, IV-B.2, Fig. 2",
        "MNIST: FedUHB converges faster than Retrain.",
        FASTER,
        partial(halved, data=MNIST),
    ),
    Claim(
        TOPIC, "IV-B.2, Fig. 2",
        "CIFAR-10: FedUHB goes on to converge best.",
        FASTER,
        partial(halved, data=CIFAR),
    ),
    Claim(
        TOPIC, "IV-B.2, Fig. 2",
        f"MNIST: FedUHB converges within about {ROUNDS} rounds.",
        f"At round {ROUNDS} its mean accuracy is within {100 * CLOSE:g} point of that at the last round, the rule switched off.",
        settled,
    ),
    Claim(
        TOPIC, "IV-B.2, Fig. 2",
        "MNIST: Retrain and FedEraser converge slowly.",
        f"At round {ROUNDS} (FedEraser's last, if it has fewer) both are clearly below FedUHB.",
        behind,
    ),
    Claim(
        TOPIC, "IV-B.2, Fig. 2",
        "MNIST: FedRecover converges more quickly, but falls short of the best.",
        "It comes within a point of its own last accuracy clearly sooner than Retrain does, and ends clearly below FedUHB.",
        recovered,
    ),
    Claim(
        TOPIC, "IV-B.2, Fig. 2",
        "FedRecover's convergence on CIFAR-10 is notably weaker than on MNIST.",
        "It ends further below Retrain, by more than a point, than on MNIST with the same partition and any number of images, or breaks off.",
        weaker,
    ),
]  # fmt: skip
