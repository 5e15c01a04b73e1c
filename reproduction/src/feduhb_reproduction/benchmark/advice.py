"""Which method to choose when, and what each one leaks: five sentences that hold for what was measured, with their details."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import NamedTuple

from feduhb.report.words import join_names
from feduhb_reproduction.benchmark.results import (
    ATTACKS,
    CLOSE,
    Federations,
    explain_refusal,
    has_power,
    has_served,
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

EACH, STORED = "each update", "stored updates"  # as `feduhb.methods.list_needs` says it


class Advice(NamedTuple):
    """A sentence, and what to know beside it."""

    sentence: str
    details: tuple[str, ...] = ()


def advise(federations: Federations) -> str:
    """Return in Markdown which method to choose when, and what each leaks: a numbered list, and a sentence on requests of rows."""
    if not federations:
        return "**Not run yet.** There is nothing to say."
    rows = {label: one for label, one in federations.items() if one.rows}
    whole = {label: one for label, one in federations.items() if not one.rows}
    given = _advise_clients(whole) if whole else []
    numbered = [
        "\n".join([f"{number}. {sentence}", *(f"    - {detail}" for detail in details)])
        for number, (sentence, details) in enumerate(given, 1)
    ]
    parts = ["\n".join(numbered)]
    if rows:
        sentence, details = _describe_rows(rows)
        parts += [sentence, "\n".join(f"- {detail}" for detail in details)]
    return "\n\n".join(filter(None, parts))


def _advise_clients(federations: Federations) -> list[Advice]:
    """Return the five sentences, on requests of whole clients."""
    every = list(federations.values())
    names = list_names(every)
    exact = [name for name in names if is_exact(every, name)]
    others = [name for name in names if name not in exact and any(one.tracks(name) for one in every)]
    return [
        _choose_exact(federations, exact), _choose_cheap(every, others), _name_leaks(federations, [*others, *exact]),
        _name_backdoors(federations, names), _name_needs(every, names),
    ]  # fmt: skip


def _fill(sentences: Mapping[str, Sequence[str]]) -> tuple[str, ...]:
    """Return the sentences that have names to list, with them in place of {}."""
    return tuple(sentence.format(join_names(names)) for sentence, names in sentences.items() if names)


def _choose_exact(federations: Federations, exact: Sequence[str]) -> Advice:
    """Name the most accurate of the exact methods that never broke off and are nowhere clearly, and by more than a point, less accurate than Retrain."""
    worst: dict[str, tuple[float, str]] = {}
    for label, one in federations.items():
        for name, points in _list_clear(one, exact, -1):
            if points > CLOSE:
                worst[name] = max(worst.get(name, (0.0, "")), (points, label))
    every = list(federations.values())
    unsure = [name for name in exact if any(one.failed(name) or not one.has(name) for one in every)]
    sound = [RETRAIN, *(name for name in exact if name not in {RETRAIN, *worst, *unsure})]
    gains = {name: fmean(measure_gain(one, name).mean or 0.0 for one in every) for name in sound}
    first, *rest = sorted(sound, key=gains.__getitem__, reverse=True)
    best = {label: ahead[0] for label, one in federations.items() if (ahead := _list_clear(one, sound, 1))}
    most, label = max((measure_gain(one, first).mean or 0.0, label) for label, one in federations.items())
    where = f"in {label}" if len(every) == 1 else f"on average over {len(every)} federations (most in {label}: {100 * most:.1f})"  # fmt: skip
    why = (
        "no other exact method was more accurate on average"
        if first == RETRAIN
        else f"after as many rounds its accuracy was {100 * gains[first]:.1f} points above Retrain's {where}"
    )
    return Advice(
        f"**If nothing of the leavers may be left, choose an exact method: {name_method(first)}**, because {why}.",
        _fill({
            "As exact, with their accuracy against Retrain's: {}.": [_tell_gain(name, gains[name]) for name in rest],
            "Clearly more accurate than Retrain of the same seeds: {}.": [
                f"{name_method(name)} in {label} by {100 * points:.1f} points" for label, (name, points) in best.items()
            ],
            "None of these is clearly more accurate than Retrain in {}.": [label for label in federations if label not in best],
            "As exact, but clearly less accurate somewhere: {}.": [
                f"{name_method(name)} (by up to {100 * points:.1f} points, in {label})" for name, (points, label) in worst.items()
            ],
            "As exact, but not run in every federation, or broken off or refused there: {}.": _label(unsure),
        }),
    )  # fmt: skip


def _tell_gain(name: str, gain: float) -> str:
    return name_method(name) if name == RETRAIN else f"{name_method(name)} ({100 * gain:+.1f} points)"


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
    told = {name: f"{name_method(name)} ({shares[name]:.0%} of Retrain's client epochs{_phrase_needs(every, name)})" for name in cheap}  # fmt: skip
    is_caught = {name: any(_list_found(one, name) for one in every) for name in cheap}
    chosen = [told[name] for name in cheap if not is_caught[name]]
    partial = [name for name in others if not all(has_served(one, name) for one in every)]
    far = [name for name in others if name not in close and name not in partial]
    near = f"within {100 * CLOSE:.0f} point of Retrain's accuracy in every federation"
    begin = "**If clients can work little and an approximation is allowed, "
    return Advice(
        f"{begin}choose {join_names(chosen, 'or')}**, which stayed {near}, and in whose models no attack clearly found anything."
        if chosen
        else f"{begin}there is nothing to choose**: no method with less work than Retrain stayed {near} without a clear leak or backdoor.",
        _fill({
            "As close, but they left something behind (3 and 4): {}.": [told[name] for name in cheap if is_caught[name]],
            "As close, without saving work: {}.": _label([name for name in close if name not in cheap]),
            "Not as close: {}.": _label(far),
            "Not run in every federation, or refused there: {}.": _label(partial),
        }),
    )  # fmt: skip


def _phrase_needs(every: Sequence[Federation], name: str) -> str:
    """Return what must be there before a request, for a recommendation; nothing if nothing must."""
    needs = list_requirements(every, name)
    if STORED in needs:
        needs = [
            "every update of every client stored",
            *(need for need in needs if need not in {STORED, EACH}),
        ]
    return f", with {join_names(needs)}" if needs else ""


def _average_epochs(every: Sequence[Federation], name: str) -> float:
    """Return a method's client epochs as a share of Retrain's, on average over federations."""
    return fmean((sum_costs(one, name, "client_epochs").mean or 0.0) / (sum_costs(one, RETRAIN, "client_epochs").mean or 1.0) for one in every)  # fmt: skip


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
    silent = [name for name in names if not counts[name] and all(has_served(one, name) for one in every)]
    return Advice(
        f"**Membership leaks** from {join_names(found)}: an attack still clearly finds some of the leavers' canaries in that many federations."
        if found
        else "**No membership leak was found**: no attack clearly finds the leavers' canaries in the model of any method.",
        _fill({
            "Nothing was clearly found in models of {}. That does not prove that nothing is there.": _label(silent),
            "In {} the attacks do not clearly find even the original, and say nothing.": [
                label for label in federations if label not in powerful
            ],
        }),
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
    refused = [name for name in names if not any(has_served(one, name) for one in every)]
    return Advice(
        f"**Before a request, some methods need** {'; '.join(listed)}."
        if listed
        else "**Before a request, no method needs** anything.",
        _fill({"{} cannot serve a request of whole clients.": _label(refused)}),
    )


def _describe_rows(federations: Federations) -> Advice:
    """Return what was found where leavers stay and only what they planted is forgotten."""
    every = list(federations.values())
    names = list_names(every)
    refused = [name for name in names if any(explain_refusal(one, name) for one in every)]
    served = [name for name in names if all(has_served(one, name) and not one.failed(name) for one in every)]
    found = {name: list(dict.fromkeys(word for one in every for word in _list_found(one, name))) for name in served}  # fmt: skip
    kept = [f"{name_method(name)} ({' and '.join(words)})" for name, words in found.items() if words]
    gains = {name: fmean(measure_gain(one, name).mean or 0.0 for one in every) for name in served}
    return Advice(
        f"**If only rows of a client are to be forgotten** ({join_names(list(federations))}), {join_names(kept or ['no method'])} left something that was clearly found.",
        _fill({
            "Nothing was clearly found in models of {}. That does not prove that nothing is there.": _label([name for name in served if not found[name]]),
            "Their accuracy against Retrain's: {}.": [_tell_gain(name, gains[name]) for name in served if name != RETRAIN],
            "{} cannot serve such a request.": _label([name for name in names if name in refused]),
            "{} did not run in every cell.": _label([name for name in names if name not in {*served, *refused}]),
        }),
    )  # fmt: skip


def _list_found(federation: Federation, name: str) -> list[str]:
    """Return in words what a method clearly left behind."""
    backdoor = f"a backdoor that works on {measure_backdoor(federation, name).mean or 0.0:.0%}"
    return [*(["a leak"] if leaks(federation, name) else []), *([backdoor] if keeps_backdoor(federation, name) else [])]  # fmt: skip


def _label(names: Sequence[str]) -> list[str]:
    return [name_method(name) for name in names]
