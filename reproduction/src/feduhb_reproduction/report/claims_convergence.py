"""Claims on convergence: how many rounds it takes."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from feduhb.report.words import listed
from feduhb_reproduction.cells import RETRAIN
from feduhb_reproduction.report.claims_parts import (
    CIFAR,
    CLOSE,
    DATA,
    MNIST,
    NEITHER,
    OFF,
    Claim,
    Evidence,
    Judged,
    Seen,
    across,
    also,
    at,
    clear,
    grouped,
    middle,
    named,
    ordered,
    paired,
    several,
    share,
    when,
)
from feduhb_reproduction.report.claims_recover import recovered, weaker
from feduhb_reproduction.report.federations import Federation
from feduhb_reproduction.report.measures import UHB, UHB_ON, Reached, final, reached, stays
from feduhb_reproduction.report.printed import GOAL, LABELS
from feduhb_reproduction.report.spelling import counts

ROUNDS = 20  # "within approximately 20 rounds"
NEAR = 1  # round from half, within which a verdict hangs on a seed
TOPIC = "Convergence"
REACHES = "In every seed it reaches the final accuracy of the same seed's Retrain, in the mean"


def sooner(evidence: Evidence) -> Judged:
    """Judge whether FedUHB has Retrain's final accuracy, and that of the paper's figures, sooner than Retrain."""
    goal = GOAL[MNIST]
    lead = f"Round at which FedUHB has Retrain's final accuracy (Retrain itself) / {goal:.0%} (Retrain)"
    words = (
        f"Retrain's final accuracy at round {{}}, Retrain itself at {{}}; {goal:.0%} at {{}}, Retrain at {{}}"
    )
    return across(evidence, MNIST, partial(_sooner, goal=goal), lead, (words, *[".1f"] * 4))


def _sooner(federation: Federation, *, goal: float) -> Seen | None:
    found, theirs = (reached(federation, run) for run in (UHB, RETRAIN))
    if not found.n:
        return None
    low, theirs_low = (reached(federation, run, goal) for run in (UHB, RETRAIN))
    every = (found, theirs, low, theirs_low)
    told = "{} ({}) / {} ({})".format(*(_spelled(each, federation) for each in every))
    values = tuple(each.mean for each in every)
    if not found.all or not _before(found, theirs, federation):
        return Seen(False, told, values=values)
    if not theirs_low.hits or _before(low, theirs_low, federation):
        return Seen(True, told, values=values)
    return Seen(None, told, f"Retrain's final accuracy, yes, but {goal:.0%} not clearly sooner", values)


def _before(one: Reached, other: Reached, federation: Federation) -> bool:
    return clear(paired(when(federation, other), when(federation, one)))


def _spelled(found: Reached, federation: Federation) -> str:
    late = found.n - found.hits
    said = f"{counts(found.spread)} of {federation.rounds}" if found.hits else ""
    never = f"never in {late} of {found.n} seeds" if late else ""
    return ", ".join(part for part in (said, never) if part)


def soonest(evidence: Evidence, *, data: str) -> Judged:
    """Judge whether FedUHB has Retrain's final accuracy before everybody else."""
    others = (RETRAIN, "federaser", "fedrecover")
    names = ordered(LABELS[run] for run in (UHB, *others))
    lead = f"Round with Retrain's final accuracy (Retrain's own: when it first had it), of {names}"
    words = "Retrain's final accuracy at round {}; Retrain itself {}, FedEraser {}, FedRecover {}"
    every = [(one, reached(one, run)) for one in evidence.clean(data) for run in (UHB, *others)]
    brief = (words + _never(every), *[".1f"] * 4)
    return across(evidence, data, partial(_soonest, others=others), lead, brief)


def _soonest(federation: Federation, *, others: tuple[str, ...]) -> Seen | None:
    ours, theirs = reached(federation, UHB), {run: reached(federation, run) for run in others}
    if not ours.n or not all(each.n for each in theirs.values()):
        return None
    ahead = {LABELS[run]: ours.all and _before(ours, each, federation) for run, each in theirs.items()}
    every = [ours, *theirs.values()]
    means = [middle(when(federation, each)) for each in every]
    told = ordered(_spelled(each, federation) for each in every)
    return several(ahead, told, "sooner than {} only", tuple(means))


def halved(evidence: Evidence, *, data: str) -> Judged:
    """Judge our own target: Retrain's final accuracy in at most half of its rounds, and no falling back."""
    lead = (
        "Round at which FedUHB first has Retrain's final accuracy / from which on it is never below it again"
    )
    every = [(one, look(one, UHB)) for one in evidence.clean(data) for look in (reached, stays)]
    brief = (f"first at round {{}}, for good from {{}}; half is {{}}{_never(every)}", ".1f", ".1f", ".0f")
    judged = across(evidence, data, _halved, lead, brief)
    near = [
        f"{mean:.1f} for {name}, with {_by(one, stays(one, UHB))} by then"
        for name, one in named(evidence.clean(data)).items()
        if abs((mean := middle(when(one, stays(one, UHB)))) - one.rounds / 2) <= NEAR
    ]
    return also(judged, f"borderline, for good from {listed(near)}") if near else judged


