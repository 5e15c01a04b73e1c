"""Claims on forgetting: exactness and ASR. No attack that fails is taken for evidence that data was forgotten."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from feduhb.report.words import listed, number
from feduhb_reproduction.cells import ORIGINAL, RETRAIN
from feduhb_reproduction.report.claims_parts import (
    APPROXIMATE,
    CIFAR,
    FAILS,
    HOLDS,
    MNIST,
    UNKNOWN,
    Claim,
    Evidence,
    Judged,
    Seen,
    able,
    clear,
    everywhere,
    missing,
    named,
    ordered,
    several,
    share,
)
from feduhb_reproduction.report.federations import Federation
from feduhb_reproduction.report.measures import UHB, asr, over
from feduhb_reproduction.report.printed import LABELS

EXACT, ASR = "Exactness", "Backdoor (ASR)"
COUNTERFACTUALS = ("noise", "never")
MODELS = (ORIGINAL, UHB, RETRAIN, *APPROXIMATE)
IMPLANTED = 0.2  # that the trigger must work over the floor before anything can be said to have removed it
REMOVED = 0.05  # over the floor, at most
SAME = 0.01  # how near to the paper's ASR is the same
BACKDOOR = "backdoor"
DEMO = "with noise for the forgotten data and without them, on the demo's federation"
GRID = "; with and without a backdoor in them, on the iid federations of the grid"
ITS_OWN = "FedUHB's model is the one that FedUHB gives on the remaining clients, not FedAvg's"
PAPERS = 0.0335  # FedUHB's ASR in the paper
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


EXACTNESS = [
    Claim(
        EXACT, "abstract, I, V",
        "FedUHB is exact: nothing of the forgotten data is left. Approximate methods leave some.",
        "With the forgotten data replaced by noise, and in a federation that never held it, FedUHB gives the same weights bit for "
        "bit, FedEraser and FedRecover do not; and so with Retrain where cells of the grid differ in a backdoor of the forgotten data alone.",
        exact,
    ),
]  # fmt: skip
BACKDOORS = [
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
