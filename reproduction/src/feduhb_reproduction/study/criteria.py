"""What the study must show: criteria, each with a verdict that follows from the cells of the reported seeds."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Literal

from feduhb.report.words import join_names
from feduhb.stopping import StopRule
from feduhb_reproduction.federations import Federation
from feduhb_reproduction.study.choose import LATEST, Choice, read_choice
from feduhb_reproduction.study.design import PAPER, Study
from feduhb_reproduction.study.results import (
    Federations,
    Stopped,
    count_rounds,
    list_missing,
    read_seeds,
    stop_federation,
    subtract_at_equal_work,
)

Verdict = Literal["holds", "does not hold", "cannot be judged"]
Seen = tuple[Verdict, str]  # and what was measured
MOST, AIM = 16, 13  # rounds to Retrain's accuracy for good
# Points: in every federation, in two thirds of them, in a single seed.
LOST, OFTEN_LOST, SEED_LOST = 1.0, 0.5, 3.0
OFTEN = 2 / 3  # of the federations: eight of twelve


@dataclass(frozen=True, slots=True)
class Results:
    """The part of a study that has been run: the reported seeds, and what was chosen without them."""

    study: Study
    choice: Choice | None
    reported: Federations
    tuned: Federations = field(default_factory=dict)  # the tuning seeds, as long as nothing is chosen

    @property
    def fast(self) -> str | None:
        """The fastest candidate's run; None before the choice."""
        return None if self.choice is None else self.choice.fast

    def stop(self, run: str, rule: StopRule) -> dict[str, Stopped]:
        """Return where a rule ends a run, by federation."""
        found = {
            label: stop_federation(one, run, rule, self.study.long) for label, one in self.reported.items()
        }
        return {label: one for label, one in found.items() if one is not None}

    def list_rules(self) -> dict[str, StopRule]:
        """Return the chosen rule of each family; none before the choice."""
        chosen = {} if self.choice is None else self.choice.rules
        return {
            rules.family: rules.make()[chosen[rules.family]]
            for rules in self.study.rules
            if rules.family in chosen
        }


@dataclass(frozen=True, slots=True)
class Judged:
    """A criterion, what was measured, and whether it holds."""

    words: str
    verdict: Verdict
    measured: str


def read_results(study: Study, out: Path) -> Results:
    """Return a study from its folder. Once settings are chosen, only the cells of the reported seeds are read."""
    choice = read_choice(study, out)
    tuned = {} if choice is not None else read_seeds(study, out, study.tune)
    return Results(study, choice, read_seeds(study, out, study.report), tuned)


def judge_study(results: Results) -> list[Judged]:
    """Judge every criterion."""
    n, long = results.study.count_federations(), results.study.long
    often = round(OFTEN * n)
    judges: list[tuple[str, Callable[[Results], Seen]]] = [
        (f"The recommended method keeps Retrain's accuracy from round {MOST} on or sooner, in each of {n} federations", partial(_see_rounds, most=MOST)),
        (f"The same from round {AIM} on, which is the aim", partial(_see_rounds, most=AIM)),
        (f"At FedRecover's client work, the recommended method is more accurate in each of {n} federations", partial(_see_work, rival="fedrecover")),
        ("The same at FedEraser's client work", partial(_see_work, rival="federaser")),
        (f"The chosen stop rule loses at most {LOST:g} point in each of {n} federations", partial(_see_lost, most=LOST, least=n)),
        (f"It loses at most {OFTEN_LOST:g} points in {often} of {n} federations", partial(_see_lost, most=OFTEN_LOST, least=often)),
        (f"It never loses more than {SEED_LOST:g} points in a single seed", _see_seeds),
        (f"It ends runs of {long} rounds by round {LATEST} on average", _see_ends),
    ]  # fmt: skip
    return [Judged(words, *judge(results)) for words, judge in judges]


def list_ahead(results: Results, run: str, rival: str) -> list[str]:
    """Return the federations in which a run is more accurate than another at that one's client work, as a mean over seeds.

    A rival that broke off with every seed is behind.
    """
    return [label for label, one in results.reported.items() if _is_ahead(one, run, rival)]