def _halved(federation: Federation) -> Seen | None:
    first, last = reached(federation, UHB), stays(federation, UHB)
    if not first.n:
        return None
    half = federation.rounds / 2
    means = tuple(middle(when(federation, each)) for each in (first, last))
    soon, kept = (each.all and mean <= half for each, mean in zip((first, last), means, strict=True))
    told = ordered(_spelled(each, federation) for each in (first, last))
    but = "first there by then, but falls below it again, and is not there for good by then"
    values = *means, half
    return Seen(None if soon and not kept else soon, told, but if soon and not kept else "", values)


def _never(found: Sequence[tuple[Federation, Reached]]) -> str:
    """Say which round stands for never, where something never is."""
    late = next((one.rounds + 1 for one, when in found if when.n and not when.all), None)
    return f" ({late} standing for never)" if late else ""


def _by(federation: Federation, found: Reached) -> str:
    """Say in how many seeds it is by half of the rounds."""
    soon = sum(n <= federation.rounds / 2 for n in when(federation, found).values())
    return f"{soon} of {found.n} seeds"


def settled(evidence: Evidence) -> Judged:
    """Judge whether FedUHB satisfies by round 20, and by the stricter reading has come to its end."""
    lead = f"Accuracy of FedUHB, its rule off, at round {ROUNDS} / of Retrain at the last / of FedUHB at the last"
    brief = (f"{{}} at round {ROUNDS}; at the last Retrain {{}}, FedUHB {{}}", ".1%", ".1%", ".1%")
    judged = across(evidence, MNIST, _settled, lead, brief)
    found = {name: one for name, one in named(evidence.clean(MNIST)).items() if _settled(one) is not None}
    strict = [name for name, one in found.items() if _done(one)]
    true = (
        "everywhere" if len(strict) == len(found) else f"for {grouped(strict)} only" if strict else "nowhere"
    )
    return (
        also(judged, f"by a stricter reading, within a point of its own last accuracy, {true}")
        if found
        else judged
    )


def _settled(federation: Federation) -> Seen | None:
    soon, theirs = middle(at(federation, UHB_ON, ROUNDS)), final(federation, RETRAIN).mean
    late = final(federation, UHB_ON).mean
    if late is None or theirs is None or federation.rounds <= ROUNDS:
        return None
    return Seen(soon >= theirs, ordered(map(share, (soon, theirs, late))), values=(soon, theirs, late))


def _done(federation: Federation) -> bool:
    return middle(at(federation, UHB_ON, ROUNDS)) >= (final(federation, UHB_ON).mean or 0.0) - CLOSE


def behind(evidence: Evidence) -> Judged:
    """Judge whether Retrain and FedEraser are behind FedUHB at round 20."""
    lead = f"Accuracy at round {ROUNDS} of FedUHB, its rule off / Retrain / FedEraser"
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


CLAIMS = [
    Claim(
        TOPIC, "abstract, IV-B.2, Fig. 2",
        "MNIST: FedUHB converges faster than Retrain.",
        f"{REACHES} clearly sooner than Retrain itself; partly, if a fixed accuracy, that of the paper's figures ({GOAL[MNIST]:.0%}), comes no sooner where "
        "Retrain has it at all.",
        sooner,
    ),
    Claim(
        TOPIC, "IV-B.2, Fig. 2",
        "CIFAR-10: FedUHB goes on to converge best.",
        f"{REACHES} clearly sooner than Retrain itself, FedEraser and FedRecover do (who never does counts with a round more than were scheduled).",
        partial(soonest, data=CIFAR),
    ),
    Claim(
        TOPIC, "IV-B.2, Fig. 2",
        f"MNIST: FedUHB converges satisfactorily within about {ROUNDS} rounds.",
        f"At round {ROUNDS} its mean accuracy, the rule switched off, is at least Retrain's at the last round. The paper says “satisfactory”: "
        "that is how this reads it.",
        settled,
        OFF,
    ),
    Claim(
        TOPIC, "IV-B.2, Fig. 2",
        "MNIST: Retrain and FedEraser converge slowly.",
        f"At round {ROUNDS} (FedEraser's last, if it has fewer) both are clearly below FedUHB.",
        behind,
        OFF,
    ),
    Claim(
        TOPIC, "IV-B.2, Fig. 2",
        "MNIST: FedRecover converges more quickly, but falls short of the best.",
        "It comes within a point of its own accuracy clearly sooner than Retrain does of its last, and is clearly below FedUHB: both before its last "
        "exact rounds, in which every client trains again and repairs the estimates, and at the end. Partly, if only one of these.",
        recovered,
    ),
    Claim(
        TOPIC, "IV-B.2, Fig. 2",
        "FedRecover's convergence on CIFAR-10 is notably weaker than on MNIST.",
        "It is further below Retrain, by more than a point, than on MNIST with the same partition and any number of images, or breaks off: before its last "
        "exact rounds and at the end.",
        weaker,
        NEITHER,
    ),
]  # fmt: skip
TARGETS = [
    Claim(
        "Our targets", "ours",
        f"{name}: FedUHB has Retrain's final accuracy in at most half of its rounds.",
        f"{REACHES} by half of the scheduled rounds at the latest, and has it for good by then: never again below it; partly, if it falls below it later.",
        partial(halved, data=data),
    )
    for data, name in DATA.items()
]  # fmt: skip
