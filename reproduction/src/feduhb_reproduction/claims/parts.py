"""Parts of judging a claim: the evidence, the verdict, and one conclusion from federations that disagree."""

from __future__ import annotations

import json
import math
import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from feduhb.errors import RunFolderError
from feduhb.report.words import NOTHING, format_number, format_percent, join_names
from feduhb_reproduction.cells import Cell, read_cells
from feduhb_reproduction.federations import Federation, group_cells
from feduhb_reproduction.measures import ACCURACY, Reached, Spread
from feduhb_reproduction.search import read_search
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
Brief = tuple[str, ...]  # words with a {} for each value of a federation, and the format of each
NUMBER = "number"  # a format: three digits
UNDER, OFF = "under its rule", "rule off"  # which run of FedUHB a claim is judged by
BOTH, REPLAYED, NEITHER = "both", "the rule replayed", NOTHING
OURS = "ours"  # in place of a section of the paper, for a target of our own
CLOSE = 0.01  # of accuracy: what counts as having converged
# Student's two-sided 95 % quantile by degrees of freedom, from 1 on; the last of them beyond, which is stricter
QUANTILES = (12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228)


@dataclass(frozen=True, slots=True)
class Judged:
    """The measurements on a claim, and the verdict that follows."""

    measured: str  # what the numbers are; then a line for each federation
    verdict: Verdict
    why: str = ""  # under which conditions, or why not
    brief: str = ""  # the numbers once more, as ranges over the federations


@dataclass(frozen=True, slots=True)
class Evidence:
    """The measurements that claims are judged by."""

    cells: Mapping[str, Sequence[Cell]]  # by data set
    theorem: Theorem | None = None
    audits: Mapping[str, Mapping[str, Any]] | None = None  # by method
    searched: Sequence[Cell] = ()  # of MNIST with other numbers of images, FedUHB alone

    def clean(self, data: str) -> list[Federation]:
        """Return a data set's federations without a backdoor."""
        return group_cells(self.cells.get(data, ()))

    def planted(self, data: str) -> list[Federation]:
        """Return a data set's federations with a backdoor."""
        return group_cells(self.cells.get(data, ()), backdoor=True)


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
    """The numbers of one federation, and whether the claim holds there.

    None means in part, and ``but`` has the condition.
    """

    holds: bool | None
    measured: str
    but: str = ""
    values: tuple[float | None, ...] = ()  # for the claim's brief


def read_evidence(results: Path) -> Evidence:
    """Return the evidence in a folder of results: paper/DATA/cells, search, theorem and audit-demo."""
    cells = {data: read_cells(results / "paper" / data / "cells") for data in DATA}
    if not any(cells.values()):
        raise RunFolderError(
            f"{results / 'paper'} holds no cells; make some with feduhb reproduce mnist --out {results / 'paper' / MNIST}"
        )
    theorem = read_theorem(results / "theorem") if (results / "theorem" / THEOREM).exists() else None
    found = {name: results / "audit-demo" / f"{name}.json" for name in AUDITED}
    audits = {name: json.loads(path.read_text()) for name, path in found.items() if path.exists()}
    return Evidence(cells, theorem, audits, read_search(results / "search"))


def judge_data(
    evidence: Evidence, data: str, look: Callable[[Federation], Seen | None], lead: str, brief: Brief
) -> Judged:
    """Judge a claim by the federations of a data set. A look returns None if a federation has no numbers."""
    found = evidence.clean(data)
    return judge_federations(name_federations(found), look, lead, brief) if found else report_missing(data)


def judge_federations(
    found: Mapping[str, Federation], look: Callable[[Federation], Seen | None], lead: str, brief: Brief
) -> Judged:
    """Judge a claim by federations: it holds in all, in some or in none."""
    seen = {name: one for name, federation in found.items() if (one := look(federation)) is not None}
    if not seen:
        return Judged("", UNKNOWN, "there are no numbers to judge it by")
    lines = [f"{name}: {one.measured}" for name, one in seen.items()]
    head = f"{lead} ({_count_seeds([found[name] for name in seen])})."
    return Judged("\n".join([head, *lines]), *conclude(seen), format_brief(brief, seen.values()))


