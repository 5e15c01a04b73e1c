"""Claims on convergence: how many rounds it takes."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from feduhb.report.words import join_names
from feduhb_reproduction.cells import RETRAIN
from feduhb_reproduction.claims.parts import (
    CIFAR,
    CLOSE,
    DATA,
    MNIST,
    NEITHER,
    OFF,
    OURS,
    Claim,
    Evidence,
    Judged,
    Seen,
    add_reasons,
    average,
    format_share,
    is_clear,
    join_values,
    judge_data,
    name_federations,
    rounds_of,
    subtract,
    values_at,
    weigh_all,
)
from feduhb_reproduction.claims.recover import judge_recovered, judge_weaker
from feduhb_reproduction.federations import Federation
from feduhb_reproduction.measures import ACCURACY, UHB, UHB_ON, Reached, final_value, find_kept, find_reached
from feduhb_reproduction.words import GOAL, LABELS, format_counts

ROUNDS = 20  # "within approximately 20 rounds"
NEAR = 1  # round from half, within which a verdict hangs on a seed
NARROW = 0.001  # of accuracy beyond a point, within which a run missed convergence narrowly
TOPIC = "Convergence"
REACHES = "FedUHB reaches the final accuracy of the same seed's Retrain in every seed, and on average"


def judge_sooner(evidence: Evidence) -> Judged:
    """Judge whether FedUHB reaches Retrain's final accuracy, and that of the paper's figures, sooner than Retrain."""
    goal = GOAL[MNIST]
    lead = f"Round at which FedUHB has Retrain's final accuracy (Retrain itself) / {goal:.0%} (Retrain)"
    words = (
        f"Retrain's final accuracy at round {{}}, Retrain itself at {{}}; {goal:.0%} at {{}}, Retrain at {{}}"
    )
    return judge_data(evidence, MNIST, partial(_see_sooner, goal=goal), lead, (words, *[".1f"] * 4))


def _see_sooner(federation: Federation, *, goal: float) -> Seen | None:
    found, theirs = (find_reached(federation, run) for run in (UHB, RETRAIN))
    if not found.n:
        return None
    low, theirs_low = (find_reached(federation, run, goal) for run in (UHB, RETRAIN))
    every = (found, theirs, low, theirs_low)
    measured = "{} ({}) / {} ({})".format(*(_format_reached(each, federation) for each in every))
    values = tuple(each.mean for each in every)
    if not found.all or not _is_before(found, theirs, federation):
        return Seen(False, measured, values=values)
    if not theirs_low.hits or _is_before(low, theirs_low, federation):
        return Seen(True, measured, values=values)
    return Seen(None, measured, f"Retrain's final accuracy sooner, {goal:.0%} not clearly", values)


def _is_before(one: Reached, other: Reached, federation: Federation) -> bool:
    return is_clear(subtract(rounds_of(federation, other), rounds_of(federation, one)))


def _format_reached(found: Reached, federation: Federation) -> str:
    late = found.n - found.hits
    said = f"{format_counts(found.spread)} of {federation.rounds}" if found.hits else ""
    never = f"never in {late} of {found.n} seeds" if late else ""
    return ", ".join(part for part in (said, never) if part)


def judge_soonest(evidence: Evidence, *, data: str) -> Judged:
    """Judge whether FedUHB reaches Retrain's final accuracy before all other methods."""
    others = (RETRAIN, "federaser", "fedrecover")
    names = join_values(LABELS[run] for run in (UHB, *others))
    lead = f"Round with Retrain's final accuracy (Retrain's own: when it first had it) of {names}"
    words = "Retrain's final accuracy at round {}; Retrain itself {}, FedEraser {}, FedRecover {}"
    every = [(one, find_reached(one, run)) for one in evidence.clean(data) for run in (UHB, *others)]
    brief = (words + _explain_never(every), *[".1f"] * 4)
    return judge_data(evidence, data, partial(_see_soonest, others=others), lead, brief)


