"""Claims on the accuracy that is left after unlearning."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from feduhb_reproduction.cells import ORIGINAL, RETRAIN
from feduhb_reproduction.report.claims_parts import (
    CIFAR,
    MNIST,
    NEITHER,
    Claim,
    Evidence,
    Judged,
    Seen,
    across,
    also,
    clear,
    gap,
    grouped,
    named,
    ordered,
    several,
    share,
)
from feduhb_reproduction.report.claims_recover import NEAR, THIRTY, thirty
from feduhb_reproduction.report.federations import Federation
from feduhb_reproduction.report.measures import UHB, final, over
from feduhb_reproduction.report.printed import LABELS

TOPIC = "Accuracy"
FOUR = (UHB, RETRAIN, "federaser", "fedrecover")
SATISFIES = 0.05  # below the original model: what still satisfies


def satisfying(evidence: Evidence) -> Judged:
    """Judge whether all four methods keep an accuracy near the original's."""
    lead = f"Final accuracy of the original model / {_names(FOUR)}"
    brief = ("the lowest of the four {} points from the original model", "+.1f")
    return across(evidence, MNIST, _satisfying, lead, brief)


def _satisfying(federation: Federation) -> Seen | None:
    if not final(federation, ORIGINAL).n or not _tried(federation, FOUR):
        return None
    told = f"{share(final(federation, ORIGINAL).mean)} / {_finals(federation, FOUR)}"
    worst = min(100 * mean for run in FOUR if (mean := over(federation, run, ORIGINAL).mean) is not None)
    near = {LABELS[run]: _near(federation, run) for run in FOUR}
    return several(near, told, "true of {} only", (worst,))


def _near(federation: Federation, run: str) -> bool:
    lost = over(federation, ORIGINAL, run).mean
    return not federation.failed(run) and lost is not None and lost <= SATISFIES


def best(evidence: Evidence, *, data: str) -> Judged:
    """Judge whether FedUHB ends with the highest accuracy of the four."""
    brief = ("{}; the best of the others {}", ".1%", ".1%")
    return across(evidence, data, _best, f"Final accuracy of {_names(FOUR)}", brief)


def _best(federation: Federation) -> Seen | None:
    """A method that broke off with every seed is beaten."""
    _, *others = FOUR
    if not final(federation, UHB).n or not _tried(federation, others):
        return None
    beaten = {LABELS[run]: _beaten(federation, run) for run in others}
    rival = max((mean for run in others if (mean := final(federation, run).mean) is not None), default=None)
    return several(beaten, _finals(federation, FOUR), values=(final(federation, UHB).mean, rival))


def _beaten(federation: Federation, run: str) -> bool:
    return not federation.tracks(run) or clear(over(federation, UHB, run))


def declined(evidence: Evidence) -> Judged:
    """Judge whether the other three lose accuracy on CIFAR-10."""
    brief = ("FedUHB {} points, Retrain {}, FedEraser {}", "+.1f", "+.1f", "+.1f")
    lead = f"Points from the original model to {_names(FOUR[:3])}"
    judged, among = across(evidence, CIFAR, _declined, lead, brief), evidence.clean(MNIST)
    found = named(evidence.clean(CIFAR))
    under = [name for name, one in found.items() if _under(one, among)]
    if not among or not found:
        return judged
    true = "for all" if len(under) == len(found) else f"for {grouped(under)}" if under else "for none"
    return also(judged, f"read as lower than on MNIST, it is true of all three {true}")


def _under(federation: Federation, among: Sequence[Federation]) -> bool:
    """Whether the three end lower than on the other data with the same partition and any number of images."""
    like = [one for one in among if one.partition == federation.partition]
    pairs = [(final(federation, run).mean, final(one, run).mean) for run in FOUR[:3] for one in like]
    return bool(pairs) and all(a is not None and b is not None and a < b for a, b in pairs)


def _declined(federation: Federation) -> Seen | None:
    lost = {run: over(federation, ORIGINAL, run) for run in FOUR[:3]}
    if not all(each.n for each in lost.values()):
        return None
    told = ordered(gap(over(federation, run, ORIGINAL)) for run in lost)
    values = tuple(-100 * (each.mean or 0.0) for each in lost.values())
    fell = {LABELS[run]: clear(each) for run, each in lost.items()}
    return several(fell, told, "true of {} only", values)


def _tried(federation: Federation, runs: Sequence[str]) -> bool:
    """Whether each of the runs is there, if only to have broken off."""
    return all(federation.has(run) for run in runs)


def _finals(federation: Federation, runs: Sequence[str]) -> str:
    return ordered(share(final(federation, run).mean) for run in runs)


def _names(runs: Sequence[str]) -> str:
    return ordered(LABELS[run] for run in runs)


CLAIMS = [
    Claim(
        TOPIC, "IV-B.3, Fig. 3",
        "MNIST: all four methods are satisfyingly accurate after unlearning.",
        f"The mean accuracy of each is at most {100 * SATISFIES:g} points below the original model's, and no seed broke off.",
        satisfying,
    ),
    Claim(
        TOPIC, "IV-B.3, Fig. 3; V",
        "MNIST: FedUHB is the most accurate of the four.",
        "It ends clearly above each of the others.",
        partial(best, data=MNIST),
    ),
    Claim(
        TOPIC, "IV-B.3, Fig. 3",
        "CIFAR-10: FedRecover reaches only around 30 %.",
        f"Its mean accuracy is within {100 * NEAR:g} points of {THIRTY:.0%}: before its last exact rounds, which repair it, and at the end. Partly, if only "
        "one of these.",
        thirty,
        NEITHER,
    ),
    Claim(
        TOPIC, "IV-B.3, Fig. 3",
        "CIFAR-10: the accuracy of the other three declines too.",
        "Each ends clearly below the original model. The paper does not say below what; lower than on MNIST is the other reading.",
        declined,
    ),
    Claim(
        TOPIC, "IV-B.3, Fig. 3; V",
        "CIFAR-10: FedUHB, after slight fluctuations, surpasses the others.",
        "It ends clearly above each of the others.",
        partial(best, data=CIFAR),
    ),
]  # fmt: skip
