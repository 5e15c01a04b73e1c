"""Claims on forgetting: exactness, MISR and ASR. No attack that fails is taken for evidence that data was forgotten."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from operator import itemgetter
from typing import Any

from feduhb.cells import ORIGINAL, RETRAIN
from feduhb.report.paper.claims_parts import (
    CIFAR,
    DATA,
    FAILS,
    HOLDS,
    MNIST,
    NEITHER,
    UNKNOWN,
    Claim,
    Evidence,
    Judged,
    Seen,
    able,
    across,
    clear,
    every_data,
    everywhere,
    middle,
    missing,
    named,
    ordered,
    paired,
    several,
    share,
)
from feduhb.report.paper.federations import Federation
from feduhb.report.paper.measures import TREES, UHB, asr, attackers, over
from feduhb.report.paper.printed import LABELS
from feduhb.report.words import listed, number

EXACT, MISR, ASR = "Exactness", "Membership (MISR)", "Backdoor (ASR)"
COUNTERFACTUALS = ("noise", "never")
APPROXIMATE = ("federaser", "fedrecover")
MODELS = (ORIGINAL, UHB, RETRAIN, *APPROXIMATE)
HALF, NEAR, PRINTED = 0.5, 0.1, 0.239  # close to 0.5, how near is close, the paper's Retrain
TELLS = 0.05  # over Retrain's MISR, from which on the original model's says something
IMPLANTED = 0.2  # that the trigger must work over the floor before anything can be said to have removed it
REMOVED = 0.05  # over the floor, at most
SAME = 0.01  # how near to the paper's ASR is the same
BACKDOOR = "backdoor"
DEMO = "with noise for the forgotten data and without them, on the demo's federation"
GRID = "; with and without a backdoor in them, on the iid federations of the grid"
ITS_OWN = "FedUHB's model is the one that FedUHB gives on the remaining clients, not FedAvg's"
PAPERS = 0.0335  # FedUHB's ASR in the paper
RECALL = "MISR is a recall: chance is the attacker's rate on test data, not 50 %"
Audit = Mapping[str, Any]


def exact(evidence: Evidence) -> Judged:
    """Judge whether FedUHB gives the weights of a federation that never held the data, and the others do not."""
    audits, swapped = evidence.audits or {}, _swapped(evidence)
    found = {name: _checks(audits[name]) for name in (UHB, *APPROXIMATE) if name in audits}
    if len(found) < 3 or not all(len(checks) == len(COUNTERFACTUALS) for checks in found.values()):
        return Judged("", UNKNOWN, "the audits of FedUHB, FedEraser and FedRecover are not all there")
    told = [f"{LABELS[name]}: {_told(checks)}{_counted(swapped.get(name))}" for name, checks in found.items()]
    told += (
        [f"{LABELS[RETRAIN]}{_counted(swapped[RETRAIN]).replace(',', ':', 1)}"] if RETRAIN in swapped else []
    )
    grid = " Then in how many cells of the grid the weights are the same with and without a backdoor in the forgotten data."
    head = f"With noise in place of the forgotten data, and in a federation that never held it.{grid if swapped else ''}"
    measured = "\n".join([head, *told])
    same = [name for name, checks in found.items() if all(check["identical"] for check in checks)]
    brief = f"the same weights bit for bit: {listed([LABELS[name] for name in same]) if same else 'none'}"
    if swapped:
        cells = [f"{sum(alike)} of {len(alike)} of {LABELS[name]}" for name, alike in swapped.items()]
        brief += f"; in cells with and without a backdoor: {listed(cells)}"
    agree = all(all(alike) if name in (UHB, RETRAIN) else not any(alike) for name, alike in swapped.items())
    if same != [UHB] or not agree:
        return Judged(measured, FAILS, "", brief)
    return Judged(measured, HOLDS, f"{DEMO}{GRID if swapped else ''}; {ITS_OWN}", brief)


def _swapped(evidence: Evidence) -> dict[str, list[bool]]:
    """Say of each cell with a backdoor whether a method gives the weights of the cell that differs in the forgotten data alone."""
    found: dict[str, list[bool]] = {}
    for cells in evidence.cells.values():
        clean = {cell.place.name: cell for cell in cells if not cell.place.backdoor}
        for cell in cells:
            other = clean.get(replace(cell.place, backdoor=False).name) if cell.place.backdoor else None
            for run in (UHB, RETRAIN, *APPROXIMATE):
                if other is not None and run in cell.runs and run in other.runs:
                    found.setdefault(run, []).append(cell.runs[run].weights == other.runs[run].weights)
    return found


def _counted(alike: Sequence[bool] | None) -> str:
    return f", {sum(alike)} of {len(alike)} cells" if alike else ""


def _checks(audit: Audit) -> list[Mapping[str, Any]]:
    return [
        check
        for check in (audit.get("exactness") or {}).get("checks", ())
        if check["name"] in COUNTERFACTUALS
    ]


def _told(checks: list[Mapping[str, Any]]) -> str:
    if all(check["identical"] for check in checks):
        return "the same weights, bit for bit"
    return f"other weights, up to {number(max(check['largest_difference'] or 0.0 for check in checks))} apart"


def _pairs(federation: Federation, run: str, attacker: str) -> dict[int, tuple[float, float]]:
    """Give by seed the shares of the forgotten data and of test data that an attacker calls member."""
    whole = federation.tracks(run)
    found = {
        c.place.seed: c.misr.get(attacker, {}).get(run) for c in federation.cells if c.place.seed in whole
    }
    return {seed: pair for seed, pair in found.items() if pair}


def called(federation: Federation, run: str, *, on_test: bool = False) -> dict[int, float]:
    """Give by seed the share of the forgotten data, or of test data, that the paper's attacker calls member."""
    return {seed: pair[on_test] for seed, pair in _pairs(federation, run, TREES).items()}