def _see_soonest(federation: Federation, *, others: tuple[str, ...]) -> Seen | None:
    ours, theirs = find_reached(federation, UHB), {run: find_reached(federation, run) for run in others}
    if not ours.n or not all(each.n for each in theirs.values()):
        return None
    ahead = {LABELS[run]: ours.all and _is_before(ours, each, federation) for run, each in theirs.items()}
    every = [ours, *theirs.values()]
    means = [average(rounds_of(federation, each)) for each in every]
    measured = join_values(_format_reached(each, federation) for each in every)
    return weigh_all(ahead, measured, "sooner than {} only", tuple(means))


def judge_halved(evidence: Evidence, *, data: str) -> Judged:
    """Judge our own target: reach Retrain's final accuracy in at most half of its rounds, and keep it."""
    lead = "Round at which FedUHB first has Retrain's final accuracy / from which it keeps it"
    every = [(one, look(one, UHB)) for one in evidence.clean(data) for look in (find_reached, find_kept)]
    brief = (f"first at round {{}}, kept from {{}}; half is {{}}{_explain_never(every)}", ".1f", ".1f", ".0f")
    judged = judge_data(evidence, data, _see_halved, lead, brief)
    near = [
        f"{mean:.1f} for {name}, with {_count_by_half(one, find_kept(one, UHB))} by then"
        for name, one in name_federations(evidence.clean(data)).items()
        if abs((mean := average(rounds_of(one, find_kept(one, UHB)))) - one.rounds / 2) <= NEAR
    ]
    return add_reasons(judged, f"borderline: kept from round {join_names(near)}") if near else judged


def _see_halved(federation: Federation) -> Seen | None:
    first, last = find_reached(federation, UHB), find_kept(federation, UHB)
    if not first.n:
        return None
    half = federation.rounds / 2
    means = tuple(average(rounds_of(federation, each)) for each in (first, last))
    soon, kept = (each.all and mean <= half for each, mean in zip((first, last), means, strict=True))
    measured = join_values(_format_reached(each, federation) for each in (first, last))
    but = "reached by then, but not kept"
    values = *means, half
    return Seen(None if soon and not kept else soon, measured, but if soon and not kept else "", values)


def _explain_never(found: Sequence[tuple[Federation, Reached]]) -> str:
    """Return a note on the round that stands for "never"; "" if every run reached the accuracy."""
    late = next((one.rounds + 1 for one, when in found if when.n and not when.all), None)
    return f" ({late} stands for never)" if late else ""


def _count_by_half(federation: Federation, found: Reached) -> str:
    """Return the number of seeds that reached the accuracy by half of the rounds."""
    soon = sum(n <= federation.rounds / 2 for n in rounds_of(federation, found).values())
    return f"{soon} of {found.n} seeds"


def judge_settled(evidence: Evidence) -> Judged:
    """Judge whether FedUHB is within a point of its own best accuracy by round 20."""
    lead = f"Accuracy of FedUHB, its rule off, at round {ROUNDS} / its best in any round / of Retrain at the last round"
    brief = (f"{{}} at round {ROUNDS}, {{}} at its best; Retrain at the last round {{}}", ".1%", ".1%", ".1%")
    judged = judge_data(evidence, MNIST, _see_settled, lead, brief)
    every = name_federations(evidence.clean(MNIST))
    found = {name: levels for name, one in every.items() if (levels := _list_levels(one)) is not None}
    near = [
        f"{100 * (best - soon):.2f} points for {name}"
        for name, (soon, best, _) in found.items()
        if 0 < best - soon - CLOSE <= NARROW
    ]
    ahead = bool(found) and all(soon >= theirs for soon, _, theirs in found.values())
    return add_reasons(
        judged,
        f"borderline: {join_names(near)}" if near else "",
        "everywhere at least as accurate as Retrain at its last round, but that is speed and not convergence"
        if ahead
        else "",
    )


def _see_settled(federation: Federation) -> Seen | None:
    levels = _list_levels(federation)
    if levels is None:
        return None
    soon, best, _ = levels
    return Seen(best - soon <= CLOSE, join_values(map(format_share, levels)), values=levels)


