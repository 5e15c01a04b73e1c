"""Claims on forgetting: exactness, MISR and ASR. No attack that fails is taken for evidence that data was forgotten."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any

from feduhb.cells import ORIGINAL, RETRAIN
from feduhb.report.paper.claims_parts import (
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
    across,
    clear,
    everywhere,
    grouped,
    middle,
    missing,
    named,
    ordered,
    paired,
    several,
    share,
)
from feduhb.report.paper.federations import Federation
from feduhb.report.paper.measures import TREES, UHB, asr, over
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
BACKDOOR = "backdoor"
DEMO = "measured on the demo's federation; FedUHB's model is the one that FedUHB gives on the remaining clients, not FedAvg's"
RECALL = "MISR is a recall: chance is the attacker's rate on test data, not 50 %"
Audit = Mapping[str, Any]


def exact(evidence: Evidence) -> Judged:
    """Judge whether FedUHB gives the weights of a federation that never held the data, and the others do not."""
    audits = evidence.audits or {}
    found = {name: _checks(audits[name]) for name in (UHB, *APPROXIMATE) if name in audits}
    if len(found) < 3 or not all(len(checks) == len(COUNTERFACTUALS) for checks in found.values()):
        return Judged("", UNKNOWN, "the audits of FedUHB, FedEraser and FedRecover are not all there")
    told = "\n".join(f"{LABELS[name]}: {_told(checks)}" for name, checks in found.items())
    measured = f"With noise in place of the forgotten data, and in a federation that never held it.\n{told}"
    same = [name for name, checks in found.items() if all(check["identical"] for check in checks)]
    brief = f"the same weights bit for bit: {listed([LABELS[name] for name in same]) if same else 'none'}"
    return Judged(measured, HOLDS, DEMO, brief) if same == [UHB] else Judged(measured, FAILS, "", brief)


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


def called(federation: Federation, run: str, *, on_test: bool = False) -> dict[int, float]:
    """Give by seed the share of the forgotten data, or of test data, that the paper's attacker calls member."""
    whole = federation.tracks(run)
    pairs = {c.place.seed: c.misr.get(TREES, {}).get(run) for c in federation.cells if c.place.seed in whole}
    return {seed: pair[on_test] for seed, pair in pairs.items() if pair}


def half(evidence: Evidence) -> Judged:
    """Judge whether an MISR close to one half tells a model that never saw the data from one that did."""
    found = {name: one for data in DATA for name, one in named(evidence.clean(data), data).items()}
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


def lower(evidence: Evidence, *, data: str, than: tuple[str, ...]) -> Judged:
    """Judge whether FedUHB has a lower MISR than others."""
    names = ordered(LABELS[run] for run in (UHB, *than))
    lead = f"MISR of {names} / the original model (the attacker's rate on test data)"
    brief = ("{}; the lowest of the others {}; the original model {}", ".1%", ".1%", ".1%")
    judged = across(evidence, data, partial(_lower, than=than), lead, brief)
    return replace(judged, why="; ".join(part for part in (judged.why, _weak(evidence, data)) if part))


def _lower(federation: Federation, *, than: tuple[str, ...]) -> Seen | None:
    ours, others = called(federation, UHB), {run: called(federation, run) for run in than}
    if not ours or not all(others.values()):
        return None
    told = ordered(share(middle(each)) for each in (ours, *others.values()))
    under = {LABELS[run]: clear(paired(other, ours)) for run, other in others.items()}
    values = middle(ours), min(map(middle, others.values())), middle(called(federation, ORIGINAL))
    return several(under, f"{told} / {_rates(federation, ORIGINAL)}", "than {} only", values)


def _weak(evidence: Evidence, data: str) -> str:
    """Say where the attacker hardly tells the original model from Retrain, so that a low MISR means nothing."""
    found = named(evidence.clean(data)).items()
    more = {name: paired(called(one, ORIGINAL), called(one, RETRAIN)).mean for name, one in found}
    weak = [name for name, mean in more.items() if mean is not None and mean < TELLS]
    if not weak:
        return ""
    return f"a low MISR means nothing for {grouped(weak)}, where the original model's is less than {100 * TELLS:g} points above Retrain's"