def half(evidence: Evidence) -> Judged:
    """Judge whether an MISR close to one half tells a model that never saw the data from one that did."""
    found = every_data(evidence)
    lead = "MISR (the attacker's rate on test data) of Retrain, which never saw the data / of the original model, which did"
    judged = everywhere(found, _half, lead, ("Retrain {}, the original model {}", ".1%", ".1%"))
    return judged if judged.verdict == HOLDS else replace(judged, why=judged.why or RECALL)


def _half(federation: Federation) -> Seen | None:
    found = {run: middle(called(federation, run)) for run in (RETRAIN, ORIGINAL)}
    if any(map(math.isnan, found.values())):
        return None
    near = {run: abs(rate - HALF) <= NEAR for run, rate in found.items()}
    told = ordered(_rates(federation, run) for run in found)
    return Seen(near[RETRAIN] and not near[ORIGINAL], told, values=tuple(found.values()))


def _rates(federation: Federation, run: str) -> str:
    rates = (middle(called(federation, run, on_test=on_test)) for on_test in (False, True))
    return "{} ({})".format(*map(share, rates))


def levels(evidence: Evidence) -> Judged:
    """Judge whether Retrain's MISR is 23.9 % and those of FedEraser and FedRecover are close to one half."""
    lead = "MISR (the attacker's rate on test data) of Retrain / FedEraser / FedRecover"
    brief = ("Retrain {}, FedEraser {}, FedRecover {}", ".1%", ".1%", ".1%")
    return across(evidence, MNIST, _levels, lead, brief)


def _levels(federation: Federation) -> Seen | None:
    wanted = {RETRAIN: PRINTED, **dict.fromkeys(APPROXIMATE, HALF)}
    found = {run: middle(called(federation, run)) for run in wanted}
    if any(map(math.isnan, found.values())):
        return None
    near = all(abs(found[run] - goal) <= NEAR for run, goal in wanted.items())
    return Seen(near, ordered(_rates(federation, run) for run in wanted), values=tuple(found.values()))


def beyond(federation: Federation, run: str, attacker: str) -> dict[int, float]:
    """Give by seed how much more of the forgotten data than of test data an attacker calls member: 0 is chance."""
    return {seed: mine - test for seed, (mine, test) in _pairs(federation, run, attacker).items()}


