"""What judging a claim is made of: the evidence, a verdict, and how federations that disagree are summed up."""

from __future__ import annotations

import json
import math
import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from feduhb.errors import RunFolderError
from feduhb.report.grids import NOTHING
from feduhb.report.words import listed, number, percent
from feduhb_reproduction.cells import Cell, read_cells
from feduhb_reproduction.report.federations import Federation, federations
from feduhb_reproduction.report.measures import Reached, Spread
from feduhb_reproduction.theorem_page import FILE as THEOREM
from feduhb_reproduction.theorem_page import Found as Theorem
from feduhb_reproduction.theorem_page import read_theorem

Verdict = Literal["holds", "holds under conditions", "does not hold", "cannot be judged"]
VERDICTS: tuple[Verdict, ...] = "holds", "holds under conditions", "does not hold", "cannot be judged"
HOLDS, CONDITIONS, FAILS, UNKNOWN = VERDICTS
DATA = {"mnist": "MNIST", "cifar10": "CIFAR-10"}
MNIST, CIFAR = DATA
AUDITED = ("feduhb", "retrain", "federaser", "fedrecover")
APPROXIMATE = ("federaser", "fedrecover")
Brief = tuple[str, ...]  # words with a {} for each of a look's values, and how each is spelled
NUMBER = "number"  # spelled to three digits
UNDER, OFF = "under its rule", "rule off"  # which run of FedUHB a claim is judged by
BOTH, REPLAYED, NEITHER = "both", "the rule replayed", NOTHING
CLOSE = 0.01  # of accuracy: what counts as having converged
# Student's two-sided 95 % quantile by degrees of freedom, from 1 on; the last of them beyond, which is stricter
QUANTILES = (12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228)


@dataclass(frozen=True, slots=True)
class Judged:
    """What was measured on a claim, and what that comes to."""

    measured: str  # what the numbers are; then a line for each federation
    verdict: Verdict
    why: str = ""  # under which conditions, or why not
    brief: str = ""  # the numbers once more, as ranges over the federations


@dataclass(frozen=True, slots=True)
class Evidence:
    """Everything that claims are judged by."""

    cells: Mapping[str, Sequence[Cell]]  # by data set
    theorem: Theorem | None = None
    audits: Mapping[str, Mapping[str, Any]] | None = None  # by method

    def clean(self, data: str) -> list[Federation]:
        """Give a data set's federations without a backdoor."""
        return federations(self.cells.get(data, ()))

    def planted(self, data: str) -> list[Federation]:
        """Give those with one."""
        return federations(self.cells.get(data, ()), backdoor=True)


@dataclass(frozen=True, slots=True)
class Claim:
    """A claim of the paper."""

    topic: str
    where: str  # in the paper
    words: str  # ours, with the paper's numbers
    criterion: str  # what it takes to hold
    judge: Callable[[Evidence], Judged]
    run: str = UNDER  # of FedUHB


@dataclass(frozen=True, slots=True)
class Seen:
    """One federation's part in a claim: the numbers in words, and whether the claim holds there.

    None stands for partly, and ``but`` says how.
    """

    holds: bool | None
    told: str
    but: str = ""
    values: tuple[float | None, ...] = ()  # for the claim's brief


def read_evidence(results: Path) -> Evidence:
    """Read what stands in a folder of results: paper/DATA/cells, theorem and audit-demo."""
    cells = {data: read_cells(results / "paper" / data / "cells") for data in DATA}
    if not any(cells.values()):
        raise RunFolderError(
            f"{results / 'paper'} holds no cells; make some with feduhb reproduce mnist --out {results / 'paper' / MNIST}"
        )
    theorem = read_theorem(results / "theorem") if (results / "theorem" / THEOREM).exists() else None
    found = {name: results / "audit-demo" / f"{name}.json" for name in AUDITED}
    audits = {name: json.loads(path.read_text()) for name, path in found.items() if path.exists()}
    return Evidence(cells, theorem, audits)