def _list_levels(federation: Federation) -> tuple[float, float, float] | None:
    """Return FedUHB's accuracy at round 20, its best in any round, and Retrain's last."""
    tracks, theirs = federation.tracks(UHB_ON), final_value(federation, RETRAIN).mean
    if not tracks or theirs is None or federation.rounds <= ROUNDS:
        return None
    best = average({seed: max(track.of(ACCURACY)) for seed, track in tracks.items()})
    return average(values_at(federation, UHB_ON, ROUNDS)), best, theirs


def judge_behind(evidence: Evidence) -> Judged:
    """Judge whether Retrain and FedEraser are behind FedUHB at round 20."""
    lead = f"Accuracy at round {ROUNDS} of FedUHB, its rule off / Retrain / FedEraser"
    brief = (f"{{}} at round {ROUNDS}; Retrain {{}}, FedEraser {{}}", ".1%", ".1%", ".1%")
    return judge_data(evidence, MNIST, _see_behind, lead, brief)


def _see_behind(federation: Federation) -> Seen | None:
    ours = values_at(federation, UHB_ON, ROUNDS)
    others = {run: values_at(federation, run, ROUNDS) for run in (RETRAIN, "federaser")}
    if not ours or not all(others.values()) or federation.rounds <= ROUNDS:
        return None
    means = tuple(average(each) for each in (ours, *others.values()))
    ahead = {LABELS[run]: is_clear(subtract(ours, other)) for run, other in others.items()}
    return weigh_all(ahead, join_values(map(format_share, means)), "true of {} only", means)


CLAIMS = [
    Claim(
        TOPIC, "abstract, IV-B.2, Fig. 2",
        "MNIST: FedUHB converges faster than Retrain",
        f"{REACHES} clearly sooner than Retrain itself. In part: it does not reach the fixed accuracy of the paper's figures ({GOAL[MNIST]:.0%}) clearly "
        "sooner, although Retrain reaches it.",
        judge_sooner,
    ),
    Claim(
        TOPIC, "IV-B.2, Fig. 2",
        "CIFAR-10: FedUHB converges best",
        f"{REACHES} clearly sooner than Retrain, FedEraser and FedRecover. A run that never reaches it counts with one round more than were scheduled.",
        partial(judge_soonest, data=CIFAR),
    ),
    Claim(
        TOPIC, "IV-B.2, Fig. 2",
        f"MNIST: FedUHB converges satisfactorily within about {ROUNDS} rounds",
        f"At round {ROUNDS} FedUHB, rule off, is on average within a point of the best accuracy that it has in any round: our reading of “converges”.",
        judge_settled,
        OFF,
    ),
    Claim(
        TOPIC, "IV-B.2, Fig. 2",
        "MNIST: Retrain and FedEraser converge slowly",
        f"At round {ROUNDS} (or FedEraser's last, if it has fewer) both are clearly below FedUHB.",
        judge_behind,
        OFF,
    ),
    Claim(
        TOPIC, "IV-B.2, Fig. 2",
        "MNIST: FedRecover converges quickly, but not to the best accuracy",
        "FedRecover comes within a point of its own final accuracy clearly sooner than Retrain does, and is clearly below FedUHB. Judged twice: before its last "
        "exact rounds, in which every client trains again and repairs the estimates, and at the end. In part: only one of these.",
        judge_recovered,
    ),
    Claim(
        TOPIC, "IV-B.2, Fig. 2",
        "FedRecover converges notably worse on CIFAR-10 than on MNIST",
        "FedRecover is further below Retrain than on MNIST, by more than a point, with the same partition and any number of images; or it breaks off. "
        "Judged twice: before its last exact rounds and at the end.",
        judge_weaker,
        NEITHER,
    ),
]  # fmt: skip
TARGETS = [
    Claim(
        "Our targets", OURS,
        f"{name}: FedUHB reaches Retrain's final accuracy in half of the rounds",
        f"{REACHES} by half of the scheduled rounds, and is never below it from then on. In part: it falls below it later.",
        partial(judge_halved, data=data),
    )
    for data, name in DATA.items()
]  # fmt: skip
