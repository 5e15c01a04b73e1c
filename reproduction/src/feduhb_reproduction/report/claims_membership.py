"""Claims on membership inference: the paper's rate (MISR) as it is, and over what the attacker says of data that nobody trained on."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from operator import itemgetter

from feduhb.report.words import listed
from feduhb_reproduction.cells import ORIGINAL, RETRAIN
from feduhb_reproduction.report.claims_parts import (
    APPROXIMATE,
    CIFAR,
    CONDITIONS,
    DATA,
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
    grouped,
    middle,
    missing,
    named,
    ordered,
    paired,
    several,
    share,
)
from feduhb_reproduction.report.federations import Federation
from feduhb_reproduction.report.measures import TREES, UHB, attackers
from feduhb_reproduction.report.printed import LABELS

MISR = "Membership (MISR)"
HALF, NEAR, PRINTED = 0.5, 0.1, 0.239  # close to 0.5, how near is close, the paper's Retrain
TELLS = 0.05  # over Retrain's MISR, from which on the original model's says something
RECALL = "MISR is a recall: what a model that never saw the data gets depends on the attacker and on the labels, and is not 50 %"
PLAINLY, BEYOND = f"as a bare rate, by {TREES}", "Over the attacker's rate on test data"


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
    """Give by seed how much more of the forgotten data than of test data an attacker calls member.

    Where clients' labels are skewed that is above 0 for a model that never saw the data, too.
    """
    return {seed: mine - test for seed, (mine, test) in _pairs(federation, run, attacker).items()}


def lower(evidence: Evidence, *, data: str, than: tuple[str, ...], among: str = "") -> Judged:
    """Judge whether FedUHB has a lower MISR than others, and a higher one than on other data: the rate as it is, and over that on test data."""
    every, other = named(evidence.clean(data)), evidence.clean(among) if among else []
    if not every or (among and not other):
        return missing(among if every else data)
    on_other = f" / of FedUHB on {DATA[among]}" if among else ""
    names = ordered(LABELS[run] for run in (UHB, *than))
    plain = everywhere(
        every, partial(_plainly, than=than, other=other), f"MISR by {TREES} of {names}{on_other}",
        ("rate {}; the lowest of the others {}", ".1%", ".1%"),
    )  # fmt: skip
    return _twice(plain, _over_test(every, than, other, on_other))


def _plainly(federation: Federation, *, than: tuple[str, ...], other: Sequence[Federation]) -> Seen | None:
    """Compare the rates as they are."""
    rates = {run: called(federation, run) for run in (UHB, *than)}
    if not all(rates.values()):
        return None
    like = [called(one, UHB) for one in other if one.partition == federation.partition]
    levels = [middle(each) for each in (*rates.values(), *like)]
    passed = {f"lower than {LABELS[run]}'s": clear(paired(rates[run], rates[UHB])) for run in than}
    if other:
        higher = f"higher than on {DATA[other[0].cells[0].place.data]}"
        passed[higher] = levels[0] > max(levels[len(rates) :], default=math.inf)
    lowest = min(levels[1 : len(rates)])
    return several(passed, ordered(map(share, levels)), "{} only", (levels[0], lowest))


def _over_test(
    every: dict[str, Federation], than: tuple[str, ...], other: Sequence[Federation], on_other: str
) -> Judged:
    """Judge by what attackers say beyond what they say of test data, where they see anything at all."""
    fit = {name: one for name, one in every.items() if _telling(one)}
    names = ordered(LABELS[run] for run in dict.fromkeys((UHB, *than, ORIGINAL, RETRAIN)))
    lead = f"MISR over the attacker's rate on test data, in points, of {names}{on_other}"
    by = dict.fromkeys(_telling(one)[0] for one in fit.values())
    where = f", for {grouped(fit)} by {listed(list(by))}," if fit else ""
    brief = (
        f"over the rate on test data{where} {{}} points; the lowest of the others {{}}; the original model {{}}",
        *["+.1f"] * 3,
    )
    judged = everywhere(fit or every, partial(_lower, than=than, other=other), lead, brief)
    blind = f"where neither attacker sets the original model {100 * TELLS:g} points above Retrain, so that nothing to forget is seen"
    if judged.verdict == UNKNOWN:
        return judged
    return able(every, judged, fit, f"nowhere can it be seen: {blind}", blind)


def _twice(plain: Judged, over: Judged) -> Judged:
    """Put both readings together: what one of them denies holds under conditions at most."""
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


def _telling(federation: Federation) -> list[str]:
    """Name the attackers that see in the original model what Retrain never saw."""
    found = {
        attacker: paired(*(beyond(federation, run, attacker) for run in (ORIGINAL, RETRAIN))).mean
        for attacker in attackers(federation)
    }
    return [attacker for attacker, more in found.items() if more is not None and more >= TELLS]


def _lower(federation: Federation, *, than: tuple[str, ...], other: Sequence[Federation]) -> Seen | None:
    """Every attacker that sees something in the original model must see it."""
    passed: dict[str, bool] = {}
    told: list[str] = []
    values: list[tuple[bool, tuple[float, ...]]] = []
    for attacker in attackers(federation):
        rates = {run: beyond(federation, run, attacker) for run in (UHB, *than, ORIGINAL, RETRAIN)}
        if not all(rates.values()):
            continue
        like = [beyond(one, UHB, attacker) for one in other if one.partition == federation.partition]
        levels = [100 * middle(each) for each in (*rates.values(), *like)]
        tells = attacker in _telling(federation)
        blind = "" if tells else ", which hardly tells the original from Retrain"
        told.append(f"{ordered(f'{level:+.1f}' for level in levels)} ({attacker}{blind})")
        values.append((tells, (levels[0], min(levels[1 : 1 + len(than)]), levels[1 + len(than)])))
        if not tells:
            continue
        for run in than:
            passed[f"lower than {LABELS[run]}'s by {attacker}"] = clear(paired(rates[run], rates[UHB]))
        if other:
            highest = max(levels[len(rates) :], default=math.inf)
            passed[f"higher than on {DATA[other[0].cells[0].place.data]} by {attacker}"] = levels[0] > highest
    if not told:
        return None
    return several(passed, ", ".join(told), "{} only", max(values, key=itemgetter(0))[1])


OVER = (
    "Where an attacker sees the original model at least "
    f"{100 * TELLS:g} points above Retrain (elsewhere nothing to forget is seen), its MISR over that attacker's rate on test data"
)
PLAIN = f"The rate of the paper's attacker ({TREES})"
CLAIMS = [
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
        f"{PLAIN} is clearly below both. And: {OVER} is clearly below both, by every such attacker. Partly, if only one of these.",
        partial(lower, data=MNIST, than=APPROXIMATE),
    ),
    Claim(
        MISR, "IV-B.4, Fig. 4",
        "CIFAR-10: FedUHB does slightly worse than on MNIST and still better than Retrain.",
        f"{PLAIN} is clearly below Retrain's, and in the mean above that on MNIST with the same partition and any number of images. And: {OVER} is so too, "
        "by every such attacker. Partly, if only one of these.",
        partial(lower, data=CIFAR, than=(RETRAIN,), among=MNIST),
    ),
]  # fmt: skip