def _is_ahead(federation: Federation, run: str, rival: str) -> bool:
    found = subtract_at_equal_work(federation, run, rival)
    if found.mean is None:
        return bool(federation.tracks(run)) and len(federation.failed(rival)) == len(federation.seeds)
    return not federation.failed(run) and found.mean > 0


def _see_rounds(results: Results, *, most: float) -> Seen:
    if missing := _explain_missing(
        results, {results.fast or PAPER: results.study.rounds, "retrain": results.study.rounds}
    ):
        return "cannot be judged", missing
    fast = results.choice.fast if results.choice else PAPER
    means = {
        label: statistics.fmean(count_rounds(one, fast).values) for label, one in results.reported.items()
    }
    late = {label: mean for label, mean in means.items() if mean > most}
    measured = f"{min(means.values()):.1f} to {max(means.values()):.1f} rounds"
    where = (
        ""
        if not late
        else "; later in " + join_names([f"{label} ({mean:.1f})" for label, mean in late.items()])
    )
    return "does not hold" if late else "holds", measured + where


def _see_work(results: Results, *, rival: str) -> Seen:
    if missing := _explain_missing(results, {results.fast or PAPER: results.study.rounds, rival: 1}):
        return "cannot be judged", missing
    n = results.study.count_federations()
    ahead, measured = len(list_ahead(results, results.fast or PAPER, rival)), ""
    if not _explain_missing(results, {PAPER: results.study.rounds}):  # its runs are made later
        measured = f"; FedUHB with the paper's settings in {len(list_ahead(results, PAPER, rival))}"
    return "holds" if ahead == n else "does not hold", f"ahead in {ahead} of {n}{measured}"


def _see_lost(results: Results, *, most: float, least: int) -> Seen:
    found, missing = _stop_chosen(results)
    if missing:
        return "cannot be judged", missing
    worst = max(found, key=lambda label: found[label].mean_lost)
    kept = sum(one.mean_lost <= most for one in found.values())
    measured = f"in {kept} of {len(found)}; the most are {found[worst].mean_lost:.2f} points in {worst}"
    return "holds" if kept >= least else "does not hold", measured


def _see_seeds(results: Results) -> Seen:
    found, missing = _stop_chosen(results)
    if missing:
        return "cannot be judged", missing
    worst = max(found, key=lambda label: max(found[label].lost))
    lost = max(found[worst].lost)
    return "holds" if lost <= SEED_LOST else "does not hold", f"at most {lost:.2f} points, in {worst}"


def _see_ends(results: Results) -> Seen:
    found, missing = _stop_chosen(results)
    if missing:
        return "cannot be judged", missing
    mean = statistics.fmean(one.mean_end for one in found.values())
    fired, runs = sum(one.fired for one in found.values()), sum(len(one.ends) for one in found.values())
    measured = f"at round {mean:.1f} on average; it fires in {fired} of {runs} runs"
    return "holds" if mean <= LATEST else "does not hold", measured


def _stop_chosen(results: Results) -> tuple[Mapping[str, Stopped], str]:
    """Return where the chosen rule ends the fastest method's runs; or why that is not known."""
    if missing := _explain_missing(results, {results.fast or PAPER: results.study.long}):
        return {}, missing
    if results.choice is None or results.choice.rule is None:
        return {}, "no stop rule is chosen yet"
    found = results.stop(results.choice.fast, results.list_rules()[results.choice.rule])
    seeds = results.study.count_federations() * len(results.study.report)
    if lost := seeds - sum(len(one.ends) for one in found.values()):
        return {}, f"{lost} of {seeds} runs broke off before the last round"
    return found, ""


def _explain_missing(results: Results, runs: Mapping[str, int]) -> str:
    """Return what must be run before a criterion can be judged; "" if nothing is missing."""
    if results.choice is None:
        return "not run: the settings are not chosen yet"
    n, seeds = results.study.count_federations(), results.study.report
    missing = list_missing(results.study, results.reported, runs, seeds)
    return f"not run: {n - len(missing)} of {n} federations have all {len(seeds)} seeds" if missing else ""