def across(
    evidence: Evidence, data: str, look: Callable[[Federation], Seen | None], lead: str, brief: Brief
) -> Judged:
    """Look at a data set's federations and sum up; None of a look: there is nothing to see."""
    found = evidence.clean(data)
    return everywhere(named(found), look, lead, brief) if found else missing(data)


def everywhere(
    found: Mapping[str, Federation], look: Callable[[Federation], Seen | None], lead: str, brief: Brief
) -> Judged:
    """Look at every federation and sum up: holds in all, in some (which), in none."""
    seen = {name: one for name, federation in found.items() if (one := look(federation)) is not None}
    if not seen:
        return Judged("", UNKNOWN, "nothing is there to judge it by")
    told = [f"{name}: {one.told}" for name, one in seen.items()]
    head = f"{lead} ({_seeds([found[name] for name in seen])})."
    return Judged("\n".join([head, *told]), *concluded(seen), ranged(brief, seen.values()))


def able(
    every: Mapping[str, Federation],
    judged: Judged,
    fit: Mapping[str, Federation],
    nothing: str,
    where: str,
) -> Judged:
    """Limit a verdict to the federations that are fit to be asked, and name the others."""
    if not fit:
        return replace(judged, verdict=UNKNOWN, why=nothing)
    idle = [name for name in every if name not in fit]
    if not idle:
        return judged
    said = judged.why or f"{'for' if judged.verdict == HOLDS else 'judged by'} {grouped(fit)}"
    why = [said, f"nothing is known of {grouped(idle)}, {where}"]
    verdict = CONDITIONS if judged.verdict == HOLDS else judged.verdict
    return replace(judged, verdict=verdict, why="; ".join(why))


def also(judged: Judged, *more: str) -> Judged:
    """Add to why a verdict is what it is."""
    return replace(judged, why="; ".join(part for part in (judged.why, *more) if part))


def ranged(brief: Brief, seen: Iterable[Seen]) -> str:
    """Spell each value as a range over the federations; what was told, where no federation has values."""
    every, (words, *specs) = list(seen), brief
    columns = list(zip(*(one.values for one in every if one.values), strict=True))
    if not columns:
        return "; ".join(dict.fromkeys(one.told for one in every))
    return words.format(*(_range(column, spec) for column, spec in zip(columns, specs, strict=True)))


def _range(values: Iterable[float | None], spec: str) -> str:
    known = sorted(value for value in values if value is not None and not math.isnan(value))
    ends = [number(value) if spec == NUMBER else format(value, spec) for value in known[:1] + known[-1:]]
    return " to ".join(dict.fromkeys(ends)) or "nothing"


def _seeds(found: Iterable[Federation]) -> str:
    """Say how many seeds the means are over."""
    low, *_, high = sorted([len(one.seeds) for one in found]) * 2
    return f"mean over {low}{f' to {high}' if high > low else ''} seeds" if high > 1 else "one seed"


def concluded(seen: Mapping[str, Seen]) -> tuple[Verdict, str]:
    """Give the verdict and, where federations differ, which of them it is true of."""
    yes, partly, no = ([n for n, one in seen.items() if one.holds is kind] for kind in (True, None, False))
    if len(yes) == len(seen):
        return HOLDS, ""
    if len(no) == len(seen):
        return FAILS, ""
    buts = _alike(seen, partly)
    if len(partly) == len(seen) and len(buts) == 1:
        return CONDITIONS, next(iter(buts))
    said = [f"for {grouped(yes)}"] if yes else []
    said += [f"for {grouped(names)}: {but}" for but, names in buts.items()]
    return CONDITIONS, "; ".join(said + ([f"not for {grouped(no)}"] if no else []))


def grouped(names: Iterable[str]) -> str:
    """List federations, the sizes of one partition together."""
    sizes: dict[str, list[str]] = {}
    for name in names:
        head, _, size = name.removesuffix(")").partition(" (")
        sizes.setdefault(head, []).extend([size] if size else [])
    return listed([f"{head} ({' and '.join(these)})" if these else head for head, these in sizes.items()])


