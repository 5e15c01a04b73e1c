"""Claims on membership inference: the paper's rate (MISR), and its excess over the attacker's rate on test data."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from operator import itemgetter

from feduhb.report.words import join_names
from feduhb_reproduction.cells import ORIGINAL, RETRAIN
from feduhb_reproduction.claims.parts import (
    APPROXIMATE,
    CIFAR,
    CONDITIONS,
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
    average,
    conclude,
    format_share,
    group_names,
    is_clear,
    join_values,
    judge_data,
    judge_federations,
    limit_verdict,
    list_federations,
    name_federations,
    report_missing,
    subtract,
    weigh_all,
)
from feduhb_reproduction.federations import Federation
from feduhb_reproduction.measures import TREES, UHB, list_attackers
from feduhb_reproduction.words import LABELS

MISR = "Membership (MISR)"
HALF, NEAR, PRINTED = 0.5, 0.1, 0.239  # close to 0.5, how near is close, the paper's Retrain
LEVELS = {RETRAIN: PRINTED, **dict.fromkeys(APPROXIMATE, HALF)}  # the paper's
PARTS = {f"Retrain's {PRINTED:.1%}": (RETRAIN,), "the others' close to 50 %": APPROXIMATE}
TELLS = 0.05  # over Retrain's MISR, from which on the original model's says something
RECALL = "MISR is a recall: a model that never saw the data gets a rate that depends on the attacker and the labels, not 50 %"
PLAINLY, BEYOND = f"as a bare rate, by {TREES}", "Minus the attacker's rate on test data"


def _list_pairs(federation: Federation, run: str, attacker: str) -> dict[int, tuple[float, float]]:
    """Return by seed the shares of the forgotten data and of test data that an attacker classifies as members."""
    whole = federation.tracks(run)
    found = {
        c.place.seed: c.misr.get(attacker, {}).get(run) for c in federation.cells if c.place.seed in whole
    }
    return {seed: pair for seed, pair in found.items() if pair}


def list_rates(federation: Federation, run: str, *, on_test: bool = False) -> dict[int, float]:
    """Return by seed the share of the forgotten data, or of test data, that the paper's attacker classifies as members."""
    return {seed: pair[on_test] for seed, pair in _list_pairs(federation, run, TREES).items()}


def judge_half(evidence: Evidence) -> Judged:
    """Judge whether an MISR close to one half separates a model that never saw the data from one that did."""
    found = list_federations(evidence)
    lead = "MISR (the attacker's rate on test data) of Retrain, which never saw the data / of the original model, which did"
    judged = judge_federations(found, _see_half, lead, ("Retrain {}, the original model {}", ".1%", ".1%"))
    return judged if judged.verdict == HOLDS else replace(judged, why=judged.why or RECALL)


def _see_half(federation: Federation) -> Seen | None:
    found = {run: average(list_rates(federation, run)) for run in (RETRAIN, ORIGINAL)}
    if any(map(math.isnan, found.values())):
        return None
    near = {run: abs(rate - HALF) <= NEAR for run, rate in found.items()}
    measured = join_values(_format_rates(federation, run) for run in found)
    return Seen(near[RETRAIN] and not near[ORIGINAL], measured, values=tuple(found.values()))


def _format_rates(federation: Federation, run: str) -> str:
    rates = (average(list_rates(federation, run, on_test=on_test)) for on_test in (False, True))
    return "{} ({})".format(*map(format_share, rates))


def judge_levels(evidence: Evidence) -> Judged:
    """Judge two statements in one: Retrain's MISR is 23.9 %, and those of FedEraser and FedRecover are close to one half."""
    lead = "MISR (the attacker's rate on test data) of Retrain / FedEraser / FedRecover"
    brief = ("Retrain {}, FedEraser {}, FedRecover {}", ".1%", ".1%", ".1%")
    judged = judge_data(evidence, MNIST, _see_levels, lead, brief)
    if judged.verdict in {HOLDS, UNKNOWN}:
        return judged
    every = name_federations(evidence.clean(MNIST))
    found = {name: one for name, one in every.items() if _see_levels(one) is not None}
    said = [f"{part}: {_conclude_level(found, runs)}" for part, runs in PARTS.items()]
    return replace(judged, why="; ".join(filter(None, (judged.why, *said))))