def limit_verdict(
    every: Mapping[str, Federation], judged: Judged, fit: Mapping[str, Federation], nothing: str, where: str
) -> Judged:
    """Limit a verdict to the federations that can be judged, and name the others."""
    if not fit:
        return replace(judged, verdict=UNKNOWN, why=nothing)
    idle = [name for name in every if name not in fit]
    if not idle:
        return judged
    said = judged.why or f"{'for' if judged.verdict == HOLDS else 'judged by'} {group_names(fit)}"
    why = [said, f"unknown for {group_names(idle)}, {where}"]
    verdict = CONDITIONS if judged.verdict == HOLDS else judged.verdict
    return replace(judged, verdict=verdict, why="; ".join(why))


def add_reasons(judged: Judged, *more: str) -> Judged:
    """Return the verdict with more reasons."""
    return replace(judged, why="; ".join(part for part in (judged.why, *more) if part))


def format_brief(brief: Brief, seen: Iterable[Seen]) -> str:
    """Return each value as a range over the federations; their texts if no federation has values."""
    every, (words, *specs) = list(seen), brief
    columns = list(zip(*(one.values for one in every if one.values), strict=True))
    if not columns:
        return "; ".join(dict.fromkeys(one.measured for one in every))
    return words.format(*(_format_range(column, spec) for column, spec in zip(columns, specs, strict=True)))


def _format_range(values: Iterable[float | None], spec: str) -> str:
    known = sorted(value for value in values if value is not None and not math.isnan(value))
    ends = [
        format_number(value) if spec == NUMBER else format(value, spec) for value in known[:1] + known[-1:]
    ]
    return " to ".join(dict.fromkeys(ends)) or "nothing"


def _count_seeds(found: Iterable[Federation]) -> str:
    """Return the number of seeds behind the means."""
    low, *_, high = sorted([len(one.seeds) for one in found]) * 2
    return f"mean over {low}{f' to {high}' if high > low else ''} seeds" if high > 1 else "one seed"


def conclude(seen: Mapping[str, Seen]) -> tuple[Verdict, str]:
    """Return the verdict and, if federations differ, the federations for which the claim holds."""
    yes, partly, no = ([n for n, one in seen.items() if one.holds is kind] for kind in (True, None, False))
    if len(yes) == len(seen):
        return HOLDS, ""
    if len(no) == len(seen):
        return FAILS, ""
    buts = _group_by_reason(seen, partly)
    if len(partly) == len(seen) and len(buts) == 1:
        return CONDITIONS, next(iter(buts))
    said = [f"for {group_names(yes)}"] if yes else []
    said += [f"for {group_names(names)}: {but}" for but, names in buts.items()]
    return CONDITIONS, "; ".join(said + ([f"not for {group_names(no)}"] if no else []))


def group_names(names: Iterable[str]) -> str:
    """Return a list of federations as text, with the sizes of one partition together."""
    sizes: dict[str, list[str]] = {}
    for name in names:
        head, _, size = name.removesuffix(")").partition(" (")
        sizes.setdefault(head, []).extend([size] if size else [])
    return join_names([f"{head} ({' and '.join(these)})" if these else head for head, these in sizes.items()])


def weigh_all(
    passed: Mapping[str, bool],
    measured: str,
    words: str = "against {} only",
    values: tuple[float | None, ...] = (),
) -> Seen:
    """Judge several comparisons of one federation. The claim holds in part if only some of them hold."""
    yes = [name for name, fine in passed.items() if fine]
    some = 0 < len(yes) < len(passed)
    return Seen(None if some else bool(yes), measured, words.format(join_names(yes)) if some else "", values)