def several(
    passed: Mapping[str, bool],
    told: str,
    words: str = "against {} only",
    values: tuple[float | None, ...] = (),
) -> Seen:
    """Look at several comparisons of one federation: partly, where some of them hold."""
    yes = [name for name, fine in passed.items() if fine]
    some = 0 < len(yes) < len(passed)
    return Seen(None if some else bool(yes), told, words.format(listed(yes)) if some else "", values)


def both(
    first: bool, second: bool, told: str, *, buts: tuple[str, str], values: tuple[float | None, ...] = ()
) -> Seen:
    """Look at two halves of a claim: partly, where one of them holds, in the words for the first and the second."""
    if first == second:
        return Seen(first, told, values=values)
    return Seen(None, told, buts[0] if first else buts[1], values)


def _alike(seen: Mapping[str, Seen], names: Iterable[str]) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for name in names:
        found.setdefault(seen[name].but, []).append(name)
    return found


def every_data(evidence: Evidence) -> dict[str, Federation]:
    """Name the federations without a backdoor of all data sets."""
    return {name: one for data in DATA for name, one in named(evidence.clean(data), data).items()}


def named(found: Sequence[Federation], data: str = "") -> dict[str, Federation]:
    """Name federations as shortly as they can be told apart."""
    sizes = len({one.per_client for one in found}) > 1
    planted = len({one.backdoor for one in found}) > 1

    def name(one: Federation) -> str:
        size = ["all" if one.per_client is None else str(one.per_client)] if sizes else []
        more = ", ".join(size + (["backdoor"] if planted and one.backdoor else []))
        return (f"{DATA[data]} " if data else "") + one.short + (f" ({more})" if more else "")

    return {name(one): one for one in found}


def missing(data: str) -> Judged:
    """Say that there is no cell to judge by."""
    return Judged("", UNKNOWN, f"no cell of {DATA[data]} is there")


def broke(federation: Federation, run: str = "fedrecover") -> str:
    """Say in how many seeds a run broke off; nothing where in none."""
    failed, every = federation.failed(run), federation.every(run)
    return f"broke off in {len(failed)} of {len(every)} seeds" if failed else ""


def at(federation: Federation, run: str, round: int, series: str = "test_accuracy") -> dict[int, float]:
    """Give a run's value after a round, counted from 1, by seed; a shorter run's last, a broken run not at all."""
    tracks = federation.tracks(run)
    found = {seed: values[:round][-1] for seed, track in tracks.items() if (values := track.of(series))}
    return {seed: value for seed, value in found.items() if math.isfinite(value)}


def when(federation: Federation, found: Reached) -> dict[int, float]:
    """Give the round by seed; one more than were scheduled where it never comes."""
    return {seed: float(n or federation.rounds + 1) for seed, n in found.rounds.items()}


def paired(one: Mapping[int, float], other: Mapping[int, float]) -> Spread:
    """Give by how much one exceeds the other, seed by seed."""
    return Spread(tuple(one[seed] - other[seed] for seed in one if seed in other))


def clear(difference: Spread) -> bool:
    """Whether a difference is above 0 by Student's 95 % over the seeds; with one seed, whether it is above 0."""
    if not difference.values:
        return False
    error = (difference.sd or 0.0) / math.sqrt(difference.n)
    return statistics.fmean(difference.values) > quantile(difference.n) * error


def quantile(seeds: int) -> float:
    """Give how many standard errors of a mean over so many seeds are called clear."""
    return QUANTILES[min(max(seeds - 1, 1), len(QUANTILES)) - 1]


def middle(values: Mapping[int, float]) -> float:
    """Give the mean over seeds; not a number where there is none."""
    return statistics.fmean(values.values()) if values else math.nan


def ordered(values: Iterable[str]) -> str:
    """Set values side by side, in an order that was said before."""
    return " / ".join(values)


def share(value: float | None) -> str:
    """Spell a share, or that there is none."""
    return "none" if value is None or math.isnan(value) else percent(value)


def gap(difference: Spread) -> str:
    """Spell a mean difference of shares in percentage points, with its sign."""
    return "none" if difference.mean is None else f"{100 * difference.mean:+.1f}"
