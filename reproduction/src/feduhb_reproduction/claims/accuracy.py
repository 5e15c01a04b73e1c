"""Claims on the accuracy that is left after unlearning."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from feduhb_reproduction.cells import ORIGINAL, RETRAIN
from feduhb_reproduction.claims.parts import (
    CIFAR,
    MNIST,
    NEITHER,
    Claim,
    Evidence,
    Judged,
    Seen,
    add_reasons,
    format_points,
    format_share,
    group_names,
    is_clear,
    join_values,
    judge_data,
    name_federations,
    weigh_all,
)
from feduhb_reproduction.claims.recover import NEAR, THIRTY, judge_thirty
from feduhb_reproduction.federations import Federation
from feduhb_reproduction.measures import UHB, final_value, subtract_final
from feduhb_reproduction.words import LABELS

TOPIC = "Accuracy"
FOUR = (UHB, RETRAIN, "federaser", "fedrecover")
SATISFIES = 0.05  # below the original model: what still satisfies


def judge_satisfying(evidence: Evidence) -> Judged:
    """Judge whether all four methods keep an accuracy near the original's."""
    lead = f"Final accuracy of the original model / {_join_names(FOUR)}"
    brief = ("the lowest of the four {} points from the original model", "+.1f")
    return judge_data(evidence, MNIST, _see_satisfying, lead, brief)


def _see_satisfying(federation: Federation) -> Seen | None:
    if not final_value(federation, ORIGINAL).n or not _has_all(federation, FOUR):
        return None
    measured = f"{format_share(final_value(federation, ORIGINAL).mean)} / {_format_finals(federation, FOUR)}"
    worst = min(
        100 * mean for run in FOUR if (mean := subtract_final(federation, run, ORIGINAL).mean) is not None
    )
    near = {LABELS[run]: _is_near(federation, run) for run in FOUR}
    return weigh_all(near, measured, "true of {} only", (worst,))


def _is_near(federation: Federation, run: str) -> bool:
    lost = subtract_final(federation, ORIGINAL, run).mean
    return not federation.failed(run) and lost is not None and lost <= SATISFIES


def judge_best(evidence: Evidence, *, data: str) -> Judged:
    """Judge whether FedUHB ends with the highest accuracy of the four."""
    brief = ("{}; the best of the others {}", ".1%", ".1%")
    return judge_data(evidence, data, _see_best, f"Final accuracy of {_join_names(FOUR)}", brief)


def _see_best(federation: Federation) -> Seen | None:
    """Compare the final accuracies. FedUHB beats a method whose run broke off with every seed."""
    _, *others = FOUR
    if not final_value(federation, UHB).n or not _has_all(federation, others):
        return None
    beaten = {LABELS[run]: _is_beaten(federation, run) for run in others}
    rival = max(
        (mean for run in others if (mean := final_value(federation, run).mean) is not None), default=None
    )
    return weigh_all(
        beaten, _format_finals(federation, FOUR), values=(final_value(federation, UHB).mean, rival)
    )


def _is_beaten(federation: Federation, run: str) -> bool:
    return not federation.tracks(run) or is_clear(subtract_final(federation, UHB, run))


def judge_declined(evidence: Evidence) -> Judged:
    """Judge whether FedUHB, Retrain and FedEraser lose accuracy on CIFAR-10."""
    brief = ("FedUHB {} points, Retrain {}, FedEraser {}", "+.1f", "+.1f", "+.1f")
    lead = f"Points from the original model to {_join_names(FOUR[:3])}"
    judged, among = judge_data(evidence, CIFAR, _see_declined, lead, brief), evidence.clean(MNIST)
    found = name_federations(evidence.clean(CIFAR))
    under = [name for name, one in found.items() if _is_lower(one, among)]
    if not among or not found:
        return judged
    true = (
        "in all federations"
        if len(under) == len(found)
        else f"for {group_names(under)}"
        if under
        else "for none"
    )
    return add_reasons(judged, f"read as lower than on MNIST, true of all three {true}")


def _is_lower(federation: Federation, among: Sequence[Federation]) -> bool:
    """Whether FedUHB, Retrain and FedEraser end lower than on other data with the same partition, of any size."""
    like = [one for one in among if one.partition == federation.partition]
    pairs = [
        (final_value(federation, run).mean, final_value(one, run).mean) for run in FOUR[:3] for one in like
    ]
    return bool(pairs) and all(a is not None and b is not None and a < b for a, b in pairs)


def _see_declined(federation: Federation) -> Seen | None:
    lost = {run: subtract_final(federation, ORIGINAL, run) for run in FOUR[:3]}
    if not all(each.n for each in lost.values()):
        return None
    measured = join_values(format_points(subtract_final(federation, run, ORIGINAL)) for run in lost)
    values = tuple(-100 * (each.mean or 0.0) for each in lost.values())
    fell = {LABELS[run]: is_clear(each) for run, each in lost.items()}
    return weigh_all(fell, measured, "true of {} only", values)


def _has_all(federation: Federation, runs: Sequence[str]) -> bool:
    """Whether the federation has each of these runs, even if they broke off."""
    return all(federation.has(run) for run in runs)


def _format_finals(federation: Federation, runs: Sequence[str]) -> str:
    return join_values(format_share(final_value(federation, run).mean) for run in runs)


def _join_names(runs: Sequence[str]) -> str:
    return join_values(LABELS[run] for run in runs)


CLAIMS = [
    Claim(
        TOPIC, "IV-B.3, Fig. 3",
        "MNIST: all four methods are accurate after unlearning",
        f"The mean accuracy of each method is at most {100 * SATISFIES:g} points below the original model's, and no seed broke off.",
        judge_satisfying,
    ),
    Claim(
        TOPIC, "IV-B.3, Fig. 3; V",
        "MNIST: FedUHB is the most accurate of the four",
        "FedUHB ends clearly above each of the others.",
        partial(judge_best, data=MNIST),
    ),
    Claim(
        TOPIC, "IV-B.3, Fig. 3",
        "CIFAR-10: FedRecover reaches only about 30 %",
        f"FedRecover's mean accuracy is within {100 * NEAR:g} points of {THIRTY:.0%}. Judged twice: before its last exact rounds, which repair its estimates, and at the end. "
        "In part: only one of these.",
        judge_thirty,
        NEITHER,
    ),
    Claim(
        TOPIC, "IV-B.3, Fig. 3",
        "CIFAR-10: the other three lose accuracy too",
        "Each ends clearly below the original model. The paper does not say what it compares with. We also judge another reading: each ends lower than on MNIST.",
        judge_declined,
    ),
    Claim(
        TOPIC, "IV-B.3, Fig. 3; V",
        "CIFAR-10: FedUHB ends above the others",
        "FedUHB ends clearly above each of the others.",
        partial(judge_best, data=CIFAR),
    ),
]  # fmt: skip
