"""Which method to choose when, and what each one leaks: five sentences that hold for what was measured, with their details."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from feduhb.report.words import join_names
from feduhb_reproduction.benchmark.results import (
    ATTACKS,
    CLOSE,
    Federations,
    explain_refusal,
    has_power,
    is_clear,
    is_close,
    is_exact,
    keeps_backdoor,
    leaks,
    list_names,
    list_requirements,
    measure_backdoor,
    measure_gain,
    name_method,
    sum_costs,
)
from feduhb_reproduction.cells import ORIGINAL, RETRAIN
from feduhb_reproduction.federations import Federation
from feduhb_reproduction.measures import Spread


class Advice(NamedTuple):
    """A sentence, and what to know beside it."""

    sentence: str
    details: tuple[str, ...] = ()


def advise(federations: Federations) -> str:
    """Return which method to choose when, and what each leaks, as a numbered list in Markdown."""
    if not federations:
        return "**Not run yet.** There is nothing to say."
    every = list(federations.values())
    names = list_names(every)
    exact = [name for name in names if is_exact(every, name)]
    others = [name for name in names if name not in exact and any(one.tracks(name) for one in every)]
    given = [
        _choose_exact(federations, exact), _choose_cheap(every, others), _name_leaks(federations, [*others, *exact]),
        _name_backdoors(federations, names), _name_needs(every, names),
    ]  # fmt: skip
    return "\n".join(
        line
        for number, (sentence, details) in enumerate(given, 1)
        for line in (f"{number}. {sentence}", *(f"    - {detail}" for detail in details))
    )


def _choose_exact(federations: Federations, exact: Sequence[str]) -> Advice:
    """Name the exact methods that never broke off and are nowhere clearly, and by more than a point, less accurate than Retrain."""
    worst: dict[str, tuple[float, str]] = {}
    for label, one in federations.items():
        for name, points in _list_clear(one, exact, -1):
            if points > CLOSE:
                worst[name] = max(worst.get(name, (0.0, "")), (points, label))
    unsure = [name for name in exact if any(one.failed(name) or not one.has(name) for one in federations.values())]  # fmt: skip
    sound = [name for name in exact if name not in {RETRAIN, *worst, *unsure}]
    best = {label: gains[0] for label, one in federations.items() if (gains := _list_clear(one, sound, 1))}
    ahead = [f"{name_method(name)} in {label} by {100 * points:.1f} points" for label, (name, points) in best.items()]  # fmt: skip
    level = [label for label in federations if label not in best]
    behind = [f"{name_method(name)} (by up to {100 * points:.1f} points, in {label})" for name, (points, label) in worst.items()]  # fmt: skip
    return Advice(
        f"**If nothing of the leavers may be left, choose an exact method**: {_choose([*map(name_method, sound), 'Retrain'])}.",
        (
            *([f"After as many rounds, clearly more accurate than Retrain of the same seeds: {join_names(ahead)}."] if ahead else []),
            *([f"None of them is clearly more accurate in {join_names(level)}."] if level else []),
            *([f"As exact, but clearly less accurate somewhere: {join_names(behind)}."] if behind else []),
            *([f"As exact, but not run in every federation, or broken off there: {_join(unsure)}."] if unsure else []),
        ),
    )  # fmt: skip


def _list_clear(federation: Federation, names: Sequence[str], sign: int) -> list[tuple[str, float]]:
    """Return the methods that are clearly ahead of Retrain, or with sign -1 behind it, and by how much; the most first."""
    gains = {name: Spread(tuple(sign * value for value in measure_gain(federation, name).values)) for name in names}  # fmt: skip
    return sorted(
        ((name, gain.mean or 0.0) for name, gain in gains.items() if is_clear(gain)), key=lambda one: -one[1]
    )


def _choose_cheap(every: Sequence[Federation], others: Sequence[str]) -> Advice:
    """Name the approximate methods that save work, stay as accurate as Retrain, and were not found to leave anything."""
    close = [name for name in others if all(is_close(one, name) for one in every)]
    shares = {name: _average_epochs(every, name) for name in close}
    cheap = sorted((name for name in close if shares[name] < 1), key=shares.__getitem__)
    told = {name: f"{name_method(name)} ({shares[name]:.0%} of Retrain's client epochs)" for name in cheap}
    is_caught = {name: any(leaks(one, name) or keeps_backdoor(one, name) for one in every) for name in cheap}
    chosen = [told[name] for name in cheap if not is_caught[name]]
    caught = [told[name] for name in cheap if is_caught[name]]
    partial = [name for name in others if not all(one.has(name) for one in every)]
    dear = [name for name in close if name not in cheap]
    far = [name for name in others if name not in close and name not in partial]
    near = f"within {100 * CLOSE:.0f} point of Retrain's accuracy in every federation"
    begin = "**If clients can work little and an approximation is allowed, "
    return Advice(
        f"{begin}choose {_choose(chosen)}**, which stayed {near}, and in whose models no attack clearly found anything."
        if chosen
        else f"{begin}there is nothing to choose**: no method with less work than Retrain stayed {near} without a clear leak or backdoor.",
        (
            *([f"As close, but they left something behind (3 and 4): {join_names(caught)}."] if caught else []),
            *([f"As close, without saving work: {_join(dear)}."] if dear else []),
            *([f"Not as close: {_join(far)}."] if far else []),
            *([f"Not run in every federation: {_join(partial)}."] if partial else []),
        ),
    )  # fmt: skip


def _average_epochs(every: Sequence[Federation], name: str) -> float:
    """Return a method's client epochs as a share of Retrain's, on average over federations."""
    shares = [(sum_costs(one, name, "client_epochs").mean or 0.0) / (sum_costs(one, RETRAIN, "client_epochs").mean or 1.0) for one in every]  # fmt: skip
    return sum(shares) / len(shares)


def _name_leaks(federations: Federations, names: Sequence[str]) -> Advice:
    powerful = {
        label: one for label, one in federations.items() if any(has_power(one, attack) for attack in ATTACKS)
    }
    if not powerful:
        return Advice(
            "**What membership leaks** is not known: the attacks do not clearly find even the original."
        )
    every = list(powerful.values())
    counts = {name: sum(leaks(one, name) for one in every) for name in names}
    found = [f"{name_method(name)} ({count} of {len(every)})" for name, count in counts.items() if count]  # fmt: skip
    silent = [name for name in names if not counts[name] and all(one.has(name) for one in every)]
    blind = [label for label in federations if label not in powerful]
    return Advice(
        f"**Membership leaks** from {join_names(found)}: an attack still clearly finds some of the leavers' canaries in that many federations."
        if found
        else "**No membership leak was found**: no attack clearly finds the leavers' canaries in the model of any method.",
        (
            *([f"Nothing was clearly found in models of {_join(silent)}. That does not prove that nothing is there."] if silent else []),
            *([f"In {join_names(blind)} the attacks do not clearly find even the original, and say nothing."] if blind else []),
        ),
    )  # fmt: skip


def _name_backdoors(federations: Federations, names: Sequence[str]) -> Advice:
    planted = {label: one for label, one in federations.items() if one.backdoor}
    if not planted:
        return Advice(
            "**What backdoors stay** was not measured: no federation with images was run, and a backdoor is a pattern on images."
        )
    kept: list[str] = []
    for name in names:
        rates = [measure_backdoor(one, name).mean or 0.0 for one in planted.values() if keeps_backdoor(one, name)]  # fmt: skip
        if rates:
            kept.append(f"{name_method(name)} ({_span(rates)} in {len(rates)} of {len(planted)})")
    before = [measure_backdoor(one, RETRAIN, ORIGINAL).mean or 0.0 for one in planted.values()]
    return Advice(
        f"**Backdoors stay** in models of {join_names(kept)}: they work on that share of test images in that many federations, clearly more than in Retrain's."
        if kept
        else "**No backdoor stays**: in the model of no method do they work on clearly more test images than in Retrain's.",
        (
            f"In the originals they work on {_span(before)} of the test images, on {join_names(list(planted))}.",
        ),
    )


def _span(rates: Sequence[float]) -> str:
    return f"{min(rates):.0%} to {max(rates):.0%}"


def _name_needs(every: Sequence[Federation], names: Sequence[str]) -> Advice:
    needs: dict[str, list[str]] = {}
    for name in names:
        for need in list_requirements(every, name):
            needs.setdefault(need, []).append(name)
    alike: dict[tuple[str, ...], list[str]] = {}
    for need, those in needs.items():
        alike.setdefault(tuple(those), []).append(need)
    listed = [f"{join_names(some)} ({', '.join(map(name_method, those))})" for those, some in alike.items()]
    refused = [name for name in names if any(explain_refusal(one, name) for one in every)]
    return Advice(
        f"**Before a request, some methods need** {'; '.join(listed)}."
        if listed
        else "**Before a request, no method needs** anything.",
        (f"{_join(refused)} cannot serve a request of whole clients, and has no numbers here.",)
        if refused
        else (),
    )


def _choose(labels: Sequence[str]) -> str:
    return join_names(labels, "or")


def _join(names: Sequence[str]) -> str:
    return join_names([name_method(name) for name in names])
