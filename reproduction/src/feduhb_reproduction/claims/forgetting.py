"""Claims on forgetting: exactness and ASR. An attack that fails is not evidence that data was forgotten."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from feduhb.report.words import format_number, join_names
from feduhb_reproduction.cells import ORIGINAL, RETRAIN
from feduhb_reproduction.claims.parts import (
    APPROXIMATE,
    CIFAR,
    CONDITIONS,
    DATA,
    FAILS,
    HOLDS,
    MNIST,
    UNKNOWN,
    Claim,
    Evidence,
    Judged,
    Seen,
    format_share,
    is_clear,
    join_values,
    judge_federations,
    limit_verdict,
    name_federations,
    report_missing,
    weigh_all,
)
from feduhb_reproduction.federations import Federation
from feduhb_reproduction.measures import UHB, measure_asr, subtract_final
from feduhb_reproduction.words import LABELS

EXACT, ASR = "Exactness", "Backdoor (ASR)"
COUNTERFACTUALS = ("noise", "never")
MODELS = (ORIGINAL, UHB, RETRAIN, *APPROXIMATE)
IMPLANTED = 0.2  # that the trigger must work over the floor before anything can be said to have removed it
REMOVED = 0.05  # over the floor, at most
SAME = 0.01  # how near to the paper's ASR is the same
BACKDOOR = "backdoor"
DEMO = "on the demo's federation, with noise in place of the forgotten data and without the data"
GRID = "; on the iid federations of the grid, with and without a backdoor in the data"
HARM = "That an approximate method leaves a backdoor that works over the floor is"
UNSEEN = "; what one backdoor does not show may be there all the same"
ITS_OWN = "the model is the one that FedUHB gives on the remaining clients, not FedAvg's"
PAPERS = 0.0335  # FedUHB's ASR in the paper
Audit = Mapping[str, Any]


def judge_exact(evidence: Evidence) -> Judged:
    """Judge whether FedUHB gives the weights of a federation that never held the data, and what the others leave of it."""
    same = _judge_same(evidence)
    if same.verdict != HOLDS:
        return same
    left = _judge_left(evidence)
    measured = "\n\n".join(filter(None, (same.measured, left.measured)))
    said = f"FedUHB is exact {same.why}"
    shown = {HOLDS: "", CONDITIONS: left.why, FAILS: "shown for none", UNKNOWN: f"unknown: {left.why}"}
    harm = (
        f"{HARM} {shown[left.verdict]}{UNSEEN if left.verdict != UNKNOWN else ''}"
        if shown[left.verdict]
        else ""
    )
    return Judged(
        measured,
        HOLDS if left.verdict == HOLDS else CONDITIONS,
        ". ".join(filter(None, (said, harm))),
        "; ".join(filter(None, (same.brief, left.brief))),
    )


def _judge_same(evidence: Evidence) -> Judged:
    """Judge whether FedUHB gives the same weights, bit for bit, whatever the forgotten data is."""
    audits, swapped = evidence.audits or {}, _compare_cells(evidence)
    found = {name: _list_checks(audits[name]) for name in (UHB, *APPROXIMATE) if name in audits}
    if len(found) < 3 or not all(len(checks) == len(COUNTERFACTUALS) for checks in found.values()):
        return Judged("", UNKNOWN, "an audit of FedUHB, FedEraser or FedRecover is missing")
    lines = [
        f"{LABELS[name]}: {_describe_checks(checks)}{_format_counts(swapped.get(name))}"
        for name, checks in found.items()
    ]
    lines += (
        [f"{LABELS[RETRAIN]}{_format_counts(swapped[RETRAIN]).replace(',', ':', 1)}"]
        if RETRAIN in swapped
        else []
    )
    grid = (
        " Then the cells of the grid with the same weights with and without a backdoor in the forgotten data."
    )
    head = f"With noise in place of the forgotten data, and in a federation that never held it.{grid if swapped else ''}"
    measured = "\n".join([head, *lines])
    same = [name for name, checks in found.items() if all(check["identical"] for check in checks)]
    brief = f"the same weights bit for bit: {join_names([LABELS[name] for name in same]) if same else 'none'}"
    if swapped:
        cells = [f"{sum(alike)} of {len(alike)} of {LABELS[name]}" for name, alike in swapped.items()]
        brief += f"; in cells with and without a backdoor: {join_names(cells)}"
    agree = all(all(alike) for name, alike in swapped.items() if name in (UHB, RETRAIN))
    if UHB not in same or not agree:
        return Judged(measured, FAILS, "", brief)
    return Judged(measured, HOLDS, f"{DEMO}{GRID if swapped else ''}; {ITS_OWN}", brief)


def _judge_left(evidence: Evidence) -> Judged:
    """Judge whether the backdoor still works over the floor after each approximate method."""
    every = {
        name: one for data in DATA for name, one in name_federations(evidence.planted(data), data).items()
    }
    took = {name: one for name, one in every.items() if _took_hold(one)}
    idle = {name: one for name, one in every.items() if name not in took}
    lead = f"ASR over the floor (Retrain's, of the same seed), in points, of {join_values(LABELS[run] for run in APPROXIMATE)}"
    brief = ("ASR over the floor: FedEraser {} points, FedRecover {}", "+.2f", "+.2f")
    judged = judge_federations(took, partial(_see_left, idle=tuple(idle.values())), lead, brief)
    if judged.verdict == UNKNOWN:
        return replace(judged, why="no original model learned a backdoor")
    rows = [
        f"{name}, where the original model did not learn it: {_format_left(one)}"
        for name, one in idle.items()
    ]
    return replace(judged, measured="\n".join([judged.measured, *rows]))


def _see_left(federation: Federation, *, idle: Sequence[Federation]) -> Seen | None:
    """Compare the ASR with the floor, and with what it is over the floor where there was nothing to leave."""
    found = {run: subtract_final(federation, run, RETRAIN, BACKDOOR) for run in APPROXIMATE}
    if not all(more.n for more in found.values()):
        return None
    data = federation.cells[0].place.data
    without = {
        run: [
            subtract_final(one, run, RETRAIN, BACKDOOR).mean or 0.0
            for one in idle
            if one.cells[0].place.data == data
        ]
        for run in found
    }
    shown = {
        LABELS[run]: is_clear(more) and (more.mean or 0.0) > max(without[run], default=0.0)
        for run, more in found.items()
    }
    values = tuple(100 * (more.mean or 0.0) for more in found.values())
    return weigh_all(shown, _format_left(federation), "shown for {} only", values)


def _format_left(federation: Federation) -> str:
    found = (subtract_final(federation, run, RETRAIN, BACKDOOR).mean for run in APPROXIMATE)
    return join_values("none" if more is None else f"{100 * more:+.2f}" for more in found)


def _compare_cells(evidence: Evidence) -> dict[str, list[bool]]:
    """Return by method, for each cell with a backdoor, whether the cell without it has the same weights."""
    found: dict[str, list[bool]] = {}
    for cells in evidence.cells.values():
        clean = {cell.place.name: cell for cell in cells if not cell.place.backdoor}
        for cell in cells:
            other = clean.get(replace(cell.place, backdoor=False).name) if cell.place.backdoor else None
            for run in (UHB, RETRAIN, *APPROXIMATE):
                if other is not None and run in cell.runs and run in other.runs:
                    found.setdefault(run, []).append(cell.runs[run].weights == other.runs[run].weights)
    return found


def _format_counts(alike: Sequence[bool] | None) -> str:
    return f", {sum(alike)} of {len(alike)} cells" if alike else ""


def _list_checks(audit: Audit) -> list[Mapping[str, Any]]:
    return [
        check
        for check in (audit.get("exactness") or {}).get("checks", ())
        if check["name"] in COUNTERFACTUALS
    ]


def _describe_checks(checks: list[Mapping[str, Any]]) -> str:
    if all(check["identical"] for check in checks):
        return "the same weights, bit for bit"
    return f"other weights, up to {format_number(max(check['largest_difference'] or 0.0 for check in checks))} apart"


def judge_removed(evidence: Evidence) -> Judged:
    """Judge whether the trigger no longer works on any unlearned model."""
    return _judge_backdoor(evidence, MNIST, _see_removed)


def _see_removed(federation: Federation) -> Seen | None:
    found = {run: subtract_final(federation, run, RETRAIN, BACKDOOR).mean for run in (UHB, *APPROXIMATE)}
    gone = {LABELS[run]: more <= REMOVED for run, more in found.items() if more is not None}
    if len(gone) < len(found):
        return None
    seen = weigh_all(gone, _format_rates(federation), "true of {} only", _list_rates(federation))
    ours = measure_asr(federation, UHB).mean
    if not seen.holds or ours is None or abs(ours - PAPERS) <= SAME:
        return seen
    return replace(
        seen, holds=None, but=f"prevented, but FedUHB's ASR is {format_share(ours)} and not {PAPERS:.2%}"
    )


def judge_below(evidence: Evidence) -> Judged:
    """Judge whether both exact methods have a lower ASR than both approximate methods."""
    return _judge_backdoor(evidence, CIFAR, _see_below)


def _see_below(federation: Federation) -> Seen | None:
    found = {
        run: [subtract_final(federation, run, low, BACKDOOR) for low in (UHB, RETRAIN)] for run in APPROXIMATE
    }
    if not all(more.n for each in found.values() for more in each):
        return None
    under = {
        f"{LABELS[low]} against {LABELS[run]}": is_clear(more)
        for run, each in found.items()
        for low, more in zip((UHB, RETRAIN), each, strict=True)
    }
    return weigh_all(under, _format_rates(federation), "clearly lower only for {}", _list_rates(federation))


def _judge_backdoor(evidence: Evidence, data: str, look: Callable[[Federation], Seen | None]) -> Judged:
    """Judge by the federations whose trigger worked on the original: elsewhere there was nothing to remove."""
    found = evidence.planted(data)
    if not found:
        return (
            report_missing(data)
            if not evidence.clean(data)
            else Judged("", UNKNOWN, "no cell has a backdoor")
        )
    lead = f"ASR of {join_values(LABELS[run] for run in MODELS)}"
    brief = ("original {}, FedUHB {}, Retrain {}, FedEraser {}, FedRecover {}", *[".1%"] * len(MODELS))
    every = name_federations(found)
    took = {name: one for name, one in every.items() if _took_hold(one)}
    judged = judge_federations(took or every, look, lead, brief)
    nothing = "the original model did not learn the backdoor: there was nothing to remove"
    return limit_verdict(every, judged, took, nothing, "where the original model did not learn the backdoor")


def _took_hold(federation: Federation) -> bool:
    return (subtract_final(federation, ORIGINAL, RETRAIN, BACKDOOR).mean or 0.0) >= IMPLANTED


def _format_rates(federation: Federation) -> str:
    return join_values(map(format_share, _list_rates(federation)))


def _list_rates(federation: Federation) -> tuple[float | None, ...]:
    return tuple(measure_asr(federation, run).mean for run in MODELS)


EXACTNESS = [
    Claim(
        EXACT, "abstract, I, V",
        "FedUHB is exact; approximate methods leave something of the forgotten data",
        "FedUHB gives the same weights, bit for bit, with noise in place of the forgotten data, and in a federation that never held it. FedUHB and Retrain give "
        "the same weights in cells that differ only in a backdoor in the forgotten data. And: where the original model learned the backdoor, it works clearly more often "
        "after FedEraser and after FedRecover than on the same seed's Retrain, and by more than where the original model did not learn it. Other weights alone do not "
        "count: they show that a method depends on the forgotten data, not that anything harmful is left. In part: only one of these.",
        judge_exact,
    ),
]  # fmt: skip
BACKDOORS = [
    Claim(
        ASR, "IV-B.4, Fig. 4",
        "MNIST: all four methods prevent the backdoor attack; FedUHB's ASR is 3.35 %",
        f"The ASR (the share of test images on which the trigger works) of the original model is at least {100 * IMPLANTED:g} points above Retrain's, and that of each "
        f"unlearned model is at most {100 * REMOVED:g} points above Retrain's. FedUHB's ASR is within {100 * SAME:g} point of {PAPERS:.2%}.",
        judge_removed,
    ),
    Claim(
        ASR, "IV-B.4, Fig. 4",
        "CIFAR-10: the ASRs of FedUHB and Retrain are lower than the others'",
        f"The ASR of the original model is at least {100 * IMPLANTED:g} points above Retrain's, and the ASRs of both exact methods are clearly below those of both others.",
        judge_below,
    ),
]  # fmt: skip