def _see_levels(federation: Federation) -> Seen | None:
    found = {run: average(list_rates(federation, run)) for run in LEVELS}
    if any(map(math.isnan, found.values())):
        return None
    near = all(abs(found[run] - goal) <= NEAR for run, goal in LEVELS.items())
    measured = join_values(_format_rates(federation, run) for run in LEVELS)
    return Seen(near, measured, values=tuple(found.values()))


def _conclude_level(found: Mapping[str, Federation], runs: Sequence[str]) -> str:
    """Return for which federations one of the two statements holds."""
    near = {
        name: weigh_all(
            {LABELS[run]: abs(average(list_rates(one, run)) - LEVELS[run]) <= NEAR for run in runs},
            "",
            "{} only",
        )
        for name, one in found.items()
    }
    verdict, why = conclude(near)
    return why or f"{verdict}{' in any federation' if verdict == FAILS else ''}"


def list_excess(federation: Federation, run: str, attacker: str) -> dict[int, float]:
    """Return by seed the share of the forgotten data that an attacker classifies as members, minus that of test data.

    Where clients' labels are skewed that is above 0 for a model that never saw the data, too.
    """
    return {seed: mine - test for seed, (mine, test) in _list_pairs(federation, run, attacker).items()}


def judge_lower(evidence: Evidence, *, data: str, than: tuple[str, ...], among: str = "") -> Judged:
    """Judge whether FedUHB has a lower MISR than other methods, and a higher one than on other data."""
    every, other = name_federations(evidence.clean(data)), evidence.clean(among) if among else []
    if not every or (among and not other):
        return report_missing(among if every else data)
    on_other = f" / of FedUHB on {DATA[among]}" if among else ""
    names = join_values(LABELS[run] for run in (UHB, *than))
    plain = judge_federations(
        every, partial(_see_plain, than=than, other=other), f"MISR by {TREES} of {names}{on_other}",
        ("rate {}; the lowest of the others {}", ".1%", ".1%"),
    )  # fmt: skip
    return _join_readings(plain, _judge_excess(every, than, other, on_other))


def _see_plain(federation: Federation, *, than: tuple[str, ...], other: Sequence[Federation]) -> Seen | None:
    """Compare the bare rates."""
    rates = {run: list_rates(federation, run) for run in (UHB, *than)}
    if not all(rates.values()):
        return None
    like = [list_rates(one, UHB) for one in other if one.partition == federation.partition]
    levels = [average(each) for each in (*rates.values(), *like)]
    passed = {f"lower than {LABELS[run]}'s": is_clear(subtract(rates[run], rates[UHB])) for run in than}
    if other:
        higher = f"higher than on {DATA[other[0].cells[0].place.data]}"
        passed[higher] = levels[0] > max(levels[len(rates) :], default=math.inf)
    lowest = min(levels[1 : len(rates)])
    return weigh_all(passed, join_values(map(format_share, levels)), "{} only", (levels[0], lowest))


def _judge_excess(
    every: dict[str, Federation], than: tuple[str, ...], other: Sequence[Federation], on_other: str
) -> Judged:
    """Judge by the excess over the rate on test data, if an attacker distinguishes the original model from Retrain."""
    fit = {name: one for name, one in every.items() if _list_telling(one)}
    names = join_values(LABELS[run] for run in dict.fromkeys((UHB, *than, ORIGINAL, RETRAIN)))
    lead = f"MISR minus the attacker's rate on test data, in points, of {names}{on_other}"
    by = dict.fromkeys(_list_telling(one)[0] for one in fit.values())
    where = f", for {group_names(fit)} by {join_names(list(by))}," if fit else ""
    brief = (
        f"minus the rate on test data{where} {{}} points; the lowest of the others {{}}; the original model {{}}",
        *["+.1f"] * 3,
    )
    judged = judge_federations(fit or every, partial(_see_lower, than=than, other=other), lead, brief)
    blind = f"where no attacker puts the original model {100 * TELLS:g} points above Retrain"
    if judged.verdict == UNKNOWN:
        return judged
    return limit_verdict(every, judged, fit, f"nothing to judge by: {blind}", blind)