def removed(evidence: Evidence) -> Judged:
    """Judge whether the trigger works on no unlearned model."""
    return _backdoor(evidence, MNIST, _removed)


def _removed(federation: Federation) -> Seen | None:
    found = {run: over(federation, run, RETRAIN, BACKDOOR).mean for run in (UHB, *APPROXIMATE)}
    gone = {LABELS[run]: more <= REMOVED for run, more in found.items() if more is not None}
    if len(gone) < len(found):
        return None
    return several(gone, _asr(federation), "true of {} only", _rates_of(federation))


def below(evidence: Evidence) -> Judged:
    """Judge whether the exact two have a lower ASR than the approximate two."""
    return _backdoor(evidence, CIFAR, _below)


def _below(federation: Federation) -> Seen | None:
    found = {run: [over(federation, run, low, BACKDOOR) for low in (UHB, RETRAIN)] for run in APPROXIMATE}
    if not all(more.n for each in found.values() for more in each):
        return None
    under = {LABELS[run]: all(map(clear, each)) for run, each in found.items()}
    return several(under, _asr(federation), "than that of {} only", _rates_of(federation))


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
    if not took:
        return replace(judged, verdict=UNKNOWN, why="the backdoor did not take: there was nothing to remove")
    idle = [name for name in every if name not in took]
    if not idle:
        return judged
    said = judged.why or (f"for {grouped(took)}" if judged.verdict == HOLDS else "")
    why = [*([said] if said else []), f"nothing is known of {grouped(idle)}, where the backdoor did not take"]
    return replace(
        judged, verdict=CONDITIONS if judged.verdict == HOLDS else judged.verdict, why="; ".join(why)
    )


def _took(federation: Federation) -> bool:
    return (over(federation, ORIGINAL, RETRAIN, BACKDOOR).mean or 0.0) >= IMPLANTED


def _asr(federation: Federation) -> str:
    return ordered(map(share, _rates_of(federation)))


def _rates_of(federation: Federation) -> tuple[float | None, ...]:
    return tuple(asr(federation, run).mean for run in MODELS)


CLAIMS = [
    Claim(
        EXACT, "abstract, I, V",
        "FedUHB is exact: nothing of the forgotten data is left. Approximate methods leave some.",
        "With the forgotten data replaced by noise, and in a federation that never held it, FedUHB gives the same weights bit for "
        "bit, FedEraser and FedRecover do not.",
        exact,
    ),
    Claim(
        MISR, "IV-A.3",
        "An MISR close to 0.5 suggests successful unlearning.",
        f"Retrain's is within {100 * NEAR:g} points of 50 %, and the original model's is not: else it tells nothing.",
        half,
    ),
    Claim(
        MISR, "IV-B.4, Fig. 4",
        f"MNIST: Retrain's MISR is only {PRINTED:.1%}, FedEraser's and FedRecover's are close to 50 %.",
        f"Each is within {100 * NEAR:g} points of that.",
        levels,
    ),
    Claim(
        MISR, "IV-B.4, Fig. 4",
        "MNIST: FedUHB's MISR is lower than FedEraser's and FedRecover's.",
        "It is clearly below both.",
        partial(lower, data=MNIST, than=APPROXIMATE),
    ),
    Claim(
        MISR, "IV-B.4, Fig. 4",
        "CIFAR-10: FedUHB does slightly worse than on MNIST and still better than Retrain.",
        "Its MISR is clearly below Retrain's.",
        partial(lower, data=CIFAR, than=(RETRAIN,)),
    ),
    Claim(
        ASR, "IV-B.4, Fig. 4",
        "MNIST: all four methods prevent the attack; FedUHB's ASR is 3.35 %.",
        f"The trigger works at least {100 * IMPLANTED:g} points over the floor (Retrain's rate) on the original model, and at most "
        f"{100 * REMOVED:g} over it on each unlearned one.",
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