def lower(evidence: Evidence, *, data: str, than: tuple[str, ...], among: str = "") -> Judged:
    """Judge whether FedUHB has a lower MISR over chance than others, and a higher one than on other data."""
    every, other = named(evidence.clean(data)), evidence.clean(among) if among else []
    if not every or (among and not other):
        return missing(among if every else data)
    fit = {name: one for name, one in every.items() if any(_tells(one, each) for each in attackers(one))}
    names = ordered(LABELS[run] for run in dict.fromkeys((UHB, *than, ORIGINAL, RETRAIN)))
    lead = f"MISR over the attacker's rate on test data, in points, of {names}" + (
        f" / of FedUHB on {DATA[among]}" if among else ""
    )
    brief = ("over chance {} points; the lowest of the others {}; the original model {}", *["+.1f"] * 3)
    judged = everywhere(fit or every, partial(_lower, than=than, other=other), lead, brief)
    blind = f"where neither attacker sets the original model {100 * TELLS:g} points above Retrain, so that nothing to forget is seen"
    return (
        judged
        if judged.verdict == UNKNOWN
        else able(every, judged, fit, f"nowhere can it be seen: {blind}", blind)
    )


def _tells(federation: Federation, attacker: str) -> bool:
    """Whether an attacker sees in the original model what Retrain never saw."""
    found = paired(*(beyond(federation, run, attacker) for run in (ORIGINAL, RETRAIN))).mean
    return found is not None and found >= TELLS


def _lower(federation: Federation, *, than: tuple[str, ...], other: Sequence[Federation]) -> Seen | None:
    """Every attacker must see it, and see something at all in the original model."""
    passed: dict[str, bool] = {}
    told: list[str] = []
    values: list[tuple[bool, tuple[float, ...]]] = []
    for attacker in attackers(federation):
        rates = {run: beyond(federation, run, attacker) for run in (UHB, *than, ORIGINAL, RETRAIN)}
        if not all(rates.values()):
            continue
        tells = _tells(federation, attacker)
        for run in than:
            passed[f"lower than {LABELS[run]}'s by {attacker}"] = tells and clear(
                paired(rates[run], rates[UHB])
            )
        like = [beyond(one, UHB, attacker) for one in other if one.partition == federation.partition]
        levels = [100 * middle(each) for each in (*rates.values(), *like)]
        if other:
            highest = max((level for level in levels[len(rates) :]), default=math.inf)
            passed[f"higher than on {DATA[other[0].cells[0].place.data]} by {attacker}"] = (
                tells and levels[0] > highest
            )
        told.append(
            f"{ordered(f'{level:+.1f}' for level in levels)} ({attacker}{'' if tells else ', which hardly tells the original from Retrain'})"
        )
        values.append((tells, (levels[0], min(levels[1 : 1 + len(than)]), levels[1 + len(than)])))
    if not passed:
        return None
    return several(passed, ", ".join(told), "{} only", max(values, key=itemgetter(0))[1])


def removed(evidence: Evidence) -> Judged:
    """Judge whether the trigger works on no unlearned model."""
    return _backdoor(evidence, MNIST, _removed)


def _removed(federation: Federation) -> Seen | None:
    found = {run: over(federation, run, RETRAIN, BACKDOOR).mean for run in (UHB, *APPROXIMATE)}
    gone = {LABELS[run]: more <= REMOVED for run, more in found.items() if more is not None}
    if len(gone) < len(found):
        return None
    seen, ours = (
        several(gone, _asr(federation), "true of {} only", _rates_of(federation)),
        asr(federation, UHB).mean,
    )
    if not seen.holds or ours is None or abs(ours - PAPERS) <= SAME:
        return seen
    return replace(seen, holds=None, but=f"prevented, but FedUHB's ASR is {share(ours)} and not {PAPERS:.2%}")


def below(evidence: Evidence) -> Judged:
    """Judge whether the exact two have a lower ASR than the approximate two."""
    return _backdoor(evidence, CIFAR, _below)


def _below(federation: Federation) -> Seen | None:
    found = {run: [over(federation, run, low, BACKDOOR) for low in (UHB, RETRAIN)] for run in APPROXIMATE}
    if not all(more.n for each in found.values() for more in each):
        return None
    under = {
        f"{LABELS[low]} under {LABELS[run]}": clear(more)
        for run, each in found.items()
        for low, more in zip((UHB, RETRAIN), each, strict=True)
    }
    return several(under, _asr(federation), "clearly {} only", _rates_of(federation))