def _join_readings(plain: Judged, over: Judged) -> Judged:
    """Join the verdicts of both readings. If only one of them holds, the claim holds under conditions."""
    if UNKNOWN in (plain.verdict, over.verdict):
        known = over if plain.verdict == UNKNOWN else plain
        verdict = CONDITIONS if known.verdict == HOLDS else known.verdict
    else:
        verdict = plain.verdict if plain.verdict == over.verdict else CONDITIONS
    said = ". ".join(
        f"{reading}: {each.why if each.verdict == CONDITIONS else ', '.join(filter(None, (each.verdict, each.why)))}"
        for reading, each in ((PLAINLY, plain), (BEYOND, over))
    )
    return Judged(
        "\n\n".join(filter(None, (plain.measured, over.measured))),
        verdict,
        "" if verdict == HOLDS else said,
        "; ".join(filter(None, (plain.brief, over.brief))),
    )


def _list_telling(federation: Federation) -> list[str]:
    """Return the attackers that distinguish the original model from Retrain."""
    found = {
        attacker: subtract(*(list_excess(federation, run, attacker) for run in (ORIGINAL, RETRAIN))).mean
        for attacker in list_attackers(federation)
    }
    return [attacker for attacker, more in found.items() if more is not None and more >= TELLS]


def _see_lower(federation: Federation, *, than: tuple[str, ...], other: Sequence[Federation]) -> Seen | None:
    """Compare the excess of every attacker that distinguishes the original model from Retrain."""
    passed: dict[str, bool] = {}
    measured: list[str] = []
    values: list[tuple[bool, tuple[float, ...]]] = []
    for attacker in list_attackers(federation):
        rates = {run: list_excess(federation, run, attacker) for run in (UHB, *than, ORIGINAL, RETRAIN)}
        if not all(rates.values()):
            continue
        like = [list_excess(one, UHB, attacker) for one in other if one.partition == federation.partition]
        levels = [100 * average(each) for each in (*rates.values(), *like)]
        tells = attacker in _list_telling(federation)
        blind = "" if tells else ", which hardly tells the original from Retrain"
        measured.append(f"{join_values(f'{level:+.1f}' for level in levels)} ({attacker}{blind})")
        values.append((tells, (levels[0], min(levels[1 : 1 + len(than)]), levels[1 + len(than)])))
        if not tells:
            continue
        for run in than:
            passed[f"lower than {LABELS[run]}'s by {attacker}"] = is_clear(subtract(rates[run], rates[UHB]))
        if other:
            highest = max(levels[len(rates) :], default=math.inf)
            passed[f"higher than on {DATA[other[0].cells[0].place.data]} by {attacker}"] = levels[0] > highest
    if not measured:
        return None
    return weigh_all(passed, ", ".join(measured), "{} only", max(values, key=itemgetter(0))[1])


OVER = f"where an attacker puts the original model at least {100 * TELLS:g} points above Retrain, the MISR minus that attacker's rate on test data"
PLAIN = f"The rate of the paper's attacker ({TREES})"
CLAIMS = [
    Claim(
        MISR, "IV-A.3",
        "An MISR close to 0.5 suggests successful unlearning",
        f"Retrain's MISR is within {100 * NEAR:g} points of 50 %, and the original model's is not.",
        judge_half,
        NEITHER,
    ),
    Claim(
        MISR, "IV-B.4, Fig. 4",
        f"MNIST: Retrain's MISR is only {PRINTED:.1%}, FedEraser's and FedRecover's are close to 50 %",
        f"Two statements in one, and both must hold: Retrain's rate is within {100 * NEAR:g} points of {PRINTED:.1%}; FedEraser's and FedRecover's are within "
        f"{100 * NEAR:g} points of 50 %.",
        judge_levels,
        NEITHER,
    ),
    Claim(
        MISR, "IV-B.4, Fig. 4",
        "MNIST: FedUHB's MISR is lower than FedEraser's and FedRecover's",
        f"{PLAIN} is clearly below both of theirs. And: {OVER} is clearly below both of theirs, by every such attacker. In part: only one of these.",
        partial(judge_lower, data=MNIST, than=APPROXIMATE),
    ),
    Claim(
        MISR, "IV-B.4, Fig. 4",
        "CIFAR-10: FedUHB's MISR is higher than on MNIST and lower than Retrain's",
        f"{PLAIN} is clearly below Retrain's, and on average above that on MNIST with the same partition and any number of images. And: {OVER} meets the same "
        "conditions, by every such attacker. In part: only one of these.",
        partial(judge_lower, data=CIFAR, than=(RETRAIN,), among=MNIST),
    ),
]  # fmt: skip