def weigh_two(
    first: bool, second: bool, measured: str, *, buts: tuple[str, str], values: tuple[float | None, ...] = ()
) -> Seen:
    """Judge the two halves of a claim. If only one of them holds, ``buts`` has a text for each case."""
    if first == second:
        return Seen(first, measured, values=values)
    return Seen(None, measured, buts[0] if first else buts[1], values)


def _group_by_reason(seen: Mapping[str, Seen], names: Iterable[str]) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for name in names:
        found.setdefault(seen[name].but, []).append(name)
    return found


def list_federations(evidence: Evidence) -> dict[str, Federation]:
    """Return the federations without a backdoor of all data sets, by name."""
    return {name: one for data in DATA for name, one in name_federations(evidence.clean(data), data).items()}


def name_federations(found: Sequence[Federation], data: str = "") -> dict[str, Federation]:
    """Return federations by the shortest names that differ."""
    sizes = len({one.per_client for one in found}) > 1
    planted = len({one.backdoor for one in found}) > 1

    def name(one: Federation) -> str:
        size = ["all" if one.per_client is None else str(one.per_client)] if sizes else []
        more = ", ".join(size + (["backdoor"] if planted and one.backdoor else []))
        return (f"{DATA[data]} " if data else "") + one.short + (f" ({more})" if more else "")

    return {name(one): one for one in found}


def report_missing(data: str) -> Judged:
    """Return the verdict for a data set without cells."""
    return Judged("", UNKNOWN, f"there is no cell of {DATA[data]}")


def count_broken(federation: Federation) -> str:
    """Return the number of seeds in which FedRecover broke off, in words; "" if there are none."""
    failed, every = federation.failed("fedrecover"), federation.every("fedrecover")
    return f"broke off in {len(failed)} of {len(every)} seeds" if failed else ""


def values_at(federation: Federation, run: str, round: int) -> dict[int, float]:
    """Return a run's accuracy after a round, counted from 1, by seed: the last of a shorter run, none of a broken one."""
    tracks = federation.tracks(run)
    found = {seed: values[:round][-1] for seed, track in tracks.items() if (values := track.of(ACCURACY))}
    return {seed: value for seed, value in found.items() if math.isfinite(value)}


def rounds_of(federation: Federation, found: Reached) -> dict[int, float]:
    """Return the round by seed. A seed that never got there has one round more than were scheduled."""
    return {seed: float(n or federation.rounds + 1) for seed, n in found.rounds.items()}


def subtract(one: Mapping[int, float], other: Mapping[int, float]) -> Spread:
    """Return the differences, seed by seed."""
    return Spread(tuple(one[seed] - other[seed] for seed in one if seed in other))


def is_clear(difference: Spread) -> bool:
    """Whether a mean over seeds is above 0 by Student's 95 % interval; with one seed, whether it is above 0."""
    if not difference.values:
        return False
    error = (difference.sd or 0.0) / math.sqrt(difference.n)
    return statistics.fmean(difference.values) > find_quantile(difference.n) * error


def find_quantile(seeds: int) -> float:
    """Return how many standard errors a mean over this many seeds must exceed to be clear."""
    return QUANTILES[min(max(seeds - 1, 1), len(QUANTILES)) - 1]


def average(values: Mapping[int, float]) -> float:
    """Return the mean over seeds; NaN if there are none."""
    return statistics.fmean(values.values()) if values else math.nan


def join_values(values: Iterable[str]) -> str:
    """Return values in one line, separated by slashes, in the order of the summary line above them."""
    return " / ".join(values)


def format_share(value: float | None) -> str:
    """Return a share as text; "none" if it is not known."""
    return "none" if value is None or math.isnan(value) else format_percent(value)


def format_points(difference: Spread) -> str:
    """Return a mean difference of shares in percentage points, with its sign."""
    return "none" if difference.mean is None else f"{100 * difference.mean:+.1f}"