def _backdoor(evidence: Evidence, data: str, look: Callable[[Federation], Seen | None]) -> Judged:
    """Judge by the federations whose trigger worked before: where it did not, nothing was there to remove."""
    found = evidence.planted(data)
    if not found:
        return missing(data) if not evidence.clean(data) else Judged("", UNKNOWN, "no cell has a backdoor")
    lead = f"ASR of {ordered(LABELS[run] for run in MODELS)}"
    brief = ("original {}, FedUHB {}, Retrain {}, FedEraser {}, FedRecover {}", *[".1%"] * len(MODELS))
    every = named(found)
    took = {name: one for name, one in every.items() if _took(one)}
    judged = everywhere(took or every, look, lead, brief)
    nothing = "the backdoor did not take: there was nothing to remove"
    return able(every, judged, took, nothing, "where the backdoor did not take")


def _took(federation: Federation) -> bool:
    return (over(federation, ORIGINAL, RETRAIN, BACKDOOR).mean or 0.0) >= IMPLANTED


def _asr(federation: Federation) -> str:
    return ordered(map(share, _rates_of(federation)))


def _rates_of(federation: Federation) -> tuple[float | None, ...]:
    return tuple(asr(federation, run).mean for run in MODELS)


OVER = (
    "Where an attacker sees the original model at least "
    f"{100 * TELLS:g} points above Retrain (elsewhere nothing to forget is seen), its MISR over that attacker's rate on test data, which is chance,"
)
CLAIMS = [
    Claim(
        EXACT, "abstract, I, V",
        "FedUHB is exact: nothing of the forgotten data is left. Approximate methods leave some.",
        "With the forgotten data replaced by noise, and in a federation that never held it, FedUHB gives the same weights bit for "
        "bit, FedEraser and FedRecover do not; and so with Retrain where cells of the grid differ in a backdoor of the forgotten data alone.",
        exact,
    ),
    Claim(
        MISR, "IV-A.3",
        "An MISR close to 0.5 suggests successful unlearning.",
        f"Retrain's is within {100 * NEAR:g} points of 50 %, and the original model's is not: else it tells nothing.",
        half,
        NEITHER,
    ),
    Claim(
        MISR, "IV-B.4, Fig. 4",
        f"MNIST: Retrain's MISR is only {PRINTED:.1%}, FedEraser's and FedRecover's are close to 50 %.",
        f"Each is within {100 * NEAR:g} points of that.",
        levels,
        NEITHER,
    ),
    Claim(
        MISR, "IV-B.4, Fig. 4",
        "MNIST: FedUHB's MISR is lower than FedEraser's and FedRecover's.",
        f"{OVER} is clearly below both, by both attackers.",
        partial(lower, data=MNIST, than=APPROXIMATE),
    ),
    Claim(
        MISR, "IV-B.4, Fig. 4",
        "CIFAR-10: FedUHB does slightly worse than on MNIST and still better than Retrain.",
        f"{OVER} is clearly below Retrain's, and in the mean above that on MNIST with the same partition and any number of images, by both attackers.",
        partial(lower, data=CIFAR, than=(RETRAIN,), among=MNIST),
    ),
    Claim(
        ASR, "IV-B.4, Fig. 4",
        "MNIST: all four methods prevent the attack; FedUHB's ASR is 3.35 %.",
        f"The trigger works at least {100 * IMPLANTED:g} points over the floor (Retrain's rate) on the original model, and at most "
        f"{100 * REMOVED:g} over it on each unlearned one, and FedUHB's ASR is within {100 * SAME:g} point of {PAPERS:.2%}.",
        removed,
    ),
    Claim(
        ASR, "IV-B.4, Fig. 4",
        "CIFAR-10: the ASRs of FedUHB and Retrain are lower than those of FedEraser and FedRecover.",
        f"The trigger works at least {100 * IMPLANTED:g} points over the floor on the original model, and both exact methods are "
        "clearly below both others.",
        below,
    ),
]  # fmt: skip
